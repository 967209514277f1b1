//! The list of files that a build cache leaves for the next process.

mod build_cache_common;
mod common;
mod edge_common;

use build_cache_common::{assert_exact, cache, get, put, stats};
use common::*;
use edge_common::files;
use onrush_store::*;

const LIMIT: u64 = 3 << 20;

#[test]
fn a_list_of_the_files_replaces_the_scan() {
    let dir = TempDir::new();
    let list = dir.path().join("onrush-files");
    let at = |number: usize| format!("o{number}");
    let first = cache(dir.path(), LIMIT);
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
    let second = cache(dir.path(), LIMIT);
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
    let third = cache(dir.path(), LIMIT);
    assert_eq!(stats(&third).entries, 101);
    assert_exact(&third, dir.path());
    // A list of a process that was killed later is not there.
    drop(third);
    let fourth = cache(dir.path(), LIMIT);
    assert_eq!(stats(&fourth).entries, 101);
    assert_exact(&fourth, dir.path());
}
