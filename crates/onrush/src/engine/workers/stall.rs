//! Detects and reports blocked workers. A handler blocks its worker when it computes for long or
//! makes a blocking call.
//!
//! A worker that was blocked reports it when it continues. The other workers of the server report
//! one that is still blocked, so that a handler that never returns is noticed. They check ten times
//! per second while any of them is active (see [`crate::watchdog`]). Meanwhile they serve the new
//! connections that wait for the blocked worker, at its listeners and in its inbox.

use crate::engine::lifecycle::{Engine, count};
use crate::engine::shared::listeners::Incoming;
use crate::worker_set::BLOCKED_MS;
use crate::{panic_guard, params};
use onrush_rt::worker::Blocked;
use std::rc::Rc;

/// How often a worker checks the others, while any worker is active.
const CHECK_MS: u64 = 100;
/// A worker whose iteration takes longer than this may become blocked. Shorter iterations may be
/// the checks themselves.
const LONG_ITERATION_MS: u64 = 10;
/// The most connections that one check accepts from the listeners of a blocked worker.
const ACCEPTED_PER_CHECK: usize = 256;
/// The payload of the timer for the next check. It names no connection, and only wakes the worker.
const CHECK_TIMER: u64 = u64::MAX >> 1;
/// A worker logs that it was blocked at most once per this time. The counters include every case.
const WARNING_MS: u64 = 1000;
/// A worker is reported by the others when its iteration has taken this long. It reports shorter
/// ones itself.
const STALLED_MS: u64 = 2000;

impl Engine {
    /// Reports that this worker was blocked.
    #[cold]
    pub(in crate::engine) fn report_own_stall(&self, blocked: Blocked) {
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

    /// Checks whether other workers are blocked, and schedules the next check while any worker is
    /// active. Returns whether this worker is active: it received requests, or something other than
    /// a timer woke it.
    pub(super) fn check_workers(self: &Rc<Self>) -> bool {
        let (worker_set, watchdog) = (&self.settings.worker_set, &self.settings.watchdog);
        let (own, now_ms) = (self.context.index(), self.context.now_ms());
        if worker_set.workers() == 1 {
            return true;
        }
        let by_timer = (self.context.next_timer_ms()).is_some_and(|due_ms| due_ms <= now_ms);
        // A worker with many timers may always be woken by them.
        let requests = self.counters.requests.get();
        let is_active = self.stalls.requests.replace(requests) != requests || !by_timer;
        if is_active && watchdog.note_active(now_ms) {
            worker_set.wake_others(own);
        }
        self.report_stalls();
        let checks_again = watchdog.is_active(now_ms)
            || worker_set.any_iteration_exceeds(own, now_ms, LONG_ITERATION_MS);
        if checks_again && self.stalls.check_ms.get() <= now_ms {
            self.stalls.check_ms.set(now_ms + CHECK_MS);
            self.context.schedule(now_ms + CHECK_MS, CHECK_TIMER);
        }
        is_active
    }

    /// The earlier of `next_ms` and the time of the scheduled check. If the timer fired before the
    /// next check may take place, the check would be lost, and this worker would sleep.
    pub(super) fn until_next_check(&self, now_ms: u64, next_ms: u64) -> u64 {
        let check_ms = self.stalls.check_ms.get();
        match check_ms > now_ms {
            true => next_ms.min(check_ms),
            false => next_ms,
        }
    }

    /// Serves the new connections that wait for a blocked worker.
    #[cold]
    fn accept_for_blocked(self: &Rc<Self>, worker: usize) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        if !worker_set.may_transfer() || self.conns.shutdown.has_begun() {
            return;
        }
        self.accept_transfers(worker_set.take_inbox_of(own, worker));
        for _ in 0..ACCEPTED_PER_CHECK {
            let Some((listener, socket)) = self.settings.watchdog.accept_for(worker) else {
                return;
            };
            let tls = self.uses_tls(listener);
            self.accept(Incoming { socket, tls });
        }
    }

    /// Reports other workers that are blocked, and serves their new connections.
    fn report_stalls(self: &Rc<Self>) {
        let (worker_set, now_ms) = (&self.settings.worker_set, self.context.now_ms());
        let own = self.context.index();
        for worker in (0..worker_set.workers()).filter(|&worker| worker != own) {
            let iteration = worker_set.load(worker).iteration(now_ms);
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
