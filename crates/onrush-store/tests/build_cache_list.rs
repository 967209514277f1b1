//! The list of files that a build cache leaves for the next process.

mod common;
mod edge_common;

use common::*;
use edge_common::{files, read, wait_until};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::cache::{CacheOptions, CacheStats};
use onrush_store::testing::disk_bytes;
use onrush_store::*;
use std::path::Path;
use std::sync::Arc;

/// A cache whose index is complete. An earlier one may still be about to close its folder.
fn cache(dir: &Path) -> BuildCache {
    let mut opened = None;
    wait_until("the folder is free", || {
        let options = CacheOptions {
            origin: "a test".to_owned(),
            bytes_max: 3 << 20,
            descriptors: Descriptors::default(),
            report: Arc::new(|event| println!("the disk: {event:?}")),
        };
        match BuildCache::open(dir, BlockingPool::threads(4, 1000), options) {
            Ok(cache) => opened = Some(cache),
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
        opened.is_some()
    });
    let cache = opened.expect("a cache");
    wait_until("the index is complete", || stats(&cache).is_complete);
    cache
}

fn stats(cache: &BuildCache) -> CacheStats {
    cache.metrics().cache
}

fn put(cache: &BuildCache, at: &str, body: &[u8]) -> Result<Committed> {
    block_on(async {
        let size = Some(body.len() as u64);
        let mut upload = cache.stage(&key(at), Condition::None, size).await?;
        upload.write(body.to_vec()).await?;
        upload.commit().await
    })
}

fn get(cache: &BuildCache, at: &str) -> Result<Vec<u8>> {
    block_on(async {
        let object = cache.get(&key(at)).await?;
        let size = object.meta().size;
        read(&object, 0..size).await
    })
}

fn assert_exact(cache: &BuildCache, dir: &Path) {
    wait_until("the disk has what is accounted for", || {
        disk_bytes(dir) == stats(cache).used_bytes
    });
}

#[test]
fn a_list_of_the_files_replaces_the_scan() {
    let dir = TempDir::new();
    let list = dir.path().join("onrush-files");
    let at = |number: usize| format!("o{number}");
    let first = cache(dir.path());
    for number in 0..100 {
        put(&first, &at(number), &body(number * 100)).expect("room");
    }
    assert!(!list.exists());
    let before = stats(&first);
    first.close();
    assert!(list.exists());
    // It serves until its end, and what it would store is not in the list.
    assert_eq!(get(&first, &at(7)), Ok(body(700)));
    assert_eq!(put(&first, "new", b"x"), Err(StoreError::Unavailable));
    drop(first);
    // A file that another program removes unnoticed is one that the list has and the disk has not.
    let removed = files(dir.path()).pop().expect("a file");
    let folder = std::fs::File::open(removed.parent().expect("a folder")).expect("a folder");
    let modified = folder.metadata().and_then(|found| found.modified());
    std::fs::remove_file(removed).expect("it exists");
    folder
        .set_modified(modified.expect("a time"))
        .expect("root or the owner");
    let second = cache(dir.path());
    assert!(!list.exists());
    assert_eq!(
        stats(&second).entries,
        100,
        "it has not looked at the files"
    );
    assert_eq!(stats(&second).used_bytes, before.used_bytes);
    let found = (0..100).filter(|&number| get(&second, &at(number)) == Ok(body(number * 100)));
    assert_eq!(found.count(), 99);
    assert_eq!(stats(&second).entries, 99);
    assert_exact(&second, dir.path());
    put(&second, "new", b"x").expect("room");
    second.close();
    drop(second);
    // A file that another program adds is found by a scan.
    let known = files(dir.path()).pop().expect("a file");
    std::fs::copy(
        &known,
        known.with_file_name("0123456789abcdef0123456789abcdef"),
    )
    .expect("a copy");
    let third = cache(dir.path());
    assert_eq!(stats(&third).entries, 101);
    assert_exact(&third, dir.path());
    // A list of a process that was killed later is not there.
    drop(third);
    let fourth = cache(dir.path());
    assert_eq!(stats(&fourth).entries, 101);
    assert_exact(&fourth, dir.path());
}
