//! Group commit on the simulated disk: puts that share their syncs, with a power cut or an error at
//! every operation of the leader, and without each of its syncs.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::thread;
use std::time::{Duration, Instant};

const EIO: i32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);
/// A time of syncs with which puts share them, and one with which they do not.
const LONG: Duration = Duration::from_millis(5);
const SHORT: Duration = Duration::from_micros(200);

/// In three folders. The last one is too large for memory, so it is synced before it is ready.
const KEYS: [&str; 5] = ["a", "b", "d/a", "d/b", "e/a"];
/// These exist before.
const OLD: [&str; 2] = ["b", "d/b"];

fn old(key: &str) -> Option<Vec<u8>> {
    OLD.contains(&key).then(|| b"old".to_vec())
}

fn new(key: &str) -> Vec<u8> {
    match key {
        "e/a" => vec![b'n'; 40_000],
        key => key.as_bytes().repeat(500),
    }
}

fn open(disk: &SimFs) -> Folder {
    let pool = BlockingPool::threads(2, 64);
    let options = FolderOptions {
        share_syncs: true,
        ..FolderOptions::default()
    };
    Folder::on(disk.root().unwrap(), pool, options).unwrap()
}

/// A disk with the old objects and all folders, durably.
fn prepare(seed: u64, syncs_whole: bool) -> (SimFs, Folder) {
    let disk = SimFs::new(seed);
    disk.set_syncs_whole(syncs_whole);
    let folder = open(&disk);
    for key in OLD.into_iter().chain(["d/x", "e/x"]) {
        put(&folder, key, b"old").unwrap();
    }
    (disk, folder)
}

/// Puts all keys so that one leader commits them. Calls `plan` before it with the number of its
/// first operation. Returns the results, and the numbers of its operations and syncs.
fn put_together(
    disk: &SimFs,
    folder: &Folder,
    plan: impl FnOnce(u64),
) -> (Vec<Result<Committed>>, u64, u64) {
    folder.assume_sync_time(LONG);
    let held = folder.hold_commits();
    thread::scope(|scope| {
        let puts = KEYS.map(|key| scope.spawn(move || put(folder, key, &new(key))));
        let begun = Instant::now();
        while folder.waiting_commits() < KEYS.len() {
            assert!(begun.elapsed() < PATIENCE, "not all puts are ready");
            thread::yield_now();
        }
        let (operations, syncs) = (disk.operations(), disk.syncs());
        plan(operations);
        drop(held);
        let results = puts.map(|put| put.join().unwrap()).into_iter().collect();
        (
            results,
            disk.operations() - operations,
            disk.syncs() - syncs,
        )
    })
}

fn found(folder: &Folder, key: &str) -> Option<Vec<u8>> {
    match get_both(folder, key) {
        Ok((content, metadata)) if metadata == metadata_of(&content) => Some(content),
        Ok(_) => Some(b"torn".to_vec()),
        Err(StoreError::NotFound) => None,
        Err(error) => panic!("{key}: {error}"),
    }
}

fn restart(disk: &SimFs, folder: Folder) -> Folder {
    disk.power_cut();
    drop(folder);
    disk.restart();
    open(disk)
}

/// The keys whose put completed, and which are not there.
fn lost(folder: &Folder, results: &[Result<Committed>]) -> usize {
    let is_lost = |(key, result): &(&str, &Result<Committed>)| {
        result.is_ok() && found(folder, key) != Some(new(key))
    };
    KEYS.into_iter().zip(results).filter(is_lost).count()
}

fn assert_whole(folder: &Folder, at: &str) {
    for key in KEYS {
        let found = found(folder, key);
        assert!(
            found == old(key) || found == Some(new(key)),
            "{at}: {key} is torn"
        );
    }
}

#[test]
fn puts_that_are_ready_share_their_syncs() {
    for (syncs_whole, expected) in [(true, 2), (false, 3)] {
        let (disk, folder) = prepare(1, syncs_whole);
        let (results, _, syncs) = put_together(&disk, &folder, |_| {});
        for (key, result) in KEYS.into_iter().zip(results) {
            let created = result.unwrap().created;
            assert_eq!(created, old(key).is_none(), "{key}");
            assert_eq!(found(&folder, key), Some(new(key)));
        }
        assert_eq!(syncs, expected);
        assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0);
    }
}

/// Where syncs are short, or their time is not known yet, no put waits for another.
#[test]
fn puts_do_not_wait_for_short_syncs() {
    for time in [None, Some(SHORT)] {
        let (disk, folder) = prepare(1, true);
        time.into_iter()
            .for_each(|time| folder.assume_sync_time(time));
        let held = folder.hold_commits();
        let before = disk.syncs();
        for key in KEYS {
            put(&folder, key, &new(key)).unwrap();
            assert_eq!(folder.waiting_commits(), 0);
        }
        assert_eq!(disk.syncs() - before, 2 * KEYS.len() as u64);
        drop(held);
    }
}

/// More puts may be committed at once than may lead, if syncs were short when they began. They
/// leave no put behind.
#[test]
fn puts_that_begin_to_share_syncs_all_complete() {
    let (_disk, folder) = prepare(1, true);
    for round in 0..50 {
        folder.assume_sync_time(SHORT);
        thread::scope(|scope| {
            for put_number in 0..8 {
                let folder = &folder;
                scope.spawn(move || {
                    if put_number == 4 {
                        folder.assume_sync_time(LONG);
                    }
                    put(folder, &format!("{round}-{put_number}"), b"x").unwrap();
                });
            }
        });
        assert_eq!(folder.waiting_commits(), 0);
    }
}

#[test]
fn one_put_makes_its_own_syncs_only() {
    let (disk, folder) = prepare(1, true);
    let before = disk.syncs();
    put(&folder, "d/y", b"x").unwrap();
    assert_eq!(disk.syncs() - before, 2, "its content, its folder");
}

#[test]
fn power_cut_at_any_operation_of_the_leader_loses_no_completed_put() {
    let mut cuts = 0;
    for syncs_whole in [true, false] {
        let (disk, folder) = prepare(0, syncs_whole);
        let (_, count, _) = put_together(&disk, &folder, |_| {});
        for (number, seed) in (0..=count).flat_map(|number| [(number, 0), (number, 1), (number, 2)])
        {
            for cut in [Cut::Before, Cut::During, Cut::After] {
                let at = format!("{syncs_whole}, seed {seed}, operation {number}, {cut:?}");
                let (disk, folder) = prepare(seed, syncs_whole);
                let plan = |first| disk.power_cut_at(first + number, cut);
                let (results, _, _) = put_together(&disk, &folder, plan);
                let folder = restart(&disk, folder);
                assert_eq!(lost(&folder, &results), 0, "{at}: {results:?}");
                assert_whole(&folder, &at);
                assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0, "{at}");
                cuts += 1;
            }
        }
    }
    assert!(cuts > 200);
}

/// A put whose own step fails is undone; the others are not affected. If a shared sync fails, all
/// that needed it fail.
#[test]
fn error_at_any_operation_of_the_leader_completes_no_put_wrongly() {
    for syncs_whole in [true, false] {
        let (disk, folder) = prepare(0, syncs_whole);
        let (_, count, _) = put_together(&disk, &folder, |_| {});
        for number in 0..count {
            for seed in 0..4 {
                let at = format!("{syncs_whole}, seed {seed}, operation {number}");
                let (disk, folder) = prepare(seed, syncs_whole);
                let plan = |first| disk.fail_at(first + number, EIO);
                let (results, _, _) = put_together(&disk, &folder, plan);
                for (key, result) in KEYS.into_iter().zip(&results) {
                    let expected = match result {
                        Ok(_) => Some(new(key)),
                        Err(StoreError::Io(_)) => old(key),
                        Err(error) => panic!("{at}: {key}: {error}"),
                    };
                    assert_eq!(found(&folder, key), expected, "{at}: {key}");
                }
                disk.clear_faults();
                put(&folder, "d/x", b"later").unwrap();
                let folder = restart(&disk, folder);
                assert_eq!(lost(&folder, &results), 0, "{at}: {results:?}");
                assert_whole(&folder, &at);
                assert_eq!(get(&folder, "d/x").unwrap(), b"later");
            }
        }
    }
}

/// The keys that a power cut tears or loses, if operation `ignored` of the leader makes no sync and
/// the power fails at operation `cut`. `None`: that operation is no sync.
fn violations(syncs_whole: bool, seed: u64, ignored: u64, cut: u64) -> Option<usize> {
    let (disk, folder) = prepare(seed, syncs_whole);
    let plan = |first| {
        disk.ignore_sync_at(first + ignored);
        disk.power_cut_at(first + cut, Cut::Before);
    };
    let (results, _, _) = put_together(&disk, &folder, plan);
    let is_sync = disk.ignored_syncs() > 0;
    let folder = restart(&disk, folder);
    let torn = |key: &&str| {
        let found = found(&folder, key);
        found != old(key) && found != Some(new(key))
    };
    let torn = KEYS.into_iter().filter(torn).count();
    is_sync.then(|| torn + lost(&folder, &results))
}

/// What the tests of this file and of `faults` prove depends on every single sync: without one, a
/// power cut tears an object or loses a completed put.
#[test]
fn every_sync_is_needed() {
    for syncs_whole in [true, false] {
        let (disk, folder) = prepare(0, syncs_whole);
        let (_, count, syncs) = put_together(&disk, &folder, |_| {});
        let mut found = 0;
        for ignored in 0..count {
            if violations(syncs_whole, 0, ignored, count + 1).is_none() {
                continue;
            }
            let mut cuts =
                (0..12).flat_map(|seed| (ignored + 1..=count).map(move |cut| (seed, cut)));
            let hurts = |(seed, cut)| violations(syncs_whole, seed, ignored, cut) > Some(0);
            assert!(
                cuts.any(hurts),
                "{syncs_whole}: operation {ignored} is not needed"
            );
            found += 1;
        }
        assert_eq!(found, syncs);
    }
    // Those of a single put.
    let mut needed = 0;
    for number in 0..40 {
        let losses = (0..12).filter(|&seed| {
            let (disk, folder) = prepare(seed, true);
            disk.ignore_sync_at(disk.operations() + number);
            put(&folder, "d/a", &new("d/a")).unwrap();
            found(&restart(&disk, folder), "d/a") != Some(new("d/a"))
        });
        needed += usize::from(losses.count() > 0);
    }
    assert_eq!(needed, 2, "of the content, of the folder");
}

/// Many clients on few threads: no thread waits for another.
#[test]
fn more_puts_than_threads_complete() {
    let disk = SimFs::new(3);
    let folder = open(&disk);
    thread::scope(|scope| {
        for client in 0..16 {
            let folder = &folder;
            scope.spawn(move || {
                for number in 0..20 {
                    let key = format!("f{}/{client}-{number}", number % 3);
                    put(folder, &key, key.as_bytes()).unwrap();
                }
            });
        }
    });
    let folder = restart(&disk, folder);
    for (client, number) in (0..16).flat_map(|client| (0..20).map(move |number| (client, number))) {
        let key = format!("f{}/{client}-{number}", number % 3);
        assert_eq!(get(&folder, &key).unwrap(), key.as_bytes());
    }
}
