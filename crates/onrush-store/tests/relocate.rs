//! Copies and renames in a folder, on each kind of disk.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::driver::{Config, Preference, choose};
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_rt::worker::{Pools, Worker};
use onrush_store::*;
use std::future::poll_fn;

fn how(from: &str, to: &str, to_condition: Condition) -> Relocation {
    Relocation {
        to_condition,
        ..relocation(from, to)
    }
}

fn copy(folder: &Folder, how: Relocation) -> Result<Committed> {
    block_on(folder.copy(how))
}

fn rename(folder: &Folder, how: Relocation) -> Result<Committed> {
    block_on(folder.rename(how, Kind::File))
}

fn rename_folder(folder: &Folder, from: &str, to: &str) -> Result<Committed> {
    block_on(folder.rename(how(from, to, Condition::None), Kind::Directory))
}

fn backends() -> [Backend; 4] {
    [
        Backend::real(),
        Backend::memory(),
        Backend::sim(),
        Backend::plain(),
    ]
}

#[test]
fn copies_have_the_content_and_the_metadata() {
    for backend in backends() {
        let folder = backend.folder();
        for bytes in [0, 1, 20_000, 700_000] {
            put(&folder, "a", &body(bytes)).unwrap();
            let copied = copy(&folder, how("a", "new/b", Condition::None)).unwrap();
            assert_eq!(
                (copied.created, copied.meta.size),
                (bytes == 0, bytes as u64)
            );
            assert_eq!(get_both(&folder, "new/b"), get_both(&folder, "a"));
        }
        let before = get(&folder, "new/b");
        let refused = copy(&folder, how("a", "new/b", Condition::Absent));
        assert_eq!(refused.err(), Some(StoreError::PreconditionFailed));
        let missing = copy(&folder, how("none", "new/b", Condition::None));
        assert_eq!(missing.err(), Some(StoreError::NotFound));
        let onto_folder = copy(&folder, how("a", "new", Condition::None));
        assert_eq!(onto_folder.err(), Some(StoreError::IsDirectory));
        let wrong = Relocation {
            from_condition: Condition::Absent,
            ..how("a", "c", Condition::None)
        };
        assert_eq!(
            copy(&folder, wrong).err(),
            Some(StoreError::PreconditionFailed)
        );
        assert_eq!(get(&folder, "new/b"), before);
        assert_eq!(staged(&folder, &backend), 0);
    }
}

#[test]
fn objects_are_renamed() {
    for backend in backends() {
        let folder = backend.folder();
        let put_a = put(&folder, "a", b"first").unwrap();
        let generations = || [folder.generation(&key("a")), folder.generation(&key("x/b"))];
        let before = generations();
        let renamed = rename(&folder, how("a", "x/b", Condition::None)).unwrap();
        assert!(renamed.created && renamed.meta.version == put_a.meta.version);
        assert_ne!((generations()[0], generations()[1]), (before[0], before[1]));
        assert_eq!(get(&folder, "a"), Err(StoreError::NotFound));
        assert_eq!(get(&folder, "x/b").as_deref(), Ok(&b"first"[..]));
        put(&folder, "a", b"second").unwrap();
        let refused = rename(&folder, how("a", "x/b", Condition::Absent));
        assert_eq!(refused.err(), Some(StoreError::PreconditionFailed));
        let stale = Relocation {
            from_condition: Condition::Versions(vec![put_a.meta.version]),
            ..how("a", "x/b", Condition::None)
        };
        assert_eq!(
            rename(&folder, stale).err(),
            Some(StoreError::PreconditionFailed)
        );
        let replaced = rename(&folder, how("a", "x/b", Condition::Present)).unwrap();
        assert!(!replaced.created);
        assert_eq!(get(&folder, "x/b").as_deref(), Ok(&b"second"[..]));
        for (from, to, error) in [
            ("a", "b", StoreError::NotFound),
            ("x", "b", StoreError::IsDirectory),
            ("x/b", "x/b", StoreError::Forbidden),
            ("x/b", ".onrush/b", StoreError::Forbidden),
            ("x/b", "x/b/c", StoreError::NotDirectory),
        ] {
            let result = rename(&folder, how(from, to, Condition::None));
            assert_eq!(result.err(), Some(error), "{from} {to}");
        }
        assert_eq!(get(&folder, "x/b").as_deref(), Ok(&b"second"[..]));
        assert_eq!(
            list(&folder, None, ListHow::default()).map(|page| names(&page).len()),
            Ok(1)
        );
    }
}

#[test]
fn folders_are_renamed_with_all_beneath() {
    for backend in backends() {
        let folder = backend.folder();
        put(&folder, "a/b/c", b"deep").unwrap();
        put(&folder, "full/x", b"x").unwrap();
        let generation = folder.generation(&key("a/b/c"));
        assert!(rename_folder(&folder, "a", "new/d").unwrap().created);
        assert_ne!(folder.generation(&key("a/b/c")), generation);
        assert_eq!(get(&folder, "new/d/b/c").as_deref(), Ok(&b"deep"[..]));
        assert_eq!(get(&folder, "a/b/c"), Err(StoreError::NotFound));
        let full = rename_folder(&folder, "new/d", "full");
        let not_empty = match backend.lacks(&[Ability::NotEmpty]) {
            true => StoreError::OtherFileSystem,
            false => StoreError::NotEmpty,
        };
        assert_eq!(full.err(), Some(not_empty));
        assert_eq!(
            rename_folder(&folder, "full/x", "y").err(),
            Some(StoreError::NotFound)
        );
        assert_eq!(
            rename_folder(&folder, "new", "full/x").err(),
            Some(StoreError::Conflict)
        );
        // A put beneath the new name is durable, although its folders were synced as others.
        put(&folder, "new/d/b/e", b"next").unwrap();
        assert_eq!(get(&folder, "new/d/b/e").as_deref(), Ok(&b"next"[..]));
    }
}

/// Two renames that exchange names, and many more, do not wait for each other for ever.
#[test]
fn concurrent_renames_end() {
    let backend = Backend::real();
    let folder = backend.folder();
    put(&folder, "a", b"1").unwrap();
    put(&folder, "b", b"2").unwrap();
    std::thread::scope(|scope| {
        for (from, to) in [("a", "b"), ("b", "a"), ("a", "c"), ("c", "b")] {
            let folder = folder.clone();
            scope.spawn(move || {
                for _ in 0..40 {
                    let _ = rename(&folder, how(from, to, Condition::None));
                    let _ = put(&folder, from, from.as_bytes());
                }
            });
        }
    });
    let page = list(&folder, None, ListHow::default()).unwrap();
    assert!(!names(&page).is_empty());
}

/// A power cut or an error at any operation of a copy leaves the old object or the whole copy.
#[test]
fn copies_are_never_torn() {
    let prepare = |seed| {
        let disk = SimFs::new(seed);
        let root = disk.root().unwrap();
        let folder = Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap();
        put(&folder, "a", &body(300_000)).unwrap();
        put(&folder, "b", b"old").unwrap();
        (disk, folder)
    };
    for seed in 0..4 {
        let (disk, folder) = prepare(seed);
        let before = disk.operations();
        copy(&folder, how("a", "b", Condition::None)).unwrap();
        let count = disk.operations() - before;
        for number in 0..=count {
            for cut in [None, Some(Cut::Before), Some(Cut::During), Some(Cut::After)] {
                if cut.is_none() && number == count {
                    continue; // After the last operation.
                }
                let (disk, mut folder) = prepare(seed);
                let at = disk.operations() + number;
                match cut {
                    Some(cut) => disk.power_cut_at(at, cut),
                    None => disk.fail_at(at, 5),
                }
                let result = copy(&folder, how("a", "b", Condition::None));
                if cut.is_some() {
                    disk.power_cut();
                    drop(folder);
                    disk.restart();
                    let (root, pool) = (disk.root().unwrap(), BlockingPool::inline());
                    folder = Folder::on(root, pool, FolderOptions::default()).unwrap();
                }
                let found = get(&folder, "b").unwrap();
                let is_new = found == body(300_000);
                assert!(is_new || found == b"old", "{seed} {number} {cut:?}: torn");
                assert!(is_new || result.is_err(), "{seed} {number} {cut:?}: lost");
                assert!(get(&folder, "a").unwrap() == body(300_000));
            }
        }
    }
}

/// `rename(2)` does nothing if both names are of one file.
#[test]
fn names_of_one_file() {
    let backend = Backend::real();
    if backend.lacks(&[Ability::Symlinks, Ability::HardLinks]) {
        return;
    }
    let folder = backend.folder();
    put(&folder, "x/a", b"one").unwrap();
    put(&folder, "x/y/b", b"two").unwrap();
    backend.symlink("link", "x");
    for (from, to) in [("x/a", "link/a"), ("link/a", "x/a")] {
        let refused = rename(&folder, how(from, to, Condition::None));
        assert_eq!(refused.err(), Some(StoreError::Forbidden), "{from}");
    }
    let refused = rename_folder(&folder, "x/y", "link/y");
    assert_eq!(refused.err(), Some(StoreError::Forbidden));
    assert_eq!(get(&folder, "x/a").as_deref(), Ok(&b"one"[..]));
    assert_eq!(get(&folder, "x/y/b").as_deref(), Ok(&b"two"[..]));
    let path = |name: &[u8]| backend.path(name).unwrap();
    std::fs::hard_link(path(b"x/a"), path(b"c")).unwrap();
    let renamed = rename(&folder, how("x/a", "c", Condition::None)).unwrap();
    assert!(!renamed.created);
    assert_eq!(get(&folder, "x/a"), Err(StoreError::NotFound));
    assert_eq!(get(&folder, "c").as_deref(), Ok(&b"one"[..]));
}

/// Another program uses space while a large object is copied.
#[test]
fn a_copy_keeps_the_space_free_that_is_to_stay_free() {
    let disk = SimFs::new(1);
    let backend = Backend::Sim(disk.clone());
    let folder = backend.folder_with(FolderOptions {
        min_free_bytes: 1 << 20,
        ..FolderOptions::default()
    });
    put(&folder, "a", &body(16 << 20)).expect("room");
    disk.disk_full_after(Some(32 << 20));
    let config = Config::default();
    let choice = choose(Preference::Auto, &config).expect("a driver");
    let mut worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
    let mut copying = folder.copy(how("a", "b", Condition::None));
    let copied = worker.block_on(poll_fn(|cx| {
        let polled = copying.as_mut().poll(cx);
        if polled.is_pending() {
            disk.disk_full_after(Some(1 << 20));
        }
        polled
    }));
    let full = StoreError::Full(std::io::ErrorKind::StorageFull.into());
    assert_eq!(copied.expect("a worker").err(), Some(full));
    assert_eq!(staged(&folder, &backend), 0);
}
