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
pub use onrush_rt::worker::Sleep;

/// A handle to the worker of a request, for handlers and their tasks. See
/// [`Request::worker`](crate::Request::worker).
///
/// It is cheap to clone and not `Send`. Every method may be called at any time, including from a
/// destructor or a waker. None gives access to state that other requests of the worker use.
#[derive(Clone)]
pub struct WorkerHandle(WorkerContext);

impl WorkerHandle {
    pub(crate) fn new(context: &WorkerContext) -> WorkerHandle {
        WorkerHandle(context.clone())
    }

    /// The worker that runs the calling code; `None` on a thread that is not running a worker at
    /// the moment.
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
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }

    /// The output of `future`, or `None` if it is not ready within `duration`. Then the future is
    /// dropped.
    pub async fn timeout<F: Future>(&self, duration: Duration, future: F) -> Option<F::Output> {
        self.0.timeout(duration, future).await
    }

    /// Starts a task on this worker. It is first polled in the present event-loop iteration or in
    /// the next one. A panic in the task ends only the task.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.0.spawn(future)
    }

    /// Runs `job` on the server's thread pool for calls that may block, such as file operations
    /// (see [`Server::blocking_threads`](crate::Server::blocking_threads)). The future resolves to
    /// the result of `job`, or to [`JobPanicked`]. Dropping the future cancels a job that has not
    /// started; [`Blocking::detach`] lets it run without waiting for it.
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
    pub async fn yield_now(&self) {
        coop::yield_now().await;
    }
}

/// The future result of [`WorkerHandle::blocking`].
pub type Blocking<T> = blocking::BlockingJob<T>;

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}
