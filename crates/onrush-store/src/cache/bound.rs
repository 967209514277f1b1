//! An upper bound of the space of all files, on the disk. After a process was killed, the next one
//! can store files before it has looked at all of them.
//!
//! It is raised before the space is taken, and not synced: it says what the kernel has, which lasts
//! until a power cut. So it has the identity of the boot, and is not valid in another one.
//!
//! ```text
//! the boot (36 bytes) · a space · the bound in bytes (20 digits) · a newline
//! ```

use super::folder::Folder;
use super::space::Space;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Mutex, PoisonError};

/// The bound is more than the used space by this part of the limit, and at most by so many bytes:
/// so it is rarely written.
const STEP_DIVISOR: u64 = 64;
const STEP_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Bound {
    /// What the disk says; 0 if it says nothing that is valid.
    bytes: AtomicU64,
    writing: Mutex<()>,
}

impl Bound {
    pub(super) fn new() -> Bound {
        Bound {
            bytes: AtomicU64::new(0),
            writing: Mutex::new(()),
        }
    }

    /// What the last process has left, if that is valid. Blocks.
    pub(super) fn load(&self, folder: &Folder) -> Option<u64> {
        let text = folder.bound().ok()??;
        let (boot, bytes) = text.trim_end().split_once(' ')?;
        if boot != folder.boot_id().ok()? {
            return None;
        }
        let bytes = bytes.parse().ok()?;
        self.bytes.store(bytes, Relaxed);
        Some(bytes)
    }

    /// Ensures that the bound has the space that was taken. Until then the caller does not use it.
    /// Blocks.
    pub(super) fn cover(&self, folder: &Folder, space: &Space) -> io::Result<()> {
        fence(SeqCst); // The space was taken before: see `renew`.
        match space.used_bytes() <= self.bytes.load(Relaxed) {
            true => Ok(()),
            false => {
                let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
                match space.used_bytes() <= self.bytes.load(Relaxed) {
                    true => Ok(()),
                    false => self.write(folder, space),
                }
            }
        }
    }

    /// Replaces the bound by one for the used space, which may be less. Blocks.
    pub(super) fn renew(&self, folder: &Folder, space: &Space) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that takes space from now on waits for the lock; `write` sees what was taken
        // before.
        self.bytes.store(0, Relaxed);
        fence(SeqCst);
        self.write(folder, space)
    }

    fn write(&self, folder: &Folder, space: &Space) -> io::Result<()> {
        let step = (space.limit_bytes() / STEP_DIVISOR).min(STEP_BYTES_MAX);
        let bytes = space.used_bytes().saturating_add(step);
        let boot = folder.boot_id()?;
        folder.set_bound(&format!("{boot} {bytes:020}\n"))?;
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }
}
