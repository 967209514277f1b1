//! What other clients leave in a bucket, and what a policy denies to this one.

use crate::common::block_on;
use bytes::Bytes;
use onrush_remote::{Check, Options, RemoteStore};
use onrush_store::{Condition, Key, Kind, ListHow, Store, StoreError, Wanted};
use testing_s3::Bucket;
use testing_s3::canned::{Canned, FOUND, Reply};
use testing_s3::s3::{Fields, MemoryS3};

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

/// A bucket in which other clients have stored these keys.
fn bucket(keys: &[&str]) -> Bucket {
    let bucket = Bucket::new();
    for key in keys {
        let content = Bytes::from_static(b"x");
        (bucket.service.lock()).put((*key).to_owned(), content, Fields::default());
    }
    bucket
}

fn names(store: &dyn Store, folder: Option<&str>, limit: usize) -> Vec<String> {
    let folder = folder.map(key);
    let (mut names, mut how) = (Vec::new(), ListHow::default());
    how.limit = limit;
    loop {
        let page = block_on(store.list(folder.as_ref(), how.clone())).expect("a page");
        let more = page.entries.iter();
        names.extend(more.map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
        how.after = page.next;
        if how.after.is_none() {
            return names;
        }
    }
}

#[test]
fn keys_without_a_name_here_are_omitted_from_a_folder() {
    let foreign = [
        "d/e//x",
        "d/e/./x",
        "d/e/../x",
        "d/e/..",
        "d/e/f//y",
        "d/e/a\u{1}",
    ];
    let bucket = bucket(&[&foreign[..], &["d/e/ok", "d/e/z/a", "d/e/b"]].concat());
    let store = bucket.store("s3://bucket");
    for limit in [1, 2, 1000] {
        assert_eq!(
            names(&store, Some("d/e"), limit),
            ["b", "f", "ok", "z"],
            "{limit}"
        );
    }
    let meta = block_on(store.meta(&key("d/e"))).expect("a folder");
    assert_eq!(meta.kind, Kind::Directory);
    let removed = block_on(store.delete(&key("d/e"), Kind::Directory, Condition::None));
    assert_eq!(removed, Err(StoreError::NotEmpty));
    let missing = block_on(store.list(Some(&key("d/g")), ListHow::default()));
    assert_eq!(missing.map(drop), Err(StoreError::NotFound));
}

/// One page takes a limited number of requests, and the next one goes on where it ended.
#[test]
fn a_page_ends_although_all_names_are_hidden() {
    let bucket = bucket(&["d/~"]);
    let mut objects = bucket.service.lock();
    for number in 0..21_000 {
        let key = format!("d/.{number:05}");
        objects.put(key, Bytes::new(), Fields::default());
    }
    drop(objects);
    let store = bucket.store("s3://bucket");
    let how = ListHow {
        limit: 1,
        ..ListHow::default()
    };
    let page = block_on(store.list(Some(&key("d")), how)).expect("a page");
    assert!(page.entries.is_empty() && page.next.is_some());
    assert_eq!(bucket.service.lock().requests["LIST"], 20);
    assert_eq!(names(&store, Some("d"), 1), ["~"]);
}

#[test]
fn a_check_succeeds_whatever_the_first_key_is() {
    let bucket = bucket(&["//x", "a"]);
    let store = bucket.store("s3://bucket");
    assert_eq!(store.check(), Check::Responds);
    assert_eq!(names(&store, None, 10), ["a"]);
}

#[test]
fn a_check_lists_only_what_is_served() {
    let mut service = MemoryS3::default();
    service.lists_only = Some("p/".to_owned());
    let bucket = Bucket::with(service);
    assert_eq!(bucket.store("s3://bucket/p").check(), Check::Responds);
    let other = bucket.store("s3://bucket").check();
    assert!(matches!(other, Check::Refuses(_)), "{other:?}");
}

/// The five fields that other clients know, and their lines.
fn fields() -> (Fields, String) {
    let fields = Fields {
        content_type: Some("text/x; a=\"b\"".to_owned()),
        content_encoding: Some("gzip".to_owned()),
        content_language: Some("de, en-GB".to_owned()),
        content_disposition: Some("attachment; filename=\"a b\"".to_owned()),
        cache_control: Some("max-age=60".to_owned()),
        metadata: None,
    };
    let lines = "content-type: text/x; a=\"b\"\ncontent-encoding: gzip\n\
        cache-control: max-age=60\ncontent-language: de, en-GB\n\
        content-disposition: attachment; filename=\"a b\"\n";
    (fields, lines.to_owned())
}

async fn metadata(store: &dyn Store, wanted: Wanted) -> String {
    let object = store.open(&key("a"), wanted).await.expect("an object");
    String::from_utf8(object.metadata().await.expect("metadata")).expect("text")
}

#[test]
fn fields_of_other_clients_are_metadata() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let (fields, lines) = fields();
    let put = |fields| {
        let content = Bytes::from_static(b"x");
        bucket.service.lock().put("a".to_owned(), content, fields);
    };
    block_on(async {
        put(fields);
        for wanted in [Wanted::All, Wanted::Properties, Wanted::Range(0..1)] {
            assert_eq!(metadata(&store, wanted).await, lines);
        }
        // What a service says about an object that was stored without a type.
        put(Fields {
            content_type: Some("binary/octet-stream".to_owned()),
            ..Fields::default()
        });
        assert_eq!(metadata(&store, Wanted::All).await, "");
    });
}

/// Other clients send fields in UTF-8 or Latin-1, and services return them as they are.
#[test]
fn fields_that_are_not_ascii_are_metadata() {
    let fields = "Content-Disposition: attachment; filename=\"\u{fc}.txt\"\r\nContent-Type: a/b\r\n\
        x-amz-meta-title: \u{fc}";
    let reply = format!("HTTP/1.1 {FOUND}\r\n{fields}\r\nContent-Length: 1\r\n\r\nx");
    let service = Canned::new(vec![Reply::Send(reply)]);
    let location = "s3://bucket".parse().expect("a location");
    let endpoint = format!("http://{}", service.address);
    let store = RemoteStore::at(&endpoint, testing_s3::KEY, location, Options::default());
    let store = store.expect("a store");
    let lines = "content-type: a/b\ncontent-disposition: attachment; filename=\"\u{fc}.txt\"\n";
    for wanted in [Wanted::All, Wanted::Properties] {
        assert_eq!(block_on(metadata(&store, wanted)), lines);
    }
}

/// Stores an object with metadata, which is found again.
async fn put_with(store: &dyn Store, size: usize, size_bytes: Option<u64>, lines: &str) {
    let upload = store.stage(&key("a"), Condition::None, size_bytes).await;
    let mut upload = upload.expect("an upload");
    upload.set_metadata(lines.into()).expect("short");
    upload.write(vec![1; size]).await.expect("sent");
    upload.commit().await.expect("stored");
    assert_eq!(metadata(store, Wanted::All).await, lines);
    assert_eq!(metadata(store, Wanted::Properties).await, lines);
}

/// By one request, by one whose body is passed on, and as a multipart upload.
const UPLOADS: [(usize, bool); 3] = [(3, true), (2 << 20, true), (9 << 20, false)];

#[test]
fn a_real_service_returns_metadata_as_it_was() {
    let Some(store) = crate::common::real() else {
        return;
    };
    let (store, (_, fields)) = (store(), fields());
    let others = "content-language: de\ncontent-disposition: a  b\u{e4}\n";
    let default = "content-type: binary/octet-stream\n";
    for (size, known) in UPLOADS {
        for lines in [&fields[..], others, default, ""] {
            block_on(put_with(&store, size, known.then_some(size as u64), lines));
        }
    }
}

#[test]
fn metadata_is_fields_for_other_clients() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let (fields, lines) = fields();
    for (size, known) in UPLOADS {
        let size_bytes = known.then_some(size as u64);
        block_on(put_with(&store, size, size_bytes, &lines));
        let stored = bucket.service.lock().by_key["a"].fields.clone();
        let own = stored.metadata.as_ref();
        assert!(own.is_none_or(|own| !own.contains_key("onrush")), "{own:?}");
        let mut expected = fields.clone();
        expected.metadata.clone_from(&stored.metadata);
        assert_eq!(stored, expected, "{size}");
    }
}
