//! Which connections go to another worker, and when.
//!
//! Connections are placed by their number, but some ask more than others, and so workers drift
//! apart. Ten times a second each worker that is awake tells how busy it was. One that is clearly
//! busier than the least busy one counts for a tenth of a second what each of its connections asks,
//! and then hands over those that together make up what is above the mean, to all that are below
//! it: the busiest first, but none that would only carry the trouble elsewhere. Must not know how a
//! connection moves.

use super::connection::Phase;
use super::{ConnId, Engine};
use crate::worker_set::PeerLoad;
use std::cell::Cell;
use std::rc::Rc;

/// How often a worker looks.
const PERIOD_MS: u64 = 100;
/// After connections have gone, their new worker's figures must have become true.
const REST_MS: u64 = 3 * PERIOD_MS;
/// Differences up to this are left alone, in thousandths of the time.
const APART_PERMILLE: u32 = 100;
/// Connections that go at a time, at most.
const MOVES_MAX: usize = 256;

/// What a worker remembers from look to look.
#[derive(Debug, Default)]
pub(super) struct RebalanceState {
    next_ms: Cell<u64>,
    weigh_ms: Cell<u64>,
    /// The worker's clock and its idle time at the last look, in ns.
    last_ns: Cell<Option<(u64, u64)>>,
    /// Requests are being counted since the last look.
    counting: Cell<bool>,
    rests_until_ms: Cell<u64>,
}

impl Engine {
    /// Looks, when it is time, how busy this worker and the others are.
    #[inline]
    pub(super) fn rebalance_tick(self: &Rc<Self>) {
        if self.context.now_ms() >= self.rebalance_state.next_ms.get() {
            self.rebalance();
        }
    }

    #[inline(never)]
    fn rebalance(self: &Rc<Self>) {
        let (now_ms, rebalance_state) = (self.context.now_ms(), &self.rebalance_state);
        // A look that only time has brought about must not delay the next one: others rely on it
        // when a request comes. See `watchdog`.
        let pause_ms = if self.check_workers() { PERIOD_MS } else { 0 };
        rebalance_state.next_ms.set(now_ms + pause_ms);
        if now_ms >= rebalance_state.weigh_ms.get() {
            rebalance_state.weigh_ms.set(now_ms + PERIOD_MS);
            self.measure_load();
        }
    }

    fn measure_load(self: &Rc<Self>) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let (now_ms, rebalance_state) = (self.context.now_ms(), &self.rebalance_state);
        let now = (self.context.now_ns(), self.context.idle_ns());
        let Some(last) = rebalance_state.last_ns.replace(Some(now)) else {
            return;
        };
        let (time, idle) = (now.0 - last.0, now.1 - last.1);
        let busy = 1000 - (1000 * idle).checked_div(time).unwrap_or(0).min(1000) as u32;
        worker_set.set_busy(own, busy, now_ms);
        let unsent_bytes = self.unsent_bytes.get();
        let receive_bytes = self.context.pool().budget().used_bytes() + unsent_bytes;
        self.counters.receive_bytes.set(receive_bytes as u64);
        if !self.settings.rebalance
            || self.draining.get()
            || now_ms < rebalance_state.rests_until_ms.get()
        {
            rebalance_state.counting.set(false);
            return;
        }
        let Some(peers) = worker_set.peer_loads(own, now_ms) else {
            return;
        };
        let least = peers.iter().map(|other| other.busy).min().unwrap_or(busy);
        let all: u32 = busy + peers.iter().map(|other| other.busy).sum::<u32>();
        let mean = all / (peers.len() as u32 + 1);
        if busy < least + APART_PERMILLE || busy <= mean {
            rebalance_state.counting.set(false);
        } else if !rebalance_state.counting.replace(true) {
            self.reset_request_counts();
        } else {
            rebalance_state.counting.set(false);
            rebalance_state.rests_until_ms.set(now_ms + REST_MS);
            self.migrate_excess(busy, mean, peers);
        }
    }

    /// Gives what is above the mean to those that are below it, the least busy first.
    fn migrate_excess(self: &Rc<Self>, busy: u32, mean: u32, mut peers: Vec<PeerLoad>) {
        peers.sort_unstable_by_key(|other| other.busy);
        let (worker_set, now_ms) = (&self.settings.worker_set, self.context.now_ms());
        let mut asked = self.requests_counted();
        let all: u64 = asked.iter().map(|&(_, requests)| u64::from(requests)).sum();
        let mut left = busy - mean;
        for other in peers {
            let gives = left.min(mean.saturating_sub(other.busy));
            let share = u64::from(gives) * all / u64::from(busy);
            let chosen = select_to_migrate(&mut asked, share);
            if chosen.is_empty() {
                continue;
            }
            left -= gives;
            // Others look, too: what is on its way counts already.
            worker_set.set_busy(other.index, other.busy + gives, now_ms);
            for id in chosen {
                self.migrate_to(id, other.index);
            }
        }
    }

    fn reset_request_counts(&self) {
        let mut conns = self.conns.borrow_mut();
        for id in conns.ids() {
            if let Some(conn) = conns.get(id) {
                conn.response_count_before = conn.response_count;
            }
        }
    }

    /// The connections that asked for something, and how much. One at work has asked for something,
    /// however long that takes.
    fn requests_counted(&self) -> Vec<(ConnId, u32)> {
        let mut conns = self.conns.borrow_mut();
        let ids = conns.ids().into_iter();
        ids.filter_map(|id| {
            let conn = conns.get(id)?;
            let response_count = conn.response_count.wrapping_sub(conn.response_count_before);
            let requests = response_count + u32::from(conn.phase == Phase::Busy);
            let may_go = !conn.over_limit && conn.leaving.is_none();
            (requests > 0 && may_go).then_some((id, requests))
        })
        .collect()
    }
}

/// Takes from connections, and what each asks, those that together ask for nearly `requests`, but
/// not for more.
fn select_to_migrate(asked: &mut Vec<(ConnId, u32)>, requests: u64) -> Vec<ConnId> {
    let (mut left, mut chosen) = (requests, Vec::new());
    asked.sort_unstable_by_key(|&(_, requests)| std::cmp::Reverse(requests));
    asked.retain(|&(id, requests)| {
        let takes = u64::from(requests) <= left && chosen.len() < MOVES_MAX;
        if takes {
            left -= u64::from(requests);
            chosen.push(id);
        }
        !takes
    });
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(requests: &[u32], most: u64) -> Vec<u32> {
        let id = |index: usize| ConnId {
            index: index as u32,
            generation: 0,
        };
        let asked = requests.iter().enumerate();
        let asked = asked.map(|(index, &requests)| (id(index), requests));
        let mut asked: Vec<_> = asked.collect();
        let ids = select_to_migrate(&mut asked, most);
        assert_eq!(ids.len() + asked.len(), requests.len());
        let ids = ids.into_iter();
        ids.map(|id| requests[id.index as usize]).collect()
    }

    #[test]
    fn the_busiest_go_first_but_no_more_than_is_too_much() {
        assert_eq!(chosen(&[10, 10, 10, 10], 20), [10, 10]);
        assert_eq!(chosen(&[1, 50, 9, 40], 50), [50]);
        assert_eq!(chosen(&[1, 50, 9, 40], 45), [40, 1]);
        // One that asks for nearly everything stays; those it is in the way of go.
        assert_eq!(chosen(&[96, 1, 1, 2], 50), [2, 1, 1]);
        assert_eq!(chosen(&[100], 50), []);
        assert_eq!(chosen(&[], 50), []);
        assert_eq!(chosen(&[3; 1000], 1500).len(), MOVES_MAX);
    }
}
