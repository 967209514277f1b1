//! Memory that is mapped for one purpose, so that the system has it again when that ends. An
//! allocator keeps what was freed: after a few large tables on several threads, a process has their
//! memory many times.

#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Bytes of a mapping of their own (`mmap(2)`), all zero at first. A page costs memory when it is
/// first written.
///
/// ```
/// let mut region = onrush_rt::region::Region::new(1 << 20)?;
/// region[5] = 1;
/// assert_eq!(region[4..7], [0, 1, 0]);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and may be used and unmapped by any thread.
unsafe impl Send for Region {}
// SAFETY: shared references only read.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, at least one.
    ///
    /// # Errors
    /// `ENOMEM`: a limit of the process, or of the machine.
    pub fn new(len: usize) -> io::Result<Region> {
        let len = len.max(1);
        // SAFETY: a fresh private mapping, with no address asked for.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { start, len })
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has `len` initialised bytes, and lives as long as this value.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; no other reference exists.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which no reference exists any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish()
    }
}
