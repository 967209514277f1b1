//! The properties of an object, as the service has them.

use crate::service::Service;
use crate::tasks::Task;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use onrush_store::{Kind, Meta, Result, StoreError, Version};
use std::sync::LazyLock;
use tokio::time::Instant;

/// The version of each folder: a folder is only the beginning of keys.
pub(crate) static FOLDER_VERSION: LazyLock<Version> =
    LazyLock::new(|| Version::parse(b"folder").expect("visible ASCII"));

/// Requests the properties of an object, which have to arrive until `until`.
pub(crate) fn head(service: &Service, until: Instant, path: Path) -> Task<ObjectMeta> {
    let client = service.client.clone();
    service.start(until, async move { client.head(&path).await })
}

/// The properties of an object from those of the service.
pub(crate) fn properties(found: &ObjectMeta) -> Result<Meta> {
    let version = found.e_tag.as_deref().and_then(tag_version);
    Ok(Meta {
        kind: Kind::File,
        size: found.size,
        modified_ns: found.last_modified.timestamp_nanos_opt().unwrap_or(0),
        changed_ns: None,
        // Without an entity tag, nothing tells versions apart.
        version: version.ok_or(StoreError::BadResponse)?,
    })
}

/// The version with the text of an entity tag, which has quotes.
pub(crate) fn tag_version(tag: &str) -> Option<Version> {
    Version::parse(tag.trim_start_matches("W/").trim_matches('"').as_bytes())
}
