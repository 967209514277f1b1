//! Which connections go to another worker, and when.
//!
//! Connections are placed by their number, but some ask more than others, and so workers drift
//! apart. Ten times a second each worker that is awake tells how busy it was. One that is clearly
//! busier than the least busy one counts for a tenth of a second what each of its connections asks,
//! and then hands over those that together make up what is too much: the busiest first, but none
//! that would only carry the trouble elsewhere. Must not know how a connection moves.

use super::connection::Phase;
use super::{ConnId, Engine};
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
pub(super) struct Balance {
    next_ms: Cell<u64>,
    /// The worker's clock and its idle time at the last look, in ns.
    last_ns: Cell<Option<(u64, u64)>>,
    /// Requests are being counted since the last look.
    counting: Cell<bool>,
    rests_until_ms: Cell<u64>,
}

impl Engine {
    /// All events of a turn have been dealt with.
    #[inline]
    pub(super) fn turned(self: &Rc<Self>) {
        if self.local.now_ms() >= self.balance.next_ms.get() {
            self.weigh();
        }
    }

    #[inline(never)]
    fn weigh(self: &Rc<Self>) {
        let (crew, own) = (&self.settings.crew, self.local.index());
        let (now_ms, balance) = (self.local.now_ms(), &self.balance);
        balance.next_ms.set(now_ms + PERIOD_MS);
        let now = (self.local.now_ns(), self.local.idle_ns());
        let Some(last) = balance.last_ns.replace(Some(now)) else {
            return;
        };
        let (time, idle) = (now.0 - last.0, now.1 - last.1);
        let busy = 1000 - (1000 * idle).checked_div(time).unwrap_or(0).min(1000) as u32;
        crew.set_busy(own, busy, now_ms);
        let receive_bytes = self.local.pool().budget().used_bytes();
        self.counters.receive_bytes.set(receive_bytes as u64);
        if !self.settings.rebalance || self.draining.get() || now_ms < balance.rests_until_ms.get()
        {
            balance.counting.set(false);
            return;
        }
        let Some((to, mean)) = crew.least_busy(own, now_ms) else {
            return;
        };
        let apart = busy.saturating_sub(to.busy);
        if apart < APART_PERMILLE || busy <= mean {
            balance.counting.set(false);
        } else if !balance.counting.replace(true) {
            self.count_from_here();
        } else {
            balance.counting.set(false);
            balance.rests_until_ms.set(now_ms + REST_MS);
            let too_much = (busy - mean).min(mean - to.busy);
            let share = f64::from(too_much) / f64::from(busy);
            for id in choose(self.requests_counted(), share) {
                self.hand_over_to(id, to.index);
            }
        }
    }

    fn count_from_here(&self) {
        let mut conns = self.conns.borrow_mut();
        for id in conns.ids() {
            if let Some(conn) = conns.get(id) {
                conn.answered_before = conn.answered;
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
            let answered = conn.answered.wrapping_sub(conn.answered_before);
            let requests = answered + u32::from(conn.phase == Phase::Busy);
            (requests > 0 && !conn.crowd).then_some((id, requests))
        })
        .collect()
    }
}

/// Of connections and what each asks, those that together ask for nearly `share` of all, but not
/// for more.
fn choose(mut asked: Vec<(ConnId, u32)>, share: f64) -> Vec<ConnId> {
    let all: u64 = asked.iter().map(|&(_, requests)| u64::from(requests)).sum();
    let mut left = (all as f64 * share) as u64;
    asked.sort_unstable_by_key(|&(_, requests)| std::cmp::Reverse(requests));
    let mut chosen = Vec::new();
    for (id, requests) in asked {
        if u64::from(requests) <= left && chosen.len() < MOVES_MAX {
            left -= u64::from(requests);
            chosen.push(id);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(requests: &[u32], share: f64) -> Vec<u32> {
        let id = |index: usize| ConnId {
            index: index as u32,
            generation: 0,
        };
        let asked = requests.iter().enumerate();
        let asked = asked.map(|(index, &requests)| (id(index), requests));
        let ids = choose(asked.collect(), share).into_iter();
        ids.map(|id| requests[id.index as usize]).collect()
    }

    #[test]
    fn the_busiest_go_first_but_no_more_than_is_too_much() {
        assert_eq!(chosen(&[10, 10, 10, 10], 0.5), [10, 10]);
        assert_eq!(chosen(&[1, 50, 9, 40], 0.5), [50]);
        assert_eq!(chosen(&[1, 50, 9, 40], 0.45), [40, 1]);
        // One that asks for nearly everything stays; those it is in the way of go.
        assert_eq!(chosen(&[96, 1, 1, 2], 0.5), [2, 1, 1]);
        assert_eq!(chosen(&[100], 0.5), []);
        assert_eq!(chosen(&[], 0.5), []);
        assert_eq!(chosen(&[3; 1000], 0.5).len(), MOVES_MAX);
    }
}
