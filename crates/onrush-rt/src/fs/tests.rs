//! Tests of the same operations on the kernel, on the kernel without `openat2`, and on the
//! simulator; then tests of features that only one of them has.

use super::attribute_at::SYS_GETXATTRAT;
use super::sim::{Cut, SimFs};
use super::*;
use std::collections::BTreeSet;
use std::path::PathBuf;
use testing::TempDir;

fn on_all(test: impl Fn(&Dir)) {
    for beneath in [Beneath::Auto, Beneath::Walk] {
        let temp = TempDir::new();
        test(&Dir::open_root_with(temp.path(), beneath).unwrap());
    }
    let tmpfs = PathBuf::from("/dev/shm"); // has no RWF_NOWAIT
    if tmpfs.is_dir() {
        let temp = TempDir::beneath(&tmpfs);
        test(&Dir::open_root(temp.path()).unwrap());
    }
    test(&SimFs::new(1).root().unwrap());
}

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
}

fn create(dir: &Dir, path: &[u8], content: &[u8]) -> File {
    let file = dir.open(path, OpenHow::create_new(0o644)).unwrap();
    file.write_all_at(content, 0).unwrap();
    file
}

fn names(dir: &Dir) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    dir.read_dir(&mut |name, _| {
        all.push(name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    all.sort();
    all
}

#[test]
fn the_access_list_of_a_name_is_that_of_its_file() {
    let temp = TempDir::new();
    let dir = Dir::open_root(temp.path()).unwrap();
    if !dir.keeps_access_lists() {
        println!("skipped: the file system has no access control lists");
        return;
    }
    let file = create(&dir, b"file", b"");
    create(&dir, b"plain", b"");
    std::os::unix::fs::symlink("file", temp.path().join("link")).unwrap();
    // More users than a short list has.
    let entry = |tag: u16, rights: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    };
    let list = |users: u32| {
        let mut list = [2, 0, 0, 0].to_vec();
        list.extend(entry(0x01, 6, u32::MAX));
        (1..=users).for_each(|user| list.extend(entry(0x02, 4, user)));
        for (tag, rights) in [(0x04, 4), (0x10, 6), (0x20, 0)] {
            list.extend(entry(tag, rights, u32::MAX));
        }
        list
    };
    for users in [1, 100] {
        file.set_access_list(&list(users)).unwrap();
        let read = match dir.entry_access_list(b"file") {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                println!("skipped: the kernel has no getxattrat");
                return;
            }
            read => read.unwrap(),
        };
        assert_eq!(read, Some(list(users)));
        assert_eq!(file.access_list().unwrap(), read);
    }
    assert_eq!(dir.entry_access_list(b"plain").unwrap(), None);
    assert_eq!(
        dir.entry_access_list(b"link").unwrap(),
        None,
        "not followed"
    );
    assert_errno(dir.entry_access_list(b"missing"), libc::ENOENT);
}

#[test]
fn a_refused_call_for_the_access_list_of_a_name_is_enosys() {
    let name = "a_refused_call_for_the_access_list_of_a_name_is_enosys";
    if testing::child::elsewhere(module_path!(), name) {
        return;
    }
    let temp = TempDir::new();
    let dir = Dir::open_root(temp.path()).unwrap();
    create(&dir, b"file", b"");
    testing::seccomp::refuse(&[(SYS_GETXATTRAT, libc::EPERM)]).unwrap();
    for _ in 0..2 {
        assert_errno(dir.entry_access_list(b"file"), libc::ENOSYS);
    }
}

#[test]
fn files_hold_what_is_written() {
    on_all(|root| {
        let file = create(root, b"a", b"hello");
        assert_errno(root.open(b"a", OpenHow::create_new(0o644)), libc::EEXIST);
        file.write_all_at(b"world", 10).unwrap();
        let mut buf = [1; 20];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 15);
        assert_eq!(&buf[..15], b"hello\0\0\0\0\0world");
        let mut vec = Vec::with_capacity(64);
        assert_eq!(file.read_to_vec(&mut vec, 3, 1).unwrap(), 3);
        assert_eq!(file.read_to_vec(&mut vec, usize::MAX, 10).unwrap(), 5);
        assert_eq!(file.read_to_vec(&mut vec, 9, 15).unwrap(), 0);
        assert_eq!(vec, b"ellworld");
        file.set_len(2).unwrap();
        file.set_modified(-1_500_000_001).unwrap();
        let found = root.metadata(b"a").unwrap();
        assert_eq!(found, file.metadata().unwrap());
        assert_eq!((found.kind, found.size), (FileKind::File, 2));
        assert_eq!((found.modified_ns, found.nlink), (-1_500_000_001, 1));
        file.allocate(1 << 16).unwrap();
        assert_eq!(file.metadata().unwrap().size, 2);
        file.sync_data().unwrap();
        file.sync().unwrap();
        file.start_writeback(0, 2);
        file.advise_sequential();
        file.advise_needed(0, 2);
        file.advise_needed(0, 0);
        let reader = root.open(b"a", OpenHow::READ).unwrap();
        assert_errno(reader.write_at(b"x", 0), libc::EBADF);
        assert!(root.free_bytes().unwrap() > 0 && root.now_ns() > 0);
        assert_eq!(root.boot_id().unwrap().len(), 36);
        assert_eq!(root.boot_id().unwrap(), root.boot_id().unwrap());
    });
}

/// Programs with libfuse 2 ignore a change of one of both times.
#[test]
fn the_time_of_the_last_access_is_set_with_that_of_the_modification() {
    let temp = TempDir::new();
    let root = Dir::open_root(temp.path()).unwrap();
    let file = create(&root, b"a", b"content");
    file.set_modified(1_500_000_000_123_456_789).unwrap();
    let found = std::fs::metadata(temp.path().join("a")).unwrap();
    assert_eq!(found.accessed().unwrap(), found.modified().unwrap());
}

/// The kernel's own read-ahead, of a plain read, would bring more: up to 8 MiB on some disks.
#[test]
fn what_is_needed_is_read_and_nothing_behind_it() {
    const NEEDED_BYTES: u64 = 256 * 1024;
    let temp = TempDir::new();
    let root = Dir::open_root(temp.path()).unwrap();
    create(&root, b"a", b"").set_len(64 << 20).unwrap();
    let file = root.open(b"a", OpenHow::READ).unwrap();
    file.advise_needed(0, NEEDED_BYTES);
    let mut piece = vec![1; 64 * 1024];
    for at in (0..NEEDED_BYTES).step_by(piece.len()) {
        assert_eq!(file.read_at(&mut piece, at).unwrap(), piece.len());
    }
    assert!(!file.is_resident(NEEDED_BYTES, 4096));
}

#[test]
fn what_is_cached_is_read_at_once() {
    on_all(|root| {
        create(root, b"a", &[7; 100_000]);
        let file = root.open(b"a", OpenHow::READ).unwrap();
        assert!(file.is_resident(0, 100_000) && file.is_resident(99_999, 1));
        let mut buf = [0; 10];
        assert_eq!(file.try_read_at(&mut buf, 99_995).unwrap(), 5);
        let mut vec = Vec::with_capacity(64);
        assert_eq!(file.try_read_to_vec(&mut vec, 10, 0).unwrap(), 10);
        assert_eq!(vec, [7; 10]);
        match root.open_cached(b"a") {
            Ok(file) => assert_eq!(file.metadata().unwrap().size, 100_000),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    });
}

#[test]
fn directories() {
    on_all(|root| {
        root.create_dir(b"d", 0o755).unwrap();
        assert_errno(root.create_dir(b"d", 0o755), libc::EEXIST);
        let d = root.open_dir(b"d").unwrap();
        create(&d, b"one", b"1");
        create(root, b"d/two", b"22");
        assert_eq!(names(&d), [&b"one"[..], b"two"]);
        assert_eq!(names(root), [b"d"]);
        assert_eq!(names(&root.open_dir(b".").unwrap()), [b"d"]);
        assert_errno(root.remove_dir(b"d"), libc::ENOTEMPTY);
        assert_errno(d.rename(b"one", &d, b"two", true), libc::EEXIST);
        d.rename(b"one", root, b"three", true).unwrap();
        root.rename(b"three", &d, b"two", false).unwrap();
        assert_eq!(root.metadata(b"d/two").unwrap().size, 1);
        assert_errno(root.open(b"d/two/x", OpenHow::READ), libc::ENOTDIR);
        assert_errno(root.open_dir(b"d/two"), libc::ENOTDIR);
        assert_errno(root.open(b"none", OpenHow::READ), libc::ENOENT);
        assert_eq!(
            root.open(b"d", OpenHow::READ)
                .unwrap()
                .metadata()
                .unwrap()
                .kind,
            FileKind::Directory
        );
        d.unlink(b"two").unwrap();
        d.sync().unwrap();
        root.remove_dir(b"d").unwrap();
        assert_errno(d.open(b"late", OpenHow::create_new(0o644)), libc::ENOENT);
        for bad in [&b""[..], b".", b"..", b"a/b", b"/"] {
            assert_errno(root.create_dir(bad, 0o755), libc::EINVAL);
            assert_errno(root.unlink(bad), libc::EINVAL);
        }
    });
}

#[test]
fn no_path_leads_out() {
    on_all(|root| {
        root.create_dir(b"d", 0o755).unwrap();
        let d = root.open_dir(b"d").unwrap();
        create(root, b"outside", b"x");
        for bad in [&b"../outside"[..], b"/etc/passwd", b".."] {
            assert_errno(d.open(bad, OpenHow::READ), libc::EXDEV);
            assert_errno(d.metadata(bad), libc::EXDEV);
            assert_errno(d.open(bad, OpenHow::create_new(0o644)), libc::EXDEV);
        }
        assert_errno(d.open(b"", OpenHow::READ), libc::ENOENT);
        assert!(d.open(b"a\0b", OpenHow::READ).is_err());
    });
}

#[test]
fn links_and_pipes() {
    for beneath in [Beneath::Auto, Beneath::Walk] {
        let temp = TempDir::new();
        let root = Dir::open_root_with(temp.path(), beneath).unwrap();
        root.create_dir(b"d", 0o755).unwrap();
        create(&root, b"d/file", b"x");
        for (link, target) in [
            ("in", "d/file"),
            ("dir", "d"),
            ("out", "/etc"),
            ("d/up", "../.."),
        ] {
            std::os::unix::fs::symlink(target, temp.path().join(link)).unwrap();
        }
        assert_eq!(root.entry_metadata(b"in").unwrap().kind, FileKind::Symlink);
        let pipe = temp.path().join("pipe");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(pipe)
                .status()
                .unwrap()
                .success()
        );
        // Neither hangs, though the other end is not open.
        let file = root.open(b"pipe", OpenHow::READ).unwrap();
        assert_eq!(file.metadata().unwrap().kind, FileKind::Special);
        drop(file);
        assert_errno(
            root.open(
                b"pipe",
                OpenHow {
                    write: true,
                    read: false,
                    ..OpenHow::READ
                },
            ),
            libc::ENXIO,
        );
        assert_eq!(root.follows_links(), beneath == Beneath::Auto);
        assert_eq!(
            root.open(b"in", OpenHow::READ).is_ok(),
            root.follows_links()
        );
        if beneath == Beneath::Auto {
            assert_eq!(
                root.open(b"in", OpenHow::READ)
                    .unwrap()
                    .metadata()
                    .unwrap()
                    .size,
                1
            );
            assert_eq!(root.metadata(b"dir/file").unwrap().kind, FileKind::File);
            assert_errno(root.open(b"out/passwd", OpenHow::READ), libc::EXDEV);
            assert_errno(root.metadata(b"d/up"), libc::EXDEV);
            // A rename of another process may disturb a lookup that does not wait.
            let errno = |opened: &io::Result<File>| opened.as_ref().err()?.raw_os_error();
            let mut attempts = (0..1000).map(|_| root.open_cached(b"out"));
            let opened = attempts.find(|opened| errno(opened) != Some(libc::EAGAIN));
            let opened = opened.unwrap();
            assert_errno(opened, libc::EXDEV);
        } else {
            assert_errno(root.open(b"in", OpenHow::READ), libc::ELOOP);
            assert_errno(root.open(b"dir/file", OpenHow::READ), libc::ENOTDIR);
            assert_errno(root.open_dir(b"dir"), libc::ENOTDIR);
            assert_errno(root.open(b"out/passwd", OpenHow::READ), libc::ENOTDIR);
            assert_eq!(
                root.open_cached(b"d").unwrap_err().kind(),
                io::ErrorKind::WouldBlock
            );
            assert_eq!(
                root.open(b"./d//file", OpenHow::READ)
                    .unwrap()
                    .metadata()
                    .unwrap()
                    .size,
                1
            );
        }
    }
}

#[test]
fn locks_exclude() {
    on_all(|root| {
        let (one, two) = (root.open_dir(b".").unwrap(), root.open_dir(b".").unwrap());
        one.lock_shared().unwrap();
        two.lock_shared().unwrap();
        assert_eq!(
            one.lock_exclusive().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(two);
        one.lock_exclusive().unwrap();
        let two = root.open_dir(b".").unwrap();
        assert_eq!(
            two.lock_shared().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(one);
        two.lock_exclusive().unwrap();
    });
}

#[test]
fn many_entries_and_an_early_end() {
    on_all(|root| {
        for i in 0..3000 {
            root.create_dir(format!("a rather long name {i}").as_bytes(), 0o755)
                .unwrap();
        }
        assert_eq!(names(root).len(), 3000);
        let mut seen = 0;
        root.read_dir(&mut |_, kind| {
            assert!(matches!(kind, None | Some(FileKind::Directory)));
            seen += 1;
            if seen == 10 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        assert_eq!(seen, 10);

        let (mut all, mut steps) = (BTreeSet::new(), 0);
        let mut read = root.names().unwrap();
        let mut one = |name: &[u8], _: Option<FileKind>| {
            assert!(all.insert(name.to_vec()), "each once");
            ControlFlow::Continue(())
        };
        while read.read_some(&mut one).unwrap() {
            steps += 1;
        }
        assert!(steps > 2, "{steps} steps");
        assert_eq!(all.into_iter().collect::<Vec<_>>(), names(root));
    });
}

#[test]
fn residence_by_probes_agrees() {
    let temp = TempDir::new();
    let root = Dir::open_root(temp.path()).unwrap();
    let file = create(&root, b"a", &[1; 1 << 20]);
    let FileInner::Kernel(file) = &file.inner else {
        unreachable!()
    };
    let is_byte_cached = |at| matches!(file.try_read_at(&mut [0], at), Ok(1));
    let by_probes = |first, last| resident::by_probes(first, last, 4096, is_byte_cached);
    assert!(by_probes(0, (1 << 20) - 1));
    assert!(by_probes(5000, 5000));
    assert!(!by_probes(0, 1 << 20), "the last byte is past the end");
}

#[test]
fn attributes_belong_to_files() {
    on_all(|dir| {
        assert!(dir.keeps_attributes());
        let file = create(dir, b"a", b"");
        assert_eq!(file.attribute(c"user.x", 10).unwrap(), None);
        file.set_attribute(c"user.x", b"12345").unwrap();
        file.set_attribute(c"user.empty", b"").unwrap();
        let file = dir.open(b"a", OpenHow::READ).unwrap();
        let value = |name, len_max| file.attribute(name, len_max);
        assert_eq!(value(c"user.x", 5).unwrap(), Some(b"12345".to_vec()));
        assert_eq!(value(c"user.empty", 5).unwrap(), Some(Vec::new()));
        assert_errno(value(c"user.x", 4), libc::ERANGE);
        assert_eq!(value(c"user.y", 5).unwrap(), None);
        // Long ones are read in another way.
        for len in [255, 256, 257, 2000] {
            let long = vec![b'x'; len];
            file.set_attribute(c"user.long", &long).unwrap();
            assert_eq!(value(c"user.long", len).unwrap(), Some(long));
            assert_errno(value(c"user.long", len - 1), libc::ERANGE);
        }
        file.set_attribute(c"user.x", b"new").unwrap();
        assert_eq!(value(c"user.x", 5).unwrap(), Some(b"new".to_vec()));
        assert!(
            dir.keeps_attributes(),
            "again, and nothing stayed of the first time"
        );
    });
    let disk = SimFs::new(1);
    disk.set_keeps_attributes(false);
    let root = disk.root().unwrap();
    assert!(!root.keeps_attributes());
    assert_errno(
        create(&root, b"a", b"").set_attribute(c"user.x", b""),
        libc::EOPNOTSUPP,
    );
}

#[test]
fn attributes_are_durable_when_the_file_was_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let disk = SimFs::new(seed);
        let root = disk.root().unwrap();
        let file = create(&root, b"a", b"");
        file.set_attribute(c"user.kept", b"1").unwrap();
        file.sync().unwrap();
        root.sync().unwrap();
        file.set_attribute(c"user.kept", b"2").unwrap();
        file.set_attribute(c"user.perhaps", b"1").unwrap();
        disk.power_cut();
        disk.restart();
        let file = disk.root().unwrap().open(b"a", OpenHow::READ).unwrap();
        let kept = file.attribute(c"user.kept", 9).unwrap().expect("synced");
        let perhaps = file.attribute(c"user.perhaps", 9).unwrap();
        seen.insert((kept, perhaps.is_some()));
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn rights_are_durable_when_the_file_was_synced() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        for is_synced in [false, true] {
            let disk = SimFs::new(seed);
            let root = disk.root().unwrap();
            let file = create(&root, b"a", b"");
            file.set_mode(0o640).unwrap();
            file.sync().unwrap();
            root.sync().unwrap();
            file.set_mode(0o600).unwrap();
            file.set_owner(Some(1), Some(2)).unwrap();
            if is_synced {
                file.sync().unwrap();
            }
            disk.power_cut();
            disk.restart();
            let found = disk.root().unwrap().metadata(b"a").unwrap();
            seen.insert((is_synced, found.mode & 0o777, found.user, found.group));
        }
    }
    let (old, new) = ((false, 0o640, 0, 0), (false, 0o600, 1, 2));
    assert_eq!(seen, BTreeSet::from([old, new, (true, 0o600, 1, 2)]));
}

/// A file that is synced, then changed without a sync, for many seeds: the synced part survives.
#[test]
fn a_power_cut_keeps_what_was_synced_and_some_of_the_rest() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk = SimFs::new(seed);
        let root = disk.root().unwrap();
        let file = create(&root, b"a", &[1; 1024]);
        file.sync().unwrap();
        root.sync().unwrap();
        file.write_all_at(&[2; 1024], 0).unwrap();
        create(&root, b"b", b"").sync().unwrap();
        disk.power_cut();
        assert_errno(file.read_at(&mut [0], 0), libc::EIO);
        assert_errno(disk.root().map(|_| ()), libc::EIO);
        disk.restart();
        assert_errno(root.metadata(b"a"), libc::EIO); // dead for good
        let root = disk.root().unwrap();
        let mut buf = [0; 1024];
        let file = root.open(b"a", OpenHow::READ).unwrap();
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 1024);
        assert!(buf[..512].iter().all(|&b| b == buf[0]), "sectors are whole");
        seen.insert((buf[0], buf[512], root.metadata(b"b").is_ok()));
    }
    assert_eq!(
        seen.len(),
        8,
        "every outcome a disk may have comes up: {seen:?}"
    );
}

#[test]
fn links_and_places() {
    on_all(|root| {
        create(root, b"file", b"content");
        root.create_dir(b"a", 0o755).unwrap();
        let a = root.open_dir(b"a").unwrap();
        a.create_dir(b"b", 0o755).unwrap();
        let b = root.open_dir(b"a/b").unwrap();
        root.link(b"file", &b, b"second").unwrap();
        assert_eq!(b.entry_metadata(b"second").unwrap().nlink, 2);
        assert_errno(root.link(b"file", &b, b"second"), libc::EEXIST);
        assert_errno(root.link(b"a", &b, b"third"), libc::EPERM);
        root.unlink(b"file").unwrap();
        assert_eq!(b.entry_metadata(b"second").unwrap().nlink, 1);
        assert_errno(b.read_link(b"second"), libc::EINVAL);
        for (one, other, expected) in [
            (&b, root, true),
            (&b, &a, true),
            (&b, &b, true),
            (&a, &b, false),
            (root, &a, false),
        ] {
            assert_eq!(one.is_within(other).unwrap(), expected);
        }
        // A folder is never beneath itself.
        assert_errno(root.rename(b"a", &b, b"a", false), libc::EINVAL);
        assert_errno(root.exchange(b"a", &a, b"b"), libc::EINVAL);
    });
}

/// With a journal, a rename between folders is in both or in none.
#[test]
fn a_journal_keeps_renames_whole() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimFs::new(seed);
        disk.set_journaled(true);
        let root = disk.root().unwrap();
        for name in [b"a", b"b"] {
            root.create_dir(name, 0o755).unwrap();
        }
        let (a, b) = (root.open_dir(b"a").unwrap(), root.open_dir(b"b").unwrap());
        create(&a, b"x", b"").sync().unwrap();
        a.sync().unwrap();
        a.rename(b"x", &b, b"y", true).unwrap();
        create(&root, b"later", b"").sync().unwrap();
        if seed % 4 == 0 {
            root.sync().unwrap(); // Also what was changed before.
        }
        disk.power_cut();
        disk.restart();
        let root = disk.root().unwrap();
        let found = [&b"a/x"[..], b"b/y", b"later"].map(|path| root.metadata(path).is_ok());
        assert_ne!(found[0], found[1], "seed {seed}");
        assert!(found[1] || !found[2], "seed {seed}: not in order");
        assert!(found[2] || seed % 4 != 0, "seed {seed}: synced");
        seen.insert(found);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// A sync on one mount says nothing about another one.
#[test]
fn each_mount_has_its_own_journal() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let disk = SimFs::new(seed);
        disk.set_journaled(true);
        let root = disk.root().unwrap();
        root.create_dir(b"d", 0o755).unwrap();
        disk.sync_all();
        disk.mount(b"d").unwrap();
        let mounted = root.open_dir(b"d").unwrap();
        create(&root, b"a", b"").sync().unwrap();
        create(&mounted, b"b", b"").sync().unwrap();
        mounted.sync().unwrap();
        disk.power_cut();
        disk.restart();
        let root = disk.root().unwrap();
        seen.insert([&b"a"[..], b"d/b"].map(|path| root.metadata(path).is_ok()));
    }
    assert_eq!(seen, BTreeSet::from([[false, true], [true, true]]));
}

#[test]
fn a_failed_sync_forgets() {
    let disk = SimFs::new(3);
    let root = disk.root().unwrap();
    let file = create(&root, b"a", b"data");
    disk.fail_at(disk.operations(), libc::EIO);
    assert_errno(file.sync(), libc::EIO);
    file.sync().unwrap(); // says nothing about what was lost
    disk.fail_at(disk.operations(), libc::EIO);
    assert_errno(root.sync(), libc::EIO);
    root.sync().unwrap();
    assert!(root.metadata(b"a").is_ok());
    disk.power_cut();
    disk.restart();
    assert_eq!(names(&disk.root().unwrap()), [b""; 0]);
}

#[test]
fn faults_hit_the_operation_they_name() {
    let disk = SimFs::new(3);
    let root = disk.root().unwrap();
    let file = create(&root, b"a", b"data"); // operations 0 and 1
    assert_eq!(disk.operations(), 2);
    disk.fail_at(3, libc::ENOSPC);
    file.write_at(b"x", 0).unwrap();
    assert_errno(file.write_at(b"y", 0), libc::ENOSPC);
    assert_eq!(file.write_at(b"z", 0).unwrap(), 1);
    disk.disk_full_after(Some(2));
    assert_eq!(
        file.write_at(b"0123456789", 0).unwrap(),
        6,
        "four bytes were there already"
    );
    assert_errno(file.write_at(b"more", 6), libc::ENOSPC);
    disk.power_cut_at(disk.operations(), Cut::After);
    assert_errno(file.sync(), libc::EIO);
    assert!(disk.is_off());
}

/// Another program has its turn right before an operation, once.
#[test]
fn an_operation_is_interrupted() {
    let disk = SimFs::new(3);
    let root = disk.root().unwrap();
    let other = disk.root().unwrap();
    disk.interrupt_at(1, move || drop(create(&other, b"b", b"data")));
    create(&root, b"a", b""); // operations 0, and 3 after those of the other
    assert_eq!(names(&root), [b"a", b"b"]);
    assert_eq!(root.metadata(b"b").unwrap().size, 4);
    let kept = root.open_dir(b".").unwrap();
    disk.interrupt_at(disk.operations(), move || drop(kept));
    disk.clear_faults();
    assert_errno(root.metadata(b"c"), libc::ENOENT);
}
