//! The files of Unix sockets. The kernel does not remove them when the socket is closed (unix(7)).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The file of a Unix socket that this server has bound. Dropping this value removes the file,
/// unless another server has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode at the time of binding.
    identity: (u64, u64),
    /// Another process listens on the socket.
    is_kept: AtomicBool,
}

impl SocketFile {
    /// The file at `path`, which was just bound; `None` if it no longer exists. The path is made
    /// absolute, because the working directory may change.
    pub(super) fn new(path: &Path) -> Option<SocketFile> {
        Some(SocketFile {
            path: std::path::absolute(path).ok()?,
            identity: identity(path)?,
            is_kept: AtomicBool::new(false),
        })
    }

    /// Keeps the file: another process listens on the socket.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_kept = self.is_kept.load(Ordering::Relaxed);
        if !is_kept && identity(&self.path) == Some(self.identity) {
            let _ = fs::remove_file(&self.path); // The next server replaces a file that remains.
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
