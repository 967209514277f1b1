//! The properties and the metadata of an object, as the service has them.

use crate::service::{Service, Task};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt,
};
use onrush_store::{Kind, Meta, Result, StoreError, Version};
use std::io;
use std::sync::LazyLock;

/// The name of the metadata of an object: `x-amz-meta-onrush`.
const METADATA: &str = "onrush";

/// The name of the mark that tells multipart uploads apart: `x-amz-meta-upload-id`.
const MARK: &str = "upload-id";

/// The version of each folder: a folder is only the beginning of keys.
pub(crate) static FOLDER_VERSION: LazyLock<Version> =
    LazyLock::new(|| Version::parse(b"folder").expect("visible ASCII"));

/// Requests the properties of an object.
pub(crate) fn head(service: &Service, path: Path) -> Task<ObjectMeta> {
    let client = service.client.clone();
    service.start(async move { client.head(&path).await })
}

/// The properties of an object from those of the service.
pub(crate) fn properties(found: &ObjectMeta) -> Result<Meta> {
    let version = found.e_tag.as_deref().and_then(tag_version);
    Ok(Meta {
        kind: Kind::File,
        size: found.size,
        modified_ns: found.last_modified.timestamp_nanos_opt().unwrap_or(0),
        // Without an entity tag, nothing tells versions apart.
        version: version.ok_or(StoreError::Io(io::ErrorKind::InvalidData.into()))?,
    })
}

/// The version with the text of an entity tag, which has quotes.
pub(crate) fn tag_version(tag: &str) -> Option<Version> {
    Version::parse(tag.trim_start_matches("W/").trim_matches('"').as_bytes())
}

/// The attributes with the metadata of an upload.
pub(crate) fn with_metadata(metadata: &[u8]) -> Attributes {
    let mut attributes = Attributes::new();
    if !metadata.is_empty() {
        let value = AttributeValue::from(encoded(metadata));
        attributes.insert(Attribute::Metadata(METADATA.into()), value);
    }
    attributes
}

/// Adds the mark of a multipart upload.
pub(crate) fn with_mark(mut attributes: Attributes, mark: &str) -> Attributes {
    let mark = AttributeValue::from(mark.to_owned());
    attributes.insert(Attribute::Metadata(MARK.into()), mark);
    attributes
}

/// Requests the entity tag of the object, if it is that of the upload with this mark.
pub(crate) async fn tag_of_marked(
    service: &Service,
    path: Path,
    mark: &str,
) -> Result<Option<String>> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let client = service.client.clone();
    let found = service.start(async move { client.get_opts(&path, options).await });
    let found = match found.await {
        Err(StoreError::NotFound) => return Ok(None), // Deleted since then.
        found => found?,
    };
    let own = found.attributes.get(&Attribute::Metadata(MARK.into()));
    let is_own = own.is_some_and(|own| own.as_ref() == mark);
    Ok(found.meta.e_tag.filter(|_| is_own))
}

/// Metadata as the value of a field.
pub(crate) fn encoded(metadata: &[u8]) -> String {
    STANDARD_NO_PAD.encode(metadata)
}

/// The metadata in the attributes of an object. Empty if another program wrote something else.
pub(crate) fn metadata_of(attributes: &Attributes) -> Vec<u8> {
    let value = attributes.get(&Attribute::Metadata(METADATA.into()));
    let decoded = value.and_then(|value| STANDARD_NO_PAD.decode(value.as_ref()).ok());
    decoded.unwrap_or_default()
}
