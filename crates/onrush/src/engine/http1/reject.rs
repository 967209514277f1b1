//! Responses to request heads that break a rule or arrive too slowly. The engine generates them
//! without a handler, and the connection ends.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::Engine;
use crate::engine::shared::exchange_log::Received;
use crate::log::Outcome;
use crate::metrics::Refusal;
use onrush_proto::connection::After;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use onrush_rt::diagnose;
use std::rc::Rc;

impl Engine {
    /// Renders the response to a head that breaks a rule; returns what follows it.
    #[cold]
    #[inline(never)]
    pub(super) fn reject_head(
        &self,
        conn: &mut Conn,
        reject: Reject,
        data: &Buf,
        out: &mut Vec<u8>,
    ) -> After {
        let rendered_before = out.len();
        conn.machine
            .send_reject(reject, &self.rendering.date(), out);
        if self.io.log.is_on() {
            let outcome = Outcome::Rejected;
            let received = Received {
                bytes: data,
                limits: &self.limits(),
            };
            self.io
                .log
                .reject(conn, reject.status, outcome, received, rendered_before, out);
        }
        conn.machine.finish_response()
    }

    /// Sends an error response outside the request loop, and ends the connection. `outcome` is
    /// recorded in the access log.
    pub(in crate::engine) fn reject_request(
        self: &Rc<Self>,
        id: ConnId,
        reject: Reject,
        outcome: Outcome,
    ) {
        let mut out = Vec::new();
        let after = {
            let mut conns = self.conns.borrow_mut();
            conns.unlist(id);
            let Some(conn) = conns.get(id) else { return };
            conn.machine
                .send_reject(reject, &self.rendering.date(), &mut out);
            if self.io.log.is_on() {
                let received = conn
                    .active
                    .as_ref()
                    .and_then(|active| active.wire.input.front());
                let received = received.cloned();
                let received = Received {
                    bytes: received.as_deref().unwrap_or_default(),
                    limits: &self.limits(),
                };
                self.io
                    .log
                    .reject(conn, reject.status, outcome, received, 0, &out);
            }
            conn.machine.finish_response()
        };
        self.counters.rejected.count(Refusal::of(reject.status));
        diagnose!(DEBUG, connection = id.token(), status = reject.status, reason = reject.reason;
            "request rejected");
        self.send_then(id, &out, AfterFlush::following(after, false));
    }
}
