//! Every store of this crate keeps the promises of the trait.

use crate::common::*;
use onrush_rt::fs::sim::SimFs;
use onrush_store::testing::{MemoryStore, conformance};
use onrush_store::*;

on_all! {
    folder_conforms
    folder_without_syncs_conforms
    folder_with_quotas_conforms
    parts_do_not_exceed_a_quota
}

fn folder_with_quotas_conforms(backend: &Backend) {
    let folder = backend.folder_with(FolderOptions {
        keep_properties: true,
        ..FolderOptions::default()
    });
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

/// Parts count when they are written, each byte once.
fn parts_do_not_exceed_a_quota(backend: &Backend) {
    let quota = Quota {
        prefix: None,
        bytes_max: 10_000,
    };
    let store = QuotaStore::new(backend.folder(), vec![quota]).unwrap();
    block_on(async {
        let at = key("parts");
        let refused = store.stage(&at, Condition::None, Some(10_001)).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        let mut upload = store.stage(&at, Condition::None, None).await.unwrap();
        let mut kept = upload.keep().await.unwrap();
        drop(upload);
        assert_eq!(store.used()[0].1, 4096);
        let refused = store.write_partial(&kept, 0, body(10_001)).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        for (position, bytes, used) in [
            (8000, 2000, 4096),
            (0, 3000, 5000),
            (1000, 2000, 5000),
            (2000, 6000, 10_000),
        ] {
            let written = store.write_partial(&kept, position, body(bytes)).await;
            assert_eq!(written, Ok(Vec::new()));
            assert_eq!(store.used()[0].1, used);
        }
        let refused = store.write_partial(&kept, 10_000, body(1)).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        store.sync_partial(&kept).await.unwrap();
        kept.bytes = 10_000;
        let resumed = store.resume(&at, Condition::None, &kept).await;
        resumed.unwrap().commit().await.unwrap();
        assert_eq!(store.used()[0].1, 10_000);
        let refused = store.stage(&key("other"), Condition::None, Some(1)).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
    });
}

fn folder_without_syncs_conforms(backend: &Backend) {
    let folder = backend.folder_with(FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    });
    block_on(conformance(&folder));
    assert_eq!(staged(&folder, backend), 0);
}

/// On FUSE and network file systems, workers neither open nor read nor close files.
#[test]
fn a_folder_that_is_not_local_conforms() {
    let disk = SimFs::new(1);
    disk.set_local(false);
    let backend = Backend::Sim(disk);
    let folder = backend.folder();
    block_on(conformance(&folder));
    assert_eq!(staged(&folder, &backend), 0);
    put(&folder, "a", &body(100_000)).unwrap();
    let at = key("a");
    assert!(folder.try_get(&at).is_none());
    let object = block_on(folder.get(&at)).unwrap();
    assert!(object.local().is_none() && object.reader().is_some());
    let metadata = block_on(object.metadata());
    assert_eq!(metadata, Ok(metadata_of(&body(100_000))));
}

#[test]
fn memory_store_conforms() {
    block_on(conformance(&MemoryStore::new()));
}
