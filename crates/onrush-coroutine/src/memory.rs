//! Address space for stacks: many of one size in one mapping, with a guard page below each.
//!
//! Does not track which stacks are in use.
#![allow(unsafe_code)]

use onrush_rt::sys::page_bytes;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut};

/// `MADV_GUARD_INSTALL` (Linux 6.13): pages that fault when they are touched and need no mapping of
/// their own.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// Pages queried by one `mincore(2)`.
const WINDOW_PAGES: usize = 64;

/// How guard pages are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// By `MADV_GUARD_INSTALL`: all stacks of a chunk are in one mapping.
    Marked,
    /// By `mprotect(2)`, which makes two mappings per stack; `vm.max_map_count` limits those.
    Protected,
}

/// A mapping that holds stacks of one size. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Chunk {
    start: NonNull<u8>,
    /// Bytes per stack: its guard page, then the stack itself.
    stride_bytes: usize,
    stacks: usize,
}

impl Chunk {
    /// Maps `stacks` stacks of `stack_bytes` (a multiple of the page) each. Makes their guards as
    /// `guard` says, or by the other method if the kernel cannot, and sets `guard` to the method
    /// used.
    ///
    /// Fails with `ENOMEM` when there is no address space or there are too many mappings.
    pub(super) fn map(stacks: usize, stack_bytes: usize, guard: &mut Guard) -> io::Result<Chunk> {
        let stride_bytes = stack_bytes + page_bytes();
        let bytes = stacks
            .checked_mul(stride_bytes)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let chunk = Chunk {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            stride_bytes,
            stacks,
        };
        start.expose_provenance(); // Stacks are named by their addresses.
        // The first byte would touch a whole huge page. Old kernels may not know this advice.
        // SAFETY: this is the mapping just made, and the advice changes no byte of it.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        (0..stacks).try_for_each(|index| chunk.guard(index, guard))?;
        Ok(chunk)
    }

    /// Makes the lowest page of a stack's part fault.
    fn guard(&self, index: usize, guard: &mut Guard) -> io::Result<()> {
        let page = self.share(index);
        if *guard == Guard::Marked {
            // SAFETY: a page of this mapping, which is not in use yet.
            let made = unsafe { libc::madvise(page, page_bytes(), MADV_GUARD_INSTALL) };
            match made {
                0 => return Ok(()),
                _ => *guard = Guard::Protected, // An older kernel, or a locked mapping.
            }
        }
        // SAFETY: as above.
        match unsafe { libc::mprotect(page, page_bytes(), libc::PROT_NONE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn share(&self, index: usize) -> *mut libc::c_void {
        debug_assert!(index < self.stacks);
        // SAFETY: within the mapping, which `stacks` strides make up.
        unsafe { self.start.as_ptr().add(index * self.stride_bytes).cast() }
    }

    /// The highest addresses of the stacks, in ascending order: each stack begins there.
    pub(super) fn bases(&self) -> impl DoubleEndedIterator<Item = NonZeroUsize> + '_ {
        (1..=self.stacks).map(|index| {
            let bytes = index * self.stride_bytes;
            self.start
                .addr()
                .checked_add(bytes)
                .expect("a mapping does not wrap")
        })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let bytes = self.stacks * self.stride_bytes;
        // SAFETY: the mapping is this chunk's alone, and its owner has no stack in use any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

/// The bytes of the stack below `base` that are in memory, in whole pages, counted from its
/// beginning: a stack is touched from there on (`mincore(2)`).
pub(super) fn touched_bytes(base: NonZeroUsize, stack_bytes: usize) -> usize {
    let page = page_bytes();
    let (mut touched, mut left) = (0, stack_bytes / page);
    while left > 0 {
        let pages = left.min(WINDOW_PAGES);
        let first = base.get() - (stack_bytes / page - left + pages) * page;
        let mut resident = [0_u8; WINDOW_PAGES];
        // SAFETY: the kernel writes one byte for each queried page, and there is room for
        // `WINDOW_PAGES`. It reads nothing at the address.
        let asked = unsafe {
            let first = std::ptr::without_provenance_mut(first);
            libc::mincore(first, pages * page, resident.as_mut_ptr())
        };
        let here = resident.iter().filter(|&&page| page & 1 == 1).count();
        if asked != 0 || here == 0 {
            break;
        }
        touched += here * page;
        left -= pages;
    }
    touched
}

/// Returns the memory of the stack below `base` to the kernel; its bytes are zero when they are
/// touched again (`MADV_DONTNEED`).
///
/// # Safety
/// `stack_bytes` below `base` are a stack of a living chunk, and nothing uses it.
pub(super) unsafe fn give_back(base: NonZeroUsize, stack_bytes: usize) {
    let lowest = std::ptr::with_exposed_provenance_mut(base.get() - stack_bytes);
    // SAFETY: by this function's contract, no value there is read any more.
    unsafe { libc::madvise(lowest, stack_bytes, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize) {
        let at: *mut u8 = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the tests give addresses of stacks that only they use.
        unsafe { at.write_volatile(1) };
    }

    /// Whether the kernel can write to the byte at `at`: tested by a system call, so nothing
    /// faults.
    fn is_writable(at: usize) -> bool {
        let zero = std::fs::File::open("/dev/zero").expect("there is one");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&zero);
        // SAFETY: the address is of a mapping of this test's, or faults within the kernel.
        unsafe { libc::read(fd, std::ptr::with_exposed_provenance_mut(at), 1) == 1 }
    }

    #[test]
    fn each_stack_has_a_guard_page_below() {
        for asked in [Guard::Marked, Guard::Protected] {
            let mut guard = asked;
            let chunk = Chunk::map(3, 64 << 10, &mut guard).unwrap();
            for base in chunk.bases() {
                let lowest = base.get() - (64 << 10);
                assert!(is_writable(base.get() - 1) && is_writable(lowest));
                assert!(!is_writable(lowest - 1) && !is_writable(lowest - page_bytes()));
            }
            assert!(guard == asked || guard == Guard::Protected);
        }
    }

    #[test]
    fn what_is_touched_is_counted_and_given_back() {
        let page = page_bytes();
        let stack_bytes = 200 * page;
        let chunk = Chunk::map(2, stack_bytes, &mut { Guard::Marked }).unwrap();
        for base in chunk.bases() {
            assert_eq!(touched_bytes(base, stack_bytes), 0);
            for pages in [1, 2, 63, 64, 65, 130, 200] {
                (1..=pages).for_each(|at| write(base.get() - at * page));
                assert_eq!(touched_bytes(base, stack_bytes), pages * page);
            }
            // SAFETY: only this test uses the chunk.
            unsafe { give_back(base, stack_bytes) };
            assert_eq!(touched_bytes(base, stack_bytes), 0);
        }
    }
}
