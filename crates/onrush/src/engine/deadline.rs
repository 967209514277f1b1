//! Time limits. Each connection has one deadline and at most one timer: moving the deadline later
//! is a store, and the timer, when it fires early, is set again.
//!
//! Must not know how answers are made, only that one may be owed.

use super::connection::{Conn, ConnId, Phase};
use super::{Engine, count};
use onrush_proto::reject::Reject;
use std::io;
use std::rc::Rc;

/// How long a connection without a request may live on while the server drains.
pub(super) const DRAIN_IDLE_MS: u64 = 200;

impl Engine {
    /// Gives the connection `limit_ms` from now for what it does next; 0 for no limit.
    #[inline]
    pub(super) fn set_limit(&self, id: ConnId, conn: &mut Conn, limit_ms: u32) {
        let deadline = match limit_ms {
            0 => u64::MAX,
            ms => self.local.now_ms() + u64::from(ms),
        };
        self.set_deadline(id, conn, deadline);
    }

    #[inline]
    pub(super) fn set_deadline(&self, id: ConnId, conn: &mut Conn, deadline_ms: u64) {
        let total = conn
            .active
            .as_ref()
            .and_then(|active| active.total_deadline_ms);
        conn.deadline_ms = total.map_or(deadline_ms, |total| total.min(deadline_ms));
        if conn.deadline_ms < conn.timer_ms {
            self.start_timer(id, conn);
        }
    }

    fn start_timer(&self, id: ConnId, conn: &mut Conn) {
        if let Some(timer) = conn.timer.take() {
            self.local.unschedule(timer);
        }
        conn.timer_ms = conn.deadline_ms;
        conn.timer = Some(self.local.schedule(conn.deadline_ms, id.token()));
    }

    pub(super) fn timer_fired(self: &Rc<Self>, id: ConnId) {
        let (phase, reader) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            (conn.timer, conn.timer_ms) = (None, u64::MAX);
            if conn.deadline_ms > self.local.now_ms() {
                if conn.deadline_ms != u64::MAX {
                    self.start_timer(id, conn);
                }
                return;
            }
            let total = conn
                .active
                .as_ref()
                .and_then(|active| active.total_deadline_ms);
            let total_over = total.is_some_and(|total| total <= self.local.now_ms());
            // A handler that waits for the body is told; everything else ends here.
            let reader = match conn.phase {
                Phase::Busy if !total_over => conn.active().reader.take(),
                _ => None,
            };
            if reader.is_some() {
                conn.active().broken_body = Some(io::ErrorKind::TimedOut);
                conn.active().reject = Some(Reject::new(408, "request body took too long"));
                conn.deadline_ms = u64::MAX;
            }
            (conn.phase, reader)
        };
        if let Some(reader) = reader {
            count(&self.counters.timed_out);
            return reader.wake();
        }
        self.time_is_up(id, phase);
    }

    fn time_is_up(self: &Rc<Self>, id: ConnId, phase: Phase) {
        let in_head = phase == Phase::Ready && {
            let mut conns = self.conns.borrow_mut();
            let active = conns.get(id).and_then(|conn| conn.active.as_ref());
            active.is_some_and(|active| active.input_bytes > 0)
        };
        match phase {
            Phase::Ready if in_head => {
                count(&self.counters.timed_out);
                self.refuse(id, Reject::new(408, "request head took too long"));
            }
            // An idle connection, or one that lingered long enough: nobody is owed anything.
            Phase::Ready | Phase::Lingering => self.close(id),
            Phase::Busy | Phase::Flushing => {
                count(&self.counters.timed_out);
                self.abort(id);
            }
        }
    }
}
