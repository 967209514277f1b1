//! Uploads that continue: on another server, after a server has ended at any step, and of two
//! servers at once. The caller of the store is the test: what it has recorded is a
//! [`PartialUpload`].

use crate::common::{block_on, read_all};
use crate::continued::{MIB, SIZE, assert_content, begin, delete, key, leftovers, resume, write};
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, ResumableUploads, Store, StoreError};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use testing::body;
use testing_s3::Bucket;

/// In turn two servers continue an upload that ends before, at and after the end of a part.
async fn continue_in_turn(stores: &[RemoteStore; 2], condition: Condition, whole: &[u8]) {
    let mut upload = begin(&stores[0], condition.clone()).await;
    let mut kept = upload.keep().await.expect("kept");
    let mut at = 0;
    let ends = [0, 3 * MIB, 8 * MIB, 8 * MIB + 1, 24 * MIB, SIZE - 9];
    for (number, end) in ends.into_iter().enumerate() {
        let store = &stores[number % 2];
        upload = (resume(store, condition.clone(), &kept).await).expect("continued");
        assert_eq!(upload.written_bytes(), at as u64);
        write(&mut upload, whole, at..end).await.expect("written");
        let longer = upload.keep().await.expect("kept");
        assert_eq!(longer.bytes, end as u64);
        assert_eq!(upload.keep().await, Ok(longer.clone()), "nothing new");
        store.discard_replaced(&kept, &longer).await;
        // It is not kept, and other bytes than those that follow.
        upload.write(vec![0; 300_000]).await.expect("written");
        drop(upload);
        (kept, at) = (longer, end);
    }
    let found = stores[0].meta(&key()).await.map(|found| found.size);
    let resumed = resume(&stores[1], condition.clone(), &kept).await;
    let mut upload = resumed.expect("continued");
    write(&mut upload, whole, at..SIZE).await.expect("written");
    let committed = upload.commit().await.expect("committed");
    assert_eq!(committed.created, found == Err(StoreError::NotFound));
    assert_eq!(committed.meta.size, SIZE as u64);
    assert_content(&stores[0], whole).await;
    let current = stores[0].meta(&key()).await.expect("an object");
    assert_eq!(current.version, committed.meta.version);
    let gone = resume(&stores[0], condition, &kept).await;
    assert_eq!(gone.err(), Some(StoreError::NotFound));
}

#[test]
fn an_upload_continues_on_another_server() {
    let whole = body(SIZE);
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket/prefix"));
        for condition in [Condition::None, Condition::Absent, Condition::Present] {
            block_on(continue_in_turn(&stores, condition.clone(), &whole));
            assert_eq!(leftovers(&bucket), [""; 0]);
            if condition == Condition::None {
                block_on(delete(&stores[0]));
            }
        }
    }
}

/// Of two servers that continue the same bytes, the claim of one can be recorded. The other one is
/// slow to notice, and sends a part as well.
async fn send_a_late_part(stores: &[RemoteStore; 2], late: &[u8], whole: &[u8]) {
    let mut upload = begin(&stores[0], Condition::None).await;
    write(&mut upload, whole, 0..9 * MIB)
        .await
        .expect("written");
    let kept = upload.keep().await.expect("kept");
    drop(upload);
    let one = resume(&stores[0], Condition::None, &kept).await;
    let two = resume(&stores[1], Condition::None, &kept).await;
    let [mut one, mut two] = [one, two].map(|upload| upload.expect("continued"));
    let claims = [one.take_over(), two.take_over()].map(|claim| claim.expect("a claim"));
    assert!(claims[0] != claims[1] && claims[0] != kept && claims[1] != kept);
    assert!(claims.iter().all(|claim| claim.bytes == kept.bytes));
    let more = 9 * MIB..17 * MIB;
    write(&mut one, whole, more.clone()).await.expect("written");
    let longer = one.keep().await.expect("kept");
    write(&mut two, late, more).await.expect("written");
    let lost = two.keep().await.expect("kept");
    drop(two);
    let rest = 17 * MIB..SIZE;
    write(&mut one, whole, rest).await.expect("written");
    let committed = one.commit().await;
    if late == whole {
        committed.expect("committed");
        assert_content(&stores[0], whole).await;
        delete(&stores[0]).await;
    } else {
        assert_eq!(committed.err(), Some(StoreError::Conflict));
        let found = stores[0].get(&key()).await;
        assert_eq!(found.err(), Some(StoreError::NotFound));
        stores[0].discard(&longer).await.expect("discarded");
    }
    stores[0].discard(&lost).await.expect("discarded");
}

#[test]
fn a_late_part_of_another_server_is_the_same_or_an_error() {
    let (whole, other) = (body(SIZE), vec![1; SIZE]);
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let stores = [(); 2].map(|()| bucket.store("s3://bucket"));
        for late in [&whole, &other] {
            block_on(send_a_late_part(&stores, late, &whole));
            // The state that was recorded before has no successor here.
            block_on(sweep(&stores[0]));
            assert_eq!(leftovers(&bucket), [""; 0]);
        }
    }
}

#[test]
fn a_real_service_continues_uploads() {
    let Some(store) = crate::common::real() else {
        return;
    };
    let (whole, other) = (body(SIZE), vec![1; SIZE]);
    let stores = [(); 2].map(|()| store());
    for condition in [Condition::None, Condition::Absent, Condition::Present] {
        block_on(continue_in_turn(&stores, condition.clone(), &whole));
        if condition == Condition::None {
            block_on(delete(&stores[0]));
        }
    }
    block_on(delete(&stores[0]));
    block_on(send_a_late_part(&stores, &whole, &whole));
    block_on(send_a_late_part(&stores, &other, &whole));
    block_on(sweep(&stores[0]));
    for folder in RemoteStore::KEPT_FOLDERS {
        let left = stores[0].kept_objects(folder).expect("a list");
        assert_eq!(left, [], "{folder}");
    }
    let mut uploads = stores[0].unfinished_uploads();
    assert!(uploads.all(|list| list.expect("a list").is_empty()));
}

/// Polls a future until a step of the service hangs, and drops it then, as a server that is killed.
fn until_killed<F: Future>(bucket: &Bucket, future: F) -> Option<F::Output> {
    let (mut future, mut cx) = (pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return Some(output);
        }
        if bucket.service.steps.is_reached.load(Ordering::SeqCst) {
            return None;
        }
        thread::sleep(Duration::from_micros(200));
    }
}

/// A server is killed before and after each change in the bucket. The next one continues with what
/// was recorded, and the object is whole.
fn kill_at_each_step(condition: &Condition) {
    let size = 17 * MIB + 7;
    let whole = body(size);
    let bucket = Bucket::ceph();
    let mut steps = 0;
    let mut is_killed = true;
    while is_killed {
        let store = bucket.store("s3://bucket");
        block_on(store.meta(&key())).expect_err("no object");
        assert_eq!(store.evaluates_conditions(), Ok(true));
        let mut recorded = None;
        bucket.service.steps.hang_after(steps);
        let ended = until_killed(&bucket, async {
            let mut upload = begin(&store, condition.clone()).await;
            for (from, end) in [(0, 9 * MIB), (9 * MIB, 12 * MIB)] {
                write(&mut upload, &whole, from..end)
                    .await
                    .expect("written");
                let kept = upload.keep().await.expect("kept");
                if let Some(old) = recorded.replace(kept.clone()) {
                    store.discard_replaced(&old, &kept).await;
                }
            }
            write(&mut upload, &whole, 12 * MIB..size)
                .await
                .expect("written");
            upload.commit().await.expect("committed");
        });
        bucket.service.steps.hang_after(usize::MAX - 1);
        is_killed = ended.is_none();
        drop(store);
        let other = bucket.store("s3://bucket");
        let what = format!("{condition:?}, step {steps}, {recorded:?}");
        block_on(async {
            let is_published = other.meta(&key()).await.is_ok();
            if let Some(kept) = &recorded
                && !is_published
            {
                match resume(&other, condition.clone(), kept).await {
                    Ok(mut upload) => {
                        let at = kept.bytes as usize;
                        let written = write(&mut upload, &whole, at..size).await;
                        let committed = match written {
                            Ok(()) => upload.commit().await.map(drop),
                            Err(error) => Err(error),
                        };
                        // Its parts are complete beside the object: see the documents.
                        let is_gone = committed == Err(StoreError::NotFound);
                        assert!(committed.is_ok() || is_gone, "{what}: {committed:?}");
                        assert!(!is_gone || *condition == Condition::Absent, "{what}");
                    }
                    Err(error) => panic!("{what}: {error:?}"),
                }
            }
            if other.meta(&key()).await.is_ok() {
                assert_content(&other, &whole).await;
                delete(&other).await;
            }
            sweep(&other).await;
        });
        // An upload without a record is left to the sweep.
        let left = leftovers(&bucket);
        let is_unknown = |left: &String| !left.contains("kept/");
        assert!(left.iter().all(is_unknown), "{what}: {left:?}");
        bucket.service.lock().uploads.clear();
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
}

#[test]
fn a_server_that_is_killed_at_any_step_loses_nothing_that_was_recorded() {
    kill_at_each_step(&Condition::None);
}

#[test]
fn one_that_creates_an_object_loses_nothing_either() {
    kill_at_each_step(&Condition::Absent);
}

/// Discards everything. A clock may not have advanced since it was written.
async fn sweep(store: &RemoteStore) {
    thread::sleep(Duration::from_millis(2));
    store.discard_older(Duration::ZERO).await.expect("swept");
}

#[test]
fn a_condition_that_does_not_hold_changes_nothing() {
    let whole = body(SIZE);
    for bucket in [Bucket::new(), Bucket::ceph()] {
        let store = bucket.store("s3://bucket");
        block_on(async {
            for size in [5, SIZE] {
                let mut upload = begin(&store, Condition::Absent).await;
                write(&mut upload, &whole, 0..size).await.expect("written");
                let kept = upload.keep().await.expect("kept");
                let other = store.stage(&key(), Condition::Absent, Some(3)).await;
                let mut other = other.expect("an upload");
                other.write(b"old".to_vec()).await.expect("written");
                let old = other.commit().await.expect("committed");
                let refused = upload.commit().await;
                assert_eq!(refused.err(), Some(StoreError::PreconditionFailed));
                let current = store.meta(&key()).await.expect("an object");
                assert_eq!(current.version, old.meta.version);
                store.discard(&kept).await.expect("discarded");
                assert_eq!(leftovers(&bucket), [""; 0]);
                delete(&store).await;
            }
            // What one request cannot hold has no condition.
            let long = Some((5 << 30) + 1);
            let refused = store.stage_resumable(&key(), Condition::Absent, long).await;
            assert_eq!(refused.err(), Some(StoreError::Unsupported));
            // Rights may change while an upload is not complete: then the object is not replaced.
            let mut upload = begin(&store, Condition::None).await;
            write(&mut upload, &whole, 0..SIZE).await.expect("written");
            let kept = upload.keep().await.expect("kept");
            drop(upload);
            let refused = resume(&store, Condition::Absent, &kept).await;
            assert_eq!(refused.err(), Some(StoreError::Unsupported));
            store.discard(&kept).await.expect("discarded");
            assert_eq!(leftovers(&bucket), [""; 0]);
            // One without a part is sent under the condition.
            let mut upload = begin(&store, Condition::None).await;
            write(&mut upload, &whole, 0..5).await.expect("written");
            let kept = upload.keep().await.expect("kept");
            drop(upload);
            let resumed = store.resume(&key(), Condition::Absent, &kept).await;
            resumed
                .expect("continued")
                .commit()
                .await
                .expect("committed");
            assert_eq!(leftovers(&bucket), [""; 0]);
            delete(&store).await;
        });
    }
}

/// An upload has two states if a server has ended between two requests. The younger one is in use.
#[test]
fn uploads_in_use_are_not_swept() {
    let whole = body(SIZE);
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let mut upload = begin(&store, Condition::None).await;
        write(&mut upload, &whole, 0..9 * MIB)
            .await
            .expect("written");
        upload.keep().await.expect("kept");
        let age = Instant::now();
        thread::sleep(Duration::from_millis(20));
        write(&mut upload, &whole, 9 * MIB..18 * MIB)
            .await
            .expect("written");
        let kept = upload.keep().await.expect("kept");
        drop(upload);
        assert_eq!(leftovers(&bucket).len(), 3);
        assert_eq!(store.discard_older(age.elapsed()).await, Ok(0));
        let resumed = resume(&store, Condition::None, &kept).await;
        let mut upload = resumed.expect("it is there");
        write(&mut upload, &whole, 18 * MIB..SIZE)
            .await
            .expect("written");
        upload.commit().await.expect("committed");
        assert_content(&store, &whole).await;
        sweep(&store).await;
        assert_eq!(leftovers(&bucket), [""; 0]);
    });
}

/// An upload that was never kept ends with its request.
#[test]
fn an_upload_that_is_not_kept_is_aborted() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let mut upload = begin(&store, Condition::None).await;
        write(&mut upload, &body(SIZE), 0..SIZE)
            .await
            .expect("written");
        assert_eq!(bucket.service.lock().uploads.len(), 1);
    });
    let end = Instant::now() + Duration::from_secs(60);
    while !bucket.service.lock().uploads.is_empty() {
        assert!(Instant::now() < end, "it is not aborted");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Many uploads in the memory of two parts: each waits for the others, and all end.
#[test]
fn uploads_share_the_memory_of_parts() {
    let whole = body(10 * MIB);
    let bucket = Bucket::new();
    let mut options = Options::default();
    options.part_memory_bytes = 16 << 20;
    let store = bucket.store_with("s3://bucket", options);
    thread::scope(|scope| {
        for number in 0..6 {
            let (store, whole) = (&store, &whole);
            scope.spawn(move || {
                block_on(async {
                    let at = Key::parse(format!("{number}/object").as_bytes()).expect("a key");
                    let staged = store.stage_resumable(&at, Condition::None, None);
                    let mut upload = staged.await.expect("an upload");
                    write(&mut upload, whole, 0..7 * MIB)
                        .await
                        .expect("written");
                    let kept = upload.keep().await.expect("kept");
                    drop(upload);
                    let resumed = store.resume(&at, Condition::None, &kept).await;
                    let mut upload = resumed.expect("continued");
                    write(&mut upload, whole, 7 * MIB..10 * MIB)
                        .await
                        .expect("written");
                    upload.commit().await.expect("committed");
                    let object = store.get(&at).await.expect("an object");
                    assert!(read_all(&object).await.expect("its bytes") == *whole);
                });
            });
        }
    });
    assert_eq!(leftovers(&bucket), [""; 0]);
}

#[test]
fn a_service_that_ignores_conditions_is_refused() {
    let mut service = testing_s3::s3::MemoryS3::default();
    service.ignores_conditions = true;
    let bucket = Bucket::with(service);
    let store = bucket.store("s3://bucket");
    assert!(store.features().resumable_uploads, "it is not known yet");
    block_on(async {
        let refused = store.stage_resumable(&key(), Condition::None, None).await;
        assert_eq!(refused.err(), Some(StoreError::Unsupported));
    });
    assert!(!store.features().resumable_uploads);
}
