//! One lock and one generation counter for each of a fixed number of key classes: enough that two
//! keys seldom meet, few enough to be forgotten about.
//!
//! This module must not know what is done under the locks.

use crate::key::Key;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 1024;

pub(super) struct Stripes(Box<[Stripe]>);

#[derive(Default)]
struct Stripe {
    lock: Mutex<()>,
    generation: AtomicU64,
}

impl Stripes {
    pub(super) fn new() -> Stripes {
        Stripes((0..STRIPES).map(|_| Stripe::default()).collect())
    }

    /// Held from checking a condition to having made the change. Blocks: for pool threads.
    pub(super) fn lock(&self, key: &Key) -> MutexGuard<'_, ()> {
        // The lock guards no data that a panic could leave half changed.
        self.stripe(key)
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self, key: &Key) -> u64 {
        self.stripe(key).generation.load(Ordering::Acquire)
    }

    /// To be called after the change can be seen and before it is answered.
    pub(super) fn bump(&self, key: &Key) {
        self.stripe(key).generation.fetch_add(1, Ordering::Release);
    }

    fn stripe(&self, key: &Key) -> &Stripe {
        &self.0[hash(key.as_bytes()) as usize % STRIPES]
    }
}

/// Spreads keys over stripes, eight bytes at a time. Whoever makes keys collide only makes them
/// share a lock.
fn hash(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hash >> 32
}
