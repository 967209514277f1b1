//! What the tests of uploads that continue share.

use crate::common::read_all;
use onrush_remote::RemoteStore;
use onrush_store::{Condition, Key, Kind, PartialUpload, Result, ResumableUploads, Store, Upload};
use std::ops::Range;
use testing_s3::Bucket;

pub(crate) const MIB: usize = 1 << 20;
/// Five parts of 8 MiB at most: three of them, and a rest.
pub(crate) const SIZE: usize = 27 * MIB + 7;
pub(crate) const METADATA: &[u8] = b"content-type: text/x-test\n";

pub(crate) fn key() -> Key {
    Key::parse(b"folder/object").expect("a key")
}

pub(crate) async fn begin(store: &RemoteStore, condition: Condition) -> Box<dyn Upload> {
    let at = key();
    let staged = store.stage_resumable(&at, condition, Some(SIZE as u64));
    let mut upload = staged.await.expect("an upload");
    upload.set_metadata(METADATA.to_vec()).expect("few bytes");
    upload
}

pub(crate) async fn resume(
    store: &RemoteStore,
    condition: Condition,
    kept: &PartialUpload,
) -> Result<Box<dyn Upload>> {
    let mut upload = store.resume(&key(), condition, kept).await?;
    upload.set_metadata(METADATA.to_vec()).expect("few bytes");
    Ok(upload)
}

pub(crate) async fn write(
    upload: &mut Box<dyn Upload>,
    whole: &[u8],
    range: Range<usize>,
) -> Result<()> {
    for piece in whole[range].chunks(300_000) {
        upload.write(piece.to_vec()).await?;
    }
    Ok(())
}

/// What the bucket has besides the object and that of the conditions.
pub(crate) fn leftovers(bucket: &Bucket) -> Vec<String> {
    let objects = bucket.service.lock();
    let keys = objects.by_key.keys().filter(|key| {
        let name = key.rsplit('/').next().expect("a name");
        !matches!(name, "object" | "conditions")
    });
    let uploads = objects.uploads.values().map(|upload| &upload.key);
    keys.chain(uploads).cloned().collect()
}

pub(crate) async fn assert_content(store: &RemoteStore, expected: &[u8]) {
    let object = store.get(&key()).await.expect("an object");
    assert_eq!(object.metadata().await.expect("metadata"), METADATA);
    assert!(read_all(&object).await.expect("its bytes") == expected);
}

pub(crate) async fn delete(store: &RemoteStore) {
    let deleted = store.delete(&key(), Kind::File, Condition::None).await;
    deleted.expect("deleted");
}
