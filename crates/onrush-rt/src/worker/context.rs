//! The handle to a worker, for its event handler and its futures: clocks, timers, tasks and pools.
//!
//! Does not depend on how events are dispatched.

use super::machine::monotonic;
use super::poll_monitor::TaggedTask;
use super::{Clock, Sleep, WorkerContext};
use crate::blocking;
use crate::buf::BufferPool;
use crate::coop;
use crate::driver::Driver;
use crate::executor::{Task, TaskSlot};
use crate::offload;
use crate::sources::{RUNTIME, Sources};
use crate::timer::TimerId;
use crate::user;
use std::cell::{RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

thread_local! {
    static CURRENT: RefCell<Option<WorkerContext>> = const { RefCell::new(None) };
}

/// While it lives, its worker is the current one of this thread. Its drop restores the previous
/// one.
pub(super) struct Entered {
    before: Option<WorkerContext>,
    check: Option<fn() -> bool>,
    _budget: coop::Restore,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // The worker may be dropped by a destructor of a thread-local variable.
        let ours = CURRENT.try_with(|current| current.replace(self.before.take()));
        user::set_check(self.check);
        drop(ours);
    }
}

impl WorkerContext {
    /// The worker that this thread is polling, for code that was not given one. Tasks and handlers
    /// always have one; elsewhere this is `None`.
    pub fn current() -> Option<WorkerContext> {
        let current = CURRENT.try_with(|current| current.borrow().clone());
        current.ok().flatten()
    }

    /// Has `check` called in debug builds before each call of user code: it tells whether nothing
    /// is borrowed that user code may need. See [`user`].
    pub fn check_before_user_code(&self, check: impl Fn() -> bool + 'static) {
        self.0.checks.borrow_mut().0.push(Box::new(check));
    }

    fn is_unborrowed(&self) -> bool {
        let checks = self.0.checks.borrow();
        self.0.driver.try_borrow_mut().is_ok() && checks.0.iter().all(|check| check())
    }

    /// Makes this worker the current one of the thread, until the result is dropped.
    pub(super) fn enter(&self) -> Entered {
        let check = user::set_check(Some(|| {
            WorkerContext::current().is_none_or(|context| context.is_unborrowed())
        }));
        // On a thread whose thread-local variables are destroyed, nothing can use the current
        // worker.
        let before = CURRENT.try_with(|current| current.replace(Some(self.clone())));
        Entered {
            before: before.ok().flatten(),
            check,
            _budget: coop::Restore::new(),
        }
    }

    /// Milliseconds of this worker's monotonic clock, read once per iteration.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms.get()
    }

    /// Nanoseconds of this worker's monotonic clock, read once per iteration.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    /// Nanoseconds that this worker has spent waiting for events since it was created. In the rest
    /// of the time it worked, or was ready to while other threads had its core.
    pub fn idle_ns(&self) -> u64 {
        self.0.idle_ns.get()
    }

    /// Seconds since 1970, read once per iteration.
    #[inline]
    pub fn unix_seconds(&self) -> u64 {
        self.0.unix_seconds.get()
    }

    /// How many iterations the worker's event loop has begun: calls of
    /// [`Worker::poll`](super::Worker::poll).
    #[inline]
    pub fn iteration(&self) -> u64 {
        self.0.iteration.get()
    }

    /// When the timer wheel next has something to do, in ms of this worker's clock; `None` without
    /// timers. During [`EventHandler::on_wake`](super::EventHandler::on_wake), expired timers have
    /// not fired yet.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.0.wheel.borrow().next_ms()
    }

    /// The index of this worker, from 0.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The driver, borrowed for one call: the worker panics if it is polled while this is held.
    /// Handlers of the crate `onrush` have no access to it.
    #[inline]
    pub fn driver(&self) -> RefMut<'_, Driver> {
        self.0.driver.borrow_mut()
    }

    /// The worker's receive buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.0.pool
    }

    /// The pool for file operations that may block.
    pub fn blocking(&self) -> &blocking::BlockingPool {
        &self.0.pools.blocking
    }

    /// The pool for CPU-bound work that would block the worker.
    pub fn offload(&self) -> &offload::OffloadPool {
        &self.0.pools.offload
    }

    /// Starts a task on this worker; its first poll is in the current iteration or the next.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.0.executor.spawn(TaggedTask::new(self, future))
    }

    /// A slot for a future that is polled first and becomes a task only if it is pending.
    pub fn task_slot(&self) -> TaskSlot {
        self.0.executor.task_slot()
    }

    /// The number of tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.0.executor.live_tasks()
    }

    /// The number of [`Lasting`] values of this worker.
    pub fn lasting_count(&self) -> usize {
        self.0.lasting_count.get()
    }

    /// A server waits before it ends until the result is dropped.
    pub fn lasting(&self) -> Lasting {
        let count = &self.0.lasting_count;
        count.set(count.get() + 1);
        Lasting(self.clone())
    }

    /// Calls [`EventHandler::on_timer`](super::EventHandler::on_timer) with `payload` (top bit
    /// clear) at `deadline_ms` of this worker's clock or soon after.
    pub fn schedule(&self, deadline_ms: u64, payload: u64) -> TimerId {
        debug_assert!(payload & RUNTIME == 0);
        self.0.wheel.borrow_mut().schedule(deadline_ms, payload)
    }

    /// Cancels a timer of [`WorkerContext::schedule`]. Does nothing if it has fired.
    pub fn unschedule(&self, timer: TimerId) {
        self.0.wheel.borrow_mut().cancel(timer);
    }

    /// Sleeps for at least `duration`, and up to a millisecond longer. The deadline counts from
    /// this call (not from the start of the iteration, nor from the first poll).
    pub fn sleep(&self, duration: Duration) -> Sleep {
        let now = match duration.is_zero() {
            true => Duration::from_millis(self.now_ms()),
            false => Duration::from_nanos(self.clock_ns()),
        };
        let deadline_ns = now.saturating_add(duration).as_nanos();
        let deadline_ms = u64::try_from(deadline_ns.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Sleep {
            context: self.clone(),
            deadline_ms,
            timer: None,
        }
    }

    /// Returns `future`'s output, or `None` if it has none after `duration`; it is dropped then.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(duration));
        // Spends budget once, even if `future` is ready at once; later polls must check the time.
        poll_fn(coop::poll_operation).await;
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    pub(crate) fn sources(&self) -> &Sources {
        &self.0.sources
    }

    /// Nanoseconds of this worker's monotonic clock, now: this reads the clock.
    pub fn clock_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::Kernel => monotonic().as_nanos() as u64,
            Clock::Sim(net) => net.now_ms() * 1_000_000,
        }
    }

    /// Reads the clocks, once per iteration.
    pub(super) fn read_clock(&self) {
        let now_ns = self.clock_ns();
        let now_ms = now_ns / 1_000_000;
        let unix_seconds = match &self.0.clock {
            Clock::Kernel => {
                use rustix::time::{ClockId, clock_gettime};
                clock_gettime(ClockId::RealtimeCoarse).tv_sec as u64
            }
            // An arbitrary day, the same in every run.
            Clock::Sim(_) => 1_790_000_000 + now_ms / 1000,
        };
        self.0.now_ns.set(now_ns);
        self.0.now_ms.set(now_ms);
        self.0.unix_seconds.set(unix_seconds);
    }
}

/// What a server waits for before it ends; see [`WorkerContext::lasting_count`].
#[must_use = "it lasts until it is dropped"]
pub struct Lasting(WorkerContext);

impl Drop for Lasting {
    fn drop(&mut self) {
        let count = &self.0.0.lasting_count;
        count.set(count.get() - 1);
    }
}
