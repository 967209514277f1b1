//! Changes that are not synced yet, and what a power cut leaves of them.
//!
//! This module does not depend on the tree of files.

use super::Random;
use std::collections::BTreeMap;

/// The unit that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// Which unsynced changes survive a power cut.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    Nothing,
    All,
    /// The changes before this number.
    Until(u64),
    Some,
}

/// A change of the content of a file.
#[derive(Debug)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
    SetModified(i64),
}

impl Change {
    /// Makes the change.
    pub(super) fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Change::Write(offset, bytes) => {
                if to.len() < *offset {
                    to.resize(*offset, 0);
                }
                let inside = bytes.len().min(to.len() - offset);
                to[*offset..offset + inside].copy_from_slice(&bytes[..inside]);
                to.extend_from_slice(&bytes[inside..]);
            }
            Change::SetLen(len) => to.resize(*len, 0),
            Change::SetModified(_) => {}
        }
    }

    /// Any sectors of a write may survive, and the size without them.
    pub(super) fn apply_some(&self, to: &mut Vec<u8>, random: &mut Random) {
        match self {
            Change::Write(offset, bytes) => {
                if to.len() < offset + bytes.len() && random.coin() {
                    to.resize(offset + bytes.len(), 0);
                }
                for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    let at = offset + number * SECTOR_BYTES;
                    if random.coin() && at < to.len() {
                        let end = (at + sector.len()).min(to.len());
                        to[at..end].copy_from_slice(&sector[..end - at]);
                    }
                }
            }
            Change::SetLen(_) if random.coin() => self.apply(to),
            Change::SetLen(_) | Change::SetModified(_) => {}
        }
    }
}

/// A change of one name of a directory.
#[derive(Debug)]
pub(super) struct EntryChange {
    pub(super) order: u64,
    pub(super) name: Vec<u8>,
    /// `None` removes the name.
    pub(super) to: Option<u64>,
}

impl EntryChange {
    /// Makes the change.
    pub(super) fn apply(&self, to: &mut BTreeMap<Vec<u8>, u64>) {
        match self.to {
            Some(inode) => to.insert(self.name.clone(), inode),
            None => to.remove(&self.name),
        };
    }
}
