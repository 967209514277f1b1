//! One worker: a driver, its timers, its tasks, and the event loop that runs them.
//!
//! A worker is independent of the protocol that its connections use. Its futures and its
//! [`EventHandler`] access it through a [`WorkerContext`]. Workers are not tied to threads, so that
//! one thread can run many of them (the simulator does): [`WorkerContext::current`] returns a
//! worker only while that worker is polled.
//!
//! Files, lowest first: `machine` · this one · `poll_monitor`, `sleep` · `context` · `dispatch`.

mod context;
mod dispatch;
mod machine;
mod poll_monitor;
mod sleep;

pub use crate::sys::{page_bytes, restore_affinity};
pub use context::Lasting;
pub use machine::{affinity, monotonic_ms, monotonic_us, pin_to, ticks_per_second};
pub use poll_monitor::{Blocked, PollMonitor};
pub use sleep::Sleep;

use crate::blocking;
use crate::buf::BufferPool;
use crate::coop;
use crate::diagnose;
use crate::diagnosis;
use crate::driver::{self, Choice, Driver, Event, sim};
use crate::executor::Executor;
use crate::mailbox::Mailbox;
use crate::offload;
use crate::sources::Sources;
use crate::timer::Wheel;
use crate::user::call;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Receives the events of streams, listeners and timers that no future waits for. A server
/// implements it.
///
/// Calls are never nested. Methods take `&self`, because handlers called from here call back.
///
/// # Examples
/// ```
/// use onrush_rt::driver::{Event, sim::{Behaviour, Net}};
/// use onrush_rt::worker::{EventHandler, Worker};
/// use std::cell::Cell;
///
/// struct LastTimer(Cell<u64>);
///
/// impl EventHandler for LastTimer {
///     fn on_event(&self, _: Event) {}
///     fn on_timer(&self, payload: u64) {
///         self.0.set(payload);
///     }
///     fn on_notify(&self) {}
/// }
///
/// let net = Net::new(1, Behaviour::default());
/// let mut worker = Worker::simulated(net.clone(), 0)?;
/// worker.context().schedule(10, 7); // After 10 ms, with the payload 7.
/// net.advance(10);
/// let handler = LastTimer(Cell::new(0));
/// worker.poll(&handler, false)?;
/// assert_eq!(handler.0.get(), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait EventHandler {
    /// An event of a listener, or of a stream whose token has the top bit clear.
    fn on_event(&self, event: Event);
    /// A timer of [`WorkerContext::schedule`] is due.
    fn on_timer(&self, payload: u64);
    /// Another thread called [`Notifier::notify`].
    fn on_notify(&self);
    /// The worker has returned from the kernel; the events follow.
    fn on_wake(&self) {}
    /// The last event-loop iteration took too long: something in it blocked the worker.
    fn on_blocked(&self, blocked: Blocked) {
        let _ = blocked;
    }
    /// A call of this handler, a waker or a task panicked. `token` is that of the stream or the
    /// timer of the call, if it belongs to this handler. Returns whether the worker continues after
    /// that call; otherwise the panic propagates to the caller of [`Worker::poll`]. A task that
    /// panicked ends alone in any case.
    fn on_panic(&self, token: Option<u64>) -> bool {
        let _ = token;
        false
    }
}

/// An event handler for workers that run only tasks.
impl EventHandler for () {
    fn on_event(&self, _: Event) {}
    fn on_timer(&self, _: u64) {}
    fn on_notify(&self) {}
    fn on_panic(&self, _: Option<u64>) -> bool {
        true // It was a waker: these methods cannot panic.
    }
}

#[derive(Debug)]
enum Clock {
    Kernel,
    Sim(sim::Net),
}

#[derive(Debug)]
struct WorkerInner {
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
    /// Time spent in iterations that were allowed to sleep, up to their first event.
    idle_ns: Cell<u64>,
    unix_seconds: Cell<u64>,
    checks: RefCell<Checks>,
    /// Receive memory in use when it was last reported.
    pool_bytes: Cell<usize>,
    /// Iterations of the event loop so far.
    iteration: Cell<u64>,
    /// What the end of a server waits for.
    lasting_count: Cell<usize>,
    index: usize,
}

/// What [`WorkerContext::check_before_user_code`] was given.
#[derive(Default)]
struct Checks(Vec<Box<dyn Fn() -> bool>>);

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checks").field(&self.0.len()).finish()
    }
}

/// The thread pools that a worker gives work to. Clones share them, as workers do.
#[derive(Clone, Debug)]
pub struct Pools {
    /// For file operations that may block.
    pub blocking: blocking::BlockingPool,
    /// For CPU-bound work.
    pub offload: offload::OffloadPool,
}

impl Pools {
    /// Pools without threads: the task that waits for the work does it. For the simulator.
    pub fn inline() -> Pools {
        Pools {
            blocking: blocking::BlockingPool::inline(),
            offload: offload::OffloadPool::inline(),
        }
    }
}

/// New thread pools, with bounds that suit a server.
impl Default for Pools {
    fn default() -> Pools {
        Pools {
            blocking: blocking::BlockingPool::threads(16, 4096),
            offload: offload::OffloadPool::new(&offload::OffloadOptions::default()),
        }
    }
}

/// A handle to a worker, for its event handler and its futures. Cheap to clone; not `Send`.
///
/// # Examples
/// ```
/// use onrush_rt::worker::{Pools, Worker};
/// use std::future::pending;
/// use std::time::Duration;
/// # use onrush_rt::driver::{Config, Preference, choose};
/// # let config = Config::default();
/// # let choice = choose(Preference::Auto, &config)?;
///
/// let mut worker = Worker::new(&choice, &config, Pools::inline(), 0)?;
/// let context = worker.context().clone();
/// let limited = context.timeout(Duration::from_millis(5), pending::<()>());
/// assert_eq!(worker.block_on(limited)?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerContext(Rc<WorkerInner>);

/// A worker. The thread that owns it polls it.
///
/// # Examples
/// ```
/// use onrush_rt::driver::{Config, Preference, choose};
/// use onrush_rt::worker::{Pools, Worker};
/// use std::time::Duration;
///
/// let config = Config::default();
/// let choice = choose(Preference::Auto, &config)?;
/// let mut worker = Worker::new(&choice, &config, Pools::inline(), 0)?;
/// let context = worker.context().clone();
/// let output = worker.block_on(async move {
///     let task = context.spawn(async { 6 * 7 });
///     context.sleep(Duration::from_millis(1)).await;
///     task.await
/// })?;
/// assert_eq!(output, 42);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Worker {
    context: WorkerContext,
}

/// A handle to a worker for other threads.
///
/// # Examples
/// ```
/// use onrush_rt::driver::Event;
/// use onrush_rt::worker::{EventHandler, Pools, Worker};
/// use std::cell::Cell;
/// use std::thread;
/// # use onrush_rt::driver::{Config, Preference, choose};
/// # let config = Config::default();
/// # let choice = choose(Preference::Auto, &config)?;
///
/// #[derive(Default)]
/// struct Notified(Cell<bool>);
///
/// impl EventHandler for Notified {
///     fn on_event(&self, _: Event) {}
///     fn on_timer(&self, _: u64) {}
///     fn on_notify(&self) {
///         self.0.set(true);
///     }
/// }
///
/// let mut worker = Worker::new(&choice, &config, Pools::inline(), 0)?;
/// let notifier = worker.notifier();
/// let other = thread::spawn(move || notifier.notify());
/// let handler = Notified::default();
/// while !handler.0.get() {
///     worker.poll(&handler, true)?; // Sleeps in the kernel until there is something to do.
/// }
/// other.join().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Mailbox>, Arc<PollMonitor>);

impl Notifier {
    /// Makes the worker call [`EventHandler::on_notify`] in its next iteration, and wakes it if it
    /// sleeps.
    pub fn notify(&self) {
        self.0.notify();
    }

    /// Whether the worker sleeps in the kernel or is about to. A snapshot.
    pub fn is_asleep(&self) -> bool {
        self.0.is_asleep()
    }

    /// The monitor of what the worker runs.
    pub fn poll_monitor(&self) -> &Arc<PollMonitor> {
        &self.1
    }
}

impl Worker {
    /// A worker on the chosen driver. Call this on the thread that will poll it.
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

    /// [`Worker::simulated`] with other pools. With threads in them, a run is not determined by the
    /// seed alone.
    pub fn simulated_with(net: sim::Net, pools: Pools, index: usize) -> io::Result<Worker> {
        Worker::simulated_within(net, pools, index, 64 << 20)
    }

    /// [`Worker::simulated_with`] with `receive_bytes_max` bytes of receive memory, instead of 64
    /// MiB.
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
        let inner = WorkerInner {
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
            checks: RefCell::default(),
            pool_bytes: Cell::new(0),
            iteration: Cell::new(0),
            lasting_count: Cell::new(0),
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

    /// Runs one event-loop iteration: enters the kernel once, then dispatches events and timers and
    /// runs tasks. With `may_sleep`, sleeps until there is something to do. Returns whether there
    /// was.
    ///
    /// Fails only when the driver is broken; the worker cannot continue then.
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
        if let Err(error) = &result {
            let (worker, error) = (inner.index, error.to_string());
            diagnose!(ERROR, worker = worker, error = error; "the driver failed");
            diagnosis::flush();
        }
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
            Clock::Sim(_) => None, // Simulated time passes only between iterations.
        };
        if let Some(blocked) = blocked {
            call(|| handler.on_blocked(blocked));
        }
        let gap_ms = (inner.now_ns.get() - began_ns) / 1_000_000;
        let busy = self.dispatch(handler, gap_ms > dispatch::LATE_MS)?;
        let panicked = || {
            call(|| handler.on_panic(None));
        };
        self.report_pool();
        diagnosis::flush();
        let busy = inner.executor.run(panicked) || busy;
        diagnosis::flush();
        Ok(busy)
    }

    /// Polls the worker until `future` is ready; tasks spawned on it make progress meanwhile.
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

    /// When the timer wheel next has something to do, in ms of this worker's clock.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.context.next_timer_ms()
    }

    /// Reports that the receive memory of this worker has grown or shrunk.
    #[inline]
    fn report_pool(&self) {
        if diagnosis::is_enabled(diagnosis::tracing::Level::TRACE) {
            let inner = &*self.context.0;
            let bytes = inner.pool.budget().used_bytes();
            let before = inner.pool_bytes.replace(bytes);
            if before != bytes {
                let worker = inner.index;
                diagnose!(TRACE, worker = worker, bytes = bytes, before = before;
                    "receive memory changed");
            }
        }
    }

    /// Whether there is work that needs neither time to pass nor the kernel.
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
        let _entered = self.context.enter(); // Destructors may use `WorkerContext::current`.
        self.context.0.executor.shut_down();
        diagnosis::flush();
    }
}
