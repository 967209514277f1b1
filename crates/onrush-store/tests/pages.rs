//! Listings in pages, on all backends.

use crate::common::*;
use onrush_rt::fs::OpenHow;
use onrush_store::*;
use std::thread;
use std::time::Duration;

on_all! {
    lists_page_by_page
    lists_files_folders_and_links
    reads_large_folders_whole
}

/// Memory for names, up to a limit.
struct Limited(usize);

impl NamesMemory for Limited {
    fn resize(&mut self, bytes: usize) -> bool {
        bytes <= self.0
    }
}

/// All entries of a folder, read in steps of `limit`.
fn read_whole(
    folder: &Folder,
    at: &str,
    how: &CursorHow,
    memory: usize,
    limit: usize,
) -> Vec<DetailedEntry> {
    let mut cursor = Cursor::new(Some(key(at)), how.clone(), Box::new(Limited(memory)));
    let mut found = Vec::new();
    loop {
        let more = block_on(folder.next_entries(&mut cursor, limit)).unwrap();
        if more.is_empty() {
            return found;
        }
        assert!(more.len() <= limit);
        found.extend(more);
    }
}

/// The names do not fit into the least memory, so the folder is read several times.
fn reads_large_folders_whole(backend: &Backend) {
    let folder = backend.folder_with(FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    });
    put(&folder, "dir/n00000", b"first").unwrap();
    let dir = backend.root().open_dir(b"dir").unwrap();
    for number in 1..2500 {
        let name = format!("n{:05}", number * 7919 % 2500);
        dir.open(name.as_bytes(), OpenHow::create_new(0o644))
            .unwrap();
    }
    dir.create_dir(b"sub", 0o755).unwrap();
    dir.open(b".hidden", OpenHow::create_new(0o644)).unwrap();
    let mut expected: Vec<_> = (0..2500).map(|number| format!("n{number:05}")).collect();
    expected.push("sub".into());
    let of = |found: &[DetailedEntry]| -> Vec<String> {
        let name = |one: &DetailedEntry| String::from_utf8(one.entry.name.clone()).unwrap();
        found.iter().map(name).collect()
    };
    let mut how = CursorHow {
        metadata: true,
        ..CursorHow::default()
    };
    for (memory, limit) in [(0, 1000), (0, 7), (8 << 20, 1000), (8 << 20, 10_000)] {
        let found = read_whole(&folder, "dir", &how, memory, limit);
        assert!(of(&found) == expected, "{memory} bytes, steps of {limit}");
        let sub = found.last().unwrap();
        assert_eq!((sub.entry.kind, &sub.metadata), (Kind::Directory, &None));
        let meta = block_on(folder.meta(&key("dir/n00000"))).unwrap();
        assert_eq!(
            (found[0].entry.size, found[0].entry.version),
            (5, meta.version)
        );
        let metadata = match folder.keeps_metadata() {
            true => &b"102 5"[..],
            false => b"",
        };
        assert_eq!(
            found[0].metadata.as_deref(),
            Some(metadata),
            "what `put` sets"
        );
        assert_eq!(found[1].metadata, Some(Vec::new()));
        assert_eq!(found[0].properties, None);
    }
    how.after = Some(b"n02497".to_vec());
    let found = read_whole(&folder, "dir", &how, 0, 1000);
    assert_eq!(of(&found), ["n02498", "n02499", "sub"]);
    (how.after, how.hidden) = (None, true);
    let found = read_whole(&folder, "dir", &how, 0, 1000);
    assert_eq!(of(&found[..2]), [".hidden", "n00000"]);
    let mut file = Cursor::new(
        Some(key("dir/n00000")),
        CursorHow::default(),
        Box::new(Limited(0)),
    );
    let failed = block_on(folder.next_entries(&mut file, 10));
    assert_eq!(failed, Err(StoreError::NotDirectory));
    let checked = |at: &str| block_on(folder.check_folder(Some(&key(at))));
    assert_eq!(checked("dir/n00000"), Err(StoreError::NotDirectory));
    assert_eq!(checked("dir/sub"), Ok(()));
}

/// Each page shows what exists when it is read, though the names may be those of an earlier page.
#[test]
fn pages_show_changes_between_them() {
    let backend = Backend::real();
    let folder = backend.folder();
    put(&folder, "dir/n00000", b"x").unwrap();
    let dir = backend.root().open_dir(b"dir").unwrap();
    for number in 1..3000 {
        let name = format!("n{number:05}");
        dir.open(name.as_bytes(), OpenHow::create_new(0o644))
            .unwrap();
    }
    // The times of the folder count when they are some seconds old.
    let page = |after: &str| {
        let how = ListHow {
            after: Some(after.into()),
            limit: 2,
            ..ListHow::default()
        };
        names(&list(&folder, Some("dir"), how).unwrap())
    };
    for settles in [false, true] {
        if settles {
            thread::sleep(Duration::from_millis(3100));
        }
        assert_eq!(page(""), ["n00000", "n00001"]);
        assert_eq!(page("n00001"), ["n00002", "n00003"]);
        let new = format!("n00003-{settles}");
        put(&folder, &format!("dir/{new}"), b"x").unwrap();
        assert_eq!(page("n00003")[0], new);
        dir.unlink(b"n00005").unwrap();
        assert_eq!(page("n00004"), ["n00006", "n00007"]);
        dir.rename(b"n00009", &dir, b"n00005", false).unwrap();
        assert_eq!(page("n00004"), ["n00005", "n00006"]);
        assert_eq!(page("n00008"), ["n00010", "n00011"]);
        dir.rename(b"n00005", &dir, b"n00009", false).unwrap();
        dir.open(b"n00005", OpenHow::create_new(0o644)).unwrap();
        dir.unlink(new.as_bytes()).unwrap();
    }
    assert_eq!(page("n02999"), [""; 0]);
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
        ..ListHow::default()
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
            changed_ns: meta.changed_ns,
            version
        }
    );
}

fn lists_files_folders_and_links(backend: &Backend) {
    if backend.lacks(&[Ability::Symlinks, Ability::Case]) {
        return;
    }
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
