//! The descriptor budget of files: which operations fail, when a staged file is created, and that
//! all permits are released.

use crate::common::{Backend, block_on, key, relocation, staged};
use crate::edge_common::wait_until;
use onrush_rt::descriptors::{Descriptors, FileUse};
use onrush_store::{Condition, Folder, FolderOptions, Store, StoreError};

fn folder(backend: &Backend, budget: &Descriptors) -> Folder {
    backend.folder_with(FolderOptions {
        descriptors: budget.clone(),
        ..FolderOptions::default()
    })
}

#[test]
fn staged_file_is_created_when_bytes_arrive() {
    for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
        let budget = Descriptors::new(100);
        let folder = folder(&backend, &budget);
        for size_bytes in [Some(1 << 20), None] {
            let mut upload =
                block_on(folder.stage(&key("a"), Condition::None, size_bytes)).unwrap();
            block_on(upload.write(Vec::with_capacity(1 << 20))).unwrap();
            assert_eq!((staged(&folder, &backend), budget.used().files), (0, 0));
            block_on(upload.write(vec![b'x'; 100_000])).unwrap();
            assert_eq!((staged(&folder, &backend), budget.used().files), (1, 1));
            block_on(upload.commit()).unwrap();
            assert_eq!((staged(&folder, &backend), budget.used().files), (0, 0));
        }
        let object = block_on(folder.get(&key("a"))).unwrap();
        assert_eq!((object.meta().size, budget.used().files), (100_000, 1));
        drop(object);
        // Where files are not local, the pool closes them.
        wait_until("all is closed", || budget.used().files == 0);
        // An announced size without bytes makes an empty object. The size is not checked here.
        let upload = block_on(folder.stage(&key("b"), Condition::None, Some(1 << 20))).unwrap();
        block_on(upload.commit()).unwrap();
        assert_eq!(block_on(folder.meta(&key("b"))).unwrap().size, 0);
        assert_eq!(budget.used().files, 0);
    }
}

#[test]
fn exhausted_budget_refuses_uploads_but_not_reads() {
    for backend in [Backend::real(), Backend::sim()] {
        let budget = Descriptors::new(160);
        let folder = folder(&backend, &budget);
        let source = block_on(folder.stage(&key("source"), Condition::None, None)).unwrap();
        block_on(source.commit()).unwrap();
        let upload = |name: &str| {
            let mut upload = block_on(folder.stage(&key(name), Condition::None, None)).unwrap();
            let written = block_on(upload.write(vec![b'x'; 20_000]));
            written.map(|_| upload)
        };
        let early = block_on(folder.stage(&key("early"), Condition::None, Some(1 << 20))).unwrap();
        let mut uploads = Vec::new();
        let refused = loop {
            match upload(&uploads.len().to_string()) {
                Ok(upload) => uploads.push(upload),
                Err(error) => break error,
            }
            assert!(uploads.len() <= 160);
        };
        assert_eq!(refused, StoreError::Busy);
        assert_eq!(uploads.len(), 150 - 100 - 20);
        // Fails at once if the size is known, otherwise at the first bytes.
        let announced = block_on(folder.stage(&key("a"), Condition::None, Some(1 << 20)));
        assert_eq!(announced.err(), Some(StoreError::Busy));
        let mut early = early;
        let late = block_on(early.write(vec![b'x'; 20_000]));
        assert_eq!(late.err(), Some(StoreError::Busy));
        drop(early);
        // A copy may take as long as an upload.
        let copied = block_on(folder.copy(relocation("source", "copy")));
        assert_eq!(copied.err(), Some(StoreError::Busy));
        // A small upload has no staged file until its commit.
        let mut small = block_on(folder.stage(&key("small"), Condition::None, Some(5))).unwrap();
        block_on(small.write(b"small".to_vec())).unwrap();
        block_on(small.commit()).unwrap();
        let mut objects = Vec::new();
        while budget.has_room(FileUse::Brief) {
            objects.push(block_on(folder.get(&key("small"))).unwrap());
        }
        assert_eq!(objects.len(), 160 - 30);
        let one_more = block_on(folder.get(&key("small")));
        assert_eq!(one_more.err(), Some(StoreError::Busy));
        drop((objects, uploads));
        wait_until("all is closed", || budget.used().files == 0);
        drop(upload("again").unwrap());
    }
}
