//! Tasks: futures that run on one worker and need not be `Send`.
//!
//! A future that is seldom pending is polled in place and becomes a task only if it is pending. For
//! this there are task slots ([`TaskSlot`]): tasks created in advance, without a future. The first
//! poll of the future uses the slot's waker, so it need not be polled again to register another
//! waker.
//!
//! Does not depend on what wakes tasks.

use crate::coop;
use crate::mailbox::Mailbox;
use crate::task::Joined;
use crate::user::{assert_unborrowed, call, discard};
use async_task::Runnable;
use slab::Slab;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use crate::task::{FallibleTask, Task};

/// Unused task slots kept, at most; further ones end with their future.
const FREE_SLOTS_MAX: usize = 1024;

/// Tasks polled per event-loop iteration, at most. Events wait that long.
const POLLS_MAX: usize = 128;
/// Once tasks have spent this in an iteration, no further task is polled in it. In bytes;
/// operations count as bytes, too.
const SPENT_MAX: u32 = 128 << 10;
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

    /// A task without a future.
    pub(crate) fn task_slot(&self) -> TaskSlot {
        let shell = self.free_slots.slots.borrow_mut().pop();
        TaskSlot(shell.unwrap_or_else(|| {
            let shell = Rc::new(SlotInner {
                state: Cell::new(SlotState::Vacant),
                future: Cell::new(None),
                waker: OnceCell::new(),
                free_slots: self.free_slots.clone(),
            });
            let (runnable, task) = self.make(SlotTask(shell.clone()));
            let _ = shell.waker.set(runnable.waker());
            task.detach();
            self.free_slots.add(1);
            runnable.run(); // The waker is effective from here on.
            shell
        }))
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
        self.live.borrow().len() - self.free_slots.count.get()
    }
}

impl Executor {
    /// Drops all tasks. Their futures hold the worker, so this is necessary to end it.
    pub(crate) fn shut_down(&self) {
        self.free_slots.free_max.set(0);
        drop(self.free_slots.slots.take());
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
        self.await_wakes();
        self.mailbox.close(); // Tasks spawned from here on are leaked.
        while let Some(runnable) = self.mailbox.pop() {
            drop(runnable);
        }
    }
}

impl Executor {
    /// Drops tasks that other threads have marked as scheduled and not put into the queue yet. Each
    /// live task has been woken, so another thread is about to queue each one that is not in the
    /// queue. That takes a few instructions. Does not wait for tasks that are spawned meanwhile.
    fn await_wakes(&self) {
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
            end(this.future.as_mut());
            let waker = this.live.borrow_mut().try_remove(*this.key);
            drop(waker); // Outside the borrow: the last waker may drop a whole task.
        }
    }
}

use pin_project_lite::pin_project;

/// Drops a task's future. The panic hook has printed a panic of its destructor; it goes no further.
fn end<F>(mut future: Pin<&mut Option<F>>) {
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
                end(this.future); // Before this unwinds: a second panic would abort the process.
                resume_unwind(payload)
            }
        }
    }
}

/// A task without a future. Its waker is effective already.
#[derive(Debug)]
pub struct TaskSlot(Rc<SlotInner>);

impl TaskSlot {
    /// The waker to poll the future with before [`TaskSlot::start`].
    #[inline]
    pub fn waker(&self) -> &Waker {
        self.0.waker.get().expect("set when the slot was created")
    }

    /// Makes a task of `future`, which has just been polled with that waker and is pending. The
    /// task polls it again when the waker is called, or was called meanwhile; spurious polls are
    /// possible.
    pub fn start(self, future: impl Future<Output = ()> + 'static) -> TaskHandle {
        let shell = self.0.clone();
        // After the worker has ended, nothing would poll or drop the future.
        if shell.state.get() == SlotState::Vacant {
            shell.free_slots.add(-1);
            shell.state.set(SlotState::Attached);
            shell.future.set(Some(Box::pin(future)));
        }
        TaskHandle(shell)
    }
}

impl Drop for TaskSlot {
    #[inline]
    fn drop(&mut self) {
        if self.0.state.get() == SlotState::Vacant {
            self.0.free_slots.add(-1);
            self.0.recycle();
        }
    }
}

/// A task whose future was polled before it became a task. Dropping the handle cancels the task:
/// its future is dropped in the worker's next iteration. [`TaskHandle::detach`] lets it run on.
#[derive(Debug)]
#[must_use = "dropping it cancels the task"]
pub struct TaskHandle(Rc<SlotInner>);

impl TaskHandle {
    /// Lets the task run to its end.
    pub fn detach(self) {
        if self.0.state.get() == SlotState::Attached {
            self.0.state.set(SlotState::Detached);
        }
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        match self.0.state.get() {
            SlotState::Attached => {
                self.0.state.set(SlotState::Cancelled);
                self.0.wake();
            }
            SlotState::Done => self.0.recycle(),
            SlotState::Vacant | SlotState::Detached | SlotState::Cancelled | SlotState::Closed => {}
        }
    }
}

/// State of a task slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// No future, and no handle.
    Vacant,
    /// A future, and a handle that can cancel it.
    Attached,
    /// A future without a handle.
    Detached,
    /// The future is to be dropped in the next iteration.
    Cancelled,
    /// The future has ended; its handle still exists.
    Done,
    /// The task is to end, or has ended.
    Closed,
}

/// State shared by the task and its [`TaskSlot`] or [`TaskHandle`].
struct SlotInner {
    state: Cell<SlotState>,
    /// `None` while the future is polled.
    future: Cell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// The waker of the task. It refers to the task, and the task to this, until the task ends.
    waker: OnceCell<Waker>,
    free_slots: Rc<FreeSlots>,
}

impl std::fmt::Debug for SlotInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SlotInner").field(&self.state.get()).finish()
    }
}

impl SlotInner {
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Keeps the slot for another future, or ends its task.
    fn recycle(self: &Rc<Self>) {
        let mut slots = self.free_slots.slots.borrow_mut();
        if slots.len() < self.free_slots.free_max.get() {
            self.state.set(SlotState::Vacant);
            self.free_slots.add(1);
            return slots.push(self.clone());
        }
        drop(slots);
        self.state.set(SlotState::Closed);
        self.wake();
    }
}

/// The unused task slots.
#[derive(Debug)]
struct FreeSlots {
    slots: RefCell<Vec<Rc<SlotInner>>>,
    free_max: Cell<usize>,
    /// Unused slots: those in `slots` and those held as a [`TaskSlot`].
    count: Cell<usize>,
}

impl Default for FreeSlots {
    fn default() -> FreeSlots {
        FreeSlots {
            slots: RefCell::default(),
            free_max: Cell::new(FREE_SLOTS_MAX),
            count: Cell::new(0),
        }
    }
}

impl FreeSlots {
    #[inline]
    fn add(&self, more: isize) {
        self.count.set(self.count.get().wrapping_add_signed(more));
    }
}

/// The task of a slot: polls one future after the other.
struct SlotTask(Rc<SlotInner>);

impl Future for SlotTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shell = &self.0;
        if shell.state.get() == SlotState::Closed {
            return Poll::Ready(());
        }
        let Some(mut future) = shell.future.take() else {
            return Poll::Pending; // Woken by a waker of an earlier future.
        };
        let poll =
            || shell.state.get() != SlotState::Cancelled && future.as_mut().poll(cx).is_ready();
        let ready = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(ready) => ready,
            Err(payload) => {
                discard(future); // Before this unwinds: a second panic would abort the process.
                resume_unwind(payload)
            }
        };
        // The future may have cancelled its own task.
        if !ready && shell.state.get() != SlotState::Cancelled {
            shell.future.set(Some(future));
            return Poll::Pending;
        }
        discard(future);
        match shell.state.get() {
            SlotState::Attached => shell.state.set(SlotState::Done),
            _ => shell.recycle(),
        }
        Poll::Pending
    }
}

impl Drop for SlotTask {
    fn drop(&mut self) {
        if self.0.state.replace(SlotState::Closed) == SlotState::Vacant {
            self.0.free_slots.add(-1);
        }
        drop(self.0.future.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
