//! Looks whether the path of the folder still leads to what is open: a link may lead elsewhere, the
//! folder may have been removed and made again, or a disk may have been mounted on it. Then the
//! store goes on with the folder that the path leads to.
//!
//! It looks when its options change, and at most once per second while requests need the disk. A
//! request that has begun may end in the folder of before. What was counted of that is forgotten:
//! quotas begin uncounted, as at a start.
//!
//! The caller of the store may refuse another folder ([`Folder::check_swaps`]): rules for paths may
//! not hold there. Until a later look finds one that is not refused, nothing begins to read or
//! change it, and no upload in progress goes on.
//!
//! The file system of the folder may hang. So one thread at a time looks, a worker never waits for
//! it, and a look that takes seconds counts as a failure.
//!
//! [`Folder::check_swaps`]: super::Folder::check_swaps

use super::FolderInner;
use super::move_records;
use super::needed::NeededToWrite;
use crate::error::{Result, StoreError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);
/// The folder does not respond if a look takes longer.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// No look is in progress.
const NONE: u64 = u64::MAX;

pub(super) struct Again {
    /// `None`: the folder was opened by its caller, and is never looked for.
    path: Option<PathBuf>,
    begun: Instant,
    /// When it was looked last, in milliseconds since `begun`.
    looked_ms: AtomicU64,
    /// Since when a look is in progress or waits for a thread, as `looked_ms`; [`NONE`] if there is
    /// none.
    looking_ms: AtomicU64,
    /// Held by the thread that looks.
    turn: Mutex<LookState>,
    /// Why the folder could not be used when it was looked for last.
    failure: Mutex<Option<io::ErrorKind>>,
    /// See [`Store::swaps`](crate::Store::swaps).
    swaps: Arc<AtomicU64>,
    /// See [`Folder::on_swap`](super::Folder::on_swap).
    hook: OnceLock<Hook>,
    /// See [`Folder::check_swaps`](super::Folder::check_swaps).
    check: OnceLock<Check>,
    /// Whether that has refused the folder.
    is_refused: AtomicBool,
}

type Hook = Box<dyn Fn() + Send + Sync>;
type Check = Box<dyn Fn(&Path, bool) -> io::Result<()> + Send + Sync>;

#[derive(Default)]
struct LookState {
    /// What changes need was not opened in the new folder yet.
    is_incomplete: bool,
}

impl Again {
    pub(super) fn new(path: Option<&Path>) -> Again {
        Again {
            path: path.map(Path::to_path_buf),
            begun: Instant::now(),
            looked_ms: AtomicU64::new(0),
            looking_ms: AtomicU64::new(NONE),
            turn: Mutex::default(),
            failure: Mutex::default(),
            swaps: Arc::default(),
            hook: OnceLock::new(),
            check: OnceLock::new(),
            is_refused: AtomicBool::new(false),
        }
    }

    pub(super) fn set_check(&self, check: Check) {
        let _ = self.check.set(check);
    }

    /// Whether the folder that the path leads to must not be used.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Acquire)
    }

    pub(super) fn swaps(&self) -> &Arc<AtomicU64> {
        &self.swaps
    }

    pub(super) fn set_hook(&self, hook: Hook) {
        let _ = self.hook.set(hook);
    }

    /// Why the folder cannot be used, as far as is known: `TimedOut` if it does not respond. Does
    /// not block.
    pub(super) fn failure(&self) -> Option<io::ErrorKind> {
        let looking_ms = self.looking_ms.load(Relaxed);
        if looking_ms.saturating_add(LOOK_MAX.as_millis() as u64) < self.now_ms() {
            return Some(io::ErrorKind::TimedOut);
        }
        *self.lock_failure()
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<io::ErrorKind>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Whether it is time to look, which the caller then does.
    fn is_due(&self) -> bool {
        let now_ms = self.now_ms();
        let looked_ms = self.looked_ms.load(Relaxed);
        let is_due = now_ms >= looked_ms + INTERVAL.as_millis() as u64;
        let set = || (self.looked_ms).compare_exchange(looked_ms, now_ms, Relaxed, Relaxed);
        is_due && set().is_ok()
    }

    /// A look begins, or is going to. Whether there is no other one.
    fn begin(&self) -> bool {
        let now_ms = self.now_ms();
        let set = (self.looking_ms).compare_exchange(NONE, now_ms, Relaxed, Relaxed);
        set.is_ok()
    }
}

/// The end of a look, also by a panic: otherwise no other one would begin.
struct Looking<'a>(&'a Again);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.looking_ms.store(NONE, Relaxed);
    }
}

/// Looks on the pool, if it is time to. Fails if the folder must not be used.
pub(super) fn look_if_due(inner: &Arc<FolderInner>) -> Result<()> {
    if inner.again.is_due() {
        inner.listing_queue.grant();
        // Where all threads wait for a file system that hangs, the look waits as well.
        if inner.again.path.is_some() && inner.again.begin() {
            let shared = inner.clone();
            inner.pool.run(move || look(&shared)).detach();
        }
    }
    match inner.again.is_refused() {
        true => Err(StoreError::Unavailable),
        false => Ok(()),
    }
}

/// Looks now, and completes what dead processes have left. Blocks.
pub(super) fn look(inner: &Arc<FolderInner>) {
    let again = &inner.again;
    let Some(path) = &again.path else { return };
    let turn = again.turn.lock();
    let mut turn = turn.unwrap_or_else(PoisonError::into_inner);
    again.begin();
    let looking = Looking(again);
    let mut is_refused = false;
    let check = || {
        let check = again.check.get();
        let checked = check.map_or(Ok(()), |check| check(path, inner.staging().is_ok()));
        is_refused = checked.is_err();
        checked
    };
    let opened = inner.root.open_again(path, check);
    again.is_refused.store(is_refused, Release);
    let looked = opened.and_then(|is_another| {
        if is_another {
            inner.remotes.set_root(inner.root.is_local());
            inner.parents.forget_all();
            inner.mounts.forget_all();
            again.swaps.fetch_add(1, AcqRel);
            inner.usages.forget();
            // Here, so that caches have nothing of before even if what follows fails.
            drop(inner.key_locks.change_all());
        }
        if is_another || turn.is_incomplete {
            turn.is_incomplete = true;
            if inner.staging().is_ok() {
                inner.make_writable(NeededToWrite::open(&inner.root)?);
            }
            turn.is_incomplete = false;
            again.hook.get().inspect(|hook| hook());
        }
        Ok(())
    });
    let is_there = looked.is_ok();
    *again.lock_failure() = looked.err().map(|error| error.kind());
    drop((looking, turn));
    // It may read whole folders, which is no sign that the file system hangs.
    if is_there {
        move_records::complete_free(inner);
    }
}
