//! The store on a disk: a folder, and everything in it.
//!
//! Reads are tried at once, on the worker that asks, and go to the pool only if they would wait.
//! Changes are one blocking job each, written straight down in `commit`; in memory (tmpfs) nothing
//! blocks, and the worker that asks makes them itself. Files:
//! `commit` (put and delete), `parents` (folders on the way, and whether they are durable),
//! `staging` (uploads before their commit), `upload` (the future side of a put), `list`,
//! `semaphore` (who waits for what), `stripes` (locks and generations by key), `listing_queue` (how
//! many listings at a time).
//!
//! This module must not know drivers, sockets or protocols.

mod commit;
mod list;
mod listing_queue;
mod parents;
mod semaphore;
mod staging;
mod stripes;
mod upload;

use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Condition, ListHow, LocalFuture, Object, Page, Store, Upload, now};
use listing_queue::{ListingQueue, ListingTurn, Query};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::{Descriptors, FileUse};
use onrush_rt::fs::{Dir, File, FileKind, OpenHow, Releaser};
use parents::Parents;
use staging::Staging;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use stripes::Stripes;

/// The least distance between two modification times the store gives. Some file systems keep
/// times in units of 100 ns; the stamps must differ there too.
const STAMP_STEP_NS: i64 = 1000;

/// The content of an object of at least so many bytes is freed by the pool. To free less takes no
/// longer than to transfer it.
const RELEASE_ON_POOL_BYTES_MIN: u64 = 16 << 20;

/// What an answered change survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: file and folders are synced before the answer.
    #[default]
    Full,
    /// Only the end of the process. Replacement is still atomic for readers, but after a power
    /// cut objects of the last half minute may be missing, old, or (on some file systems) empty.
    None,
}

/// How a [`Folder`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// Whether anything may be changed. Only then `.onrush` is made.
    pub writable: bool,
    /// What an answered change survives.
    pub durability: Durability,
    /// Permission bits of new objects, before the umask.
    pub file_mode: u32,
    /// Permission bits of new folders, before the umask.
    pub dir_mode: u32,
    /// Counts the files that objects and uploads keep open. When it has no room for one more,
    /// operations fail with [`StoreError::Busy`]. Without a limit by default.
    pub descriptors: Descriptors,
}

impl Default for FolderOptions {
    /// Writable, durable, and with the modes that other tools use too.
    fn default() -> FolderOptions {
        FolderOptions {
            writable: true,
            durability: Durability::Full,
            file_mode: 0o666,
            dir_mode: 0o777,
            descriptors: Descriptors::default(),
        }
    }
}

/// A directory as a store. Clones are the same store; all workers share one.
#[derive(Clone)]
pub struct Folder {
    inner: Arc<Inner>,
}

struct Inner {
    root: Dir,
    /// For what may wait for a disk.
    pool: BlockingPool,
    /// For changes: the same, or none when there is no disk to wait for.
    changes: BlockingPool,
    /// Frees large objects that are removed.
    releaser: Arc<Releaser>,
    options: FolderOptions,
    /// `None` if read-only.
    staging: Option<Staging>,
    stripes: Stripes,
    listing_queue: ListingQueue,
    parents: Parents,
    /// The last modification time given.
    stamp_ns: AtomicI64,
}

impl Folder {
    /// Opens the directory at `path` as a store. If it may be written, a missing directory is
    /// created, `.onrush/staging` is made, and what dead processes left there is removed. Blocks:
    /// for start-up. The error is of the system, so that its text can be shown with the path.
    pub fn open(path: &Path, pool: BlockingPool, options: FolderOptions) -> io::Result<Folder> {
        if options.writable {
            fs::create_dir_all(path)?;
        }
        Folder::build(Dir::open_root(path)?, pool, options)
    }

    /// As [`Folder::open`], on a directory that is open already, perhaps a simulated one.
    pub fn on(root: Dir, pool: BlockingPool, options: FolderOptions) -> Result<Folder> {
        Folder::build(root, pool, options).map_err(StoreError::of_write)
    }

    fn build(root: Dir, pool: BlockingPool, options: FolderOptions) -> io::Result<Folder> {
        let staging = options.writable.then(|| Staging::open(&root)).transpose()?;
        // Two hand-overs between threads cost more than a change in memory.
        let is_in_memory = root.is_in_memory();
        let changes = match is_in_memory {
            true => BlockingPool::inline(),
            false => pool.clone(),
        };
        let pool_threads = pool.threads_max();
        let inner = Inner {
            releaser: Releaser::new(&pool, is_in_memory),
            root,
            pool,
            changes,
            options,
            staging,
            stripes: Stripes::new(),
            listing_queue: ListingQueue::new(),
            parents: Parents::new(pool_threads),
            stamp_ns: AtomicI64::new(0),
        };
        Ok(Folder {
            inner: Arc::new(inner),
        })
    }

    /// Opens an object if that can be done without waiting for a disk (`openat2(2)` with
    /// `RESOLVE_CACHED`, `statx(2)`): for the worker's hot path. `None`: use [`Store::get`].
    pub fn try_open_now(&self, key: &Key) -> Option<Result<Object>> {
        if key.reserved() {
            return Some(Err(StoreError::NotFound));
        }
        let Some(permit) = self.inner.options.descriptors.open_file(FileUse::Brief) else {
            return Some(Err(StoreError::Busy));
        };
        let opened = now(self.inner.root.open_cached(key.as_bytes()))?;
        let checked = opened.and_then(|file| check(file.with_permit(permit)));
        Some(checked.map(|opened| self.inner.object(opened)))
    }

    /// Changes with every change made through this store; see [`Store::generation`].
    pub fn generation(&self, key: &Key) -> u64 {
        self.inner.stripes.generation(key)
    }

    /// Bytes that may still be written on this file system.
    pub fn free_bytes(&self) -> Result<u64> {
        self.inner.root.free_bytes().map_err(StoreError::of_any)
    }

    /// Whether symbolic links that stay beneath the folder are followed; see
    /// [`Dir::follows_links`]. Where they are not, what is at or behind one is not found.
    pub fn follows_links(&self) -> bool {
        self.inner.root.follows_links()
    }

    /// Whether changes are allowed.
    pub fn writable(&self) -> bool {
        self.inner.staging.is_some()
    }

    /// Whether uploads may have metadata ([`Upload::set_metadata`]): whether this is writable, on a
    /// file system with extended attributes.
    pub fn keeps_metadata(&self) -> bool {
        let staging = self.inner.staging.as_ref();
        staging.is_some_and(Staging::keeps_metadata)
    }

    /// Whether the caller writes uploads itself, because no disk is waited for. Nothing is gained
    /// then by receiving bytes while others are written.
    pub fn writes_inline(&self) -> bool {
        self.inner.changes.is_inline()
    }

    /// The pool this folder's jobs run on.
    pub fn pool(&self) -> &BlockingPool {
        &self.inner.pool
    }

    /// Runs `job` on `pool`, one of ours, and flattens its two ways to fail.
    async fn run<T, F>(&self, pool: &BlockingPool, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Arc<Inner>) -> Result<T> + Send + 'static,
    {
        let inner = self.inner.clone();
        pool.run(move || job(&inner)).await?
    }
}

impl Inner {
    fn open(&self, key: &Key) -> Result<(Meta, File)> {
        let permit = self.options.descriptors.open_file(FileUse::Brief);
        let permit = permit.ok_or(StoreError::Busy)?;
        let opened = self.root.open(key.as_bytes(), OpenHow::READ);
        check(opened.map_err(StoreError::of_read)?.with_permit(permit))
    }

    fn object(&self, (meta, file): (Meta, File)) -> Object {
        // Its reader may be the last one that holds it, after a delete or a replacement.
        let file = match meta.size >= RELEASE_ON_POOL_BYTES_MIN {
            true => file.release_on(&self.releaser),
            false => file,
        };
        Object::from_file(meta, Arc::new(file), self.pool.clone())
    }

    fn meta(&self, key: &Key) -> Result<Meta> {
        let found = self
            .root
            .metadata(key.as_bytes())
            .map_err(StoreError::of_read)?;
        Meta::of_file(&found).ok_or(StoreError::NotFound)
    }

    /// The object that a put would replace: `None` if there is nothing, and a conflict if there
    /// is something else, which must not be overwritten. A symbolic link is something else: what
    /// is read at it is another object, and a condition on that says nothing of the link.
    fn replaced(&self, key: &Key) -> Result<Option<Meta>> {
        let found = parents::open(self, key.split().0)
            .and_then(|parent| parent.dir().entry_metadata(key.name()));
        match found {
            Ok(found) if found.kind == FileKind::File => Ok(Meta::of_file(&found)),
            Ok(_) => Err(StoreError::Conflict),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::of_write(error)),
        }
    }

    /// A modification time that this store has not given before.
    fn next_stamp_ns(&self) -> i64 {
        let now = self.root.now_ns();
        let next = |last: i64| now.max(last.saturating_add(STAMP_STEP_NS));
        let update = |last| Some(next(last));
        match self
            .stamp_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, update)
        {
            Ok(last) | Err(last) => next(last),
        }
    }

    fn durable(&self) -> bool {
        self.options.durability == Durability::Full
    }

    fn staging(&self) -> Result<&Staging> {
        self.staging.as_ref().ok_or(StoreError::Forbidden)
    }
}

/// Whatever was opened counts as an object only if it is a regular file.
fn check(file: File) -> Result<(Meta, File)> {
    let found = file.metadata().map_err(StoreError::of_any)?;
    let meta = Meta::of_file(&found).ok_or(StoreError::NotFound)?;
    match meta.kind {
        Kind::File => Ok((meta, file)),
        Kind::Directory => Err(StoreError::IsDirectory),
    }
}

impl Store for Folder {
    fn get<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move {
            if let Some(result) = self.try_open_now(key) {
                return result;
            }
            let key = key.clone();
            let opened = self
                .run(&self.inner.pool, move |inner| inner.open(&key))
                .await?;
            Ok(self.inner.object(opened))
        })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            if key.reserved() {
                return Err(StoreError::NotFound);
            }
            let key = key.clone();
            self.run(&self.inner.pool, move |inner| inner.meta(&key))
                .await
        })
    }

    fn replaced<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        Box::pin(async move {
            if key.reserved() {
                return Err(StoreError::Forbidden);
            }
            let key = key.clone();
            self.run(&self.inner.changes, move |inner| inner.replaced(&key))
                .await
        })
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let upload = upload::Staged::begin(&self.inner, key, size_bytes).await?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(&'a self, key: &'a Key, condition: Condition) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            if key.reserved() || !self.writable() {
                return Err(StoreError::Forbidden);
            }
            let lock = stripes::acquire(&self.inner, key).await;
            let key = key.clone();
            self.run(&self.inner.changes, move |inner| {
                let _lock = lock;
                commit::delete(inner, &key, condition)
            })
            .await
        })
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        Box::pin(async move {
            if folder.is_some_and(Key::reserved) {
                return Err(StoreError::NotFound);
            }
            let query = Arc::new(Query {
                folder: folder.cloned(),
                how,
            });
            let permit = match listing_queue::wait(&self.inner, &query).await {
                ListingTurn::Proceed(permit) => permit,
                ListingTurn::Made(page) => return Ok(Arc::unwrap_or_clone(page)),
            };
            let job = move |inner: &Arc<Inner>| {
                let page = list::list(inner, query.folder.as_ref(), &query.how)?;
                permit.share(&page);
                // The next turn begins when this page was fetched: pages do not pile up.
                Ok((page, permit))
            };
            self.run(&self.inner.pool, job)
                .await
                .map(|(page, _permit)| page)
        })
    }

    fn generation(&self, key: &Key) -> u64 {
        self.inner.stripes.generation(key)
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
