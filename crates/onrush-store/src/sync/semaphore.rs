//! A fair semaphore for tasks. [`Semaphore`] is the state without a lock, so it can be an entry of
//! a table. [`TaskSemaphore`] has its own lock.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Permits and waiting tasks. While a permit is free, no task waits.
pub(crate) struct Semaphore {
    free: usize,
    /// Tickets that own a permit, until their tasks are polled.
    granted: Vec<u64>,
    waiting: VecDeque<(u64, Waker)>,
    next_ticket: u64,
}

impl Semaphore {
    /// A semaphore with `permits` permits. It allocates only when a task waits.
    pub(crate) const fn new(permits: usize) -> Semaphore {
        Semaphore {
            free: permits,
            granted: Vec::new(),
            waiting: VecDeque::new(),
            next_ticket: 0,
        }
    }

    /// Takes a permit, or waits with `ticket` until `waker` is called. A task that stops waiting
    /// must call [`Semaphore::cancel`].
    pub(crate) fn poll(&mut self, ticket: &mut Option<u64>, waker: &Waker) -> bool {
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

    /// Releases a permit. Returns the waker of the task that gets it, which the caller must wake.
    #[must_use = "the next waiting task must be woken"]
    pub(crate) fn release(&mut self) -> Option<Waker> {
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

    /// Removes `ticket` from the queue. If it already owns a permit, this releases the permit as
    /// [`Semaphore::release`] does.
    #[must_use = "the next waiting task must be woken"]
    pub(crate) fn cancel(&mut self, ticket: u64) -> Option<Waker> {
        if self.take_granted(ticket) {
            return self.release();
        }
        self.waiting.retain(|waits| waits.0 != ticket);
        None
    }

    /// The number of free permits.
    pub(crate) fn free(&self) -> usize {
        self.free
    }
}

/// A [`Semaphore`] with a lock, shared by tasks.
pub(crate) struct TaskSemaphore(Mutex<Semaphore>);

impl TaskSemaphore {
    pub(crate) fn new(permits: usize) -> Arc<TaskSemaphore> {
        Arc::new(TaskSemaphore(Mutex::new(Semaphore::new(permits))))
    }

    /// Waits for a permit, in the order of the first polls.
    pub(crate) fn acquire(self: &Arc<Self>) -> AcquirePermit {
        AcquirePermit {
            semaphore: self.clone(),
            ticket: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Semaphore> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct AcquirePermit {
    semaphore: Arc<TaskSemaphore>,
    /// Set while waiting.
    ticket: Option<u64>,
}

impl Future for AcquirePermit {
    type Output = SemaphorePermit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SemaphorePermit> {
        let mut ticket = self.ticket;
        let taken = self.semaphore.lock().poll(&mut ticket, cx.waker());
        self.ticket = ticket;
        match taken {
            true => Poll::Ready(SemaphorePermit(self.semaphore.clone())),
            false => Poll::Pending,
        }
    }
}

impl Drop for AcquirePermit {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let next = self.semaphore.lock().cancel(ticket);
            wake(next);
        }
    }
}

/// A permit. Dropping it, on any thread, releases it.
pub(crate) struct SemaphorePermit(Arc<TaskSemaphore>);

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        let next = self.0.lock().release(); // The lock is free when the task is woken.
        wake(next);
    }
}

/// Wakes a task, if there is one. Must not be called under a lock.
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
