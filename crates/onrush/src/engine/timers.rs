//! What happens when the time limit of a connection expires.

use crate::connections::ConnId;
use crate::engine::connection::Active;
use crate::engine::connection::state::Phase;
use crate::engine::lifecycle::Engine;
use crate::engine::open::OpenConn;
use crate::log::Outcome;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_proto::reject::Reject;
use onrush_rt::diagnose;
use std::rc::Rc;

impl Engine {
    pub(super) fn timer_fired(self: &Rc<Self>, id: ConnId) {
        let now = self.context.now_ms();
        if self.conns.has_streams(id) {
            let has_expired = |mut conn: OpenConn<'_>| conn.has_expired();
            if self.conns.open(id).is_some_and(has_expired) {
                self.expire_streams(id);
            }
            return;
        }
        let (phase, total_over, body_over, write_over) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if !conn.has_expired() {
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
                over(|active| active.exchange.write_deadline_ms),
            )
        };
        let is_between = matches!(phase, Phase::ProxyHeader | Phase::Ready | Phase::Leaving);
        let extends = |mut conn: OpenConn<'_>| conn.extend_deadline();
        if is_between && self.conns.open(id).is_some_and(extends) {
            return;
        }
        let alive = match phase {
            Phase::ProxyHeader | Phase::Ready | Phase::Leaving | Phase::Lingering => false,
            Phase::Streams => true,
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
            self.conns.notify_body_timeout(id);
        }
        if let Some(mut conn) = self.conns.open(id)
            && conn.state.is_busy()
        {
            conn.set_busy_deadline();
        }
    }

    fn on_timeout(self: &Rc<Self>, id: ConnId, phase: Phase, limit: TimeLimit) {
        diagnose!(DEBUG, connection = id.token(), phase = phase.name(); "time limit reached");
        if self.conns.is_handshaking(id) {
            return self.on_handshake_timeout(id);
        }
        let has_partial_head = matches!(phase, Phase::Ready | Phase::Leaving)
            && (self.conns.open(id)).is_some_and(|conn| conn.unprocessed_bytes() > 0);
        match phase {
            Phase::Ready | Phase::Leaving if has_partial_head => {
                self.counters.timed_out.count(TimeLimit::Head);
                let reject = Reject::new(408, "request head took too long");
                self.reject_request(id, reject, Outcome::TimedOut);
            }
            Phase::ProxyHeader => self.on_proxy_header_timeout(id),
            // An idle connection, or one that has lingered long enough, receives no response.
            Phase::Lingering => self.close(id, CloseReason::Complete),
            Phase::Ready | Phase::Leaving if self.conns.shutdown.has_begun() => {
                self.close(id, CloseReason::Drained);
            }
            Phase::Ready | Phase::Leaving => self.close(id, CloseReason::Idle),
            Phase::Busy | Phase::Flushing(_) | Phase::Streams => {
                self.counters.timed_out.count(limit);
                self.abort(id, CloseReason::TimedOut);
            }
        }
    }
}
