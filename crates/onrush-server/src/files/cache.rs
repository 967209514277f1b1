//! Small objects in memory and large ones open: each worker has its own part, so that no two of
//! them share a lock or a reference count while they answer.
//!
//! An entry is answered without looking at the disk while
//! - the store's generation of its key is what it was before the object was opened: a change made
//!   through this server is seen at once; and
//! - its last look at the disk is at most `fresh_ms` old, or a tenth of a second for an open file:
//!   a change made by others is seen within that time, as is a change made through this server
//!   under another name of the same file (a link).
//!
//! After that the object is opened anew; if it was only the time that had run out, and it still
//! has the same version, the bytes in memory stay. Only objects whose version can be relied upon
//! are kept (see `Found::settled`).
//!
//! A file that is open takes a descriptor, and disk space even when it is deleted. So few are kept,
//! and none for much longer than a tenth of a second: whoever keeps the first must see to it that
//! [`Cache::take_stale`] is called until none is left, and close what that gives where waiting for
//! a disk is allowed, for the last one to close a deleted file frees its space. Others may write
//! into a file while it is open, so whoever answers with one must look whether it has the version
//! that the entry says.
//!
//! This module must not know requests, nor how objects are opened.

use super::object::Found;
use onrush_store::{Key, Version};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an entry costs beside its bytes, about.
const OVERHEAD_BYTES: usize = 512;

/// How long a file is kept open at most, in milliseconds: opening one is little beside sending it,
/// and until it is closed its space is not free when it is deleted.
const OPEN_MS_MAX: u64 = 100;

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
    /// With the numbers of the entries that they are: those of others are gone.
    hand: VecDeque<(Key, u64)>,
    /// How many of the hand are gone.
    gone: usize,
    /// The number of the next entry.
    next: u64,
    /// The entries that are open files, oldest first; they are not the hand's.
    files: VecDeque<Key>,
    /// Files that are nobody's any more, until they are taken to be closed.
    stale: Vec<Found>,
    /// Of both at most.
    files_max: usize,
    /// Somebody calls [`Cache::take_stale`] for as long as there are any.
    closes: bool,
    /// What the entries in memory cost.
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
    /// Its own in the hand.
    number: u64,
}

/// A moment on a worker: which one, and its clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) worker: usize,
    pub(super) now_ms: u64,
    pub(super) now_s: u64,
}

impl Cache {
    /// `bytes_max` and `files_max` are of all workers together.
    pub(super) fn new(bytes_max: usize, files_max: usize, fresh_ms: u64) -> Cache {
        let parts = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let part = || Part {
            entries: HashMap::new(),
            hand: VecDeque::new(),
            gone: 0,
            next: 0,
            files: VecDeque::new(),
            stale: Vec::new(),
            files_max: files_max / parts,
            closes: false,
            bytes: 0,
            bytes_max: bytes_max / parts,
        };
        Cache {
            parts: (0..parts).map(|_| Mutex::new(part())).collect(),
            fresh_ms,
        }
    }

    /// For how long a file is kept open.
    fn open_ms(&self) -> u64 {
        self.fresh_ms.min(OPEN_MS_MAX)
    }

    fn part(&self, worker: usize) -> MutexGuard<'_, Part> {
        let part = &self.parts[worker % self.parts.len()];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is kept for a key, given by its bytes or by a path as sent, if it may be answered as it
    /// is. A path that is no key (with escapes or dot segments) finds nothing.
    pub(super) fn fresh(
        &self,
        key: &[u8],
        at: Moment,
        generation: impl Fn(&Key) -> u64,
    ) -> Option<Found> {
        let mut part = self.part(at.worker);
        let entry = part.entries.get_mut(key)?;
        if generation(&entry.key) != entry.generation {
            if entry.found.memory().is_none() {
                part.remove(key); // Its space may be wanted.
            }
            return None;
        }
        let fresh_ms = match entry.found.memory() {
            Some(_) => self.fresh_ms,
            None => self.open_ms(),
        };
        if at.now_ms.saturating_sub(entry.seen_ms) >= fresh_ms {
            return None;
        }
        entry.used = true;
        Some(entry.found.clone())
    }

    /// Keeps nothing for a key.
    pub(super) fn forget(&self, key: &[u8], worker: usize) {
        self.part(worker).remove(key);
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
        let same = entry.generation == generation && entry.found.version() == version;
        if !same || entry.found.memory().is_none() {
            return None; // A file is open anew already: nothing is won by keeping the other.
        }
        (entry.seen_ms, entry.used) = (at.now_ms, true);
        Some(entry.found.clone())
    }

    /// Keeps what was opened just now, if it may be kept. `true` when from now on there are open
    /// files here: the caller sees to [`Cache::take_stale`].
    pub(super) fn keep(&self, key: &Key, at: Moment, generation: u64, found: &Found) -> bool {
        let mut part = self.part(at.worker);
        let before = part.entries.get(key.as_bytes());
        let in_memory = before.map(|before| before.found.memory().is_some());
        let room = match found.memory() {
            Some(_) => cost_bytes(key, found) <= part.bytes_max / 4,
            None => self.fresh_ms > 0 && part.files.len() + part.stale.len() < part.files_max,
        };
        // `fresh` is asked with paths as sent, where a percent sign begins an escape.
        let is_path = !key.as_bytes().contains(&b'%');
        let keeps = room && is_path && found.settled(at.now_s);
        let replaces = in_memory == Some(true) && found.memory().is_some();
        if !(keeps && replaces) {
            part.remove(key.as_bytes());
        }
        if keeps {
            part.insert(Entry {
                key: key.clone(),
                found: found.clone(),
                generation,
                seen_ms: at.now_ms,
                used: false,
                number: 0,
            });
        }
        part.has_files() && !std::mem::replace(&mut part.closes, true)
    }

    /// Takes files out that have been open for long enough, to be closed, and tells in how many
    /// milliseconds there are more; `None` when none is left, and nobody need call this again.
    pub(super) fn take_stale(&self, at: Moment) -> (Vec<Found>, Option<u64>) {
        let mut part = self.part(at.worker);
        let mut next_ms = None;
        while let Some(key) = part.files.front().cloned() {
            let entry = part.entries.get(key.as_bytes());
            let age_ms = entry.map_or(u64::MAX, |entry| at.now_ms.saturating_sub(entry.seen_ms));
            if age_ms < self.open_ms() {
                next_ms = Some(self.open_ms() - age_ms);
                break;
            }
            part.remove(key.as_bytes());
        }
        part.closes = next_ms.is_some();
        (std::mem::take(&mut part.stale), next_ms)
    }

    /// Takes out, from every worker's part, the open files that no response is sent from, to be
    /// closed: for when descriptors are scarce.
    pub(super) fn take_idle(&self) -> Vec<Found> {
        let mut idle = Vec::new();
        for worker in 0..self.parts.len() {
            let mut part = self.part(worker);
            let is_idle = |entries: &HashMap<Box<[u8]>, Entry>, key: &Key| {
                let entry = entries.get(key.as_bytes());
                entry.is_some_and(|entry| entry.found.is_idle_file())
            };
            let (entries, files) = (&part.entries, &part.files);
            let keys = files.iter().filter(|key| is_idle(entries, key));
            for key in keys.cloned().collect::<Vec<_>>() {
                part.remove(key.as_bytes());
            }
            // `closes` stays: who calls `take_stale` finds nothing then, and ends.
            idle.append(&mut part.stale);
        }
        idle
    }

    /// All open files, since nobody will call [`Cache::take_stale`] for this worker.
    pub(super) fn abandon(&self, worker: usize) -> Vec<Found> {
        let mut part = self.part(worker);
        while let Some(key) = part.files.front().cloned() {
            part.remove(key.as_bytes());
        }
        part.closes = false;
        std::mem::take(&mut part.stale)
    }
}

impl Part {
    fn has_files(&self) -> bool {
        !self.files.is_empty() || !self.stale.is_empty()
    }

    /// An entry in memory keeps its place when it is replaced; a file must have been removed.
    fn insert(&mut self, mut entry: Entry) {
        let (key, in_memory) = (entry.key.clone(), entry.found.memory().is_some());
        if in_memory {
            self.bytes += cost_bytes(&key, &entry.found);
        }
        match self.entries.get_mut(key.as_bytes()) {
            Some(before) => {
                self.bytes -= cost_bytes(&key, &before.found);
                entry.number = before.number;
                *before = entry;
            }
            None => {
                entry.number = self.next;
                self.next += 1;
                match in_memory {
                    true => self.hand.push_back((key.clone(), entry.number)),
                    false => self.files.push_back(key.clone()),
                }
                self.entries.insert(key.as_bytes().into(), entry);
            }
        }
        self.shrink();
    }

    fn remove(&mut self, key: &[u8]) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        if entry.found.memory().is_some() {
            self.bytes -= cost_bytes(&entry.key, &entry.found);
            // Looking for it would take long, so the hand finds that it is gone; in the end.
            self.gone += 1;
            if self.gone * 2 > self.hand.len() {
                let entries = &self.entries;
                self.hand
                    .retain(|(key, number)| is_entry(entries, key, *number));
                self.gone = 0;
            }
        } else {
            self.files.retain(|other| other.as_bytes() != key);
            self.stale.push(entry.found);
        }
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let Some((key, number)) = self.hand.pop_front() else {
                return;
            };
            match self.entries.get_mut(key.as_bytes()) {
                Some(entry) if entry.number != number => self.gone -= 1,
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.hand.push_back((key, number));
                }
                Some(_) => {
                    if let Some(entry) = self.entries.remove(key.as_bytes()) {
                        self.bytes -= cost_bytes(&key, &entry.found);
                    }
                }
                None => self.gone -= 1,
            }
        }
    }
}

/// Whether a key of the hand still is the entry that it was put there for.
fn is_entry(entries: &HashMap<Box<[u8]>, Entry>, key: &Key, number: u64) -> bool {
    let entry = entries.get(key.as_bytes());
    entry.is_some_and(|entry| entry.number == number)
}

fn cost_bytes(key: &Key, found: &Found) -> usize {
    let content = found.memory().map_or(0, |bytes| bytes.len());
    content + found.stored_bytes() + 2 * key.as_bytes().len() + OVERHEAD_BYTES
}
