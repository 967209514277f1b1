//! What other threads may do to a worker: schedule its tasks and wake it.
//!
//! One lock-free queue takes wakes from the worker's own thread and from others alike; only a
//! worker that sleeps in the kernel costs the sender a system call.
//!
//! Must not know how tasks run or what the driver is.

use crate::parker::Parker;
use async_task::Runnable;
use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;

/// The receiving end is the worker's; everyone else holds it in an `Arc`.
#[derive(Debug)]
pub(crate) struct Mailbox {
    runnable: SegQueue<Runnable>,
    parker: Parker,
    eventfd: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            runnable: SegQueue::new(),
            parker: Parker::new(),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// Schedules a task. From any thread. After [`Mailbox::close`] the task is leaked: its future
    /// must not be dropped on this thread, and its own is gone.
    pub(crate) fn push(&self, runnable: Runnable) {
        if self.parker.is_closed() {
            std::mem::forget(runnable);
            return;
        }
        self.runnable.push(runnable);
        if self.parker.needs_wake() {
            self.wake();
        }
        // The owner may have closed and emptied the queue before the push above. Nobody else would
        // take the task out then, and the queue and the task would keep each other alive.
        if self.parker.is_closed() {
            self.leak_all();
        }
    }

    #[cold]
    fn leak_all(&self) {
        while let Some(runnable) = self.runnable.pop() {
            std::mem::forget(runnable);
        }
    }

    /// Makes the worker look at what its sink shares with other threads. From any thread.
    pub(crate) fn notify(&self) {
        if self.parker.notify() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the worker is being woken already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Announces sleep; `false` when something came in meanwhile and the worker must not sleep.
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        self.parker.prepare(|| self.runnable.is_empty())
    }

    pub(crate) fn awake(&self) {
        self.parker.awake();
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.parker.is_asleep()
    }

    pub(crate) fn take_notified(&self) -> bool {
        self.parker.take_notified()
    }

    pub(crate) fn pop(&self) -> Option<Runnable> {
        self.runnable.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.runnable.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runnable.is_empty()
    }

    /// Refuses tasks from now on. By the owner only, which then empties the queue: what another
    /// thread adds after that, that thread removes itself.
    pub(crate) fn close(&self) {
        self.parker.close();
    }
}
