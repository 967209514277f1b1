//! A bounded pool of threads for CPU-bound work that would block a worker: hashing, compressing,
//! rendering. It refuses jobs that it cannot run in time. (The pool of
//! [`blocking`](crate::blocking) is for file operations and refuses none.)
//!
//! ```
//! use onrush_rt::offload::{OffloadOptions, OffloadPool, OffloadError};
//! use onrush_rt::worker::{Pools, Worker};
//! # use onrush_rt::driver::{Config, Preference, choose};
//! let pool = OffloadPool::new(&OffloadOptions::default().threads(2).queue_max(100));
//! let pools = Pools { offload: pool.clone(), ..Pools::default() };
//! # let config = Config::default();
//! # let choice = choose(Preference::Auto, &config)?;
//! let mut worker = Worker::new(&choice, &config, pools, 0)?;
//! let sum = worker.block_on(pool.run(|token| {
//!     (0..1000u64).take_while(|_| !token.is_cancelled()).sum::<u64>()
//! }))?;
//! assert_eq!(sum, Ok(499_500));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! **Life of a job.** When all threads work and the queue is full, the job is refused at once
//! ([`OffloadError::Full`]). When its turn comes after the longest wait, it is refused, too
//! ([`OffloadError::TimedOut`]): its client has probably given up, and running it would delay the
//! next one as well. When its future is dropped while the job waits, the closure is dropped at once
//! without running, and its place in the queue is free. When its future is dropped while the job
//! runs, its [`CancellationToken`] is set, and the thread drops the result. A finished result is
//! dropped with the future. A panic ends only the job ([`OffloadError::Panicked`]).
//!
//! **Priority.** The threads run as `SCHED_BATCH` (sched(7)), ten nice levels below the creator of
//! the pool, and request the longest slice possible (`sched_setattr(2)`, 100 ms; effective since
//! Linux 6.12). A worker that wakes up on a core where a job runs preempts the job at once, unless
//! the worker has just had more than its share: its slice is shorter, so its virtual deadline is
//! earlier, and the kernel lets an earlier deadline preempt a running task. With equal slices the
//! worker may have to wait for the next tick, up to 4 ms. A job is not starved: beside a worker
//! that never sleeps it still gets a tenth of the core. `SCHED_IDLE` would be preempted as fast,
//! but gets 0.3 %, so a job of 4 ms could take more than a second.
//!
//! The threads may run on all cores that the creator of the pool may run on, even if a pinned
//! worker starts them. They start as jobs queue up, sleep when there are none (`futex(2)`), and end
//! after ten idle seconds.
//!
//! Modules, lowest first: `queue`. This module does not depend on workers.

mod queue;

use crate::durations::Durations;
use crate::job::{JobCell, JobResult};
use crate::sys;
use crate::thread_pool::{Owner, ThreadPool};
use queue::{Clock, OffloadQueue, Removal};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use crate::job::CancellationToken;

/// Nice levels of the threads below the thread that made the pool. Each level is a factor of about
/// 1.25, so ten levels leave a tenth.
const NICE_BELOW: i32 = 10;
/// The default number of jobs that may wait per thread.
const QUEUE_PER_THREAD: usize = 64;
/// The shortest wait limit: the clocks are not finer.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Limits of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadOptions {
    threads: Option<usize>,
    queue_max: Option<usize>,
    wait_max: Duration,
}

impl Default for OffloadOptions {
    fn default() -> OffloadOptions {
        OffloadOptions {
            threads: None,
            queue_max: None,
            wait_max: Duration::from_secs(1),
        }
    }
}

impl OffloadOptions {
    /// The maximum number of threads, and so of concurrent jobs; at least one. The default is one
    /// per core that this thread may run on (`sched_getaffinity(2)`): more would only share the
    /// cores.
    pub fn threads(mut self, threads: usize) -> OffloadOptions {
        self.threads = Some(threads.max(1));
        self
    }

    /// Jobs that may wait while all threads work. The default is 64 per thread: then jobs of up to
    /// 15 ms keep within the longest wait. With 0, a job is refused unless a thread is free; a
    /// thread is free a moment after its last result was reported.
    pub fn queue_max(mut self, jobs: usize) -> OffloadOptions {
        self.queue_max = Some(jobs);
        self
    }

    /// How long a job may wait for its turn; at least 1 ms. The default is 1 s, after which people
    /// and clients begin to retry.
    pub fn wait_max(mut self, wait: Duration) -> OffloadOptions {
        self.wait_max = wait.max(WAIT_MIN);
        self
    }
}

/// A thread pool for CPU-bound jobs. Clones share one pool; after the last clone is dropped, queued
/// jobs still run and then the threads end.
#[derive(Clone)]
pub struct OffloadPool {
    owner: Arc<Owner<OffloadQueue>>,
    wait_max: Duration,
    inline: bool,
}

impl OffloadPool {
    /// A pool with these limits. Starts no thread yet.
    pub fn new(options: &OffloadOptions) -> OffloadPool {
        let cores = rustix::thread::sched_getaffinity(None).ok();
        let core_count = cores.map_or(1, |cores| cores.count() as usize);
        let threads = options.threads.unwrap_or(core_count).max(1);
        let nice = sys::niceness() + NICE_BELOW;
        let restore_affinity = sys::restore_affinity();
        let prepare = move || {
            restore_affinity();
            sys::lower_priority(nice);
        };
        let queue_max = options.queue_max;
        let live_max = queue_max.unwrap_or(threads.saturating_mul(QUEUE_PER_THREAD));
        let jobs = OffloadQueue::new(
            live_max.saturating_add(threads),
            options.wait_max,
            Clock::real(),
        );
        OffloadPool {
            owner: Arc::new(Owner::new(jobs, threads, "onrush-offload", prepare)),
            wait_max: options.wait_max,
            inline: false,
        }
    }

    /// A pool without threads or limits: a job runs at the first poll of its future, in the polling
    /// thread. For the simulator, where the seed must determine the order of everything.
    pub fn inline() -> OffloadPool {
        OffloadPool::without_threads(usize::MAX, Duration::MAX, Clock::manual(), true)
    }

    /// A pool without threads whose jobs wait for [`ManualExecutor::run_one`]: for tests of
    /// overload. The `threads` option has no effect, and no job is late unless
    /// [`ManualExecutor::advance`] was called.
    pub fn manual(options: &OffloadOptions) -> (OffloadPool, ManualExecutor) {
        let clock = Clock::manual();
        let queue_max = options.queue_max.unwrap_or(QUEUE_PER_THREAD);
        let pool = OffloadPool::without_threads(queue_max, options.wait_max, clock.clone(), false);
        let thread_pool = pool.owner.thread_pool().clone();
        (pool, ManualExecutor { thread_pool, clock })
    }

    fn without_threads(
        live_max: usize,
        wait_max: Duration,
        clock: Clock,
        inline: bool,
    ) -> OffloadPool {
        let jobs = OffloadQueue::new(live_max, wait_max, clock);
        OffloadPool {
            owner: Arc::new(Owner::new(jobs, 0, "onrush-offload", || {})),
            wait_max,
            inline,
        }
    }

    /// Queues `job` at once and returns a future of its result. A long job should check its token
    /// now and then.
    ///
    /// A job that exceeds the longest wait is refused when a thread takes it from the queue. A
    /// caller with timers can end the wait in time by [`OffloadJob::expire`].
    pub fn run<T, F>(&self, job: F) -> OffloadJob<T>
    where
        T: Send + 'static,
        F: FnOnce(&CancellationToken) -> T + Send + 'static,
    {
        let cell = Arc::new(JobCell::new(job, OffloadError::Panicked));
        let thread_pool = self.owner.thread_pool();
        let number = match self.inline {
            true => Ok(None),
            false => {
                let queued = cell.clone();
                thread_pool.submit(|jobs| jobs.add(queued)).map(Some)
            }
        };
        OffloadJob(match number {
            Ok(number) => JobState::Submitted {
                cell,
                thread_pool: thread_pool.clone(),
                number,
            },
            Err(refused) => JobState::Rejected(refused),
        })
    }

    /// How long a job may wait for its turn.
    pub fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// A snapshot of the pool's counters.
    pub fn stats(&self) -> OffloadStats {
        stats(self.owner.thread_pool())
    }

    /// A handle to the counters that does not keep the threads alive. It works after they have
    /// ended.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(self.owner.thread_pool().clone())
    }
}

impl fmt::Debug for OffloadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OffloadPool").field(&self.stats()).finish()
    }
}

/// A handle to the counters of a pool. See [`OffloadPool::stats_handle`].
#[derive(Clone)]
pub struct StatsHandle(Arc<ThreadPool<OffloadQueue>>);

impl StatsHandle {
    /// Like [`OffloadPool::stats`].
    pub fn stats(&self) -> OffloadStats {
        stats(&self.0)
    }

    /// Whether both belong to the same pool.
    pub fn is_same(&self, other: &StatsHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for StatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatsHandle").field(&self.stats()).finish()
    }
}

fn stats(thread_pool: &ThreadPool<OffloadQueue>) -> OffloadStats {
    let state = thread_pool.lock();
    OffloadStats {
        threads: state.threads,
        idle: state.idle,
        ..state.queue.stats()
    }
}

/// Runs the jobs of a pool without threads; see [`OffloadPool::manual`]. Does not keep the pool
/// alive.
#[derive(Clone)]
pub struct ManualExecutor {
    thread_pool: Arc<ThreadPool<OffloadQueue>>,
    clock: Clock,
}

impl ManualExecutor {
    /// Runs the job that has waited longest on this thread, or refuses it if it waited too long;
    /// `false` when none waits.
    pub fn run_one(&self) -> bool {
        self.thread_pool.run_one()
    }

    /// Advances the clock that waiting jobs are measured by.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

impl fmt::Debug for ManualExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualExecutor")
            .field(&stats(&self.thread_pool))
            .finish()
    }
}

/// Counters of a pool. They are read under the pool's lock, so they are consistent. A job counts as
/// ended a moment after its future is woken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadStats {
    /// Threads that live.
    pub threads: usize,
    /// Threads that wait for work.
    pub idle: usize,
    /// Jobs that wait for a thread.
    pub queued: usize,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that ran to their end.
    pub done_total: u64,
    /// Jobs that panicked.
    pub panicked_total: u64,
    /// Jobs refused because the queue was full, or because no thread could be started.
    pub full_total: u64,
    /// Jobs refused because they had waited too long.
    pub late_total: u64,
    /// Jobs whose future was dropped before their turn.
    pub dropped_total: u64,
    /// Jobs whose future was dropped after they had started.
    pub cancelled_total: u64,
    /// Waiting times of the jobs whose turn came in time.
    pub wait: Durations,
    /// Wall-clock running times, including those of jobs that panicked.
    pub run: Durations,
}

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadError {
    /// All threads were busy and the queue was full. The closure was not run.
    Full,
    /// The job waited longer than the limit. The closure was not run.
    TimedOut,
    /// The closure panicked; the panic hook has printed the message.
    Panicked,
}

impl fmt::Display for OffloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OffloadError::Full => "too many CPU jobs are waiting",
            OffloadError::TimedOut => "a CPU job waited for too long",
            OffloadError::Panicked => "a CPU job panicked",
        })
    }
}

impl std::error::Error for OffloadError {}

/// The future result of a job. Dropping it never waits: see the [module](self) documentation.
#[must_use = "a job is cancelled when its future is dropped"]
pub struct OffloadJob<T>(JobState<T>);

enum JobState<T> {
    Rejected(OffloadError),
    Submitted {
        /// Shared with the queue until the job has run.
        cell: Arc<dyn JobResult<T, OffloadError>>,
        thread_pool: Arc<ThreadPool<OffloadQueue>>,
        /// The job's number in the queue; `None`: it runs at the first poll.
        number: Option<u64>,
    },
    Finished,
}

impl<T> OffloadJob<T> {
    /// Withdraws the job as timed out if its turn has not come: the closure is dropped, there is no
    /// result, and the future must not be polled any more. Returns `false`, without effect, if the
    /// job runs or has run.
    pub fn expire(&mut self) -> bool {
        let JobState::Submitted {
            cell,
            thread_pool,
            number,
        } = &self.0
        else {
            return false;
        };
        let remove = |number| thread_pool.lock().queue.remove(number, Removal::TimedOut);
        let Some(waiting) = number.and_then(remove) else {
            return false;
        };
        let cell = cell.clone();
        self.0 = JobState::Finished;
        drop(waiting);
        cell.cancel();
        true
    }
}

impl<T> Future for OffloadJob<T> {
    type Output = Result<T, OffloadError>;

    /// # Panics
    /// When it was ready before.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &self.0 {
            JobState::Rejected(refused) => Poll::Ready(Err(*refused)),
            JobState::Submitted {
                cell,
                thread_pool,
                number,
            } => {
                if number.is_none() {
                    let ready = thread_pool.lock().queue.start_unqueued(cell.clone());
                    thread_pool.run_unqueued(ready);
                }
                cell.poll(cx.waker())
            }
            JobState::Finished => panic!("a Job was polled after it was ready"),
        };
        if polled.is_ready() {
            self.0 = JobState::Finished;
        }
        polled
    }
}

impl<T> Drop for OffloadJob<T> {
    fn drop(&mut self) {
        let JobState::Submitted {
            cell,
            thread_pool,
            number,
        } = mem::replace(&mut self.0, JobState::Finished)
        else {
            return;
        };
        let remove = |number| thread_pool.lock().queue.remove(number, Removal::Dropped);
        let waiting = number.and_then(remove);
        let had_its_turn = number.is_some() && waiting.is_none();
        drop(waiting);
        // After the removal and without the lock: the closure's destructor may do anything.
        if cell.cancel() && had_its_turn {
            thread_pool.lock().queue.record_cancelled();
        }
    }
}

impl<T> fmt::Debug for OffloadJob<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OffloadJob")
    }
}

#[cfg(test)]
mod tests;
