//! Files that are being filled, and the room for them.

use super::index::Index;
use super::space::{Charge, Lent, Waiting, disk_bytes_max};
use super::{Cache, Name, NotStored};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::File;
use onrush_rt::worker::WorkerContext;
use std::future::Future;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// The attempts to store a file on a disk that fails.
const ATTEMPTS: usize = 8;
/// The bytes that are evicted at a time. The index is locked meanwhile.
const EVICTION_STEP_BYTES: u64 = 1 << 20;
/// The time for which a new file waits for room: a slow client may have it for longer.
const WAIT: Duration = Duration::from_secs(5);

/// A file that is being filled. Dropping it removes it.
pub struct NewFile {
    cache: Cache,
    number: u64,
    file: Arc<File>,
    /// The space, which cannot be evicted until this is dropped.
    lent: Arc<Lent>,
    is_published: bool,
}

/// Space that a large new file is going to take. Dropping it ends the promise.
pub struct Promise(#[expect(dead_code, reason = "it is only dropped")] Arc<Charge>);

impl Cache {
    /// Whether a file of `bytes` bytes fits into the cache when it is empty.
    pub fn fits(&self, bytes: u64) -> bool {
        disk_bytes_max(bytes) <= self.inner.space.limit_bytes()
    }

    /// As [`Cache::create`], but waits for the end of the scan, and for the space of other new
    /// files and of files that are being read. On a worker, it waits for a few seconds only.
    pub async fn create_when_possible(&self, bytes: u64) -> Result<NewFile, NotStored> {
        self.when_possible(bytes, || self.create(bytes)).await
    }

    /// Attempts something that takes space, `bytes` at most, until there is room for it.
    async fn when_possible<T, F>(
        &self,
        bytes: u64,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, NotStored>
    where
        F: Future<Output = Result<T, NotStored>>,
    {
        let inner = &self.inner;
        let clock = Clock::new();
        let mut waiting: Option<Waiting> = None;
        loop {
            let freed = waiting.as_ref().map(Waiting::freed);
            let reason = match attempt().await {
                Err(reason) => reason,
                done => return done,
            };
            let waited = match (reason, &waiting) {
                (NotStored::Full, _) if !self.fits(bytes) => None,
                (NotStored::Full, Some(waiting)) => {
                    let waits = waiting.until_freed(freed.unwrap_or_default());
                    clock.limit(waits).await
                }
                (NotStored::Full, None) => {
                    // Once more, because what is freed is noticed only from now on.
                    waiting = Some(Waiting::begin(&inner.space));
                    Some(())
                }
                (NotStored::Scanning, _) => {
                    let is_bounded = || inner.is_bounded.load(Relaxed);
                    let is_over = |is_scanning: &bool| (!is_scanning || is_bounded()).then_some(());
                    clock.limit(inner.is_scanning.until(is_over)).await
                }
                (NotStored::Busy | NotStored::Failed, _) => None,
            };
            if waited.is_none() {
                return Err(reason);
            }
        }
    }

    /// Waits until the large files that are being filled leave `bytes` bytes of the limit for
    /// another one. So files that take their space while their bytes arrive do not wait for each
    /// other. Nothing is evicted for a promise. `None` after a few seconds on a worker, so that a
    /// slow client does not keep others from storing large files.
    pub async fn promise(&self, bytes: u64) -> Option<Promise> {
        let (promises, bytes) = (&self.inner.promises, disk_bytes_max(bytes));
        let take = async {
            let waiting = Waiting::begin(promises);
            loop {
                let freed = waiting.freed();
                match promises.take(bytes) {
                    Some(charge) => return Promise(charge),
                    None => waiting.until_freed(freed).await,
                }
            }
        };
        Clock::new().limit(take).await
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
        let charge = self.reserve(disk_bytes_max(bytes)).ok_or(NotStored::Full)?;
        let (lent, charged) = (charge.lend(), disk_bytes_max(bytes));
        self.attempt(charged, || self.cover())?;
        let permit = inner.descriptors.open_file(FileUse::Download);
        let permit = permit.ok_or(NotStored::Busy)?;
        let number = inner.next_number.fetch_add(1, Relaxed);
        let file = self.attempt(charged, || inner.folder.create_new(number))?;
        let file = file.with_permit(permit).with_guard(lent.clone());
        let new = NewFile {
            cache: self.clone(),
            number,
            file: Arc::new(file),
            lent,
            is_published: false,
        };
        // A full disk is noticed now, and not in the middle.
        self.attempt(charged, || new.file.allocate(bytes))?;
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

    /// Ensures that the bound on the disk has the space that was taken.
    fn cover(&self) -> io::Result<()> {
        let inner = &self.inner;
        inner.bound.cover(&inner.folder, &inner.space)
    }

    /// Takes space, for which it removes other files if necessary.
    fn reserve(&self, bytes: u64) -> Option<Arc<Charge>> {
        let inner = &self.inner;
        if bytes > inner.space.limit_bytes() {
            return None;
        }
        if let Some(charge) = inner.space.take(bytes) {
            return Some(charge); // Without the lock.
        }
        let mut index = self.index();
        loop {
            // What another thread frees is for everyone: this one does not wait for its end.
            if let Some(charge) = inner.space.take(bytes) {
                return Some(charge);
            }
            if !index.is_making_room {
                break;
            }
            index = (inner.evicted.wait(index)).unwrap_or_else(PoisonError::into_inner);
        }
        let _making_room = self.make_room(index);
        if !self.index().can_evict(inner.space.excess_bytes(bytes)) {
            return inner.space.take(bytes); // Nothing is removed in vain.
        }
        loop {
            if let Some(charge) = inner.space.take(bytes) {
                return Some(charge);
            }
            if bytes > inner.space.limit_bytes() {
                return None; // The limit is lower since a moment ago.
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
        let evicting = Evicting(self.clone());
        let evict = move || evicting.0.evict_until(room_bytes);
        self.pool().run(evict).detach();
    }

    /// Replaces the maximum of the allocated blocks of all files, and removes those that are too
    /// many. Files that are being filled, or that clients read, have their space until they are
    /// closed. Blocks.
    pub fn set_limit(&self, bytes_max: u64) {
        self.inner.space.set_limit(bytes_max);
        self.inner.promises.set_limit(bytes_max);
        self.evict_until(0);
    }

    /// Removes files in small steps until `room_bytes` are free.
    pub(super) fn evict_until(&self, room_bytes: u64) {
        loop {
            let mut index = self.index();
            while index.is_making_room {
                index = (self.inner.evicted.wait(index)).unwrap_or_else(PoisonError::into_inner);
            }
            let _making_room = self.make_room(index);
            let excess = self.inner.space.excess_bytes(room_bytes);
            if excess == 0 || self.evict(excess.min(EVICTION_STEP_BYTES)) == 0 {
                return;
            }
        }
    }

    /// One thread at a time makes room: what it is about to free, another one would not find. No
    /// thread does so when this is called.
    fn make_room<'a>(&'a self, mut index: MutexGuard<'a, Index>) -> MakingRoom<'a> {
        index.is_making_room = true;
        MakingRoom(self)
    }

    /// Removes the files that were not used for the longest time, until they have `bytes` bytes.
    /// Returns the bytes that are free now.
    pub(super) fn evict(&self, bytes: u64) -> u64 {
        let space = &self.inner.space;
        let victims = self.index().evict(bytes, |bytes| space.find(bytes));
        self.inner
            .evictions
            .fetch_add(victims.len() as u64, Relaxed);
        let mut freed = 0;
        let mut victims = Victims {
            cache: self,
            left: victims.into_iter(),
        };
        for (name, charge) in victims.left.by_ref() {
            let unlinked = self.inner.folder.unlink(&name);
            let now_ms = self.now_ms();
            let kept = match unlinked {
                Ok(()) => {
                    freed += charge.bytes();
                    drop(charge); // Those that wait for `evicted` look for space.
                    None
                }
                Err(_) => Some(charge), // The file still has its space.
            };
            let mut index = self.index();
            index.end_eviction(&name);
            if let Some(charge) = kept {
                index.insert(name, charge, false, now_ms);
            }
            drop(index);
            self.inner.evicted.notify_all();
            if let Err(error) = unlinked {
                self.pause(&error);
            }
        }
        freed
    }

    /// Waits until a file that is to get a name would not be taken for the evicted one that had it.
    /// Until what it returns is dropped, the present file is not evicted.
    fn await_eviction<'a>(&'a self, name: &'a Name) -> Held<'a> {
        let mut index = self.index();
        while index.is_evicted(name) {
            index = (self.inner.evicted.wait(index)).unwrap_or_else(PoisonError::into_inner);
        }
        index.hold(name);
        Held {
            cache: self,
            name,
            _lent: index.charge(name).map(Charge::lend),
        }
    }
}

/// A thread makes room. When this is dropped, another one may.
struct MakingRoom<'a>(&'a Cache);

impl Drop for MakingRoom<'_> {
    fn drop(&mut self) {
        self.0.index().is_making_room = false;
        self.0.inner.evicted.notify_all();
    }
}

/// The job of [`Cache::evict_ahead`]. When it is dropped, another one may begin.
struct Evicting(Cache);

impl Drop for Evicting {
    fn drop(&mut self) {
        self.0.inner.is_evicting.store(false, Relaxed);
    }
}

/// Evicted entries whose files are still to be removed. If that ends early, by a panic, the files
/// stay.
struct Victims<'a> {
    cache: &'a Cache,
    left: std::vec::IntoIter<(Name, Arc<Charge>)>,
}

impl Drop for Victims<'_> {
    fn drop(&mut self) {
        for (name, charge) in self.left.by_ref() {
            let now_ms = self.cache.now_ms();
            let mut index = self.cache.index();
            index.end_eviction(&name);
            index.insert(name, charge, false, now_ms);
        }
        self.cache.inner.evicted.notify_all();
    }
}

/// A name that a new file is about to get.
struct Held<'a> {
    cache: &'a Cache,
    name: &'a Name,
    /// The space of the present file.
    _lent: Option<Arc<Lent>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cache.index().release(self.name);
    }
}

impl NewFile {
    /// The file, for writing and reading.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Takes space for `bytes` bytes in total, if it has less. Does not wait for it.
    pub async fn grow(&self, bytes: u64) -> Result<(), NotStored> {
        let (cache, lent, file) = (self.cache.clone(), self.lent.clone(), self.file.clone());
        let grow = move || {
            let more = disk_bytes_max(bytes).saturating_sub(lent.charge().bytes());
            if more == 0 {
                return Ok(());
            }
            let taken = cache.reserve(more).ok_or(NotStored::Full)?;
            lent.charge().join(&taken);
            cache.attempt(more, || cache.cover())?;
            cache.attempt(more, || file.allocate(bytes))
        };
        let grown = self.cache.pool().run(grow);
        grown.await.unwrap_or(Err(NotStored::Failed))
    }

    /// As [`NewFile::grow`], but waits for room as [`Cache::create_when_possible`] does.
    pub async fn grow_when_possible(&self, bytes: u64) -> Result<(), NotStored> {
        let grown = self.cache.when_possible(bytes, || self.grow(bytes));
        grown.await
    }

    /// Gives the file its name. It replaces a file of the same name. `whole`: the file without
    /// which it is useless, as in [`Cache::stamp_part`]. Blocks.
    pub fn publish(mut self, name: &Name, whole: Option<&Name>) -> io::Result<()> {
        let (cache, inner) = (&self.cache, &self.cache.inner);
        let now_ms = cache.now_ms();
        let part_ms = whole.and_then(|whole| cache.index().part_ms(whole));
        let used_ms = part_ms.unwrap_or(now_ms);
        let _held = cache.await_eviction(name);
        // Now it is known what the file occupies.
        let closed = cache.closed();
        if *closed {
            return Err(io::ErrorKind::BrokenPipe.into()); // The list would lack the file.
        }
        let published = self.file.metadata().and_then(|found| {
            self.lent.charge().set(found.allocated_bytes);
            cache.cover()?;
            self.file.set_modified(used_ms * 1_000_000)?;
            inner.folder.publish(self.number, name)
        });
        if let Err(error) = published {
            cache.failed(&error);
            return Err(error);
        }
        let charge = self.lent.owner();
        let mut index = cache.index();
        index.insert(*name, charge, true, used_ms);
        if let Some(whole) = whole {
            index.stamp_part(name, whole, now_ms);
        }
        drop(index);
        drop(closed);
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
        let (cache, number) = (self.cache.clone(), self.number);
        let (file, lent) = (self.file.clone(), self.lent.clone());
        let unlink = move || {
            let _ = cache.inner.folder.unlink_new(number); // Otherwise the next start removes it.
            drop((file, lent));
        };
        self.cache.pool().run(unlink).detach();
    }
}

/// The time that is left for a wait. Only workers have a clock with timers: elsewhere, a wait has
/// no limit.
struct Clock(Option<(WorkerContext, u64)>);

impl Clock {
    fn new() -> Clock {
        let end = |worker: WorkerContext| {
            let end_ns = worker.clock_ns() + WAIT.as_nanos() as u64;
            (worker, end_ns)
        };
        Clock(WorkerContext::current().map(end))
    }

    /// `None` if the time is over before `future` is complete.
    async fn limit<F: Future>(&self, future: F) -> Option<F::Output> {
        match &self.0 {
            None => Some(future.await),
            Some((worker, end_ns)) => {
                let left_ns = end_ns.saturating_sub(worker.clock_ns());
                let left = Duration::from_nanos(left_ns);
                worker.timeout(left, future).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CacheOptions, DiskEvent, Report};
    use super::*;
    use crate::for_tests::{block_on, cache_options, wait_until};
    use onrush_rt::blocking::BlockingPool;
    use onrush_rt::fs::sim::SimFs;
    use std::thread;

    const FILE_BYTES: u64 = 100_000;

    /// A cache of 1 MB with files of these numbers.
    fn cache(disk: &SimFs, report: Report, files: std::ops::Range<u8>) -> Cache {
        let options = CacheOptions {
            report,
            ..cache_options(1_000_000)
        };
        let root = disk.root().expect("the power is on");
        let cache = Cache::on(root, BlockingPool::threads(4, 100), options).expect("a cache");
        wait_until(|| cache.is_complete());
        for number in files {
            let new = block_on(cache.create(FILE_BYTES)).expect("room");
            let content = vec![0; FILE_BYTES as usize];
            new.file().write_all_at(&content, 0).expect("written");
            new.publish(&name(number), None).expect("published");
        }
        cache
    }

    fn name(number: u8) -> Name {
        Name::of(&[&[number]])
    }

    /// Here the function that reports failures panics.
    #[test]
    fn files_are_evicted_ahead_after_a_panic() {
        let disk = SimFs::new(1);
        let report = |event| assert!(!matches!(event, DiskEvent::Fails(_)), "this thread panics");
        let cache = cache(&disk, Arc::new(report), 0..8);
        disk.fail_at(disk.operations(), libc::EIO);
        cache.evict_ahead(1_000_000);
        wait_until(|| {
            cache.evict_ahead(1_000_000);
            cache.stats().entries == 0 && !cache.index().is_evicting()
        });
    }

    /// A thread that makes much room must not delay those that need a little.
    #[test]
    fn room_is_for_all_while_more_is_made() {
        let cache = cache(&SimFs::new(1), Arc::new(|_| {}), 0..9);
        let making_room = cache.make_room(cache.index());
        let other = cache.clone();
        let waits = thread::spawn(move || block_on(other.create(2 * FILE_BYTES)).map(drop));
        while cache.evict(1) > 0 {
            thread::yield_now();
        }
        assert_eq!(waits.join().expect("no panic"), Ok(()), "before the end");
        drop(making_room);
        assert_eq!(cache.stats().entries, 0);
    }

    /// What cannot succeed because of files in use removes no others.
    #[test]
    fn nothing_is_evicted_in_vain() {
        let cache = cache(&SimFs::new(1), Arc::new(|_| {}), 0..8);
        let open = [0, 1, 2].map(|number| cache.try_open(&name(number)).expect("a file"));
        let refused = block_on(cache.create(8 * FILE_BYTES)).map(drop);
        assert_eq!(refused, Err(NotStored::Full));
        assert_eq!((cache.stats().evictions, cache.stats().entries), (0, 8));
        let created = block_on(cache.create(5 * FILE_BYTES)).map(drop);
        assert_eq!(created, Ok(()));
        assert!(cache.stats().evictions > 0);
        drop(open);
    }
}
