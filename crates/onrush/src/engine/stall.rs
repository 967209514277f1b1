//! Workers that are blocked: by a handler that computes for long, or that calls what blocks.
//!
//! A worker that was blocked reports it when it goes on. One that is still blocked is reported by
//! the other workers of the server, which look ten times a second while any of them has something
//! to do (see [`crate::watch`]): so a handler that never returns is seen, too. Meanwhile the others
//! serve the new connections that wait for it, at its listeners and in its inbox. Must not know
//! what a handler is.

use super::{Engine, count};
use crate::crew::BLOCKED_MS;
use crate::{params, shield};
use onrush_rt::worker::Blocked;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How often a worker looks whether others are blocked, while any of them is active.
const LOOK_MS: u64 = 100;
/// A worker that has been in one iteration for longer may be about to be blocked. Shorter ones may
/// be such looks.
const AT_WORK_MS: u64 = 10;
/// Connections accepted from the listeners of a blocked worker in one look, at most.
const ACCEPTED_PER_LOOK: usize = 256;
/// The payload of the timer for the next look: it names no connection, and only wakes the worker.
const LOOK: u64 = u64::MAX >> 1;
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
    /// When the timer for the next look fires, in ms of the worker's clock.
    look_ms: Cell<u64>,
    /// Requests that had come by the last look.
    requests: Cell<u64>,
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

    /// Looks whether other workers are blocked, and has a timer set for the next look while any
    /// worker is active. Gives whether this one is: requests have come, or it was not a timer that
    /// woke it.
    pub(super) fn watch_others(self: &Rc<Self>) -> bool {
        let (crew, watch) = (&self.settings.crew, &self.settings.watch);
        let (own, now_ms) = (self.local.index(), self.local.now_ms());
        if crew.workers() == 1 {
            return true;
        }
        let by_timer = (self.local.next_timer_ms()).is_some_and(|due_ms| due_ms <= now_ms);
        // One that has many timers may never be woken by anything else.
        let requests = self.counters.requests.get();
        let is_active = self.stalls.requests.replace(requests) != requests || !by_timer;
        if is_active && watch.note_active(now_ms) {
            crew.wake_others(own);
        }
        self.look_for_stalls();
        let goes_on = watch.is_active(now_ms) || crew.is_any_at_work(own, now_ms, AT_WORK_MS);
        if goes_on && self.stalls.look_ms.get() <= now_ms {
            self.stalls.look_ms.set(now_ms + LOOK_MS);
            self.local.schedule(now_ms + LOOK_MS, LOOK);
        }
        is_active
    }

    /// Serves new connections that wait for a worker that is blocked.
    #[cold]
    fn serve_for(self: &Rc<Self>, worker: usize) {
        let (crew, own) = (&self.settings.crew, self.local.index());
        if !crew.spreads() || self.draining.get() {
            return;
        }
        self.arrived(crew.take_for(own, worker));
        for _ in 0..ACCEPTED_PER_LOOK {
            let Some(socket) = self.settings.watch.accept_for(worker) else {
                return;
            };
            self.accept(socket);
        }
    }

    /// Whether other workers are blocked now.
    fn look_for_stalls(self: &Rc<Self>) {
        let (crew, now_ms) = (&self.settings.crew, self.local.now_ms());
        let own = self.local.index();
        for worker in (0..crew.workers()).filter(|&worker| worker != own) {
            let iteration = crew.busy(worker).iteration(now_ms);
            if iteration.is_some_and(|(duration_ms, _)| duration_ms > BLOCKED_MS) {
                self.serve_for(worker);
            }
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
