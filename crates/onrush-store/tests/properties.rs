//! Properties of clients, on each kind of disk.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;

fn keeping() -> FolderOptions {
    FolderOptions {
        keep_properties: true,
        ..FolderOptions::default()
    }
}

fn read(folder: &Folder, at: &str) -> Result<Vec<u8>> {
    block_on(folder.properties(&key(at)))
}

fn replace(folder: &Folder, at: &str, old: &[u8], new: &[u8]) -> Result<()> {
    block_on(folder.replace_properties(&key(at), old, new))
}

fn properties_are_replaced_by_comparison_and_follow(backend: &Backend) {
    if backend.lacks(&[Ability::Attributes]) {
        return;
    }
    let folder = backend.folder_with(keeping());
    let bytes_max = folder.features().properties_bytes_max;
    assert!(bytes_max > 0);
    put(&folder, "a", b"1").expect("stored");
    block_on(folder.create_folder(&key("f"))).expect("created");
    let version = block_on(folder.meta(&key("a"))).expect("there").version;
    for at in ["a", "f"] {
        assert_eq!(read(&folder, at), Ok(Vec::new()));
        assert_eq!(replace(&folder, at, b"", b"one"), Ok(()));
        let refused = replace(&folder, at, b"", b"two");
        assert_eq!(refused, Err(StoreError::PreconditionFailed));
        assert_eq!(replace(&folder, at, b"one", b"two"), Ok(()));
        let long = vec![b'x'; bytes_max + 1];
        assert_eq!(
            replace(&folder, at, b"two", &long),
            Err(StoreError::TooLarge)
        );
        assert_eq!(read(&folder, at), Ok(b"two".to_vec()));
    }
    assert_eq!(
        block_on(folder.meta(&key("a"))).expect("there").version,
        version
    );
    // An object with both at their maximum.
    let full = vec![b'x'; bytes_max];
    assert_eq!(replace(&folder, "a", b"two", &full), Ok(()));
    block_on(folder.copy(relocation("a", "b"))).expect("copied");
    assert_eq!(read(&folder, "b"), Ok(full.clone()));
    let read_only = backend.folder_with(FolderOptions {
        writable: false,
        ..keeping()
    });
    assert!(read_only.features().properties_bytes_max > 0);
    assert_eq!(read(&read_only, "b"), Ok(full.clone()));
    let refused = replace(&read_only, "b", &full, b"");
    assert_eq!(refused, Err(StoreError::Forbidden));
    put(&folder, "a", b"2").expect("replaced");
    put_if(&folder, "a", b"3", Condition::Present).expect("replaced");
    assert_eq!(read(&folder, "a"), Ok(full.clone()));
    block_on(folder.rename(relocation("a", "c"), Kind::File)).expect("renamed");
    assert_eq!(read(&folder, "c"), Ok(full.clone()));
    assert_eq!(replace(&folder, "c", &full, b""), Ok(()));
    assert_eq!(read(&folder, "c"), Ok(Vec::new()));
    put(&folder, "a", b"new").expect("stored");
    assert_eq!(read(&folder, "a"), Ok(Vec::new()));
    assert_eq!(read(&folder, "none"), Err(StoreError::NotFound));
    assert_eq!(
        replace(&folder, ".onrush/x", b"", b"x"),
        Err(StoreError::Forbidden)
    );
    assert_eq!(read(&folder, ".onrush/x"), Err(StoreError::NotFound));
    drop(folder);
    // Without the option, what replaces an object has none.
    let folder = backend.folder();
    put(&folder, "b", b"2").expect("replaced");
    assert_eq!(read(&folder, "b"), Ok(Vec::new()));
}

on_all! { properties_are_replaced_by_comparison_and_follow }

/// After each operation, power is cut. Properties that were reported as set are there afterwards,
/// also those of an object that was replaced meanwhile.
#[test]
fn a_power_cut_loses_no_properties() {
    let mut reported = 0;
    for number in 0..80 {
        let disk = SimFs::new(number);
        let open = || Folder::on(disk.root().expect("on"), BlockingPool::inline(), keeping());
        let folder = open().expect("opened");
        put(&folder, "a", b"1").expect("stored");
        block_on(folder.create_folder(&key("f"))).expect("created");
        disk.power_cut_at(disk.operations() + number, Cut::After);
        let set = ["a", "f"].map(|at| replace(&folder, at, b"", b"kept").is_ok());
        let _ = put(&folder, "a", b"2");
        if !disk.is_off() {
            disk.power_cut();
        }
        drop(folder);
        disk.restart();
        disk.clear_faults();
        let folder = open().expect("opened");
        for (at, is_set) in ["a", "f"].into_iter().zip(set) {
            let found = read(&folder, at).expect("there");
            assert!(
                found == b"kept" || (found.is_empty() && !is_set),
                "{number} {at}"
            );
            reported += usize::from(is_set);
        }
    }
    assert!(reported > 10, "{reported}");
}
