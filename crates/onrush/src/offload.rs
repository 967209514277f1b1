//! Runs CPU-bound work outside of the workers. [`offload()`] passes a job to the server's thread
//! pool for CPU work, and the worker continues with other requests.
//!
//! ```no_run
//! use onrush::offload::{self, offload};
//! use onrush::{Request, Response, Server};
//!
//! async fn digest(mut request: Request) -> Result<Response, offload::OffloadError> {
//!     let Ok(body) = request.body().read_all(1 << 20).await else {
//!         return Ok(Response::new(400));
//!     };
//!     let sum = offload(move || body.iter().map(|&byte| u64::from(byte)).sum::<u64>()).await?;
//!     Ok(Response::text(format!("{sum}\n")))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let bounds = offload::OffloadOptions::default().threads(2).queue_max(100);
//!     Server::bind("127.0.0.1:8080").offload(bounds).serve(digest)
//! }
//! ```
//!
//! A job costs a few microseconds in addition to its work: an allocation, and a wake-up in each
//! direction. Work that takes less than about 50 µs is better done in the handler itself.
//!
//! When the pool is overloaded, it refuses jobs at once or after a bounded wait. [`OffloadError`]
//! converts into a response, 503 with `Retry-After` (RFC 9110 §10.2.3). When the client
//! disconnects, the handler's future is dropped, and the job with it: a waiting job never runs, and
//! a running job can check its [`CancellationToken`]. [`onrush_rt::offload`] describes the details,
//! and why the threads do not delay the workers.

use crate::response::{IntoResponse, Response};
use onrush_rt::worker::{Sleep, WorkerContext};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pub use onrush_rt::offload::{
    CancellationToken, ManualExecutor, OffloadError, OffloadJob, OffloadOptions, OffloadPool,
    OffloadStats,
};

/// Passes `job` to the offload pool of this worker's server at once, and returns a future of its
/// result.
///
/// # Panics
/// If called outside of a worker, that is, neither in a handler nor in a task of one.
///
/// # Examples
/// ```
/// use onrush::offload::{OffloadError, offload};
/// use onrush::{Limits, Request, Response, sim::Simulation};
///
/// async fn sum(_: Request) -> Result<Response, OffloadError> {
///     let sum = offload(|| (1..=1000).sum::<u64>()).await?;
///     Ok(Response::text(sum.to_string()))
/// }
/// # let mut sim = Simulation::new(1, &sum, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// # assert!(client.receive()?.ends_with(b"500500"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn offload<T, F>(job: F) -> Offload<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    offload_with(move |_| job())
}

/// [`offload()`] for a long job, which can check now and then whether its result is still needed.
///
/// ```
/// use onrush::offload::{OffloadError, offload_with};
/// async fn primes_below(limit: u64) -> Result<usize, OffloadError> {
///     let is_prime = |n: &u64| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
///     let job = offload_with(move |token| {
///         let wanted = (2..limit).take_while(|_| !token.is_cancelled());
///         wanted.filter(is_prime).count()
///     });
///     job.await
/// }
/// # let _ = primes_below(10);
/// ```
///
/// # Panics
/// If called outside of a worker, that is, neither in a handler nor in a task of one.
pub fn offload_with<T, F>(job: F) -> Offload<T>
where
    T: Send + 'static,
    F: FnOnce(&CancellationToken) -> T + Send + 'static,
{
    let context = WorkerContext::current().expect("offload is for handlers and tasks on a worker");
    on(&context, job)
}

/// [`offload_with`] on the worker of `context`.
pub(crate) fn on<T, F>(context: &WorkerContext, job: F) -> Offload<T>
where
    T: Send + 'static,
    F: FnOnce(&CancellationToken) -> T + Send + 'static,
{
    let pool = context.offload();
    Offload {
        job: pool.run(job),
        limit: Some(context.sleep(pool.wait_max())),
    }
}

/// The future result of a job of [`offload()`]. Dropping it cancels the job; the drop never waits.
///
/// # Examples
/// ```
/// use onrush::offload::{OffloadOptions, OffloadPool, offload};
/// use onrush::{Request, Response, sim::Simulation};
///
/// async fn impatient(_: Request) -> Response {
///     drop(offload(|| 6 * 7));
///     Response::new(204)
/// }
///
/// let (pool, executor) = OffloadPool::manual(&OffloadOptions::default());
/// let mut sim = Simulation::builder(1).offload_pool(pool).start(&impatient);
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
/// assert!(!executor.run_one()); // No job waits.
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a job is cancelled when its future is dropped"]
pub struct Offload<T> {
    job: OffloadJob<T>,
    /// Limits the wait for a free thread. It has no effect once the job has begun. Arming it takes
    /// less than a tenth of a microsecond.
    limit: Option<Sleep>,
}

impl<T> Future for Offload<T> {
    type Output = Result<T, OffloadError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Poll::Ready(result) = Pin::new(&mut this.job).poll(cx) {
            this.limit = None;
            return Poll::Ready(result);
        }
        if let Some(limit) = &mut this.limit
            && Pin::new(limit).poll(cx).is_ready()
        {
            this.limit = None;
            if this.job.expire() {
                return Poll::Ready(Err(OffloadError::TimedOut));
            }
        }
        Poll::Pending
    }
}

impl<T> fmt::Debug for Offload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Offload")
    }
}

/// 503 with `Retry-After: 1` for a refused job, 500 for a panic.
///
/// # Examples
/// ```
/// use onrush::{IntoResponse, offload::OffloadError};
///
/// let response = OffloadError::Full.into_response();
/// assert_eq!(response.status(), 503);
/// assert_eq!(response.header("retry-after"), Some(&b"1"[..]));
/// assert_eq!(OffloadError::Panicked.into_response().status(), 500);
/// ```
impl IntoResponse for OffloadError {
    fn into_response(self) -> Response {
        match self {
            OffloadError::Full | OffloadError::TimedOut => Response::busy(),
            OffloadError::Panicked => Response::internal_error(),
        }
    }
}

impl From<OffloadError> for Response {
    fn from(error: OffloadError) -> Response {
        error.into_response()
    }
}
