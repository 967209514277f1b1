//! Commits of uploads that continue, which fail, or whose response is lost.

use crate::common::block_on;
use crate::continued::{MIB, SIZE, assert_content, begin, delete, key, leftovers, resume, write};
use onrush_remote::RemoteStore;
use onrush_store::{Condition, PartialUpload, ResumableUploads, Store, StoreError};
use std::sync::atomic::Ordering;
use std::time::Duration;
use testing::body;
use testing_s3::Bucket;

/// Uploads without a part, of one PUT, and of several parts.
const SIZES: [usize; 4] = [0, 5, 2 * MIB, SIZE];

/// Another client replaces the object. Returns the condition that it is still that one.
async fn replace(store: &RemoteStore) -> Condition {
    let staged = store.stage(&key(), Condition::None, Some(5)).await;
    let mut upload = staged.expect("an upload");
    upload.write(b"other".to_vec()).await.expect("written");
    let other = upload.commit().await.expect("committed");
    Condition::Versions(vec![other.meta.version])
}

async fn keep(store: &RemoteStore, condition: &Condition, whole: &[u8]) -> PartialUpload {
    let mut upload = begin(store, condition.clone()).await;
    let all = 0..whole.len();
    write(&mut upload, whole, all).await.expect("written");
    upload.keep().await.expect("kept")
}

async fn repeat_a_commit(
    bucket: &Bucket,
    stores: &[RemoteStore; 2],
    condition: Condition,
    whole: &[u8],
) {
    let (faults, is_new) = (&bucket.service.faults, condition == Condition::Absent);
    let kept = keep(&stores[0], &condition, whole).await;
    // The service is not able to make the change.
    faults.throttle(Some("folder/object"));
    let again = resume(&stores[0], condition.clone(), &kept).await;
    let failed = again.expect("continued").commit().await;
    assert!(failed.is_err_and(|error| error.is_temporary()));
    faults.throttle(None);
    // It is made, and its response is lost. Another server has continued as well.
    let [one, two] = [&stores[0], &stores[1]]
        .map(|store| block_on(resume(store, condition.clone(), &kept)).expect("continued"));
    if condition.is_none() {
        one.commit().await.expect("committed");
    } else {
        bucket.service.fails_after_put.store(1, Ordering::Relaxed);
        let lost = one.commit().await.err();
        assert_eq!(lost, Some(StoreError::Interrupted));
    }
    let puts = || bucket.service.lock().requests.get("PUT").copied();
    let before = puts();
    let committed = two.commit().await.expect("committed");
    assert_eq!(puts(), before, "it is made once");
    let current = stores[0].meta(&key()).await.expect("an object");
    assert_eq!(current.version, committed.meta.version);
    assert_eq!(committed.created, is_new || condition.is_none());
    assert_content(&stores[0], whole).await;
    assert_eq!(leftovers(bucket), [""; 0]);
    delete(&stores[0]).await;
}

/// A commit that has failed, or whose response was lost, is repeated by another server.
#[test]
fn a_commit_is_repeated() {
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket"));
        for size in SIZES {
            let whole = body(size);
            for condition in [Condition::None, Condition::Absent] {
                block_on(repeat_a_commit(&bucket, &stores, condition, &whole));
            }
            let same = block_on(replace(&stores[0]));
            block_on(repeat_a_commit(&bucket, &stores, same, &whole));
        }
    }
}

/// What has been published is known by its record, whichever way it was sent, and also when its
/// state is gone; what another client has stored since is not taken for it.
#[test]
fn what_was_published_is_known() {
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket"));
        for size in SIZES {
            let whole = body(size);
            for condition in [Condition::None, Condition::Absent] {
                block_on(async {
                    let kept = keep(&stores[0], &condition, &whole).await;
                    assert_eq!(stores[1].published(&key(), &kept).await, Ok(None));
                    assert_eq!(stores[1].is_kept(&kept).await, Ok(true));
                    let resumed = resume(&stores[0], condition.clone(), &kept).await;
                    let mut upload = resumed.expect("continued");
                    let claimed = upload.take_over().expect("a claim");
                    upload.commit().await.expect("committed");
                    for kept in [&kept, &claimed] {
                        let published = stores[1].published(&key(), kept).await;
                        assert_eq!(published, Ok(Some(size as u64)), "{size} {condition:?}");
                        let is_kept = stores[1].is_kept(kept).await;
                        assert_eq!(is_kept, Ok(size == 0), "{size} {condition:?}");
                    }
                    replace(&stores[1]).await;
                    assert_eq!(stores[0].published(&key(), &kept).await, Ok(None));
                    delete(&stores[0]).await;
                    assert_eq!(stores[0].published(&key(), &kept).await, Ok(None));
                    assert_eq!(leftovers(&bucket), [""; 0]);
                });
            }
        }
    }
}

/// The response to a commit is lost, and another client replaces the object before it is repeated.
/// An empty object cannot have a part, so it may be made twice.
#[test]
fn a_repeated_commit_does_not_replace_a_later_object() {
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket"));
        for size in SIZES.into_iter().filter(|size| *size > 0) {
            let whole = body(size);
            for condition in [Condition::None, Condition::Absent] {
                block_on(async {
                    let kept = keep(&stores[0], &condition, &whole).await;
                    let [one, two] = [&stores[0], &stores[1]].map(|store| {
                        block_on(resume(store, condition.clone(), &kept)).expect("continued")
                    });
                    one.commit().await.expect("committed");
                    let later = replace(&stores[1]).await;
                    let expected = match condition.is_none() {
                        true => StoreError::NotFound,
                        false => StoreError::PreconditionFailed,
                    };
                    assert_eq!(two.commit().await.err(), Some(expected), "{size}");
                    let current = stores[0].meta(&key()).await.expect("an object");
                    assert_eq!(later, Condition::Versions(vec![current.version]));
                    stores[0].discard(&kept).await.expect("discarded");
                    assert_eq!(leftovers(&bucket), [""; 0]);
                    delete(&stores[0]).await;
                });
            }
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
