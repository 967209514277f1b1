//! What is reported about a multipart upload after its completion has failed, and what remains of
//! it.

use crate::common::block_on;
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, ResumableUploads, Store, StoreError, Upload};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use testing::body;
use testing_s3::Bucket;

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

/// An upload with two parts, the first of which is sent.
async fn begin(store: &RemoteStore) -> Box<dyn Upload> {
    let upload = store.stage(&key("a"), Condition::None, None).await;
    let mut upload = upload.expect("an upload");
    upload.write(body(9 << 20)).await.expect("room");
    upload
}

/// The object exists, whatever becomes of the request for its tag.
#[test]
fn an_upload_is_complete_also_if_its_tag_cannot_be_found() {
    let bucket = Bucket::ceph();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let upload = begin(&store).await;
        bucket.service.refuses_head.store(true, Ordering::Relaxed);
        let committed = upload.commit().await.expect("stored");
        bucket.service.refuses_head.store(false, Ordering::Relaxed);
        let current = store.meta(&key("a")).await.expect("an object");
        assert_eq!(committed.meta.size, current.size);
        assert_ne!(committed.meta.version, current.version);
    });
}

/// The service is silent, but the object is there.
#[test]
fn an_upload_that_was_completed_without_a_response_is_found() {
    let bucket = Bucket::new();
    let mut options = Options::default();
    (options.retries, options.read_timeout) = (0, Duration::from_secs(5));
    let store = bucket.store_with("s3://bucket", options);
    block_on(async {
        let upload = begin(&store).await;
        (bucket.service.hangs_after_complete).store(true, Ordering::Relaxed);
        let committed = upload.commit().await.expect("stored");
        let current = store.meta(&key("a")).await.expect("an object");
        assert_eq!(committed.meta.version, current.version);
    });
}

/// The service says that it has not made the change.
#[test]
fn an_upload_whose_completion_is_refused_leaves_no_parts() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let upload = begin(&store).await;
        bucket.service.is_full.store(true, Ordering::Relaxed);
        let error = upload.commit().await.map(drop).expect_err("it is full");
        assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    });
    let end = Instant::now() + Duration::from_secs(60);
    while !bucket.service.lock().uploads.is_empty() {
        assert!(Instant::now() < end, "it is not aborted");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ceph does not tell the tag of a multipart upload. That of the object is another one's, if it has
/// been replaced meanwhile.
#[test]
fn an_upload_never_has_the_version_of_another_one() {
    let bucket = Bucket::ceph();
    let store = bucket.store("s3://bucket");
    block_on(async {
        for is_replaced in [false, true] {
            let replaces = &bucket.service.replaces_at_once;
            replaces.store(is_replaced, Ordering::Relaxed);
            let upload = store.stage(&key("a"), Condition::None, None).await;
            let mut upload = upload.expect("an upload");
            upload.write(body(9 << 20)).await.expect("room");
            let committed = upload.commit().await.expect("stored");
            let current = store.meta(&key("a")).await.expect("an object");
            assert_eq!(committed.meta.version == current.version, !is_replaced);
        }
    });
}

/// The client of the service repeats the completion after the 500, and gets 404: the upload is no
/// more. The object tells whether it was completed, unless another client has replaced it.
#[test]
fn an_upload_that_was_completed_is_not_reported_as_missing() {
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let store = bucket.store("s3://bucket");
        let service = &bucket.service;
        block_on(async {
            for is_replaced in [false, true] {
                service
                    .replaces_at_once
                    .store(is_replaced, Ordering::Relaxed);
                service.fails_after_complete.store(1, Ordering::Relaxed);
                let upload = store.stage(&key("a"), Condition::None, None).await;
                let mut upload = upload.expect("an upload");
                upload.write(body(9 << 20)).await.expect("room");
                let committed = upload.commit().await;
                if is_replaced {
                    assert_eq!(committed.map(drop), Err(StoreError::Interrupted));
                    continue;
                }
                let current = store.meta(&key("a")).await.expect("an object");
                assert_eq!(committed.expect("stored").meta.version, current.version);
            }
        });
        assert_eq!(service.lock().requests["COMPLETE"], 4);
    }
}

/// S3 permits 10,000 parts, and the memory limits their size.
#[test]
fn an_upload_that_has_too_many_parts_is_refused_at_once() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        for (gib, expected) in [(867, None), (868, Some(StoreError::TooLarge))] {
            let (at, size) = (key("a"), Some(gib << 30));
            let staged = store.stage(&at, Condition::None, size).await;
            assert_eq!(staged.err(), expected, "{gib}");
            let staged = store.stage_resumable(&at, Condition::None, size).await;
            assert_eq!(staged.err(), expected, "{gib}");
        }
    });
}
