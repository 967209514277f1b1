//! A read-through cache on a local disk in front of another store.
//!
//! [`EdgeStore`] serves an object from its copy for a while (the fresh time) without asking the
//! other store, then asks whether the version is still current. If the other store does not
//! respond, copies are served for longer (the stale time). Changes go to the other store, and end
//! the use of the copy on this server before they complete. Absence is not kept.
//!
//! An object up to the size of a block is one file, which is served as a local file. A larger one
//! is a file with its properties and a file per block; the names of blocks contain the version, so
//! blocks of two versions are never mixed. What the cache does not take is read from the other
//! store.
//!
//! Layers, lowest first: `runner` · `heads` · `metrics` · `readers` · `run` ·
//! `opening` · `reader` · `lookup` · `change`.

mod change;
mod heads;
mod lookup;
mod metrics;
mod opening;
mod reader;
mod readers;
mod run;
mod runner;

use crate::cache::{Cache, CacheOptions, Name};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::object::{CacheUse, Cached, LocalFuture, Object};
use crate::store::{
    Committed, Condition, Cursor, DetailedEntry, Features, ListHow, Overlap, PartialUpload,
};
use crate::store::{Page, Relocation, ResumableUploads, Store, Upload, Wanted};
use change::{Change, EdgeUpload};
use heads::Heads;
use metrics::Counts;
pub use metrics::EdgeMetrics;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::Dir;
use opening::{Opened, Pending};
use run::Fill;
use runner::Runner;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A request waits for so long for a store that does not respond, if it has a stale copy.
const SLOW: Duration = Duration::from_secs(2);
/// The attempts to open what is replaced or removed again and again.
const ATTEMPTS: usize = 4;
/// The time between two looks at what takes long, and the number of them between two times of
/// upkeep.
const TICK: Duration = Duration::from_millis(500);
const UPKEEP_TICKS: u32 = 20;

/// How an [`EdgeStore`] is opened.
#[derive(Clone)]
pub struct EdgeOptions {
    /// The size and the descriptors of the cache, and what its failures are reported to.
    pub cache: CacheOptions,
    /// The time for which an object is served without asking the other store.
    pub fresh: Duration,
    /// The time for which an object is served after it was last confirmed, while the other store
    /// does not respond.
    pub stale: Duration,
    /// The size of blocks in bytes; not 0. After a change of it, large objects are fetched again.
    pub block_bytes: u64,
}

impl EdgeOptions {
    /// The default of [`EdgeOptions::block_bytes`].
    pub const BLOCK_BYTES: u64 = 4 << 20;
}

/// A store with a cache on a local disk in front of it. Dropping it ends fetches and keeps what is
/// in the cache.
pub struct EdgeStore {
    inner: Arc<EdgeInner>,
    runner: Arc<Runner>,
}

struct EdgeInner {
    store: Arc<dyn Store>,
    cache: Cache,
    heads: Heads,
    openings: Mutex<HashMap<Key, Pending>>,
    fills: Mutex<HashMap<Name, Arc<Fill>>>,
    /// Cloned by each fetch without readers.
    unread: Arc<()>,
    /// Set when the store is opened. It does not own the thread.
    runner: OnceLock<Weak<Runner>>,
    metrics: Arc<Counts>,
    began: Instant,
    fresh_ms: AtomicI64,
    stale_ms: AtomicI64,
    block_bytes: u64,
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl EdgeStore {
    /// Opens the folder at `path` as the cache of `store`; see [`Cache::open`]. Blocks.
    ///
    /// # Errors
    ///
    /// As [`Cache::open`]; or if no thread can be started.
    pub fn open(
        store: Arc<dyn Store>,
        path: &Path,
        pool: BlockingPool,
        options: EdgeOptions,
    ) -> io::Result<EdgeStore> {
        let cache = Cache::open(path, pool, options.cache.clone())?;
        EdgeStore::with(store, cache, &options)
    }

    /// As [`EdgeStore::open`], for an open directory, which may be simulated.
    pub fn on(
        store: Arc<dyn Store>,
        root: Dir,
        pool: BlockingPool,
        options: EdgeOptions,
    ) -> io::Result<EdgeStore> {
        let cache = Cache::on(root, pool, options.cache.clone())?;
        EdgeStore::with(store, cache, &options)
    }

    fn with(store: Arc<dyn Store>, cache: Cache, options: &EdgeOptions) -> io::Result<EdgeStore> {
        let inner = Arc::new(EdgeInner {
            store,
            cache,
            heads: Heads::new(),
            openings: Mutex::default(),
            fills: Mutex::default(),
            unread: Arc::default(),
            runner: OnceLock::new(),
            metrics: Arc::default(),
            began: Instant::now(),
            fresh_ms: AtomicI64::new(milliseconds(options.fresh)),
            stale_ms: AtomicI64::new(milliseconds(options.stale)),
            block_bytes: options.block_bytes.max(1),
        });
        let (weak, mut ticks) = (Arc::downgrade(&inner), 0_u32);
        let runner = Runner::start(TICK, move || {
            if let Some(inner) = weak.upgrade() {
                ticks = ticks.wrapping_add(1);
                inner.tick(ticks.is_multiple_of(UPKEEP_TICKS));
            }
        })?;
        let runner = Arc::new(runner);
        let _ = inner.runner.set(Arc::downgrade(&runner));
        Ok(EdgeStore { inner, runner })
    }

    /// What the edge counts.
    pub fn metrics(&self) -> EdgeMetrics {
        EdgeMetrics::new(self.inner.cache.clone(), self.inner.metrics.clone())
    }

    /// Replaces [`CacheOptions::bytes_max`], [`EdgeOptions::fresh`] and [`EdgeOptions::stale`]. A
    /// copy that is fresh stays so for the time that it had. Blocks while the cache removes files
    /// that are too many.
    ///
    /// [`CacheOptions::bytes_max`]: crate::cache::CacheOptions::bytes_max
    pub fn set_limits(&self, bytes_max: u64, fresh: Duration, stale: Duration) {
        self.inner.fresh_ms.store(milliseconds(fresh), Relaxed);
        self.inner.stale_ms.store(milliseconds(stale), Relaxed);
        self.inner.cache.set_limit(bytes_max);
    }

    /// Ends the use of the cache: see [`Cache::close`](crate::cache::Cache::close). Blocks.
    pub fn close(&self) {
        self.inner.cache.close();
    }

    /// Opens an object, again if it is replaced meanwhile.
    async fn open_object(&self, key: &Key, wanted: &Wanted) -> Result<Object> {
        let inner = &self.inner;
        for _ in 0..ATTEMPTS {
            let Some((version, how)) = inner.head(key, wanted).await? else {
                break;
            };
            match inner.object(version, how, wanted).await {
                // The copy is not complete, and the rest is not there any more.
                Err(StoreError::Changed) => inner.heads.forget(key),
                opened => return opened,
            }
        }
        let how = CacheUse::Miss {
            is_stored: false,
            is_collapsed: false,
        };
        inner.metrics.count(how);
        let object = inner.store.open(key, wanted.clone()).await?;
        Ok(object.with_cached(Cached { how, fresh_ms: 0 }))
    }

    /// The uploads of the other store.
    fn resumable(&self) -> Result<&dyn ResumableUploads> {
        self.inner.store.uploads().ok_or(StoreError::Unsupported)
    }
}

impl EdgeInner {
    fn now_ms(&self) -> i64 {
        self.ms_at(Instant::now())
    }

    /// The time on the clock of [`EdgeInner::now_ms`].
    fn ms_at(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.began).as_millis() as i64
    }

    fn openings(&self) -> MutexGuard<'_, HashMap<Key, Pending>> {
        self.openings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fills(&self) -> MutexGuard<'_, HashMap<Name, Arc<Fill>>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self, make: impl FnOnce() -> LocalFuture<'static, ()> + Send + 'static) {
        // Otherwise the store is being dropped, and so is `make`.
        if let Some(runner) = self.runner.get().and_then(Weak::upgrade) {
            runner.spawn(make);
        }
    }

    /// Lets those go on who wait for a store that does not respond.
    fn tick(&self, has_upkeep: bool) {
        let slow: Vec<_> = (self.openings().values())
            .filter(|pending| pending.begun.elapsed() >= SLOW)
            .map(|pending| pending.opening.clone())
            .collect();
        for opening in slow {
            if opening.with(|state| matches!(state, Opened::Waits)) {
                opening.update(|state| {
                    if matches!(state, Opened::Waits) {
                        *state = Opened::IsSlow;
                    }
                });
            }
        }
        if has_upkeep {
            let cache = self.cache.clone();
            self.cache.pool().run(move || cache.upkeep(false)).detach();
        }
    }
}

impl Store for EdgeStore {
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move { self.open_object(key, &wanted).await })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        self.inner.store.meta(key)
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        self.inner.store.existing_object(key)
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let upload = self.inner.store.stage(key, condition, size_bytes).await?;
            Ok(Box::new(EdgeUpload::new(upload, &self.inner, key)) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            let change = Change::new(&self.inner, key);
            let result = self.inner.store.delete(key, kind, condition).await;
            change.complete(result).await
        })
    }

    fn create_folder<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        self.inner.store.create_folder(key)
    }

    fn copy(&self, how: Relocation) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async move {
            let change = Change::new(&self.inner, &how.to);
            change.complete(self.inner.store.copy(how).await).await
        })
    }

    fn overlap<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<Overlap>> {
        self.inner.store.overlap(from, to)
    }

    fn folds_names<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        self.inner.store.folds_names(key)
    }

    /// Not of folders: copies of the objects beneath would remain.
    fn rename(&self, how: Relocation, kind: Kind) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async move {
            if kind == Kind::Directory {
                return Err(StoreError::Unsupported);
            }
            let from = Change::new(&self.inner, &how.from);
            let to = Change::new(&self.inner, &how.to);
            let result = self.inner.store.rename(how, kind).await;
            to.complete(from.complete(result).await).await
        })
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        self.inner.store.list(folder, how)
    }

    fn check_folder<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<()>> {
        self.inner.store.check_folder(folder)
    }

    fn next_entries<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DetailedEntry>>> {
        self.inner.store.next_entries(cursor, limit)
    }

    /// A small object that is fresh, if its file can be opened from the kernel's caches.
    fn try_get(&self, key: &Key) -> Option<Result<Object>> {
        let inner = &self.inner;
        let generation = inner.heads.generation(key);
        let head = inner.heads.get(key)?;
        let is_ready = head.is_small() && head.is_stored.load(Acquire);
        if !is_ready || head.fresh_ms(inner.now_ms()) == 0 {
            return None;
        }
        let file = inner.cache.try_open(&head.file)?;
        // The generation changes before the file is replaced.
        if inner.heads.generation(key) != generation {
            return None;
        }
        Some(Ok(inner.local(&head, Arc::new(file), head.how_fresh())))
    }

    fn generation(&self, key: &Key) -> Option<u64> {
        Some(self.inner.heads.generation(key))
    }

    fn swaps(&self) -> u64 {
        self.inner.store.swaps()
    }

    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        self.inner
            .store
            .uploads()
            .map(|_| self as &dyn ResumableUploads)
    }

    fn features(&self) -> Features {
        Features {
            renames_folders: false,  // See `rename`.
            watch: false,            // A copy would have to follow the changes.
            properties_bytes_max: 0, // As for `watch`.
            ..self.inner.store.features().passed_on()
        }
    }
}

impl ResumableUploads for EdgeStore {
    fn stage_resumable<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let staged = self
                .resumable()?
                .stage_resumable(key, condition, size_bytes);
            let upload = EdgeUpload::new(staged.await?, &self.inner, key);
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let upload = self.resumable()?.resume(key, condition, kept).await?;
            Ok(Box::new(EdgeUpload::new(upload, &self.inner, key)) as Box<dyn Upload>)
        })
    }

    fn write_partial<'a>(
        &'a self,
        kept: &'a PartialUpload,
        position: u64,
        buf: Vec<u8>,
    ) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(async move { self.resumable()?.write_partial(kept, position, buf).await })
    }

    fn sync_partial<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { self.resumable()?.sync_partial(kept).await })
    }

    fn discard_replaced<'a>(
        &'a self,
        old: &'a PartialUpload,
        new: &'a PartialUpload,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            if let Ok(uploads) = self.resumable() {
                uploads.discard_replaced(old, new).await;
            }
        })
    }

    fn published<'a>(
        &'a self,
        key: &'a Key,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Option<u64>>> {
        Box::pin(async move { self.resumable()?.published(key, kept).await })
    }

    fn is_kept<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async move { self.resumable()?.is_kept(kept).await })
    }

    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move { self.resumable()?.discard(kept).await })
    }

    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>> {
        Box::pin(async move { self.resumable()?.discard_older(age).await })
    }
}

impl fmt::Debug for EdgeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeStore")
            .field("store", &self.inner.store)
            .field("cache", &self.inner.cache)
            .field("runner", &self.runner)
            .finish_non_exhaustive()
    }
}
