//! Whether the service evaluates the conditions of a PUT. Some services ignore them without an
//! error (Garage 2.5), and would replace an object silently.
//!
//! One request under a condition that does not hold tells it. The object of these requests is in
//! the state of the store, and stays: with it, two requests are enough. The result is kept as long
//! as the store is open.

use crate::service::Service;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions, UpdateVersion};
use onrush_store::{Key, Result, StoreError};
use tokio::time::Instant;

/// The name of the object, and its content for those who find it in the bucket.
const NAME: &[u8] = b"conditions";
const CONTENT: &str =
    "Onrush determines with this object whether the service evaluates conditions.\n";
/// A tag that the object does not have.
const OTHER_TAG: &str = "00000000000000000000000000000000";

/// Finds out whether the service evaluates conditions, if that is not known yet, until `until`.
/// Fails if the service does, or if the key must not write.
pub(crate) async fn are_evaluated(service: &Service, until: Instant) -> Result<bool> {
    if let Some(&known) = service.evaluates_conditions.get() {
        return Ok(known);
    }
    let path = service.path(&Key::state(NAME)?)?;
    let other = || {
        PutMode::Update(UpdateVersion {
            e_tag: Some(OTHER_TAG.to_owned()),
            version: None,
        })
    };
    // The first one may create the object.
    let evaluates = (!put(service, until, &path, PutMode::Create).await?
        || !put(service, until, &path, PutMode::Create).await?)
        && !put(service, until, &path, other()).await?;
    Ok(*service.evaluates_conditions.get_or_init(|| evaluates))
}

/// Whether a PUT under a condition is made. One that the service does not support is as bad as one
/// whose condition it ignores.
async fn put(service: &Service, until: Instant, path: &Path, mode: PutMode) -> Result<bool> {
    let (client, path) = (service.client.clone(), path.clone());
    let options = PutOptions::from(mode);
    let put = async move { client.put_opts(&path, CONTENT.into(), options).await };
    match service.start(until, put).await {
        Ok(_) | Err(StoreError::Unsupported) => Ok(true),
        Err(StoreError::PreconditionFailed) => Ok(false),
        // No object of the caller was changed.
        Err(StoreError::Interrupted) => Err(StoreError::Unavailable),
        Err(error) => Err(error),
    }
}
