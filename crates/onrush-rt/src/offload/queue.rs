//! The bounded queue of CPU-bound jobs, first in, first out, and its counters. A job may leave the
//! queue at any time. Does not depend on threads, futures or results.

use super::{OffloadError, OffloadStats};
use crate::job::{JobOutcome, RunJob};
use crate::thread_pool;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The waiting jobs, the number of running ones, and the counters.
pub(super) struct OffloadQueue {
    /// In order of arrival; the key is the job's number.
    waiting: BTreeMap<u64, QueuedJob>,
    next: u64,
    running: usize,
    /// Limit of the sum of waiting and running jobs.
    live_max: usize,
    wait_max: Duration,
    clock: Clock,
    /// `stats()` fills in its gauges.
    stats: OffloadStats,
}

/// A job in the queue.
pub(super) struct QueuedJob {
    job: Arc<dyn RunJob<OffloadError>>,
    since: Duration,
}

/// A job whose turn has come.
pub(super) struct ReadyJob {
    job: Arc<dyn RunJob<OffloadError>>,
    is_late: bool,
    clock: Clock,
}

/// How a job that left the queue ended.
pub(super) enum Outcome {
    Rejected(OffloadError),
    Ran(JobOutcome, Duration),
}

/// Why a job leaves the queue before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Its future was dropped.
    Dropped,
    /// It has waited too long.
    TimedOut,
}

impl OffloadQueue {
    pub(super) fn new(live_max: usize, wait_max: Duration, clock: Clock) -> OffloadQueue {
        OffloadQueue {
            waiting: BTreeMap::new(),
            next: 0,
            running: 0,
            live_max,
            wait_max,
            clock,
            stats: OffloadStats::default(),
        }
    }

    /// Appends a job and returns its number. Fails when the queue is full.
    pub(super) fn add(&mut self, job: Arc<dyn RunJob<OffloadError>>) -> Result<u64, OffloadError> {
        if self.waiting.len() + self.running >= self.live_max {
            self.stats.full_total += 1;
            return Err(OffloadError::Full);
        }
        let (number, since) = (self.next, self.clock.now());
        self.next += 1;
        self.waiting.insert(number, QueuedJob { job, since });
        Ok(number)
    }

    /// Removes a job before its turn; `None` if that has come. Drop the result without the lock.
    pub(super) fn remove(&mut self, number: u64, why: Removal) -> Option<QueuedJob> {
        let job = self.waiting.remove(&number)?;
        match why {
            Removal::Dropped => self.stats.dropped_total += 1,
            Removal::TimedOut => self.stats.late_total += 1,
        }
        Some(job)
    }

    /// Counts a running job whose result is not wanted any more.
    pub(super) fn record_cancelled(&mut self) {
        self.stats.cancelled_total += 1;
    }

    /// Starts a job that was never in the queue.
    pub(super) fn start_unqueued(&mut self, job: Arc<dyn RunJob<OffloadError>>) -> ReadyJob {
        let since = self.clock.now();
        self.dequeue(QueuedJob { job, since })
    }

    fn dequeue(&mut self, QueuedJob { job, since }: QueuedJob) -> ReadyJob {
        let waited = self.clock.now().saturating_sub(since);
        let is_late = waited > self.wait_max;
        if !is_late {
            self.stats.wait.record(waited);
        }
        self.running += 1;
        ReadyJob {
            job,
            is_late,
            clock: self.clock.clone(),
        }
    }

    /// All counters but those of the threads.
    pub(super) fn stats(&self) -> OffloadStats {
        OffloadStats {
            queued: self.waiting.len(),
            running: self.running,
            ..self.stats.clone()
        }
    }
}

impl thread_pool::JobQueue for OffloadQueue {
    type Job = ReadyJob;
    type Outcome = Outcome;

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn take(&mut self) -> Option<ReadyJob> {
        let (_, first) = self.waiting.pop_first()?;
        Some(self.dequeue(first))
    }

    fn run(ready: ReadyJob) -> Outcome {
        if ready.is_late {
            ready.job.refuse(OffloadError::TimedOut);
            return Outcome::Rejected(OffloadError::TimedOut);
        }
        let begun = ready.clock.now();
        let ran = ready.job.run();
        Outcome::Ran(ran, ready.clock.now().saturating_sub(begun))
    }

    /// Running it here would block a worker, which this pool exists to avoid.
    fn run_without_thread(ready: ReadyJob) -> Outcome {
        ready.job.refuse(OffloadError::Full);
        Outcome::Rejected(OffloadError::Full)
    }

    fn job_done(&mut self, outcome: Option<Outcome>) {
        self.running -= 1;
        let stats = &mut self.stats;
        match outcome {
            Some(Outcome::Rejected(OffloadError::TimedOut)) => stats.late_total += 1,
            Some(Outcome::Rejected(_)) => stats.full_total += 1,
            Some(Outcome::Ran(JobOutcome::NotRun, _)) | None => {}
            Some(Outcome::Ran(ran, duration)) => {
                stats.run.record(duration);
                match ran {
                    JobOutcome::Panicked => stats.panicked_total += 1,
                    _ => stats.done_total += 1,
                }
            }
        }
    }
}

/// Time since an arbitrary moment.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    Real(Instant),
    /// Nanoseconds that pass only by [`Clock::advance`].
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub(super) fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    pub(super) fn manual() -> Clock {
        Clock::Manual(Arc::default())
    }

    fn now(&self) -> Duration {
        match self {
            Clock::Real(start) => start.elapsed(),
            Clock::Manual(ns) => Duration::from_nanos(ns.load(Ordering::Relaxed)),
        }
    }

    /// Advances a [`Clock::Manual`]; does nothing to a [`Clock::Real`].
    pub(super) fn advance(&self, by: Duration) {
        if let Clock::Manual(ns) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            ns.fetch_add(by, Ordering::Relaxed);
        }
    }
}
