//! Input that was received and is not processed yet: its queue, and the memory that it holds.
//!
//! The parser needs a head in one piece, so a head that arrives in several is joined. Few bytes are
//! copied to a small block; otherwise each slow client and each pending handler would hold a whole
//! block of the worker's pool.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::Expects;
use crate::engine::lifecycle::Engine;
use crate::log::Outcome;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use std::rc::Rc;
use std::task::Waker;

/// The result of [`Engine::next_input`].
pub(super) enum NextInput {
    Data(Buf),
    /// Nothing was received that is not processed.
    Empty,
    /// The connection has ended.
    Gone,
}

impl From<Option<Buf>> for NextInput {
    fn from(data: Option<Buf>) -> NextInput {
        data.map_or(NextInput::Empty, NextInput::Data)
    }
}

impl Engine {
    /// Whether there may be queued input; `None` when the connection is gone.
    #[inline]
    pub(super) fn may_have_queued_input(&self, id: ConnId) -> Option<bool> {
        Some(self.conns.borrow_mut().get(id)?.active.is_some())
    }

    /// Whether input is queued.
    pub(in crate::engine) fn has_queued_input(&self, id: ConnId) -> bool {
        let mut conns = self.conns.borrow_mut();
        (conns.get(id)).is_some_and(|conn| conn.input_bytes() > 0)
    }

    /// Returns the input to parse next. Inside a head, `data` is queued and joined to the head.
    /// Otherwise nothing is queued when `data` arrives, so `data` is returned as it is.
    #[inline(never)]
    pub(super) fn next_input(self: &Rc<Self>, id: ConnId, data: Option<Buf>) -> NextInput {
        let data = data.filter(|data| !data.is_empty());
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return NextInput::Gone;
        };
        let Some(active) = conn.active.as_mut() else {
            return data.into();
        };
        if conn.state.expects() == Expects::Head {
            if let Some(data) = data {
                active.wire.push_input(data);
            }
            if let Ok(joined) = self.memory.join_head(&mut active.wire) {
                return joined.into();
            }
            drop(conns);
            return self.join_head_after_reclaim(id);
        }
        match data {
            Some(data) => NextInput::Data(data),
            None => active.wire.pop_input().into(),
        }
    }

    /// Calls `join_head` again after older heads have been evicted. The eviction may
    /// close this connection, too.
    #[cold]
    fn join_head_after_reclaim(self: &Rc<Self>, id: ConnId) -> NextInput {
        self.reclaim_memory();
        let joined = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id).filter(|conn| conn.state.is_ready()) else {
                return NextInput::Gone;
            };
            self.memory.join_head(&mut conn.active().wire)
        };
        let Ok(joined) = joined else {
            let reject = Reject::new(503, "server is low on memory");
            self.reject_request(id, reject, Outcome::Evicted);
            return NextInput::Gone;
        };
        joined.into()
    }

    /// Puts a partial head at the front of the queue until more of it arrives. Starts the time
    /// limit of the head, and copies few bytes to a small block.
    pub(in crate::engine) fn queue_partial_head(&self, id: ConnId, conn: &mut Conn, data: Buf) {
        if conn.state.expects() != Expects::Head {
            conn.state.expect_head();
            self.deadlines()
                .set_timeout(id, conn, self.limits().head_timeout_ms);
        }
        let data = self.memory.copy_if_small(data);
        conn.active().wire.unpop_input(data);
    }

    /// Queues input of a connection that is not idle. Pauses receiving when the client is far ahead
    /// of the handler. Returns the waker of the handler if it waits for input.
    pub(super) fn queue_input(&self, id: ConnId, conn: &mut Conn, data: Buf) -> Option<Waker> {
        let waker = self.deadlines().take_reader(id, conn);
        let active = conn.active();
        active
            .wire
            .gather_input(data, self.context.pool().block_bytes());
        if active.wire.input_bytes >= self.memory.ahead_bytes_max() && !conn.state.is_paused() {
            self.memory.pause_receiving(id, conn);
        }
        waker
    }
}
