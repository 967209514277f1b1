//! The account of the disk space that files occupy or will occupy.

use crate::sync::watch::Watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The unit in which file systems give space to files, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// The space of all files together.
#[derive(Debug)]
pub(super) struct Space {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// The part of `used_bytes` for files that a scan has not found yet. It may be too much.
    expected_bytes: AtomicU64,
    /// The tasks that wait for space.
    waiting: AtomicUsize,
    /// How often space was returned, or can be evicted, while a task has waited for that.
    freed: Watch<u64>,
}

/// The space of one file. It is returned when the last owner is dropped: the entry of the index,
/// and each open file.
#[derive(Debug)]
pub(super) struct Charge {
    space: Arc<Space>,
    bytes: AtomicU64,
}

/// The space of an open file. When it is dropped, the tasks that wait for space try again.
pub(super) struct Lent {
    charge: Arc<Charge>,
    /// The last field, because it is dropped after the others.
    _notice: Notice,
}

struct Notice(Arc<Space>);

impl Drop for Notice {
    fn drop(&mut self) {
        self.0.notify();
    }
}

/// A task waits for space. What is freed since it began is not missed.
pub(super) struct Waiting(Arc<Space>);

impl Waiting {
    pub(super) fn begin(space: &Arc<Space>) -> Waiting {
        space.waiting.fetch_add(1, Relaxed);
        fence(SeqCst); // What was freed before is seen now, or its thread sees `waiting`.
        Waiting(space.clone())
    }

    /// A number that changes when space is freed.
    pub(super) fn freed(&self) -> u64 {
        self.0.freed.with(|freed| *freed)
    }

    /// Waits until space was freed after `before`, a result of [`Waiting::freed`].
    pub(super) async fn until_freed(&self, before: u64) {
        let is_freed = |freed: &u64| (*freed != before).then_some(());
        self.0.freed.until(is_freed).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Space {
    pub(super) fn new(limit_bytes: u64) -> Arc<Space> {
        Arc::new(Space {
            limit_bytes: AtomicU64::new(limit_bytes),
            used_bytes: AtomicU64::new(0),
            expected_bytes: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            freed: Watch::new(0),
        })
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// Replaces the limit, and has the tasks that wait try again.
    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Relaxed);
        self.notify();
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// The bytes that must be freed before `bytes` more fit.
    pub(super) fn excess_bytes(&self, bytes: u64) -> u64 {
        (self.used_bytes().saturating_add(bytes)).saturating_sub(self.limit_bytes())
    }

    /// Takes space for a new file; `None` if there is not so much.
    pub(super) fn take(self: &Arc<Space>, bytes: u64) -> Option<Arc<Charge>> {
        let take = |used: u64| {
            used.checked_add(bytes)
                .filter(|&sum| sum <= self.limit_bytes())
        };
        self.used_bytes.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(self.charge(bytes))
    }

    /// Takes space for files that exist and are not known yet: `bytes` at most.
    pub(super) fn expect(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Relaxed);
        self.expected_bytes.fetch_add(bytes, Relaxed);
    }

    /// Accounts for one of the files that were expected. If more are found than were expected, even
    /// beyond the limit.
    pub(super) fn find(self: &Arc<Space>, bytes: u64) -> Arc<Charge> {
        let less = |expected: u64| Some(expected.saturating_sub(bytes));
        let expected = self.expected_bytes.fetch_update(Relaxed, Relaxed, less);
        let unexpected = bytes.saturating_sub(expected.unwrap_or_default());
        self.used_bytes.fetch_add(unexpected, Relaxed);
        self.charge(bytes)
    }

    /// All files were found.
    pub(super) fn end_expectation(&self) {
        let rest = self.expected_bytes.swap(0, Relaxed);
        self.used_bytes.fetch_sub(rest, Relaxed);
        self.notify();
    }

    /// Has the tasks that wait try again.
    pub(super) fn notify(&self) {
        fence(SeqCst); // See `Waiting::begin`.
        if self.waiting.load(Relaxed) > 0 {
            self.freed.update(|freed| *freed += 1);
        }
    }

    fn charge(self: &Arc<Space>, bytes: u64) -> Arc<Charge> {
        Arc::new(Charge {
            space: self.clone(),
            bytes: AtomicU64::new(bytes),
        })
    }
}

impl Charge {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Adds the bytes of `other`, which has none afterwards.
    pub(super) fn join(&self, other: &Charge) {
        self.bytes.fetch_add(other.bytes.swap(0, Relaxed), Relaxed);
    }

    /// Sets the bytes that the file occupies, even beyond the limit.
    pub(super) fn set(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Relaxed);
        match bytes.checked_sub(before) {
            Some(more) => self.space.used_bytes.fetch_add(more, Relaxed),
            None => self.space.used_bytes.fetch_sub(before - bytes, Relaxed),
        };
        if bytes < before {
            self.space.notify();
        }
    }

    /// The space for an owner whose end may allow the eviction of the file.
    pub(super) fn lend(self: Arc<Charge>) -> Arc<Lent> {
        let _notice = Notice(self.space.clone());
        Arc::new(Lent {
            charge: self,
            _notice,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.space.used_bytes.fetch_sub(self.bytes(), Relaxed);
        self.space.notify();
    }
}

impl Lent {
    pub(super) fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Another owner of the space.
    pub(super) fn owner(&self) -> Arc<Charge> {
        self.charge.clone()
    }
}

/// The most that a file of `bytes` bytes occupies: whole blocks, and one for the table of its
/// blocks, which file systems need for a file in several pieces.
pub(super) fn disk_bytes_max(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(BLOCK_BYTES)
        .map_or(u64::MAX, |bytes| bytes.saturating_add(BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_returned_by_the_last_owner() {
        let space = Space::new(100);
        let file = space.take(60).expect("room");
        assert!(space.take(41).is_none());
        assert_eq!((space.excess_bytes(40), space.excess_bytes(41)), (0, 1));
        let reader = file.clone();
        file.set(30);
        let more = space.take(20).expect("room");
        file.join(&more);
        drop(more);
        assert_eq!((space.used_bytes(), file.bytes()), (50, 50));
        drop(file);
        assert_eq!(space.used_bytes(), 50, "it is still open");
        drop(reader);
        assert_eq!(space.used_bytes(), 0);
        let existing = space.find(150);
        assert_eq!((space.used_bytes(), space.excess_bytes(0)), (150, 50));
        drop(existing);
        assert!(space.take(u64::MAX).is_none());
    }

    #[test]
    fn the_space_of_files_is_taken_before_they_are_found() {
        let space = Space::new(100);
        space.expect(70);
        assert!(space.take(31).is_none());
        let new = space.take(20).expect("room");
        let found = space.find(30);
        assert_eq!(space.used_bytes(), 90, "it was expected");
        drop(found);
        let more = space.find(50);
        assert_eq!(space.used_bytes(), 70, "10 more than expected");
        space.end_expectation();
        assert_eq!(space.used_bytes(), 70);
        drop((new, more));
        space.expect(70);
        let found = space.find(30);
        space.end_expectation();
        assert_eq!(space.used_bytes(), 30, "fewer than expected");
        drop(found);
        assert_eq!(space.used_bytes(), 0);
    }
}
