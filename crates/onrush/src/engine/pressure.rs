//! Handles a shortage of receive memory: the engine evicts the oldest partial heads, does not
//! receive bodies ahead of their handlers, and accepts no requests with new bodies.
//!
//! Two thresholds divide the worker's budget. Above the first, a connection that is not idle
//! keeps one piece of input and is paused. If memory other than that of partial heads exceeds this
//! threshold, new requests with a body receive a 503. Above the second, partial heads are
//! evicted with a 408 each, until usage is at the threshold. The memory above it is a reserve for
//! complete requests. Partial heads are in two lists, each in order of age. Large heads are evicted
//! before small ones, so that clients that send much cannot displace slow clients that send little.
//! A part of a TLS record is treated like a partial head, also one of a body: it cannot be passed
//! on before the rest has arrived.
//!
//! Rendered responses that clients do not read count in the same budget, together with the requests
//! that were sent behind them. When they hold more memory than partial heads do, their connections
//! are reset instead. The first is the one whose client has read nothing for the longest time; see
//! [`Engine::evict_unread`]. Larger content of a handler is not rendered: in HTTP/1, where
//! a connection has one at a time, it does not count. In HTTP/2 it does, if nobody else holds it.
//! Files do not use this memory.

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::evictable::Victim;
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::Engine;
use crate::engine::open::OpenConn;
use crate::log::Outcome;
use crate::metrics::{CloseReason, Refusal};
use crate::request::RequestParts;
use onrush_proto::http2::frame::ErrorCode;
use onrush_proto::reject::Reject;
use onrush_rt::{diagnose, user};
use std::io;
use std::rc::Rc;

impl Engine {
    /// Responds with 503 (RFC 9110, section 15.6.4) to a request whose body does not fit into
    /// memory. Returns what follows, or `None` when the connection is gone.
    #[cold]
    #[inline(never)]
    pub(super) fn shed_body(
        &self,
        id: ConnId,
        parts: Box<RequestParts>,
        head_bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<AfterFlush> {
        let reject = Reject::new(503, "server is low on memory");
        let after = (self.conns.open(id)?).shed_body(reject, (&parts.head, head_bytes), out);
        self.request_pool.give(parts);
        self.counters.rejected.count(Refusal::of(reject.status));
        Some(AfterFlush::following(after, true))
    }

    /// Evicts partial heads and clients that do not read their responses, until memory usage is at
    /// the threshold for heads or no such connection is left. Called once per event-loop iteration,
    /// and after storing a partial head, input, or an unsent response.
    #[inline]
    pub(super) fn reclaim_memory(self: &Rc<Self>) {
        if !self.conns.memory.is_short_for_heads() {
            if self.ahead_paused.get() && !self.conns.memory.is_short() {
                self.ahead_paused.set(false);
            }
            return;
        }
        while self.conns.memory.is_short_for_heads() {
            match self.conns.take_victim() {
                Some(Victim::Unread(id)) => self.evict_unread(id),
                Some(Victim::Head(id)) => self.evict_head(id),
                None => return self.pause_all_ahead(),
            }
        }
    }

    /// Resets a connection whose client sends requests and does not read the responses. Of HTTP/2,
    /// the stream with the most content that waits, as long as there is one: others may share the
    /// connection.
    fn evict_unread(&self, id: ConnId) {
        self.counters.evicted.add(1);
        let waiting = {
            let conn = self.conns.open(id);
            conn.and_then(|mut conn| {
                conn.unlist();
                conn.http2()?.most_waiting()
            })
        };
        if let Some(stream) = waiting {
            diagnose!(DEBUG, connection = id.token(), stream = stream;
                "receive memory is short, a response that is not read is reset");
            let request = RequestId::of_stream(id, stream);
            self.reset_stream(
                request,
                ErrorCode::ENHANCE_YOUR_CALM,
                CloseReason::Exhausted,
            );
            if let Some(mut conn) = self.conns.open(id) {
                conn.list_waiting();
            }
            return;
        }
        self.abort(id, CloseReason::Exhausted);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a client that does not read is reset");
    }

    /// Evicts a partial head. Frees its memory at once, and ends its connection with a 408 (RFC
    /// 9110, section 15.5.9).
    fn evict_head(self: &Rc<Self>, id: ConnId) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        conn.unlist();
        self.counters.evicted.add(1);
        let is_before_http = conn.state.is_handshaking() || conn.state.is_in_proxy_header();
        if is_before_http || conn.state.has_streams() {
            drop(conn);
            return self.abort(id, CloseReason::Exhausted);
        }
        if conn.state.is_busy() {
            conn.transport.drop_received();
            return self.fail_evicted_body(conn);
        }
        conn.drop_input();
        drop(conn);
        let reject = Reject::new(408, "server is low on memory");
        self.reject_request(id, reject, Outcome::Evicted);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a partial request head is evicted");
    }

    /// Fails the body of a request whose last record was incomplete and has been evicted. The
    /// response is the last one of the connection.
    fn fail_evicted_body(&self, mut conn: OpenConn<'_>) {
        diagnose!(DEBUG, connection = conn.id().token();
            "receive memory is short, a part of a record is evicted");
        conn.machine.close_after_next();
        if !conn.machine.body_ended() {
            let reject = Reject::new(503, "server is low on memory");
            (conn.active().exchange).fail_body(io::ErrorKind::OutOfMemory, reject);
        }
        let reader = conn.take_reader();
        drop(conn);
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }

    /// Pauses all connections with requests in progress whose handlers do not wait for input. Done
    /// once each time that memory becomes short, because it visits all connections.
    fn pause_all_ahead(&self) {
        if self.ahead_paused.replace(true) {
            return;
        }
        for id in self.conns.ids() {
            if let Some(mut conn) = self.conns.open(id) {
                conn.pause_ahead();
            }
        }
    }
}
