//! What happens when the time limit of a connection expires.

use crate::connections::ConnId;
use crate::engine::connection::state::Phase;
use crate::engine::connection::{Active, Conn};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::deadlines::Wait;
use crate::log::Outcome;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_proto::reject::Reject;
use onrush_rt::{diagnose, user};
use std::rc::Rc;

/// The extension of an expired head or idle time limit when the kernel holds unread input, in ms.
/// The worker was away and has to process that input first.
const EXTENSION_MS: u64 = 1_000;

impl Engine {
    /// Limits the time in which the client takes what was sent to `limit_ms` from now; 0 for no
    /// limit.
    pub(super) fn set_write_timeout(&self, id: ConnId, limit_ms: u32) {
        if let Some(conn) = self.conns.borrow_mut().get(id) {
            self.deadlines()
                .set_wait_timeout(id, conn, Wait::Write, limit_ms);
        }
    }

    /// Ends the wait for body bytes and wakes the reader.
    pub(super) fn clear_body_reader(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            conns
                .get(id)
                .and_then(|conn| self.deadlines().take_reader(id, conn))
        };
        if let Some(reader) = reader {
            user::wake(reader); // The reader may live on in the response.
        }
    }

    pub(super) fn timer_fired(self: &Rc<Self>, id: ConnId) {
        let now = self.context.now_ms();
        let (phase, total_over, body_over, write_over) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            if !self.deadlines().has_expired(id, conn) {
                return;
            }
            let over = |deadline: fn(&Active) -> Option<u64>| {
                let deadline = conn.active.as_deref().and_then(deadline);
                deadline.is_some_and(|deadline| deadline <= now)
            };
            (
                conn.state.phase(),
                over(|active| active.exchange.total_deadline_ms),
                over(|active| active.exchange.body_deadline_ms),
                over(|active| active.wire.write_deadline_ms),
            )
        };
        let is_between = matches!(phase, Phase::ProxyHeader | Phase::Ready | Phase::Leaving);
        if is_between && self.extend_deadline(id) {
            return;
        }
        let alive = match phase {
            Phase::ProxyHeader | Phase::Ready | Phase::Leaving | Phase::Lingering => false,
            _ if total_over => false,
            Phase::Busy => !write_over || self.retry_send(id),
            Phase::Flushing(_) => self.retry_send(id),
        };
        if !alive {
            let limit = if total_over {
                TimeLimit::Total
            } else {
                TimeLimit::Write
            };
            return self.on_timeout(id, phase, limit);
        }
        if phase == Phase::Busy && body_over {
            self.notify_body_timeout(id);
        }
        let mut conns = self.conns.borrow_mut();
        if let Some(conn) = conns.get(id)
            && conn.state.is_busy()
        {
            self.deadlines().set_busy_deadline(id, conn);
        }
    }

    /// Extends the time limit of a connection that waits for a request, once, if the kernel holds
    /// unread input. The next request may have an extension again, because [`Active`] is dropped
    /// when the connection becomes idle.
    fn extend_deadline(&self, id: ConnId) -> bool {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return false;
        };
        let extended = conn
            .active
            .as_ref()
            .is_some_and(|active| active.wire.extended);
        let extends = !extended && self.context.driver().has_unread(conn.stream);
        if extends {
            conn.active().wire.extended = true;
            self.deadlines()
                .set_deadline(id, conn, self.context.now_ms() + EXTENSION_MS);
        }
        extends
    }

    /// Wakes the reader of a body whose time limit has expired. The reader itself finds out whether
    /// bytes have arrived, because its task may have stopped waiting for the body.
    fn notify_body_timeout(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let reader = self.deadlines().take_reader(id, conn);
            self.deadlines().set_wait_timeout(id, conn, Wait::Body, 0);
            let Some(reader) = reader else { return };
            let active = conn.active();
            // The socket may hold fewer bytes than the reader waits for.
            active.exchange.slow_sender |= active.wire.low_water > 1;
            active.exchange.final_poll = true;
            reader
        };
        user::wake(reader);
    }

    fn on_timeout(self: &Rc<Self>, id: ConnId, phase: Phase, limit: TimeLimit) {
        diagnose!(DEBUG, connection = id.token(), phase = phase.name(); "time limit reached");
        let is_handshaking = |conn: &mut Conn| conn.state.is_handshaking();
        let handshaking = self.conns.borrow_mut().get(id).is_some_and(is_handshaking);
        if handshaking {
            return self.on_handshake_timeout(id);
        }
        let has_partial_head = matches!(phase, Phase::Ready | Phase::Leaving) && {
            let mut conns = self.conns.borrow_mut();
            (conns.get(id)).is_some_and(|conn| conn.unprocessed_bytes() > 0)
        };
        match phase {
            Phase::Ready | Phase::Leaving if has_partial_head => {
                self.counters.timed_out.count(TimeLimit::Head);
                let reject = Reject::new(408, "request head took too long");
                self.reject_request(id, reject, Outcome::TimedOut);
            }
            Phase::ProxyHeader => self.on_proxy_header_timeout(id),
            // An idle connection, or one that has lingered long enough, receives no response.
            Phase::Lingering => self.close(id, CloseReason::Complete),
            Phase::Ready | Phase::Leaving if self.shutdown.has_begun() => {
                self.close(id, CloseReason::Drained);
            }
            Phase::Ready | Phase::Leaving => self.close(id, CloseReason::Idle),
            Phase::Busy | Phase::Flushing(_) => {
                self.counters.timed_out.count(limit);
                self.abort(id, CloseReason::TimedOut);
            }
        }
    }
}
