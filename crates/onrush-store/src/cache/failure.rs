//! Failures of the disk of a cache: what helps against them, and the pause after them.

use super::folder::Restored;
use super::{Cache, DiskEvent, NotStored};
use crate::error::Cause;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// After a failure of the disk, no file is created for so long.
const PAUSE_MS: u64 = 5_000;
/// If a write finds the disk full, room is made for so many bytes.
const ROOM_BYTES: u64 = 1 << 20;

/// The time in which no file is created.
pub(super) struct Pause {
    began: Instant,
    /// In milliseconds after `began`; 0 if the disk works. The wall clock may be set back.
    until_ms: AtomicU64,
}

impl Pause {
    pub(super) fn new() -> Pause {
        Pause {
            began: Instant::now(),
            until_ms: AtomicU64::new(0),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }
}

impl Cache {
    /// The disk has failed. Removes the reason if possible. Otherwise reports it, and refuses new
    /// files for a while. Blocks.
    pub fn failed(&self, error: &io::Error) {
        if !self.recover(error, ROOM_BYTES) {
            self.pause(error);
        }
    }

    /// Removes the reason for a failure. Returns whether the operation may succeed now.
    pub(super) fn recover(&self, error: &io::Error, bytes: u64) -> bool {
        match error.raw_os_error() {
            // The cache has not reached its limit: others use the disk as well.
            Some(libc::ENOSPC | libc::EDQUOT) => self.evict(bytes) > 0,
            Some(libc::ENOENT) => match self.inner.folder.restore() {
                Ok(Restored::Whole) => {
                    self.index().clear();
                    (self.inner.report)(DiskEvent::IsCreatedAgain);
                    true
                }
                Ok(Restored::Part) => true,
                Err(_) => false,
            },
            _ => false,
        }
    }

    pub(super) fn pause(&self, error: &io::Error) {
        let pause = &self.inner.pause;
        let until_ms = pause.elapsed_ms() + PAUSE_MS;
        if pause.until_ms.swap(until_ms, Relaxed) == 0 {
            (self.inner.report)(DiskEvent::Fails(Cause::from(error)));
        }
    }

    /// Why no file is created at present.
    pub(super) fn refusal(&self) -> Option<NotStored> {
        let pause = &self.inner.pause;
        if pause.elapsed_ms() < pause.until_ms.load(Relaxed) {
            return Some(NotStored::Failed);
        }
        if *self.closed() {
            return Some(NotStored::Failed);
        }
        if self.index().is_complete() {
            return None;
        }
        if self.inner.has_scan_failed.swap(false, Relaxed) {
            self.begin_scan();
        }
        match self.inner.is_bounded.load(Relaxed) {
            true => None,
            false => Some(NotStored::Scanning),
        }
    }

    /// A file was stored.
    pub(super) fn worked(&self) {
        let until_ms = &self.inner.pause.until_ms;
        if until_ms.load(Relaxed) != 0 && until_ms.swap(0, Relaxed) != 0 {
            (self.inner.report)(DiskEvent::Works);
        }
    }
}

/// Whether the process or the system lacks something, so that any file could have failed.
pub(super) fn is_of_process(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR)
    )
}
