//! `Folder` as a store: the same tests on a real directory, on tmpfs, and on the simulated disk.

mod common;

use common::*;
use onrush_rt::fs::{Dir, FileKind, OpenHow};
use onrush_store::*;

/// Runs each test on all backends.
macro_rules! on_all {
    ($($name:ident)*) => {
        mod real { $(#[test] fn $name() { super::$name(&super::Backend::real()); })* }
        mod memory { $(#[test] fn $name() { super::$name(&super::Backend::memory()); })* }
        mod sim { $(#[test] fn $name() { super::$name(&super::Backend::sim()); })* }
        mod plain { $(#[test] fn $name() { super::$name(&super::Backend::plain()); })* }
    };
}

on_all! {
    put_objects_can_be_read
    contents_around_buffer_limits_are_stored
    failed_conditions_change_nothing
    versions_and_generations_change
    delete_removes_objects_and_empty_folders
    other_entries_in_the_way_are_conflicts
    links_are_followed_only_beneath_the_root
    links_are_never_replaced
    sizes_beyond_the_file_limit_are_refused
    only_files_are_objects
    reserved_folder_is_not_accessible
    aborted_uploads_leave_nothing
    removed_staging_is_created_again
    lists_page_by_page
    lists_files_folders_and_links
    read_only_store_refuses_changes
    metadata_is_stored_with_the_object
    read_only_disk_is_reported
    uploads_of_live_processes_are_not_swept
    full_disk_is_reported_and_uncached_object_is_read
    readers_keep_a_replaced_object
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
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
    let odd = Key::parse(b"\xff\xfe\n").unwrap();
    block_on(async {
        let upload = folder.stage(&odd, None).await.unwrap();
        upload.commit(Condition::None).await.unwrap();
        assert_eq!(folder.get(&odd).await.unwrap().meta().size, 0);
    });
    if let Some(path) = backend.path(odd.as_bytes()) {
        assert!(path.exists());
    }
    assert_eq!(staged(&folder, backend), 0);
}

fn contents_around_buffer_limits_are_stored(backend: &Backend) {
    let folder = backend.folder();
    for len in [0, 1, 16_383, 16_384, 16_385, 100_000] {
        let body = body(len);
        put(&folder, "announced", &body).unwrap();
        assert_eq!(get(&folder, "announced").unwrap(), body);
        block_on(async {
            let mut upload = folder.stage(&key("not"), None).await.unwrap();
            for (number, piece) in body.chunks(6000).enumerate() {
                let back = upload.write(piece.to_vec()).await.unwrap();
                // The upload may keep the buffer of the first piece.
                assert!(back.is_empty() && (number == 0 || back.capacity() >= piece.len()));
            }
            assert_eq!(upload.written_bytes(), len as u64);
            upload.commit(Condition::None).await.unwrap();
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
        let mut some = [0; 10];
        assert_eq!(object.try_read(50_000, &mut some), Some(Ok(10)));
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
    let seen = Condition::Check(Box::new(move |meta| {
        assert_eq!(meta, Some(&two.meta));
        Err(StoreError::Forbidden)
    }));
    assert_eq!(put_if(&folder, "a", b"x", seen), Err(StoreError::Forbidden));
    assert_eq!(get(&folder, "a").unwrap(), b"2");
    let gone = block_on(folder.delete(&key("a"), stale()));
    assert_eq!(gone, Err(StoreError::PreconditionFailed));
    assert_eq!(put_if(&folder, "new/a", b"x", Condition::Present), refused);
    assert_eq!(
        list(&folder, Some("new"), ListHow::default()),
        Err(StoreError::NotFound)
    );
    block_on(folder.delete(&key("a"), Condition::Present)).unwrap();
    let gone = block_on(folder.delete(&key("a"), Condition::Present));
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
        assert!(done.meta.modified_ns > last_ns, "a time did not increase");
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
    let files_only = Condition::Check(Box::new(|meta| match meta.map(|meta| meta.kind) {
        Some(Kind::Directory) => Err(StoreError::IsDirectory),
        _ => Ok(()),
    }));
    let kept = block_on(folder.delete(&key("d/e"), files_only));
    assert_eq!(kept, Err(StoreError::IsDirectory));
    assert_eq!(delete(&folder, "d/e").unwrap().kind, Kind::Directory);
    assert_eq!(delete(&folder, "d/e/a"), Err(StoreError::NotFound));
    put(&folder, "d/e/a", b"again").unwrap();
    assert_eq!(get(&folder, "d/e/a").unwrap(), b"again");
}

fn other_entries_in_the_way_are_conflicts(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "file", b"x").unwrap();
    put(&folder, "dir/file", b"x").unwrap();
    for (at, error) in [
        ("dir", StoreError::IsDirectory),
        ("file/a", StoreError::NotDirectory),
        ("file/a/b", StoreError::NotDirectory),
    ] {
        for size in [3, 50_000] {
            assert_eq!(put(&folder, at, &body(size)), Err(error), "{at}");
        }
        let early = block_on(folder.stage(&key(at), Some(1 << 20))).err();
        assert_eq!(early, Some(error), "{at}");
    }
    assert_eq!(get(&folder, "file").unwrap(), b"x");
    assert_eq!(staged(&folder, backend), 0);
    // The disk supports the longest name of a key.
    put(&folder, &"n".repeat(Key::SEGMENT_BYTES_MAX), b"x").unwrap();
}

fn links_are_followed_only_beneath_the_root(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "d/target", b"inside").unwrap();
    backend.symlink("to-file", "d/target");
    backend.symlink("to-dir", "d");
    backend.symlink("d/up", "../d/target");
    backend.symlink("out", "../../etc/passwd");
    backend.symlink("absolute", "/etc/passwd");
    backend.symlink("dangling", "nothing");
    backend.symlink("loop", "loop");
    backend.symlink("d/out-and-in", "../../x");
    for good in ["to-file", "to-dir/target", "d/up", "to-dir/up"] {
        assert_eq!(get(&folder, good).as_deref(), Ok(&b"inside"[..]), "{good}");
    }
    for bad in [
        "out",
        "absolute",
        "dangling",
        "loop",
        "d/out-and-in",
        "out/x",
        "loop/x",
    ] {
        assert_eq!(get(&folder, bad), Err(StoreError::NotFound), "{bad}");
        assert_eq!(
            block_on(folder.meta(&key(bad))),
            Err(StoreError::NotFound),
            "{bad}"
        );
    }
    let top = list(&folder, None, ListHow::default()).unwrap();
    assert_eq!(names(&top), ["d", "to-dir", "to-file"]);
    assert_eq!(top.entries[1].kind, Kind::Directory);
    assert_eq!(top.entries[2].size, 6);
    assert_eq!(
        names(&list(&folder, Some("to-dir"), ListHow::default()).unwrap()),
        ["target", "up"]
    );
    put(&folder, "to-dir/new", b"through").unwrap();
    assert_eq!(get(&folder, "d/new").unwrap(), b"through");
    for bad in ["out/x", "dangling/x", "loop/x", "absolute/x"] {
        assert_eq!(put(&folder, bad, b"y"), Err(StoreError::Conflict), "{bad}");
    }
    assert_eq!(delete(&folder, "d/up").unwrap().size, 6);
    assert_eq!(get(&folder, "d/target").unwrap(), b"inside");
    assert_eq!(staged(&folder, backend), 0);
}

fn links_are_never_replaced(backend: &Backend) {
    let folder = backend.folder();
    let target = put(&folder, "d/target", b"inside").unwrap().meta;
    let links = [
        ("to-file", "d/target"),
        ("to-dir", "d"),
        ("out", "../../etc/passwd"),
        ("absolute", "/etc/passwd"),
        ("dangling", "nothing"),
        ("loop", "loop"),
        ("d/below", "target"),
    ];
    for (link, to) in links {
        backend.symlink(link, to);
    }
    let is_link = |at: &str| {
        let (dir, name) = at.rsplit_once('/').unwrap_or((".", at));
        let dir = backend.root().open_dir(dir.as_bytes()).unwrap();
        dir.entry_metadata(name.as_bytes()).unwrap().kind == FileKind::Symlink
    };
    for (link, _) in links {
        let conditions = [
            Condition::None,
            Condition::Absent,
            Condition::Versions(vec![target.version]),
        ];
        for condition in conditions {
            for size in [3, 50_000] {
                let condition = match &condition {
                    Condition::None => Condition::None,
                    Condition::Absent => Condition::Absent,
                    _ => Condition::Versions(vec![target.version]),
                };
                let refused = put_if(&folder, link, &body(size), condition);
                assert_eq!(refused, Err(StoreError::Conflict), "{link}");
            }
        }
        let replaced = block_on(folder.existing_object(&key(link)));
        assert_eq!(replaced, Err(StoreError::Conflict));
        // A long upload fails before its first byte.
        let early = block_on(folder.stage(&key(link), Some(1 << 20))).err();
        assert_eq!(early, Some(StoreError::Conflict));
        assert!(is_link(link), "{link}");
    }
    assert_eq!(
        block_on(folder.existing_object(&key("d/target"))),
        Ok(Some(target))
    );
    for at in ["d/none", "none/none"] {
        assert_eq!(block_on(folder.existing_object(&key(at))), Ok(None));
    }
    assert_eq!(get(&folder, "d/target").unwrap(), b"inside");
    assert_eq!(staged(&folder, backend), 0);
    // A link that leaves the root or dangles is not found by a delete. Of others, the link is
    // deleted.
    for at in ["out", "absolute", "dangling", "loop"] {
        assert_eq!(delete(&folder, at), Err(StoreError::NotFound), "{at}");
        assert!(is_link(at));
    }
    assert_eq!(delete(&folder, "to-dir").unwrap().kind, Kind::Directory);
    for at in ["to-file", "d/below"] {
        assert_eq!(delete(&folder, at).unwrap(), target);
    }
    for at in ["to-dir", "to-file", "d/below"] {
        assert_eq!(get(&folder, at), Err(StoreError::NotFound));
        put(&folder, at, b"now free").unwrap();
    }
    assert_eq!(get(&folder, "d/target").unwrap(), b"inside");
}

fn sizes_beyond_the_file_limit_are_refused(backend: &Backend) {
    let folder = backend.folder();
    let ask = |bytes| block_on(folder.stage(&key("a"), Some(bytes))).err();
    for bytes in [i64::MAX as u64 + 1, u64::MAX] {
        assert_eq!(ask(bytes), Some(StoreError::TooLarge));
    }
    if let Backend::Real(_) = backend {
        assert!(matches!(ask(i64::MAX as u64), Some(StoreError::Full(_))));
    }
}

fn only_files_are_objects(backend: &Backend) {
    let folder = backend.folder();
    backend.fifo("pipe");
    backend.symlink("to-pipe", "pipe");
    for at in ["pipe", "to-pipe"] {
        assert_eq!(get(&folder, at), Err(StoreError::NotFound));
        assert_eq!(delete(&folder, at), Err(StoreError::NotFound));
        assert_eq!(put(&folder, at, b"x"), Err(StoreError::Conflict));
    }
    if let Some(path) = backend.path(b"socket") {
        let _listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        assert_eq!(get(&folder, "socket"), Err(StoreError::NotFound));
        assert_eq!(put(&folder, "socket", b"x"), Err(StoreError::Conflict));
    }
    assert_eq!(list(&folder, None, ListHow::default()).unwrap().entries, []);
}

fn reserved_folder_is_not_accessible(backend: &Backend) {
    let folder = backend.folder();
    for at in [".onrush", ".onrush/staging", ".onrush/x", ".ONRUSH/x"] {
        assert_eq!(get(&folder, at), Err(StoreError::NotFound));
        assert!(matches!(
            folder.try_open_cached(&key(at)),
            Some(Err(StoreError::NotFound))
        ));
        assert_eq!(block_on(folder.meta(&key(at))), Err(StoreError::NotFound));
        assert_eq!(put(&folder, at, b"x"), Err(StoreError::Forbidden));
        assert_eq!(delete(&folder, at), Err(StoreError::Forbidden));
        assert_eq!(
            list(&folder, Some(at), ListHow::default()),
            Err(StoreError::NotFound)
        );
    }
    put(&folder, ".dot", b"x").unwrap();
    put(&folder, "sub/.onrush/x", b"ordinary").unwrap();
    let how = ListHow {
        hidden: true,
        ..ListHow::default()
    };
    assert_eq!(
        names(&list(&folder, None, how.clone()).unwrap()),
        [".dot", "sub"]
    );
    assert_eq!(
        names(&list(&folder, Some("sub"), how).unwrap()),
        [".onrush"]
    );
    assert_eq!(
        names(&list(&folder, None, ListHow::default()).unwrap()),
        ["sub"]
    );
}

fn aborted_uploads_leave_nothing(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "a", b"old").unwrap();
    block_on(async {
        let mut upload = folder.stage(&key("a"), Some(1 << 20)).await.unwrap();
        assert_eq!(staged(&folder, backend), 0, "no byte has arrived");
        upload.write(body(50_000)).await.unwrap();
        assert_eq!(staged(&folder, backend), 1);
        drop(upload);
        assert_eq!(staged(&folder, backend), 0);
        let mut upload = folder.stage(&key("a"), None).await.unwrap();
        upload.write(body(50_000)).await.unwrap();
        drop(upload.write(body(50_000))); // never polled, so the upload is still valid
        drop(upload.commit(Condition::None)); // the commit happens completely or not at all
    });
    assert_eq!(staged(&folder, backend), 0);
    assert!([3, 50_000].contains(&get(&folder, "a").unwrap().len()));
    drop(folder);
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    assert_eq!(
        entries(&staging),
        [],
        "a dropped store leaves no folder in staging"
    );
}

/// Another program removes `.onrush` while the store is open: puts create it again.
fn remove_staging(root: &Dir) {
    let staging = root.open_dir(b".onrush/staging").unwrap();
    for (own, _) in entries(&staging) {
        let files = staging.open_dir(&own).unwrap();
        for (file, _) in entries(&files) {
            files.unlink(&file).unwrap();
        }
        staging.remove_dir(&own).unwrap();
    }
    let reserved = root.open_dir(b".onrush").unwrap();
    reserved.remove_dir(b"staging").unwrap();
    root.remove_dir(b".onrush").unwrap();
}

fn removed_staging_is_created_again(backend: &Backend) {
    let folder = backend.folder();
    let root = backend.root();
    for (at, size) in [("a", 3), ("dir/b", 3), ("c", 50_000), ("a", 50_000)] {
        remove_staging(&root);
        put(&folder, at, &body(size)).unwrap();
        assert_eq!(get(&folder, at).unwrap().len(), size);
        assert_eq!(staged(&folder, backend), 0);
    }
    // An upload in progress loses its file. That is no conflict with another object.
    block_on(async {
        let mut upload = folder.stage(&key("lost"), Some(50_000)).await.unwrap();
        upload.write(body(50_000)).await.unwrap();
        remove_staging(&root);
        let lost = upload.commit(Condition::None).await;
        assert!(matches!(lost, Err(StoreError::Io(_))), "{lost:?}");
    });
    put(&folder, "d", b"in the new folder").unwrap();
    drop(folder);
    assert_eq!(entries(&root.open_dir(b".onrush/staging").unwrap()), []);
}

fn lists_page_by_page(backend: &Backend) {
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    let folder = backend.folder_with(options);
    let mut expected: Vec<String> = (0..250)
        .map(|i| format!("n{:03}", i * 7919 % 250))
        .collect();
    for name in &expected {
        put(&folder, &format!("dir/{name}"), name.as_bytes()).unwrap();
    }
    expected.sort();
    for limit in [1, 7, 249, 250, 251] {
        let mut how = ListHow {
            limit,
            ..ListHow::default()
        };
        let mut found = Vec::new();
        loop {
            let page = list(&folder, Some("dir"), how.clone()).unwrap();
            assert!(page.entries.len() <= limit);
            found.extend(names(&page));
            how.after = page.next;
            if how.after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "limit {limit}");
    }
    let how = ListHow {
        after: Some(b"n1005".to_vec()),
        limit: 2,
        hidden: false,
    };
    let page = list(&folder, Some("dir"), how).unwrap();
    assert_eq!(names(&page), ["n101", "n102"]);
    let meta = block_on(folder.meta(&key("dir/n101"))).unwrap();
    let Entry {
        kind,
        size,
        modified_ns,
        version,
        ..
    } = page.entries[0].clone();
    assert_eq!(
        meta,
        Meta {
            kind,
            size,
            modified_ns,
            version
        }
    );
}

fn lists_files_folders_and_links(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "dir/file", b"x").unwrap();
    put(&folder, "dir/b/file", b"x").unwrap();
    put(&folder, "dir/Z", b"").unwrap();
    let page = list(&folder, Some("dir"), ListHow::default()).unwrap();
    assert_eq!(names(&page), ["Z", "b", "file"]);
    let kinds: Vec<_> = page.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [Kind::File, Kind::Directory, Kind::File]);
    assert_eq!(page.next, None);
    for (at, error) in [
        ("dir/file", StoreError::NotDirectory),
        ("dir/file/x", StoreError::NotFound),
        ("none", StoreError::NotFound),
        ("none/x", StoreError::NotFound),
    ] {
        assert_eq!(
            list(&folder, Some(at), ListHow::default()),
            Err(error),
            "{at}"
        );
    }
}

fn metadata_is_stored_with_the_object(backend: &Backend) {
    let folder = backend.folder();
    assert!(folder.keeps_metadata());
    put(&folder, "a", b"first").unwrap();
    assert_eq!(get_both(&folder, "a").unwrap().1, metadata_of(b"first"));
    let too_long = vec![b'x'; METADATA_BYTES_MAX + 1];
    block_on(async {
        let mut upload = folder.stage(&key("a"), None).await.unwrap();
        let refused = upload.set_metadata(too_long.clone());
        assert_eq!(refused, Err(StoreError::TooLarge));
        upload.write(b"second".to_vec()).await.unwrap();
        upload.commit(Condition::None).await.unwrap();
    });
    let both = get_both(&folder, "a").unwrap();
    assert_eq!(both, (b"second".to_vec(), Vec::new()), "replaced, too");
    block_on(async {
        let mut upload = folder.stage(&key("a"), None).await.unwrap();
        upload.set_metadata(too_long[1..].to_vec()).unwrap();
        upload.commit(Condition::None).await.unwrap();
    });
    assert_eq!(get_both(&folder, "a").unwrap().1, &too_long[1..]);
    // An attribute that this store would not have written is not metadata.
    let file = backend.root().open(b"a", OpenHow::READ).unwrap();
    file.set_attribute(c"user.onrush.headers", &too_long)
        .unwrap();
    assert_eq!(get_both(&folder, "a").unwrap().1, b"");
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

fn uploads_of_live_processes_are_not_swept(backend: &Backend) {
    let one = backend.folder();
    block_on(async {
        let mut upload = one.stage(&key("a"), Some(1 << 20)).await.unwrap();
        upload.write(body(20_000)).await.unwrap();
        let two = backend.folder(); // sweeps
        upload.commit(Condition::None).await.unwrap();
        assert_eq!(get(&two, "a").unwrap(), body(20_000));
    });
    // A dead process leaves a folder without a lock.
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    staging.create_dir(b"4711-dead", 0o700).unwrap();
    staging
        .open(b"4711-dead/0", OpenHow::create_new(0o600))
        .unwrap();
    let three = backend.folder();
    assert_eq!(staged(&three, backend), 0);
    assert!(staging.metadata(b"4711-dead").is_err());
    assert_eq!(
        entries(&staging).len(),
        2,
        "the folders of stores one and three stay"
    );
}

fn full_disk_is_reported_and_uncached_object_is_read(backend: &Backend) {
    let Backend::Sim(disk) = backend else { return };
    let folder = backend.folder();
    put(&folder, "a", &body(30_000)).unwrap();
    disk.set_cold(true);
    assert!(folder.try_open_cached(&key("a")).is_none());
    assert_eq!(get(&folder, "a").unwrap(), body(30_000));
    disk.set_cold(false);
    disk.disk_full_after(Some(25_000));
    let early = block_on(folder.stage(&key("a"), Some(25_001))).err();
    assert!(matches!(early, Some(StoreError::Full(_))));
    block_on(async {
        let mut upload = folder.stage(&key("a"), None).await.unwrap();
        upload.write(body(20_000)).await.unwrap();
        let full = upload.write(body(20_000)).await;
        assert!(matches!(full, Err(StoreError::Full(_))), "{full:?}");
        let again = upload.commit(Condition::None).await;
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
    assert_eq!(
        old.local_file().is_some_and(|file| file.as_fd().is_some()),
        backend.path(b"").is_some()
    );
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
