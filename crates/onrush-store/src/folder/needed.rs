//! What a folder that can be written needs.

use super::locks::ProcessLocks;
use super::staging::{Staging, Top};
use onrush_rt::fs::{Dir, File};
use std::io;
use std::sync::Arc;

/// What changes need. Dropping it removes the staging folder of this process.
pub(super) struct NeededToWrite {
    pub(super) staging: Staging,
    /// `None` if the file system has no locks.
    pub(super) locks: Option<File>,
}

impl NeededToWrite {
    pub(super) fn open(root: &Arc<Dir>) -> io::Result<NeededToWrite> {
        Ok(NeededToWrite {
            staging: Staging::open(Top::root(root)?)?,
            locks: ProcessLocks::open(root)?,
        })
    }
}
