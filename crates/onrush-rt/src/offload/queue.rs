//! The queue of CPU jobs: bounded, first come, first served, and each may leave it at any time; and
//! what is counted of them. Must not know threads, futures or results.

use super::{Refused, Stats};
use crate::crew;
use crate::job::{Ran, Run};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What waits and works, and its figures.
pub(super) struct Jobs {
    /// In the order they came: the key is a job's number.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    running: usize,
    /// Waiting and running ones, at most.
    live_max: usize,
    wait_max: Duration,
    clock: Clock,
    /// Its gauges are filled in when it is asked for.
    figures: Stats,
}

/// A job in the queue.
pub(super) struct Waiting {
    job: Arc<dyn Run<Refused>>,
    since: Duration,
}

/// A job whose turn has come.
pub(super) struct Turn {
    job: Arc<dyn Run<Refused>>,
    is_late: bool,
    clock: Clock,
}

/// What became of a turn.
pub(super) enum Outcome {
    Refused(Refused),
    Ran(Ran, Duration),
}

/// Why a job leaves the queue before its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Its future was dropped.
    Dropped,
    /// It has waited for too long.
    Late,
}

impl Jobs {
    pub(super) fn new(live_max: usize, wait_max: Duration, clock: Clock) -> Jobs {
        Jobs {
            waiting: BTreeMap::new(),
            next: 0,
            running: 0,
            live_max,
            wait_max,
            clock,
            figures: Stats::default(),
        }
    }

    /// Puts a job at the end, and gives its number. Fails when there is no place.
    pub(super) fn add(&mut self, job: Arc<dyn Run<Refused>>) -> Result<u64, Refused> {
        if self.waiting.len() + self.running >= self.live_max {
            self.figures.full_total += 1;
            return Err(Refused::Full);
        }
        let (number, since) = (self.next, self.clock.now());
        self.next += 1;
        self.waiting.insert(number, Waiting { job, since });
        Ok(number)
    }

    /// Takes a job out before its turn; `None` when that has come. To be dropped without the lock.
    pub(super) fn withdraw(&mut self, number: u64, why: Leaves) -> Option<Waiting> {
        let job = self.waiting.remove(&number)?;
        match why {
            Leaves::Dropped => self.figures.dropped_total += 1,
            Leaves::Late => self.figures.late_total += 1,
        }
        Some(job)
    }

    /// A job at work is not wanted any more.
    pub(super) fn cancelled(&mut self) {
        self.figures.cancelled_total += 1;
    }

    /// The turn of a job that never was in the queue.
    pub(super) fn at_once(&mut self, job: Arc<dyn Run<Refused>>) -> Turn {
        let since = self.clock.now();
        self.turn(Waiting { job, since })
    }

    fn turn(&mut self, Waiting { job, since }: Waiting) -> Turn {
        let waited = self.clock.now().saturating_sub(since);
        let is_late = waited > self.wait_max;
        if !is_late {
            self.figures.wait.record(waited);
        }
        self.running += 1;
        Turn {
            job,
            is_late,
            clock: self.clock.clone(),
        }
    }

    /// All figures but those of the threads.
    pub(super) fn stats(&self) -> Stats {
        Stats {
            queued: self.waiting.len(),
            running: self.running,
            ..self.figures.clone()
        }
    }
}

impl crew::Queue for Jobs {
    type Job = Turn;
    type Outcome = Outcome;

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn take(&mut self) -> Option<Turn> {
        let (_, first) = self.waiting.pop_first()?;
        Some(self.turn(first))
    }

    fn run(turn: Turn) -> Outcome {
        if turn.is_late {
            turn.job.refuse(Refused::Late);
            return Outcome::Refused(Refused::Late);
        }
        let begun = turn.clock.now();
        let ran = turn.job.run();
        Outcome::Ran(ran, turn.clock.now().saturating_sub(begun))
    }

    /// To run it here would hold up a worker, which is what this pool is there to avoid.
    fn strand(turn: Turn) -> Outcome {
        turn.job.refuse(Refused::Full);
        Outcome::Refused(Refused::Full)
    }

    fn done(&mut self, outcome: Option<Outcome>) {
        self.running -= 1;
        let figures = &mut self.figures;
        match outcome {
            Some(Outcome::Refused(Refused::Late)) => figures.late_total += 1,
            Some(Outcome::Refused(_)) => figures.full_total += 1,
            Some(Outcome::Ran(Ran::Not, _)) | None => {}
            Some(Outcome::Ran(ran, duration)) => {
                figures.run.record(duration);
                match ran {
                    Ran::Panicked => figures.panicked_total += 1,
                    _ => figures.done_total += 1,
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
    Hand(Arc<AtomicU64>),
}

impl Clock {
    pub(super) fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    pub(super) fn hand() -> Clock {
        Clock::Hand(Arc::default())
    }

    fn now(&self) -> Duration {
        match self {
            Clock::Real(start) => start.elapsed(),
            Clock::Hand(ns) => Duration::from_nanos(ns.load(Ordering::Relaxed)),
        }
    }

    /// Lets time pass; nothing else makes it pass for [`Clock::Hand`], nothing this for the other.
    pub(super) fn advance(&self, by: Duration) {
        if let Clock::Hand(ns) = self {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            ns.fetch_add(by, Ordering::Relaxed);
        }
    }
}
