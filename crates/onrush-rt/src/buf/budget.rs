//! The budget of a worker's receive memory.
//!
//! Does not depend on what is charged to it.

use std::cell::Cell;
use std::rc::Rc;

/// The memory that one worker may hold in buffers, and what it holds now, in bytes.
///
/// # Examples
/// ```
/// use onrush_rt::buf::{Budget, BufferPool};
///
/// let budget = Budget::new(5_000);
/// let pool = BufferPool::new(4_096, 1, budget.clone());
/// let block = pool.take().expect("one block fits");
/// assert!(budget.used_bytes() > 4_096);
/// assert!(pool.take().is_none()); // The budget is used up.
/// drop(block);
/// assert!(pool.take().is_some());
/// ```
#[derive(Debug)]
pub struct Budget {
    used: Cell<usize>,
    max: usize,
}

impl Budget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Rc<Budget> {
        Rc::new(Budget {
            used: Cell::new(0),
            max: bytes_max,
        })
    }

    /// Charges `bytes`; `false` and no change when that much is not left.
    ///
    /// Not public, like [`Budget::refund`]: only blocks and reservations are charged, each once,
    /// and refunded when they are freed. So the counter cannot wrap.
    pub(super) fn charge(&self, bytes: usize) -> bool {
        let used = self.used.get();
        if bytes > self.max.saturating_sub(used) {
            return false;
        }
        self.used.set(used + bytes);
        true
    }

    /// Charges `bytes` even if they are not left, as long as the cap has not been reached; so at
    /// most one such charge exceeds the cap. `false` and no change at or above the cap.
    pub(super) fn overdraw(&self, bytes: usize) -> bool {
        let used = self.used.get();
        if used >= self.max {
            return false;
        }
        self.used.set(used.saturating_add(bytes));
        true
    }

    /// Refunds a charge.
    pub(super) fn refund(&self, bytes: usize) {
        assert!(
            bytes <= self.used.get(),
            "more is given back than was taken"
        );
        self.used.set(self.used.get() - bytes);
    }

    /// Bytes charged now.
    #[inline]
    pub fn used_bytes(&self) -> usize {
        self.used.get()
    }

    /// The cap, in bytes.
    #[inline]
    pub fn max_bytes(&self) -> usize {
        self.max
    }
}

/// Bytes that are charged to a budget until this is dropped: memory of another kind than blocks
/// that counts as receive memory as well.
///
/// # Examples
/// ```
/// use onrush_rt::buf::{Budget, BufferPool};
///
/// let pool = BufferPool::new(4_096, 1, Budget::new(8_000));
/// let keys = pool.reserve(5_000).expect("the budget is not used up");
/// assert!(pool.take().is_none());
/// drop(keys);
/// assert!(pool.take().is_some());
/// ```
#[derive(Debug)]
pub struct Reservation {
    pub(super) budget: Rc<Budget>,
    pub(super) bytes: usize,
}

impl Reservation {
    /// The number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of bytes. Returns `false`, without a change, when the budget has not as
    /// many left. Fewer bytes are always possible.
    pub fn resize(&mut self, bytes: usize) -> bool {
        match bytes.checked_sub(self.bytes) {
            Some(more) if !self.budget.charge(more) => return false,
            Some(_) => {}
            None => self.budget.refund(self.bytes - bytes),
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.refund(self.bytes);
    }
}
