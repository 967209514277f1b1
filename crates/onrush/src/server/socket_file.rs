//! Files of Unix sockets, which outlive the sockets unless they are removed. Must not know who
//! listens on them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file of a Unix socket that this server has bound. Dropping it removes the file, unless
/// another server has replaced it meanwhile.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode, as bound.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file at `path`, which was bound just now; `None` when it is gone already. The path is
    /// made absolute, because the working directory may change.
    pub(super) fn new(path: &Path) -> Option<SocketFile> {
        Some(SocketFile {
            path: std::path::absolute(path).ok()?,
            identity: identity(path)?,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path) == Some(self.identity) {
            let _ = fs::remove_file(&self.path); // The next server replaces a file that stays.
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
