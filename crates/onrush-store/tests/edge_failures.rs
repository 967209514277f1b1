//! Failures of the disk of an edge, and what others do to it.

use crate::common::*;
use crate::edge_common::{
    BLOCK, Counted, edge, files, get, on_sim, options, stats, wait_until, watch_disk,
};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;

const LIMIT: u64 = 3 << 20;

/// Failures of the disk are reported once, and cost no request.
#[test]
fn without_a_disk_objects_are_served_from_the_store() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    let mut options = options(LIMIT);
    let events = watch_disk(&mut options);
    let edge = on_sim(&store, &disk, options);
    wait_until("the scan is complete", || stats(&edge).is_complete);
    store.put("before", &body(1000));
    get(&edge, "before").expect("an object");
    // It is not removed while it is open. The others are, but on this disk that frees nothing.
    let before = block_on(edge.get(&key("before"))).expect("an object");
    disk.disk_full_after(Some(100_000));
    for number in 0..10 {
        let (at, content) = (format!("o{number}"), body(BLOCK as usize * 2 + number));
        store.put(&at, &content);
        assert!(get(&edge, &at).expect("an object").0 == content);
        let small = format!("s{number}");
        store.put(&small, &body(100_000));
        assert!(get(&edge, &small).expect("an object").0 == body(100_000));
    }
    assert_eq!(*events.lock().unwrap(), [libc::ENOSPC]);
    let (found, how) = get(&edge, "before").expect("an object");
    assert_eq!((found, how), (body(1000), CacheUse::Hit));
    drop(before);
    disk.power_cut(); // Every operation fails from now on.
    assert_eq!(get(&edge, "before").expect("an object").0, body(1000));
}

/// Also if the wall clock is set back meanwhile.
#[test]
fn a_scan_that_fails_begins_again() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    store.put("before", &body(1000));
    disk.set_clock_ns(1_700_000_000_000_000_000);
    let edge1 = on_sim(&store, &disk, options(LIMIT));
    wait_until("the scan is complete", || stats(&edge1).is_complete);
    get(&edge1, "before").expect("an object");
    drop(edge1);
    let mut options = options(LIMIT);
    let events = watch_disk(&mut options);
    // The first failure with which the edge opens is that of the scan.
    let edge = (0..100).find_map(|number| {
        disk.kill_processes();
        disk.clear_faults();
        disk.fail_at(disk.operations() + number, libc::EMFILE);
        let (root, pool) = (disk.root().unwrap(), BlockingPool::threads(4, 1000));
        EdgeStore::on(store.clone(), root, pool, options.clone()).ok()
    });
    let edge = edge.expect("the scan fails");
    wait_until("the failure is reported", || {
        !events.lock().unwrap().is_empty()
    });
    disk.set_clock_ns(1_600_000_000_000_000_000);
    assert!(!stats(&edge).is_complete);
    store.put("after", &body(1000));
    wait_until("files are stored again", || {
        get(&edge, "before").expect("an object");
        get(&edge, "after").expect("an object").1 == CacheUse::Hit
    });
    assert!(stats(&edge).is_complete);
    assert_eq!(stats(&edge).entries, 2);
    assert_eq!(*events.lock().unwrap(), [libc::EMFILE, 0]);
}

/// If others fill the disk, old files make room for new ones.
#[test]
fn on_a_full_disk_files_are_replaced() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    let mut options = options(64 << 20);
    let events = watch_disk(&mut options);
    let edge = on_sim(&store, &disk, options);
    wait_until("the scan is complete", || stats(&edge).is_complete);
    for size in [1000, 2 * BLOCK as usize] {
        let at = |number: u64| format!("o{size}-{number}");
        for number in 0..12 {
            store.put(&at(number), &body(size));
            get(&edge, &at(number)).expect("an object");
            let evictions = stats(&edge).evictions;
            // Whichever operation of the disk it is that finds no room.
            let new = at(100 + number);
            store.put(&new, &body(size));
            disk.fail_at(disk.operations() + number, libc::ENOSPC);
            for _ in 0..2 {
                assert!(get(&edge, &new).expect("an object").0 == body(size));
            }
            disk.clear_faults();
            assert!(
                get(&edge, &new) == Ok((body(size), CacheUse::Hit)),
                "{number}"
            );
            assert!(number > 1 || stats(&edge).evictions > evictions);
        }
    }
    assert_eq!(*events.lock().unwrap(), []);
}

/// What is in the cache is served also while nothing is stored.
#[test]
fn a_pause_stops_no_hits() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    let mut options = options(LIMIT);
    let events = watch_disk(&mut options);
    let edge = on_sim(&store, &disk, options);
    wait_until("the scan is complete", || stats(&edge).is_complete);
    for size in [1000, 2 * BLOCK as usize] {
        store.put(&format!("o{size}"), &body(size));
        get(&edge, &format!("o{size}")).expect("an object");
    }
    wait_until("all is stored", || stats(&edge).entries == 4);
    store.put("new", b"new");
    disk.fail_at(disk.operations(), libc::EIO);
    assert_eq!(get(&edge, "new").expect("an object").0, b"new");
    assert_eq!(*events.lock().unwrap(), [libc::EIO]);
    for is_cold in [false, true] {
        disk.set_cold(is_cold);
        for size in [1000, 2 * BLOCK as usize] {
            let found = get(&edge, &format!("o{size}"));
            assert!(found == Ok((body(size), CacheUse::Hit)), "{size}");
        }
    }
    assert_eq!(*events.lock().unwrap(), [libc::EIO]);
}

/// It is removed and fetched again, and the others are used as before.
#[test]
fn a_file_that_cannot_be_opened_is_replaced() {
    if temp_lacks(&[Ability::Symlinks]) {
        return;
    }
    for size in [1000, 2 * BLOCK as usize] {
        let (dir, store) = (TempDir::new(), Counted::new());
        let mut options = options(LIMIT);
        let events = watch_disk(&mut options);
        let edge = edge(&store, dir.path(), options);
        store.put("a", &body(size));
        get(&edge, "a").expect("an object");
        for path in files(dir.path()) {
            std::fs::remove_file(&path).expect("a file");
            std::os::unix::fs::symlink(&path, &path).expect("a link that leads to itself");
        }
        for _ in 0..2 {
            assert!(get(&edge, "a").expect("an object").0 == body(size));
        }
        assert!(get(&edge, "a") == Ok((body(size), CacheUse::Hit)));
        store.put("b", b"b");
        for _ in 0..2 {
            get(&edge, "b").expect("an object");
        }
        assert_eq!(get(&edge, "b"), Ok((b"b".to_vec(), CacheUse::Hit)));
        assert_eq!(*events.lock().unwrap(), []);
    }
}

/// The same for one that cannot be read after a restart.
#[test]
fn a_file_that_cannot_be_read_is_replaced() {
    for size in [1000, 2 * BLOCK as usize] {
        for number in 0..3 {
            let (disk, store) = (SimFs::new(1), Counted::new());
            store.put("a", &body(size));
            let edge1 = on_sim(&store, &disk, options(LIMIT));
            wait_until("the scan is complete", || stats(&edge1).is_complete);
            get(&edge1, "a").expect("an object");
            drop(edge1);
            let mut options = options(LIMIT);
            let events = watch_disk(&mut options);
            let edge2 = on_sim(&store, &disk, options);
            wait_until("the scan is complete", || stats(&edge2).is_complete);
            disk.fail_at(disk.operations() + number, libc::EIO);
            for _ in 0..2 {
                assert!(get(&edge2, "a").expect("an object").0 == body(size));
            }
            let found = get(&edge2, "a");
            assert!(found == Ok((body(size), CacheUse::Hit)), "{size} {number}");
            assert_eq!(*events.lock().unwrap(), [], "{size} {number}");
        }
    }
}

#[test]
fn a_folder_that_was_removed_is_created_again() {
    if temp_lacks(&[Ability::NamelessFiles]) {
        return;
    }
    let (dir, store) = (TempDir::new(), Counted::new());
    let path = dir.path().join("cache");
    let mut options = options(LIMIT);
    let events = watch_disk(&mut options);
    let edge = edge(&store, &path, options.clone());
    for size in [1000, 2 * BLOCK as usize] {
        store.put(&format!("o{size}"), &body(size));
        get(&edge, &format!("o{size}")).expect("an object");
    }
    wait_until("all is stored", || stats(&edge).entries == 4);
    std::fs::remove_dir_all(&path).expect("removed");
    for size in [1000, 2 * BLOCK as usize] {
        wait_until("it is stored again", || {
            let (found, how) = get(&edge, &format!("o{size}")).expect("an object");
            assert!(found == body(size));
            how == CacheUse::Hit && path.exists() && !files(&path).is_empty()
        });
    }
    wait_until("the disk has what is accounted for", || {
        onrush_store::testing::disk_bytes(&path) == stats(&edge).used_bytes
    });
    assert_eq!(*events.lock().unwrap(), [-1]);
    // It is a cache as before: locked, and accepted after a restart.
    let pool = BlockingPool::threads(1, 10);
    let error = EdgeStore::open(store.clone(), &path, pool, options.clone());
    let error = error.expect_err("it is in use").to_string();
    assert!(error.contains("another process"), "{error}");
    drop(edge);
    let edge = crate::edge_common::opened(&store, &path, options);
    assert_eq!(get(&edge, "o1000").expect("an object").0, body(1000));
}

/// Also a record that cannot be removed from the disk.
#[test]
fn nothing_that_was_deleted_is_served() {
    for size in [1000, 2 * BLOCK as usize] {
        for number in 0..4 {
            let (disk, store) = (SimFs::new(1), Counted::new());
            let edge = on_sim(&store, &disk, options(LIMIT));
            wait_until("the scan is complete", || stats(&edge).is_complete);
            store.put("a", &body(size));
            get(&edge, "a").expect("an object");
            let entries = if size > BLOCK as usize { 3 } else { 1 };
            wait_until("all is stored", || stats(&edge).entries == entries);
            disk.fail_at(disk.operations() + number, libc::EIO);
            let deleted = block_on(edge.delete(&key("a"), Kind::File, Condition::None));
            deleted.expect("a disk that fails costs no request");
            disk.clear_faults();
            store.store.fail_with(Some(StoreError::Unavailable));
            let found = get(&edge, "a").map(drop);
            assert_eq!(found, Err(StoreError::Unavailable), "{size} {number}");
        }
    }
}
