//! Workers that are blocked: by a handler that computes for long, or that calls what blocks.
//!
//! A worker that was blocked reports it when it goes on. One that is still blocked is reported by
//! the other workers of the server, which look now and then while they are awake: so a handler that
//! never returns is seen, too. Must not know what a handler is.

use super::{Engine, count};
use crate::{params, shield};
use onrush_rt::worker::Blocked;
use std::cell::{Cell, RefCell};

/// A worker logs that it was blocked at most once in this time; the counters miss nothing.
const WARNING_MS: u64 = 1000;
/// Another worker that is in one iteration for so long is reported while it still is. A worker that
/// comes back earlier reports that itself.
const STALLED_MS: u64 = 2000;

/// What a worker remembers of its reports.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// When it last logged that it was blocked.
    warned_ms: Cell<Option<u64>>,
    /// What it did not log since.
    suppressed: Cell<u64>,
    /// Other workers that were told to be blocked, and have not come back since.
    stalled: RefCell<Vec<usize>>,
}

impl Engine {
    /// This worker was blocked, and goes on.
    #[cold]
    pub(super) fn was_blocked(&self, blocked: Blocked) {
        let duration_ms = blocked.duration_ns / 1_000_000;
        count(&self.counters.blocked);
        self.counters.blocked_ms.add(duration_ms);
        let (now_ms, stalls) = (self.local.now_ms(), &self.stalls);
        let last_ms = stalls.warned_ms.get();
        if last_ms.is_some_and(|last_ms| now_ms < last_ms + WARNING_MS) {
            return stalls.suppressed.set(stalls.suppressed.get() + 1);
        }
        stalls.warned_ms.set(Some(now_ms));
        let suppressed = stalls.suppressed.take();
        let route = blocked.tag.and_then(params::text_of);
        let (worker, polls) = (self.local.index(), blocked.polls);
        shield::tell(|| {
            tracing::warn!(
                worker,
                duration_ms,
                route,
                polls,
                suppressed,
                "a worker was blocked"
            );
        });
    }

    /// Whether other workers are blocked now.
    pub(super) fn look_for_stalls(&self) {
        let (crew, now_ms) = (&self.settings.crew, self.local.now_ms());
        let own = self.local.index();
        for worker in (0..crew.workers()).filter(|&worker| worker != own) {
            let iteration = crew.busy(worker).iteration(now_ms);
            let stalled = iteration.filter(|&(duration_ms, _)| duration_ms > STALLED_MS);
            let mut known = self.stalls.stalled.borrow_mut();
            let place = known.iter().position(|&known| known == worker);
            match (stalled, place) {
                (Some((duration_ms, tag)), None) => {
                    known.push(worker);
                    drop(known);
                    let route = params::text_of(tag);
                    shield::tell(|| {
                        tracing::warn!(worker, duration_ms, route, "a worker is blocked");
                    });
                }
                (None, Some(place)) => {
                    known.swap_remove(place);
                }
                _ => {}
            }
        }
    }
}
