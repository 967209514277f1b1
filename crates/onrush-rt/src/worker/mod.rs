//! One worker: a driver, its timers, its tasks, and the loop that turns them.
//!
//! Must not know what protocol its connections speak. Its futures and its [`EventHandler`] reach it
//! through a [`WorkerContext`]. A thread has no worker of its own, so that one can turn many (the
//! simulator): only while a worker is turned can what runs there ask for it, by
//! [`WorkerContext::current`].
//!
//! Files, lowest first: `machine` · this one · `dispatch` · `poll_monitor` · `sleep`.

mod dispatch;
mod machine;
mod poll_monitor;
mod sleep;

pub use crate::sys::restore_affinity;
pub use machine::{affinity, monotonic_ms, page_bytes, pin_to, ticks_per_second};
pub use poll_monitor::{Blocked, PollMonitor};
pub use sleep::Sleep;

use crate::blocking;
use crate::buf::BufferPool;
use crate::coop;
use crate::driver::{self, Choice, Driver, Event, sim};
use crate::executor::{Executor, Task, TaskSlot};
use crate::job::guarded;
use crate::mailbox::Mailbox;
use crate::offload;
use crate::sources::{RUNTIME, Sources};
use crate::timer::{TimerId, Wheel};
use machine::monotonic;
use poll_monitor::TaggedTask;
use slab::Slab;
use std::cell::{Cell, RefCell, RefMut};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Who takes the events of the streams, listeners and timers that no future waits for: a server.
///
/// Calls never come nested. Methods take `&self`, because handlers called from here call back.
pub trait EventHandler {
    /// An event of a listener, or of a stream whose token has the top bit clear.
    fn on_event(&self, event: Event);
    /// A timer of [`WorkerContext::schedule`] is due.
    fn on_timer(&self, payload: u64);
    /// Another thread called [`Notifier::notify`].
    fn on_notify(&self);
    /// The worker is back from the kernel; what has happened is told next.
    fn on_wake(&self) {}
    /// The last event-loop iteration took too long: something in it blocked the worker.
    fn on_blocked(&self, blocked: Blocked) {
        let _ = blocked;
    }
    /// A call of this sink, a waker or a task panicked. `token`: of the stream or the timer that
    /// the call was for, when it was for one of the sink's. Gives whether the worker goes on behind
    /// that call; otherwise the panic goes on to whoever turns the worker. A task that panicked
    /// ends alone in any case.
    fn on_panic(&self, token: Option<u64>) -> bool {
        let _ = token;
        false
    }
}

/// A sink for workers that run nothing but tasks.
impl EventHandler for () {
    fn on_event(&self, _: Event) {}
    fn on_timer(&self, _: u64) {}
    fn on_notify(&self) {}
    fn on_panic(&self, _: Option<u64>) -> bool {
        true // It was a waker: the sink itself does nothing that could.
    }
}

#[derive(Debug)]
enum Clock {
    Kernel,
    Sim(sim::Net),
}

#[derive(Debug)]
struct Inner {
    executor: Executor,
    driver: RefCell<Driver>,
    pool: BufferPool,
    wheel: RefCell<Wheel>,
    sleepers: RefCell<Slab<Option<Waker>>>,
    pub(crate) sources: Sources,
    mailbox: Arc<Mailbox>,
    poll_monitor: Arc<PollMonitor>,
    pools: Pools,
    clock: Clock,
    now_ms: Cell<u64>,
    now_ns: Cell<u64>,
    /// Time spent in turns that were allowed to sleep, up to their first event.
    idle_ns: Cell<u64>,
    unix_seconds: Cell<u64>,
    /// Iterations of the event loop so far.
    iteration: Cell<u64>,
    index: usize,
}

/// The pools of threads that a worker gives work to. Clones share them, as workers do.
#[derive(Clone, Debug)]
pub struct Pools {
    /// For file work that may block.
    pub blocking: blocking::BlockingPool,
    /// For what keeps a core busy.
    pub offload: offload::OffloadPool,
}

impl Pools {
    /// Without threads: work is done by whoever waits for it. For the simulator.
    pub fn inline() -> Pools {
        Pools {
            blocking: blocking::BlockingPool::inline(),
            offload: offload::OffloadPool::inline(),
        }
    }
}

/// New pools of threads, with bounds that suit a server.
impl Default for Pools {
    fn default() -> Pools {
        Pools {
            blocking: blocking::BlockingPool::threads(16, 4096),
            offload: offload::OffloadPool::new(&offload::OffloadOptions::default()),
        }
    }
}

/// A worker's handle on itself, for its sink and its futures. Cheap to clone; not `Send`.
#[derive(Clone, Debug)]
pub struct WorkerContext(Rc<Inner>);

/// A worker, to be turned by the thread that owns it.
#[derive(Debug)]
pub struct Worker {
    context: WorkerContext,
}

/// What other threads may do to a worker.
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Mailbox>, Arc<PollMonitor>);

impl Notifier {
    /// Has [`EventHandler::on_notify`] called in the worker's next turn, waking it if it sleeps.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Whether the worker waits in the kernel, or is about to, as far as can be seen from here.
    pub fn is_asleep(&self) -> bool {
        self.0.is_asleep()
    }

    /// What the worker runs.
    pub fn poll_monitor(&self) -> &Arc<PollMonitor> {
        &self.1
    }
}

impl Worker {
    /// A worker on the chosen driver. To be called on the thread that will turn it.
    pub fn new(
        choice: &Choice,
        config: &driver::Config,
        pools: Pools,
        index: usize,
    ) -> io::Result<Worker> {
        Worker::with_driver(choice.build(config)?, Clock::Kernel, pools, index)
    }

    /// A worker on a simulated network; its pools are inline, its clock is the network's.
    pub fn simulated(net: sim::Net, index: usize) -> io::Result<Worker> {
        Worker::simulated_with(net, Pools::inline(), index)
    }

    /// The same with other pools. Where these have threads, not all follows from the seed.
    pub fn simulated_with(net: sim::Net, pools: Pools, index: usize) -> io::Result<Worker> {
        Worker::simulated_within(net, pools, index, 64 << 20)
    }

    /// The same with `receive_bytes_max` bytes of receive memory, instead of 64 MiB.
    pub fn simulated_within(
        net: sim::Net,
        pools: Pools,
        index: usize,
        receive_bytes_max: usize,
    ) -> io::Result<Worker> {
        let driver = sim::SimDriver::new(net.clone(), receive_bytes_max);
        let driver = Driver::Sim(Box::new(driver));
        Worker::with_driver(driver, Clock::Sim(net), pools, index)
    }

    fn with_driver(
        mut driver: Driver,
        clock: Clock,
        pools: Pools,
        index: usize,
    ) -> io::Result<Worker> {
        let mailbox = Arc::new(Mailbox::new()?);
        driver.watch_wakes(mailbox.eventfd())?;
        let pool = match &driver {
            Driver::Uring(driver) => driver.pool().clone(),
            Driver::Epoll(driver) => driver.pool().clone(),
            Driver::Sim(driver) => driver.pool().clone(),
        };
        let inner = Inner {
            executor: Executor::new(mailbox.clone()),
            driver: RefCell::new(driver),
            pool,
            wheel: RefCell::new(Wheel::new(0)),
            sleepers: RefCell::default(),
            sources: Sources::default(),
            mailbox,
            poll_monitor: Arc::default(),
            pools,
            clock,
            now_ms: Cell::new(0),
            now_ns: Cell::new(0),
            idle_ns: Cell::new(0),
            unix_seconds: Cell::new(0),
            iteration: Cell::new(0),
            index,
        };
        let worker = Worker {
            context: WorkerContext(Rc::new(inner)),
        };
        worker.context.read_clock();
        *worker.context.0.wheel.borrow_mut() = Wheel::new(worker.context.now_ms());
        Ok(worker)
    }

    /// The handle for this worker's futures.
    pub fn context(&self) -> &WorkerContext {
        &self.context
    }

    /// The handle for other threads.
    pub fn notifier(&self) -> Notifier {
        let inner = &self.context.0;
        Notifier(inner.mailbox.clone(), inner.poll_monitor.clone())
    }

    /// Enters the kernel once and deals with everything that came of it: events, timers, tasks.
    /// Sleeps, when `may_sleep`, until there is something to do. Gives whether there was.
    ///
    /// Fails only when the driver is broken; the worker cannot go on then.
    pub fn poll(&mut self, handler: &impl EventHandler, may_sleep: bool) -> io::Result<bool> {
        let _entered = self.context.enter();
        let inner = &*self.context.0;
        let timeout = if may_sleep {
            self.timeout()
        } else {
            Some(Duration::ZERO)
        };
        let begin_sleep = timeout != Some(Duration::ZERO) && inner.mailbox.prepare_to_sleep();
        let timeout = if begin_sleep {
            timeout
        } else {
            Some(Duration::ZERO)
        };
        let asleep_ns = begin_sleep.then(|| {
            inner.poll_monitor.begin_sleep();
            self.context.clock_ns()
        });
        inner.iteration.set(inner.iteration.get() + 1);
        let result = inner.driver.borrow_mut().poll_events(timeout);
        inner.mailbox.awake();
        result?;
        let began_ns = inner.now_ns.get();
        self.context.read_clock();
        if let Some(asleep_ns) = asleep_ns {
            let slept_ns = inner.now_ns.get().saturating_sub(asleep_ns);
            inner.idle_ns.set(inner.idle_ns.get() + slept_ns);
        }

        let blocked = match inner.clock {
            Clock::Kernel => {
                let now_ns = inner.now_ns.get();
                let ended_ns = asleep_ns.unwrap_or(now_ns);
                inner.poll_monitor.end_iteration(began_ns, ended_ns, now_ns)
            }
            Clock::Sim(_) => None, // Its time passes between iterations, and not in one.
        };
        if let Some(blocked) = blocked {
            guarded(|| handler.on_blocked(blocked));
        }
        let gap_ms = (inner.now_ns.get() - began_ns) / 1_000_000;
        let busy = self.dispatch(handler, gap_ms > dispatch::LATE_MS)?;
        let panicked = || {
            guarded(|| handler.on_panic(None));
        };
        Ok(inner.executor.run(panicked) || busy)
    }

    /// Turns the worker until `future` is ready; tasks spawned on it make progress meanwhile.
    pub fn block_on<F: Future>(&mut self, future: F) -> io::Result<F::Output> {
        struct Flag(std::sync::atomic::AtomicBool, Arc<Mailbox>);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::Release);
                self.1.notify();
            }
        }
        let mailbox = self.context.0.mailbox.clone();
        let flag = Arc::new(Flag(std::sync::atomic::AtomicBool::new(true), mailbox));
        let waker = Waker::from(flag.clone());
        let mut future = pin!(future);
        let _entered = self.context.enter();
        loop {
            coop::renew();
            if flag.0.swap(false, std::sync::atomic::Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Ok(output);
            }
            self.poll(&(), true)?;
        }
    }

    /// When the wheel next has something to do, in ms of this worker's clock.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.context.next_timer_ms()
    }

    /// Whether something is due that needs neither time nor the kernel.
    pub fn has_work(&self) -> bool {
        !self.context.0.mailbox.is_empty() || self.context.0.driver.borrow().has_ready()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.has_work() {
            return Some(Duration::ZERO);
        }
        let now = self.context.now_ms();
        let due = self.context.0.wheel.borrow().next_ms()?;
        // One more millisecond than the difference, because `now` is rounded down.
        Some(Duration::from_millis((due + 1).saturating_sub(now)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _entered = self.context.enter(); // What is dropped may ask where it is, too.
        self.context.0.executor.shut_down();
    }
}

thread_local! {
    static CURRENT: RefCell<Option<WorkerContext>> = const { RefCell::new(None) };
}

/// While it lives, its worker is the current one of this thread; then the one before is again.
struct Entered {
    before: Option<WorkerContext>,
    _budget: coop::Restore,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A worker may be kept where it is dropped with its thread.
        let ours = CURRENT.try_with(|current| current.replace(self.before.take()));
        drop(ours);
    }
}

impl WorkerContext {
    /// The worker that is being turned by this thread, for code that was not given one: tasks and
    /// handlers always have one; elsewhere it is `None`.
    pub fn current() -> Option<WorkerContext> {
        let current = CURRENT.try_with(|current| current.borrow().clone());
        current.ok().flatten()
    }

    fn enter(&self) -> Entered {
        // Nobody can ask any more on a thread whose locals are gone.
        let before = CURRENT.try_with(|current| current.replace(Some(self.clone())));
        Entered {
            before: before.ok().flatten(),
            _budget: coop::Restore::new(),
        }
    }

    /// Milliseconds of this worker's monotonic clock, as of this turn.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms.get()
    }

    /// Nanoseconds of this worker's monotonic clock, as of this turn.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    /// Nanoseconds that this worker has spent waiting for events, since it was made. The rest it
    /// was at work, or ready to be while other threads had its core.
    pub fn idle_ns(&self) -> u64 {
        self.0.idle_ns.get()
    }

    /// Seconds since 1970, as of this turn.
    #[inline]
    pub fn unix_seconds(&self) -> u64 {
        self.0.unix_seconds.get()
    }

    /// How many iterations the worker's event loop has begun: calls of [`Worker::poll`].
    #[inline]
    pub fn iteration(&self) -> u64 {
        self.0.iteration.get()
    }

    /// When the wheel of timers next has something to do, in ms of this worker's clock; `None`
    /// without timers. While [`EventHandler::on_wake`] is called, timers that are due have not
    /// fired.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.0.wheel.borrow().next_ms()
    }

    /// Which worker this is, from 0.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The driver, borrowed for one call: the worker panics when it is turned while this is held.
    /// Handlers of the crate `onrush` cannot reach it.
    #[inline]
    pub fn driver(&self) -> RefMut<'_, Driver> {
        self.0.driver.borrow_mut()
    }

    /// The worker's receive buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.0.pool
    }

    /// The pool for file work that may block.
    pub fn blocking(&self) -> &blocking::BlockingPool {
        &self.0.pools.blocking
    }

    /// The pool for what would keep the worker busy for long.
    pub fn offload(&self) -> &offload::OffloadPool {
        &self.0.pools.offload
    }

    /// Starts a task on this worker; it first runs in the present turn or the next.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.0.executor.spawn(TaggedTask::new(self, future))
    }

    /// A task for a future that is polled first and becomes one only when it is pending.
    pub fn task_slot(&self) -> TaskSlot {
        self.0.executor.task_slot()
    }

    /// Tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.0.executor.live_tasks()
    }

    /// Has [`EventHandler::on_timer`] called with `payload` (top bit clear) at `deadline_ms` of
    /// this worker's clock or soon after.
    pub fn schedule(&self, deadline_ms: u64, payload: u64) -> TimerId {
        debug_assert!(payload & RUNTIME == 0);
        self.0.wheel.borrow_mut().schedule(deadline_ms, payload)
    }

    /// Takes back a [`WorkerContext::schedule`]; no harm when it has fired.
    pub fn unschedule(&self, timer: TimerId) {
        self.0.wheel.borrow_mut().cancel(timer);
    }

    /// Waits, never shorter than `duration` and up to a millisecond longer. The deadline counts
    /// from this call (not from the beginning of the turn, nor from the first poll).
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

    /// `future`'s output, or `None` when it has none after `duration`; it is dropped then.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(duration));
        // Once, also for a future that is ready at once; later polls must look at the time.
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

    /// Nanoseconds of this worker's monotonic clock, as of now: this asks for the time.
    pub fn clock_ns(&self) -> u64 {
        match &self.0.clock {
            Clock::Kernel => monotonic().as_nanos() as u64,
            Clock::Sim(net) => net.now_ms() * 1_000_000,
        }
    }

    fn read_clock(&self) {
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
