//! Hints to the kernel about what of a file will be needed. None of them can fail.

use super::{File, FileInner};

impl File {
    /// Makes the kernel read ahead more (`posix_fadvise(2)`). A hint: never fails.
    pub fn advise_sequential(&self) {
        match &self.inner {
            FileInner::Kernel(file) => file.advise_sequential(),
            FileInner::Sim(_) => {}
        }
    }

    /// Drops the content from the page cache as far as it is written (`posix_fadvise(2)`), so that
    /// the next read is one of the disk. A hint: never fails.
    pub fn advise_unneeded(&self) {
        match &self.inner {
            FileInner::Kernel(file) => file.advise_unneeded(),
            FileInner::Sim(_) => {}
        }
    }

    /// Starts reading exactly this range into the page cache (`posix_fadvise(2)`,
    /// `POSIX_FADV_WILLNEED`). Unlike the kernel's own read-ahead, which a plain read starts, it
    /// takes nothing beyond the range, and a later send of the range starts no further reading.
    /// A hint: never fails. May block while the disk's queue is full.
    pub fn advise_needed(&self, offset: u64, len: u64) {
        match &self.inner {
            FileInner::Kernel(file) => file.advise_needed(offset, len),
            FileInner::Sim(_) => {}
        }
    }

    /// Starts writing this range to disk without waiting (`sync_file_range(2)`), so that the
    /// `fsync` at the end of a long upload has little to do. A hint: never fails, and guarantees
    /// nothing. May block while the disk's queue is full.
    pub fn start_writeback(&self, offset: u64, len: u64) {
        match &self.inner {
            FileInner::Kernel(file) => file.start_writeback(offset, len),
            FileInner::Sim(_) => {}
        }
    }
}
