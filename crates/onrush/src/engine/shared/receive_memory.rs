//! The receive memory of a worker: what of it is used, and how connections hold less of it.
//!
//! Two thresholds divide the worker's budget (`pressure` says what happens above them). Rendered
//! responses that clients do not read count in the same budget.

use crate::engine::connection::Wire;
use crate::engine::connection::promises::Promises;
use onrush_rt::buf::{Block, Buf, BufferPool};
use onrush_rt::worker::WorkerContext;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Body bytes that are received ahead of the handler, per connection, before the client is slowed
/// down.
pub(in crate::engine) const AHEAD_BYTES_MAX: usize = 64 * 1024;
/// The part of the budget above which nothing is received ahead of handlers, in eighths.
const BODIES_MARK: usize = 6;
/// The part of the budget above which partial heads are evicted, in eighths.
const HEADS_MARK: usize = 7;
/// The upper bound for [`pending_with_blocks_max`].
const PENDING_WITH_BLOCKS_MAX: usize = 64;

/// The number of pending handlers that may keep whole blocks of `pool`. Their blocks must not use
/// up most of a small budget. The requests of further handlers are copied to blocks of just their
/// size.
fn pending_with_blocks_max(pool: &BufferPool) -> usize {
    let fourth = pool.budget().max_bytes() / 4 / pool.block_bytes();
    fourth.clamp(1, PENDING_WITH_BLOCKS_MAX)
}

/// The receive memory of the worker is exhausted.
pub(in crate::engine) struct NoMemory;

/// The receive memory of one worker.
pub(in crate::engine) struct ReceiveMemory {
    context: WorkerContext,
    /// Bytes of rendered responses that clients do not read; `evictable` maintains the number.
    unsent_bytes: Rc<Cell<usize>>,
    pub(in crate::engine) promises: Promises,
    /// Pending handlers: they were not ready at once and have not finished.
    pending: Cell<usize>,
    /// The largest number of pending handlers that may keep the whole block in which their request
    /// arrived.
    pending_with_blocks_max: usize,
}

impl ReceiveMemory {
    pub(in crate::engine) fn new(
        context: &WorkerContext,
        unsent_bytes: Rc<Cell<usize>>,
    ) -> ReceiveMemory {
        ReceiveMemory {
            context: context.clone(),
            unsent_bytes,
            promises: Promises::default(),
            pending: Cell::new(0),
            pending_with_blocks_max: pending_with_blocks_max(context.pool()),
        }
    }

    /// The bytes in use.
    pub(in crate::engine) fn used_bytes(&self) -> usize {
        self.context.pool().budget().used_bytes() + self.unsent_bytes.get()
    }

    /// Whether a window may grow by `bytes`: windows that have grown are at most half of the budget
    /// together, so clients that use them do not make memory short.
    pub(in crate::engine) fn may_promise(&self, bytes: usize) -> bool {
        let half = self.context.pool().budget().max_bytes() / 2;
        self.promises.bytes() + bytes <= half && !self.is_short()
    }

    /// A handler is pending, and holds its request.
    pub(in crate::engine) fn begin_pending(&self) {
        self.pending.set(self.pending.get() + 1);
    }

    pub(in crate::engine) fn end_pending(&self) {
        self.pending.set(self.pending.get() - 1);
    }

    #[inline]
    fn is_above(&self, mark: usize) -> bool {
        let pool = self.context.pool();
        let (budget, unsent) = (pool.budget(), self.unsent_bytes.get());
        let most = budget.max_bytes() / 8 * mark;
        // The bytes held never exceed the bytes charged, which are known without a look at the free
        // blocks.
        budget.used_bytes() + unsent > most && pool.held_bytes() + unsent > most
    }

    /// Whether receive memory is short.
    pub(in crate::engine) fn is_short(&self) -> bool {
        self.is_above(BODIES_MARK)
    }

    /// Whether partial heads have to be evicted.
    #[inline]
    pub(in crate::engine) fn is_short_for_heads(&self) -> bool {
        self.is_above(HEADS_MARK)
    }

    /// Whether new bodies would use the memory that is left for complete requests and partial
    /// heads. `listed_bytes`: what connections hold that may be evicted.
    pub(in crate::engine) fn is_short_for_bodies(&self, listed_bytes: impl Fn() -> usize) -> bool {
        let pool = self.context.pool();
        let most = pool.budget().max_bytes() / 8 * BODIES_MARK;
        self.is_above(BODIES_MARK) && pool.held_bytes().saturating_sub(listed_bytes()) > most
    }

    /// The bytes that may be received ahead for a connection before its client is slowed down.
    pub(in crate::engine) fn ahead_bytes_max(&self) -> usize {
        match self.is_short() {
            true => 1,
            false => AHEAD_BYTES_MAX,
        }
    }

    /// Takes the first queued buffer, and the second one joined to it, because a head begins in the
    /// first and continues in the second. Fails when there is no memory for that, and leaves both
    /// queued.
    pub(in crate::engine) fn join_head(&self, wire: &mut Wire) -> Result<Option<Buf>, NoMemory> {
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

    /// Joins the first part of a frame and more of it, in a block with room for `bytes` bytes.
    /// `None` if there is no memory for that.
    pub(in crate::engine) fn join(&self, first: Buf, more: &[u8], bytes: usize) -> Option<Buf> {
        let mut block = match first.try_into_block() {
            Ok(block) if block.capacity() >= bytes => block,
            first => {
                let mut block = self.context.pool().take_exact(bytes)?;
                match first {
                    Ok(first) => block.extend(first.filled()),
                    Err(first) => block.extend(&first),
                };
                block
            }
        };
        block.extend(more);
        Some(block.into_buf())
    }

    /// Adds a piece of a body to a queue. Small pieces are copied together, so that a client that
    /// sends single bytes does not occupy a whole block with each of them.
    pub(in crate::engine) fn gather(&self, queue: &mut VecDeque<Buf>, data: Buf) {
        if data.is_empty() {
            return;
        }
        if data.len() * 4 >= self.context.pool().block_bytes() {
            return queue.push_back(data);
        }
        match queue.pop_back().map(Buf::try_into_block) {
            Some(Ok(mut block)) if block.capacity() - block.len() >= data.len() => {
                block.extend(&data);
                queue.push_back(block.into_buf());
            }
            last => {
                let last = last.map(|last| last.map_or_else(|shared| shared, Block::into_buf));
                queue.extend(last);
                queue.push_back(self.copy_if_small(data));
            }
        }
    }

    /// Splits the head off `data`. Copies both to smaller blocks if many handlers are pending.
    #[inline]
    pub(in crate::engine) fn take_head(&self, data: &mut Buf, head_bytes: usize) -> Buf {
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
    pub(in crate::engine) fn copy_if_small(&self, data: Buf) -> Buf {
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
