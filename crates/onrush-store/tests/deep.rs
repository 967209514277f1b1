//! Puts that create many folders on a slow disk delay neither other keys nor the pool. The disk is
//! simulated, and holds the creation of folders until the test releases it.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// A time limit that only a failing test reaches.
const TIMEOUT: Duration = Duration::from_secs(30);

const THREADS: usize = 8;
const DEEP: usize = 40;

fn deep_path(number: usize) -> String {
    format!("{number}/{}", ["x"; 63].join("/"))
}

/// Runs `act` on a thread of its own and fails if it does not end.
fn with_timeout<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(act()));
    receiver
        .recv_timeout(TIMEOUT)
        .expect("the operation ends in time")
}

#[test]
fn creating_folders_does_not_block_other_keys_or_the_pool() {
    for durability in [Durability::Full, Durability::None] {
        let disk = SimFs::new(1);
        let options = FolderOptions {
            durability,
            ..FolderOptions::default()
        };
        let pool = BlockingPool::threads(THREADS, 1024);
        let folder = Folder::on(disk.root().unwrap(), pool.clone(), options).unwrap();
        put(&folder, "there/before", b"x").unwrap();

        disk.hold_folders(true);
        let deep_puts: Vec<_> = (0..DEEP)
            .map(|number| {
                let folder = folder.clone();
                thread::spawn(move || put(&folder, &deep_path(number), b"deep"))
            })
            .collect();
        assert_eq!(
            disk.wait_for_held(2, TIMEOUT),
            2,
            "a quarter of the threads"
        );

        // Enough keys to use every stripe of the locks.
        let others = folder.clone();
        with_timeout(move || {
            for number in 0..4096 {
                put(&others, &format!("there/{number}"), b"plain").unwrap();
            }
            assert_eq!(get(&others, "there/before").unwrap(), b"x");
            put(&others, "there/before", b"y").unwrap();
            delete(&others, "there/before").unwrap();
            let how = ListHow {
                limit: 5000,
                ..ListHow::default()
            };
            assert_eq!(
                list(&others, Some("there"), how).unwrap().entries.len(),
                4096
            );
        });
        // The key of a deep put is free, too: no lock is held while its folders are created.
        let others = folder.clone();
        with_timeout(move || assert_eq!(delete(&others, &deep_path(0)), Err(StoreError::NotFound)));
        let held = disk.wait_for_held(3, Duration::from_millis(50));
        assert_eq!(held, 2, "no more jobs at a time, however many wait");

        disk.hold_folders(false);
        for put in deep_puts {
            put.join().unwrap().unwrap();
        }
        for number in 0..DEEP {
            assert_eq!(get(&folder, &deep_path(number)).unwrap(), b"deep");
        }
    }
}

/// A put that is dropped while it waits for a permit leaves nothing and does not delay others.
#[test]
fn puts_dropped_while_folders_are_created_leave_nothing() {
    let disk = SimFs::new(1);
    let pool = BlockingPool::threads(4, 1024);
    let folder = Folder::on(disk.root().unwrap(), pool.clone(), FolderOptions::default()).unwrap();
    disk.hold_folders(true);
    let waker = std::task::Waker::noop();
    let mut commits = Vec::new();
    for number in 0..6 {
        let mut upload =
            block_on(folder.stage(&key(deep_path(number)), Condition::None, Some(1))).unwrap();
        block_on(upload.write(b"x".to_vec())).unwrap();
        let mut commit = upload.commit();
        // Until the first job and, when that has found no folder, until the wait for a permit.
        let mut context = std::task::Context::from_waker(waker);
        for _ in 0..2 {
            assert!(commit.as_mut().poll(&mut context).is_pending());
            block_on(pool.run(|| ())).unwrap();
        }
        commits.push(commit);
    }
    assert_eq!(disk.wait_for_held(1, TIMEOUT), 1);
    drop(commits);
    disk.hold_folders(false);
    let others = folder.clone();
    with_timeout(move || put(&others, "new/folder/a", b"x").unwrap());
    // The running jobs finish their step and undo it. No other job has begun.
    let root = disk.root().unwrap();
    let end = Instant::now() + TIMEOUT;
    while root.entry_metadata(b"0").is_ok() {
        assert!(Instant::now() < end, "a folder was not removed");
        block_on(pool.run(|| ())).unwrap();
    }
    for number in 1..6 {
        assert!(root.entry_metadata(number.to_string().as_bytes()).is_err());
    }
    assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0);
}

/// A put that is dropped between two steps leaves no folder, neither of the running step nor of
/// earlier steps, whose folders are not empty while the running step creates more.
#[test]
fn puts_dropped_between_steps_leave_nothing() {
    for steps in 1..4 {
        let disk = SimFs::new(1);
        let pool = BlockingPool::threads(4, 1024);
        let options = FolderOptions::default();
        let folder = Folder::on(disk.root().unwrap(), pool.clone(), options).unwrap();
        let mut upload =
            block_on(folder.stage(&key(deep_path(0)), Condition::None, Some(1))).unwrap();
        block_on(upload.write(b"x".to_vec())).unwrap();
        let mut commit = upload.commit();
        let root = disk.root().unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // `steps` steps of eight folders complete, and a part of the next one.
        disk.hold_folders_after(steps * 8 + 3);
        let end = Instant::now() + TIMEOUT;
        while disk.wait_for_held(1, Duration::from_millis(1)) == 0 {
            assert!(Instant::now() < end, "step {steps} does not begin");
            assert!(commit.as_mut().poll(&mut context).is_pending());
        }
        drop(commit);
        block_on(pool.run(|| ())).unwrap();
        disk.hold_folders(false);
        while root.entry_metadata(b"0").is_ok() {
            assert!(
                Instant::now() < end,
                "folders were not removed after step {steps}"
            );
            block_on(pool.run(|| ())).unwrap();
        }
        assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0);
    }
}
