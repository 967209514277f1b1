//! Responses to request heads that break a rule or arrive too slowly. The engine generates them
//! without a handler, and the connection ends.

use crate::connections::ConnId;
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::Engine;
use crate::log::Outcome;
use crate::metrics::Refusal;
use onrush_proto::reject::Reject;
use onrush_rt::diagnose;
use std::rc::Rc;

impl Engine {
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
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let active = conn.active.as_ref();
            let received = active.and_then(|active| active.wire.input.front().cloned());
            conn.reject_head(
                reject,
                outcome,
                received.as_deref().unwrap_or_default(),
                &mut out,
            )
        };
        self.counters.rejected.count(Refusal::of(reject.status));
        diagnose!(DEBUG, connection = id.token(), status = reject.status, reason = reject.reason;
            "request rejected");
        self.send_then(id, &out, AfterFlush::following(after, false));
    }
}
