//! The queue of CPU jobs: bounded, first come, first served, and each may leave it at any time; and
//! what is counted of them. Must not know threads, futures or results.

use super::{OffloadError, OffloadStats};
use crate::job::{JobOutcome, RunJob};
use crate::thread_pool;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What waits and works, and its figures.
pub(super) struct OffloadQueue {
    /// In the order they came: the key is a job's number.
    waiting: BTreeMap<u64, QueuedJob>,
    next: u64,
    running: usize,
    /// Waiting and running ones, at most.
    live_max: usize,
    wait_max: Duration,
    clock: Clock,
    /// Its gauges are filled in when it is asked for.
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

/// What became of a turn.
pub(super) enum Outcome {
    Rejected(OffloadError),
    Ran(JobOutcome, Duration),
}

/// Why a job leaves the queue before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Its future was dropped.
    Dropped,
    /// It has waited for too long.
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

    /// Puts a job at the end, and gives its number. Fails when there is no place.
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

    /// Takes a job out before its turn; `None` when that has come. To be dropped without the lock.
    pub(super) fn remove(&mut self, number: u64, why: Removal) -> Option<QueuedJob> {
        let job = self.waiting.remove(&number)?;
        match why {
            Removal::Dropped => self.stats.dropped_total += 1,
            Removal::TimedOut => self.stats.late_total += 1,
        }
        Some(job)
    }

    /// A job at work is not wanted any more.
    pub(super) fn record_cancelled(&mut self) {
        self.stats.cancelled_total += 1;
    }

    /// The turn of a job that never was in the queue.
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

    /// All figures but those of the threads.
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

    /// To run it here would hold up a worker, which is what this pool is there to avoid.
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
    /// Nanoseconds that pass only when somebody says so.
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

    /// Lets time pass; nothing else makes it pass for [`Clock::Manual`], nothing this for the
    /// other.
    pub(super) fn advance(&self, by: Duration) {
        if let Clock::Manual(ns) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            ns.fetch_add(by, Ordering::Relaxed);
        }
    }
}
