//! Opening a directory again whose path may lead to another one by now.

#![allow(unsafe_code)]

use super::{Dir, DirInner, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

impl Dir {
    /// Has this handle refer to what is at `path` now, for all operations that begin afterwards
    /// (`dup3(2)`). Returns whether that is another directory, or another mount, than before. If
    /// `path` cannot be opened, or leads to another directory and `check` fails, the handle stays
    /// as it is. In the simulator, nothing changes.
    ///
    /// # Examples
    /// ```
    /// use onrush_rt::fs::Dir;
    /// # let folder = std::env::temp_dir().join(format!("onrush-again-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    ///
    /// let dir = Dir::open_root(&folder)?;
    /// assert!(!dir.open_again(&folder, || Ok(()))?);
    /// std::fs::remove_dir(&folder)?;
    /// assert!(dir.open_again(&folder, || Ok(())).is_err());
    /// std::fs::create_dir(&folder)?;
    /// assert!(dir.open_again(&folder, || Err(std::io::ErrorKind::Unsupported.into())).is_err());
    /// assert!(dir.open_again(&folder, || Ok(()))?);
    /// dir.create_dir(b"in the new one", 0o755)?;
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn open_again(
        &self,
        path: &Path,
        check: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<bool> {
        let DirInner::Kernel(own) = &self.0 else {
            return Ok(false);
        };
        let now = Dir::open_root(path)?;
        let identity = |found: Metadata| (found.file_system(), found.inode);
        if identity(now.self_metadata()?) == identity(self.self_metadata()?) {
            return Ok(false);
        }
        check()?;
        let DirInner::Kernel(new) = &now.0 else {
            return Ok(false);
        };
        loop {
            // SAFETY: both descriptors are borrowed, so they are open. The number of the own one
            // stays open and stays owned by this handle; only what it refers to changes, at once.
            let copied = unsafe {
                let (new, own) = (new.as_fd().as_raw_fd(), own.as_fd().as_raw_fd());
                libc::dup3(new, own, libc::O_CLOEXEC)
            };
            match copied {
                -1 => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
                _ => return Ok(true),
            }
        }
    }
}
