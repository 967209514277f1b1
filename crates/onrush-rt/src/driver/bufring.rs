//! A ring of provided buffers (`IORING_REGISTER_PBUF_RING`, io_uring_register(2)).
//!
//! The kernel takes buffers from the head of a ring in shared memory; this side adds them at its
//! tail. A buffer id is an index into the ring's bookkeeping. Each refill puts another block behind
//! it, so a view may keep its block for any time.
#![allow(unsafe_code)]

use crate::buf::{Block, Buf, BufferPool};
use io_uring::{IoUring, types::BufRingEntry};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// The ring and its blocks; see the module's documentation.
pub(crate) struct BufferRing {
    entries: *mut BufRingEntry,
    /// Number of entries, a power of two.
    count: u16,
    tail: u16,
    /// The block behind each buffer id while the kernel may write to it.
    posted: Box<[Option<Block>]>,
    /// Ids without a block.
    vacant: Vec<u16>,
    pool: BufferPool,
    /// The kernel may still use the memory, so it is not freed.
    leaks: bool,
}

impl BufferRing {
    /// Maps, registers and fills a ring of `count` buffers from `pool`.
    pub(crate) fn register(
        ring: &IoUring,
        group: u16,
        count: u16,
        pool: BufferPool,
    ) -> io::Result<BufferRing> {
        if !count.is_power_of_two() || count > 32768 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the number of ring buffers must be a power of two up to 32768",
            ));
        }
        let bytes = usize::from(count) * size_of::<BufRingEntry>();
        // SAFETY: a fresh private mapping, with no address asked for.
        let memory = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        let mut this = BufferRing {
            entries: memory.cast(),
            count,
            tail: 0,
            posted: (0..count).map(|_| None).collect(),
            vacant: (0..count).rev().collect(),
            pool,
            leaks: false,
        };
        // SAFETY: the mapping is page-aligned, holds `count` entries and lives until `this` is
        // dropped, which the driver does after the ring.
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(memory as u64, count, group, 0)?;
        }
        this.refill();
        Ok(this)
    }

    /// The pool that blocks come from and return to.
    pub(crate) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Buffers that the kernel may use now.
    pub(crate) fn posted(&self) -> usize {
        usize::from(self.count) - self.vacant.len()
    }

    /// Provides a block for each vacant id, as far as the budget allows.
    #[inline]
    pub(crate) fn refill(&mut self) {
        if self.vacant.is_empty() {
            return;
        }
        while let Some(id) = self.vacant.pop() {
            let Some(block) = self.pool.take() else {
                self.vacant.push(id);
                break;
            };
            let place = usize::from(self.tail & (self.count - 1));
            // SAFETY: `place < count`, and the kernel does not read entries at or past the tail.
            let entry = unsafe { &mut *self.entries.add(place) };
            entry.set_addr(block.as_ptr() as u64);
            entry.set_len(block.capacity() as u32);
            entry.set_bid(id);
            self.posted[usize::from(id)] = Some(block);
            self.tail = self.tail.wrapping_add(1);
        }
        // SAFETY: the tail's place in the mapping, which the kernel reads atomically.
        let shared = unsafe { &*BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        shared.store(self.tail, Ordering::Release);
    }

    /// The buffer of a completion, with `bytes` received.
    ///
    /// # Panics
    /// When the kernel names a buffer that is not posted, or more bytes than it holds.
    #[inline]
    pub(crate) fn take(&mut self, id: u16, bytes: i32) -> Buf {
        let mut block = self.posted[usize::from(id)]
            .take()
            .expect("a posted buffer");
        self.vacant.push(id);
        block.advance(bytes as usize);
        block.into_buf()
    }

    /// Leaks the mapping and the posted blocks when this is dropped, because an operation that
    /// writes to them may still be running.
    pub(crate) fn leak(&mut self) {
        self.leaks = true;
    }

    /// Addresses of the blocks that the kernel may write to.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> Vec<*mut u8> {
        self.posted.iter().flatten().map(Block::as_ptr).collect()
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        if self.leaks {
            return std::mem::forget(std::mem::take(&mut self.posted));
        }
        let bytes = usize::from(self.count) * size_of::<BufRingEntry>();
        // SAFETY: mapped by `register` with this size; the ring that used it is closed and has no
        // operation left, because its owner calls `leak` otherwise.
        let _ = unsafe { rustix::mm::munmap(self.entries.cast(), bytes) };
    }
}
