//! The part of a worker that other threads use: they schedule its tasks and wake it.
//!
//! One lock-free queue takes wakes from the worker's own thread and from others alike. The sender
//! pays for a system call only if the worker sleeps in the kernel.
//!
//! Does not depend on how tasks run or on the driver.

use crate::parker::Parker;
use async_task::Runnable;
use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io;

/// Shared by the worker, which runs the tasks, and by all threads that wake them.
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

    /// Schedules a task. May be called from any thread. After [`Mailbox::close`] the task is
    /// leaked: its future must not be dropped on this thread, and its own thread is gone.
    pub(crate) fn push(&self, runnable: Runnable) {
        if self.parker.is_closed() {
            std::mem::forget(runnable);
            return;
        }
        self.runnable.push(runnable);
        if self.parker.needs_wake() {
            self.wake();
        }
        // The worker may have closed and emptied the queue before the push above. Then only this
        // thread can remove the task; otherwise the queue and the task would keep each other alive.
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

    /// Makes the worker call `on_notify`. May be called from any thread.
    pub(crate) fn notify(&self) {
        if self.parker.notify() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then the worker is being woken already.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }

    /// Announces sleep. `false` if something arrived meanwhile: the worker must not sleep.
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

    /// Refuses tasks from now on. Only the worker calls this, and then empties the queue. A thread
    /// that adds a task after that removes and leaks it; see [`Mailbox::push`].
    pub(crate) fn close(&self) {
        self.parker.close();
    }
}
