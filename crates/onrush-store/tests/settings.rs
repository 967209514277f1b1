//! Options of a folder that change while it is in use.

use crate::common::*;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;

on_all! {
    options_change_while_a_folder_is_in_use
    options_that_are_not_applied_change_nothing
}

fn options_change_while_a_folder_is_in_use(backend: &Backend) {
    let read_only = FolderOptions {
        writable: false,
        ..FolderOptions::default()
    };
    let folder = backend.folder_with(read_only);
    let set = |change: fn(&mut FolderOptions)| {
        let mut options = FolderOptions::default();
        change(&mut options);
        folder.set_options(&options).expect("set");
    };
    assert_eq!(put(&folder, "a", b"one"), Err(StoreError::Forbidden));
    assert!(!folder.features().resumable_uploads);
    set(|_| {});
    assert!(folder.writable() && folder.features().resumable_uploads);
    assert_eq!(
        folder.excludes_processes(),
        backend.folder().excludes_processes()
    );
    let committed = put(&folder, "a", b"one").expect("writable");
    assert_eq!(get(&folder, "a").expect("there"), b"one");
    set(|options| options.min_free_bytes = u64::MAX);
    assert!(matches!(
        put(&folder, "b", b"two"),
        Err(StoreError::Full(_))
    ));
    set(|options| options.writable = false); // It stays so; its users decide who may change it.
    assert!(folder.writable());
    let condition = Condition::unchanged(Some(&committed.meta));
    assert!(put_if(&folder, "a", b"two", condition).is_ok());
}

/// A caller prepares more than the folder, and something else may fail.
fn options_that_are_not_applied_change_nothing(backend: &Backend) {
    let read_only = FolderOptions {
        writable: false,
        ..FolderOptions::default()
    };
    let folder = backend.folder_with(read_only);
    let options = FolderOptions {
        min_free_bytes: u64::MAX,
        ..FolderOptions::default()
    };
    let is_unchanged = || {
        !folder.writable()
            && !folder.excludes_processes()
            && !folder.features().resumable_uploads
            && put(&folder, "a", b"one") == Err(StoreError::Forbidden)
    };
    let prepared = folder.prepare_options(&options).expect("prepared");
    assert!(is_unchanged());
    drop(prepared);
    assert!(is_unchanged());
    let staging = backend.root().open_dir(b".onrush/staging").expect("there");
    assert_eq!(entries(&staging), []);
    folder.prepare_options(&options).expect("prepared").apply();
    assert!(folder.writable());
    assert!(matches!(
        put(&folder, "a", b"one"),
        Err(StoreError::Full(_))
    ));
}

/// Making a folder writable fails at each of its operations.
#[test]
fn a_folder_that_does_not_become_writable_keeps_its_options() {
    let mut failures = 0;
    for number in 0..20 {
        let disk = SimFs::new(1);
        let backend = Backend::Sim(disk.clone());
        let folder = backend.folder_with(FolderOptions {
            writable: false,
            min_free_bytes: u64::MAX,
            ..FolderOptions::default()
        });
        disk.fail_at(disk.operations() + number, libc::EIO);
        let was_set = folder.set_options(&FolderOptions::default());
        disk.clear_faults();
        if was_set.is_ok() {
            assert!(folder.writable() && put(&folder, "a", b"one").is_ok());
            continue;
        }
        failures += 1;
        assert!(
            !folder.writable() && !folder.excludes_processes(),
            "{number}"
        );
        assert_eq!(put(&folder, "a", b"one"), Err(StoreError::Forbidden));
    }
    assert!(failures >= 3, "{failures}");
}
