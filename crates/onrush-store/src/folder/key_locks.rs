//! A lock for each key, and for each stripe of keys a generation counter and the last key that was
//! put.
//!
//! A lock is in the table only while a task holds it or waits for it. The hash of a key selects one
//! of a fixed number of stripes of the table. The mutex of a stripe is held for a few instructions.
//! Keys in the same stripe share a generation, but never a lock: a long change delays only changes
//! of the same key.
//!
//! Tasks wait for a lock, in order of arrival; threads never do. Otherwise a hundred puts of one
//! key would occupy the pool with waiting and block all reads.

use super::FolderInner;
use crate::key::Key;
use crate::sync::semaphore::{self, Semaphore};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

const STRIPES: usize = 1024;

pub(super) struct KeyLocks(Box<[Stripe]>);

/// The part of a generation counter that is the number of earlier changes. The rest is the number
/// of those in progress, each of which has a thread.
const EARLIER: u64 = 1 << 16;

#[derive(Default)]
struct Stripe {
    /// The locks of the keys that are locked now.
    locks: Mutex<Vec<(Key, Semaphore)>>,
    /// See [`EARLIER`].
    generation: AtomicU64,
    /// The hash of the last key that was put.
    last_put: AtomicU64,
}

impl KeyLocks {
    pub(super) fn new() -> KeyLocks {
        KeyLocks((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    /// A number that differs after a change of the object `key`, or of another one in its stripe.
    /// `None` while such a change is in progress: one reader may have seen the new object, so no
    /// other one may be given what was there before.
    pub(super) fn generation(&self, key: &Key) -> Option<u64> {
        let count = self.stripe(key).generation.load(Ordering::Acquire);
        count.is_multiple_of(EARLIER).then_some(count / EARLIER)
    }

    /// Begins a change of `key`. Must be called before the change is visible to readers. The change
    /// ends when the result is dropped, which must be before its client has the response.
    pub(super) fn change(&self, key: &Key) -> Changing<'_> {
        Changing::begin(std::slice::from_ref(self.stripe(key)))
    }

    /// As [`KeyLocks::change`], of every key.
    pub(super) fn change_all(&self) -> Changing<'_> {
        Changing::begin(&self.0)
    }

    /// An object has got the name `key`.
    pub(super) fn note_put(&self, key: &Key) {
        let last_put = &self.stripe(key).last_put;
        last_put.store(hash(key.as_bytes()), Ordering::Relaxed);
    }

    /// Whether there is probably an object with the name `key`: it was put, and no other key of its
    /// stripe since. This is a hint, since objects are deleted, also by others.
    pub(super) fn was_put(&self, key: &Key) -> bool {
        self.stripe(key).last_put.load(Ordering::Relaxed) == hash(key.as_bytes())
    }

    fn stripe(&self, key: &Key) -> &Stripe {
        &self.0[stripe_index(key)]
    }
}

/// Changes of the keys of these stripes are in progress.
#[must_use]
pub(super) struct Changing<'k>(&'k [Stripe]);

impl Changing<'_> {
    fn begin(stripes: &[Stripe]) -> Changing<'_> {
        for stripe in stripes {
            stripe.generation.fetch_add(1, Ordering::AcqRel);
        }
        Changing(stripes)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        for stripe in self.0 {
            stripe.generation.fetch_add(EARLIER - 1, Ordering::AcqRel);
        }
    }
}

impl Stripe {
    fn lock(&self) -> MutexGuard<'_, Vec<(Key, Semaphore)>> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock of `key` and returns `true`, or waits for it; see [`Semaphore::poll`].
    fn poll(&self, key: &Key, ticket: &mut Option<u64>, cx: &Context<'_>) -> bool {
        let mut locks = self.lock();
        let at = locks.iter().position(|(held, _)| held == key);
        let at = at.unwrap_or_else(|| {
            locks.push((key.clone(), Semaphore::new(1)));
            locks.len() - 1
        });
        locks[at].1.poll(ticket, cx.waker())
    }

    /// Releases the lock of `key`, or removes `ticket` from its queue.
    fn release(&self, key: &Key, ticket: Option<u64>) {
        let mut locks = self.lock();
        let Some(at) = locks.iter().position(|(held, _)| held == key) else {
            return;
        };
        let lock = &mut locks[at].1;
        let next = match ticket {
            Some(ticket) => lock.cancel(ticket),
            None => lock.release(),
        };
        if lock.free() > 0 {
            locks.swap_remove(at);
        }
        drop(locks);
        semaphore::wake(next);
    }
}

/// Waits for the lock of a key. The caller holds it from the check of the condition until the
/// change is made, so the guard moves into the job that does both.
pub(super) fn acquire(inner: &Arc<FolderInner>, key: &Key) -> AcquireLock {
    AcquireLock {
        id: Some(LockId {
            inner: inner.clone(),
            stripe: stripe_index(key),
            key: key.clone(),
        }),
        ticket: None,
    }
}

/// Takes the lock of a key, or returns `None` if it is not free.
pub(super) fn try_acquire(inner: &Arc<FolderInner>, key: &Key) -> Option<KeyGuard> {
    let mut acquire = acquire(inner, key);
    match Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(guard) => Some(guard),
        Poll::Pending => None,
    }
}

/// Identifies a key's lock in the table.
struct LockId {
    inner: Arc<FolderInner>,
    /// The index of its stripe.
    stripe: usize,
    key: Key,
}

impl LockId {
    fn stripe(&self) -> &Stripe {
        &self.inner.key_locks.0[self.stripe]
    }
}

pub(super) struct AcquireLock {
    /// `None` after the lock was taken.
    id: Option<LockId>,
    /// Set while waiting.
    ticket: Option<u64>,
}

impl Future for AcquireLock {
    type Output = KeyGuard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<KeyGuard> {
        let AcquireLock { id, ticket } = &mut *self;
        let taken = id.take_if(|id| id.stripe().poll(&id.key, ticket, cx));
        taken.map_or(Poll::Pending, |id| Poll::Ready(KeyGuard(id)))
    }
}

impl Drop for AcquireLock {
    fn drop(&mut self) {
        if let (Some(id), Some(_)) = (&self.id, self.ticket) {
            id.stripe().release(&id.key, self.ticket);
        }
    }
}

/// The lock of a key. Dropping it, on any thread, releases the lock.
pub(super) struct KeyGuard(LockId);

impl KeyGuard {
    pub(super) fn key(&self) -> &Key {
        &self.0.key
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        self.0.stripe().release(&self.0.key, None);
    }
}

fn stripe_index(key: &Key) -> usize {
    hash(key.as_bytes()) as usize % STRIPES
}

/// Distributes keys over stripes, eight bytes at a time. A client that chooses colliding keys only
/// makes them share a generation, and makes the table of that stripe as long as its current
/// changes.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    // The upper half depends on all bytes, but the lower bits of it hardly on the last ones.
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use super::super::{Folder, FolderOptions};
    use super::*;
    use onrush_rt::blocking::BlockingPool;
    use onrush_rt::fs::sim::SimFs;
    use std::collections::HashSet;

    #[test]
    fn lock_is_granted_in_order_and_skips_dropped_waits() {
        let root = SimFs::new(1).root().unwrap();
        let folder = Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap();
        let key = Key::parse(b"a").unwrap();
        let request = || Box::pin(acquire(&folder.inner, &key));
        let poll = |wait: &mut Pin<Box<AcquireLock>>| match wait
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        };
        let first = poll(&mut request());
        assert!(first.is_some());
        let mut waits: Vec<_> = (0..5).map(|_| request()).collect();
        for wait in &mut waits {
            assert!(poll(wait).is_none());
        }
        drop(waits.remove(0)); // while waiting
        drop(first); // grants it to the next
        assert!(
            poll(&mut request()).is_none(),
            "a new wait must not overtake"
        );
        drop(waits.remove(0)); // after it was granted
        assert!(poll(&mut waits[1]).is_none());
        let third = poll(&mut waits[0]);
        assert!(third.is_some() && poll(&mut waits[1]).is_none());
        drop(third);
        assert!(
            poll(&mut waits[1]).is_some(),
            "the lock passes to the next wait"
        );
        waits.truncate(2);
        assert!(poll(&mut request()).is_some(), "the lock is free again");
        let stripe = folder.inner.key_locks.stripe(&key);
        assert!(stripe.lock().is_empty(), "the table is empty");
    }

    #[test]
    fn keys_that_differ_in_their_last_bytes_are_in_many_stripes() {
        for prefix in ["put-", "d/object-", "fresh-0000000"] {
            let keys = (0..100).map(|n| Key::parse(format!("{prefix}{n:02}").as_bytes()).unwrap());
            let stripes: HashSet<usize> = keys.map(|key| stripe_index(&key)).collect();
            assert!(stripes.len() > 85, "{prefix}: {}", stripes.len());
        }
    }

    #[test]
    fn keys_of_one_stripe_do_not_wait_for_each_other() {
        let root = SimFs::new(1).root().unwrap();
        let folder = Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap();
        let key = Key::parse(b"a").unwrap();
        let collides = |other: &Key| stripe_index(other) == stripe_index(&key) && *other != key;
        let other = (0..).map(|n: u32| Key::parse(format!("b{n}").as_bytes()).unwrap());
        let other = other.into_iter().find(collides).unwrap();
        let take = |key: &Key| {
            let mut wait = Box::pin(acquire(&folder.inner, key));
            match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(guard) => Some(guard),
                Poll::Pending => None,
            }
        };
        let first = take(&key);
        let second = take(&other);
        assert!(first.is_some() && second.is_some());
        assert!(take(&key).is_none() && take(&other).is_none());
        drop(first);
        assert!(take(&key).is_some() && take(&other).is_none());
        drop(second);
        assert!(folder.inner.key_locks.stripe(&key).lock().is_empty());
    }
}
