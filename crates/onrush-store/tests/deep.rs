//! Puts that make many folders on a disk that takes long: they hold up neither other keys nor the
//! pool. The disk is simulated, and lets no folder be made until it is told to.

mod common;

use common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Only for what never comes.
const PATIENCE: Duration = Duration::from_secs(30);

const THREADS: usize = 8;
const DEEP: usize = 40;

fn deep(number: usize) -> String {
    format!("{number}/{}", ["x"; 63].join("/"))
}

/// Does something on a thread of its own; fails when it does not end.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(PATIENCE).expect("it is held up")
}

#[test]
fn other_keys_and_the_pool_are_free_while_folders_are_made() {
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
                thread::spawn(move || put(&folder, &deep(number), b"deep"))
            })
            .collect();
        assert_eq!(
            disk.wait_for_held(2, PATIENCE),
            2,
            "a quarter of the threads"
        );

        // So many keys that every stripe of the locks is met by some.
        let others = folder.clone();
        in_time(move || {
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
        // The key of a deep put is as free: nothing is locked while its folders are made.
        let others = folder.clone();
        in_time(move || assert_eq!(delete(&others, &deep(0)), Err(StoreError::NotFound)));
        let held = disk.wait_for_held(3, Duration::from_millis(50));
        assert_eq!(held, 2, "never more, however many want to");

        disk.hold_folders(false);
        for put in deep_puts {
            put.join().unwrap().unwrap();
        }
        for number in 0..DEEP {
            assert_eq!(get(&folder, &deep(number)).unwrap(), b"deep");
        }
    }
}

/// Who gives up while waiting for its turn leaves nothing, and holds up nobody.
#[test]
fn puts_dropped_while_their_folders_are_made_leave_nothing() {
    let disk = SimFs::new(1);
    let pool = BlockingPool::threads(4, 1024);
    let folder = Folder::on(disk.root().unwrap(), pool.clone(), FolderOptions::default()).unwrap();
    disk.hold_folders(true);
    let waker = std::task::Waker::noop();
    let mut commits = Vec::new();
    for number in 0..6 {
        let mut upload = block_on(folder.stage(&key(deep(number)), Some(1))).unwrap();
        block_on(upload.write(b"x".to_vec())).unwrap();
        let mut commit = upload.commit(Condition::None);
        // To the first job and, when that has found no folder, to the gate.
        let mut context = std::task::Context::from_waker(waker);
        for _ in 0..2 {
            assert!(commit.as_mut().poll(&mut context).is_pending());
            block_on(pool.run(|| ())).unwrap();
        }
        commits.push(commit);
    }
    assert_eq!(disk.wait_for_held(1, PATIENCE), 1);
    drop(commits);
    disk.hold_folders(false);
    let others = folder.clone();
    in_time(move || put(&others, "new/folder/a", b"x").unwrap());
    // What was at work makes its step and takes it back; nothing else was begun.
    let root = disk.root().unwrap();
    let end = Instant::now() + PATIENCE;
    while root.entry_metadata(b"0").is_ok() {
        assert!(Instant::now() < end, "a folder stays");
        block_on(pool.run(|| ())).unwrap();
    }
    for number in 1..6 {
        assert!(root.entry_metadata(number.to_string().as_bytes()).is_err());
    }
    assert_eq!(staged(&folder, &Ground::Sim(disk.clone())), 0);
}

/// Who gives up in the middle of the folders leaves none of them, neither those of the step that is
/// at work nor those of steps before it, which are not empty while that step makes more.
#[test]
fn puts_dropped_between_the_steps_leave_nothing() {
    for steps in 1..4 {
        let disk = SimFs::new(1);
        let pool = BlockingPool::threads(4, 1024);
        let options = FolderOptions::default();
        let folder = Folder::on(disk.root().unwrap(), pool.clone(), options).unwrap();
        let mut upload = block_on(folder.stage(&key(deep(0)), Some(1))).unwrap();
        block_on(upload.write(b"x".to_vec())).unwrap();
        let mut commit = upload.commit(Condition::None);
        let root = disk.root().unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // So many steps of eight folders are made, and a part of the next one.
        disk.hold_folders_after(steps * 8 + 3);
        let end = Instant::now() + PATIENCE;
        while disk.wait_for_held(1, Duration::from_millis(1)) == 0 {
            assert!(Instant::now() < end, "no folder of step {steps}");
            assert!(commit.as_mut().poll(&mut context).is_pending());
        }
        drop(commit);
        block_on(pool.run(|| ())).unwrap();
        disk.hold_folders(false);
        while root.entry_metadata(b"0").is_ok() {
            assert!(Instant::now() < end, "folders stay after step {steps}");
            block_on(pool.run(|| ())).unwrap();
        }
        assert_eq!(staged(&folder, &Ground::Sim(disk.clone())), 0);
    }
}
