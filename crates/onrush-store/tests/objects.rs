//! `Folder` as a store: the same tests on a real directory, on tmpfs, and on the simulated disk.

use crate::common::*;
use onrush_rt::fs::{Create, OpenHow};
use onrush_store::*;
use std::future::poll_fn;
use std::io::ErrorKind;

on_all! {
    put_objects_can_be_read
    contents_around_buffer_limits_are_stored
    failed_conditions_change_nothing
    versions_and_generations_change
    delete_removes_objects_and_empty_folders
    sizes_beyond_the_file_limit_are_refused
    metadata_is_stored_with_the_object
    object_that_others_delete_or_create_is_noticed
    read_only_disk_is_reported
    files_of_the_store_are_not_objects
    read_only_store_refuses_changes
    full_disk_is_reported_and_uncached_object_is_read
    readers_keep_a_replaced_object
    truncated_file_ends_its_stream_with_an_error
    files_of_one_time_have_different_versions
}

fn put_objects_can_be_read(backend: &Backend) {
    let folder = backend.folder();
    let _as_any_store: &dyn Store = &folder;
    assert_eq!(get(&folder, "a"), Err(StoreError::NotFound));
    let first = put(&folder, "a", b"one").unwrap();
    assert!(first.created && first.meta.size == 3 && first.meta.kind == Kind::File);
    assert_eq!(get(&folder, "a").unwrap(), b"one");
    let second = put(&folder, "a", b"other").unwrap();
    assert!(!second.created);
    assert_eq!(get(&folder, "a").unwrap(), b"other");
    assert_eq!(block_on(folder.meta(&key("a"))), Ok(second.meta));
    assert_eq!(
        block_on(folder.get(&key("a"))).unwrap().meta(),
        &second.meta
    );
    assert!(put(&folder, "deep/er/and/deeper", b"").unwrap().created);
    assert_eq!(get(&folder, "deep/er/and/deeper").unwrap(), b"");
    assert_eq!(get(&folder, "deep/er"), Err(StoreError::IsDirectory));
    assert_eq!(get(&folder, "a/b"), Err(StoreError::NotFound));
    assert_eq!(staged(&folder, backend), 0);
    if backend.lacks(&[Ability::AnyName]) {
        return;
    }
    let odd = Key::parse(b"\xff\xfe\n").unwrap();
    block_on(async {
        let upload = folder.stage(&odd, Condition::None, None).await.unwrap();
        upload.commit().await.unwrap();
        assert_eq!(folder.get(&odd).await.unwrap().meta().size, 0);
    });
    if let Some(path) = backend.path(odd.as_bytes()) {
        assert!(path.exists());
    }
    assert_eq!(staged(&folder, backend), 0);
}

const ATTEMPTS: usize = 1000;

/// Whether the file system tells which bytes are in the page cache. Overlayfs does not.
fn tells_what_is_cached(backend: &Backend) -> bool {
    let root = backend.root();
    let file = root.open(b"probe", OpenHow::create_new(0o600)).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let tells = (0..ATTEMPTS).any(|_| {
        let mut all = [0; 7];
        assert_eq!(file.read_at(&mut all, 0).unwrap(), 7);
        file.try_read_at(&mut all, 0).is_ok()
    });
    root.unlink(b"probe").unwrap();
    tells
}

fn contents_around_buffer_limits_are_stored(backend: &Backend) {
    let folder = backend.folder();
    for len in [0, 1, 16_383, 16_384, 16_385, 100_000] {
        let body = body(len);
        put(&folder, "announced", &body).unwrap();
        assert_eq!(get(&folder, "announced").unwrap(), body);
        block_on(async {
            let mut upload = folder
                .stage(&key("not"), Condition::None, None)
                .await
                .unwrap();
            for (number, piece) in body.chunks(6000).enumerate() {
                let back = upload.write(piece.to_vec()).await.unwrap();
                // The upload may keep the buffer of the first piece.
                assert!(back.is_empty() && (number == 0 || back.capacity() >= piece.len()));
            }
            assert_eq!(upload.written_bytes(), len as u64);
            upload.commit().await.unwrap();
        });
        assert_eq!(get(&folder, "not").unwrap(), body);
    }
    block_on(async {
        let object = folder.get(&key("not")).await.unwrap();
        let all = body(100_000);
        assert_eq!(
            object
                .read(99_990, 5, Vec::with_capacity(99))
                .await
                .unwrap(),
            all[99_990..][..5]
        );
        let tail = object
            .read(99_990, 99, Vec::with_capacity(99))
            .await
            .unwrap();
        assert_eq!(tail, all[99_990..]);
        let kept = object.read(7, 1, b"kept".to_vec()).await.unwrap();
        assert!(kept.starts_with(b"kept"));
        assert!(
            object
                .read(100_000, 9, Vec::with_capacity(9))
                .await
                .unwrap()
                .is_empty()
        );
        if !tells_what_is_cached(backend) || backend.lacks(&[Ability::Local]) {
            return;
        }
        // The kernel may drop a page at any time, so it is read into the page cache again.
        let mut some = [0; 10];
        let mut found = None;
        for _ in 0..ATTEMPTS {
            let read = object.read(50_000, 10, Vec::with_capacity(10)).await;
            assert_eq!(read.unwrap(), all[50_000..50_010]);
            found = object.local().unwrap().try_read(50_000, &mut some);
            if found.is_some() {
                break;
            }
        }
        assert_eq!(found, Some(Ok(10)));
        assert_eq!(some, all[50_000..50_010]);
    });
}

fn failed_conditions_change_nothing(backend: &Backend) {
    let folder = backend.folder();
    let refused = Err(StoreError::PreconditionFailed);
    assert_eq!(put_if(&folder, "a", b"x", Condition::Present), refused);
    assert_eq!(get(&folder, "a"), Err(StoreError::NotFound));
    let one = put_if(&folder, "a", b"1", Condition::Absent).unwrap();
    assert_eq!(put_if(&folder, "a", b"x", Condition::Absent), refused);
    let two = put_if(
        &folder,
        "a",
        b"2",
        Condition::Versions(vec![one.meta.version]),
    )
    .unwrap();
    let stale = || Condition::Versions(vec![one.meta.version]);
    assert_eq!(put_if(&folder, "a", b"x", stale()), refused);
    assert_eq!(get(&folder, "a").unwrap(), b"2");
    let seen = Condition::unchanged(Some(&two.meta));
    let three = put_if(&folder, "a", b"3", seen.clone()).unwrap();
    assert!(!three.created);
    assert_eq!(put_if(&folder, "a", b"x", seen), refused);
    assert_eq!(get(&folder, "a").unwrap(), b"3");
    let gone = delete_if(&folder, "a", stale());
    assert_eq!(gone, Err(StoreError::PreconditionFailed));
    assert_eq!(put_if(&folder, "new/a", b"x", Condition::Present), refused);
    assert_eq!(
        list(&folder, Some("new"), ListHow::default()),
        Err(StoreError::NotFound)
    );
    delete_if(&folder, "a", Condition::Present).unwrap();
    let gone = delete_if(&folder, "a", Condition::Present);
    assert_eq!(gone, Err(StoreError::PreconditionFailed));
    assert_eq!(staged(&folder, backend), 0);
}

fn versions_and_generations_change(backend: &Backend) {
    let folder = backend.folder();
    let mut seen = std::collections::HashSet::new();
    let mut last = folder.generation(&key("a"));
    let mut last_ns = i64::MIN;
    for _ in 0..200 {
        if let Backend::Sim(disk) = backend {
            disk.set_clock_ns(1_000_000_000); // a clock that stands still or goes back
            disk.sync_all(); // and a disk that reuses an inode
        }
        let done = put(&folder, "a", b"same").unwrap();
        assert!(seen.insert(done.meta.version), "a version was used twice");
        let has_fine_times = !backend.lacks(&[Ability::FineTimes]);
        assert!(
            done.meta.modified_ns > last_ns || !has_fine_times,
            "a time did not increase"
        );
        last_ns = done.meta.modified_ns;
        assert_eq!(block_on(folder.meta(&key("a"))), Ok(done.meta));
        let now = folder.generation(&key("a"));
        assert_ne!(now, last);
        last = now;
    }
    delete(&folder, "a").unwrap();
    assert_ne!(folder.generation(&key("a")), last);
}

fn delete_removes_objects_and_empty_folders(backend: &Backend) {
    let folder = backend.folder();
    assert_eq!(delete(&folder, "a"), Err(StoreError::NotFound));
    let put_meta = put(&folder, "d/e/a", b"x").unwrap().meta;
    assert_eq!(delete(&folder, "d/e"), Err(StoreError::NotEmpty));
    assert_eq!(delete(&folder, "d/e/a"), Ok(put_meta));
    assert_eq!(get(&folder, "d/e/a"), Err(StoreError::NotFound));
    let ask = |at: &str, kind| block_on(folder.delete(&key(at), kind, Condition::None));
    assert_eq!(ask("d/e", Kind::File), Err(StoreError::IsDirectory));
    put(&folder, "d/f", b"").unwrap();
    assert_eq!(ask("d/f", Kind::Directory), Err(StoreError::NotFound));
    assert_eq!(get(&folder, "d/f").unwrap(), b"");
    assert_eq!(delete(&folder, "d/e").unwrap().kind, Kind::Directory);
    assert_eq!(delete(&folder, "d/e/a"), Err(StoreError::NotFound));
    put(&folder, "d/e/a", b"again").unwrap();
    assert_eq!(get(&folder, "d/e/a").unwrap(), b"again");
}

fn sizes_beyond_the_file_limit_are_refused(backend: &Backend) {
    let folder = backend.folder();
    let ask = |bytes| block_on(folder.stage(&key("a"), Condition::None, Some(bytes))).err();
    for bytes in [i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!(ask(bytes), Some(StoreError::TooLarge));
    }
    // A file system need not say how large it is.
    if matches!(backend, Backend::Real(_)) && !backend.lacks(&[Ability::Size]) {
        assert!(matches!(ask(i64::MAX as u64), Some(StoreError::Full(_))));
    }
}

fn metadata_is_stored_with_the_object(backend: &Backend) {
    if backend.lacks(&[Ability::Attributes]) {
        return;
    }
    let folder = backend.folder();
    assert!(folder.keeps_metadata());
    put(&folder, "a", b"first").unwrap();
    assert_eq!(get_both(&folder, "a").unwrap().1, metadata_of(b"first"));
    let too_long = vec![b'x'; METADATA_BYTES_MAX + 1];
    block_on(async {
        let mut upload = folder
            .stage(&key("a"), Condition::None, None)
            .await
            .unwrap();
        let refused = upload.set_metadata(too_long.clone());
        assert_eq!(refused, Err(StoreError::TooLarge));
        upload.write(b"second".to_vec()).await.unwrap();
        upload.commit().await.unwrap();
    });
    let both = get_both(&folder, "a").unwrap();
    assert_eq!(both, (b"second".to_vec(), Vec::new()), "replaced, too");
    block_on(async {
        let mut upload = folder
            .stage(&key("a"), Condition::None, None)
            .await
            .unwrap();
        upload.set_metadata(too_long[1..].to_vec()).unwrap();
        upload.commit().await.unwrap();
    });
    assert_eq!(get_both(&folder, "a").unwrap().1, &too_long[1..]);
    // Other programs can set it, unless it is too long.
    put(&folder, "a", b"third").unwrap();
    let set = |metadata: &[u8]| {
        let file = backend.root().open(b"a", OpenHow::READ).unwrap();
        file.set_attribute(c"user.onrush.headers", metadata)
            .unwrap();
        get_both(&folder, "a").unwrap().1
    };
    assert_eq!(set(b"other"), b"other");
    assert_eq!(set(b""), b"");
    assert_eq!(set(&too_long), metadata_of(b"third"));
    let finding = Scrub::new(backend.root()).verify(b"a", &mut |_| {});
    assert_eq!(finding, Finding::Intact);
    if let Backend::Sim(disk) = backend {
        disk.set_keeps_attributes(false);
        assert_eq!(put(&folder, "b", b"x"), Err(StoreError::NoMetadata));
        assert_eq!(get(&folder, "b"), Err(StoreError::NotFound));
        assert_eq!(staged(&folder, backend), 0);
        put(&folder, "b", b"").unwrap();
        let later = backend.folder();
        assert!(!later.keeps_metadata());
        disk.set_keeps_attributes(true);
    }
}

/// The store remembers which objects it has put lately. It relies on that only for speed.
fn object_that_others_delete_or_create_is_noticed(backend: &Backend) {
    let folder = backend.folder();
    let root = backend.root();
    for (parent, at) in [(&b"."[..], "a"), (b"d", "d/a")] {
        assert!(put(&folder, at, &body(10_001)).unwrap().created);
        let replaced = put(&folder, at, b"22").unwrap();
        assert_eq!((replaced.created, replaced.replaced_bytes), (false, 10_001));
        let (dir, name) = (root.open_dir(parent).unwrap(), b"a");
        dir.unlink(name).unwrap();
        assert!(put(&folder, at, b"3").unwrap().created);
        dir.unlink(name).unwrap();
        dir.create_dir(name, 0o755).unwrap();
        assert_eq!(put(&folder, at, b"4"), Err(StoreError::IsDirectory));
        dir.remove_dir(name).unwrap();
        put(&folder, at, b"5").unwrap();
        delete(&folder, at).unwrap();
        let other = dir.open(name, OpenHow::create_new(0o644)).unwrap();
        other.write_all_at(b"other", 0).unwrap();
        let replaced = put(&folder, at, b"6").unwrap();
        assert_eq!((replaced.created, replaced.replaced_bytes), (false, 4096));
        assert_eq!(get(&folder, at).unwrap(), b"6");
        assert_eq!(staged(&folder, backend), 0);
    }
}

/// Programs that give all files one time cannot hide that a file is another one.
fn files_of_one_time_have_different_versions(backend: &Backend) {
    if backend.lacks(&[Ability::FineTimes]) {
        return;
    }
    let folder = backend.folder();
    let root = backend.root();
    let version = || block_on(folder.meta(&key("a"))).unwrap().version;
    for modified_ns in [0, 1_000_000_000, -1_000_000_000] {
        let mut seen = Vec::new();
        for content in [b"one", b"two", b"six"] {
            let file = root.open(b"a", OpenHow::create_new(0o644)).unwrap();
            file.write_all_at(content, 0).unwrap();
            file.set_modified(modified_ns).unwrap();
            let changed_ns = file.metadata().unwrap().changed_ns;
            drop(file);
            seen.push(version());
            let refused = put_if(&folder, "a", b"x", Condition::Versions(vec![seen[0]]));
            if seen.len() > 1 {
                assert_eq!(refused, Err(StoreError::PreconditionFailed));
            } else {
                assert!(refused.is_ok());
            }
            root.unlink(b"a").unwrap();
            // The clock of the kernel advances in steps.
            let probe = root.open(b"probe", OpenHow::create_new(0o644)).unwrap();
            while probe.metadata().unwrap().changed_ns == changed_ns {
                probe.set_modified(1).unwrap();
            }
            root.unlink(b"probe").unwrap();
        }
    }
    // A rename is a change of the file, and its result has the new version.
    let file = root.open(b"from", OpenHow::create_new(0o644)).unwrap();
    file.set_modified(0).unwrap();
    let moved = block_on(folder.rename(relocation("from", "a"), Kind::File)).unwrap();
    assert_eq!(moved.meta.version, version());
    let written = put(&folder, "a", b"of this store").unwrap();
    assert_eq!(written.meta.version, version());
    assert!(!written.meta.version.as_str().contains("-c"));
}

/// An object that was put lately is looked up before it is replaced, instead of a rename that
/// fails first.
#[test]
fn replacing_an_object_again_costs_one_lookup() {
    let backend = Backend::sim();
    let Backend::Sim(disk) = &backend else {
        unreachable!()
    };
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    let folder = backend.folder_with(options);
    let operations_of = |change: &dyn Fn()| {
        let before = disk.operations();
        change();
        disk.operations() - before
    };
    put(&folder, "d/b", b"x").unwrap();
    let store = || assert!(put(&folder, "d/a", b"x").is_ok());
    let create = operations_of(&store);
    let replace = operations_of(&store);
    assert_eq!(replace, create + 1);
    let store_another = || assert!(put(&folder, "d/c", b"x").is_ok());
    assert_eq!(operations_of(&store_another), create);
}

fn read_only_disk_is_reported(backend: &Backend) {
    let Backend::Sim(disk) = backend else { return };
    let folder = backend.folder();
    put(&folder, "a", b"x").unwrap();
    let refused = |change: &dyn Fn() -> Result<()>| {
        for number in 0..20 {
            disk.fail_at(disk.operations() + number, libc::EROFS);
        }
        let error = change().expect_err("read-only");
        disk.clear_faults();
        assert_eq!(error, StoreError::ReadOnly);
        assert_eq!(error.cause().unwrap().errno(), Some(libc::EROFS));
    };
    refused(&|| put(&folder, "b", b"x").map(|_| ()));
    refused(&|| delete(&folder, "a").map(|_| ()));
    assert_eq!(get(&folder, "a").unwrap(), b"x");
}

fn files_of_the_store_are_not_objects(backend: &Backend) {
    let folder = backend.folder();
    for at in [
        ".onrush",
        ".onrush/staging",
        ".onrush/x",
        ".ONRUSH/state/x",
        ".onrush/state",
    ] {
        assert_eq!(put(&folder, at, b"x"), Err(StoreError::Forbidden), "{at}");
        assert_eq!(delete(&folder, at), Err(StoreError::Forbidden), "{at}");
        assert_eq!(get(&folder, at), Err(StoreError::NotFound), "{at}");
        assert_eq!(block_on(folder.meta(&key(at))), Err(StoreError::NotFound));
        let page = list(&folder, Some(at), ListHow::default());
        assert_eq!(page, Err(StoreError::NotFound), "{at}");
    }
}

fn read_only_store_refuses_changes(backend: &Backend) {
    let folder = backend.folder_with(FolderOptions {
        writable: false,
        ..FolderOptions::default()
    });
    assert_eq!(put(&folder, "a", b"x"), Err(StoreError::Forbidden));
    assert_eq!(delete(&folder, "a"), Err(StoreError::Forbidden));
    assert!(!folder.writable());
    assert_eq!(entries(&backend.root()), []);
}

fn full_disk_is_reported_and_uncached_object_is_read(backend: &Backend) {
    let Backend::Sim(disk) = backend else { return };
    let folder = backend.folder();
    put(&folder, "a", &body(30_000)).unwrap();
    disk.set_cold(true);
    assert!(folder.try_get(&key("a")).is_none());
    assert_eq!(get(&folder, "a").unwrap(), body(30_000));
    disk.set_cold(false);
    disk.disk_full_after(Some(25_000));
    let early = block_on(folder.stage(&key("a"), Condition::None, Some(25_001))).err();
    assert!(matches!(early, Some(StoreError::Full(_))));
    block_on(async {
        let mut upload = folder
            .stage(&key("a"), Condition::None, None)
            .await
            .unwrap();
        upload.write(body(20_000)).await.unwrap();
        let full = upload.write(body(20_000)).await;
        assert!(matches!(full, Err(StoreError::Full(_))), "{full:?}");
        let again = upload.commit().await;
        assert!(
            matches!(again, Err(StoreError::Io(_))),
            "an upload cannot be committed after an error"
        );
    });
    assert_eq!(staged(&folder, backend), 0);
    assert_eq!(get(&folder, "a").unwrap(), body(30_000));
    disk.disk_full_after(None);
    put(&folder, "a", b"room again").unwrap();
}

fn readers_keep_a_replaced_object(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "a", b"the old one").unwrap();
    let old = block_on(folder.get(&key("a"))).unwrap();
    put(&folder, "a", b"new").unwrap();
    delete(&folder, "a").unwrap();
    let read = block_on(old.read(0, 99, Vec::with_capacity(99))).unwrap();
    assert_eq!(read, b"the old one");
    if !backend.lacks(&[Ability::Local]) {
        assert_eq!(
            old.local().unwrap().file().as_fd().is_some(),
            backend.path(b"").is_some()
        );
    }
}

/// A stream must not end as if it were complete.
fn truncated_file_ends_its_stream_with_an_error(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "a", &body(200_000)).unwrap();
    let object = block_on(folder.get(&key("a"))).unwrap();
    let mut stream = object.stream(0..200_000);
    let mut next = || block_on(poll_fn(|cx| stream.as_mut().poll_next(cx)));
    assert_eq!(next().unwrap().unwrap()[..], body(200_000)[..64 << 10]);
    let how = OpenHow {
        create: Create::IfMissing,
        ..OpenHow::create_new(0o644)
    };
    let file = backend.root().open(b"a", how).unwrap();
    file.set_len(100_000).unwrap();
    assert_eq!(next().unwrap().unwrap()[..], body(100_000)[64 << 10..]);
    let end = next().unwrap().unwrap_err();
    assert_eq!(end.cause().unwrap().kind(), ErrorKind::UnexpectedEof);
}

/// Without a disk to wait for, a change does not pay for passing a job to another thread and back.
#[test]
fn changes_in_memory_use_no_other_thread() {
    let backend = Backend::memory();
    assert!(backend.root().is_in_memory());
    let folder = backend.folder();
    for len in [100, 100_000] {
        put(&folder, "a/b", &body(len)).unwrap();
        assert_eq!(get(&folder, "a/b").unwrap(), body(len));
    }
    let jobs = folder.pool().stats().queued_total;
    put(&folder, "a/c", &body(100_000)).unwrap();
    delete(&folder, "a/b").unwrap();
    assert_eq!(folder.pool().stats().queued_total, jobs);
}

/// A file system that knows only Unicode has no object with other bytes in its name.
#[test]
fn bytes_that_are_no_name_are_not_found_or_invalid() {
    for failure in [libc::EILSEQ, libc::EINVAL] {
        let backend = Backend::sim();
        let Backend::Sim(disk) = &backend else {
            unreachable!()
        };
        disk.set_unicode_names(Some(failure));
        let folder = backend.folder();
        put(&folder, "\u{e9}/a", b"x").unwrap();
        for bytes in [&b"\xff"[..], b"d\xff/a", b"\xc3\xa9/\xff"] {
            let at = key(bytes);
            let found = block_on(folder.get(&at)).map(|_| ());
            assert_eq!(found, Err(StoreError::NotFound), "{at:?}");
            let found = block_on(folder.meta(&at)).map(|_| ());
            assert_eq!(found, Err(StoreError::NotFound), "{at:?}");
            let listed = block_on(folder.list(Some(&at), ListHow::default()));
            assert_eq!(listed, Err(StoreError::NotFound), "{at:?}");
            for size in [3, 50_000] {
                let written = block_on(async {
                    let mut upload = folder
                        .stage(&at, Condition::None, Some(size as u64))
                        .await?;
                    upload.write(body(size)).await?;
                    upload.commit().await
                });
                assert_eq!(written, Err(StoreError::InvalidKey), "{at:?}, {size}");
            }
            for kind in [Kind::File, Kind::Directory] {
                let deleted = block_on(folder.delete(&at, kind, Condition::None));
                assert_eq!(deleted, Err(StoreError::NotFound), "{at:?}");
            }
            let created = block_on(folder.create_folder(&at));
            assert_eq!(created, Err(StoreError::InvalidKey), "{at:?}");
        }
    }
}
