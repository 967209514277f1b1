//! A bounded pool of threads for work that keeps a core busy, so that no worker is: hashing,
//! compressing, rendering. It sheds what it cannot do in time (unlike the pool of
//! [`blocking`](crate::blocking), which is for file work and never does).
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
//! **What happens to a job.** It is refused at once when all threads work and the queue is full
//! ([`OffloadError::Full`]), and when its turn comes only after the longest wait
//! ([`OffloadError::TimedOut`]): whoever has waited so long has given up, or soon will, and running
//! it would make the next one late as well. When its future is dropped while it waits, its closure
//! is dropped there and then, never run, and its place is free. When its future is dropped while it
//! runs, its [`CancellationToken`] says so, and what it gives in the end is dropped on its thread;
//! a result that is there already is dropped with the future. A panic ends the job alone
//! ([`OffloadError::Panicked`]).
//!
//! **Priority.** The threads run as `SCHED_BATCH` (sched(7)), ten nice levels below whoever made
//! the pool, and ask for the longest slice there is (`sched_setattr(2)`, 100 ms; heeded since Linux
//! 6.12). A worker that wakes up on a core where a job runs preempts it at once, unless it has just
//! had more than its share: its slice is shorter, so its virtual deadline is earlier, and the
//! kernel does not protect a running task from such a one. With the same slice it may have to wait
//! for the next tick, up to 4 ms. Yet a job is not starved: beside a worker that never sleeps it
//! still gets a tenth of the core. `SCHED_IDLE` would be preempted as fast, but gets 0.3 %, so that
//! a job of 4 ms may take more than a second.
//!
//! Threads may run on all cores that the maker of the pool may run on, whichever worker's thread
//! happens to start them. They start as jobs queue up, sleep when there are none (`futex(2)`), and
//! end themselves after ten seconds of that.
//!
//! Modules, lowest first: `queue`. Must not know workers or what the jobs are for.

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

/// Nice levels of the threads below the thread that made the pool. Each is worth about 1.25: ten
/// are a tenth.
const NICE_BELOW: i32 = 10;
/// By default so many jobs may wait for each thread.
const QUEUE_PER_THREAD: usize = 64;
/// Nothing could be run within less: the clocks are not finer.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Bounds of a pool.
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
    /// Threads at most, and so jobs at a time; at least one. By default one for each core that this
    /// thread may run on (`sched_getaffinity(2)`): more would only take turns.
    pub fn threads(mut self, threads: usize) -> OffloadOptions {
        self.threads = Some(threads.max(1));
        self
    }

    /// Jobs that may wait while all threads work. By default 64 for each thread: jobs of up to 15
    /// ms then keep to the longest wait, so the queue is as long as it is of use. With 0 a job is
    /// refused unless a thread is free, which it is a moment after its last result was told.
    pub fn queue_max(mut self, jobs: usize) -> OffloadOptions {
        self.queue_max = Some(jobs);
        self
    }

    /// How long a job may wait for its turn; at least 1 ms. By default 1 s, after which people and
    /// machines begin to ask again.
    pub fn wait_max(mut self, wait: Duration) -> OffloadOptions {
        self.wait_max = wait.max(WAIT_MIN);
        self
    }
}

/// Where CPU jobs are run. Clones share one pool; when the last clone goes, what is queued is still
/// run and then the threads end.
#[derive(Clone)]
pub struct OffloadPool {
    owner: Arc<Owner<OffloadQueue>>,
    wait_max: Duration,
    inline: bool,
}

impl OffloadPool {
    /// A pool with these bounds. Starts no thread yet.
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

    /// A pool without threads or bounds: a job runs on whoever polls it, at the first poll. For the
    /// simulator, where the order of everything must follow from the seed.
    pub fn inline() -> OffloadPool {
        OffloadPool::without_threads(usize::MAX, Duration::MAX, Clock::manual(), true)
    }

    /// A pool without threads whose jobs wait until they are run by [`ManualExecutor::run_one`]:
    /// for tests of what happens when there is too much to do. Of the options, threads count for
    /// nothing, and nothing is late unless [`ManualExecutor::advance`] was called.
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

    /// Hands `job` to the pool at once and gives a future of its result. A job that runs for long
    /// does well to ask its token now and then.
    ///
    /// The longest wait ends, for a future that nothing else wakes, when a thread comes to the job;
    /// whoever has timers may end it in time by [`OffloadJob::expire`].
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

    /// Figures of this moment.
    pub fn stats(&self) -> OffloadStats {
        stats(self.owner.thread_pool())
    }

    /// What gives the figures without keeping the threads, and also when they have ended.
    pub fn stats_handle(&self) -> StatsHandle {
        StatsHandle(self.owner.thread_pool().clone())
    }
}

impl fmt::Debug for OffloadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OffloadPool").field(&self.stats()).finish()
    }
}

/// The figures of a pool, which may be gone. See [`OffloadPool::stats_handle`].
#[derive(Clone)]
pub struct StatsHandle(Arc<ThreadPool<OffloadQueue>>);

impl StatsHandle {
    /// As [`OffloadPool::stats`].
    pub fn stats(&self) -> OffloadStats {
        stats(&self.0)
    }

    /// Whether both are of one pool.
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

/// Runs the jobs of a pool without threads; see [`OffloadPool::manual`]. Keeps nothing alive.
#[derive(Clone)]
pub struct ManualExecutor {
    thread_pool: Arc<ThreadPool<OffloadQueue>>,
    clock: Clock,
}

impl ManualExecutor {
    /// Runs the job that has waited longest, or refuses it if that was too long, on this thread;
    /// `false` when none waits.
    pub fn run_one(&self) -> bool {
        self.thread_pool.run_one()
    }

    /// Lets time pass for what waits.
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

/// What a pool is doing and has done. The pool's lock is held while they are read, so they fit
/// together; a job is in the figures of its end a moment after its future is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadStats {
    /// Threads alive.
    pub threads: usize,
    /// Threads waiting for work.
    pub idle: usize,
    /// Jobs waiting for a thread.
    pub queued: usize,
    /// Jobs at work.
    pub running: usize,
    /// Jobs that ran to their end.
    pub done_total: u64,
    /// Jobs that panicked.
    pub panicked_total: u64,
    /// Jobs refused because there was no place, or no thread could be had.
    pub full_total: u64,
    /// Jobs refused because they had waited for too long.
    pub late_total: u64,
    /// Jobs dropped, with their future, before their turn.
    pub dropped_total: u64,
    /// Jobs whose future was dropped when their turn had come.
    pub cancelled_total: u64,
    /// How long jobs waited whose turn came in time.
    pub wait: Durations,
    /// How long they ran, of the clock on the wall; those that panicked included.
    pub run: Durations,
}

/// Why a job gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadError {
    /// All threads were at work and the queue was full. The closure was not run.
    Full,
    /// It waited for longer than it should. The closure was not run.
    TimedOut,
    /// The closure panicked; the panic hook has told why.
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

/// The future result of a job. Dropping it never waits: see the module's description.
#[must_use = "a job is cancelled when its future is dropped"]
pub struct OffloadJob<T>(JobState<T>);

enum JobState<T> {
    Rejected(OffloadError),
    Submitted {
        /// Shared with the queue until the job has run.
        cell: Arc<dyn JobResult<T, OffloadError>>,
        thread_pool: Arc<ThreadPool<OffloadQueue>>,
        /// In the queue; `None`: to be run at the first poll.
        number: Option<u64>,
    },
    Finished,
}

impl<T> OffloadJob<T> {
    /// Takes the job back if its turn has not come, as one that is late: the closure is dropped,
    /// and there will be no result; the future must not be polled any more. `false`, and nothing is
    /// changed, when it runs or has run.
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
        // Only now, and without the lock: the closure's destructor may do anything.
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
