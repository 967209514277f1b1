//! Task slots: tasks that are created in advance, without a future.
//!
//! A future that is seldom pending is polled in place and becomes a task only if it is pending. The
//! first poll of the future uses the waker of a [`TaskSlot`], so it need not be polled again to
//! register another waker.
//!
//! Does not depend on how a task is scheduled.

use crate::user::discard;
use async_task::Runnable;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Unused task slots kept, at most; further ones end with their future.
const FREE_SLOTS_MAX: usize = 1024;

/// A task without a future. Its waker is effective already.
///
/// # Examples
/// ```
/// use onrush_rt::coop::yield_now;
/// use std::{cell::Cell, future::Future, rc::Rc, task::Context};
/// # use onrush_rt::driver::sim::{Behaviour, Net};
/// # use onrush_rt::worker::Worker;
/// # let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0)?;
/// let has_ended = Rc::new(Cell::new(false));
/// let ended = has_ended.clone();
/// let mut future = Box::pin(async move {
///     yield_now().await;
///     ended.set(true);
/// });
/// let slot = worker.context().task_slot();
/// let mut cx = Context::from_waker(slot.waker());
/// if future.as_mut().poll(&mut cx).is_pending() {
///     slot.start(future).detach(); // Polled again when it is woken.
/// }
/// while !has_ended.get() {
///     worker.poll(&(), false)?;
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
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
        let slot = self.0.clone();
        // After the worker has ended, nothing would poll or drop the future.
        if slot.state.get() == SlotState::Vacant {
            slot.free_slots.add(-1);
            slot.state.set(SlotState::Attached);
            slot.future.set(Some(Box::pin(future)));
        }
        TaskHandle(slot)
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
pub(crate) struct FreeSlots {
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
    /// An unused slot, or a new one. `start` makes a scheduled task of a new slot's future.
    pub(crate) fn take(
        free_slots: &Rc<FreeSlots>,
        start: impl FnOnce(SlotTask) -> Runnable,
    ) -> TaskSlot {
        let slot = free_slots.slots.borrow_mut().pop();
        TaskSlot(slot.unwrap_or_else(|| {
            let slot = Rc::new(SlotInner {
                state: Cell::new(SlotState::Vacant),
                future: Cell::new(None),
                waker: OnceCell::new(),
                free_slots: free_slots.clone(),
            });
            let runnable = start(SlotTask(slot.clone()));
            let _ = slot.waker.set(runnable.waker());
            free_slots.add(1);
            runnable.run(); // The waker is effective from here on.
            slot
        }))
    }

    /// The number of unused slots.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// Drops the unused slots, and keeps none from here on.
    pub(crate) fn close(&self) {
        self.free_max.set(0);
        drop(self.slots.take());
    }

    #[inline]
    fn add(&self, more: isize) {
        self.count.set(self.count.get().wrapping_add_signed(more));
    }
}

/// The task of a slot: polls one future after the other.
pub(crate) struct SlotTask(Rc<SlotInner>);

impl Future for SlotTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let slot = &self.0;
        if slot.state.get() == SlotState::Closed {
            return Poll::Ready(());
        }
        let Some(mut future) = slot.future.take() else {
            return Poll::Pending; // Woken by a waker of an earlier future.
        };
        let poll =
            || slot.state.get() != SlotState::Cancelled && future.as_mut().poll(cx).is_ready();
        let ready = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(ready) => ready,
            Err(payload) => {
                discard(future); // Before this unwinds: a second panic would abort the process.
                resume_unwind(payload)
            }
        };
        // The future may have cancelled its own task.
        if !ready && slot.state.get() != SlotState::Cancelled {
            slot.future.set(Some(future));
            return Poll::Pending;
        }
        discard(future);
        match slot.state.get() {
            SlotState::Attached => slot.state.set(SlotState::Done),
            _ => slot.recycle(),
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
