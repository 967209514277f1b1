//! Every store of this crate keeps the promises of the trait.

#[macro_use]
mod common;

use common::*;
use onrush_store::testing::{MemoryStore, conformance};
use onrush_store::*;

on_all! {
    folder_conforms
    folder_without_syncs_conforms
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
