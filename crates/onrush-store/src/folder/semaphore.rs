//! A semaphore for tasks, first come, first served: the state alone, without its lock, so that it
//! can be one entry of a table; and [`TaskSemaphore`], one with a lock of its own.
//!
//! This module must not know what is waited for.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Permits and who waits for one. While a permit is free, nobody waits.
pub(super) struct Semaphore {
    free: usize,
    /// Tickets that a permit was handed to, until their owners are polled.
    granted: Vec<u64>,
    waiting: VecDeque<(u64, Waker)>,
    next_ticket: u64,
}

impl Semaphore {
    /// With `permits` at the same time. Allocates only when somebody waits.
    pub(super) const fn new(permits: usize) -> Semaphore {
        Semaphore {
            free: permits,
            granted: Vec::new(),
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Takes a permit, or waits with `ticket` until `waker` is called. Whoever waits and gives up
    /// must call [`Semaphore::cancel`].
    pub(super) fn poll(&mut self, ticket: &mut Option<u64>, waker: &Waker) -> bool {
        match *ticket {
            None if self.free > 0 => {
                self.free -= 1;
                true
            }
            None => {
                self.waiting.push_back((self.next_ticket, waker.clone()));
                *ticket = Some(self.next_ticket);
                self.next_ticket += 1;
                false
            }
            Some(number) if self.take_granted(number) => {
                *ticket = None;
                true
            }
            Some(number) => {
                if let Some(waits) = self.waiting.iter_mut().find(|waits| waits.0 == number) {
                    waits.1.clone_from(waker);
                }
                false
            }
        }
    }

    fn take_granted(&mut self, number: u64) -> bool {
        let found = self.granted.iter().position(|granted| *granted == number);
        found.map(|at| self.granted.swap_remove(at)).is_some()
    }

    /// Gives a permit back, to the next who waits; its waker is to be called.
    #[must_use = "the next who waits must be woken"]
    pub(super) fn release(&mut self) -> Option<Waker> {
        match self.waiting.pop_front() {
            Some((number, waker)) => {
                self.granted.push(number);
                Some(waker)
            }
            None => {
                self.free += 1;
                None
            }
        }
    }

    /// Whoever has `ticket` waits no longer; as [`Semaphore::release`] if a permit was granted
    /// already.
    #[must_use = "the next who waits must be woken"]
    pub(super) fn cancel(&mut self, ticket: u64) -> Option<Waker> {
        if self.take_granted(ticket) {
            return self.release();
        }
        self.waiting.retain(|waits| waits.0 != ticket);
        None
    }

    /// Permits that are free.
    pub(super) fn free(&self) -> usize {
        self.free
    }
}

/// Lets so many pass at a time.
pub(super) struct TaskSemaphore(Mutex<Semaphore>);

impl TaskSemaphore {
    pub(super) fn new(permits: usize) -> Arc<TaskSemaphore> {
        Arc::new(TaskSemaphore(Mutex::new(Semaphore::new(permits))))
    }

    /// Waits for a permit, in the order of the first polls.
    pub(super) fn acquire(self: &Arc<Self>) -> Acquire {
        Acquire {
            semaphore: self.clone(),
            ticket: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Semaphore> {
        // Only whole changes are made under it, so a poisoned one is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Acquire {
    semaphore: Arc<TaskSemaphore>,
    /// While waiting.
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Pass;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pass> {
        let mut ticket = self.ticket;
        let taken = self.semaphore.lock().poll(&mut ticket, cx.waker());
        self.ticket = ticket;
        match taken {
            true => Poll::Ready(Pass(self.semaphore.clone())),
            false => Poll::Pending,
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let next = self.semaphore.lock().cancel(ticket);
            wake(next);
        }
    }
}

/// A permit; given back when dropped, on whatever thread.
pub(super) struct Pass(Arc<TaskSemaphore>);

impl Drop for Pass {
    fn drop(&mut self) {
        let next = self.0.lock().release(); // Not woken under the lock.
        wake(next);
    }
}

/// Wakes the next, if there is one; not to be called under a lock.
pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
