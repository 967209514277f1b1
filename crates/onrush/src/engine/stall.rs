//! Workers that are blocked: by a handler that computes for long, or that calls what blocks.
//!
//! A worker that was blocked reports it when it goes on. One that is still blocked is reported by
//! the other workers of the server, which look ten times a second while any of them has something
//! to do (see [`crate::watchdog`]): so a handler that never returns is seen, too. Meanwhile the
//! others serve the new connections that wait for it, at its listeners and in its inbox. Must not
//! know what a handler is.

use super::{Engine, count};
use crate::worker_set::BLOCKED_MS;
use crate::{panic_guard, params};
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
pub(super) struct StallReports {
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
    pub(super) fn report_own_stall(&self, blocked: Blocked) {
        let duration_ms = blocked.duration_ns / 1_000_000;
        count(&self.counters.blocked);
        self.counters.blocked_ms.add(duration_ms);
        let (now_ms, stalls) = (self.context.now_ms(), &self.stalls);
        let last_ms = stalls.warned_ms.get();
        if last_ms.is_some_and(|last_ms| now_ms < last_ms + WARNING_MS) {
            return stalls.suppressed.set(stalls.suppressed.get() + 1);
        }
        stalls.warned_ms.set(Some(now_ms));
        let suppressed = stalls.suppressed.take();
        let route = blocked.tag.and_then(params::text_of);
        let (worker, polls) = (self.context.index(), blocked.polls);
        panic_guard::log(|| {
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
    pub(super) fn check_workers(self: &Rc<Self>) -> bool {
        let (worker_set, watchdog) = (&self.settings.worker_set, &self.settings.watchdog);
        let (own, now_ms) = (self.context.index(), self.context.now_ms());
        if worker_set.workers() == 1 {
            return true;
        }
        let by_timer = (self.context.next_timer_ms()).is_some_and(|due_ms| due_ms <= now_ms);
        // One that has many timers may never be woken by anything else.
        let requests = self.counters.requests.get();
        let is_active = self.stalls.requests.replace(requests) != requests || !by_timer;
        if is_active && watchdog.note_active(now_ms) {
            worker_set.wake_others(own);
        }
        self.report_stalls();
        let goes_on =
            watchdog.is_active(now_ms) || worker_set.is_any_busy_for(own, now_ms, AT_WORK_MS);
        if goes_on && self.stalls.look_ms.get() <= now_ms {
            self.stalls.look_ms.set(now_ms + LOOK_MS);
            self.context.schedule(now_ms + LOOK_MS, LOOK);
        }
        is_active
    }

    /// Serves new connections that wait for a worker that is blocked.
    #[cold]
    fn accept_for_blocked(self: &Rc<Self>, worker: usize) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        if !worker_set.may_transfer() || self.draining.get() {
            return;
        }
        self.accept_transfers(worker_set.take_inbox_of(own, worker));
        for _ in 0..ACCEPTED_PER_LOOK {
            let Some(socket) = self.settings.watchdog.accept_for(worker) else {
                return;
            };
            self.accept(socket);
        }
    }

    /// Whether other workers are blocked now.
    fn report_stalls(self: &Rc<Self>) {
        let (worker_set, now_ms) = (&self.settings.worker_set, self.context.now_ms());
        let own = self.context.index();
        for worker in (0..worker_set.workers()).filter(|&worker| worker != own) {
            let iteration = worker_set.busy(worker).iteration(now_ms);
            if iteration.is_some_and(|(duration_ms, _)| duration_ms > BLOCKED_MS) {
                self.accept_for_blocked(worker);
            }
            let stalled = iteration.filter(|&(duration_ms, _)| duration_ms > STALLED_MS);
            let mut known = self.stalls.stalled.borrow_mut();
            let place = known.iter().position(|&known| known == worker);
            match (stalled, place) {
                (Some((duration_ms, tag)), None) => {
                    known.push(worker);
                    drop(known);
                    let route = params::text_of(tag);
                    panic_guard::log(|| {
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
