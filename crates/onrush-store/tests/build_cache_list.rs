//! What a build cache leaves for the next process: a list of its files, or after `kill -9` a bound
//! of their space, with which uploads need not wait for the scan.

use crate::build_cache_common::{assert_exact, cache, get, options, put, stats, upload};
use crate::common::*;
use crate::edge_common::{TIMEOUT, files, wait_until};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;
use std::future::Future;
use std::task::{Context, Waker};

const LIMIT: u64 = 3 << 20;
/// The objects of a cache on a simulated disk that has no space for more, and the size of each.
const OBJECTS: usize = 74;
const OBJECT_BYTES: usize = 40_000;
/// What the start lists before the folders of objects: that of uploads, and the top folder.
const LISTS: usize = 2;

#[test]
fn a_list_of_the_files_replaces_the_scan() {
    if temp_lacks(&[Ability::Local]) {
        return;
    }
    let dir = TempDir::new();
    let list = dir.path().join("onrush-files");
    let at = |number: usize| format!("o{number}");
    let first = cache(dir.path(), LIMIT);
    for number in 0..100 {
        put(&first, &at(number), &body(number * 100)).expect("room");
    }
    let bound = dir.path().join("onrush-space");
    assert!(!list.exists() && bound.exists());
    let before = stats(&first);
    first.close();
    assert!(list.exists() && !bound.exists());
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

/// A cache on a simulated disk that an earlier process may still be about to close.
fn on_sim(disk: &SimFs, bytes_max: u64) -> BuildCache {
    let mut cache = None;
    wait_until("the folder is free", || {
        let root = disk.root().expect("the power is on");
        let pool = BlockingPool::threads(4, 1000);
        cache = BuildCache::on(root, pool, options(bytes_max)).ok();
        cache.is_some()
    });
    cache.expect("a cache")
}

fn object(number: usize) -> String {
    format!("o{number}")
}

/// A disk with as many objects as fit, that a killed process has left.
fn filled() -> SimFs {
    let disk = SimFs::new(1);
    let cache = on_sim(&disk, LIMIT);
    wait_until("the scan is complete", || stats(&cache).is_complete);
    let mut clock_ns = 1_700_000_000_000_000_000;
    for number in 0..OBJECTS {
        clock_ns += 1_000_000_000;
        disk.set_clock_ns(clock_ns);
        put(&cache, &object(number), &body(OBJECT_BYTES)).expect("room");
    }
    assert_eq!(stats(&cache).evictions, 0);
    disk.kill_processes();
    disk
}

/// The objects that the disk has.
fn kept(cache: &BuildCache) -> Vec<usize> {
    wait_until("the scan is complete", || stats(cache).is_complete);
    let is_kept = |number: &usize| get(cache, &object(*number)).is_ok();
    (0..OBJECTS).filter(is_kept).collect()
}

#[test]
fn after_a_kill_uploads_have_the_free_space_at_once() {
    let disk = filled();
    disk.hold_lists(Some(LISTS));
    let limit = 2 * LIMIT;
    let cache = on_sim(&disk, limit);
    assert_eq!(disk.wait_for_held_lists(1, TIMEOUT), 1);
    for number in 0..10 {
        put(&cache, &format!("new{number}"), &body(OBJECT_BYTES)).expect("room");
        assert!(stats(&cache).used_bytes <= limit);
        // Also what the scan has not found is served and can be replaced or deleted.
        assert_eq!(get(&cache, &object(number)), Ok(body(OBJECT_BYTES)));
        put(&cache, &object(number + 20), b"replaced").expect("room");
        block_on(cache.delete(&key(object(number + 40)), Kind::File, Condition::None))
            .expect("an object");
    }
    assert!(!stats(&cache).is_complete);
    disk.hold_lists(None);
    let left: Vec<usize> = (0..40).chain(50..OBJECTS).collect();
    assert_eq!(kept(&cache), left);
    assert_eq!(stats(&cache).evictions, 0);
    assert_eq!(stats(&cache).entries, left.len() as u64 + 10);
    let small = disk_bytes_of(b"replaced".len()) * 10;
    let large = disk_bytes_of(OBJECT_BYTES) * (left.len() as u64);
    assert_eq!(
        stats(&cache).used_bytes,
        small + large,
        "the account is exact"
    );
}

/// The space that the simulated disk gives an object with its record.
fn disk_bytes_of(len: usize) -> u64 {
    let disk = SimFs::new(1);
    let cache = on_sim(&disk, LIMIT);
    put(&cache, &object(10), &body(len)).expect("room");
    stats(&cache).used_bytes
}

#[test]
fn after_a_kill_uploads_get_the_space_of_the_oldest_objects_found() {
    let disk = filled();
    disk.hold_lists(Some(LISTS));
    let cache = on_sim(&disk, LIMIT);
    assert_eq!(disk.wait_for_held_lists(1, TIMEOUT), 1);
    // Nothing is found, so nothing can be removed yet.
    let content = body(4 * OBJECT_BYTES);
    let mut waits = Box::pin(upload(&cache, "new", &content, true));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(stats(&cache).used_bytes <= LIMIT);
    }
    // It does not wait for the whole scan.
    disk.hold_lists(Some(40));
    block_on(waits).expect("room");
    assert!(!stats(&cache).is_complete);
    assert!(stats(&cache).used_bytes <= LIMIT);
    disk.hold_lists(None);
    let kept = kept(&cache);
    let evictions = stats(&cache).evictions as usize;
    assert!((1..=8).contains(&evictions), "{evictions}");
    assert_eq!(kept.len(), OBJECTS - evictions);
    assert!((OBJECTS / 2..OBJECTS).all(|number| kept.contains(&number)));
    assert!(get(&cache, "new") == Ok(content));
}

#[test]
fn after_a_power_cut_uploads_wait_for_the_scan() {
    let disk = filled();
    disk.sync_all();
    disk.power_cut();
    disk.restart();
    disk.hold_lists(Some(LISTS));
    let cache = on_sim(&disk, 2 * LIMIT);
    assert_eq!(disk.wait_for_held_lists(1, TIMEOUT), 1);
    let mut waits = Box::pin(upload(&cache, "new", b"x", true));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    assert!(!stats(&cache).is_complete);
    disk.hold_lists(None);
    block_on(waits).expect("room");
    assert!(stats(&cache).is_complete);
    assert_eq!(kept(&cache).len(), OBJECTS);
}
