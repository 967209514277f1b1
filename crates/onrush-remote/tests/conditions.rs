//! Conditions that the service does not evaluate, or whose outcome is not known, are never reported
//! as evaluated.

use crate::common::{block_on, read_all};
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, Store, StoreError};
use std::sync::atomic::Ordering;
use testing_s3::canned::{Canned, Reply};
use testing_s3::s3::MemoryS3;
use testing_s3::{Bucket, KEY};

/// Larger than what is held until the commit, so that the body is a stream.
const LONG_BYTES: usize = (1 << 20) + 1;

async fn put(store: &RemoteStore, condition: Condition, bytes: usize) -> Result<(), StoreError> {
    let key = Key::parse(b"a").expect("a key");
    let mut upload = store.stage(&key, condition, Some(bytes as u64)).await?;
    upload.write(vec![b'x'; bytes]).await?;
    upload.commit().await.map(drop)
}

#[test]
fn a_service_that_ignores_conditions_is_recognized() {
    let mut service = MemoryS3::default();
    service.ignores_conditions = true;
    let bucket = Bucket::with(service);
    let store = bucket.store("s3://bucket/prefix");
    assert_eq!(store.evaluates_conditions(), Ok(false));
    // Without the question at the start, the first upload asks.
    for store in [store, bucket.store("s3://bucket/prefix")] {
        block_on(async {
            put(&store, Condition::None, 3).await.expect("no condition");
            for condition in [Condition::Absent, Condition::Present] {
                for bytes in [4, LONG_BYTES] {
                    let result = put(&store, condition.clone(), bytes).await;
                    assert_eq!(result, Err(StoreError::Unsupported));
                }
            }
            let key = Key::parse(b"a").expect("a key");
            let object = store.get(&key).await.expect("an object");
            assert_eq!(read_all(&object).await.expect("bytes"), b"xxx");
        });
    }
}

#[test]
fn a_service_is_asked_once() {
    let bucket = Bucket::new();
    let puts = || {
        bucket
            .service
            .lock()
            .requests
            .get("PUT")
            .copied()
            .unwrap_or(0)
    };
    for expected in [3, 5] {
        let store = bucket.store("s3://bucket");
        for _ in 0..2 {
            assert_eq!(store.evaluates_conditions(), Ok(true));
            assert_eq!(puts(), expected);
        }
    }
    // The object is in the state of the store, which requests cannot name.
    let objects = bucket.service.lock();
    let names: Vec<&String> = objects.by_key.keys().collect();
    assert_eq!(names, [".onrush/state/conditions"]);
}

#[test]
fn a_service_that_permits_no_writes_is_an_error() {
    let forbidden = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let server = Canned::new(vec![Reply::Send(forbidden.to_owned())]);
    let location = "s3://bucket".parse().expect("a location");
    let endpoint = format!("http://{}", server.address);
    let store = RemoteStore::at(&endpoint, KEY, location, Options::default());
    let store = store.expect("a store");
    let is_denied = |error| matches!(error, Err(StoreError::PermissionDenied(_)));
    assert!(is_denied(store.evaluates_conditions().map(drop)));
    assert!(is_denied(block_on(put(&store, Condition::Absent, 3))));
}

/// The client of the service repeats the PUT after the 500, and gets 412 because of its own change.
#[test]
fn a_change_that_was_made_is_not_reported_as_refused() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    assert_eq!(store.evaluates_conditions(), Ok(true));
    block_on(async {
        for condition in [Condition::Absent, Condition::Present] {
            bucket.service.fails_after_put.store(1, Ordering::Relaxed);
            let bytes = if condition == Condition::Absent { 3 } else { 4 };
            let result = put(&store, condition, bytes).await;
            assert_eq!(result, Err(StoreError::Interrupted));
            let made = bucket.service.lock().by_key["a"].content.len();
            assert_eq!(made, bytes);
        }
        let refused = put(&store, Condition::Absent, 3).await;
        assert_eq!(refused, Err(StoreError::PreconditionFailed));
    });
}

#[test]
fn a_quota_is_a_full_store() {
    let bucket = Bucket::new();
    bucket.service.is_full.store(true, Ordering::Relaxed);
    let store = bucket.store("s3://bucket");
    for bytes in [3, LONG_BYTES] {
        let result = block_on(put(&store, Condition::None, bytes));
        assert!(matches!(result, Err(StoreError::Full(_))), "{result:?}");
    }
}
