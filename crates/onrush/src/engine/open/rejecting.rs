//! Responses to request heads that break a rule, arrive too slowly, or do not fit into memory. They
//! are made without a handler.

use crate::connections::ConnId;
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::exchange_log::Received;
use crate::log::Outcome;
use onrush_proto::connection::After;
use onrush_proto::head::Head;
use onrush_proto::reject::Reject;

impl OpenConns {
    /// As [`OpenConn::reject_head`].
    #[cold]
    pub(in crate::engine) fn reject_head(
        &self,
        id: ConnId,
        reject: Reject,
        outcome: Outcome,
        received: &[u8],
        out: &mut Vec<u8>,
    ) -> After {
        let conn = self.open(id);
        conn.map_or(After::Close, |mut conn| {
            conn.reject_head(reject, outcome, received, out)
        })
    }
}

impl OpenConn<'_> {
    /// Renders the response to a head that breaks a rule into `out`, and waits for no more of the
    /// head; returns what follows. `received`: the known part of the head. `outcome` is recorded in
    /// the access log.
    #[cold]
    #[inline(never)]
    pub(in crate::engine) fn reject_head(
        &mut self,
        reject: Reject,
        outcome: Outcome,
        received: &[u8],
        out: &mut Vec<u8>,
    ) -> After {
        self.unlist();
        let (all, rendered_before) = (self.all, out.len());
        (self.machine).send_reject(reject, &all.rendering.date(), out);
        if all.io.log.is_on() {
            let received = Received {
                bytes: received,
                limits: &all.limits.get(),
            };
            let log = &all.io.log;
            log.reject(self, reject.status, outcome, received, rendered_before, out);
        }
        self.machine.finish_response()
    }

    /// Renders the response to a request whose body does not fit into memory; returns what follows
    /// it. `bytes`: those of the head.
    #[cold]
    pub(in crate::engine) fn shed_body(
        &mut self,
        reject: Reject,
        (head, bytes): (&Head, &[u8]),
        out: &mut Vec<u8>,
    ) -> After {
        let (all, rendered_before) = (self.all, out.len());
        let log = &all.io.log;
        if log.is_on() {
            log.begin(self, head, bytes);
        }
        (self.machine).send_reject(reject, &all.rendering.date(), out);
        if log.is_on() {
            log.respond_whole(self, reject.status, rendered_before, out);
        }
        self.machine.finish_response()
    }
}
