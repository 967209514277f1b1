//! Shared by the unit tests.

use crate::cache::CacheOptions;
use crate::edge::{EdgeOptions, EdgeStore};
use crate::key::Key;
use crate::store::{Condition, Store, Wanted};
use crate::testing::MemoryStore;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::sim::SimFs;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
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
pub(crate) fn large() -> (EdgeStore, Arc<MemoryStore>, Key) {
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
    let wait_until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until(&|| edge.metrics().cache().is_complete);
    block_on(async {
        let mut upload = store.stage(&key, Condition::None, None).await?;
        upload.write(b"content".to_vec()).await?;
        upload.commit().await?;
        edge.open(&key, Wanted::All).await
    })
    .expect("an object");
    wait_until(&|| edge.metrics().cache().entries >= 2);
    (edge, store, key)
}
