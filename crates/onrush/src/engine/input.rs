//! Input that was received and is not processed yet: its queue, and the memory that it holds.
//!
//! The parser needs a head in one piece, so a head that arrives in several is joined. Few bytes are
//! copied to a small block; otherwise each slow client and each pending handler would hold a whole
//! block of the worker's pool.

use super::Engine;
use super::connection::{Conn, Wire};
use super::state::Expects;
use crate::host::ConnId;
use crate::log::Outcome;
use onrush_proto::reject::Reject;
use onrush_rt::buf::{Block, Buf};
use std::rc::Rc;
use std::task::Waker;

/// The receive memory of the worker is exhausted.
pub(super) struct NoMemory;

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
    pub(super) fn has_queued_input(&self, id: ConnId) -> bool {
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
            if let Ok(joined) = self.join_head(&mut active.wire) {
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

    /// Calls [`Engine::join_head`] again after older heads have been evicted. The eviction may
    /// close this connection, too.
    #[cold]
    fn join_head_after_reclaim(self: &Rc<Self>, id: ConnId) -> NextInput {
        self.reclaim_memory();
        let joined = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id).filter(|conn| conn.state.is_ready()) else {
                return NextInput::Gone;
            };
            self.join_head(&mut conn.active().wire)
        };
        let Ok(joined) = joined else {
            let reject = Reject::new(503, "server is low on memory");
            self.reject_request(id, reject, Outcome::Evicted);
            return NextInput::Gone;
        };
        joined.into()
    }

    /// Takes the first queued buffer, and the second one joined to it, because a head begins in the
    /// first and continues in the second. Fails when there is no memory for that, and leaves both
    /// queued.
    pub(super) fn join_head(&self, wire: &mut Wire) -> Result<Option<Buf>, NoMemory> {
        let Some(first) = wire.pop_input() else {
            return Ok(None);
        };
        let Some(second) = wire.pop_input() else {
            return Ok(Some(first));
        };
        let bytes = first.len() + second.len();
        let mut block = match first.try_into_block() {
            Ok(block) if block.capacity() >= bytes => block,
            // Twice the size, so that a head in many pieces is not copied for each of them.
            first => {
                let room = (bytes * 2).max(512);
                let Some(mut block) = self.context.pool().take_exact(room) else {
                    wire.unpop_input(second);
                    wire.unpop_input(first.map_or_else(|shared| shared, Block::into_buf));
                    return Err(NoMemory);
                };
                match first {
                    Ok(first) => block.extend(first.filled()),
                    Err(first) => block.extend(&first),
                };
                block
            }
        };
        block.extend(&second);
        Ok(Some(block.into_buf()))
    }

    /// Puts a partial head at the front of the queue until more of it arrives. Starts the time
    /// limit of the head, and copies few bytes to a small block.
    pub(super) fn queue_partial_head(&self, id: ConnId, conn: &mut Conn, data: Buf) {
        if conn.state.expects() != Expects::Head {
            conn.state.expect_head();
            self.deadlines
                .set_timeout(id, conn, self.limits().head_timeout_ms);
        }
        let data = self.copy_if_small(data);
        conn.active().wire.unpop_input(data);
    }

    /// Queues input of a connection that is not idle. Pauses receiving when the client is far ahead
    /// of the handler. Returns the waker of the handler if it waits for input.
    pub(super) fn queue_input(&self, id: ConnId, conn: &mut Conn, data: Buf) -> Option<Waker> {
        let waker = self.deadlines.take_reader(id, conn);
        let active = conn.active();
        active
            .wire
            .gather_input(data, self.context.pool().block_bytes());
        if active.wire.input_bytes >= self.ahead_bytes_max() && !conn.state.is_paused() {
            self.pause_receiving(id, conn);
        }
        waker
    }

    /// Splits the head off `data`. Copies both to smaller blocks if many handlers are pending.
    #[inline]
    pub(super) fn take_head(&self, data: &mut Buf, head_bytes: usize) -> Buf {
        let bytes = data.slice(0..head_bytes);
        data.advance(head_bytes);
        if self.pending.get() >= self.pending_with_blocks_max {
            return self.copy_head_and_rest_if_small(bytes, data);
        }
        bytes
    }

    /// Copies the head and the input behind it out of their block. Does nothing if there is much
    /// input behind the head, because that needs the block in any case.
    #[inline(never)]
    fn copy_head_and_rest_if_small(&self, bytes: Buf, data: &mut Buf) -> Buf {
        if data.len() * 4 >= self.context.pool().block_bytes() {
            return bytes;
        }
        let bytes = self.copy_head_if_small(bytes);
        *data = match data.is_empty() {
            true => bytes.slice(0..0),
            false => self.copy_if_small(std::mem::replace(data, bytes.slice(0..0))),
        };
        bytes
    }

    /// Copies a small head out of its block. The handler of this request may become pending, too,
    /// and would hold a whole block for its head.
    fn copy_head_if_small(&self, bytes: Buf) -> Buf {
        let small = bytes.len() * 2 <= self.context.pool().block_bytes();
        match small {
            true => self.copy_to_exact_block(bytes.len(), bytes),
            false => bytes,
        }
    }

    /// Returns the same bytes. If there are few bytes, copies them to a small block, so that slow
    /// clients do not hold large blocks.
    pub(super) fn copy_if_small(&self, data: Buf) -> Buf {
        let is_small = data.len() * 4 < self.context.pool().block_bytes();
        match is_small && !data.is_empty() {
            true => self.copy_to_exact_block((data.len() * 2).max(512), data),
            false => data,
        }
    }

    /// Copies the bytes to a new block with room for `room` bytes; returns them unchanged if there
    /// is no memory for that.
    fn copy_to_exact_block(&self, room: usize, bytes: Buf) -> Buf {
        match self.context.pool().take_exact(room) {
            Some(mut block) => {
                block.extend(&bytes);
                block.into_buf()
            }
            None => bytes,
        }
    }
}
