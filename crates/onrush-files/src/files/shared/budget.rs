//! A budget of bytes, and leases from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that are available.
#[derive(Debug)]
pub(in crate::files) struct Budget {
    available_bytes: AtomicUsize,
}

/// Bytes taken from a budget. Dropping the lease returns them.
#[derive(Debug)]
pub(in crate::files) struct Lease {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(in crate::files) fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget {
            available_bytes: AtomicUsize::new(bytes),
        })
    }

    /// Takes `bytes` bytes; `None` if fewer are available.
    pub(in crate::files) fn take(self: &Arc<Budget>, bytes: usize) -> Option<Lease> {
        let take = |left: usize| left.checked_sub(bytes);
        self.available_bytes
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
            .available_bytes
            .fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lease_returns_its_bytes() {
        let budget = Budget::new(10);
        let lease = budget.take(7);
        assert!(lease.is_some() && budget.take(4).is_none() && budget.take(3).is_some());
        drop(lease);
        assert!(budget.take(10).is_some());
    }
}
