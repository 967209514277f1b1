//! Memory for small answers, used again for the next ones of this thread.
//!
//! Must not know what is in it.

use std::cell::RefCell;

/// So many pieces are kept, of this size at most, in bytes.
const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes in memory that goes back to its thread when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct PooledBuffer(pub(crate) Vec<u8>);

impl PooledBuffer {
    /// Appends. Memory is taken with the first bytes only: whoever waits before it has something to
    /// say holds none, and what is taken then is what was given back last.
    #[inline]
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.0.capacity() == 0 {
            self.0 = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
        }
        self.0.extend_from_slice(bytes);
    }
}

impl Drop for PooledBuffer {
    #[inline]
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.0);
        if (1..=BUFFER_BYTES_MAX).contains(&memory.capacity()) {
            memory.clear();
            // When the thread ends nothing is kept any more.
            let _ = BUFFERS.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < BUFFERS_MAX {
                    kept.push(memory);
                }
            });
        }
    }
}
