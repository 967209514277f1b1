//! Links, special files and other entries at the name of an object, on all backends.

use crate::common::*;
use onrush_rt::fs::FileKind;
use onrush_store::*;

on_all! {
    other_entries_in_the_way_are_conflicts
    links_are_followed_only_beneath_the_root
    links_are_never_replaced
    the_removal_of_a_link_frees_nothing
    only_files_are_objects
    reserved_folder_is_not_accessible
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
        let early = block_on(folder.stage(&key(at), Condition::None, Some(1 << 20))).err();
        assert_eq!(early, Some(error), "{at}");
    }
    assert_eq!(get(&folder, "file").unwrap(), b"x");
    assert_eq!(staged(&folder, backend), 0);
    // The disk supports the longest name of a key.
    put(&folder, &"n".repeat(Key::SEGMENT_BYTES_MAX), b"x").unwrap();
}

fn the_removal_of_a_link_frees_nothing(backend: &Backend) {
    if backend.lacks(&[Ability::Symlinks]) {
        return;
    }
    let folder = backend.folder();
    put(&folder, "target", &body(5000)).unwrap();
    backend.symlink("link", "target");
    let quota = Quota {
        prefix: None,
        bytes_max: 10_000,
    };
    let store = QuotaStore::new(folder, vec![quota]).unwrap();
    let used = || store.used()[0].1;
    assert_eq!(used(), 5000);
    let delete = |at| block_on(store.delete(&key(at), Kind::File, Condition::None));
    let deleted = delete("link").expect("a link");
    assert_eq!(
        (deleted.size, used()),
        (5000, 5000),
        "the target is still there"
    );
    delete("target").expect("an object");
    assert_eq!(used(), 0);
}

fn links_are_followed_only_beneath_the_root(backend: &Backend) {
    if backend.lacks(&[Ability::Symlinks]) {
        return;
    }
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
    if backend.lacks(&[Ability::Symlinks]) {
        return;
    }
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
        let early = block_on(folder.stage(&key(link), Condition::None, Some(1 << 20))).err();
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

fn only_files_are_objects(backend: &Backend) {
    if backend.lacks(&[Ability::Symlinks, Ability::Fifos]) {
        return;
    }
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
            folder.try_get(&key(at)),
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
