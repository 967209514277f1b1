//! A lock without data, fair: waiters get it in order of arrival.
//!
//! A waiter may give up at any time.

use onrush_rt::wakers::wake;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The lock; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Lock {
    is_held: Cell<bool>,
    /// Created for the first waiter: an uncontended lock has none.
    queue: RefCell<Option<Box<Queue>>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(u64, Option<Waker>)>,
    next: u64,
}

impl Lock {
    /// Takes the lock, if it is free and nothing waits for it.
    pub(super) fn try_take(&self) -> bool {
        let nobody_waits =
            || (self.queue.borrow().as_ref()).is_none_or(|queue| queue.waiting.is_empty());
        let free = !self.is_held.get() && nobody_waits();
        if free {
            self.is_held.set(true);
        }
        free
    }

    /// Takes the lock if it is free, before the waiters: for callers that cannot wait.
    pub(super) fn try_take_first(&self) -> bool {
        !self.is_held.replace(true)
    }

    /// Waits in the queue and takes the lock. The caller must [`Lock::release`] it.
    pub(super) fn take(&self) -> Take<'_> {
        Take {
            lock: self,
            ticket: None,
        }
    }

    /// [`Lock::try_take`], held as long as the result lives.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        self.try_take().then(|| Held(self))
    }

    /// Waits for the lock and holds it as long as the result lives.
    pub(super) async fn hold(&self) -> Held<'_> {
        self.take().await;
        Held(self)
    }

    /// Releases the lock and wakes the first waiter.
    pub(super) fn release(&self) {
        self.is_held.set(false);
        self.call_first();
    }

    /// The queue, for a waiter.
    fn queue(&self) -> RefMut<'_, Queue> {
        RefMut::map(self.queue.borrow_mut(), |queue| {
            &mut **queue.get_or_insert_default()
        })
    }

    fn call_first(&self) {
        let mut queue = self.queue.borrow_mut();
        let first = queue.as_mut().and_then(|queue| queue.waiting.front_mut());
        let waker = first.and_then(|(_, waker)| waker.take());
        drop(queue);
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

/// Releases its lock when dropped.
#[derive(Debug)]
pub(super) struct Held<'l>(&'l Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// See [`Lock::take`].
#[derive(Debug)]
pub(super) struct Take<'l> {
    lock: &'l Lock,
    /// Its number in the queue.
    ticket: Option<u64>,
}

impl Future for Take<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let lock = self.lock;
        let Some(ticket) = self.ticket else {
            if lock.try_take() {
                return Poll::Ready(());
            }
            let mut queue = lock.queue();
            let ticket = queue.next;
            queue.next += 1;
            queue.waiting.push_back((ticket, Some(cx.waker().clone())));
            self.ticket = Some(ticket);
            return Poll::Pending;
        };
        let mut queue = lock.queue();
        let is_first = queue
            .waiting
            .front()
            .is_some_and(|(first, _)| *first == ticket);
        if is_first && !lock.is_held.get() {
            let entry = queue.waiting.pop_front();
            drop(queue);
            drop(entry);
            lock.is_held.set(true);
            self.ticket = None;
            return Poll::Ready(());
        }
        let own = queue
            .waiting
            .iter_mut()
            .find(|(waiting, _)| *waiting == ticket);
        let (_, waker) = own.expect("in the queue until it takes the lock");
        let before = waker.replace(cx.waker().clone());
        drop(queue);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.lock.queue();
        let place = queue
            .waiting
            .iter()
            .position(|(waiting, _)| *waiting == ticket);
        let entry = place.and_then(|place| queue.waiting.remove(place));
        drop(queue);
        drop(entry);
        if place == Some(0) && !self.lock.is_held.get() {
            self.lock.call_first(); // This waiter was woken; wake the next instead.
        }
    }
}
