//! A number of bytes that may be held at a time, and leases of it.
//!
//! This module must not know what the bytes are for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that may still be taken.
#[derive(Debug)]
pub(super) struct Budget {
    left_bytes: AtomicUsize,
}

/// What somebody took; given back when dropped.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget {
            left_bytes: AtomicUsize::new(bytes),
        })
    }

    /// Takes so many bytes, or nothing when there are not as many left.
    pub(super) fn take(self: &Arc<Budget>, bytes: usize) -> Option<Lease> {
        let take = |left: usize| left.checked_sub(bytes);
        self.left_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        Some(Lease {
            budget: self.clone(),
            bytes,
        })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget
            .left_bytes
            .fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let budget = Budget::new(10);
        let lease = budget.take(7);
        assert!(lease.is_some() && budget.take(4).is_none() && budget.take(3).is_some());
        drop(lease);
        assert!(budget.take(10).is_some());
    }
}
