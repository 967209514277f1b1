//! Limits the memory of the parts of multipart uploads. What is counted is the bytes that uploads
//! hold: one whose client is slow holds only what has arrived.
//!
//! An upload that has begun a part needs more bytes until the part can be sent. So the memory must
//! never be full of parts of which none can be completed. After each permission, all parts can be
//! completed in some order: the free memory is enough for one, which then frees its own for the
//! next (the banker's algorithm).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The most bytes of an upload that are held without a permission. If the length is known, they are
/// held until the commit.
pub(crate) const SHORT_BYTES: u64 = 1024 * 1024;

/// The memory of all uploads of a store.
#[derive(Debug)]
pub(crate) struct PartMemory {
    limit: u64,
    state: Mutex<MemoryState>,
    freed: Notify,
}

#[derive(Debug)]
struct MemoryState {
    free: u64,
    parts: HashMap<u64, Part>,
    next: u64,
}

/// Bytes of a part that has begun.
#[derive(Clone, Copy, Debug)]
struct Part {
    held: u64,
    missing: u64,
}

impl MemoryState {
    /// Whether all parts can be completed one after the other.
    fn is_safe(&self) -> bool {
        let mut parts: Vec<Part> = self.parts.values().copied().collect();
        parts.sort_unstable_by_key(|part| part.missing);
        let mut free = self.free;
        parts.iter().all(|part| {
            let fits = part.missing <= free;
            free += part.held;
            fits
        })
    }
}

impl PartMemory {
    /// A limit in bytes.
    pub(crate) fn new(limit: u64) -> Arc<PartMemory> {
        Arc::new(PartMemory {
            limit,
            state: Mutex::new(MemoryState {
                free: limit,
                parts: HashMap::new(),
                next: 0,
            }),
            freed: Notify::new(),
        })
    }

    /// The beginning of a part that will have `bytes` bytes, or fewer if it is the last one. A part
    /// that is larger than the limit may be held alone.
    pub(crate) fn begin(self: &Arc<Self>, bytes: u64) -> PartPermit {
        let mut state = self.lock();
        state.next += 1;
        PartPermit {
            memory: self.clone(),
            number: state.next,
            whole: bytes.min(self.limit),
            held: 0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of one part. Dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct PartPermit {
    memory: Arc<PartMemory>,
    number: u64,
    whole: u64,
    held: u64,
}

impl PartPermit {
    /// Permits the part to have `bytes` bytes in all. `false`: there is no room now.
    pub(crate) fn try_grow(&mut self, bytes: u64) -> bool {
        let held = bytes.clamp(self.held, self.whole);
        let mut state = self.memory.lock();
        let before = state.free;
        let Some(free) = before.checked_sub(held - self.held) else {
            return false;
        };
        let missing = self.whole - held;
        let part = state.parts.insert(self.number, Part { held, missing });
        state.free = free;
        if state.is_safe() {
            self.held = held;
            return true;
        }
        state.free = before;
        match part {
            Some(part) => state.parts.insert(self.number, part),
            None => state.parts.remove(&self.number),
        };
        false
    }

    /// As [`PartPermit::try_grow`], when there is room.
    pub(crate) async fn grow(mut self, bytes: u64) -> PartPermit {
        let memory = self.memory.clone();
        loop {
            let mut freed = std::pin::pin!(memory.freed.notified());
            freed.as_mut().enable();
            if self.try_grow(bytes) {
                return self;
            }
            freed.await;
        }
    }

    /// The part is sent, and needs no more bytes: it may be the last one.
    pub(crate) fn complete(&self) {
        if let Some(part) = self.memory.lock().parts.get_mut(&self.number) {
            part.missing = 0;
        }
        self.memory.freed.notify_waiters();
    }
}

impl Drop for PartPermit {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        state.free += self.held;
        state.parts.remove(&self.number);
        drop(state);
        self.memory.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_can_be_completed() {
        let memory = PartMemory::new(20);
        let mut parts: Vec<PartPermit> = [8, 8, 16, 16, 100].map(|n| memory.begin(n)).into();
        // In turn one byte more for each of them, until there is no room for any.
        let mut grows = true;
        while grows {
            grows = false;
            for part in &mut parts {
                grows |= part.try_grow(part.held + 1);
            }
            parts.retain(|part| part.held < part.whole); // The others are sent.
        }
        assert!(parts.is_empty(), "{parts:?}");
        assert_eq!(memory.lock().free, 20);
        assert!(memory.lock().parts.is_empty());
    }

    #[test]
    fn slow_parts_occupy_what_they_hold() {
        let memory = PartMemory::new(20);
        let slow: Vec<PartPermit> = (0..10)
            .map(|_| {
                let mut slow = memory.begin(8);
                assert!(slow.try_grow(1));
                slow
            })
            .collect();
        for _ in 0..3 {
            assert!(memory.begin(8).try_grow(8));
        }
        drop(slow);
        assert_eq!(memory.lock().free, 20);
    }

    #[test]
    fn a_part_that_is_larger_than_the_memory_is_alone() {
        let memory = PartMemory::new(20);
        let (mut large, mut other) = (memory.begin(100), memory.begin(8));
        assert!(large.try_grow(50) && !other.try_grow(1));
        drop(large);
        assert!(other.try_grow(1));
    }
}
