//! Every store of this crate keeps the promises of the trait.

#[macro_use]
mod common;

use common::*;
use onrush_store::testing::{MemoryStore, conformance};
use onrush_store::*;

on_all! {
    folder_conforms
    folder_without_syncs_conforms
    folder_with_quotas_conforms
}

fn folder_with_quotas_conforms(backend: &Backend) {
    let folder = backend.folder();
    let quota = |prefix: Option<&[u8]>| Quota {
        prefix: prefix.map(|prefix| Key::parse(prefix).unwrap()),
        bytes_max: 1 << 40,
    };
    let store =
        QuotaStore::new(folder.clone(), vec![quota(None), quota(Some(b"elsewhere"))]).unwrap();
    block_on(conformance(&store));
    let before = store.used();
    store.count().unwrap();
    assert_eq!(store.used(), before, "every change was counted");
    assert_eq!(staged(&folder, backend), 0);
}

fn folder_conforms(backend: &Backend) {
    let folder = backend.folder();
    block_on(conformance(&folder));
    assert_eq!(staged(&folder, backend), 0);
}

fn folder_without_syncs_conforms(backend: &Backend) {
    let folder = backend.folder_with(FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    });
    block_on(conformance(&folder));
    assert_eq!(staged(&folder, backend), 0);
}

#[test]
fn memory_store_conforms() {
    block_on(conformance(&MemoryStore::new()));
}
