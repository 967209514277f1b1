//! Opening a file by a path of the whole machine, which may lead anywhere.

use super::{File, FileInner};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, retry_on_intr};
use std::io;
use std::path::Path;

impl File {
    /// Opens an existing file for reading, wherever it is (`open(2)`), with the flags that
    /// [`OpenHow`](super::OpenHow) names. Symbolic links are followed. Blocks while the disk is
    /// read. Fails as `open(2)` does, with `EINVAL` for a path with a NUL, and with `TooManyLinks`
    /// for symbolic links that lead in a circle (`ELOOP`).
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
        let opened = retry_on_intr(|| open(path, flags, Mode::empty()));
        // The standard library has no stable kind for it.
        let fd = opened.map_err(|error| match error {
            Errno::LOOP => io::Error::new(io::ErrorKind::TooManyLinks, error),
            error => error.into(),
        })?;
        Ok(FileInner::Kernel(fd.into()).into())
    }
}
