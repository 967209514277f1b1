//! What a bucket can do.

use onrush_store::{Features, Result, StoreError};

/// Base64 makes 1,868 bytes of these, and S3 permits 2 KiB of metadata.
pub(crate) const METADATA_BYTES_MAX: usize = 1400;

/// Fails if an object cannot have metadata of this size.
pub(crate) fn check_metadata(metadata: &[u8]) -> Result<()> {
    match metadata.len() <= METADATA_BYTES_MAX {
        true => Ok(()),
        false => Err(StoreError::TooLarge),
    }
}

/// What a bucket can do beyond the required methods of a store. Uploads continue unless it is known
/// that the service ignores conditions.
pub(crate) fn features(evaluates_conditions: Option<bool>) -> Features {
    let mut features = Features::default();
    features.metadata_bytes_max = METADATA_BYTES_MAX;
    features.resumable_uploads = evaluates_conditions != Some(false);
    features.shared_uploads = features.resumable_uploads;
    features.versions_by_content = true;
    features.folders_end_with_slash = true;
    features
}
