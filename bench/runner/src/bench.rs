//! What a run has in hand: who takes part, folders, and time. Must not know the profiles.

use crate::{
    calls::Counter,
    peers::{Peer, Role, Setup},
    plan::{Field, Subject, skips},
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

/// Servers are started anew after so many rounds: where memory and threads come to lie is part of
/// what a server costs, and one start alone would make it look like a property of the server.
pub(crate) const ROUNDS_A_START: u32 = 5;

/// A row that has any time at all has this much.
const ROW_MIN: Duration = Duration::from_secs(4);

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    pub(crate) rounds: u32,
    pub(crate) seconds: u64,
    pub(crate) quick: bool,
    pub(crate) full: bool,
}

/// One run of the bench.
pub(crate) struct Bench {
    pub(crate) setup: Setup,
    /// The target folder of another build of ours, to compare with.
    pub(crate) before: Option<PathBuf>,
    pub(crate) field: Field,
    pub(crate) effort: Effort,
    pub(crate) work: Work,
    pub(crate) clock: Clock,
    /// Counts system calls; `None` where nothing can, or there is no time for it.
    pub(crate) counter: Option<Counter>,
    /// System calls of a request that are known already, by scenario and server.
    pub(crate) calls: HashMap<(String, String), f64>,
    /// Why a peer cannot be started, by its name.
    pub(crate) missing: HashMap<&'static str, String>,
    /// By the name of the peer.
    pub(crate) versions: HashMap<&'static str, String>,
}

impl Bench {
    /// Sees to it that `peer` can be started, once; fails with the reason.
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
                let reason = format!("{} is not to be had: {reason}", peer.name);
                self.missing.insert(peer.name, reason.clone());
                Err(reason)
            }
        }
    }

    /// What a table says of `subject` in `role`.
    pub(crate) fn side(&self, subject: &Subject, role: Role) -> Side {
        let peer = subject.peer;
        let set = subject.environment.iter();
        let set = set.map(|(name, value)| format!("; {name}={value}"));
        Side {
            name: subject.label.clone(),
            version: self.versions.get(peer.name).cloned().unwrap_or_default(),
            told: format!("{}{}", peer.told, set.collect::<String>()),
            skips: skips(peer, role).into_iter().map(str::to_owned).collect(),
            driver: peer.driver.map_or("", |driver| driver.name()),
            calls: None,
            peak_bytes: None,
        }
    }
}

/// When to stop.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    interrupted: Arc<AtomicBool>,
    /// Of the whole run.
    deadline: Option<Instant>,
    /// Of the row under way.
    row: Option<Instant>,
}

impl Clock {
    /// `interrupted` is set from outside.
    pub(crate) fn new(interrupted: Arc<AtomicBool>, longest: Option<Duration>) -> Clock {
        Clock {
            interrupted,
            deadline: longest.map(|longest| Instant::now() + longest),
            row: None,
        }
    }

    /// Gives the next row its share of what is left, when `weight` is to come, its own included.
    pub(crate) fn begin(&mut self, own: u32, weight: u32) {
        self.row = self.deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left * own / weight.max(1);
            (Instant::now() + share.max(ROW_MIN)).min(deadline)
        });
    }

    /// Whether somebody wants to go home.
    pub(crate) fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether nothing that takes `next` can be begun in the run any more.
    pub(crate) fn is_over(&self, next: Duration) -> bool {
        self.interrupted() || passed(self.deadline, next)
    }

    /// As [`Clock::is_over`], of the row.
    pub(crate) fn row_is_over(&self, next: Duration) -> bool {
        self.is_over(next) || passed(self.row, next)
    }

    /// How long the row may still take; `None` when that is not limited.
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
    fn a_row_has_its_share_and_the_run_an_end() {
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
