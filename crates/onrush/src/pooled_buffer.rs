//! A pool of memory for small responses, one per thread.

use std::cell::RefCell;

/// The largest number of buffers in the pool, and the largest capacity of each, in bytes.
const BUFFERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 16 * 1024;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that returns to the pool of the present thread when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct PooledBuffer(pub(crate) Vec<u8>);

impl PooledBuffer {
    /// Appends bytes. The first call takes memory from the pool: a buffer that is still empty holds
    /// none, and the memory that was returned last is reused first.
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
            // The pool no longer exists while its thread ends.
            let _ = BUFFERS.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < BUFFERS_MAX {
                    kept.push(memory);
                }
            });
        }
    }
}
