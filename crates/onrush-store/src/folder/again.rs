//! Looks whether the path of the folder still leads to what is open: a link may lead elsewhere, the
//! folder may have been removed and made again, or a disk may have been mounted on it. Then the
//! store goes on with the folder that the path leads to.
//!
//! It looks when its options change, and at most once per second while requests need the disk. A
//! request that has begun may end in the folder of before.

use super::Inner;
use super::moves;
use super::settings::NeededToWrite;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Again {
    /// `None`: the folder was opened by its caller, and is never looked for.
    path: Option<PathBuf>,
    begun: Instant,
    /// When it was looked last, in milliseconds since `begun`.
    looked_ms: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why the folder cannot be used.
    failure: Option<io::ErrorKind>,
    /// What changes need was not opened in the new folder yet.
    is_incomplete: bool,
}

impl Again {
    pub(super) fn new(path: Option<&Path>) -> Again {
        Again {
            path: path.map(Path::to_path_buf),
            begun: Instant::now(),
            looked_ms: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Why the folder could not be used when it was looked for last.
    pub(super) fn failure(&self) -> Option<io::ErrorKind> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure
    }

    /// Whether it is time to look, which the caller then does.
    fn is_due(&self) -> bool {
        let now_ms = self.begun.elapsed().as_millis() as u64;
        let looked_ms = self.looked_ms.load(Relaxed);
        let is_due = self.path.is_some() && now_ms >= looked_ms + INTERVAL.as_millis() as u64;
        let set = || (self.looked_ms).compare_exchange(looked_ms, now_ms, Relaxed, Relaxed);
        is_due && set().is_ok()
    }
}

/// Looks on the pool, if it is time to.
pub(super) fn look_if_due(inner: &Arc<Inner>) {
    if inner.again.is_due() {
        let shared = inner.clone();
        inner.pool.run(move || look(&shared)).detach();
    }
}

/// Looks now, and completes what dead processes have left. Blocks.
pub(super) fn look(inner: &Arc<Inner>) {
    let again = &inner.again;
    let Some(path) = &again.path else { return };
    // Held, so that one thread at a time replaces the folder.
    let mut state = again.state.lock().unwrap_or_else(PoisonError::into_inner);
    let looked = inner.root.open_again(path).and_then(|is_another| {
        if is_another {
            inner.remotes.set_root(inner.root.is_local());
            inner.parents.forget_all();
            inner.mounts.forget_all();
        }
        if is_another || state.is_incomplete {
            state.is_incomplete = true;
            if inner.staging().is_ok() {
                inner.make_writable(NeededToWrite::open(&inner.root)?);
            }
            state.is_incomplete = false;
        }
        if is_another {
            drop(inner.key_locks.change_all());
        }
        moves::complete_free(inner);
        Ok(())
    });
    state.failure = looked.err().map(|error| error.kind());
}
