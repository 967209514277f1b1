//! The store on a disk: a folder and everything in it.
//!
//! The calling worker first tries to open and read an object itself, and uses the pool only if that
//! would block. Properties and listings are always read on the pool. The commit of a change is one
//! blocking job (`commit`). On tmpfs nothing blocks, so the calling worker makes the change itself.
//!
//! Modules: `dirs` (the store's own folders), `key_locks` (locks and generations by key), `locks`
//! (those that other processes see), `options`, `settings` (options that can change), `parents`
//! (parent folders and their durability), `rights` (owner, group and mode), `trees` (what a folder
//! contains), `staging` (folders of uploads before their commit), `mounts` (other file systems
//! beneath the folder), `staged` (files and names there), `writing` and `copying` (into a staged
//! file), `needed` (what a folder that can be written needs), `move_records` (moves of dead
//! processes), `again` (whether the path still leads to the folder), `change` (runs changes under
//! their locks), `moves` (completes those of dead processes), `commit` (put and delete), `kept`
//! (uploads that continue later), `upload` (the asynchronous part of a put), `overlap` (how two
//! names lie to each other), `displaced` (what a rename replaces), `relocate` (copy and rename),
//! `remote` (objects that no worker opens), `properties` (of clients), `names` (sorted names of a
//! folder), `recent_names` (those of earlier pages), `walk` (what a folder contains, in steps),
//! `list`, `listing_queue` (the number of simultaneous listings), `watches` (changes of folders),
//! `name_case` (whether names are distinguished by case), `prepared_options` (options before they
//! apply), `store` (the operations).

mod again;
mod change;
mod commit;
mod copying;
mod count;
mod dirs;
mod displaced;
mod kept;
mod key_locks;
mod list;
mod listing_queue;
mod locks;
mod mounts;
mod move_records;
mod moves;
mod name_case;
mod names;
mod needed;
mod options;
mod overlap;
mod parents;
mod prepared_options;
mod properties;
mod recent_names;
mod relocate;
mod remote;
mod rights;
mod settings;
mod staged;
mod staging;
mod store;
mod trees;
mod upload;
mod walk;
mod watches;
mod writing;

use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::local::LocalFile;
use crate::meta::{Kind, Meta};
use crate::object::Object;
use crate::stamps::Stamps;
use crate::store::{Committed, Condition, Relocation, Space};
use crate::usage::{COUNTED_BYTES_MIN, Usages};
use again::Again;
pub use count::Counted;
use key_locks::KeyLocks;
use listing_queue::ListingQueue;
use locks::{Locks, ProcessLocks};
use mounts::Mounts;
pub use name_case::folds_names;
use needed::NeededToWrite;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, FileKind, Metadata, OpenHow, Releaser};
pub use options::{Durability, FolderOptions};
use parents::Parents;
pub use prepared_options::PreparedOptions;
use recent_names::RecentNames;
pub(crate) use relocate::Replaces;
use remote::Remotes;
use settings::Settings;
use staging::Staging;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use watches::Watches;

/// The pool frees the content of objects of at least this size. For smaller ones, that costs more
/// than freeing them at once.
const RELEASE_ON_POOL_BYTES_MIN: u64 = 16 << 20;

/// A directory as a store. Clones share one store, which all workers use.
#[derive(Clone)]
pub struct Folder {
    inner: Arc<FolderInner>,
}

struct FolderInner {
    root: Arc<Dir>,
    /// For operations that may wait for a disk.
    pool: BlockingPool,
    /// For changes: the same pool, or an inline one if there is no disk to wait for.
    change_pool: BlockingPool,
    /// Frees large objects that are removed.
    releaser: Arc<Releaser>,
    /// As the folder was opened; `settings` has what has changed.
    options: FolderOptions,
    settings: Settings,
    /// Empty while read-only.
    staging: RwLock<Option<Arc<Staging>>>,
    mounts: Mounts,
    remotes: Remotes,
    again: Again,
    key_locks: KeyLocks,
    process_locks: ProcessLocks,
    listing_queue: ListingQueue,
    recent_names: Arc<RecentNames>,
    parents: Parents,
    watches: Watches,
    stamps: Stamps,
    usages: Arc<Usages>,
    /// See [`Folder::set_check_hook`].
    #[cfg(feature = "testing")]
    check_hook: std::sync::OnceLock<CheckHook>,
}

#[cfg(feature = "testing")]
type CheckHook = Box<dyn Fn() + Send + Sync>;

impl Folder {
    /// Opens the directory at `path` as a store. If `options.writable` is set, it creates a missing
    /// directory and `.onrush/staging`, and removes files that dead processes left there. Blocks,
    /// so call it at start-up. Returns the system's error, so that callers can show it with the
    /// path.
    pub fn open(path: &Path, pool: BlockingPool, options: FolderOptions) -> io::Result<Folder> {
        if options.writable {
            fs::create_dir_all(path)?;
        }
        Folder::build(Dir::open_root(path)?, Some(path), pool, options)
    }

    /// As [`Folder::open`], for an open directory, which may be simulated.
    pub fn on(root: Dir, pool: BlockingPool, options: FolderOptions) -> Result<Folder> {
        Folder::build(root, None, pool, options).map_err(StoreError::from_change)
    }

    fn build(
        root: Dir,
        path: Option<&Path>,
        pool: BlockingPool,
        options: FolderOptions,
    ) -> io::Result<Folder> {
        // Passing a job to another thread and back costs more than a change in memory.
        let is_in_memory = root.is_in_memory();
        let change_pool = match is_in_memory {
            true => BlockingPool::inline(),
            false => pool.clone(),
        };
        let pool_threads = pool.threads_max();
        let inner = FolderInner {
            releaser: Releaser::new(&pool, is_in_memory),
            root: Arc::new(root),
            pool,
            change_pool,
            settings: Settings::new(&options),
            options,
            staging: RwLock::default(),
            again: Again::new(path),
            mounts: Mounts::default(),
            remotes: Remotes::default(),
            key_locks: KeyLocks::new(),
            process_locks: ProcessLocks::new(pool_threads),
            listing_queue: ListingQueue::new(pool_threads),
            recent_names: Arc::default(),
            parents: Parents::new(pool_threads),
            watches: Watches::default(),
            stamps: Stamps::default(),
            usages: Usages::new(),
            #[cfg(feature = "testing")]
            check_hook: std::sync::OnceLock::new(),
        };
        inner.remotes.set_root(inner.root.is_local());
        let inner = Arc::new(inner);
        if inner.options.writable {
            inner.make_writable(NeededToWrite::open(&inner.root)?);
        }
        Ok(Folder { inner })
    }

    /// Replaces some options of the folder while it is in use: see [`Folder::prepare_options`].
    /// Blocks.
    ///
    /// # Errors
    /// If the folder cannot be made writable. Its options are the earlier ones then.
    pub fn set_options(&self, options: &FolderOptions) -> io::Result<()> {
        self.prepare_options(options).map(PreparedOptions::apply)
    }

    /// Does what may fail before some options of the folder are replaced: `min_free_bytes`,
    /// `checksums` and `keep_properties`; and `writable`, if it was not set before. It stays set,
    /// so a caller that has more to prepare applies the result when nothing can fail any more. The
    /// other options are ignored, because a change that is in progress depends on them until its
    /// end. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be made writable.
    pub fn prepare_options(&self, options: &FolderOptions) -> io::Result<PreparedOptions> {
        PreparedOptions::new(&self.inner, options)
    }

    /// The free space of this file system in bytes.
    pub fn free_bytes(&self) -> Result<u64> {
        self.inner
            .root
            .free_bytes()
            .map_err(StoreError::from_open_file)
    }

    /// What counts of the folder by prefix.
    pub(crate) fn usages(&self) -> &Arc<Usages> {
        &self.inner.usages
    }

    /// Whether symbolic links that stay beneath the folder are followed; see
    /// [`Dir::follows_links`]. If not, a link or a path through one is reported as not found.
    pub fn follows_links(&self) -> bool {
        self.inner.root.follows_links()
    }

    /// Looks whether the path of the folder still leads to it, on the pool and at most once per
    /// second. Returns why the folder cannot be used, as far as is known: `NotFound` if it is gone,
    /// `TimedOut` if a look takes longer than five seconds. Does not block.
    pub fn look_again(&self) -> Option<io::ErrorKind> {
        let _ = again::look_if_due(&self.inner);
        self.inner.again.failure()
    }

    /// Calls `hook` each time after the path has led to another folder than before, and that was
    /// opened. Only the first hook is used.
    pub fn on_swap(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.inner.again.set_hook(Box::new(hook));
    }

    /// Has `check` decide, each time that the path leads to another folder, whether to go on with
    /// that: it gets the path, and whether changes are allowed. If it fails, its error is the
    /// reason that [`Folder::look_again`] returns, and until a later look, what begins fails with
    /// [`StoreError::Unavailable`]. Only the first one is used.
    pub fn check_swaps(
        &self,
        check: impl Fn(&Path, bool) -> io::Result<()> + Send + Sync + 'static,
    ) {
        self.inner.again.set_check(Box::new(check));
    }

    /// See [`Store::swaps`](crate::Store::swaps).
    pub(crate) fn swap_count(&self) -> &Arc<AtomicU64> {
        self.inner.again.swaps()
    }

    /// Whether changes are allowed.
    pub fn writable(&self) -> bool {
        self.inner.staging().is_ok()
    }

    /// Whether uploads may have metadata ([`crate::Upload::set_metadata`]): the store is writable
    /// and its file system supports extended attributes.
    pub fn keeps_metadata(&self) -> bool {
        let staging = self.inner.staging();
        staging.is_ok_and(|staging| staging.keeps_metadata())
    }

    /// Whether conditions hold against changes by other processes on this folder as well: the file
    /// system has locks (`F_OFD_SETLK`, fcntl(2)).
    pub fn excludes_processes(&self) -> bool {
        self.inner.process_locks.are_supported()
    }

    /// Whether the calling worker writes uploads itself, because there is no disk to wait for.
    /// Receiving bytes while others are written then gains nothing.
    pub fn writes_inline(&self) -> bool {
        self.inner.change_pool.is_inline()
    }

    /// The pool that runs the blocking jobs of this folder.
    pub fn pool(&self) -> &BlockingPool {
        &self.inner.pool
    }

    /// Calls `hook` before each check of a condition other than [`Condition::None`], while the
    /// lock of the key is held. Tests change the disk there. Only the first hook is used.
    #[cfg(feature = "testing")]
    pub fn set_check_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.inner.check_hook.set(Box::new(hook));
    }

    /// Runs `job` on `pool`, one of the two of this folder. A panic of the job becomes an error.
    async fn run<T, F>(&self, pool: &BlockingPool, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Arc<FolderInner>) -> Result<T> + Send + 'static,
    {
        self.inner.run(pool, job).await
    }
}

impl FolderInner {
    /// As [`Folder::run`]. Fails if the folder must not be used any more.
    async fn run<T, F>(self: &Arc<Self>, pool: &BlockingPool, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Arc<FolderInner>) -> Result<T> + Send + 'static,
    {
        again::look_if_due(self)?;
        let inner = self.clone();
        pool.run(move || job(&inner)).await?
    }

    /// Opens an object. `what_for` is the purpose for which it stays open.
    fn open(&self, key: &Key, what_for: FileUse) -> Result<(Meta, File)> {
        let opened = self.open_object(key, what_for)?;
        Ok((opened.meta, opened.file))
    }

    fn open_object(&self, key: &Key, what_for: FileUse) -> Result<Opened> {
        let permit = self.options.descriptors.open_file(what_for);
        let permit = permit.ok_or(StoreError::Busy)?;
        let opened = self.root.open(key.as_bytes(), OpenHow::READ);
        check_regular(opened.map_err(StoreError::from_lookup)?.with_permit(permit))
    }

    /// The object of an opened file of a local file system.
    fn object(&self, opened: Opened) -> Object {
        let Opened { meta, file, .. } = opened;
        // After a delete or a replacement, the last reader frees the content.
        let file = match meta.size >= RELEASE_ON_POOL_BYTES_MIN {
            true => file.release_on(&self.releaser),
            false => file,
        };
        let local = LocalFile::new(Arc::new(file), self.pool.clone());
        Object::from_local(meta, local)
    }

    fn meta(&self, key: &Key) -> Result<Meta> {
        let found = self
            .root
            .metadata(key.as_bytes())
            .map_err(StoreError::from_lookup)?;
        Meta::from_file(&found).ok_or(StoreError::NotFound)
    }

    /// The object that a put would replace. `None` if there is none. An entry that is not a regular
    /// file is a conflict and must not be overwritten. That includes a symbolic link: reading it
    /// returns another object, and a condition on that object does not concern the link.
    fn existing_object(&self, key: &Key) -> Result<Option<Meta>> {
        match parents::open(self, key.split().0) {
            Ok(parent) => existing_object(self, parent.dir(), key),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::from_change(error)),
        }
    }

    /// Checks the condition of a change. The caller holds the lock of the key.
    fn check(&self, condition: &Condition, current: Option<&Meta>) -> Result<()> {
        #[cfg(feature = "testing")]
        if let Some(hook) = self.check_hook.get()
            && !condition.is_none()
        {
            hook();
        }
        condition.check(current)
    }

    /// Fails if the free space would be below the limit after `bytes` more are written for `key`.
    /// The server's own objects are small, and are needed to end what has begun.
    fn check_free(&self, key: &Key, bytes: u64) -> Result<()> {
        let is_limited = self.settings.min_free_bytes.load(Ordering::Relaxed) > 0;
        match is_limited && (!key.reserved() || key.is_staged()) {
            true => self.check_free_in(&mounts::deepest(self, key)?.0, bytes),
            false => Ok(()),
        }
    }

    /// As [`FolderInner::check_free`], for a folder at `path` that is about to be created.
    fn check_free_for_folder(&self, path: &[u8]) -> Result<()> {
        match Key::parse(path) {
            Ok(key) => self.check_free(&key, COUNTED_BYTES_MIN),
            Err(_) => Ok(()),
        }
    }

    /// As [`FolderInner::check_free`], for an object of a client on the file system of `dir`.
    fn check_free_in(&self, dir: &Dir, bytes: u64) -> Result<()> {
        let min_free_bytes = self.settings.min_free_bytes.load(Ordering::Relaxed);
        if min_free_bytes == 0 {
            return Ok(());
        }
        let free_bytes = dir.free_bytes().map_err(StoreError::from_open_file)?;
        match free_bytes < min_free_bytes.saturating_add(bytes) {
            true => Err(StoreError::Full(io::ErrorKind::StorageFull.into())),
            false => Ok(()),
        }
    }

    fn root_meta(&self) -> Result<Meta> {
        let found = self.root.self_metadata();
        let found = found.map_err(StoreError::from_lookup)?;
        Meta::from_file(&found).ok_or(StoreError::NotFound)
    }

    /// The space of the file system of a folder, without what has to stay free.
    fn space(&self, folder: Option<&Key>) -> Result<Space> {
        let opened;
        let dir = match folder {
            None => &self.root,
            Some(key) => {
                let found = self.root.open_dir(key.as_bytes());
                opened = found.map_err(StoreError::from_lookup)?;
                &opened
            }
        };
        let free_bytes = dir.free_bytes().map_err(StoreError::from_open_file)?;
        let min_free_bytes = self.settings.min_free_bytes.load(Ordering::Relaxed);
        Ok(Space {
            available_bytes: free_bytes.saturating_sub(min_free_bytes),
            used_bytes: dir.used_bytes().map_err(StoreError::from_open_file)?,
        })
    }

    /// A modification time that this store has not set before.
    fn next_stamp_ns(&self) -> i64 {
        self.stamps.next_ns(self.root.now_ns())
    }

    fn durable(&self) -> bool {
        self.options.durability == Durability::Full
    }

    /// Whether new objects get a checksum.
    fn has_checksums(&self) -> bool {
        self.settings.checksums.load(Ordering::Relaxed)
            && (self.staging()).is_ok_and(|staging| staging.keeps_metadata())
    }

    /// The staging folder of the root folder.
    fn staging(&self) -> Result<Arc<Staging>> {
        let staging = self.staging.read();
        let staging = staging.unwrap_or_else(PoisonError::into_inner);
        staging.clone().ok_or(StoreError::Forbidden)
    }

    /// Whether an object that is replaced passes its properties on.
    fn keeps_properties(&self) -> bool {
        self.settings.keep_properties.load(Ordering::Relaxed)
    }

    /// Lets changes begin, or those that begin go on in another folder. The staging is last,
    /// because they begin when it is there.
    fn make_writable(self: &Arc<Self>, needed: NeededToWrite) {
        self.process_locks.set(needed.locks);
        let staging = Some(Arc::new(needed.staging));
        *(self.staging.write()).unwrap_or_else(PoisonError::into_inner) = staging;
        move_records::complete_free(self);
    }
}

/// As [`FolderInner::existing_object`], with the open parent folder.
fn existing_object(inner: &FolderInner, parent: &Dir, key: &Key) -> Result<Option<Meta>> {
    let found = existing_file(inner, parent, key)?;
    Ok(found.and_then(|found| Meta::from_file(&found)))
}

/// As [`existing_object`], with everything that the file system says about it.
fn existing_file(inner: &FolderInner, parent: &Dir, key: &Key) -> Result<Option<Metadata>> {
    match parent.entry_metadata(key.name()) {
        Ok(found) if found.kind == FileKind::File => {
            match mounts::is_mount_point(inner, parent, &found)? {
                true => Err(StoreError::MountPoint),
                false => Ok(Some(found)),
            }
        }
        Ok(found) if found.kind == FileKind::Directory => Err(StoreError::IsDirectory),
        Ok(_) => Err(StoreError::Conflict),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::from_change(error)),
    }
}

/// An open file that is an object.
struct Opened {
    meta: Meta,
    /// What `meta` was made of.
    found: Metadata,
    file: File,
}

/// Checks that an opened file is a regular file. Nothing else is an object.
fn check_regular(file: File) -> Result<Opened> {
    let found = file.metadata().map_err(StoreError::from_lookup)?;
    let meta = Meta::from_file(&found).ok_or(StoreError::NotFound)?;
    match meta.kind {
        Kind::File => Ok(Opened { meta, found, file }),
        Kind::Directory => Err(StoreError::IsDirectory),
    }
}

/// How often a DELETE waits for moves of the object by other processes.
const MOVE_ATTEMPTS: usize = 4;

impl Folder {
    /// As [`Store::delete`]. Returns also the bytes of objects that the folder has less.
    pub(crate) async fn delete_counted(
        &self,
        key: &Key,
        kind: Kind,
        condition: Condition,
    ) -> Result<(Meta, u64)> {
        if key.is_internal() || !self.writable() {
            return Err(StoreError::Forbidden);
        }
        for attempt in 0..MOVE_ATTEMPTS {
            let is_first = attempt == 0;
            let locks = Locks::one(key_locks::acquire(&self.inner, key).await);
            let (at, condition) = (key.clone(), condition.clone());
            let job = move |inner: &Arc<FolderInner>, _locks| match move_records::is_pending(
                inner,
                &[&at],
                is_first,
            ) {
                true => Ok(None),
                false => commit::delete(inner, &at, kind, &condition).map(Some),
            };
            if let Some(deleted) = change::run(&self.inner, locks, job).await? {
                return Ok(deleted);
            }
            moves::complete(&self.inner, &[key]).await?;
        }
        Err(StoreError::Conflict)
    }
}

impl Folder {
    /// [`Store::rename`] and [`Store::replace`].
    pub(crate) async fn relocate(
        &self,
        how: Relocation,
        kind: Kind,
        replaces: Replaces,
    ) -> Result<Committed> {
        relocate::rename(&self.inner, how, kind, replaces).await
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}
