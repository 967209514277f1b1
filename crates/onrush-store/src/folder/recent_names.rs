//! Names of folders that pages were made of, for the pages that follow.
//!
//! A page of a large folder costs a pass over all its names. The pass keeps more names than the
//! page needs, and they stay here. The next page is made of them if the directory has not changed
//! since before the pass: it has the same times of modification and change (`statx(2)`), which each
//! new, removed or renamed name sets. So a page shows what one that reads the directory would show.
//! The times are not exact, on some file systems only to two seconds. So they count only if they
//! were older than [`SETTLED_NS`] when the pass began, and only on a local file system.

use super::names::Names;
use crate::key::Key;
use crate::store::NamesMemory;
use onrush_rt::fs::Dir;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The memory of all names that pages are made of, in bytes: those that are kept here, and those
/// of the pages that are being made.
const BYTES_MAX: usize = 8 << 20;

/// The number of folders, or of parts of them, that are kept.
const KEPT_MAX: usize = 8;

const SETTLED_NS: i64 = 3_000_000_000;

#[derive(Default)]
pub(super) struct RecentNames(Mutex<NamesState>);

#[derive(Default)]
struct NamesState {
    /// The bytes that are in use.
    used: usize,
    /// The one that was used last is at the end.
    kept: VecDeque<PartOfNames>,
}

struct PartOfNames {
    part: Part,
    names: Arc<Names>,
}

/// Which names of a folder, and when it was read.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) folder: Option<Key>,
    pub(super) hidden: bool,
    /// They follow this one.
    pub(super) after: Vec<u8>,
    pub(super) stamp: Stamp,
}

/// A state of a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    modified_ns: i64,
    changed_ns: i64,
}

impl Stamp {
    /// The state of a directory that is about to be read. `None` if it is not sure that a change
    /// would change it.
    pub(super) fn of(dir: &Dir) -> Option<Stamp> {
        dir.as_fd()?; // The simulator does not set the times.
        if !dir.is_local() {
            return None; // Some programs do not set them, either (exfat-fuse).
        }
        let found = dir.self_metadata().ok()?;
        let stamp = Stamp {
            device: found.device,
            inode: found.inode,
            modified_ns: found.modified_ns,
            changed_ns: found.changed_ns,
        };
        let last_ns = stamp.modified_ns.max(stamp.changed_ns);
        (dir.now_ns().saturating_sub(last_ns) > SETTLED_NS).then_some(stamp)
    }
}

impl RecentNames {
    fn lock(&self) -> MutexGuard<'_, NamesState> {
        // Every change under the lock is complete.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of which a page of `limit` can be made, with the number of those before it. `wanted`:
    /// the page begins after its `after`. If it reaches beyond a part of the folder, the part was
    /// used up, and is dropped: the folder is read again for the whole page.
    pub(super) fn find(&self, wanted: &Part, limit: usize) -> Option<(Arc<Names>, usize)> {
        let mut state = self.lock();
        let is_in = |kept: &PartOfNames| {
            let Part {
                folder,
                hidden,
                after,
                stamp,
            } = &kept.part;
            (folder, hidden, stamp) == (&wanted.folder, &wanted.hidden, &wanted.stamp)
                && *after <= wanted.after
                && kept
                    .names
                    .until
                    .as_ref()
                    .is_none_or(|until| *until >= wanted.after)
        };
        let index = state.kept.iter().position(is_in)?;
        let kept = state.kept.remove(index)?;
        let names = kept.names.clone();
        let at = names.up_to(&wanted.after);
        if names.until.is_some() && names.len() - at < limit {
            drop(state); // Dropping names takes the lock.
            return None;
        }
        state.kept.push_back(kept);
        Some((names, at))
    }

    /// Keeps names for other pages.
    pub(super) fn keep(&self, part: Part, names: &Arc<Names>) {
        let names = names.clone();
        let mut state = self.lock();
        let mut dropped: Vec<PartOfNames> = Vec::new();
        if let Some(index) = state.kept.iter().position(|kept| kept.part == part) {
            dropped.extend(state.kept.remove(index));
        }
        while state.kept.len() >= KEPT_MAX {
            dropped.extend(state.kept.pop_front());
        }
        state.kept.push_back(PartOfNames { part, names });
        drop(state); // Dropping names takes the lock.
    }

    /// Drops what is kept of a folder: its last page was made.
    pub(super) fn forget(&self, folder: Option<&Key>) {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.kept).into_iter();
        let (kept, dropped): (VecDeque<PartOfNames>, VecDeque<PartOfNames>) =
            all.partition(|kept| kept.part.folder.as_ref() != folder);
        state.kept = kept;
        drop(state);
        drop(dropped);
    }
}

/// Memory for the names of a page.
pub(super) struct PageMemory {
    /// Weak, because what is kept there has such memory.
    recent: Weak<RecentNames>,
    bytes: usize,
}

impl PageMemory {
    pub(super) fn new(recent: &Arc<RecentNames>) -> PageMemory {
        PageMemory {
            recent: Arc::downgrade(recent),
            bytes: 0,
        }
    }
}

impl NamesMemory for PageMemory {
    fn resize(&mut self, bytes: usize) -> bool {
        let Some(recent) = self.recent.upgrade() else {
            return true; // The folder is being closed.
        };
        loop {
            let mut state = recent.lock();
            let used = state.used - self.bytes + bytes;
            if bytes <= self.bytes || used <= BYTES_MAX {
                (state.used, self.bytes) = (used, bytes);
                return true;
            }
            let oldest = state.kept.pop_front();
            drop(state); // Dropping names takes the lock.
            match oldest {
                Some(oldest) => drop(oldest),
                None => return false,
            }
        }
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        self.resize(0);
    }
}
