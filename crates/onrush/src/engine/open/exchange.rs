//! The begin and the end of a request on its connection.

use crate::connections::ConnId;
use crate::engine::connection::{Conn, Responding};
use crate::engine::open::{OpenConn, OpenConns};
use onrush_proto::connection::After;
use onrush_proto::head::Head;

impl OpenConns {
    /// Records the start of a request in the access log.
    #[inline(never)]
    pub(in crate::engine) fn log_request(&self, id: ConnId, head: &Head, bytes: &[u8]) {
        if let Some(mut conn) = self.open(id) {
            self.io.log.begin(&mut conn, head, bytes);
        }
    }

    /// Starts to measure a request. `may_be_tls`: the server has TLS, so the connection is looked
    /// up. `bytes`: the bytes that `head` refers to.
    #[inline(never)]
    pub(in crate::engine) fn measure(
        &self,
        id: ConnId,
        may_be_tls: bool,
        head: &Head,
        bytes: &[u8],
    ) {
        let is_tls = |conn: OpenConn<'_>| conn.transport.is_tls();
        let is_tls = may_be_tls && self.open(id).is_some_and(is_tls);
        self.io.measurements.begin(head, bytes, is_tls);
    }

    /// Counts requests that a connection has started in this iteration, for
    /// [`BURST_MAX`](crate::engine::connection::BURST_MAX).
    #[inline(never)]
    pub(in crate::engine) fn note_started(&self, id: ConnId, requests: usize) {
        if let Some(mut conn) = self.open(id) {
            let requests = u8::try_from(requests).unwrap_or(u8::MAX);
            conn.note_started(self.context.iteration(), requests);
        }
    }

    /// Whether a response is the last one of its connection while the server drains: no request was
    /// pipelined behind it before the drain began.
    #[cold]
    pub(in crate::engine) fn is_last(&self, id: ConnId, conn: &Conn, behind: usize) -> bool {
        let received = (behind + conn.input_bytes()) as u64;
        let is_behind = match conn.machine.body_ended() {
            true => {
                received > 0
                    || conn.transport.is_delivering()
                    || conn.transport.received_len() > 0
                    || self.context.driver().has_unread(conn.stream)
            }
            // The rest of this request's body precedes the next request. Its length must be known,
            // and all of it received.
            false => (conn.machine.body_remaining()).is_some_and(|rest| received > rest),
        };
        !self.shutdown.count_request(id) || !is_behind
    }

    /// A task sends the response of the present request.
    pub(in crate::engine) fn begin_to_send(&self, id: ConnId, responding: Responding) {
        if let Some(mut conn) = self.open(id) {
            conn.active().exchange.responding = responding;
        }
    }

    /// Ends the present request after its response; returns what follows. Its body can no longer be
    /// read.
    #[inline]
    pub(in crate::engine) fn finish_request(&self, conn: &mut Conn) -> After {
        if self.io.measurements.are_on() {
            self.io.measurements.end(conn);
        }
        conn.response_count = conn.response_count.wrapping_add(1);
        conn.machine.finish_response()
    }
}
