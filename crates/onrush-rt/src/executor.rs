//! Tasks: futures that live on one worker and need not be `Send`.
//!
//! A future that is seldom pending is polled where it stands, and becomes a task only then. For
//! that there are tasks made ahead, without a future ([`TaskSlot`]): the waker of one is what the
//! future is first polled with, so that it need not be polled again to learn of another.
//!
//! Must not know what wakes them.

use crate::coop;
use crate::job::{discard, guarded};
use crate::mailbox::Mailbox;
use crate::task::Joined;
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

/// Tasks without a future that are kept, at most; others end with theirs.
const FREE_SLOTS_MAX: usize = 1024;

/// Tasks polled in one iteration of the event loop, at most. Events wait that long.
const POLLS_MAX: usize = 128;
/// No further task is polled in an iteration in which tasks have spent this: bytes, and operations
/// as if they were bytes.
const SPENT_MAX: u32 = 128 << 10;
/// When a worker ends, tasks that destructors spawn are dropped in so many rounds, and then leaked.
const SHUT_DOWN_ROUNDS_MAX: usize = 64;
/// When a worker ends, it waits so long for other threads that are in the middle of a wake.
const SHUT_DOWN_WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Executor {
    mailbox: Arc<Mailbox>,
    /// One waker per live task, so that all can be dropped, on this thread, with the worker.
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

    /// A task that has no future yet.
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
            runnable.run(); // Wakes count from here on.
            shell
        }))
    }

    /// Runs what is scheduled now, each task with a budget of its own, up to the bounds of one
    /// iteration of the event loop. What is scheduled meanwhile, or left over, runs in the next
    /// iteration, so that events are looked at in between. `false` when there was nothing to run.
    /// Calls `panicked` for each task that panics.
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
            // A panic belongs to its task alone; the payload was printed by the panic hook.
            // It may itself panic when it is dropped.
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
    /// Drops all tasks. Their futures hold the worker, so this must be called to end it.
    pub(crate) fn shut_down(&self) {
        self.free_slots.free_max.set(0);
        drop(self.free_slots.slots.take());
        // Waking a task puts it into the queue, and a task dropped in the queue drops its future.
        let wakers: Vec<Waker> = self
            .live
            .borrow_mut()
            .iter_mut()
            .filter_map(|(_, waker)| waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
        // A destructor may spawn, and what it spawned may do so when it is dropped: not for ever.
        for _ in 0..SHUT_DOWN_ROUNDS_MAX {
            for _ in 0..self.mailbox.len() {
                drop(self.mailbox.pop());
            }
            if self.mailbox.is_empty() {
                break;
            }
        }
        self.await_wakes();
        self.mailbox.close(); // What is spawned from here on is leaked.
        while let Some(runnable) = self.mailbox.pop() {
            drop(runnable);
        }
    }
}

impl Executor {
    /// Drops tasks that other threads have marked as scheduled and not put into the queue yet. Each
    /// live task has been woken, so one that is not in the queue is in the hands of such a thread,
    /// which has a few instructions to go. Tasks that are spawned meanwhile are not waited for.
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
    /// A future that takes itself off the list of live tasks when it is dropped. Its destructor
    /// does not panic: `async_task` would end the process.
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

/// Drops a task's future. A panic of its destructor was printed by the panic hook and is lost.
fn end<F>(mut future: Pin<&mut Option<F>>) {
    guarded(|| future.set(None));
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
                end(this.future); // Not while this unwinds: a second panic would end the process.
                resume_unwind(payload)
            }
        }
    }
}

/// A task that has no future yet, and a waker that counts already.
#[derive(Debug)]
pub struct TaskSlot(Rc<SlotInner>);

impl TaskSlot {
    /// What the future is to be polled with before [`TaskSlot::start`].
    #[inline]
    pub fn waker(&self) -> &Waker {
        self.0.waker.get().expect("set when it was made")
    }

    /// Makes a task of `future`, which was polled with that waker, a moment ago, and is pending: it
    /// is polled again when the waker is called, or was meanwhile, and now and then besides.
    pub fn start(self, future: impl Future<Output = ()> + 'static) -> TaskHandle {
        let shell = self.0.clone();
        // It is over when the worker is, and nobody will poll or drop what is put there then.
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

/// A task whose future was polled before it became one. Dropping it cancels the task: the future is
/// dropped in the worker's next turn. [`TaskHandle::detach`] lets it run on.
#[derive(Debug)]
#[must_use = "dropping it cancels the task"]
pub struct TaskHandle(Rc<SlotInner>);

impl TaskHandle {
    /// Lets it run on by itself.
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

/// Where a task that outlives its futures is with the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// It has none, and nobody refers to one.
    Vacant,
    /// It has one, which somebody may cancel.
    Attached,
    /// It has one, which nobody can cancel.
    Detached,
    /// It has one, to be dropped at the next turn.
    Cancelled,
    /// It has none any more, which somebody may not know.
    Done,
    /// It is to end, or has.
    Closed,
}

/// What a task that outlives its futures shares with whoever has it.
struct SlotInner {
    state: Cell<SlotState>,
    /// Not here while it is polled.
    future: Cell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// The task's. It refers to the task and the task to this, until the task is over.
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

    /// Keeps it for the next future, or has it end.
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

/// Tasks without a future.
#[derive(Debug)]
struct FreeSlots {
    slots: RefCell<Vec<Rc<SlotInner>>>,
    free_max: Cell<usize>,
    /// Those above, and those that somebody has as a [`TaskSlot`].
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

/// The task itself: polls one future after the other.
struct SlotTask(Rc<SlotInner>);

impl Future for SlotTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shell = &self.0;
        if shell.state.get() == SlotState::Closed {
            return Poll::Ready(());
        }
        let Some(mut future) = shell.future.take() else {
            return Poll::Pending; // Woken by what an earlier one has left behind.
        };
        let poll =
            || shell.state.get() != SlotState::Cancelled && future.as_mut().poll(cx).is_ready();
        let ready = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(ready) => ready,
            Err(payload) => {
                discard(future); // Not while this unwinds: a second panic would end the process.
                resume_unwind(payload)
            }
        };
        // It may have been cancelled meanwhile, by itself.
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

    /// Hands its waker to another thread, and tells which thread drops it.
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

    /// Other threads wake tasks while the executor shuts down. However that falls, each future is
    /// dropped by its own thread, and neither a task nor the mailbox is left.
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
            // The other thread may have its waker for a moment more.
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
