//! Files that are being filled, and the room for them.

use super::space::{Charge, disk_bytes_max};
use super::{Cache, Name, NotStored, Progress};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};

/// The attempts to store a file on a disk that fails.
const ATTEMPTS: usize = 8;
/// The bytes that are evicted at a time. The index is locked meanwhile.
const EVICTION_STEP_BYTES: u64 = 1 << 20;

/// A file that is being filled. Dropping it removes it.
pub struct NewFile {
    cache: Cache,
    number: u64,
    file: Arc<File>,
    charge: Arc<Charge>,
    is_published: bool,
    /// The last field, because it is dropped after the others.
    filling: Arc<Filling>,
}

/// Exists as long as a new file has space that cannot be evicted.
struct Filling(Cache);

impl Filling {
    fn begin(cache: &Cache) -> Arc<Filling> {
        cache
            .inner
            .progress
            .update(|progress| progress.filling += 1);
        Arc::new(Filling(cache.clone()))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.0.inner.progress.update(|progress| {
            progress.filling -= 1;
            progress.filled += 1;
        });
    }
}

impl Cache {
    /// Whether a file of `bytes` bytes fits into the cache when it is empty.
    pub fn fits(&self, bytes: u64) -> bool {
        disk_bytes_max(bytes) <= self.inner.space.limit_bytes()
    }

    /// As [`Cache::create`], but waits for the end of the scan, and, if other new files have so
    /// much of the space that this one does not fit, for the end of one of these. They have all the
    /// space that they need, unless they grow, so this does not wait for ever.
    pub async fn create_when_possible(&self, bytes: u64) -> Result<NewFile, NotStored> {
        let progress = &self.inner.progress;
        loop {
            let filled = progress.with(|progress| progress.filled);
            let reason = match self.create(bytes).await {
                Err(reason) => reason,
                created => return created,
            };
            let is_possible = |progress: &Progress| match reason {
                NotStored::Scanning => (!progress.is_scanning).then_some(true),
                NotStored::Full if progress.filled != filled => Some(self.fits(bytes)),
                NotStored::Full if progress.filling > 0 && self.fits(bytes) => None,
                NotStored::Full | NotStored::Busy | NotStored::Failed => Some(false),
            };
            if !progress.until(is_possible).await {
                return Err(reason);
            }
        }
    }

    /// Creates a file of `bytes` bytes after it has made room for it. Fails rather than exceeding
    /// the limit.
    pub async fn create(&self, bytes: u64) -> Result<NewFile, NotStored> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let cache = self.clone();
        let created = self.pool().run(move || cache.create_blocking(bytes));
        created.await.unwrap_or(Err(NotStored::Failed))
    }

    fn create_blocking(&self, bytes: u64) -> Result<NewFile, NotStored> {
        let inner = &self.inner;
        let filling; // Dropped after the space.
        let charge = self.reserve(disk_bytes_max(bytes)).ok_or(NotStored::Full)?;
        filling = Filling::begin(self);
        let permit = inner.descriptors.open_file(FileUse::Download);
        let permit = permit.ok_or(NotStored::Busy)?;
        let number = inner.next_number.fetch_add(1, Relaxed);
        let file = self.attempt(charge.bytes(), || inner.folder.create_new(number))?;
        let file = file.with_permit(permit).with_guard(charge.clone());
        let new = NewFile {
            cache: self.clone(),
            number,
            file: Arc::new(file),
            charge,
            is_published: false,
            filling,
        };
        // A full disk is noticed now, and not in the middle.
        self.attempt(new.charge.bytes(), || new.file.allocate(bytes))?;
        Ok(new)
    }

    /// Runs an operation of the disk for a file of `bytes` bytes, again as long as the reason for
    /// its failure can be removed.
    fn attempt<T>(
        &self,
        bytes: u64,
        operation: impl Fn() -> io::Result<T>,
    ) -> Result<T, NotStored> {
        let mut result = operation();
        for _ in 0..ATTEMPTS {
            match &result {
                Err(error) if self.recover(error, bytes) => result = operation(),
                _ => break,
            }
        }
        result.map_err(|error| {
            self.pause(&error);
            NotStored::Failed
        })
    }

    /// Takes space, for which it removes other files if necessary.
    fn reserve(&self, bytes: u64) -> Option<Arc<Charge>> {
        let inner = &self.inner;
        if bytes > inner.space.limit_bytes() {
            return None;
        }
        if let Some(charge) = inner.space.take(bytes) {
            return Some(charge);
        }
        let _evicting = self.lock_eviction();
        loop {
            if let Some(charge) = inner.space.take(bytes) {
                return Some(charge);
            }
            let excess = inner.space.excess_bytes(bytes);
            if excess > 0 && self.evict(excess.min(EVICTION_STEP_BYTES)) == 0 {
                return inner.space.take(bytes);
            }
        }
    }

    /// Removes files on the pool until `room_bytes` are free, so that the next files need not wait
    /// for that. Does nothing while it goes on.
    pub fn evict_ahead(&self, room_bytes: u64) {
        let inner = &self.inner;
        if inner.space.excess_bytes(room_bytes) == 0 || inner.is_evicting.swap(true, Relaxed) {
            return;
        }
        let cache = self.clone();
        let evict = move || {
            cache.evict_until(room_bytes);
            cache.inner.is_evicting.store(false, Relaxed);
        };
        self.pool().run(evict).detach();
    }

    /// Removes files in small steps until `room_bytes` are free.
    pub(super) fn evict_until(&self, room_bytes: u64) {
        loop {
            let _evicting = self.lock_eviction();
            let excess = self.inner.space.excess_bytes(room_bytes);
            if excess == 0 || self.evict(excess.min(EVICTION_STEP_BYTES)) == 0 {
                return;
            }
        }
    }

    /// One thread at a time makes room: what it is about to free, another one would not find.
    fn lock_eviction(&self) -> MutexGuard<'_, ()> {
        let evicting = &self.inner.evicting;
        evicting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the files that were not used for the longest time, until they have `bytes` bytes.
    /// Returns the bytes that are free now.
    pub(super) fn evict(&self, bytes: u64) -> u64 {
        let victims = self.index().evict(bytes);
        self.inner
            .evictions
            .fetch_add(victims.len() as u64, Relaxed);
        let mut freed = 0;
        for (name, charge) in victims {
            let unlinked = self.inner.folder.unlink(&name);
            let now_ms = self.now_ms();
            let mut index = self.index();
            index.end_eviction(&name);
            if unlinked.is_err() {
                index.insert(name, charge, false, now_ms); // The file still has its space.
                drop(index);
            } else {
                drop(index);
                freed += charge.bytes();
            }
            self.inner.evicted.notify_all();
            if let Err(error) = unlinked {
                self.pause(&error);
            }
        }
        freed
    }

    /// Waits until a file that is to get a name would not be taken for the evicted one that had it.
    /// Returns the space of the present file: until it is dropped, that is not evicted.
    fn await_eviction(&self, name: &Name) -> Option<Arc<Charge>> {
        let mut index = self.index();
        while index.is_evicted(name) {
            index = (self.inner.evicted.wait(index)).unwrap_or_else(PoisonError::into_inner);
        }
        index.charge(name)
    }
}

impl NewFile {
    /// The file, for writing and reading.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Takes space for `bytes` bytes in total, if it has less. Does not wait for other new files,
    /// because these may wait for this one. Blocks.
    pub fn grow(&self, bytes: u64) -> Result<(), NotStored> {
        let more = disk_bytes_max(bytes).saturating_sub(self.charge.bytes());
        if more == 0 {
            return Ok(());
        }
        let taken = self.cache.reserve(more).ok_or(NotStored::Full)?;
        self.charge.join(&taken);
        self.cache.attempt(more, || self.file.allocate(bytes))
    }

    /// Gives the file its name. It replaces a file of the same name. `whole`: the file without
    /// which it is useless, as in [`Cache::stamp_part`]. Blocks.
    pub fn publish(mut self, name: &Name, whole: Option<&Name>) -> io::Result<()> {
        let (cache, inner) = (&self.cache, &self.cache.inner);
        let now_ms = cache.now_ms();
        let part_ms = whole.and_then(|whole| cache.index().part_ms(whole));
        let used_ms = part_ms.unwrap_or(now_ms);
        let _replaced = cache.await_eviction(name);
        // Now it is known what the file occupies.
        let published = self.file.metadata().and_then(|found| {
            self.charge.set(found.allocated_bytes);
            self.file.set_modified(used_ms * 1_000_000)?;
            inner.folder.publish(self.number, name)
        });
        if let Err(error) = published {
            cache.failed(&error);
            return Err(error);
        }
        let charge = self.charge.clone();
        let mut index = cache.index();
        index.insert(*name, charge, true, used_ms);
        if let Some(whole) = whole {
            index.stamp_part(name, whole, now_ms);
        }
        drop(index);
        cache.worked();
        self.is_published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let (cache, number, filling) = (self.cache.clone(), self.number, self.filling.clone());
        let (file, charge) = (self.file.clone(), self.charge.clone());
        let unlink = move || {
            let _ = cache.inner.folder.unlink_new(number); // Otherwise the next start removes it.
            drop((file, charge));
            drop(filling);
        };
        self.cache.pool().run(unlink).detach();
    }
}
