//! The scan after the start, which finds the files of earlier processes while the cache is in use.

use super::found::{ByAge, FoundFiles};
use super::list::Listed;
use super::{Cache, DiskEvent};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// The entries that a scan adds at a time. Others wait for the index meanwhile.
const SCAN_STEP: usize = 1000;

/// Exists while the scan goes on.
struct Scanning(Cache);

impl Drop for Scanning {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        if std::thread::panicking() {
            // It begins again after the pause.
            inner.has_scan_failed.store(true, Relaxed);
            self.0.pause(&io::ErrorKind::Other.into());
        }
        inner.is_scanning.update(|is_scanning| *is_scanning = false);
    }
}

impl Cache {
    pub(super) fn begin_scan(&self) {
        (self.inner.is_scanning).update(|is_scanning| *is_scanning = true);
        let scanning = Scanning(self.clone());
        let scan = move || {
            let cache = scanning.0.clone();
            let is_complete = cache.scan();
            drop(scanning);
            if is_complete {
                cache.evict_until(0); // The limit may be lower than before.
                (cache.inner.report)(DiskEvent::IsScanned(cache.stats()));
            }
        };
        self.pool().run(scan).detach();
    }

    /// Finds the files of earlier processes. Returns whether that has succeeded.
    fn scan(&self) -> bool {
        let found = match self.find_all() {
            Ok(found) => found,
            Err(error) => {
                // What was not found would not be counted.
                self.failed(&error);
                self.inner.has_scan_failed.store(true, Relaxed);
                return false;
            }
        };
        let (space, folder) = (&self.inner.space, &self.inner.folder);
        for step in found.chunks(SCAN_STEP) {
            self.index().append(step, |bytes| space.find(bytes));
        }
        self.index().complete();
        space.end_expectation();
        let _ = self.inner.bound.renew(folder, space); // Again before more space is taken.
        true
    }

    /// The files that are not known yet have `bytes` bytes at most. If these fit, new files can be
    /// stored.
    fn expect(&self, bytes: u64) {
        let inner = &self.inner;
        if bytes <= inner.space.limit_bytes() {
            inner.space.expect(bytes);
            inner.is_bounded.store(true, Relaxed);
            inner.is_scanning.update(|_| {}); // Files that wait for the scan can be stored now.
        }
    }

    /// All files, beginning with the most recently used one.
    fn find_all(&self) -> io::Result<Vec<Listed>> {
        let inner = &self.inner;
        // Before anything is stored: the list would lack it.
        if let Some(mut listed) = inner.folder.take_list()? {
            // To sort and add a million files takes a second, or more on a busy machine.
            self.expect(listed.iter().map(|&(_, _, bytes)| bytes).sum());
            listed.sort_unstable_by_key(|&(_, used_ms, _)| std::cmp::Reverse(used_ms));
            return Ok(listed);
        }
        if let Some(found) = self.index().found() {
            found.clear();
        }
        if !inner.is_bounded.load(Relaxed)
            && let Some(bytes) = inner.bound.load(&inner.folder)
        {
            self.expect(bytes);
        }
        inner.folder.scan(&mut |files| {
            if let Some(found) = self.index().found() {
                found.add(files.into_iter());
            }
            inner.space.notify(); // They may be removed for others.
        })?;
        let found = self.index().found().map(FoundFiles::take);
        Ok(found.map(ByAge::sort).unwrap_or_default()) // Without the lock.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::{block_on, cache_options};
    use onrush_rt::blocking::BlockingPool;
    use onrush_rt::fs::sim::SimFs;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    /// What the start lists in a new folder before the scan does: the folder, and that of uploads.
    const LISTS: usize = 2;

    #[test]
    fn a_file_that_waits_for_the_scan_is_stored_when_the_used_space_is_known() {
        let disk = SimFs::new(1);
        disk.hold_lists(Some(LISTS));
        let root = disk.root().expect("the power is on");
        let cache = Cache::on(root, BlockingPool::threads(4, 100), cache_options(1 << 20))
            .expect("a cache");
        let limit = Duration::from_secs(30);
        assert_eq!(disk.wait_for_held_lists(1, limit), 1, "the scan begins");
        let mut creating = pin!(cache.create_when_possible(4096));
        let mut context = Context::from_waker(Waker::noop());
        assert!(creating.as_mut().poll(&mut context).is_pending());
        assert!(cache.inner.is_scanning.is_awaited());
        cache.expect(0);
        assert!(!cache.inner.is_scanning.is_awaited(), "it was woken");
        let created = block_on(creating).map(drop);
        assert!(created.is_ok(), "{created:?}");
        disk.hold_lists(None);
    }
}
