//! The two ends of a spawned task: the future that runs, and the handle that waits for its output.
//!
//! `async_task` aborts the process if a destructor or a waker that it calls panics. So it gets
//! neither the user's output nor the waker of the waiting future: this module keeps both, and
//! catches their panics. Does not depend on how a task is scheduled.

use crate::user::{call, discard};
use pin_project_lite::pin_project;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// State shared by both ends. No user code runs while it is borrowed.
struct Shared<T>(RefCell<TaskState<T>>);

enum TaskState<T> {
    /// The task runs. Holds the waker of the waiting future.
    Running(Option<Waker>),
    /// The future is ready and is being dropped.
    Ready(T, Option<Waker>),
    /// The task has ended: with an output, or without one when it panicked or was cancelled.
    Ended(Option<T>),
    /// The handle was dropped; nothing needs the output.
    Unwanted,
}

/// A spawned task. Dropping it cancels the task: its future is dropped in the next event-loop
/// iteration of its worker. [`Task::detach`] lets the task run on. Awaiting it gives the output of
/// the future, after the future was dropped.
///
/// # Examples
/// ```
/// # use onrush_rt::driver::sim::{Behaviour, Net};
/// # use onrush_rt::worker::Worker;
/// # let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0)?;
/// let context = worker.context().clone();
/// let task = context.spawn(async { "done" });
/// assert_eq!(worker.block_on(task)?, "done");
///
/// let never = context.spawn(std::future::pending::<()>());
/// assert_eq!(context.live_tasks(), 1);
/// drop(never); // Cancels the task.
/// worker.poll(&(), false)?;
/// assert_eq!(context.live_tasks(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Awaiting a task that panicked, or that ended with its worker, panics. [`Task::fallible`] gives
/// `None` instead.
#[must_use = "dropping it cancels the task"]
pub struct Task<T>(FallibleTask<T>);

/// A [`Task`] whose output is `None` when the task panicked or ended with its worker.
#[must_use = "dropping it cancels the task"]
pub struct FallibleTask<T> {
    shared: Rc<Shared<T>>,
    /// `None` after it is detached.
    running: Option<async_task::Task<()>>,
}

impl<T> Task<T> {
    /// Lets the task run to its end; its output is dropped.
    pub fn detach(self) {
        self.0.detach();
    }

    /// Whether the task has ended, with or without an output.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// The same task; awaiting it does not panic.
    pub fn fallible(self) -> FallibleTask<T> {
        self.0
    }
}

impl<T> FallibleTask<T> {
    /// Like [`Task::detach`].
    pub fn detach(mut self) {
        if let Some(running) = self.running.take() {
            running.detach();
        } // Dropping `self` marks the output as unwanted.
    }

    /// Like [`Task::is_finished`].
    pub fn is_finished(&self) -> bool {
        matches!(*self.shared.0.borrow(), TaskState::Ended(_))
    }
}

impl<T> Drop for FallibleTask<T> {
    fn drop(&mut self) {
        let before = mem::replace(&mut *self.shared.0.borrow_mut(), TaskState::Unwanted);
        discard(before);
        drop(self.running.take()); // Schedules the task once more, to drop its future.
    }
}

impl<T> Future for FallibleTask<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let waker = cx.waker().clone();
        let mut state = self.shared.0.borrow_mut();
        let before = match &mut *state {
            TaskState::Running(waiting) | TaskState::Ready(_, waiting) => waiting.replace(waker),
            TaskState::Ended(output) => return Poll::Ready(output.take()),
            TaskState::Unwanted => return Poll::Ready(None),
        };
        drop(state);
        discard(before);
        Poll::Pending
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let output = Pin::new(&mut self.0).poll(cx);
        output.map(|output| output.expect("a task has an output until it panics or is awaited"))
    }
}

impl<T> fmt::Debug for FallibleTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallibleTask")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The running end. Fields are dropped in this order: the future before its end is reported.
    pub(crate) struct Joined<F: Future> {
        #[pin]
        future: F,
        end: End<F::Output>,
    }
}

/// Reports the end of a task when it is dropped.
struct End<T>(Rc<Shared<T>>);

impl<F: Future> Joined<F> {
    pub(crate) fn new(future: F) -> (Joined<F>, Waiting<F::Output>) {
        let shared = Rc::new(Shared(RefCell::new(TaskState::Running(None))));
        let end = End(shared.clone());
        (Joined { future, end }, Waiting(shared))
    }
}

/// The waiting end, before the task exists.
pub(crate) struct Waiting<T>(Rc<Shared<T>>);

impl<T> Waiting<T> {
    pub(crate) fn on(self, running: async_task::Task<()>) -> Task<T> {
        Task(FallibleTask {
            shared: self.0,
            running: Some(running),
        })
    }
}

impl<F: Future> Future for Joined<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Poll::Ready(output) = this.future.poll(cx) else {
            return Poll::Pending;
        };
        let mut state = this.end.0.0.borrow_mut();
        let unwanted = match &mut *state {
            TaskState::Running(waiting) => {
                let waiting = waiting.take();
                *state = TaskState::Ready(output, waiting);
                None
            }
            _ => Some(output),
        };
        drop(state);
        discard(unwanted);
        Poll::Ready(())
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let mut state = self.0.0.borrow_mut();
        let (output, waker) = match mem::replace(&mut *state, TaskState::Unwanted) {
            TaskState::Running(waker) => (None, waker),
            TaskState::Ready(output, waker) => (Some(output), waker),
            TaskState::Ended(_) | TaskState::Unwanted => return,
        };
        *state = TaskState::Ended(output);
        drop(state);
        call(|| waker.map(Waker::wake));
    }
}
