//! Options of a folder that change while it is in use.

#[macro_use]
mod common;

use common::*;
use onrush_store::*;

on_all! { options_change_while_a_folder_is_in_use }

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
