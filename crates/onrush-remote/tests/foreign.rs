//! What other clients leave in a bucket, and what a policy denies to this one.

mod common;

use bytes::Bytes;
use common::s3::MemoryS3;
use common::{Bucket, block_on};
use onrush_remote::Check;
use onrush_store::{Condition, Key, Kind, ListHow, Store, StoreError};

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

/// A bucket in which other clients have stored these keys.
fn bucket(keys: &[&str]) -> Bucket {
    let bucket = Bucket::new();
    for key in keys {
        let content = Bytes::from_static(b"x");
        (bucket.service.lock()).put((*key).to_owned(), content, None);
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
