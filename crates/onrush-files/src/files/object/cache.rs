//! The cache: the content of small objects, and open files of large objects. There is a
//! shard for each core. With at most one worker per core, workers share no lock and no reference
//! count when they respond.
//!
//! An entry is served without access to the disk while all conditions hold:
//! - The store's generation of its key is the same as before the object was opened. So a change
//!   through this server is visible at once. It has none during a change, when the disk decides:
//!   what one client has seen is not older for the next one.
//! - The object was opened at most `max_age_ms` ago; for an open file, at most a tenth of a second
//!   ago. So a change by another program is visible within that time. The same holds for a change
//!   through this server under another name of the file (a link).
//! - The store permits it: an edge, until the fresh time of its copy is over.
//!
//! A store without generations has no entries: each of its objects is opened for each request.
//!
//! Afterwards the object is opened again. If only the time had passed, and the version and the time
//! of the last change (ctime) are the same, the bytes in memory stay. The cache keeps only objects
//! whose version is reliable (see `LoadedObject::has_reliable_version`).
//!
//! An open file takes a descriptor, and disk space even after it is deleted. Therefore the cache
//! keeps few, and none for much longer than a tenth of a second. The caller that adds the first one
//! must call [`Cache::take_stale`] until no file is left. It must close the returned files where
//! waiting for a disk is allowed, because closing a deleted file frees its space. Other programs
//! may write to an open file, so its version must be checked before each response.

use crate::files::object::LoadedObject;
use onrush::WorkerHandle;
use onrush_store::{Key, Object};
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The approximate memory of an entry without its content.
const OVERHEAD_BYTES: usize = 512;

/// The maximum time that a file is kept open, in milliseconds. Opening a file is cheap compared to
/// sending it, and an open file keeps its disk space after it is deleted.
const OPEN_MS_MAX: u64 = 100;

#[derive(Debug)]
pub(in crate::files) struct Cache {
    /// One for each core. With more workers than cores, some workers share one.
    shards: Box<[Mutex<Shard>]>,
    max_age_ms: u64,
}

/// A worker's part of the cache. Entries in memory are evicted by the CLOCK algorithm: in the order
/// of arrival, but an entry that was used since the last pass stays for another round.
#[derive(Debug)]
struct Shard {
    entries: HashMap<Box<[u8]>, CacheEntry>,
    /// The keys of the entries in memory, with the number of each entry. An element is outdated if
    /// its key has no entry or an entry with another number.
    eviction_queue: VecDeque<(Key, u64)>,
    /// The number of outdated elements of `eviction_queue`.
    outdated: usize,
    next_number: u64,
    /// The entries that are open files, oldest first. They are not in `eviction_queue`.
    files: VecDeque<Key>,
    /// Files of removed entries. The caller of [`Cache::take_stale`] closes them.
    stale: Vec<LoadedObject>,
    /// The maximum of `files` and `stale` together.
    files_max: usize,
    /// Whether a task is running that calls [`Cache::take_stale`] until no file is left.
    closer_runs: bool,
    /// The memory of all entries with content in memory.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct CacheEntry {
    key: Key,
    object: LoadedObject,
    /// The store's generation before the object was opened.
    generation: u64,
    /// When the object was last opened.
    opened_ms: u64,
    /// The time for which the store allows it to be used, in milliseconds.
    fresh_ms: u64,
    /// Used since the last pass of the eviction queue.
    used: bool,
    /// Its number in the eviction queue.
    number: u64,
}

/// The worker that uses the cache, and the time on its clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::files) struct CacheContext {
    pub(in crate::files) worker: usize,
    pub(in crate::files) now_ms: u64,
    pub(in crate::files) now_s: u64,
}

impl CacheContext {
    pub(in crate::files) fn of(worker: &WorkerHandle) -> CacheContext {
        CacheContext {
            worker: worker.index(),
            now_ms: worker.now_ms(),
            now_s: worker.unix_seconds(),
        }
    }
}

impl Cache {
    /// `bytes_max` and `files_max` apply to all workers together.
    pub(in crate::files) fn new(bytes_max: usize, files_max: usize, max_age_ms: u64) -> Cache {
        let shards = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shard = || Shard {
            entries: HashMap::new(),
            eviction_queue: VecDeque::new(),
            outdated: 0,
            next_number: 0,
            files: VecDeque::new(),
            stale: Vec::new(),
            files_max: files_max / shards,
            closer_runs: false,
            bytes: 0,
            bytes_max: bytes_max / shards,
        };
        Cache {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            max_age_ms,
        }
    }

    /// The time that a file is kept open, in milliseconds.
    fn open_ms(&self) -> u64 {
        self.max_age_ms.min(OPEN_MS_MAX)
    }

    fn shard(&self, worker: usize) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[worker % self.shards.len()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached object of a key, if it may be served without opening it again. `key` is the bytes
    /// of a key or a path as sent. A path that is not a key (with escapes or dot segments) finds no
    /// entry.
    pub(in crate::files) fn get_fresh(
        &self,
        key: &[u8],
        context: CacheContext,
        generation: impl Fn(&Key) -> Option<u64>,
    ) -> Option<LoadedObject> {
        let mut shard = self.shard(context.worker);
        let entry = shard.entries.get_mut(key)?;
        if generation(&entry.key) != Some(entry.generation) {
            if entry.object.bytes_in_memory().is_none() {
                shard.remove(key); // Closing the file may free disk space.
            }
            return None;
        }
        let max_age_ms = match entry.object.bytes_in_memory() {
            Some(_) => self.max_age_ms,
            None => self.open_ms(),
        };
        let max_age_ms = max_age_ms.min(entry.fresh_ms);
        if context.now_ms.saturating_sub(entry.opened_ms) >= max_age_ms {
            return None;
        }
        entry.used = true;
        Some(entry.object.clone())
    }

    /// Removes the entry of a key.
    pub(in crate::files) fn remove(&self, key: &[u8], worker: usize) {
        self.shard(worker).remove(key);
    }

    /// Renews the entry of a key whose `object` was opened just now, if it is the same, and returns
    /// its object. `None` if the entry is outdated or has no content in memory. `generation` is
    /// from before the opening. The store allows its use for `fresh_ms`.
    pub(in crate::files) fn revalidate(
        &self,
        key: &Key,
        context: CacheContext,
        generation: Option<u64>,
        object: &Object,
        fresh_ms: u64,
    ) -> Option<LoadedObject> {
        let mut shard = self.shard(context.worker);
        let entry = shard.entries.get_mut(key.as_bytes())?;
        // After a change through this server, an equal version proves nothing: an inode number may
        // have been reused for a file with the same time.
        let same = Some(entry.generation) == generation && entry.object.is_of(object);
        if !same || entry.object.bytes_in_memory().is_none() {
            return None; // The new open file replaces the old one.
        }
        (entry.opened_ms, entry.fresh_ms, entry.used) = (context.now_ms, fresh_ms, true);
        Some(entry.object.clone())
    }

    /// Adds an object that was opened just now, if it may be cached; otherwise removes the entry of
    /// its key. The store allows its use for `fresh_ms`. Returns `true` if this shard has open
    /// files from now on: the caller then must call [`Cache::take_stale`].
    pub(in crate::files) fn add(
        &self,
        key: &Key,
        context: CacheContext,
        generation: Option<u64>,
        object: &LoadedObject,
        fresh_ms: u64,
    ) -> bool {
        // Without a generation, a change by another machine would not be visible at once.
        let Some(generation) = generation.filter(|_| object.is_cacheable()) else {
            return false;
        };
        let mut shard = self.shard(context.worker);
        let before = shard.entries.get(key.as_bytes());
        let in_memory = before.map(|before| before.object.bytes_in_memory().is_some());
        let has_room = match object.bytes_in_memory() {
            Some(_) => cost_bytes(key, object) <= shard.bytes_max / 4,
            None => self.max_age_ms > 0 && shard.files.len() + shard.stale.len() < shard.files_max,
        };
        // `get_fresh` compares paths as sent, where a percent sign begins an escape.
        let is_path = !key.as_bytes().contains(&b'%');
        let may_add = has_room && is_path && object.has_reliable_version(context.now_s);
        let replaces = in_memory == Some(true) && object.bytes_in_memory().is_some();
        if !(may_add && replaces) {
            shard.remove(key.as_bytes());
        }
        if may_add {
            shard.insert(CacheEntry {
                key: key.clone(),
                object: object.for_later(),
                generation,
                opened_ms: context.now_ms,
                fresh_ms,
                used: false,
                number: 0,
            });
        }
        shard.has_files() && !std::mem::replace(&mut shard.closer_runs, true)
    }

    /// Removes the files that have been open for long enough and returns them, to be closed, with
    /// the milliseconds until the next ones. `None`: no file is left and no further call is needed.
    pub(in crate::files) fn take_stale(
        &self,
        context: CacheContext,
    ) -> (Vec<LoadedObject>, Option<u64>) {
        let mut shard = self.shard(context.worker);
        let mut next_ms = None;
        while let Some(key) = shard.files.front().cloned() {
            let entry = shard.entries.get(key.as_bytes());
            let age_ms = entry.map_or(u64::MAX, |entry| {
                context.now_ms.saturating_sub(entry.opened_ms)
            });
            if age_ms < self.open_ms() {
                next_ms = Some(self.open_ms() - age_ms);
                break;
            }
            shard.remove(key.as_bytes());
        }
        shard.closer_runs = next_ms.is_some();
        (std::mem::take(&mut shard.stale), next_ms)
    }

    /// Removes the open files that no response is using from the shards of all workers and returns
    /// them, to be closed. It is called when descriptors are short.
    pub(in crate::files) fn take_idle_files(&self) -> Vec<LoadedObject> {
        let mut idle = Vec::new();
        for worker in 0..self.shards.len() {
            let mut shard = self.shard(worker);
            let is_idle = |entries: &HashMap<Box<[u8]>, CacheEntry>, key: &Key| {
                let entry = entries.get(key.as_bytes());
                entry.is_some_and(|entry| entry.object.is_idle_file())
            };
            let (entries, files) = (&shard.entries, &shard.files);
            let keys = files.iter().filter(|key| is_idle(entries, key));
            for key in keys.cloned().collect::<Vec<_>>() {
                shard.remove(key.as_bytes());
            }
            // `closer_runs` stays set: the closer finds no files at its next call and ends.
            idle.append(&mut shard.stale);
        }
        idle
    }

    /// Removes everything, and keeps nothing any more. Blocks: closing a deleted file frees its
    /// space.
    pub(in crate::files) fn close(&self) {
        for worker in 0..self.shards.len() {
            let mut shard = self.shard(worker);
            (shard.bytes_max, shard.files_max) = (0, 0);
            (shard.bytes, shard.outdated) = (0, 0);
            shard.eviction_queue.clear();
            shard.files.clear();
            let removed = (
                std::mem::take(&mut shard.entries),
                std::mem::take(&mut shard.stale),
            );
            // `closer_runs` stays: the closer finds no files at its next call and ends.
            drop(shard);
            drop(removed);
        }
    }

    /// Takes all open files of a worker whose task for [`Cache::take_stale`] has ended.
    pub(in crate::files) fn take_all_files(&self, worker: usize) -> Vec<LoadedObject> {
        let mut shard = self.shard(worker);
        while let Some(key) = shard.files.front().cloned() {
            shard.remove(key.as_bytes());
        }
        shard.closer_runs = false;
        std::mem::take(&mut shard.stale)
    }
}

impl Shard {
    fn has_files(&self) -> bool {
        !self.files.is_empty() || !self.stale.is_empty()
    }

    /// Adds an entry. An entry in memory may replace one, and keeps its place in the queue. An
    /// entry that is a file must have been removed before.
    fn insert(&mut self, mut entry: CacheEntry) {
        let (key, in_memory) = (entry.key.clone(), entry.object.bytes_in_memory().is_some());
        if in_memory {
            self.bytes += cost_bytes(&key, &entry.object);
        }
        match self.entries.get_mut(key.as_bytes()) {
            Some(before) => {
                self.bytes -= cost_bytes(&key, &before.object);
                entry.number = before.number;
                *before = entry;
            }
            None => {
                entry.number = self.next_number;
                self.next_number += 1;
                match in_memory {
                    true => self.eviction_queue.push_back((key.clone(), entry.number)),
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
        if entry.object.bytes_in_memory().is_some() {
            self.bytes -= cost_bytes(&entry.key, &entry.object);
            // A search for the element would take long, so it stays in the queue as outdated.
            self.outdated += 1;
            if self.outdated * 2 > self.eviction_queue.len() {
                let entries = &self.entries;
                self.eviction_queue
                    .retain(|(key, number)| is_current(entries, key, *number));
                self.outdated = 0;
            }
        } else {
            self.files.retain(|other| other.as_bytes() != key);
            self.stale.push(entry.object);
        }
    }

    /// Evicts entries in memory until they fit into `bytes_max`.
    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let Some((key, number)) = self.eviction_queue.pop_front() else {
                return;
            };
            match self.entries.get_mut(key.as_bytes()) {
                Some(entry) if entry.number != number => self.outdated -= 1,
                Some(entry) if entry.used => {
                    entry.used = false;
                    self.eviction_queue.push_back((key, number));
                }
                Some(_) => {
                    if let Some(entry) = self.entries.remove(key.as_bytes()) {
                        self.bytes -= cost_bytes(&key, &entry.object);
                    }
                }
                None => self.outdated -= 1,
            }
        }
    }
}

/// Whether an element of the eviction queue belongs to the present entry of its key.
fn is_current(entries: &HashMap<Box<[u8]>, CacheEntry>, key: &Key, number: u64) -> bool {
    let entry = entries.get(key.as_bytes());
    entry.is_some_and(|entry| entry.number == number)
}

fn cost_bytes(key: &Key, object: &LoadedObject) -> usize {
    let content = object.bytes_in_memory().map_or(0, |bytes| bytes.len());
    content + object.stored_bytes() + 2 * key.as_bytes().len() + OVERHEAD_BYTES
}
