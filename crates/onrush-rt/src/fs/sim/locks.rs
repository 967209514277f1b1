//! The locks of directories (`flock`) and of bytes of files, which the holders' ends release.

use super::{SimDir, SimFile, errno};
use std::io;
use std::sync::PoisonError;
use std::time::Duration;

/// How often a wait for a locked byte looks whether the power is off.
const LOCK_CHECK: Duration = Duration::from_millis(50);

impl SimDir {
    pub(in crate::fs) fn lock(&self, exclusive: bool) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let held = state.locks.entry(self.at.inode).or_default();
            if held
                .iter()
                .any(|&(by, alone)| by != self.at.number && (alone || exclusive))
            {
                return Err(errno(libc::EWOULDBLOCK));
            }
            held.retain(|&(by, _)| by != self.at.number);
            held.push((self.at.number, exclusive));
            Ok(())
        })
    }
}

impl SimFile {
    /// Locks are no operations of the disk, so they have no numbers. Returns whether it was free.
    pub(in crate::fs) fn lock_byte(&self, at: u64, waits: bool) -> io::Result<bool> {
        let mut state = self.at.fs.lock();
        loop {
            if state.off || state.epoch != self.at.epoch {
                return Err(errno(libc::EIO));
            }
            let number = self.at.number;
            let holder = *state
                .byte_locks
                .entry((self.at.inode, at))
                .or_insert(number);
            if holder == number || !waits {
                return Ok(holder == number);
            }
            // Bounded, because a power cut does not notify.
            let waited = self.at.fs.unlocked.wait_timeout(state, LOCK_CHECK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(in crate::fs) fn unlock_byte(&self, at: u64) {
        let mut state = self.at.fs.lock();
        let place = (self.at.inode, at);
        if state.byte_locks.get(&place) == Some(&self.at.number) {
            state.byte_locks.remove(&place);
            self.at.fs.unlocked.notify_all();
        }
    }
}
