//! Objects of all sizes, and what other S3 clients leave in a bucket.

use crate::common::{block_on, read_all};
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, Kind, ListHow, Store, StoreError, Wanted};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testing::body;
use testing_s3::Bucket;

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

async fn put(
    store: &dyn Store,
    at: &str,
    condition: Condition,
    body: &[u8],
    size: Option<u64>,
) -> Result<bool, StoreError> {
    let mut upload = store.stage(&key(at), condition, size).await?;
    upload.set_metadata(b"Content-Type: text/x\n".to_vec())?;
    for piece in body.chunks(1 << 20) {
        upload.write(piece.to_vec()).await?;
    }
    assert_eq!(upload.written_bytes(), body.len() as u64);
    Ok(upload.commit().await?.created)
}

/// Sizes around those of the first request and of a part.
const SIZES: [usize; 10] = [
    0,
    262_143,
    262_144,
    262_145,
    1 << 20,
    (1 << 20) + 1,
    8 << 20,
    (8 << 20) + 1,
    16 << 20,
    (16 << 20) + 1,
];

#[test]
fn objects_of_each_size_are_stored_whole() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        for size in SIZES {
            let content = body(size);
            for known in [Some(size as u64), None] {
                let created = put(&store, "a", Condition::None, &content, known).await;
                created.expect("stored");
                let object = store.get(&key("a")).await.expect("an object");
                assert_eq!(object.meta().size, size as u64);
                let metadata = object.metadata().await.expect("metadata");
                assert_eq!(metadata, b"Content-Type: text/x\n");
                assert!(read_all(&object).await.expect("bytes") == content, "{size}");
                // The bytes of the first request are used once.
                assert!(read_all(&object).await.expect("bytes") == content, "{size}");
            }
        }
    });
}

/// The PUTs with all their bytes. On a loaded machine, one may be ended and repeated.
fn complete(requests: &BTreeMap<&str, usize>) -> usize {
    requests["PUT"] - requests.get("CUT").unwrap_or(&0)
}

/// Whether there was an object is found out while the request with the new one is on its way, but
/// before it changes anything.
#[test]
fn a_short_object_is_sent_before_it_is_known_whether_it_is_new() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    bucket.service.lock().head_waits_for = Some("PUT");
    block_on(async {
        for size in [1, 4096, 1 << 20] {
            bucket.service.lock().by_key.clear();
            // The same bytes twice, then others.
            for (content, created) in [(5, true), (5, false), (6, false)] {
                bucket.service.lock().requests.clear();
                let content = vec![content; size];
                let known = Some(size as u64);
                let put = put(&store, "a", Condition::None, &content, known).await;
                assert_eq!(put, Ok(created), "{size}");
                let stored = bucket.service.lock().by_key["a"].content.clone();
                assert!(stored == content, "{size}");
                let requests = std::mem::take(&mut bucket.service.lock().requests);
                assert_eq!((requests["HEAD"], complete(&requests)), (1, 1));
            }
        }
        // A failure of the service is followed by another attempt.
        bucket.service.fails_after_put.store(1, Ordering::Relaxed);
        let again = put(&store, "a", Condition::None, b"again", Some(5)).await;
        assert_eq!(again, Ok(false));
        assert_eq!(complete(&bucket.service.lock().requests), 2);
        assert!(store.metrics().retries() > 0);
    });
}

/// Services end a request whose bytes do not arrive. A service that is slow to tell whether the
/// object is new must not have this effect.
#[test]
fn a_slow_head_does_not_hold_a_short_object() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        for size in [1, 4096] {
            put(&store, "a", Condition::None, b"old", Some(3))
                .await
                .expect("stored");
            {
                let mut objects = bucket.service.lock();
                objects.requests.clear();
                objects.head_waits_for = Some("CUT");
            }
            let content = body(size);
            let put = put(&store, "a", Condition::None, &content, Some(size as u64)).await;
            assert_eq!(put, Ok(false), "{size}");
            let mut objects = bucket.service.lock();
            assert!(objects.by_key["a"].content == content, "{size}");
            let mut requests = std::mem::take(&mut objects.requests);
            // After a second without a response, the store asks whether the service is there.
            requests.remove("LIST");
            assert_eq!(requests, [("CUT", 1), ("HEAD", 1), ("PUT", 2)].into());
            objects.head_waits_for = None;
        }
    });
}

#[test]
fn an_object_is_opened_by_one_request_for_what_is_wanted() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let requests = || std::mem::take(&mut bucket.service.lock().requests);
    block_on(async {
        for size in [0, 10, 300_000, 9 << 20] {
            let content = body(size);
            put(&store, "a", Condition::None, &content, Some(size as u64))
                .await
                .expect("stored");
            requests();
            let object = store.open(&key("a"), Wanted::Properties).await;
            let object = object.expect("an object");
            assert_eq!(object.meta().size, size as u64);
            assert!(!object.metadata().await.expect("metadata").is_empty());
            assert_eq!(requests(), [("HEAD", 1)].into());
            // A wrong guess costs a request, not the bytes.
            assert!(read_all(&object).await.expect("bytes") == content, "{size}");
            assert_eq!(requests().contains_key("GET"), size > 0);

            let object = store.get(&key("a")).await.expect("an object");
            assert!(read_all(&object).await.expect("bytes") == content, "{size}");
            assert_eq!(requests(), [("GET", 1)].into(), "{size}");

            let end = (size as u64).max(5);
            for range in [3..7, 3..u64::MAX, end - 2..end + 2, end..end + 9] {
                let wanted = Wanted::Range(range.clone());
                let object = store.open(&key("a"), wanted).await.expect("an object");
                assert_eq!(object.meta().size, size as u64);
                let from = range.start.min(size as u64) as usize;
                let to = range.end.min(size as u64) as usize;
                let found = crate::common::read(&object, range.clone())
                    .await
                    .expect("bytes");
                assert!(found == content[from..to], "{size} {range:?}");
                let found = requests();
                assert_eq!(found["GET"], 1, "{size} {range:?}");
                assert_eq!(found.contains_key("HEAD"), from == to, "{size} {range:?}");
            }
        }
    });
}

#[test]
fn a_long_upload_with_a_condition_is_refused_and_changes_nothing() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let content = body((8 << 20) + 1);
    block_on(async {
        for condition in [Condition::Absent, Condition::Present] {
            let early = store
                .stage(&key("a"), condition.clone(), Some((5 << 30) + 1))
                .await;
            assert_eq!(early.map(drop), Err(StoreError::Unsupported));
            let late = put(&store, "a", condition, &content, None).await;
            assert_eq!(late, Err(StoreError::Unsupported));
        }
        assert_eq!(store.meta(&key("a")).await, Err(StoreError::NotFound));
        // Of known length it is one request.
        let known = Some(content.len() as u64);
        let absent = put(&store, "a", Condition::Absent, &content, known).await;
        assert_eq!(absent, Ok(true));
        let again = put(&store, "a", Condition::Absent, &content, known).await;
        assert_eq!(again, Err(StoreError::PreconditionFailed));
        let meta = store.meta(&key("a")).await.expect("an object");
        let current = Condition::Versions(vec![meta.version]);
        let other = vec![7; content.len()];
        let replaced = put(&store, "a", current.clone(), &other, known).await;
        assert_eq!(replaced, Ok(false));
        let stale = put(&store, "a", current, &content, known).await;
        assert_eq!(stale, Err(StoreError::PreconditionFailed));
        let object = store.get(&key("a")).await.expect("an object");
        assert!(read_all(&object).await.expect("bytes") == other);
    });
}

/// The service compares with one version. If another one replaces it, there still is an object.
#[test]
fn an_object_that_is_replaced_meanwhile_is_still_present() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let content = body(3 << 20);
    block_on(async {
        put(&store, "a", Condition::None, b"1", Some(1))
            .await
            .expect("stored");
        let meta = store.meta(&key("a")).await.expect("an object");
        let current = Condition::Versions(vec![meta.version]);
        for (condition, expected) in [
            (current, StoreError::PreconditionFailed),
            (Condition::Present, StoreError::Conflict),
        ] {
            let size = Some(content.len() as u64);
            let upload = store.stage(&key("a"), condition, size).await;
            let mut upload = upload.expect("an upload");
            let (first, last) = content.split_at(1 << 20);
            upload.write(first.to_vec()).await.expect("room");
            let other = format!("{expected:?}");
            put(&store, "a", Condition::None, other.as_bytes(), None)
                .await
                .expect("replaced");
            let written = upload.write(last.to_vec()).await.map(drop);
            let result = match written {
                Ok(()) => upload.commit().await.map(drop),
                error => error,
            };
            assert_eq!(result, Err(expected));
        }
    });
}

/// The service has all bytes but one when an upload is dropped.
#[test]
fn an_upload_that_is_dropped_before_its_commit_changes_nothing() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        for size in [5_u64, 3 << 20] {
            let mut upload = store.stage(&key("a"), Condition::None, Some(size)).await;
            let upload = upload.as_mut().expect("an upload");
            upload.write(body(size as usize)).await.expect("room");
        }
        let short = store.stage(&key("a"), Condition::None, Some(3 << 20)).await;
        let mut short = short.expect("an upload");
        short.write(body(2 << 20)).await.expect("room");
        short.commit().await.expect_err("bytes are missing");
        assert_eq!(store.meta(&key("a")).await, Err(StoreError::NotFound));
    });
}

#[test]
fn a_conditional_delete_is_refused() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let created = put(&store, "a", Condition::Absent, b"x", Some(1)).await;
        assert_eq!(created, Ok(true));
        let meta = store.meta(&key("a")).await.expect("an object");
        let current = Condition::Versions(vec![meta.version]);
        let refused = store.delete(&key("a"), Kind::File, current).await;
        assert_eq!(refused, Err(StoreError::Unsupported));
        store.meta(&key("a")).await.expect("it still exists");
        let deleted = store
            .delete(&key("a"), Kind::File, Condition::Present)
            .await;
        assert_eq!(deleted, Ok(meta));
    });
}

#[test]
fn keys_of_each_kind_are_stored() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket/p");
    let names = [
        "a b",
        "ü",
        "a+b",
        "a%20b",
        "a?b#c",
        "~a'(b)!*",
        "&=;,",
        "日本語",
    ];
    block_on(async {
        for name in names {
            put(&store, name, Condition::None, name.as_bytes(), None)
                .await
                .expect(name);
        }
        for name in names {
            let object = store.get(&key(name)).await.expect(name);
            assert_eq!(read_all(&object).await.expect(name), name.as_bytes());
        }
        let page = store.list(None, ListHow::default()).await.expect("a page");
        let mut expected = names.map(str::as_bytes);
        expected.sort_unstable();
        let found: Vec<&[u8]> = page.entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(found, expected);
        for bad in [&b"\xff"[..], b"a\nb", &[&b"a"[..]; 600].join(&b'/')] {
            let Ok(bad) = Key::parse(bad) else { continue };
            let result = store.get(&bad).await.map(drop);
            assert_eq!(result, Err(StoreError::InvalidKey), "{bad:?}");
        }
    });
}

#[test]
fn uploads_that_never_ended_are_found_and_removed() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket/p");
    let other = bucket.store("s3://bucket/q");
    block_on(async {
        let content = body((8 << 20) + 1);
        for (store, name) in [(&store, "a"), (&store, "b c&d"), (&other, "e")] {
            let mut upload = store.stage(&key(name), Condition::None, None).await;
            let upload = upload.as_mut().expect("an upload");
            upload.write(content.clone()).await.expect("room");
            // As if the process were killed: it is not aborted.
            std::mem::forget(std::mem::replace(
                upload,
                other
                    .stage(&key("x"), Condition::None, None)
                    .await
                    .expect("an upload"),
            ));
        }
    });
    let all = |store: &RemoteStore| {
        let lists = store.unfinished_uploads();
        lists
            .flat_map(|list| list.expect("a list"))
            .collect::<Vec<_>>()
    };
    let found = all(&store);
    let keys: Vec<&str> = found.iter().map(|upload| &upload.key[..]).collect();
    assert_eq!(keys, ["p/a", "p/b c&d"]);
    // The uploads of one list can be removed before the next one is requested.
    bucket.service.lock().requests.clear();
    for (number, list) in store.unfinished_uploads().enumerate() {
        let list = list.expect("a list");
        assert_eq!(bucket.service.lock().requests["UPLOADS"], number + 1);
        for upload in &list {
            store.abort_upload(upload).expect("aborted");
            store.abort_upload(upload).expect("it is gone");
        }
    }
    assert_eq!(all(&store), []);
    assert_eq!(all(&other).len(), 1);
}

/// A client that disconnects drops the upload.
#[test]
fn a_dropped_multipart_upload_is_aborted() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    block_on(async {
        let upload = store.stage(&key("a"), Condition::None, None).await;
        let mut upload = upload.expect("an upload");
        upload.write(body((8 << 20) + 1)).await.expect("room");
        assert_eq!(bucket.service.lock().uploads.len(), 1);
    });
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !bucket.service.lock().uploads.is_empty() {
        assert!(std::time::Instant::now() < end, "it is not aborted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// An upload whose client is slow occupies only what has arrived.
#[test]
fn the_memory_of_parts_is_limited() {
    let bucket = Bucket::new();
    let mut options = Options::default();
    (options.part_memory_bytes, options.operation_timeout) = (20 << 20, Duration::from_secs(12));
    let store = bucket.store_with("s3://bucket", options);
    let content = body((17 << 20) + 1);
    let (short, more) = ((1 << 20) + 1, 6 << 20);
    block_on(async {
        let mut slow = Vec::new();
        for number in 0..6 {
            let at = format!("slow{number}");
            let upload = store.stage(&key(&at), Condition::None, None).await;
            let mut upload = upload.expect("an upload");
            upload.write(content[..short].to_vec()).await.expect("room");
            slow.push((at, upload));
        }
        put(&store, "a", Condition::None, &content, None)
            .await
            .expect("stored");
        // There is room for the rest of one part only.
        for (_, upload) in &mut slow[..2] {
            let more = content[short..short + more].to_vec();
            upload.write(more).await.expect("room");
        }
        let busy = put(&store, "b", Condition::None, &content, None).await;
        assert_eq!(busy, Err(StoreError::Throttled { retry_after: None }));
        // Short ones are not counted.
        put(&store, "c", Condition::None, &content[..1 << 20], None)
            .await
            .expect("stored");
        for (at, mut upload) in slow {
            let written = upload.written_bytes() as usize;
            let rest = content[written..].to_vec();
            upload.write(rest).await.expect("room");
            upload.commit().await.expect("stored");
            let object = store.get(&key(&at)).await.expect("an object");
            assert!(read_all(&object).await.expect("bytes") == content, "{at}");
        }
        // Nothing is occupied any more.
        put(&store, "b", Condition::None, &content, None)
            .await
            .expect("stored");
    });
}
