//! The locks of a change: of this process, and those that other processes see. `change` says what
//! they are for.

use super::FolderInner;
use super::dirs::ensure_dir;
use super::key_locks::KeyGuard;
use crate::error::{Result, StoreError};
use crate::key::{Key, RESERVED};
use crate::sync::semaphore::TaskSemaphore;
use onrush_rt::fs::{Create, Dir, File, OpenHow};
use sha2::{Digest, Sha256};
use std::io;
use std::sync::{Arc, PoisonError, RwLock};

const LOCKS: &[u8] = b"locks";

/// Only the owner of the store may lock.
const HOW: OpenHow = OpenHow {
    read: true,
    write: true,
    create: Create::IfMissing,
    mode: 0o600,
};

/// The locks that other processes see.
pub(super) struct ProcessLocks {
    /// `.onrush/locks`. Empty if the file system has no such locks: then processes do not exclude
    /// each other. A read-only store has none.
    file: RwLock<Option<Arc<File>>>,
    /// Limits the threads that wait.
    pub(super) wait_permits: Arc<TaskSemaphore>,
}

impl ProcessLocks {
    /// For a pool of `threads` threads. Nothing is locked before [`ProcessLocks::set`].
    pub(super) fn new(threads: usize) -> ProcessLocks {
        ProcessLocks {
            file: RwLock::default(),
            wait_permits: TaskSemaphore::new((threads / 4).max(1)),
        }
    }

    /// Opens the file. `None` if the file system has no such locks.
    pub(super) fn open(root: &Dir) -> io::Result<Option<File>> {
        let file = ensure_dir(root, RESERVED)?.open(LOCKS, HOW)?;
        let works = file.try_lock_byte(0).is_ok();
        file.unlock_byte(0);
        Ok(works.then_some(file))
    }

    /// Locks in the open file from now on.
    pub(super) fn set(&self, file: Option<File>) {
        let file = file.map(Arc::new);
        *self.file.write().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn file(&self) -> Option<Arc<File>> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        file.clone()
    }

    /// Whether changes of other processes are excluded.
    pub(super) fn are_supported(&self) -> bool {
        self.file().is_some()
    }
}

/// A locked byte of the file. Dropping it unlocks the byte.
struct LockedByte {
    file: Arc<File>,
    at: u64,
}

impl LockedByte {
    /// Locks the byte of `key`. `None`: another process has it locked, and `waits` is not set.
    fn lock(file: &Arc<File>, key: &Key, waits: bool) -> io::Result<Option<Self>> {
        let at = position(key);
        let is_locked = match waits {
            true => file.lock_byte(at).map(|()| true)?,
            false => file.try_lock_byte(at)?,
        };
        Ok(is_locked.then(|| LockedByte {
            file: file.clone(),
            at,
        }))
    }
}

impl Drop for LockedByte {
    fn drop(&mut self) {
        self.file.unlock_byte(self.at);
    }
}

/// The byte of a key: its SHA-256, so that no client can choose keys with the same byte.
fn position(key: &Key) -> u64 {
    let hash = Sha256::digest(key.as_bytes());
    let first = hash
        .first_chunk::<8>()
        .map_or(0, |b| u64::from_le_bytes(*b));
    first >> 2 // An offset is signed, and the end of the byte must be one as well.
}

/// The locks of one or two keys. A change holds them until it is made.
pub(super) struct Locks {
    // Unlocked in this order: a change of this process that waits finds the byte unlocked.
    bytes: [Option<LockedByte>; 2],
    keys: [Option<KeyGuard>; 2],
}

impl Locks {
    pub(super) fn one(key: KeyGuard) -> Locks {
        Locks {
            bytes: [None, None],
            keys: [Some(key), None],
        }
    }

    /// All changes of two keys must lock them in the same order, so that they never wait for each
    /// other.
    pub(super) fn two(first: KeyGuard, second: KeyGuard) -> Locks {
        Locks {
            bytes: [None, None],
            keys: [Some(first), Some(second)],
        }
    }

    /// Excludes other processes. `false`: one of them makes a change, and `waits` is not set. Then
    /// this holds no byte.
    pub(super) fn exclude_processes(
        &mut self,
        inner: &Arc<FolderInner>,
        waits: bool,
    ) -> Result<bool> {
        let Some(file) = inner.process_locks.file() else {
            return Ok(true);
        };
        for (key, byte) in self.keys.iter().zip(&mut self.bytes) {
            if let (Some(key), None) = (key, &byte) {
                let locked = LockedByte::lock(&file, key.key(), waits);
                *byte = locked.map_err(StoreError::from_open_file)?;
                if byte.is_none() {
                    self.bytes = [None, None];
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Excludes other processes, or fails with [`StoreError::InUse`] if one of them has a lock.
    pub(super) fn try_exclude_processes(&mut self, inner: &Arc<FolderInner>) -> Result<()> {
        match self.exclude_processes(inner, false)? {
            true => Ok(()),
            false => Err(StoreError::InUse),
        }
    }
}
