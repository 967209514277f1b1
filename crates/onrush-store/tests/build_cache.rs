//! The build cache as a store: the promises of the trait, its limit, the order of eviction,
//! restarts, torn files and power cuts.

use crate::build_cache_common::{
    assert_exact, cache, get, opened, options, put, stage, stats, upload,
};
use crate::common::*;
use crate::edge_common::{files, wait_until};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::driver::{Config, Preference, choose};
use onrush_rt::fs::sim::SimFs;
use onrush_rt::worker::{Pools, Worker};
use onrush_store::cache::{CacheOptions, DiskEvent};
use onrush_store::testing::conformance_of_objects;
use onrush_store::testing::disk_bytes;
use onrush_store::*;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};

const LIMIT: u64 = 3 << 20;

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + '_>>) -> Poll<T> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_build_cache_conforms_but_for_folders() {
    let dir = TempDir::new();
    block_on(conformance_of_objects(&cache(dir.path(), 64 << 20)));
    let disk = SimFs::new(1);
    let pool = BlockingPool::inline();
    let root = disk.root().expect("a folder");
    let cache = BuildCache::on(root, pool, options(64 << 20)).expect("a cache");
    block_on(conformance_of_objects(&cache));
    let listed = block_on(cache.list(None, ListHow::default()));
    assert_eq!(listed, Err(StoreError::Unsupported));
    // `a` and `a/b` are different objects, and each folder exists.
    for at in ["f", "f/a", "f/a/b"] {
        put(&cache, at, at.as_bytes()).expect("an object");
        assert_eq!(block_on(cache.create_folder(&key(at))), Ok(false));
    }
    for at in ["f", "f/a", "f/a/b"] {
        assert_eq!(get(&cache, at), Ok(at.as_bytes().to_vec()));
    }
}

#[test]
fn the_limit_is_never_exceeded_and_no_upload_fails() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    let sizes = [1, 5000, 16_384, 70_000, 300_000, 1_000_000];
    let left = AtomicUsize::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, left) = (&cache, &left);
            scope.spawn(move || {
                for round in 0..40 {
                    let number = round * 8 + thread;
                    let content = body(sizes[number % sizes.len()] + number);
                    put(cache, &format!("o{number}"), &content).expect("room");
                    let other = number.saturating_sub(8);
                    match get(cache, &format!("o{other}")) {
                        Ok(found) => {
                            let size = sizes[other % sizes.len()] + other;
                            assert!(found == body(size));
                        }
                        Err(error) => assert_eq!(error, StoreError::NotFound),
                    }
                }
                left.fetch_sub(1, SeqCst);
            });
        }
        while left.load(SeqCst) > 0 {
            assert!(stats(&cache).used_bytes <= LIMIT);
        }
    });
    assert!(stats(&cache).evictions > 0 && stats(&cache).used_bytes > LIMIT / 2);
    assert_exact(&cache, dir.path());
    let metrics = cache.metrics();
    assert_eq!(metrics.hits + metrics.misses, 8 * 40);
    assert!(metrics.stored_bytes > LIMIT);
}

/// A lower limit removes the objects that were not used for the longest time, at once.
#[test]
fn the_limit_changes_while_the_cache_is_in_use() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    let content = body(64 * 1024);
    for number in 0..20 {
        put(&cache, &format!("o{number}"), &content).expect("room");
    }
    assert!(stats(&cache).used_bytes > LIMIT / 4);
    cache.set_limit(LIMIT / 4);
    assert!(stats(&cache).used_bytes <= LIMIT / 4);
    assert_eq!(get(&cache, "o0"), Err(StoreError::NotFound));
    assert_eq!(get(&cache, "o19"), Ok(content.clone()));
    let large = body(LIMIT as usize / 3);
    let at = key("large");
    let staged = cache.stage(&at, Condition::None, Some(large.len() as u64));
    assert!(matches!(block_on(staged), Err(StoreError::TooLarge)));
    cache.set_limit(LIMIT);
    put(&cache, "large", &large).expect("it fits again");
    assert_exact(&cache, dir.path());
}

/// Each object of the index has its file: an eviction never removes the file that has replaced the
/// one that it means.
#[test]
fn objects_that_are_replaced_while_they_are_evicted_stay() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    let content = body(20_000);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cache, content) = (&cache, &content);
            scope.spawn(move || {
                for round in 0..400 {
                    let number = (round * 7 + thread * 3) % 150;
                    put(cache, &format!("o{number}"), content).expect("room");
                }
            });
        }
    });
    assert!(stats(&cache).evictions > 0);
    assert_exact(&cache, dir.path());
    assert_eq!(files(dir.path()).len() as u64, stats(&cache).entries);
}

#[test]
fn an_upload_waits_for_the_room_of_others() {
    for is_completed in [false, true] {
        let dir = TempDir::new();
        let cache = cache(dir.path(), LIMIT);
        put(&cache, "old", &body(500_000)).expect("room");
        let begun = ["1", "2", "3"].map(|at| {
            block_on(async {
                let mut upload = stage(&cache, at, Some(900_000)).await;
                upload.write(body(20_000)).await.expect("room");
                upload
            })
        });
        assert!(get(&cache, "old").is_ok(), "few bytes have arrived");
        let content = body(900_000);
        let mut waits: LocalFuture<'_, _> = Box::pin(upload(&cache, "4", &content, true));
        let mut polls = 0;
        wait_until("it waits", || {
            polls += 1;
            assert!(poll(&mut waits).is_pending(), "there is no room");
            polls > 20
        });
        let [first, second, third] = begun;
        match is_completed {
            true => drop(block_on(first.commit()).expect("its space is reserved")),
            false => drop(first),
        }
        block_on(waits).expect("room");
        assert!(get(&cache, "4") == Ok(content));
        drop((second, third));
        assert_exact(&cache, dir.path());
    }
}

/// A worker has a clock, so nothing waits there without limit.
fn worker() -> Worker {
    let config = Config::default();
    let choice = choose(Preference::Auto, &config).expect("a driver");
    Worker::new(&choice, &config, Pools::default(), 0).expect("a worker")
}

#[test]
fn slow_uploads_do_not_empty_the_cache() {
    let limit = 16 << 20;
    let dir = TempDir::new();
    let cache = cache(dir.path(), limit);
    for number in 0..12 {
        put(&cache, &format!("old-{number}"), &body(1 << 20)).expect("room");
    }
    let mut slow = Vec::new();
    for number in 0..12 {
        let announced = Some(limit as usize / 16 - 9000);
        let mut upload = block_on(stage(&cache, &format!("slow-{number}"), announced));
        block_on(upload.write(body(17_000))).expect("room");
        slow.push(upload);
    }
    let stats = stats(&cache);
    assert!(stats.entries >= 11, "{stats:?}");
}

#[test]
fn a_slow_upload_has_only_space_for_what_has_arrived() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    put(&cache, "old", &body(500_000)).expect("room");
    let mut slow = block_on(stage(&cache, "slow", Some(2_900_000)));
    block_on(slow.write(body(20_000))).expect("room");
    for number in 0..20 {
        put(&cache, &format!("o{number}"), &body(150_000)).expect("room");
        get(&cache, "old").expect("it is in use");
    }
    // A large one waits for a while, and is stored all the same.
    let content = body(900_000);
    let stored = worker().block_on(upload(&cache, "large", &content, true));
    stored.expect("a worker").expect("room");
    // The slow one has what it announced when it goes on.
    let part = body(20_000);
    for _ in 1..145 {
        block_on(slow.write(part.clone())).expect("room");
    }
    block_on(slow.commit()).expect("room");
    assert_exact(&cache, dir.path());
}

#[test]
fn an_upload_waits_for_readers_and_not_for_ever() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    put(&cache, "a", &body(1_400_000)).expect("room");
    put(&cache, "b", &body(1_400_000)).expect("room");
    let open = |at| block_on(cache.get(&key(at))).expect("an object");
    let [first, second] = ["a", "b"].map(open);
    // Both wait at the same time.
    std::thread::scope(|scope| {
        for (at, is_known) in [("known", true), ("unknown", false)] {
            let cache = &cache;
            scope.spawn(move || {
                let content = body(1_000_000);
                let refused = worker().block_on(upload(cache, at, &content, is_known));
                let busy = StoreError::Throttled { retry_after: None };
                assert_eq!(refused.expect("a worker"), Err(busy), "{at}");
            });
        }
    });
    // One that waits is woken when a reader ends, also after its object was deleted.
    for (reader, is_deleted) in [(first, false), (second, true)] {
        let content = body(1_200_000);
        let at = ["c", "d"][usize::from(is_deleted)];
        let (woken, waits) = mpsc::channel();
        if is_deleted {
            let deleted = block_on(cache.delete(&key("b"), Kind::File, Condition::None));
            deleted.expect("an object");
        }
        // An object that is read has the rest.
        let other = (is_deleted).then(|| block_on(cache.get(&key("c"))).expect("an object"));
        let mut begun: LocalFuture<'_, _> = Box::pin(upload(&cache, at, &content, true));
        let mut polls = 0;
        wait_until("it waits", || {
            polls += 1;
            assert!(poll(&mut begun).is_pending(), "there is no room");
            polls > 20
        });
        drop(begun);
        let other_thread = cache.clone();
        std::thread::spawn(move || {
            let stored = block_on(upload(&other_thread, at, &content, true));
            woken.send(stored).expect("it is awaited");
        });
        let early = waits.recv_timeout(std::time::Duration::from_millis(50));
        assert!(early.is_err(), "there is no room");
        drop(reader);
        let stored = waits.recv_timeout(std::time::Duration::from_secs(60));
        stored.expect("it is woken").expect("room");
        drop(other);
    }
    assert_exact(&cache, dir.path());
}

#[test]
fn a_scan_that_panics_begins_again() {
    let dir = TempDir::new();
    let path = dir.path().join("cache");
    let pool = BlockingPool::threads(1, 100);
    let (release, held) = mpsc::channel::<()>();
    pool.run(move || held.recv()).detach();
    let report: Arc<dyn Fn(DiskEvent) + Send + Sync> = Arc::new(|event| {
        assert!(event != DiskEvent::IsCreatedAgain, "this thread panics");
    });
    let options = CacheOptions {
        report,
        ..options(LIMIT)
    };
    let cache = BuildCache::open(&path, pool, options).expect("a cache");
    std::fs::remove_dir_all(&path).expect("it is removed before the scan");
    release.send(()).expect("it is held");
    let (ended, waits) = mpsc::channel();
    let other = cache.clone();
    std::thread::spawn(move || ended.send(put(&other, "a", &body(100_000))));
    let refused = waits.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(
        refused.expect("no endless loop"),
        Err(StoreError::Unavailable)
    );
    wait_until("it begins again", || put(&cache, "a", b"x").is_ok());
    assert!(stats(&cache).is_complete);
}

#[test]
fn an_upload_of_unknown_size_grows() {
    let dir = TempDir::new();
    let cache = cache(dir.path(), LIMIT);
    for size in [0, 10, 16_384, 16_385, 900_000, 2_500_000] {
        let content = body(size);
        block_on(upload(&cache, "a", &content, false)).expect("room");
        assert!(get(&cache, "a") == Ok(content));
        assert_exact(&cache, dir.path());
    }
    // What is too large leaves nothing behind.
    let large = body(LIMIT as usize + 1);
    let refused = block_on(upload(&cache, "b", &large, false));
    assert_eq!(refused, Err(StoreError::TooLarge));
    let staged = block_on(cache.stage(&key("b"), Condition::None, Some(LIMIT)));
    assert_eq!(staged.err(), Some(StoreError::TooLarge));
    wait_until("it is removed", || disk_bytes(&dir.path().join("new")) == 0);
    assert_exact(&cache, dir.path());
}

#[test]
fn a_restart_keeps_objects_and_their_order() {
    let dir = TempDir::new();
    let cache1 = cache(dir.path(), LIMIT);
    for at in ["a", "b", "c"] {
        put(&cache1, at, &body(900_000)).expect("room");
        std::thread::sleep(std::time::Duration::from_millis(5)); // The resolution of times is 1 ms.
    }
    get(&cache1, "a").expect("an object");
    let version = |cache: &BuildCache, at| block_on(cache.meta(&key(at))).expect("an object");
    let before = version(&cache1, "c");
    cache1.close();
    let used = stats(&cache1).used_bytes;
    drop(cache1);
    let cache2 = cache(dir.path(), LIMIT);
    assert_eq!(stats(&cache2).used_bytes, used);
    assert_eq!(version(&cache2, "c"), before);
    put(&cache2, "d", &body(900_000)).expect("room");
    assert_eq!(get(&cache2, "b"), Err(StoreError::NotFound));
    for at in ["a", "c", "d"] {
        assert!(get(&cache2, at) == Ok(body(900_000)), "{at}");
    }
    // A lower limit holds after the scan.
    drop(cache2);
    let cache3 = cache(dir.path(), 1 << 20);
    wait_until("objects are removed", || {
        disk_bytes(dir.path()) <= 1 << 20 && stats(&cache3).entries == 1
    });
}

#[test]
fn objects_are_served_while_the_scan_runs() {
    let dir = TempDir::new();
    let first = cache(dir.path(), 64 << 20);
    let at = |number: usize| format!("o{number}");
    for number in 0..1000 {
        put(&first, &at(number), at(number).as_bytes()).expect("room");
    }
    drop(first);
    let second = opened(dir.path(), 64 << 20);
    for number in (0..1000).rev().step_by(10) {
        assert_eq!(get(&second, &at(number)), Ok(at(number).into_bytes()));
        put(&second, &at(number), b"new").expect("it waits for the scan");
    }
    wait_until("the scan is complete", || stats(&second).is_complete);
    assert_eq!(stats(&second).entries, 1000);
    assert_exact(&second, dir.path());
}

#[test]
fn an_upload_waits_for_the_scan() {
    let dir = TempDir::new();
    put(&cache(dir.path(), LIMIT), "old", b"x").expect("room");
    // The only thread is busy, so the scan cannot begin.
    let pool = BlockingPool::threads(1, 100);
    let (release, held) = mpsc::channel::<()>();
    pool.run(move || held.recv()).detach();
    let mut opened = None;
    wait_until("the folder is free", || {
        opened = BuildCache::open(dir.path(), pool.clone(), options(LIMIT)).ok();
        opened.is_some()
    });
    let cache = opened.expect("a cache");
    let content = body(100_000);
    let mut waits: LocalFuture<'_, _> = Box::pin(upload(&cache, "new", &content, true));
    assert!(poll(&mut waits).is_pending());
    assert!(!stats(&cache).is_complete);
    release.send(()).expect("it is held");
    block_on(waits).expect("room");
    assert!(stats(&cache).is_complete);
    assert_eq!(stats(&cache).entries, 2);
    assert_exact(&cache, dir.path());
}

/// What a process that was killed has left is removed, and files that a power cut has torn are not
/// served.
#[test]
fn torn_and_unfinished_files_are_removed() {
    if temp_lacks(&[Ability::Local]) {
        return;
    }
    let tear: [fn(&std::fs::File, u64); 4] = [
        |file, _| file.set_len(0).unwrap(),
        |file, len| file.set_len(len - 1).unwrap(),
        |file, len| file.write_all_at(&[0; 64], len / 3).unwrap(),
        |file, len| file.write_all_at(&vec![0; len as usize], 0).unwrap(),
    ];
    for size in [1000, 500_000] {
        for tear in tear {
            let dir = TempDir::new();
            let first = cache(dir.path(), LIMIT);
            put(&first, "a", &body(size)).expect("room");
            let torn = files(dir.path()).pop().expect("a file");
            put(&first, "b", &body(size)).expect("room");
            drop(first);
            let file = std::fs::File::options().write(true).open(torn).unwrap();
            let len = file.metadata().unwrap().len();
            tear(&file, len);
            std::fs::write(dir.path().join("new/7"), body(size)).unwrap();
            let second = cache(dir.path(), LIMIT);
            assert_eq!(disk_bytes(&dir.path().join("new")), 0);
            assert_eq!(get(&second, "a"), Err(StoreError::NotFound));
            assert!(get(&second, "b") == Ok(body(size)));
            assert_eq!(stats(&second).entries, 1);
            assert_exact(&second, dir.path());
            put(&second, "a", b"again").expect("room");
            assert_eq!(get(&second, "a"), Ok(b"again".to_vec()));
        }
    }
}

#[test]
fn a_power_cut_leaves_no_wrong_byte() {
    let sizes = [10, 5000, 100_000];
    let mut kept = 0;
    for seed in 0..24 {
        let disk = SimFs::new(seed);
        let open = || {
            let root = disk.root().expect("the power is on");
            let pool = BlockingPool::inline();
            BuildCache::on(root, pool, options(LIMIT)).expect("a cache")
        };
        let first = open();
        for size in sizes {
            put(&first, &format!("o{size}"), &body(size)).expect("room");
            if seed % 4 == 0 {
                disk.sync_all(); // As the kernel does from time to time.
            }
        }
        disk.power_cut();
        drop(first);
        disk.restart();
        let second = open();
        for size in sizes {
            match get(&second, &format!("o{size}")) {
                Ok(found) => {
                    assert!(found == body(size), "{seed}: {size}");
                    kept += 1;
                }
                Err(error) => assert_eq!(error, StoreError::NotFound),
            }
        }
        put(&second, "new", b"x").expect("room");
    }
    assert!(kept > 0, "some objects survive");
}

/// What cannot be deleted is still there, and the client gets the error.
#[test]
fn a_delete_that_fails_leaves_the_object() {
    let disk = SimFs::new(1);
    let open = || {
        disk.kill_processes();
        let (root, pool) = (disk.root().unwrap(), BlockingPool::threads(4, 1000));
        let cache = BuildCache::on(root, pool, options(LIMIT)).expect("a cache");
        wait_until("the scan is complete", || stats(&cache).is_complete);
        cache
    };
    let mut failures = 0;
    for number in 0..6 {
        let cache = open();
        put(&cache, "a", b"content").expect("room");
        disk.fail_at(disk.operations() + number, libc::EIO);
        let deleted = block_on(cache.delete(&key("a"), Kind::File, Condition::None));
        disk.clear_faults();
        let content = match deleted {
            Ok(_) | Err(StoreError::NotFound) => Err(StoreError::NotFound),
            Err(_) => Ok(b"content".to_vec()),
        };
        failures += usize::from(content.is_ok());
        assert_eq!(get(&cache, "a"), content, "{number}");
        assert_eq!(stats(&cache).entries, content.is_ok() as u64, "{number}");
        drop(cache);
        let cache = open();
        assert_eq!(get(&cache, "a"), content, "{number}");
        let _ = block_on(cache.delete(&key("a"), Kind::File, Condition::None));
    }
    assert!(failures > 0, "one of them is the removal");
}
