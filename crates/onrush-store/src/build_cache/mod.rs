//! A store of bounded size, for results of builds. When it is full, the objects that were not used
//! for the longest time are removed.
//!
//! An object is one file of a [`Cache`]: its content, then a record of its key, properties and
//! metadata with a checksum. The name of the file is a hash of the key, so any key can be stored
//! and the index takes the same memory for each.
//!
//! - **Space.** An upload takes space when its first bytes arrive, and more while more bytes
//!   arrive. It waits for a few seconds for room that others have, and for the scan after the
//!   start.
//! - **Durability.** Nothing is synced: what a power cut takes is built again. A file of an earlier
//!   process is compared with its checksum before it is served, and removed if it is torn.
//! - **Order.** A use is noted in memory at once, and on the disk at most a minute later.
//! - **Folders** are only parts of keys: each exists, none can be listed.
//!
//! Layers, lowest first: `entries` · `upload`.

mod entries;
mod upload;

use crate::cache::{Cache, CacheOptions, CacheStats};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::local::LocalFile;
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta};
use crate::object::{LocalFuture, Object};
use crate::store::{Condition, Features, ListHow, Page, Store, Upload, Wanted};
use entries::{CacheFile, Entries};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::Dir;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use upload::CacheUpload;

/// The room that is made ahead: this part of the limit, and at most so many bytes.
const ROOM_DIVISOR: u64 = 32;
const ROOM_BYTES_MAX: u64 = 64 << 20;
/// The times of uses are written to the disk when the last time is so long ago.
const UPKEEP_MS: i64 = 10_000;

/// A store of bounded size. Clones share one store.
#[derive(Clone)]
pub struct BuildCache {
    entries: Arc<Entries>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    stored_bytes: AtomicU64,
    upkeep_ms: AtomicI64,
}

/// What a [`BuildCache`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildCacheMetrics {
    /// Objects that were opened.
    pub hits: u64,
    /// Objects that were asked for and do not exist.
    pub misses: u64,
    /// The content of all uploads that were completed.
    pub stored_bytes: u64,
    /// The state of the cache.
    pub cache: CacheStats,
}

impl BuildCache {
    /// Opens the folder at `path`; see [`Cache::open`]. Blocks.
    ///
    /// # Errors
    ///
    /// As [`Cache::open`].
    pub fn open(path: &Path, pool: BlockingPool, options: CacheOptions) -> io::Result<BuildCache> {
        Ok(BuildCache::with(Cache::open(path, pool, options)?))
    }

    /// As [`BuildCache::open`], for an open directory, which may be simulated.
    pub fn on(root: Dir, pool: BlockingPool, options: CacheOptions) -> io::Result<BuildCache> {
        Ok(BuildCache::with(Cache::on(root, pool, options)?))
    }

    fn with(cache: Cache) -> BuildCache {
        BuildCache {
            entries: Arc::new(Entries::new(cache)),
            counts: Arc::default(),
        }
    }

    /// What the store counts.
    pub fn metrics(&self) -> BuildCacheMetrics {
        BuildCacheMetrics {
            hits: self.counts.hits.load(Relaxed),
            misses: self.counts.misses.load(Relaxed),
            stored_bytes: self.counts.stored_bytes.load(Relaxed),
            cache: self.entries.cache().stats(),
        }
    }

    /// Replaces the maximum size; see [`Cache::set_limit`]. Blocks.
    pub fn set_limit(&self, bytes_max: u64) {
        self.entries.cache().set_limit(bytes_max);
    }

    /// Ends the use of the store: see [`Cache::close`]. Blocks.
    pub fn close(&self) {
        self.entries.cache().close();
    }

    /// The object of a key. Without waiting if the kernel has it in memory.
    async fn find(&self, key: &Key) -> Result<CacheFile> {
        if let Some(found) = self.entries.try_find(key) {
            return found;
        }
        let turn = self.entries.turn(key).await;
        let (entries, key) = (self.entries.clone(), key.clone());
        let find = move || entries.find(&key, turn);
        let found = self.entries.cache().pool().run(find);
        found.await?.ok_or(StoreError::NotFound)
    }

    async fn open_object(&self, key: &Key) -> Result<Object> {
        let cache = self.entries.cache();
        let entry = self.find(key).await.inspect_err(|error| {
            if *error == StoreError::NotFound {
                self.counts.misses.fetch_add(1, Relaxed);
            }
        })?;
        self.counts.hits.fetch_add(1, Relaxed);
        cache.stamp(&entry.name);
        let now_ms = cache.now_ms();
        let last_ms = self.counts.upkeep_ms.load(Relaxed);
        if now_ms.abs_diff(last_ms) >= UPKEEP_MS.unsigned_abs()
            && self.counts.upkeep_ms.swap(now_ms, Relaxed) == last_ms
        {
            let cache = cache.clone();
            self.entries
                .cache()
                .pool()
                .run(move || cache.upkeep(false))
                .detach();
        }
        let (file, record) = self.entries.lend(entry);
        let metadata = record.metadata.into();
        let file = LocalFile::copy(Arc::new(file), cache.pool().clone(), metadata);
        Ok(Object::from_local(record.meta, file))
    }

    async fn delete_object(&self, key: &Key, condition: Condition) -> Result<Meta> {
        let (entries, key) = (self.entries.clone(), key.clone());
        let delete = move || entries.delete(&key, &condition);
        self.entries.cache().pool().run(delete).await?
    }

    /// An upload has become an object of `bytes` bytes.
    fn stored(&self, bytes: u64) {
        self.counts.stored_bytes.fetch_add(bytes, Relaxed);
        let cache = self.entries.cache();
        cache.evict_ahead((cache.limit_bytes() / ROOM_DIVISOR).min(ROOM_BYTES_MAX));
    }
}

impl Store for BuildCache {
    fn open<'a>(&'a self, key: &'a Key, _: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(self.open_object(key))
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async { Ok(self.find(key).await?.record.meta) })
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        Box::pin(async {
            match self.find(key).await {
                Ok(entry) => Ok(Some(entry.record.meta)),
                Err(StoreError::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let upload = CacheUpload::begin(self.clone(), key, condition, size_bytes)?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            match kind {
                Kind::File => self.delete_object(key, condition).await,
                Kind::Directory => Err(StoreError::NotFound),
            }
        })
    }

    /// Each folder exists.
    fn create_folder<'a>(&'a self, _: &'a Key) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    /// Fails with [`StoreError::Unsupported`]: the index has no keys.
    fn list<'a>(&'a self, _: Option<&'a Key>, _: ListHow) -> LocalFuture<'a, Result<Page>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    fn features(&self) -> Features {
        Features {
            metadata_bytes_max: METADATA_BYTES_MAX,
            ..Features::default()
        }
    }
}

impl fmt::Debug for BuildCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BuildCache")
            .field(self.entries.cache())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::{block_on, cache_options};
    use onrush_rt::fs::sim::SimFs;
    use std::task::{Context, Waker};

    /// A client that waits for the verification of an object needs no thread for it.
    #[test]
    fn a_verification_delays_only_its_object() {
        let disk = SimFs::new(1);
        let open = || {
            let root = disk.root().expect("the power is on");
            let pool = BlockingPool::threads(1, 100);
            BuildCache::on(root, pool, cache_options(1 << 20)).expect("a cache")
        };
        let keys = ["one", "other"].map(|key| Key::parse(key.as_bytes()).expect("a key"));
        let first = open();
        for key in &keys {
            let put = async {
                let mut upload = first.stage(key, Condition::None, None).await?;
                upload.write(b"content".to_vec()).await?;
                upload.commit().await
            };
            block_on(put).expect("room");
        }
        first.close();
        drop(first);
        let store = open();
        let turn = block_on(store.entries.turn(&keys[0]));
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(store.find(&keys[0]))).collect();
        for find in &mut waiting {
            assert!(find.as_mut().poll(&mut cx).is_pending());
        }
        block_on(store.find(&keys[1])).expect("an object");
        // A change of the object does not wait either.
        block_on(store.delete_object(&keys[1], Condition::None)).expect("it is deleted");
        drop(turn);
        for find in waiting {
            block_on(find).expect("an object");
        }
    }
}
