//! The locks of states of Terraform that clients of this process have.

use crate::shares::Share;
use onrush_store::{Key, Version};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The locks that clients of this process have, with their shares of `STATE_LOCKS_MAX`. Locks of
/// before its start, and those of other servers, are in no share.
#[derive(Debug, Default)]
pub(in crate::files) struct StateLocks(Mutex<HashMap<LockVersion, Share>>);

/// The name of a lock, and the version of its object. So the end of a lock frees no share of a
/// later one with its name.
pub(super) type LockVersion = (Vec<u8>, Version);

impl StateLocks {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<LockVersion, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lock, if both are known.
    pub(super) fn insert(&self, at: &Key, version: Option<Version>, share: Option<Share>) {
        if let (Some(version), Some(share)) = (version, share) {
            self.lock().insert((at.name().to_vec(), version), share);
        }
    }
}
