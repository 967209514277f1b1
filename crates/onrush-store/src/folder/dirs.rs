//! What the folders of the store itself need.

use onrush_rt::fs::{Dir, FileKind};
use std::io;
use std::ops::ControlFlow;

/// Only the owner of the store may access the folder.
pub(super) const MODE: u32 = 0o700;

/// Whether the folder of an open handle was removed. After a removal by another NFS client, the
/// server reports ESTALE instead of ENOENT (errno(3)).
pub(super) fn is_removed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
    )
}

pub(super) fn ensure_dir(parent: &Dir, name: &[u8]) -> io::Result<Dir> {
    match parent.create_dir(name, MODE) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => parent.open_dir(name),
    }
}

pub(super) fn names(dir: &Dir, wanted: Option<FileKind>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let _ = dir.read_dir(&mut |name, kind| {
        if wanted.is_none() || kind.is_none() || wanted == kind {
            names.push(name.to_vec());
        }
        ControlFlow::Continue(())
    });
    names
}
