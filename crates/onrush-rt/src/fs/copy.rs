//! Copies between files.

use super::{File, FileInner};
use std::io;

/// Bytes that one call copies through memory.
const BUFFER_BYTES: u64 = 128 * 1024;

impl File {
    /// Copies at most `len` bytes of `source` at `offset` to the position `to` of this file, within
    /// the kernel if possible (`copy_file_range(2)`), which may share blocks. Returns the number
    /// of bytes, 0 at the end of `source`.
    pub fn copy_from(&self, source: &File, offset: u64, to: u64, len: u64) -> io::Result<u64> {
        if let (FileInner::Kernel(own), FileInner::Kernel(from)) = (&self.inner, &source.inner)
            && let Some(copied) = own.copy_from(from, offset, to, len)?
        {
            return Ok(copied);
        }
        let mut buffer = vec![0; len.min(BUFFER_BYTES) as usize];
        let read = source.read_at(&mut buffer, offset)?;
        self.write_all_at(&buffer[..read], to)?;
        Ok(read as u64)
    }
}
