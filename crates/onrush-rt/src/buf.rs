//! Receive memory: blocks from a per-worker pool, and cheap counted views into them.
//!
//! A [`Block`] has one owner and is writable; turned into a [`Buf`], it is shared and read-only.
//! Dropping the last view returns the block to its pool's free list, last in first out, so that the
//! next block used is still in the cache. Every block is charged to the worker's [`Budget`]. When
//! the budget is used up, [`BufferPool::take`] returns `None` and the caller waits.
//!
//! Does not depend on sockets, rings or HTTP.
#![allow(unsafe_code)]

mod budget;
#[cfg(test)]
mod tests;

pub use budget::{Budget, Reservation};

use std::alloc::{self, Layout};
use std::cell::{Cell, RefCell};
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::rc::Rc;

/// Precedes the bytes of every block.
struct Header {
    /// Number of views; 1 while a `Block` owns it.
    refs: Cell<u32>,
    /// Bytes that follow this header.
    capacity: u32,
    /// The pool that the block returns to; `None` only while it is in the free list.
    pool: Cell<Option<BufferPool>>,
}

const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(16);

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(HEADER_BYTES + capacity, 16).expect("block size fits an address space")
}

/// A pool of equal blocks for one worker, and of other sizes on demand. Clones share the pool.
#[derive(Clone)]
pub struct BufferPool(Rc<BufferPoolInner>);

struct BufferPoolInner {
    block_bytes: usize,
    /// Blocks kept for reuse, at most; others are freed.
    free_limit: usize,
    /// `free_limit`, or 0 while the budget is exceeded.
    free_max: Cell<usize>,
    free: RefCell<Vec<NonNull<Header>>>,
    budget: Rc<Budget>,
}

impl BufferPool {
    /// A pool of blocks of `block_bytes`, keeping up to `free_max` unused ones.
    pub fn new(block_bytes: usize, free_max: usize, budget: Rc<Budget>) -> BufferPool {
        BufferPool(Rc::new(BufferPoolInner {
            block_bytes,
            free_limit: free_max,
            free_max: Cell::new(free_max),
            free: RefCell::default(),
            budget,
        }))
    }

    /// The size of a standard block, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// The budget this pool charges.
    pub fn budget(&self) -> &Rc<Budget> {
        &self.0.budget
    }

    /// A standard block, or `None` when the budget is used up.
    #[inline]
    pub fn take(&self) -> Option<Block> {
        let free = self.0.free.borrow_mut().pop();
        match free {
            Some(header) => {
                // SAFETY: pointers in the free list are live blocks without other references.
                unsafe { header.as_ref() }.pool.set(Some(self.clone()));
                Some(Block { header, len: 0 })
            }
            None => self.allocate(self.0.block_bytes),
        }
    }

    /// A block of at least `bytes`; `None` when the budget is used up, and from 4 GiB on.
    pub fn take_sized(&self, bytes: usize) -> Option<Block> {
        if bytes <= self.0.block_bytes {
            self.take()
        } else {
            self.allocate(bytes)
        }
    }

    /// A block of exactly `bytes`, to keep a few bytes without a standard block; `None` when the
    /// budget is used up, and from 4 GiB on.
    pub fn take_exact(&self, bytes: usize) -> Option<Block> {
        self.allocate(bytes)
    }

    /// A standard block, even if the rest of the budget is smaller; `None` when the budget is used
    /// up to the last byte. At most one such block exceeds the budget at any time.
    pub(crate) fn take_last(&self) -> Option<Block> {
        self.take().or_else(|| {
            let charged = self.0.budget.overdraw(HEADER_BYTES + self.0.block_bytes);
            // The next block that is dropped must bring the budget back below its cap.
            charged.then(|| self.0.free_max.set(0));
            charged.then(|| self.make(self.0.block_bytes))
        })
    }

    /// Bytes of the budget in use: charged, and not in the free list.
    pub fn held_bytes(&self) -> usize {
        let unused = self.0.free.borrow().len() * (HEADER_BYTES + self.0.block_bytes);
        self.0.budget.used_bytes().saturating_sub(unused)
    }

    /// Charges `bytes` to the budget until the result is dropped; `None` when the budget is used
    /// up.
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        self.charge(bytes).then(|| Reservation {
            budget: self.0.budget.clone(),
            bytes,
        })
    }

    #[inline(never)]
    fn allocate(&self, bytes: usize) -> Option<Block> {
        u32::try_from(bytes).ok()?;
        self.charge(HEADER_BYTES + bytes).then(|| self.make(bytes))
    }

    /// Charges `bytes`, after unused blocks have been freed if that is necessary.
    fn charge(&self, bytes: usize) -> bool {
        if self.0.budget.charge(bytes) {
            return true;
        }
        // Unused standard blocks must not keep another size from being allocated.
        for header in self.0.free.take() {
            // SAFETY: unused blocks belong to the free list alone, which is empty now.
            unsafe { free(header, &self.0) };
        }
        self.0.budget.charge(bytes)
    }

    /// A new block of `bytes`. The caller has charged them, and the header.
    fn make(&self, bytes: usize) -> Block {
        let capacity = u32::try_from(bytes).expect("blocks are smaller than 4 GiB");
        // SAFETY: the layout is not empty. Zeroed, so that the bytes may be handed out as a slice.
        let memory = unsafe { alloc::alloc_zeroed(layout(bytes)) };
        let Some(header) = NonNull::new(memory.cast::<Header>()) else {
            alloc::handle_alloc_error(layout(bytes));
        };
        let pool = Cell::new(Some(self.clone()));
        // SAFETY: freshly allocated, large and aligned enough for a header.
        unsafe {
            header.write(Header {
                refs: Cell::new(1),
                capacity,
                pool,
            })
        };
        Block { header, len: 0 }
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferPool")
            .field("block_bytes", &self.0.block_bytes)
            .finish_non_exhaustive()
    }
}

impl Drop for BufferPoolInner {
    fn drop(&mut self) {
        for header in self.free.take() {
            // SAFETY: unused blocks belong to the free list alone, which is empty now.
            unsafe { free(header, self) };
        }
    }
}

/// Frees a block.
///
/// # Safety
/// `header` is a live block without references.
unsafe fn free(header: NonNull<Header>, pool: &BufferPoolInner) {
    // SAFETY: live by this function's contract.
    let capacity = unsafe { header.as_ref() }.capacity as usize;
    pool.budget.refund(HEADER_BYTES + capacity);
    if pool.budget.used_bytes() <= pool.budget.max_bytes() {
        pool.free_max.set(pool.free_limit);
    }
    // SAFETY: allocated with this very layout, not used after this.
    unsafe {
        header.drop_in_place();
        alloc::dealloc(header.as_ptr().cast(), layout(capacity));
    }
}

/// Called by the last owner of a block. Not inlined, so that dropping one of several views costs no
/// more than the counter.
#[inline(never)]
fn recycle(header: NonNull<Header>) {
    // SAFETY: the caller was the last owner, so the block is live and unshared.
    let (pool, capacity) = unsafe {
        let header = header.as_ref();
        (header.pool.take(), header.capacity as usize)
    };
    let pool = pool.expect("a block in use knows its pool");
    let mut list = pool.0.free.borrow_mut();
    if capacity == pool.0.block_bytes && list.len() < pool.0.free_max.get() {
        list.push(header);
    } else {
        // SAFETY: as above; it is not in the free list.
        unsafe { free(header, &pool.0) };
    }
}

/// Memory with one owner: it is filled, then shared as a [`Buf`].
pub struct Block {
    header: NonNull<Header>,
    /// Bytes filled, from the start.
    len: u32,
}

impl Block {
    /// Size of the memory, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        // SAFETY: a block's header lives as long as the block.
        unsafe { self.header.as_ref() }.capacity as usize
    }

    /// Bytes filled so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no byte has been filled.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn data(&self) -> NonNull<u8> {
        data(self.header)
    }

    /// Address of the memory for the kernel to write to. Valid until the block is dropped.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.data().as_ptr()
    }

    /// The filled bytes.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: `len <= capacity`, all bytes are initialised, and nothing writes to them.
        unsafe { std::slice::from_raw_parts(self.data().as_ptr(), self.len()) }
    }

    /// The filled bytes, to be changed in place: decryption replaces them.
    #[inline]
    pub fn filled_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `filled`, and borrowed mutably through `self`, the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.data().as_ptr(), self.len()) }
    }

    /// The bytes that are not filled yet.
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        let room = self.capacity() - self.len();
        // SAFETY: within the capacity, initialised, and borrowed mutably through `self`.
        unsafe { std::slice::from_raw_parts_mut(self.data().as_ptr().add(self.len()), room) }
    }

    /// Marks `bytes` of the spare capacity as filled.
    ///
    /// # Panics
    /// When the spare capacity is smaller.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.capacity() - self.len());
        self.len += bytes as u32;
    }

    /// Copies as much of `bytes` as fits; returns the number of bytes copied.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let spare = self.spare();
        let n = bytes.len().min(spare.len());
        spare[..n].copy_from_slice(&bytes[..n]);
        self.advance(n);
        n
    }

    /// Shares the filled bytes.
    #[inline]
    pub fn into_buf(self) -> Buf {
        let buf = Buf {
            header: self.header,
            start: 0,
            len: self.len,
        };
        std::mem::forget(self);
        buf
    }
}

#[inline]
fn data(header: NonNull<Header>) -> NonNull<u8> {
    // SAFETY: every block is allocated with its bytes right behind the header.
    unsafe { header.cast::<u8>().add(HEADER_BYTES) }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        recycle(self.header);
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} of {} bytes)", self.len, self.capacity())
    }
}

/// A counted, read-only view into a block. Cloning and slicing copy no bytes. Not `Send`: it
/// belongs to its worker.
///
/// # Examples
/// ```
/// use onrush_rt::buf::{Budget, BufferPool};
///
/// let pool = BufferPool::new(4_096, 16, Budget::new(1 << 20));
/// let mut block = pool.take().expect("the budget is not used up");
/// block.extend(b"GET /index HTTP/1.1");
/// let head = block.into_buf();
/// let target = head.slice(4..10);
/// drop(head);
/// assert_eq!(&*target, b"/index"); // The view keeps its block.
/// ```
pub struct Buf {
    header: NonNull<Header>,
    start: u32,
    len: u32,
}

impl Buf {
    /// The given part of this view.
    ///
    /// # Panics
    /// When the range does not lie within the view.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Buf {
        assert!(range.end <= self.len as usize);
        let mut part = self.clone();
        part.truncate(range.end);
        part.advance(range.start);
        part
    }

    /// Drops the first `bytes` from the view.
    ///
    /// # Panics
    /// When the view is shorter.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len as usize);
        self.start += bytes as u32;
        self.len -= bytes as u32;
    }

    /// Keeps only the first `bytes`; no change when the view is shorter.
    #[inline]
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes.min(u32::MAX as usize) as u32);
    }

    /// The size of the block that this view keeps from being reused, in bytes.
    pub fn block_bytes(&self) -> usize {
        // SAFETY: the view keeps its block alive.
        unsafe { self.header.as_ref() }.capacity as usize
    }

    /// Takes the memory back for writing if this is its only view. The viewed bytes are moved to
    /// the front.
    pub fn try_into_block(self) -> Result<Block, Buf> {
        // SAFETY: the view keeps its block alive.
        if unsafe { self.header.as_ref() }.refs.get() != 1 {
            return Err(self);
        }
        let block = Block {
            header: self.header,
            len: self.len,
        };
        let start = data(self.header).as_ptr();
        // SAFETY: both ranges lie within the block, of which this is the only view.
        unsafe { std::ptr::copy(start.add(self.start as usize), start, self.len as usize) };
        std::mem::forget(self);
        Ok(block)
    }
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start + len` lies within the filled part of a block that this view keeps alive,
        // and a block with views is not written to.
        unsafe {
            let first = data(self.header).as_ptr().add(self.start as usize);
            std::slice::from_raw_parts(first, self.len as usize)
        }
    }
}

impl Clone for Buf {
    #[inline]
    fn clone(&self) -> Buf {
        // SAFETY: the view keeps its block alive.
        let refs = &unsafe { self.header.as_ref() }.refs;
        refs.set(refs.get().checked_add(1).expect("fewer than 2^32 views"));
        Buf {
            header: self.header,
            start: self.start,
            len: self.len,
        }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the view keeps its block alive until here.
        let refs = &unsafe { self.header.as_ref() }.refs;
        let left = refs.get() - 1;
        if left == 0 {
            // The free list expects a count of 1.
            recycle(self.header);
        } else {
            refs.set(left);
        }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
