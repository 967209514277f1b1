//! The handle to a worker that handlers use.
//!
//! The runtime's own handle ([`WorkerContext`]) gives access to the driver, the timers and the
//! buffers that all connections of the worker share. A handler must not borrow those, so it
//! receives this one instead.

use crate::offload::{self, Offload};
use onrush_rt::worker::WorkerContext;
use onrush_rt::{blocking, coop};
use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use onrush_rt::blocking::JobPanicked;
pub use onrush_rt::executor::Task;
pub use onrush_rt::worker::{Lasting, Sleep};

/// A handle to the worker of a request, for handlers and their tasks. See
/// [`Request::worker`](crate::Request::worker).
///
/// It is cheap to clone and not `Send`. Every method may be called at any time, including from a
/// destructor or a waker. None gives access to state that other requests of the worker use.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, WorkerHandle, sim::Simulation};
///
/// async fn handler(request: Request) -> Response {
///     let worker: WorkerHandle = request.worker().clone();
///     let task = worker.spawn(async { 6 * 7 });
///     Response::text(format!("worker {}: {}", worker.index(), task.await))
/// }
/// # let mut sim = Simulation::new(1, &handler, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// # assert!(client.receive()?.ends_with(b"worker 0: 42"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct WorkerHandle(WorkerContext);

impl WorkerHandle {
    pub(crate) fn new(context: &WorkerContext) -> WorkerHandle {
        WorkerHandle(context.clone())
    }

    /// The worker that runs the calling code; `None` on a thread that is not running a worker at
    /// the moment.
    ///
    /// # Examples
    /// ```
    /// assert!(onrush::WorkerHandle::current().is_none());
    /// ```
    pub fn current() -> Option<WorkerHandle> {
        WorkerContext::current().map(WorkerHandle)
    }

    /// The index of the worker, from 0.
    pub fn index(&self) -> usize {
        self.0.index()
    }

    /// Milliseconds of the worker's monotonic clock (`CLOCK_MONOTONIC`), as of the beginning of the
    /// present event-loop iteration. Reading it costs no system call. In a simulation it is the
    /// simulated time.
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }

    /// Nanoseconds of the same clock, as of the beginning of the present event-loop iteration.
    pub fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    /// Seconds since 1970 (`CLOCK_REALTIME_COARSE`), as of the beginning of the present event-loop
    /// iteration.
    pub fn unix_seconds(&self) -> u64 {
        self.0.unix_seconds()
    }

    /// The number of tasks on this worker that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.0.live_tasks()
    }

    /// Waits for `duration`, measured from this call. It never waits for less, and for up to a
    /// millisecond more.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use std::time::Duration;
    ///
    /// async fn handler(request: Request) -> Response {
    ///     let worker = request.worker();
    ///     let start_ms = worker.now_ms();
    ///     worker.sleep(Duration::from_millis(20)).await;
    ///     assert!(worker.now_ms() >= start_ms + 20);
    ///     Response::new(204)
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.is_empty());
    /// # sim.advance(Duration::from_secs(1));
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }

    /// The output of `future`, or `None` if it is not ready within `duration`. Then the future is
    /// dropped.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use std::time::Duration;
    ///
    /// async fn handler(request: Request) -> Response {
    ///     let endless = std::future::pending::<Response>();
    ///     let result = request.worker().timeout(Duration::from_secs(1), endless).await;
    ///     result.unwrap_or_else(|| Response::new(504))
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # sim.advance(Duration::from_secs(2));
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 504 Gateway Timeout\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        self.0.timeout(duration, future).await
    }

    /// Starts a task on this worker. It is first polled in the present event-loop iteration or in
    /// the next one. A panic in the task ends only the task.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn handler(request: Request) -> Response {
    ///     let worker = request.worker().clone();
    ///     let background = worker.spawn(async { println!("after the response") });
    ///     background.detach(); // Dropping it would cancel the task.
    ///     Response::new(202)
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 202 Accepted\r\n"));
    /// # assert_eq!(sim.worker().live_tasks(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.0.spawn(future)
    }

    /// While the result exists, a graceful shutdown waits for at most four seconds after the last
    /// connection has closed or the drain timeout has ended it: such as for a request that keeps
    /// what has arrived of an upload when its body ends early.
    pub fn lasting(&self) -> Lasting {
        self.0.lasting()
    }

    /// Runs `job` on the server's thread pool for calls that may block, such as file operations
    /// (see [`Server::blocking_threads`](crate::Server::blocking_threads)). The future resolves to
    /// the result of `job`, or to [`JobPanicked`]. Dropping the future cancels a job that has not
    /// started; [`Blocking::detach`] lets it run without waiting for it.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use onrush::worker::JobPanicked;
    ///
    /// async fn handler(request: Request) -> Response {
    ///     let job = request.worker().blocking(|| std::fs::read_to_string("/proc/version"));
    ///     match job.await {
    ///         Ok(Ok(version)) => Response::text(version),
    ///         Ok(Err(_)) => Response::new(404), // The file could not be read.
    ///         Err(JobPanicked) => Response::new(500),
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 200 OK\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn blocking<T, F>(&self, job: F) -> Blocking<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.0.blocking().run(job)
    }

    /// Runs `job` on the server's thread pool for CPU work; see [`offload()`](crate::offload()).
    pub fn offload<T, F>(&self, job: F) -> Offload<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        offload::on(&self.0, move |_| job())
    }

    /// Yields to the other tasks and connections of this worker.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn handler(request: Request) -> Response {
    ///     let mut sum = 0_u64;
    ///     for round in 0..10 {
    ///         sum += (0..1000).map(|number| number * round).sum::<u64>();
    ///         request.worker().yield_now().await;
    ///     }
    ///     Response::text(sum.to_string())
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"22477500"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn yield_now(&self) {
        coop::yield_now().await;
    }
}

/// The future result of [`WorkerHandle::blocking`].
///
/// # Examples
/// ```
/// use onrush::WorkerHandle;
/// use onrush::worker::Blocking;
///
/// fn read(worker: &WorkerHandle) -> Blocking<std::io::Result<Vec<u8>>> {
///     worker.blocking(|| std::fs::read("/proc/version"))
/// }
/// ```
pub type Blocking<T> = blocking::BlockingJob<T>;

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}
