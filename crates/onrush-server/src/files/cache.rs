//! Small objects in memory: each worker has its own part, so that no two of them share a lock or
//! a reference count while they answer.
//!
//! An entry is answered without any system call while
//! - the store's generation of its key is what it was before the object was opened: a change made
//!   through this server is seen at once; and
//! - its last look at the disk is at most `fresh_ms` old: a change made by others is seen within
//!   that time, as is a change made through this server under another name of the same file (a
//!   symbolic link).
//!
//! After that the object is opened anew; if it was only the time that had run out, and it still
//! has the same version, the bytes in memory stay. Only objects whose version can be relied upon
//! are kept (see `Found::settled`).
//!
//! This module must not know requests, nor how objects are opened.

use super::object::Found;
use onrush_store::{Key, Version};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an entry costs beside its bytes, about.
const OVERHEAD_BYTES: usize = 512;

#[derive(Debug)]
pub(super) struct Cache {
    /// One for each worker, as long as there are enough.
    parts: Box<[Mutex<Part>]>,
    fresh_ms: u64,
}

/// A worker's part. Who goes first is decided as by a clock's hand: in the order of arrival, but
/// whoever was asked for since the hand last passed stays for another round.
#[derive(Debug)]
struct Part {
    entries: HashMap<Box<[u8]>, Entry>,
    hand: VecDeque<Key>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    found: Found,
    /// The store's generation before the object was opened.
    generation: u64,
    /// When it was last opened.
    seen_ms: u64,
    /// Asked for since the hand last passed.
    used: bool,
}

/// A moment on a worker: which one, and its clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) worker: usize,
    pub(super) now_ms: u64,
    pub(super) now_s: u64,
}

impl Cache {
    pub(super) fn new(bytes_max: usize, fresh_ms: u64) -> Cache {
        let parts = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let part = || Part {
            entries: HashMap::new(),
            hand: VecDeque::new(),
            bytes: 0,
            bytes_max: bytes_max / parts,
        };
        Cache {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            fresh_ms,
        }
    }

    fn part(&self, worker: usize) -> MutexGuard<'_, Part> {
        let part = &self.parts[worker % self.parts.len()];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept for a key, given by its bytes, if it may be answered as it is.
    pub(super) fn fresh(
        &self,
        key: &[u8],
        at: Moment,
        generation: impl Fn(&Key) -> u64,
    ) -> Option<Found> {
        let mut part = self.part(at.worker);
        let entry = part.entries.get_mut(key)?;
        let age_ms = at.now_ms.saturating_sub(entry.seen_ms);
        if age_ms >= self.fresh_ms || generation(&entry.key) != entry.generation {
            return None;
        }
        entry.used = true;
        Some(entry.found.clone())
    }

    /// What is kept for a key that was opened just now and has `version`. `generation` is from
    /// before the opening.
    pub(super) fn confirmed(
        &self,
        key: &Key,
        at: Moment,
        generation: u64,
        version: &Version,
    ) -> Option<Found> {
        let mut part = self.part(at.worker);
        let entry = part.entries.get_mut(key.as_bytes())?;
        // After a change of ours not even the same version is proof enough: an inode number may
        // have been used again for a file with the time of another.
        if entry.generation != generation || entry.found.version() != version {
            return None;
        }
        (entry.seen_ms, entry.used) = (at.now_ms, true);
        Some(entry.found.clone())
    }

    /// Keeps what was opened just now, if it may be kept.
    pub(super) fn keep(&self, key: &Key, at: Moment, generation: u64, found: &Found) {
        let cost_bytes = cost_bytes(key, found);
        let mut part = self.part(at.worker);
        if found.memory().is_none() || !found.settled(at.now_s) || cost_bytes > part.bytes_max / 4 {
            part.remove(key);
            return;
        }
        let entry = Entry {
            key: key.clone(),
            found: found.clone(),
            generation,
            seen_ms: at.now_ms,
            used: false,
        };
        part.bytes += cost_bytes;
        match part.entries.insert(key.as_bytes().into(), entry) {
            Some(before) => part.bytes -= self::cost_bytes(key, &before.found),
            None => part.hand.push_back(key.clone()),
        }
        part.shrink();
    }
}

impl Part {
    /// Forgets an entry; the hand will find its key to be nobody's.
    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key.as_bytes()) {
            self.bytes -= cost_bytes(key, &entry.found);
            self.hand.retain(|other| other != key);
        }
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let Some(key) = self.hand.pop_front() else {
                return;
            };
            match self.entries.get_mut(key.as_bytes()) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.hand.push_back(key);
                }
                Some(_) => {
                    if let Some(entry) = self.entries.remove(key.as_bytes()) {
                        self.bytes -= cost_bytes(&key, &entry.found);
                    }
                }
                None => {}
            }
        }
    }
}

fn cost_bytes(key: &Key, found: &Found) -> usize {
    let content = found.memory().map_or(0, |bytes| bytes.len());
    content + 2 * key.as_bytes().len() + OVERHEAD_BYTES
}
