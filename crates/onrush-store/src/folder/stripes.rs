//! One lock and one generation counter for each of a fixed number of key classes: enough that two
//! keys seldom meet, few enough to be forgotten about.
//!
//! The lock is waited for by tasks, in order, and never by a thread: a hundred puts of one key
//! must not fill the pool with waiting, or nobody could read meanwhile.
//!
//! This module must not know what is done under the locks.

use super::Inner;
use crate::key::Key;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

const STRIPES: usize = 1024;

pub(super) struct Stripes(Box<[Stripe]>);

#[derive(Default)]
struct Stripe {
    lock: Mutex<Lock>,
    generation: AtomicU64,
}

#[derive(Default)]
struct Lock {
    /// Somebody has it, or it was granted and not yet taken.
    held: bool,
    /// The ticket it was handed to, until its owner is polled.
    granted: Option<u64>,
    waiting: VecDeque<(u64, Waker)>,
    next_ticket: u64,
}

impl Stripes {
    pub(super) fn new() -> Stripes {
        Stripes((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    pub(super) fn generation(&self, key: &Key) -> u64 {
        self.stripe(key).generation.load(Ordering::Acquire)
    }

    /// To be called after the change can be seen and before it is answered.
    pub(super) fn bump(&self, key: &Key) {
        self.stripe(key).generation.fetch_add(1, Ordering::Release);
    }

    fn stripe(&self, key: &Key) -> &Stripe {
        &self.0[index(key)]
    }
}

impl Stripe {
    fn lock(&self) -> MutexGuard<'_, Lock> {
        // Only whole changes are made under it, so a poisoned one is still right.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the lock to the next who waits, if any.
    fn release(&self) {
        let mut lock = self.lock();
        let next = lock.waiting.pop_front();
        lock.granted = next.as_ref().map(|next| next.0);
        lock.held = next.is_some();
        drop(lock);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// Waits for the lock of a key: held from before its condition is checked until the change is
/// made. The guard goes into the job that does both.
pub(super) fn acquire(inner: &Arc<Inner>, key: &Key) -> Acquire {
    Acquire {
        inner: inner.clone(),
        index: index(key),
        ticket: None,
    }
}

pub(super) struct Acquire {
    inner: Arc<Inner>,
    index: usize,
    /// While waiting.
    ticket: Option<u64>,
}

impl Acquire {
    fn stripe(&self) -> &Stripe {
        &self.inner.stripes.0[self.index]
    }
}

impl Future for Acquire {
    type Output = Guard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard> {
        let mut lock = self.inner.stripes.0[self.index].lock();
        let ticket = match self.ticket {
            None if !lock.held => {
                lock.held = true;
                return Poll::Ready(Guard {
                    inner: self.inner.clone(),
                    index: self.index,
                });
            }
            None => {
                let ticket = lock.next_ticket;
                lock.next_ticket += 1;
                lock.waiting.push_back((ticket, cx.waker().clone()));
                ticket
            }
            Some(ticket) if lock.granted == Some(ticket) => {
                lock.granted = None;
                drop(lock);
                self.ticket = None;
                return Poll::Ready(Guard {
                    inner: self.inner.clone(),
                    index: self.index,
                });
            }
            Some(ticket) => {
                if let Some(waits) = lock.waiting.iter_mut().find(|waits| waits.0 == ticket) {
                    waits.1.clone_from(cx.waker());
                }
                ticket
            }
        };
        drop(lock);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut lock = self.stripe().lock();
        if lock.granted == Some(ticket) {
            drop(lock);
            self.stripe().release();
        } else {
            lock.waiting.retain(|waits| waits.0 != ticket);
        }
    }
}

/// The lock of a key; released when dropped, on whatever thread.
pub(super) struct Guard {
    inner: Arc<Inner>,
    index: usize,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.inner.stripes.0[self.index].release();
    }
}

fn index(key: &Key) -> usize {
    hash(key.as_bytes()) as usize % STRIPES
}

/// Spreads keys over stripes, eight bytes at a time. Whoever makes keys collide only makes them
/// share a lock.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hash >> 32
}

#[cfg(test)]
mod tests {
    use super::super::{Folder, FolderOptions};
    use super::*;
    use onrush_rt::blocking::Pool;
    use onrush_rt::fs::sim::SimFs;

    #[test]
    fn handed_on_in_order_past_those_who_left() {
        let root = SimFs::new(1).root().unwrap();
        let folder = Folder::on(root, Pool::inline(), FolderOptions::default()).unwrap();
        let key = Key::parse(b"a").unwrap();
        let ask = || Box::pin(acquire(&folder.inner, &key));
        let poll = |wait: &mut Pin<Box<Acquire>>| match wait
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        };
        let first = poll(&mut ask());
        assert!(first.is_some());
        let mut waits: Vec<_> = (0..5).map(|_| ask()).collect();
        for wait in &mut waits {
            assert!(poll(wait).is_none());
        }
        drop(waits.remove(0)); // while waiting
        drop(first); // grants it to the next
        assert!(poll(&mut ask()).is_none(), "nobody overtakes");
        drop(waits.remove(0)); // after it was granted
        assert!(poll(&mut waits[1]).is_none());
        let third = poll(&mut waits[0]);
        assert!(third.is_some() && poll(&mut waits[1]).is_none());
        drop(third);
        assert!(poll(&mut waits[1]).is_some(), "and given back at once");
        waits.truncate(2);
        assert!(poll(&mut ask()).is_some(), "free again");
    }
}
