//! Commits of uploads that continue, which fail, or whose response is lost.

mod common;
mod continued;

use common::{Bucket, block_on};
use continued::{SIZE, assert_content, begin, body, delete, key, leftovers, resume, write};
use onrush_store::{Condition, Store, StoreError};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A commit that has failed, or whose response was lost, is repeated by another server.
#[test]
fn a_commit_is_repeated() {
    let whole = body(SIZE);
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket"));
        let faults = &bucket.service.faults;
        for condition in [Condition::None, Condition::Absent] {
            block_on(async {
                let mut upload = begin(&stores[0], condition.clone()).await;
                write(&mut upload, &whole, 0..SIZE).await.expect("written");
                let kept = upload.keep().await.expect("kept");
                drop(upload);
                // The service is not able to make the change.
                faults.throttle(Some("folder/object"));
                let again = resume(&stores[0], condition.clone(), &kept).await;
                let failed = again.expect("continued").commit().await;
                assert!(failed.is_err_and(|error| error.is_temporary()));
                faults.throttle(None);
                // It is made, and its response is lost. Another server has continued as well.
                let [one, two] = [&stores[0], &stores[1]].map(|store| {
                    block_on(resume(store, condition.clone(), &kept)).expect("continued")
                });
                if condition == Condition::Absent {
                    bucket.service.fails_after_put.store(1, Ordering::Relaxed);
                    let lost = one.commit().await.err();
                    assert_eq!(lost, Some(StoreError::Interrupted));
                } else {
                    one.commit().await.expect("committed");
                }
                let committed = two.commit().await.expect("committed");
                let current = stores[0].meta(&key()).await.expect("an object");
                assert_eq!(current.version, committed.meta.version);
                assert!(committed.created);
                assert_content(&stores[0], &whole).await;
                assert_eq!(leftovers(&bucket), [""; 0]);
                delete(&stores[0]).await;
            });
        }
    }
}

/// Another client has stored something else with the mark of an upload.
#[test]
fn an_object_of_another_size_is_not_that_of_an_upload() {
    let whole = body(SIZE);
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let mut upload = begin(&store, Condition::None).await;
        write(&mut upload, &whole, 0..SIZE).await.expect("written");
        let kept = upload.keep().await.expect("kept");
        let (_, parts) = bucket.service.lock().uploads.pop_first().expect("one");
        let put = |key: &str, fields| {
            let mut objects = bucket.service.lock();
            objects.put(key.to_owned(), "other".into(), fields)
        };
        put("folder/object", parts.fields);
        assert!(upload.commit().await.is_err());
        let current = store.meta(&key()).await.expect("an object");
        assert_eq!(current.size, 5);
        store.discard(&kept).await.expect("discarded");
    });
}

/// The service gives a completed object the time at which its upload began, as AWS does.
#[test]
fn an_object_that_a_young_state_names_is_not_swept() {
    let whole = body(SIZE);
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let mut upload = begin(&store, Condition::Absent).await;
        write(&mut upload, &whole, 0..SIZE).await.expect("written");
        let kept = upload.keep().await.expect("kept");
        bucket.service.faults.throttle(Some("folder/object"));
        let failed = upload.commit().await;
        assert!(failed.is_err_and(|error| error.is_temporary()));
        bucket.service.faults.throttle(None);
        for (key, stored) in &mut bucket.service.lock().by_key {
            if key.contains("/kept-objects/") {
                stored.modified -= Duration::from_secs(100 * 3600);
            }
        }
        assert_eq!(leftovers(&bucket).len(), 2);
        let age = Duration::from_secs(3600);
        assert_eq!(store.discard_older(age).await, Ok(0));
        assert_eq!(leftovers(&bucket).len(), 2, "the state and the object");
        let resumed = resume(&store, Condition::Absent, &kept).await;
        let mut upload = resumed.expect("it is there");
        assert_eq!(upload.keep().await.as_ref(), Ok(&kept));
        upload.commit().await.expect("committed");
        assert_content(&store, &whole).await;
        assert_eq!(leftovers(&bucket), [""; 0]);
    });
}
