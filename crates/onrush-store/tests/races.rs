//! Many threads use one folder: exactly one creates an object, and no object is torn.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::OpenHow;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

fn folder(backend: &Backend) -> Folder {
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    Folder::on(backend.root(), BlockingPool::threads(4, 16), options).unwrap()
}

#[test]
fn only_one_of_many_creates_an_object() {
    let backend = Backend::real();
    let folder = folder(&backend);
    const THREADS: usize = 8;
    for round in 0..50 {
        let winners = AtomicUsize::new(0);
        let start = Barrier::new(THREADS);
        thread::scope(|scope| {
            for me in 0..THREADS {
                let (folder, winners, start) = (&folder, &winners, &start);
                scope.spawn(move || {
                    start.wait();
                    let body = [me as u8; 100];
                    match put_if(folder, &format!("d{round}/x"), &body, Condition::Absent) {
                        Ok(done) => {
                            assert!(done.created);
                            winners.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => assert_eq!(error, StoreError::PreconditionFailed),
                    }
                });
            }
        });
        assert_eq!(winners.into_inner(), 1);
    }
}

#[test]
fn compare_and_swap_loses_no_update() {
    let backend = Backend::real();
    let folder = folder(&backend);
    put(&folder, "n", b"0").unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut done = 0;
                while done < 50 {
                    let object = block_on(folder.get(&key("n"))).unwrap();
                    let text = block_on(object.read(0, 99, Vec::with_capacity(99))).unwrap();
                    let number: u32 = str::from_utf8(&text).unwrap().parse().unwrap();
                    let seen = Condition::Versions(vec![object.meta().version]);
                    match put_if(&folder, "n", (number + 1).to_string().as_bytes(), seen) {
                        Ok(_) => done += 1,
                        Err(error) => assert_eq!(error, StoreError::PreconditionFailed),
                    }
                }
            });
        }
    });
    assert_eq!(get(&folder, "n").unwrap(), b"200");
}

/// Also where the old file gets another name for a moment, because a reader has it open (libfuse).
#[test]
fn an_object_is_there_while_it_is_replaced() {
    let backend = Backend::real();
    let folder = folder(&backend);
    put(&folder, "n", b"0").unwrap();
    let left = AtomicUsize::new(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&left);
            (1..300).for_each(|number: u32| {
                put(&folder, "n", number.to_string().as_bytes()).unwrap();
            });
        });
        let mut last = 0;
        while left.load(Ordering::SeqCst) > 0 {
            let found = get(&folder, "n").expect("it is never deleted");
            let number = str::from_utf8(&found).unwrap().parse().unwrap();
            assert!(number >= last, "{number} after {last}");
            last = number;
            block_on(folder.meta(&key("n"))).expect("it is never deleted");
        }
    });
}

/// A writer that ends, also by a panic.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn readers_see_only_whole_objects() {
    let backend = Backend::real();
    let folder = folder(&backend);
    let whole = |seed: u8| vec![seed; 20_000 + usize::from(seed)];
    put(&folder, "d/x", &whole(0)).unwrap();
    let left = AtomicUsize::new(2);
    thread::scope(|scope| {
        for writer in 0..2 {
            let (folder, left) = (&folder, &left);
            scope.spawn(move || {
                let _ends = Ends(left);
                for round in 0..150 {
                    match put(folder, "d/x", &whole(writer * 100 + round % 100)) {
                        Ok(_) | Err(StoreError::Conflict) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if round % 10 == 9 {
                        // Either may already be gone, or the folder may not be empty.
                        let _ = delete(folder, "d/x");
                        let _ = delete(folder, "d");
                    }
                }
            });
        }
        while left.load(Ordering::SeqCst) > 0 {
            match get(&folder, "d/x") {
                Ok(found) => assert_eq!(found, whole(found[0])),
                Err(error) => assert_eq!(error, StoreError::NotFound),
            }
        }
    });
    put(&folder, "d/x", b"end").unwrap();
    assert_eq!(staged(&folder, &backend), 0);
}

/// Another program deletes the empty folder during every attempt of a put. That is a conflict, not
/// a failure of the disk.
#[test]
fn folder_that_is_deleted_during_each_attempt_is_a_conflict() {
    for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
        let folder = backend.folder();
        put(&folder, "d/x", b"old").unwrap();
        delete(&folder, "d/x").unwrap();
        let (root, deleted) = (backend.root(), Arc::new(AtomicUsize::new(0)));
        let count = deleted.clone();
        folder.set_check_hook(move || {
            count.fetch_add(usize::from(root.remove_dir(b"d").is_ok()), Ordering::SeqCst);
        });
        let response = put_if(&folder, "d/x", b"new", Condition::Absent);
        assert!(deleted.load(Ordering::SeqCst) > 1, "no attack");
        assert!(
            matches!(response, Err(StoreError::Conflict)),
            "{response:?}"
        );
        assert_eq!(staged(&folder, &backend), 0);
        put(&folder, "d/x", b"end").unwrap();
    }
}

/// Another program creates the object at any moment of a put that must create it: between the
/// lookup and the rename as well, it is not replaced.
#[test]
fn a_put_that_must_create_never_replaces_a_foreign_object() {
    const FOREIGN: &[u8] = b"foreign";
    for durability in [Durability::Full, Durability::None] {
        for len in [3, 50_000] {
            let prepare = || {
                let disk = SimFs::new(1);
                let options = FolderOptions {
                    durability,
                    ..FolderOptions::default()
                };
                let pool = BlockingPool::inline();
                let folder = Folder::on(disk.root().unwrap(), pool, options).unwrap();
                (disk, folder)
            };
            let run = |folder: &Folder| put_if(folder, "a", &body(len), Condition::Absent);
            let (disk, folder) = prepare();
            let begin = disk.operations();
            run(&folder).unwrap();
            let mut refused = 0;
            for number in begin..disk.operations() {
                let at = format!("{durability:?}, {len} bytes, operation {number}");
                let (disk, folder) = prepare();
                let root = disk.root().unwrap();
                disk.interrupt_at(number, move || {
                    if let Ok(foreign) = root.open(b"a", OpenHow::create_new(0o644)) {
                        foreign.write_all_at(FOREIGN, 0).unwrap();
                    }
                });
                let result = run(&folder);
                let found = get_both(&folder, "a").unwrap();
                match result {
                    Ok(committed) => {
                        assert!(committed.created, "{at}");
                        assert!(found == (body(len), metadata_of(&body(len))), "{at}");
                    }
                    Err(error) => {
                        assert_eq!(error, StoreError::PreconditionFailed, "{at}");
                        assert_eq!(found, (FOREIGN.to_vec(), Vec::new()), "{at}");
                        refused += 1;
                    }
                }
                assert_eq!(staged(&folder, &Backend::Sim(disk)), 0, "{at}");
            }
            assert!(refused > 2, "{durability:?}, {len} bytes: {refused}");
        }
    }
}

/// NFS and FUSE programs with libfuse say `ESTALE` about a folder that was removed while it is
/// open, where others say `ENOENT`.
#[test]
fn a_stale_folder_is_a_deleted_one() {
    if ::testing::child::elsewhere(module_path!(), "a_stale_folder_is_a_deleted_one") {
        return;
    }
    let backend = Backend::real();
    let folder = Folder::on(
        backend.root(),
        BlockingPool::inline(),
        FolderOptions::default(),
    );
    let folder = folder.unwrap();
    for at in ["d/x", "d/y"] {
        put(&folder, at, b"old").unwrap();
    }
    let refuse = |call| ::testing::seccomp::refuse(&[(call, libc::ESTALE)]).expect("a filter");
    refuse(libc::SYS_renameat2);
    for condition in [Condition::None, Condition::Absent] {
        for (at, len) in [("d/new", 3), ("d/new", 50_000), ("new/x", 3)] {
            let put = put_if(&folder, at, &body(len), condition.clone());
            assert_eq!(put, Err(StoreError::Conflict), "{at} {len}");
        }
    }
    refuse(libc::SYS_unlinkat);
    assert_eq!(delete(&folder, "d/y"), Err(StoreError::NotFound));
    assert_eq!(get(&folder, "d/x").as_deref(), Ok(&b"old"[..]));
    refuse(libc::SYS_openat2);
    assert_eq!(get(&folder, "d/x"), Err(StoreError::NotFound));
    let listed = list(&folder, Some("d"), ListHow::default());
    assert_eq!(listed, Err(StoreError::NotFound));
}
