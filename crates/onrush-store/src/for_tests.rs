//! Shared by the unit tests.

use crate::cache::CacheOptions;
use crate::edge::{EdgeOptions, EdgeStore};
use crate::key::Key;
use crate::store::{Condition, Store, Wanted};
use crate::testing::MemoryStore;
pub(crate) use crate::testing::block_on;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::sim::SimFs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Waits until something that takes milliseconds has happened.
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    assert!((0..10_000).any(|_| {
        thread::sleep(Duration::from_millis(1));
        is_so()
    }));
}

pub(crate) fn cache_options(bytes_max: u64) -> CacheOptions {
    CacheOptions {
        origin: "a test".to_owned(),
        bytes_max,
        descriptors: Descriptors::default(),
        report: Arc::new(|_| {}),
    }
}

/// An edge that always asks, its store, and the key of an object of two blocks. The record and the
/// first block are in the cache.
pub(crate) fn edge_with_blocks() -> (EdgeStore, Arc<MemoryStore>, Key) {
    let store = Arc::new(MemoryStore::new());
    let options = EdgeOptions {
        cache: cache_options(1 << 20),
        fresh: Duration::ZERO,
        stale: Duration::from_secs(3600),
        block_bytes: 4,
    };
    let root = SimFs::new(1).root().expect("a disk");
    let pool = BlockingPool::threads(4, 100);
    let edge = EdgeStore::on(store.clone(), root, pool, options).expect("an edge");
    let key = Key::parse(b"a").expect("a key");
    wait_until(|| edge.metrics().cache().is_complete);
    block_on(async {
        let mut upload = store.stage(&key, Condition::None, None).await?;
        upload.write(b"content".to_vec()).await?;
        upload.commit().await?;
        edge.open(&key, Wanted::All).await
    })
    .expect("an object");
    wait_until(|| edge.metrics().cache().entries >= 2);
    (edge, store, key)
}
