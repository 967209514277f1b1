//! Tasks: futures that run on one worker and need not be `Send`.
//!
//! Does not depend on the driver and the timers, which wake tasks.

use crate::coop;
use crate::mailbox::Mailbox;
use crate::task::Joined;
use crate::task_slot::FreeSlots;
use crate::user::{assert_unborrowed, call};
use async_task::Runnable;
use slab::Slab;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use crate::task::{FallibleTask, Task};
pub use crate::task_slot::{TaskHandle, TaskSlot};

/// The most tasks that one event-loop iteration polls. Events wait for all of them.
const POLLS_MAX: usize = 128;
/// Once tasks have spent as much as the budget of one, an iteration polls no further task. In
/// bytes; [`coop`] converts operations to bytes.
const SPENT_MAX: u32 = coop::BYTES;
/// When a worker ends, tasks that destructors spawn are dropped in this many rounds, then leaked.
const SHUT_DOWN_ROUNDS_MAX: usize = 64;
/// When a worker ends, it waits this long for other threads that are in the middle of a wake.
const SHUT_DOWN_WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Executor {
    mailbox: Arc<Mailbox>,
    /// One waker per live task, to drop all tasks on this thread together with the worker.
    live: Rc<RefCell<Slab<Option<Waker>>>>,
    free_slots: Rc<FreeSlots>,
}

impl Executor {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Executor {
        Executor {
            mailbox,
            live: Rc::default(),
            free_slots: Rc::default(),
        }
    }

    pub(crate) fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (joined, waiting) = Joined::new(future);
        let (runnable, task) = self.make(joined);
        runnable.schedule();
        waiting.on(task)
    }

    /// Creates a task that is not scheduled yet.
    fn make<F>(&self, future: F) -> (Runnable, async_task::Task<()>)
    where
        F: Future<Output = ()> + 'static,
    {
        let mut live = self.live.borrow_mut();
        let entry = live.vacant_entry();
        let future = LiveTask {
            key: entry.key(),
            live: self.live.clone(),
            future: Some(future),
        };
        let mailbox = self.mailbox.clone();
        let schedule = move |runnable| mailbox.push(runnable);
        let (runnable, task) = async_task::spawn_local(future, schedule);
        entry.insert(Some(runnable.waker()));
        (runnable, task)
    }

    /// A task without a future: an unused one, or else a new one.
    pub(crate) fn task_slot(&self) -> TaskSlot {
        FreeSlots::take(&self.free_slots, |slot_task| {
            let (runnable, task) = self.make(slot_task);
            task.detach();
            runnable
        })
    }

    /// Runs the tasks that are scheduled now, each with a budget of its own, up to the limits of
    /// one event-loop iteration. Tasks that are scheduled meanwhile, or left over, run in the next
    /// iteration, so events are processed in between. Returns `false` when there was nothing to
    /// run. Calls `panicked` for each task that panics.
    pub(crate) fn run(&self, panicked: impl Fn()) -> bool {
        let due = self.mailbox.len();
        let mut spent = 0_u32;
        for _ in 0..due.min(POLLS_MAX) {
            if spent >= SPENT_MAX {
                break;
            }
            let Some(runnable) = self.mailbox.pop() else {
                break;
            };
            coop::renew();
            assert_unborrowed();
            // A panic ends only its task; the panic hook has printed the message. Dropping the
            // payload may panic, too.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| runnable.run())) {
                std::mem::forget(payload);
                panicked();
            }
            spent = spent.saturating_add(coop::spent());
        }
        due > 0
    }

    pub(crate) fn live_tasks(&self) -> usize {
        self.live.borrow().len() - self.free_slots.count()
    }
}

impl Executor {
    /// Drops all tasks. Their futures hold the worker, so this is necessary to end it.
    pub(crate) fn shut_down(&self) {
        self.free_slots.close();
        // Waking a task schedules it, and dropping a scheduled task drops its future.
        let wakers: Vec<Waker> = self
            .live
            .borrow_mut()
            .iter_mut()
            .filter_map(|(_, waker)| waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
        // A destructor may spawn a task whose destructor spawns again: the rounds are bounded.
        for _ in 0..SHUT_DOWN_ROUNDS_MAX {
            for _ in 0..self.mailbox.len() {
                drop(self.mailbox.pop());
            }
            if self.mailbox.is_empty() {
                break;
            }
        }
        self.wait_for_wakes();
        self.mailbox.close(); // Tasks spawned from here on are leaked.
        while let Some(runnable) = self.mailbox.pop() {
            drop(runnable);
        }
    }
}

impl Executor {
    /// Waits for tasks that other threads have marked as scheduled and not put into the queue yet,
    /// and drops them. Each live task has been woken. If it is not in the queue, another thread is
    /// about to put it there, which takes a few instructions. Does not wait for tasks that are
    /// spawned meanwhile.
    fn wait_for_wakes(&self) {
        let begun = Instant::now();
        let mut expected = self.live.borrow().len();
        while expected > 0 && begun.elapsed() < SHUT_DOWN_WAIT_MAX {
            match self.mailbox.pop() {
                Some(runnable) => {
                    drop(runnable);
                    expected -= 1;
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

pin_project! {
    /// A future that removes itself from the list of live tasks when it is dropped. Its destructor
    /// does not panic: `async_task` would abort the process.
    struct LiveTask<F> {
        key: usize,
        live: Rc<RefCell<Slab<Option<Waker>>>>,
        // `None` only while this is being dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for LiveTask<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            drop_future(this.future.as_mut());
            let waker = this.live.borrow_mut().try_remove(*this.key);
            drop(waker); // Outside the borrow: the last waker may drop a whole task.
        }
    }
}

use pin_project_lite::pin_project;

/// Drops a task's future. Catches a panic of its destructor; the panic hook has printed it.
fn drop_future<F>(mut future: Pin<&mut Option<F>>) {
    call(|| future.set(None));
}

impl<F: Future> Future for LiveTask<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let future = this.future.as_mut().as_pin_mut();
        let future = future.expect("a task that has panicked is not polled");
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(polled) => polled,
            Err(payload) => {
                // Before this unwinds: a second panic would abort the process.
                drop_future(this.future);
                resume_unwind(payload)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Weak;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};

    /// Sends its waker to another thread, and records the thread that drops it.
    struct Waits {
        waker: Sender<Waker>,
        dropped_by: Rc<Cell<Option<ThreadId>>>,
    }

    impl Future for Waits {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let _ = self.waker.send(cx.waker().clone());
            Poll::Pending
        }
    }

    impl Drop for Waits {
        fn drop(&mut self) {
            self.dropped_by.set(Some(thread::current().id()));
        }
    }

    /// Other threads wake tasks while the executor shuts down. In every interleaving, each future
    /// is dropped by its own thread, and neither a task nor the mailbox is leaked.
    #[test]
    fn wakes_during_the_end_lose_no_task() {
        const ROUNDS: usize = 10_000;
        let (send, wakers) = channel::<Waker>();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let waking = thread::spawn(move || {
            for waker in wakers {
                count.fetch_add(1, Ordering::Release);
                waker.wake();
            }
        });
        for round in 0..ROUNDS {
            let mailbox = Arc::new(Mailbox::new().unwrap());
            let left: Weak<Mailbox> = Arc::downgrade(&mailbox);
            let executor = Executor::new(mailbox);
            let dropped_by = Rc::new(Cell::new(None));
            let future = Waits {
                waker: send.clone(),
                dropped_by: dropped_by.clone(),
            };
            executor.spawn(future).detach();
            executor.run(|| {});
            // The other thread is about to wake it, or just has.
            while woken.load(Ordering::Acquire) == round {
                std::hint::spin_loop();
            }
            executor.shut_down();
            assert_eq!(dropped_by.get(), Some(thread::current().id()), "{round}");
            assert_eq!(executor.live_tasks(), 0);
            drop(executor);
            // The other thread may hold its waker for a moment longer.
            let begun = Instant::now();
            while left.strong_count() > 0 && begun.elapsed() < Duration::from_secs(30) {
                thread::yield_now();
            }
            assert_eq!(left.strong_count(), 0, "{round}: the mailbox is left");
        }
        drop(send);
        waking.join().unwrap();
    }
}
