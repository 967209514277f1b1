//! Decides which connections move to another worker, and when.
//!
//! New connections are distributed by number, but some send more requests than others, so the load
//! of workers diverges. Ten times per second each active worker publishes its load. A worker that
//! is clearly busier than the least busy one counts the requests of each of its connections for a
//! tenth of a second. It then moves connections whose requests make up its excess over the mean to
//! the workers below the mean, the busiest connections first. It does not move a connection that
//! alone exceeds what another worker can take.

use crate::connections::ConnId;
use crate::engine::connection::table::Conns;
use crate::engine::lifecycle::Engine;
use crate::worker_set::PeerLoad;
use std::rc::Rc;

/// The interval of load measurements.
const PERIOD_MS: u64 = 100;
/// The pause after a migration, in which the loads of the workers settle.
const COOLDOWN_MS: u64 = 3 * PERIOD_MS;
/// Differences in load below this are ignored, in thousandths of the time.
const IMBALANCE_PERMILLE: u32 = 100;
/// The most connections that move to one worker at a time.
const MOVES_MAX: usize = 256;

impl Engine {
    /// Measures the load of this worker and compares it with the others, when that is due.
    #[inline]
    pub(in crate::engine) fn rebalance_tick(self: &Rc<Self>) {
        if self.context.now_ms() >= self.rebalance_state.next_ms.get() {
            self.rebalance();
        }
    }

    #[inline(never)]
    fn rebalance(self: &Rc<Self>) {
        let (now_ms, rebalance_state) = (self.context.now_ms(), &self.rebalance_state);
        // A check that only a timer caused must not delay the next one: other workers rely on a
        // check when a request arrives. See `watchdog`.
        let pause_ms = if self.check_workers() { PERIOD_MS } else { 0 };
        let next_ms = self.until_next_check(now_ms, now_ms + pause_ms);
        rebalance_state.next_ms.set(next_ms);
        if now_ms >= rebalance_state.measure_ms.get() {
            rebalance_state.measure_ms.set(now_ms + PERIOD_MS);
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
        worker_set.publish_load(own, busy, now_ms);
        let receive_bytes = self.conns.memory.used_bytes();
        self.counters.receive_bytes.set(receive_bytes as u64);
        if !self.running.borrow().rebalance
            || self.conns.shutdown.has_begun()
            || now_ms < rebalance_state.cooldown_until_ms.get()
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
        if busy < least + IMBALANCE_PERMILLE || busy <= mean {
            rebalance_state.counting.set(false);
        } else if !rebalance_state.counting.replace(true) {
            reset_request_counts(&mut self.conns.all());
        } else {
            rebalance_state.counting.set(false);
            rebalance_state.cooldown_until_ms.set(now_ms + COOLDOWN_MS);
            self.migrate_excess(busy, mean, peers);
        }
    }

    /// Moves the excess over the mean to the workers below it, the least busy first.
    fn migrate_excess(self: &Rc<Self>, busy: u32, mean: u32, mut peers: Vec<PeerLoad>) {
        peers.sort_unstable_by_key(|other| other.busy);
        let (worker_set, now_ms) = (&self.settings.worker_set, self.context.now_ms());
        let mut counts = requests_counted(&mut self.conns.all());
        let all: u64 = counts
            .iter()
            .map(|&(_, requests)| u64::from(requests))
            .sum();
        let mut left = busy - mean;
        for other in peers {
            let moved = left.min(mean.saturating_sub(other.busy));
            let share = u64::from(moved) * all / u64::from(busy);
            let chosen = select_to_migrate(&mut counts, share);
            if chosen.is_empty() {
                continue;
            }
            left -= moved;
            // Connections on their way count at once, because other workers read this load, too.
            worker_set.publish_load(other.index, other.busy + moved, now_ms);
            for id in chosen {
                self.migrate_to(id, other.index);
            }
        }
    }
}

/// Counts the requests of all connections from now on.
fn reset_request_counts(conns: &mut Conns) {
    for (_, conn) in conns.all() {
        conn.response_count_before = conn.response_count;
    }
}

/// The connections that sent requests, and how many. A connection with a request in progress counts
/// one for it, however long the request takes.
fn requests_counted(conns: &mut Conns) -> Vec<(ConnId, u32)> {
    let counted = conns.all().filter_map(|(id, conn)| {
        let response_count = conn.response_count.wrapping_sub(conn.response_count_before);
        let requests = response_count + u32::from(conn.state.is_busy());
        let is_movable = !conn.state.is_refused() && conn.state.leaving().is_none();
        (requests > 0 && is_movable).then_some((id, requests))
    });
    counted.collect()
}

/// Removes connections from `counts` that together sent nearly `requests` requests, but not more,
/// and returns them.
fn select_to_migrate(counts: &mut Vec<(ConnId, u32)>, requests: u64) -> Vec<ConnId> {
    let (mut left, mut chosen) = (requests, Vec::new());
    counts.sort_unstable_by_key(|&(_, requests)| std::cmp::Reverse(requests));
    counts.retain(|&(id, requests)| {
        let selected = u64::from(requests) <= left && chosen.len() < MOVES_MAX;
        if selected {
            left -= u64::from(requests);
            chosen.push(id);
        }
        !selected
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
        let counts = requests.iter().enumerate();
        let counts = counts.map(|(index, &requests)| (id(index), requests));
        let mut counts: Vec<_> = counts.collect();
        let ids = select_to_migrate(&mut counts, most);
        assert_eq!(ids.len() + counts.len(), requests.len());
        let ids = ids.into_iter();
        ids.map(|id| requests[id.index as usize]).collect()
    }

    #[test]
    fn the_busiest_move_first_within_the_excess() {
        assert_eq!(chosen(&[10, 10, 10, 10], 20), [10, 10]);
        assert_eq!(chosen(&[1, 50, 9, 40], 50), [50]);
        assert_eq!(chosen(&[1, 50, 9, 40], 45), [40, 1]);
        // A connection with nearly all requests stays; the other connections of its worker move.
        assert_eq!(chosen(&[96, 1, 1, 2], 50), [2, 1, 1]);
        assert!(chosen(&[100], 50).is_empty());
        assert!(chosen(&[], 50).is_empty());
        assert_eq!(chosen(&[3; 1000], 1500).len(), MOVES_MAX);
    }
}
