//! Folders that are created without an object.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;

fn kind(folder: &Folder, text: &str) -> Result<Kind> {
    block_on(folder.meta(&key(text))).map(|meta| meta.kind)
}

fn created_once(backend: &Backend) {
    let folder = backend.folder();
    assert!(folder.features().empty_folders);
    let create = |text: &str| block_on(folder.create_folder(&key(text)));
    assert_eq!(create("a/b/c"), Ok(true));
    assert_eq!(create("a/b/c"), Ok(false));
    assert_eq!(create("a"), Ok(false));
    for made in ["a", "a/b", "a/b/c"] {
        assert_eq!(kind(&folder, made), Ok(Kind::Directory));
    }
    put(&folder, "a/b/c/object", b"x").expect("stored");
    assert_eq!(create("a/b/c"), Ok(false));
    for in_the_way in ["a/b/c/object", "a/b/c/object/below"] {
        let refused = create(in_the_way).expect_err("an object is in the way");
        let expected = matches!(refused, StoreError::Conflict | StoreError::NotDirectory);
        assert!(expected, "{in_the_way}: {refused:?}");
    }
    assert_eq!(create(".onrush/x"), Err(StoreError::Forbidden));
    assert_eq!(kind(&folder, "a/b/c/object"), Ok(Kind::File));

    let read_only = backend.folder_with(FolderOptions {
        writable: false,
        ..FolderOptions::default()
    });
    let refused = block_on(read_only.create_folder(&key("new")));
    assert_eq!(refused, Err(StoreError::Forbidden));
}

on_all! { created_once }

/// After each operation, power is cut. A folder that was reported as created is there afterwards.
#[test]
fn a_power_cut_loses_no_created_folder() {
    let mut reported = 0;
    for number in 0..60 {
        let disk = SimFs::new(number);
        let open = || {
            let root = disk.root().expect("on");
            Folder::on(root, BlockingPool::inline(), FolderOptions::default())
        };
        let folder = open().expect("opened");
        put(&folder, "before", b"x").expect("stored");
        disk.power_cut_at(disk.operations() + number, Cut::After);
        let created = block_on(folder.create_folder(&key("a/b")));
        if !disk.is_off() {
            disk.power_cut();
        }
        drop(folder);
        disk.restart();
        disk.clear_faults();
        let folder = open().expect("opened again");
        if created == Ok(true) {
            reported += 1;
            assert_eq!(kind(&folder, "a/b"), Ok(Kind::Directory), "cut {number}");
        }
        assert_eq!(get(&folder, "before").expect("kept"), b"x");
    }
    assert!((1..60).contains(&reported), "{reported}");
}
