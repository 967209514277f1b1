//! Stacks of one thread's coroutines: taken, returned, and reused, last in first out.
//!
//! A reused stack still has its memory, in the cache. Beyond a limit, returned stacks give their
//! memory back to the kernel, but never their address space. Does not depend on what runs on a
//! stack.
#![allow(unsafe_code)]

use super::memory::{self, Chunk, Guard};
use onrush_rt::sys::{LINE_BYTES, page_bytes, prefetch};
use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Options for the stacks of a thread's coroutines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackOptions {
    /// Address space of one stack, in bytes, rounded up to whole pages; at least 32 KiB. A
    /// coroutine uses only the memory that it touches. Default: 256 KiB.
    pub stack_bytes: usize,
    /// Unused stacks that keep their memory, at most; further ones return it (`MADV_DONTNEED`).
    /// Default: 1024.
    pub kept_max: usize,
}

impl Default for StackOptions {
    fn default() -> Self {
        StackOptions {
            stack_bytes: 256 << 10,
            kept_max: 1024,
        }
    }
}

/// The minimum size of a stack: a panic that prints a backtrace takes 24 KiB of it.
const STACK_BYTES_MIN: usize = 32 << 10;
/// Stacks mapped at a time.
const CHUNK_STACKS: usize = 32;
/// Of this many returned stacks, one is checked for how much of it was touched.
const SAMPLE_EVERY: u32 = 1024;

/// Bytes at the beginning of each stack, above what runs on it, for the user of the stack. One
/// cache line, and a multiple of the required stack alignment.
pub(super) const RESERVED_BYTES: usize = 64;

/// Cache lines at the beginning of a stack that every handler touches.
const BEGIN_LINES: usize = 7;

/// Counters of a thread's stacks. Only that thread writes them, by plain stores; any may read.
#[derive(Debug, Default)]
pub struct StackCounters {
    in_use: AtomicU64,
    pooled: AtomicU64,
    touched_bytes_max: AtomicU64,
}

impl StackCounters {
    /// Stacks in use by coroutines.
    pub fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Stacks that wait for reuse.
    pub fn pooled(&self) -> u64 {
        self.pooled.load(Ordering::Relaxed)
    }

    /// The most memory that any checked stack has touched, in bytes. A sample of stacks is checked
    /// when their coroutine ends (`mincore(2)`).
    pub fn touched_bytes_max(&self) -> u64 {
        self.touched_bytes_max.load(Ordering::Relaxed)
    }

    fn add(cell: &AtomicU64, more: i64) {
        let before = cell.load(Ordering::Relaxed);
        cell.store(before.wrapping_add_signed(more), Ordering::Relaxed);
    }
}

/// Stacks of one size, for one thread. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct StackPool(Rc<StackInner>);

#[derive(Debug)]
struct StackInner {
    /// Without the guard page.
    stack_bytes: usize,
    kept_max: usize,
    guard: Cell<Guard>,
    /// Unused stacks with the memory they have touched; the last is taken next.
    warm: RefCell<Vec<NonZeroUsize>>,
    /// Unused stacks without memory.
    cold: RefCell<Vec<NonZeroUsize>>,
    chunks: RefCell<Vec<Chunk>>,
    released: Cell<u32>,
    counters: Arc<StackCounters>,
}

impl StackPool {
    /// Creates a pool. It maps no stack before the first is taken.
    pub(super) fn new(options: &StackOptions, counters: Arc<StackCounters>) -> StackPool {
        let bytes = options
            .stack_bytes
            .clamp(STACK_BYTES_MIN, isize::MAX as usize / 2);
        StackPool(Rc::new(StackInner {
            stack_bytes: bytes.next_multiple_of(page_bytes()),
            kept_max: options.kept_max,
            guard: Cell::new(Guard::Marked),
            warm: RefCell::default(),
            cold: RefCell::default(),
            chunks: RefCell::default(),
            released: Cell::new(0),
            counters,
        }))
    }

    #[cfg(test)]
    fn counters(&self) -> &Arc<StackCounters> {
        &self.0.counters
    }

    /// A stack that nothing else uses. Fails when no more can be mapped.
    #[inline]
    pub(super) fn take(&self) -> io::Result<Stack> {
        let warm = self.next();
        let base = match warm {
            Some(base) => base,
            None => self.cold()?,
        };
        StackCounters::add(&self.0.counters.pooled, -1);
        StackCounters::add(&self.0.counters.in_use, 1);
        Ok(Stack {
            pool: self.clone(),
            base,
        })
    }

    /// The stack that was returned last. Prefetches the one before, which is taken next if this one
    /// is not back by then.
    #[inline]
    fn next(&self) -> Option<NonZeroUsize> {
        let mut warm = self.0.warm.borrow_mut();
        let taken = warm.pop();
        if let Some(next) = warm.last() {
            prefetch(next.get() - BEGIN_LINES * LINE_BYTES, BEGIN_LINES);
        }
        taken
    }

    #[cold]
    fn cold(&self) -> io::Result<NonZeroUsize> {
        let mut cold = self.0.cold.borrow_mut();
        if let Some(base) = cold.pop() {
            return Ok(base);
        }
        let mut guard = self.0.guard.get();
        let chunk = Chunk::map(CHUNK_STACKS, self.0.stack_bytes, &mut guard)?;
        self.0.guard.set(guard);
        cold.extend(chunk.bases());
        self.0.chunks.borrow_mut().push(chunk);
        StackCounters::add(&self.0.counters.pooled, CHUNK_STACKS as i64);
        cold.pop().ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    #[inline]
    fn give(&self, base: NonZeroUsize) {
        let inner = &*self.0;
        StackCounters::add(&inner.counters.in_use, -1);
        StackCounters::add(&inner.counters.pooled, 1);
        let released = inner.released.get();
        inner.released.set(released.wrapping_add(1));
        if released.is_multiple_of(SAMPLE_EVERY) {
            inner.sample(base);
        }
        let mut warm = inner.warm.borrow_mut();
        if warm.len() < inner.kept_max {
            return warm.push(base);
        }
        drop(warm);
        inner.sample(base);
        // SAFETY: the stack was just given back by its only owner, and its chunk lives.
        unsafe { memory::give_back(base, inner.stack_bytes) };
        inner.cold.borrow_mut().push(base);
    }

    /// The memory of all stacks of this pool, used or not, in bytes.
    pub(super) fn touched_bytes(&self) -> usize {
        let chunks = self.0.chunks.borrow();
        let bases = chunks.iter().flat_map(Chunk::bases);
        bases
            .map(|base| memory::touched_bytes(base, self.0.stack_bytes))
            .sum()
    }
}

impl StackInner {
    #[cold]
    fn sample(&self, base: NonZeroUsize) {
        let touched = memory::touched_bytes(base, self.stack_bytes) as u64;
        let most = &self.counters.touched_bytes_max;
        most.store(touched.max(most.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl Drop for StackInner {
    fn drop(&mut self) {
        let left = self.warm.get_mut().len() + self.cold.get_mut().len();
        StackCounters::add(&self.counters.pooled, -(left as i64));
    }
}

/// A stack with one owner. Dropping it returns it to its pool.
#[derive(Debug)]
pub(super) struct Stack {
    /// Keeps the mapping alive.
    pool: StackPool,
    /// One past its highest byte.
    base: NonZeroUsize,
}

impl Stack {
    /// Its size without the guard page, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.pool.0.stack_bytes
    }

    /// One past its highest byte.
    pub(super) fn base(&self) -> usize {
        self.base.get()
    }
}

impl Drop for Stack {
    #[inline]
    fn drop(&mut self) {
        self.pool.give(self.base);
    }
}

// SAFETY: the `stack_bytes` below `base`, at least `STACK_BYTES_MIN`, are mapped as long as the
// pool lives, belong to this value alone, and have a page below that faults. `base` and limit are
// ends of pages, and the reserved bytes below `base` are a multiple of the alignment.
unsafe impl corosensei::stack::Stack for Stack {
    #[inline]
    fn base(&self) -> NonZeroUsize {
        let below = self.base.get() - RESERVED_BYTES;
        NonZeroUsize::new(below).expect("no mapping is at address 0")
    }

    #[inline]
    fn limit(&self) -> NonZeroUsize {
        let below = self.pool.0.stack_bytes + page_bytes();
        NonZeroUsize::new(self.base.get() - below).expect("no mapping is at address 0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(kept_max: usize) -> StackPool {
        let options = StackOptions {
            stack_bytes: 1,
            kept_max,
        };
        StackPool::new(&options, Arc::default())
    }

    #[test]
    fn the_last_given_back_is_taken_first() {
        let pool = pool(100);
        let stacks: Vec<Stack> = (0..40).map(|_| pool.take().unwrap()).collect();
        let mut bases: Vec<usize> = stacks.iter().map(Stack::base).collect();
        assert_eq!(
            (pool.counters().in_use(), pool.counters().pooled()),
            (40, 24)
        );
        drop(stacks);
        for expected in bases.drain(..).rev() {
            let stack = pool.take().unwrap();
            assert_eq!(stack.base(), expected);
            std::mem::forget(stack);
        }
    }

    #[test]
    fn beyond_the_bound_memory_is_given_back() {
        let pool = pool(2);
        let stacks: Vec<Stack> = (0..10).map(|_| pool.take().unwrap()).collect();
        let page = page_bytes();
        for stack in &stacks {
            let top = std::ptr::with_exposed_provenance_mut::<u8>(stack.base() - 1);
            // SAFETY: the highest byte of a stack that nothing runs on.
            unsafe { top.write_volatile(7) };
        }
        assert_eq!(pool.touched_bytes(), 10 * page);
        drop(stacks);
        assert_eq!(pool.touched_bytes(), 2 * page);
        assert_eq!(pool.counters().touched_bytes_max(), page as u64);
        assert_eq!(
            (pool.counters().in_use(), pool.counters().pooled()),
            (0, 32)
        );
        let counters = pool.counters().clone();
        drop(pool);
        assert_eq!((counters.in_use(), counters.pooled()), (0, 0));
    }

    #[test]
    fn a_size_is_whole_pages_and_not_too_small() {
        let sizes = [(0, 32 << 10), (48 << 10, 48 << 10), (100_001, 102_400)];
        for (stack_bytes, expected) in sizes {
            let options = StackOptions {
                stack_bytes,
                ..StackOptions::default()
            };
            let stack = StackPool::new(&options, Arc::default()).take().unwrap();
            let page = page_bytes();
            assert_eq!(stack.bytes(), usize::next_multiple_of(expected, page));
        }
    }

    #[test]
    fn more_than_there_is_address_space_is_an_error() {
        let options = StackOptions {
            stack_bytes: usize::MAX,
            ..StackOptions::default()
        };
        let pool = StackPool::new(&options, Arc::default());
        assert!(pool.take().is_err());
        assert_eq!((pool.counters().in_use(), pool.counters().pooled()), (0, 0));
    }
}
