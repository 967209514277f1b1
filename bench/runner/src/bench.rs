//! The state of a run: the servers, their folders, and the time limits.

use crate::{
    backend::{self, Backend},
    calls::Counter,
    peers::{Peer, Role, Setup},
    plan::{Field, Subject, omits},
    row::Side,
    work::Work,
};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Servers are restarted after this number of rounds. The placement of memory and threads affects
/// the cost of a server; with a single start it would look like a property of the server.
pub(crate) const ROUNDS_PER_START: u32 = 5;

/// Why a row was not measured at all in a run with a time limit.
pub(crate) const NO_TIME: &str = "not measured: no time left";

/// Minimum time for a row of a run with a time limit.
const ROW_MIN: Duration = Duration::from_secs(4);

/// How much to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    pub(crate) rounds: u32,
    pub(crate) seconds: u64,
    pub(crate) quick: bool,
}

/// One run of the bench.
pub(crate) struct Bench {
    pub(crate) setup: Setup,
    /// The target folder of another build of Onrush, to compare with.
    pub(crate) before: Option<PathBuf>,
    pub(crate) field: Field,
    pub(crate) effort: Effort,
    pub(crate) work: Work,
    /// The service of objects, since a row has needed it, or why it could not be started.
    pub(crate) backend: Option<Outcome<Backend>>,
    pub(crate) clock: Clock,
    /// Counts system calls. `None` if no tool can, or if there is no time for it.
    pub(crate) counter: Option<Counter>,
    /// System calls per request that were counted before, by scenario and server.
    pub(crate) calls: HashMap<(String, String), f64>,
    /// Why a peer cannot be started, by its name.
    pub(crate) missing: HashMap<&'static str, String>,
    /// By the name of the peer.
    pub(crate) versions: HashMap<&'static str, String>,
}

impl Bench {
    /// Ensures once that `peer` can be started. Fails with the reason.
    pub(crate) fn have(&mut self, peer: &'static Peer, install: bool) -> Outcome {
        if let Some(reason) = self.missing.get(peer.name) {
            return Err(reason.clone());
        }
        if self.versions.contains_key(peer.name) {
            return Ok(());
        }
        let installed = match install {
            true => (peer.install)(&self.setup),
            false => Ok(()),
        };
        match installed.and_then(|()| (peer.version)(&self.setup)) {
            Ok(version) => {
                self.versions.insert(peer.name, version.trim().to_owned());
                Ok(())
            }
            Err(reason) => {
                let reason = format!("{} is not available: {reason}", peer.name);
                self.missing.insert(peer.name, reason.clone());
                Err(reason)
            }
        }
    }

    /// The service of objects, which is started if it does not run.
    pub(crate) fn backend(&mut self) -> Outcome<&mut Backend> {
        let backend = self
            .backend
            .get_or_insert_with(|| Backend::start(&self.setup.target));
        let backend = backend.as_mut().map_err(|reason| reason.clone())?;
        self.setup.service = Some(backend.service.clone());
        Ok(backend)
    }

    /// The bucket and folder of the server `copy` of a pair.
    pub(crate) fn bucket(&mut self, copy: &str) -> Outcome<PathBuf> {
        self.backend()?;
        Ok(PathBuf::from(backend::folder(copy)))
    }

    /// The description of `subject` in `role` for a row.
    pub(crate) fn side(&self, subject: &Subject, role: Role) -> Side {
        let peer = subject.peer;
        let set = subject.environment.iter();
        let set = set.map(|(name, value)| format!("; {name}={value}"));
        Side {
            name: subject.label.clone(),
            version: self.versions.get(peer.name).cloned().unwrap_or_default(),
            configuration: format!("{}{}", peer.configuration, set.collect::<String>()),
            omits: omits(peer, role).into_iter().map(str::to_owned).collect(),
            driver: peer.driver.map_or("", |driver| driver.name()),
            calls: None,
            peak_bytes: None,
        }
    }
}

/// The time limits of a run and of its current row.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    interrupted: Arc<AtomicBool>,
    /// Of the run.
    deadline: Option<Instant>,
    /// Of the current row.
    row: Option<Instant>,
}

impl Clock {
    /// Signal handlers set `interrupted`. `longest` limits the run.
    pub(crate) fn new(interrupted: Arc<AtomicBool>, longest: Option<Duration>) -> Clock {
        Clock {
            interrupted,
            deadline: longest.map(|longest| Instant::now() + longest),
            row: None,
        }
    }

    /// Begins a row with the weight `own`. Assigns it its share of the remaining time, where
    /// `weight` is the sum of all remaining rows, including this one.
    pub(crate) fn begin(&mut self, own: u32, weight: u32) {
        self.row = self.deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left * own / weight.max(1);
            (Instant::now() + share.max(ROW_MIN)).min(deadline)
        });
    }

    /// Whether the run was interrupted.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether the run has no time for a step that takes `next`.
    pub(crate) fn is_over(&self, next: Duration) -> bool {
        self.interrupted() || passed(self.deadline, next)
    }

    /// As [`Clock::is_over`], for the current row.
    pub(crate) fn row_is_over(&self, next: Duration) -> bool {
        self.is_over(next) || passed(self.row, next)
    }

    /// The remaining time of the row. `None` if it has no limit.
    pub(crate) fn row_left(&self) -> Option<Duration> {
        self.row
            .map(|row| row.saturating_duration_since(Instant::now()))
    }
}

fn passed(deadline: Option<Instant>, next: Duration) -> bool {
    deadline.is_some_and(|deadline| Instant::now() + next > deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_deadline_only_an_interrupt_ends_it() {
        let flag = Arc::new(AtomicBool::new(false));
        let mut clock = Clock::new(flag.clone(), None);
        clock.begin(1, 1);
        assert!(!clock.row_is_over(Duration::from_secs(1_000_000)));
        flag.store(true, Ordering::Relaxed);
        assert!(clock.is_over(Duration::ZERO) && clock.row_is_over(Duration::ZERO));
    }

    #[test]
    fn a_row_gets_its_share_of_the_time() {
        let flag = Arc::new(AtomicBool::new(false));
        let mut clock = Clock::new(flag.clone(), Some(Duration::from_secs(1000)));
        clock.begin(1, 10);
        assert!(!clock.row_is_over(Duration::from_secs(90)));
        assert!(clock.row_is_over(Duration::from_secs(101)));
        assert!(!clock.is_over(Duration::from_secs(101)));
        assert!(clock.is_over(Duration::from_secs(1001)));
        let mut spent = Clock::new(flag, Some(Duration::ZERO));
        spent.begin(1, 1);
        assert!(spent.row_is_over(Duration::from_millis(1)));
    }
}
