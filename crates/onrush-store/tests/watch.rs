//! Watched folders: what is collected, that the memory is bounded, and what a name is worth after
//! the folder was moved.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::fs;

fn folder(dir: &TempDir) -> Folder {
    let pool = BlockingPool::threads(2, 16);
    Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder")
}

fn watch(folder: &Folder, at: Option<&Key>) -> Box<dyn FolderChanges> {
    block_on(folder.watch(at)).expect("it can be watched")
}

/// Collects changes until there is one of this name.
fn names_until(changes: &mut dyn FolderChanges, last: &str) -> Vec<ChangedName> {
    let mut all = Vec::new();
    loop {
        block_on(changes.changed());
        match changes.take() {
            Changes::Names(names) => all.extend(names),
            other => panic!("{other:?} before {last}"),
        }
        if all.iter().any(|changed| changed.name == last.as_bytes()) {
            return all;
        }
    }
}

#[test]
fn each_watcher_gets_the_changes_of_its_folder() {
    let dir = TempDir::new();
    let folder = folder(&dir);
    fs::create_dir(dir.path().join("sub")).expect("created");
    let sub = key("sub");
    let mut top = watch(&folder, None);
    let mut watchers = [watch(&folder, Some(&sub)), watch(&folder, Some(&sub))];
    put(&folder, "sub/a", b"1").expect("stored");
    fs::write(dir.path().join("last"), "1").expect("written");
    let names = names_until(&mut *top, "last");
    assert!(
        names.iter().all(|changed| changed.name != b"a"),
        "{names:?}"
    );
    assert!(names.last().is_some_and(|last| last.appeared && !last.left));
    for watcher in &mut watchers {
        let names = names_until(&mut **watcher, "a");
        assert!(names[0].appeared && !names[0].left);
    }
    let [first, mut second] = watchers;
    drop(first);
    // A replaced object has appeared and left, whichever of both came first.
    put(&folder, "sub/a", b"2").expect("stored");
    fs::remove_file(dir.path().join("sub/a")).expect("removed");
    let mut left = false;
    while !left {
        let names = names_until(&mut *second, "a");
        left = names.iter().any(|changed| changed.left);
    }
    // The watch of the others has not ended.
    put(&folder, "sub/b", b"3").expect("stored");
    names_until(&mut *second, "b");
}

#[test]
fn too_many_names_are_not_collected() {
    let dir = TempDir::new();
    let folder = folder(&dir);
    let mut changes = watch(&folder, None);
    for at in 0..1_000 {
        fs::write(dir.path().join(at.to_string()), "").expect("written");
    }
    let mut has_missed = false;
    while !has_missed {
        block_on(changes.changed());
        has_missed = match changes.take() {
            Changes::Missed => true,
            Changes::Names(names) => {
                assert!(names.len() <= 256);
                false
            }
            Changes::Ended => panic!("the folder exists"),
        };
    }
}

#[test]
fn a_watch_ends_with_its_folder() {
    let dir = TempDir::new();
    let folder = folder(&dir);
    for name in ["deleted", "moved", "above/below"] {
        fs::create_dir_all(dir.path().join(name)).expect("created");
    }
    let [deleted, moved, below] = ["deleted", "moved", "above/below"].map(key);
    let mut watches = [watch(&folder, Some(&deleted)), watch(&folder, Some(&moved))];
    let below = watch(&folder, Some(&below));
    for watch in &watches {
        assert_eq!(block_on(watch.is_current()), Ok(true));
    }
    fs::remove_dir(dir.path().join("deleted")).expect("removed");
    fs::rename(dir.path().join("moved"), dir.path().join("away")).expect("renamed");
    for watch in &mut watches {
        block_on(watch.changed());
        assert_eq!(watch.take(), Changes::Ended);
        assert_eq!(block_on(watch.is_current()), Ok(false));
    }
    // The kernel does not report that a folder above was moved, so one asks.
    assert_eq!(block_on(below.is_current()), Ok(true));
    fs::rename(dir.path().join("above"), dir.path().join("old")).expect("renamed");
    assert_eq!(block_on(below.is_current()), Ok(false));
    // Another folder has the name now.
    fs::create_dir_all(dir.path().join("above/below")).expect("created");
    assert_eq!(block_on(below.is_current()), Ok(false));
    drop((watches, below));
    // A new watch begins with a new thread.
    let mut changes = watch(&folder, None);
    fs::write(dir.path().join("new"), "").expect("written");
    names_until(&mut *changes, "new");
}

#[test]
fn what_cannot_be_watched_is_an_error() {
    let dir = TempDir::new();
    let folder = folder(&dir);
    put(&folder, "file", b"1").expect("stored");
    for (at, error) in [
        ("missing", StoreError::NotFound),
        ("file", StoreError::NotFound),
        (".onrush", StoreError::NotFound),
    ] {
        let result = block_on(folder.watch(Some(&key(at))));
        assert_eq!(result.err(), Some(error), "{at}");
    }
    let simulated = Backend::sim().folder();
    let result = block_on(simulated.watch(None));
    assert_eq!(result.err(), Some(StoreError::Unsupported));
    assert!(folder.features().watch && !simulated.features().watch);
}
