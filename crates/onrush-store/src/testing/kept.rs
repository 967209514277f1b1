//! What every store whose uploads can be continued does alike.

use super::operations::{body, get, key, put};
use crate::error::StoreError;
use crate::meta::Kind;
use crate::store::{Condition, PartialUpload, ResumableUploads, Upload};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The part of [`conformance`](super::conformance()) about uploads that outlive their request.
pub(super) async fn conformance_of_kept_uploads(store: &dyn ResumableUploads) {
    let features = store.features();
    kept_uploads_continue(store).await;
    if features.uploads_in_any_order {
        kept_uploads_are_written_anywhere(store).await;
    }
    if features.joins_uploads {
        kept_uploads_are_joined(store).await;
    }
}

/// Discards the bytes of all uploads, and returns the number of uploads. A clock may not have
/// advanced since they were written.
async fn discard_all(store: &dyn ResumableUploads) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let discarded = store.discard_older(Duration::ZERO).await;
        match discarded.expect("discarded") {
            0 if Instant::now() < end => {}
            discarded => return discarded,
        }
    }
}

async fn kept_uploads_continue(store: &dyn ResumableUploads) {
    let (at, whole) = (key("kept/object"), body(90_000));
    for first in [0, 5, 60_000] {
        let staged = store.stage_resumable(&at, Condition::None, Some(whole.len() as u64));
        let mut upload = staged.await.expect("staged");
        let write = async |upload: &mut Box<dyn Upload>, part: Range<usize>| {
            let written = upload.write(whole[part].to_vec()).await;
            written.expect("written");
        };
        write(&mut upload, 0..first).await;
        let kept = upload.keep().await.expect("kept");
        assert_eq!(kept.bytes, first as u64);
        write(&mut upload, 70_000..80_000).await; // Not kept: it is dropped.
        drop(upload);
        let condition = Condition::Absent;
        let mut upload = (store.resume(&at, condition.clone(), &kept).await).expect("continued");
        assert_eq!(upload.written_bytes(), first as u64);
        write(&mut upload, first..70_000).await;
        let longer = upload.keep().await.expect("kept again");
        store.discard_replaced(&kept, &longer).await;
        let kept = longer;
        write(&mut upload, 70_000..90_000).await;
        drop(upload);
        assert_eq!(store.get(&at).await.err(), Some(StoreError::NotFound));
        let resumed = store.resume(&at, condition.clone(), &kept).await;
        let mut upload = resumed.expect("continued again");
        write(&mut upload, 70_000..90_000).await;
        let committed = upload.commit().await.expect("committed");
        assert!(committed.created && committed.meta.size == 90_000);
        assert_eq!(get(store, "kept/object").await, Ok(whole.clone()));
        // The bytes are the object now.
        let gone = store.resume(&at, condition, &kept).await;
        assert_eq!(gone.err(), Some(StoreError::NotFound));
        store.discard(&kept).await.expect("nothing to discard");
        let deleted = store.delete(&at, Kind::File, Condition::None).await;
        deleted.expect("deleted");
    }
    put(store, "kept/object", b"old").await.expect("an object");
    for is_discarded in [true, false] {
        let staged = store.stage_resumable(&at, Condition::None, None);
        let mut upload = staged.await.expect("staged");
        upload.write(body(100)).await.expect("written");
        let kept = upload.keep().await.expect("kept");
        drop(upload);
        if is_discarded {
            store.discard(&kept).await.expect("discarded");
        } else {
            assert_eq!(store.discard_older(Duration::from_secs(3600)).await, Ok(0));
            assert_eq!(discard_all(store).await, 1);
        }
        let resumed = store.resume(&at, Condition::Absent, &kept).await;
        assert_eq!(resumed.err(), Some(StoreError::NotFound));
    }
    // The condition is that of the commit.
    let staged = store.stage_resumable(&at, Condition::None, None);
    let mut upload = staged.await.expect("staged");
    let kept = upload.keep().await.expect("kept");
    drop(upload);
    let resumed = store.resume(&at, Condition::Absent, &kept).await;
    let committed = resumed.expect("continued").commit().await;
    assert_eq!(committed.err(), Some(StoreError::PreconditionFailed));
    assert_eq!(get(store, "kept/object").await, Ok(b"old".to_vec()));
    let deleted = store.delete(&at, Kind::File, Condition::None).await;
    deleted.expect("deleted");
}

async fn kept_uploads_are_written_anywhere(store: &dyn ResumableUploads) {
    let (at, whole) = (key("kept/parts"), body(400_000));
    let staged = store.stage_resumable(&at, Condition::Absent, Some(whole.len() as u64));
    let mut upload = staged.await.expect("staged");
    let mut kept = upload.keep().await.expect("kept");
    drop(upload);
    for part in [300_000..400_000, 0..0, 5..300_000, 0..5] {
        let (position, bytes) = (part.start as u64, whole[part].to_vec());
        let buf = store.write_partial(&kept, position, bytes).await;
        assert_eq!(buf, Ok(Vec::new()));
        store.sync_partial(&kept).await.expect("synced");
    }
    kept.bytes = whole.len() as u64;
    let resumed = store.resume(&at, Condition::Absent, &kept).await;
    let committed = resumed.expect("continued").commit().await;
    let version = committed.expect("committed").meta.version;
    // A late write does not change the object.
    let late = store.write_partial(&kept, 0, vec![0; 10]).await;
    assert_eq!(late, Err(StoreError::NotFound));
    assert_eq!(get(store, "kept/parts").await, Ok(whole));
    let found = store.meta(&at).await.expect("found");
    assert_eq!(found.version, version);
    let staged = store.stage_resumable(&at, Condition::None, None);
    let mut upload = staged.await.expect("staged");
    let kept = upload.keep().await.expect("kept");
    drop(upload);
    store.discard(&kept).await.expect("discarded");
    let late = store.write_partial(&kept, 0, vec![0; 10]).await;
    assert_eq!(late, Err(StoreError::NotFound));
    let deleted = store.delete(&at, Kind::File, Condition::None).await;
    deleted.expect("deleted");
}

/// Keeps the bytes of an upload.
async fn kept(store: &dyn ResumableUploads, bytes: Vec<u8>) -> PartialUpload {
    let at = key("kept/partial");
    let staged = store.stage_resumable(&at, Condition::None, None);
    let mut upload = staged.await.expect("staged");
    upload.write(bytes).await.expect("written");
    upload.keep().await.expect("kept")
}

async fn kept_uploads_are_joined(store: &dyn ResumableUploads) {
    let (at, whole) = (key("kept/joined"), body(400_000));
    let mut parts = Vec::new();
    for part in [
        0..300_000,
        300_000..300_005,
        300_005..300_005,
        300_005..400_000,
    ] {
        parts.push(kept(store, whole[part].to_vec()).await);
    }
    // A part is a part as often as it is named, also beside bytes that were written.
    for (first, order, last, expected) in [
        (0..0, vec![0, 1, 2, 3], 0..0, whole.clone()),
        (
            0..0,
            vec![1, 1],
            0..0,
            [&whole[300_000..300_005]; 2].concat(),
        ),
        (0..300_000, vec![1, 3], 0..0, whole.clone()),
        (0..3, vec![2], 3..9, whole[..9].to_vec()),
    ] {
        let staged = store.stage_resumable(&at, Condition::None, Some(expected.len() as u64));
        let mut upload = staged.await.expect("staged");
        upload.write(whole[first].to_vec()).await.expect("written");
        for number in order {
            upload
                .append_partial(&parts[number])
                .await
                .expect("appended");
        }
        upload.write(whole[last].to_vec()).await.expect("written");
        assert_eq!(upload.written_bytes(), expected.len() as u64);
        let committed = upload.commit().await.expect("committed");
        assert_eq!(committed.meta.size, expected.len() as u64);
        assert_eq!(get(store, "kept/joined").await, Ok(expected));
    }
    // They stay what they were, and can continue.
    let resumed = store.resume(&at, Condition::Present, &parts[0]).await;
    let mut upload = resumed.expect("continued");
    upload.append_partial(&parts[3]).await.expect("appended");
    let longer = upload.keep().await.expect("kept");
    assert_eq!(longer.bytes, 399_995);
    drop(upload);
    let staged = store.stage_resumable(&at, Condition::None, None);
    let mut upload = staged.await.expect("staged");
    upload.append_partial(&longer).await.expect("appended");
    upload.commit().await.expect("committed");
    let expected = [&whole[..300_000], &whole[300_005..]].concat();
    assert_eq!(get(store, "kept/joined").await, Ok(expected.clone()));
    // An upload without its parts leaves nothing.
    for part in parts.iter().chain([&longer]) {
        store.discard(part).await.expect("discarded");
    }
    let staged = store.stage_resumable(&at, Condition::None, None);
    let mut upload = staged.await.expect("staged");
    upload.write(body(20_000)).await.expect("written");
    let gone = upload.append_partial(&parts[1]).await;
    assert_eq!(gone, Err(StoreError::NotFound));
    drop(upload);
    assert_eq!(get(store, "kept/joined").await, Ok(expected));
    let deleted = store.delete(&at, Kind::File, Condition::None).await;
    deleted.expect("deleted");
}
