//! Listings in pages, on all backends.

use crate::common::*;
use onrush_store::*;

on_all! {
    lists_page_by_page
    lists_files_folders_and_links
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
