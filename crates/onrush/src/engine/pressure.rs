//! What happens when receive memory runs short: the oldest partial heads are evicted, and bodies
//! are neither received ahead of their handlers nor begun.
//!
//! Two marks below the cap of the worker's budget divide it. Above [`BODIES_MARK`] a connection at
//! work keeps one piece of input and is paused. If what lies above that mark is not held by partial
//! heads, new requests with a body are answered 503. Above [`HEADS_MARK`] partial heads are
//! evicted, each answered 408, until the mark is reached; what lies above it is the reserve, from
//! which whole requests are received. Partial heads are listed in two lists, each in order of age:
//! large ones go before small ones, so that clients that send much cannot displace slow clients
//! that send little.
//!
//! Rendered responses that clients do not take count in the same budget, with the requests that
//! were sent behind them. When they hold more than partial heads do, their connections are reset
//! instead, the one whose client has taken nothing for the longest time first: see
//! [`Engine::evict_unread`]. Larger content that a handler made is not rendered: it is the
//! handler's memory and does not count. Files are not memory.
//!
//! Must not know how heads are parsed.

use super::Engine;
use super::connection::{Conn, Phase, Then};
use super::request_body::AHEAD_BYTES_MAX;
use crate::host::ConnId;
use crate::log::Outcome;
use crate::metrics::{CloseReason, Refusal};
use crate::request::RequestParts;
use onrush_proto::reject::Reject;
use onrush_rt::buf::BufferPool;
use onrush_rt::diagnose;
use std::rc::Rc;

/// The part of the budget above which nothing is received ahead of a handler, in eighths.
const BODIES_MARK: usize = 6;
/// The part of the budget above which partial heads are evicted, in eighths.
const HEADS_MARK: usize = 7;
/// So many handlers may keep the whole block in which their request arrived, in any case.
const WAITING_WITH_BLOCKS_MAX: usize = 64;

/// How many waiting handlers may keep whole blocks of `pool`: what they hold must not be most of a
/// small budget. The requests of others are moved to memory of just their size.
pub(super) fn waiting_with_blocks_max(pool: &BufferPool) -> usize {
    let fourth = pool.budget().max_bytes() / 4 / pool.block_bytes();
    fourth.clamp(1, WAITING_WITH_BLOCKS_MAX)
}

impl Engine {
    #[inline]
    fn is_above(&self, mark: usize) -> bool {
        let pool = self.context.pool();
        let (budget, unsent) = (pool.budget(), self.unsent_bytes.get());
        let most = budget.max_bytes() / 8 * mark;
        // No more is held than is charged, which is known without a look at the unused blocks.
        budget.used_bytes() + unsent > most && pool.held_bytes() + unsent > most
    }

    /// Whether new bodies would be held by what is left for whole requests and partial heads.
    pub(super) fn is_short_for_bodies(&self) -> bool {
        let held_by_heads = || self.conns.borrow().head_bytes();
        let pool = self.context.pool();
        let most = pool.budget().max_bytes() / 8 * BODIES_MARK;
        self.is_above(BODIES_MARK) && pool.held_bytes().saturating_sub(held_by_heads()) > most
    }

    /// Answers 503 (RFC 9110, section 15.6.4) to a request whose body there is no memory for; gives
    /// what follows, or `None` when the connection is gone.
    #[cold]
    #[inline(never)]
    pub(super) fn shed_body(
        &self,
        id: ConnId,
        parts: Box<RequestParts>,
        head_bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Then> {
        if self.log.is_some() {
            self.log_request(id, &parts.head, head_bytes);
        }
        self.request_pool.give(parts);
        let reject = Reject::new(503, "server is low on memory");
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id)?;
        let rendered_before = out.len();
        conn.machine.send_reject(reject, &self.date(), out);
        if self.log.is_some() {
            self.log_short_response(conn, reject.status, rendered_before, out);
        }
        let after = conn.machine.finish_response();
        self.counters.rejected.count(Refusal::of(reject.status));
        Some(Then::following(after, true))
    }

    /// Bytes that a connection at work may have received ahead before its client is slowed down.
    pub(super) fn ahead_bytes_max(&self) -> usize {
        match self.is_short() {
            true => 1,
            false => AHEAD_BYTES_MAX,
        }
    }

    /// Brings the memory in use below the mark for heads, as far as partial heads hold it, or
    /// clients that do not take their responses. To be called once per iteration of the event loop,
    /// and after a partial head, input of a connection at work, or a response has been kept.
    #[inline]
    pub(super) fn reclaim_memory(self: &Rc<Self>) {
        if !self.is_above(HEADS_MARK) {
            if self.memory_short.get() && !self.is_short() {
                self.memory_short.set(false);
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
                (Some(id), _) => self.evict(id),
                (None, Some(id)) => self.evict_unread(id),
                (None, None) => return self.pause_all_ahead(),
            }
        }
    }

    /// Resets a connection whose peer sends requests and does not take the responses.
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

    /// Gives up a partial head: its memory at once, its connection after a 408 (RFC 9110,
    /// section 15.5.9).
    fn evict(self: &Rc<Self>, id: ConnId) {
        let input = {
            let mut conns = self.conns.borrow_mut();
            conns.unlist(id);
            let Some(conn) = conns.get(id) else { return };
            let active = conn.active();
            active.input_bytes = 0;
            std::mem::take(&mut active.input)
        };
        drop(input);
        self.counters.evicted.add(1);
        let reject = Reject::new(408, "server is low on memory");
        self.reject_request(id, reject, Outcome::Evicted);
        diagnose!(DEBUG, connection = id.token();
            "receive memory is short, a partial request head is evicted");
    }

    /// Receives nothing more for connections at work whose handlers do not wait for input. Once
    /// each time that memory becomes short, because it looks at all connections.
    fn pause_all_ahead(&self) {
        if self.memory_short.replace(true) {
            return;
        }
        let ids = self.conns.borrow().ids();
        for id in ids {
            if let Some(conn) = self.conns.borrow_mut().get(id) {
                self.pause_ahead(id, conn);
            }
        }
    }

    /// Pauses a connection that has just become busy, when memory is short.
    pub(super) fn pause_if_short(&self, id: ConnId, conn: &mut Conn) {
        if self.is_short() {
            self.pause_ahead(id, conn);
        }
    }

    pub(super) fn pause_ahead(&self, id: ConnId, conn: &mut Conn) {
        let at_work = matches!(conn.phase, Phase::Busy | Phase::Flushing);
        let awaited = (conn.active.as_ref()).is_some_and(|active| active.reader.is_some());
        if at_work && !awaited && !conn.paused && !conn.ended {
            self.pause_receiving(id, conn);
        }
    }
    /// Stops receiving for a connection that has enough input for now. Its end is reported all the
    /// same: a handler must not work on for a client that has reset the connection.
    pub(super) fn pause_receiving(&self, id: ConnId, conn: &mut Conn) {
        conn.paused = true;
        let bytes = conn.active().input_bytes;
        diagnose!(DEBUG, connection = id.token(), input_bytes = bytes; "receiving paused");
        let mut driver = self.context.driver();
        let quiet = driver.pause(conn.stream);
        driver.watch_end(conn.stream);
        conn.active().quiet = quiet;
    }
}
