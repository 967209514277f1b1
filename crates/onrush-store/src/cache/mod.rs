//! A bounded store of files on a local disk. When it is full, the files that were not used for the
//! longest time are removed. It does not know what the files contain.
//!
//! - **Space.** A file takes its space before the first byte is written ([`Cache::create`]), and
//!   keeps it until it is removed and no reader has it open. The sum, in allocated blocks, never
//!   exceeds the limit; only the folders themselves (about 1 % for small files) are not included.
//! - **Eviction** removes names. A reader that has the file open keeps its bytes. Files that are
//!   open are not evicted, because that would free nothing.
//! - **Order.** The last use of a file is its modification time, which [`Cache::upkeep`] writes
//!   once a minute at most, so that the order survives a restart.
//! - **Restart.** [`Cache::close`] leaves a list of the files for the next process. Without it, a
//!   scan finds the files while the cache is in use: a file that is asked for is found on the disk.
//!   If the last process was killed, an upper bound of the used space is known. New files are
//!   stored within it, and the oldest files that the scan has found so far are removed for them.
//!   After a power cut, new files are refused ([`NotStored::Scanning`]) until the scan is complete.
//! - **Whole files.** Nothing is synced. A file that this process has not written is not trusted
//!   until the caller has verified it ([`Cache::trust`]): a power cut may have torn it.
//! - **Failures** of the disk are reported once, and no new file is created for a while. Then a
//!   scan that has failed begins again. Files that exist are opened all the time. If others fill
//!   the disk, files are removed as if the limit were lower. A folder that was removed is created
//!   again.
//!
//! Methods whose documentation says "blocks" belong on the pool. Layers, lowest first: `name` ·
//! `list` · `found` · `space` · `folder` · `bound` · `index` · `failure` · `scan` ·
//! `filling`.

mod bound;
mod failure;
mod filling;
mod folder;
mod found;
mod index;
mod list;
mod name;
mod scan;
mod space;

use crate::error::Cause;
use crate::sync::watch::Watch;
use crate::sync::{Exclusive, Held};
use bound::Bound;
use failure::{Pause, is_of_process};
pub use filling::{NewFile, Promise};
use folder::Folder;
use index::{FoundCopy, Index};
pub use name::Name;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::{Descriptors, FileUse};
use onrush_rt::fs::{Dir, File};
use space::Space;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Receives each change of the state of the disk.
pub type Report = Arc<dyn Fn(DiskEvent) + Send + Sync>;

/// A change of the state of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// It fails: nothing is stored for a while.
    Fails(Cause),
    /// It works again.
    Works,
    /// The folder was removed while it was in use. There is a new one.
    IsCreatedAgain,
    /// The scan has found all files of earlier processes. This is the state then.
    IsScanned(CacheStats),
}

/// How a cache is opened.
#[derive(Clone)]
pub struct CacheOptions {
    /// What the files are copies of, in one line. A folder with copies of something else is
    /// refused.
    pub origin: String,
    /// The maximum of the allocated blocks of all files, in bytes.
    pub bytes_max: u64,
    /// The budget of open files.
    pub descriptors: Descriptors,
    /// Called on any thread.
    pub report: Report,
}

/// A bounded store of files. Clones share it.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<CacheInner>,
}

struct CacheInner {
    folder: Folder,
    pool: BlockingPool,
    descriptors: Descriptors,
    report: Report,
    space: Arc<Space>,
    bound: Bound,
    /// Whether `space` has all files, also those that the scan has not found yet.
    is_bounded: AtomicBool,
    index: Mutex<Index>,
    next_number: AtomicU64,
    evictions: AtomicU64,
    /// Notified when an evicted file was removed, and when a thread has made room; used with the
    /// lock of the index.
    evicted: Condvar,
    /// Whether the list of files was written. A file gets its name under the lock.
    is_closed: RwLock<bool>,
    /// Whether [`Cache::evict_ahead`] goes on.
    is_evicting: AtomicBool,
    is_scanning: Watch<bool>,
    /// The announced sizes of large new files: see [`Cache::promise`].
    promises: Arc<Space>,
    pause: Pause,
    /// A file that many requests need after a restart is verified once. The others wait, and hold
    /// no thread of the pool meanwhile.
    verifications: Exclusive<Name>,
    /// Whether the scan has failed, and is to begin again after the pause.
    has_scan_failed: AtomicBool,
}

/// The turn of a caller to open and verify a file ([`Cache::turn`]). Dropping it ends the turn.
#[derive(Default)]
pub struct Verifying(#[expect(dead_code, reason = "it is only dropped")] Option<Held<Name>>);

/// A file and whether it is known to be whole.
pub struct Opened {
    /// The file, for reading.
    pub file: File,
    /// If not, the caller has to verify it before it uses the content.
    pub is_trusted: bool,
    /// Other callers wait until the caller has dropped this.
    _turn: Verifying,
}

/// Why a file is not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStored {
    /// It is larger than the cache, or all other files are in use. A later attempt may succeed.
    Full,
    /// The scan after the start is not complete, and the used space is not known.
    Scanning,
    /// No descriptor is free.
    Busy,
    /// The disk has failed.
    Failed,
}

/// The state of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Files.
    pub entries: u64,
    /// The space of the files, of those that are being filled, and of removed files that are open.
    /// Before the scan is complete, this may be more than they have, or what was found so far.
    pub used_bytes: u64,
    /// The limit of `used_bytes`.
    pub limit_bytes: u64,
    /// Files that were removed to make room.
    pub evictions: u64,
    /// The time since the last use of the file that is removed next.
    pub oldest_ms: u64,
    /// Whether the scan after the start is complete.
    pub is_complete: bool,
}

/// Whether the folder at `path` is a cache, which has files that are no objects. `false` if that
/// cannot be determined. Blocks.
pub fn is_cache(path: &Path) -> bool {
    Dir::open_root(path).is_ok_and(|root| folder::is_cache(&root))
}

impl Cache {
    /// Opens the folder at `path` as a cache, creates it if it is missing, and starts the scan.
    /// Blocks.
    ///
    /// # Errors
    ///
    /// If the folder is in use by another process, contains something else, or cannot be written.
    pub fn open(path: &Path, pool: BlockingPool, options: CacheOptions) -> io::Result<Cache> {
        let root = folder::create(path)?;
        Cache::with(root, Some(path.to_owned()), pool, options)
    }

    /// As [`Cache::open`], for an open directory, which may be simulated.
    pub fn on(root: Dir, pool: BlockingPool, options: CacheOptions) -> io::Result<Cache> {
        Cache::with(root, None, pool, options)
    }

    fn with(
        root: Dir,
        path: Option<PathBuf>,
        pool: BlockingPool,
        options: CacheOptions,
    ) -> io::Result<Cache> {
        let inner = CacheInner {
            folder: Folder::open(root, path, &options.origin)?,
            pool,
            descriptors: options.descriptors,
            report: options.report,
            space: Space::new(options.bytes_max),
            bound: Bound::new(),
            is_bounded: AtomicBool::new(false),
            index: Mutex::new(Index::new()),
            next_number: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            evicted: Condvar::new(),
            is_closed: RwLock::new(false),
            is_evicting: AtomicBool::new(false),
            is_scanning: Watch::new(false),
            promises: Space::new(options.bytes_max),
            pause: Pause::new(),
            verifications: Exclusive::default(),
            has_scan_failed: AtomicBool::new(false),
        };
        let cache = Cache {
            inner: Arc::new(inner),
        };
        cache.begin_scan();
        Ok(cache)
    }

    /// The pool for operations that block.
    pub fn pool(&self) -> &BlockingPool {
        &self.inner.pool
    }

    /// Whether the files are on a file system in memory.
    pub fn is_in_memory(&self) -> bool {
        self.inner.folder.is_in_memory()
    }

    /// The maximum of the allocated blocks of all files, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.space.limit_bytes()
    }

    /// The wall clock in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.inner.folder.now_ms()
    }

    /// Whether it is known, without a look at the disk, that there is no file of this name.
    pub fn lacks(&self, name: &Name) -> bool {
        let index = self.index();
        index.is_complete() && !index.contains(name)
    }

    /// Whether the index has a file of this name.
    pub fn contains(&self, name: &Name) -> bool {
        self.index().contains(name)
    }

    /// Whether the scan after the start is complete, so that the index has every file.
    pub fn is_complete(&self) -> bool {
        self.index().is_complete()
    }

    /// Whether new files are accepted at present.
    pub fn accepts(&self) -> bool {
        self.refusal().is_none()
    }

    /// Opens a file that is known to be whole, without waiting. `None`: this may succeed by
    /// [`Cache::open_file`].
    pub fn try_open(&self, name: &Name) -> Option<File> {
        let found = self.index().get(name, self.now_ms())?;
        if !found.is_trusted {
            return None;
        }
        let permit = self.inner.descriptors.open_file(FileUse::Brief)?;
        let file = self.inner.folder.open_cached(name).ok()?;
        Some(file.with_permit(permit).with_guard(found.charge.lend()))
    }

    /// Waits until no other caller verifies a file. If the file is known to be whole, there is
    /// nothing to wait for.
    pub async fn turn(&self, name: &Name) -> Verifying {
        let is_trusted = |found: FoundCopy| found.is_trusted;
        if self
            .index()
            .get(name, self.now_ms())
            .is_some_and(is_trusted)
        {
            return Verifying(None);
        }
        Verifying(Some(self.inner.verifications.acquire(*name).await))
    }

    /// Opens a file, also one that the scan has not found yet. `None` if there is none. Blocks.
    ///
    /// Callers that are to verify it one after another have waited for their turn before, and not
    /// on a thread of the pool. With `Verifying::default()`, the caller may verify it while others
    /// do.
    pub fn open_file(&self, name: &Name, turn: Verifying) -> Option<Opened> {
        let opened = self.open_now(name)?;
        Some(match opened.is_trusted {
            true => opened,
            false => Opened {
                _turn: turn,
                ..opened
            },
        })
    }

    fn open_now(&self, name: &Name) -> Option<Opened> {
        let permit = self.inner.descriptors.open_file(FileUse::Brief)?;
        // What the index says afterwards may be about a file that has replaced this one.
        let before = self.index().get(name, self.now_ms());
        let file = match self.inner.folder.open_file(name) {
            Ok(file) => file.with_permit(permit),
            Err(error) => {
                match is_of_process(&error) {
                    true => self.failed(&error),
                    false => self.discard(name, before.as_ref()),
                }
                return None;
            }
        };
        let now_ms = self.now_ms();
        let mut index = self.index();
        let (charge, is_trusted) = match (before, index.get(name, now_ms)) {
            (Some(before), _) => (before.charge, before.is_trusted),
            (None, Some(found)) => (found.charge, false),
            // It was removed after it was opened.
            (None, None) if index.is_removed(name) || index.is_evicted(name) => return None,
            (None, None) => {
                let found = file.metadata().ok()?;
                let charge = self.inner.space.find(found.allocated_bytes);
                index.insert(*name, charge.clone(), false, found.modified_ns / 1_000_000);
                index.get(name, now_ms);
                (charge, false)
            }
        };
        drop(index);
        Some(Opened {
            file: file.with_guard(charge.lend()),
            is_trusted,
            _turn: Verifying(None),
        })
    }

    /// Removes a file that cannot be opened. If that fails as well, it keeps its space, and the
    /// other files are used as before.
    fn discard(&self, name: &Name, found: Option<&FoundCopy>) {
        if self.inner.folder.unlink(name).is_ok() {
            self.index().remove_found(name, found);
        }
    }

    /// The caller has verified that the file is whole.
    pub fn trust(&self, name: &Name) {
        self.index().trust(name);
    }

    /// Keeps the present time as that of the last use, for the order after a restart.
    pub fn stamp(&self, name: &Name) {
        let now_ms = self.now_ms();
        self.index().stamp(name, now_ms);
    }

    /// A file was used that is useless without the file `whole`: makes both the most recently used
    /// ones, the whole after the part, so that it is removed later. After a restart both count as
    /// used at the time of [`Cache::stamp`] of the whole.
    pub fn stamp_part(&self, name: &Name, whole: &Name) {
        let now_ms = self.now_ms();
        self.index().stamp_part(name, whole, now_ms);
    }

    /// Removes a file, if there is one. Blocks.
    ///
    /// # Errors
    ///
    /// If the disk fails. Then the file stays, and keeps its space.
    pub fn remove(&self, name: &Name) -> io::Result<()> {
        let _closed = self.closed(); // The list has the file, or the disk has not.
        let removed = self.index().remove(name);
        let unlinked = self.inner.folder.unlink(name);
        if let Err(error) = &unlinked {
            let now_ms = self.now_ms();
            self.index().keep(name, removed, now_ms);
            self.failed(error);
        }
        unlinked
    }

    /// Writes the times of uses to the disk: those that are due, or with `all` every one. Blocks.
    pub fn upkeep(&self, all: bool) {
        let stamps = self.index().take_stamps(all);
        for (name, used_ms) in stamps {
            let _ = self.inner.folder.stamp(&name, used_ms); // It may have been removed.
        }
    }

    /// Ends the use of the cache: writes the times of uses, and a list of the files for the next
    /// process. No file is stored afterwards; files are opened as before. Blocks.
    pub fn close(&self) {
        self.upkeep(true);
        let mut is_closed = (self.inner.is_closed.write()).unwrap_or_else(PoisonError::into_inner);
        if *is_closed || !self.is_complete() {
            return;
        }
        *is_closed = true;
        drop(is_closed);
        let mut index = self.index();
        while index.is_evicting() {
            // A file that is not in the list must not stay on the disk.
            index = (self.inner.evicted.wait(index)).unwrap_or_else(PoisonError::into_inner);
        }
        let files = index.list();
        drop(index);
        let _ = self.inner.folder.save_list(&files); // Without it, the next process scans.
        // What other programs add from now on is in neither.
        let _ = self.inner.folder.remove_bound();
    }

    /// Whether the list of files was written. While the caller has the lock, it is not.
    fn closed(&self) -> RwLockReadGuard<'_, bool> {
        let is_closed = self.inner.is_closed.read();
        is_closed.unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the cache.
    pub fn stats(&self) -> CacheStats {
        let now_ms = self.now_ms();
        let index = self.index();
        let oldest_ms = index
            .oldest_ms()
            .map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        CacheStats {
            entries: index.len() as u64,
            used_bytes: self.inner.space.used_bytes(),
            limit_bytes: self.inner.space.limit_bytes(),
            evictions: self.inner.evictions.load(Relaxed),
            oldest_ms: u64::try_from(oldest_ms).unwrap_or(0),
            is_complete: index.is_complete(),
        }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.inner
            .index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&self.stats()).finish()
    }
}
