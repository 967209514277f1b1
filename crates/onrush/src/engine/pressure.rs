//! Handles a shortage of receive memory: the engine evicts the oldest partial heads, does not
//! receive bodies ahead of their handlers, and accepts no requests with new bodies.
//!
//! Two thresholds divide the worker's budget. Above [`BODIES_MARK`], a connection that is not idle
//! keeps one piece of input and is paused. If memory other than that of partial heads exceeds this
//! threshold, new requests with a body receive a 503. Above [`HEADS_MARK`], partial heads are
//! evicted with a 408 each, until usage is at the threshold. The memory above it is a reserve for
//! complete requests. Partial heads are in two lists, each in order of age. Large heads are evicted
//! before small ones, so that clients that send much cannot displace slow clients that send little.
//! A part of a TLS record is treated like a partial head, also one of a body: it cannot be passed
//! on before the rest has arrived.
//!
//! Rendered responses that clients do not read count in the same budget, together with the requests
//! that were sent behind them. When they hold more memory than partial heads do, their connections
//! are reset instead. The first is the one whose client has read nothing for the longest time; see
//! [`Engine::evict_unread`]. Larger content of a handler is not rendered: it is the handler's
//! memory and does not count. Files do not use this memory.

use super::Engine;
use super::connection::Conn;
use super::request_body::AHEAD_BYTES_MAX;
use super::state::AfterFlush;
use crate::host::ConnId;
use crate::log::Outcome;
use crate::metrics::{CloseReason, Refusal};
use crate::request::RequestParts;
use onrush_proto::reject::Reject;
use onrush_rt::buf::BufferPool;
use onrush_rt::{diagnose, user};
use std::io;
use std::rc::Rc;

/// The part of the budget above which nothing is received ahead of handlers, in eighths.
const BODIES_MARK: usize = 6;
/// The part of the budget above which partial heads are evicted, in eighths.
const HEADS_MARK: usize = 7;
/// The upper bound for [`pending_with_blocks_max`].
const PENDING_WITH_BLOCKS_MAX: usize = 64;

/// The number of pending handlers that may keep whole blocks of `pool`. Their blocks must not use
/// up most of a small budget. The requests of further handlers are copied to blocks of just their
/// size.
pub(super) fn pending_with_blocks_max(pool: &BufferPool) -> usize {
    let fourth = pool.budget().max_bytes() / 4 / pool.block_bytes();
    fourth.clamp(1, PENDING_WITH_BLOCKS_MAX)
}

impl Engine {
    #[inline]
    fn is_above(&self, mark: usize) -> bool {
        let pool = self.context.pool();
        let (budget, unsent) = (pool.budget(), self.unsent_bytes.get());
        let most = budget.max_bytes() / 8 * mark;
        // The bytes held never exceed the bytes charged, which are known without a look at the free
        // blocks.
        budget.used_bytes() + unsent > most && pool.held_bytes() + unsent > most
    }

    /// Whether new bodies would use the memory that is left for complete requests and partial
    /// heads.
    pub(super) fn is_short_for_bodies(&self) -> bool {
        let listed_bytes = || self.conns.borrow().listed_input_bytes();
        let pool = self.context.pool();
        let most = pool.budget().max_bytes() / 8 * BODIES_MARK;
        self.is_above(BODIES_MARK) && pool.held_bytes().saturating_sub(listed_bytes()) > most
    }

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
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id)?;
        if self.log.is_on() {
            self.log.begin(conn, &parts.head, head_bytes);
        }
        self.request_pool.give(parts);
        let rendered_before = out.len();
        conn.machine.send_reject(reject, &self.date(), out);
        if self.log.is_on() {
            self.log
                .respond_whole(conn, reject.status, rendered_before, out);
        }
        let after = conn.machine.finish_response();
        self.counters.rejected.count(Refusal::of(reject.status));
        Some(AfterFlush::following(after, true))
    }

    /// The bytes that may be received ahead for a connection before its client is slowed down.
    pub(super) fn ahead_bytes_max(&self) -> usize {
        match self.is_short() {
            true => 1,
            false => AHEAD_BYTES_MAX,
        }
    }

    /// Evicts partial heads and clients that do not read their responses, until memory usage is at
    /// the threshold for heads or no such connection is left. Called once per event-loop iteration,
    /// and after storing a partial head, input, or an unsent response.
    #[inline]
    pub(super) fn reclaim_memory(self: &Rc<Self>) {
        if !self.is_above(HEADS_MARK) {
            if self.ahead_paused.get() && !self.is_short() {
                self.ahead_paused.set(false);
            }
            return;
        }
        while self.is_above(HEADS_MARK) {
            let (head, unread, unread_first) = {
                let conns = self.conns.borrow();
                let unread_first = conns.is_mostly_unread();
                (conns.head_to_evict(), conns.unread_to_evict(), unread_first)
            };
            match (head, unread) {
                (_, Some(id)) if unread_first => self.evict_unread(id),
                (Some(id), _) => self.evict_head(id),
                (None, Some(id)) => self.evict_unread(id),
                (None, None) => return self.pause_all_ahead(),
            }
        }
    }

    /// Resets a connection whose client sends requests and does not read the responses.
    fn evict_unread(&self, id: ConnId) {
        self.counters.evicted.add(1);
        self.abort(id, CloseReason::Exhausted);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a client that does not read is reset");
    }

    /// Whether receive memory is short.
    pub(super) fn is_short(&self) -> bool {
        self.is_above(BODIES_MARK)
    }

    /// Evicts a partial head. Frees its memory at once, and ends its connection with a 408 (RFC
    /// 9110, section 15.5.9).
    fn evict_head(self: &Rc<Self>, id: ConnId) {
        let input = {
            let mut conns = self.conns.borrow_mut();
            conns.unlist(id);
            let Some(conn) = conns.get(id) else { return };
            if conn.state.is_handshaking() || conn.state.is_in_proxy_header() {
                drop(conns);
                self.counters.evicted.add(1);
                return self.abort(id, CloseReason::Exhausted);
            }
            conn.transport.drop_received();
            if conn.state.is_busy() {
                drop(conns);
                return self.fail_evicted_body(id);
            }
            let active = conn.active();
            active.wire.input_bytes = 0;
            std::mem::take(&mut active.wire.input)
        };
        drop(input);
        self.counters.evicted.add(1);
        let reject = Reject::new(408, "server is low on memory");
        self.reject_request(id, reject, Outcome::Evicted);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a partial request head is evicted");
    }

    /// Fails the body of a request whose last record was incomplete and has been evicted. The
    /// response is the last one of the connection.
    fn fail_evicted_body(&self, id: ConnId) {
        self.counters.evicted.add(1);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a part of a record is evicted");
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.machine.close_after_next();
            if !conn.machine.body_ended() {
                let reject = Reject::new(503, "server is low on memory");
                (conn.active().exchange).fail_body(io::ErrorKind::OutOfMemory, reject);
            }
            self.deadlines.take_reader(id, conn)
        };
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
        let ids = self.conns.borrow().ids();
        for id in ids {
            if let Some(conn) = self.conns.borrow_mut().get(id) {
                self.pause_ahead(id, conn);
            }
        }
    }

    /// Pauses a connection that has just become busy, if memory is short.
    pub(super) fn pause_if_short(&self, id: ConnId, conn: &mut Conn) {
        if self.is_short() {
            self.pause_ahead(id, conn);
        }
    }

    pub(super) fn pause_ahead(&self, id: ConnId, conn: &mut Conn) {
        let at_work = conn.state.phase().has_request();
        let awaited = (conn.active.as_ref()).is_some_and(|active| active.exchange.reader.is_some());
        if at_work && !awaited && !conn.state.is_paused() && !conn.state.has_ended() {
            self.pause_receiving(id, conn);
        }
    }

    /// Pauses receiving for a connection that has enough input. The driver still reports its end: a
    /// handler must not continue for a client that has reset the connection.
    pub(super) fn pause_receiving(&self, id: ConnId, conn: &mut Conn) {
        let bytes = conn.active().wire.input_bytes;
        diagnose!(DEBUG, connection = id.token(), input_bytes = bytes; "receiving paused");
        let mut driver = self.context.driver();
        conn.state.pause_receiving(driver.pause(conn.stream));
        driver.watch_end(conn.stream);
    }
}
