//! Opening a file by a path of the whole machine, which may lead anywhere.

use super::{File, FileInner};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::retry_on_intr;
use std::io;
use std::path::Path;

impl File {
    /// Opens an existing file for reading, wherever it is (`open(2)`), with the flags that
    /// [`OpenHow`](super::OpenHow) names. Symbolic links are followed. Blocks while the disk is
    /// read. Fails as `open(2)` does, and with `EINVAL` for a path with a NUL.
    ///
    /// # Examples
    /// ```
    /// use onrush_rt::fs::{File, FileKind};
    /// use std::path::Path;
    ///
    /// let file = File::open(Path::new("/dev/null"))?;
    /// assert_eq!(file.metadata()?.kind, FileKind::Special);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open(path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = retry_on_intr(|| open(path, flags, Mode::empty()))?;
        Ok(FileInner::Kernel(fd.into()).into())
    }
}
