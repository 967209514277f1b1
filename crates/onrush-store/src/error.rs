//! What can go wrong with an object, in the few ways a caller can act on.
//!
//! This module must not know which call failed, nor any path.

use onrush_rt::blocking::JobPanicked;
use std::fmt;
use std::io;

/// The result of everything in this crate.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why the store did not do it. Says nothing of the machine's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such object, or nothing that counts as one (a FIFO, a link that leads out).
    NotFound,
    /// The key names a folder.
    IsDirectory,
    /// The key names an object where a folder was asked for.
    NotDirectory,
    /// A folder, a symbolic link or a device is where the object should be, or an object is where
    /// a parent should be.
    Conflict,
    /// A folder that still holds something cannot be deleted.
    NotEmpty,
    /// The caller's condition does not hold for the present object.
    PreconditionFailed,
    /// No space, or no quota, is left on the disk.
    Full,
    /// The object is larger than the file system can hold.
    TooLarge,
    /// The store is read-only, the key is the store's own, or the system refuses access.
    Forbidden,
    /// The bytes are not a key, or the file system cannot hold such a name.
    InvalidKey,
    /// The process or the system is out of descriptors or memory; later it may work.
    Busy,
    /// The disk, or something as deep, failed.
    Io(io::ErrorKind),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreError::NotFound => "there is no such object",
            StoreError::IsDirectory => "this is a folder",
            StoreError::NotDirectory => "this is not a folder",
            StoreError::Conflict => "a folder, a link or an object is in the way",
            StoreError::NotEmpty => "the folder is not empty",
            StoreError::PreconditionFailed => "the object is not as the request expects it",
            StoreError::Full => "the disk is full",
            StoreError::TooLarge => "the object is too large for the disk",
            StoreError::Forbidden => "the store does not allow this",
            StoreError::InvalidKey => "this name cannot be stored",
            StoreError::Busy => "the server is out of files or memory for the moment",
            StoreError::Io(kind) => return write!(f, "the disk failed: {kind}"),
        })
    }
}

impl std::error::Error for StoreError {}

impl From<JobPanicked> for StoreError {
    fn from(_: JobPanicked) -> StoreError {
        StoreError::Io(io::ErrorKind::Other)
    }
}

impl StoreError {
    /// The error of reading or looking up: what cannot be reached is not there.
    pub(crate) fn of_read(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            // Also: a parent is a file, a link loops or leads out, a socket, no driver.
            Some(
                libc::ENOENT
                | libc::ENOTDIR
                | libc::ELOOP
                | libc::EXDEV
                | libc::ENXIO
                | libc::ENODEV
                | libc::ENAMETOOLONG,
            ) => StoreError::NotFound,
            Some(libc::EISDIR) => StoreError::IsDirectory,
            _ => StoreError::of_any(error),
        }
    }

    /// The error of changing something: what is in the way is a conflict.
    pub(crate) fn of_write(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(
                libc::EISDIR
                | libc::ENOTDIR
                | libc::EEXIST
                | libc::ENOENT
                | libc::ELOOP
                | libc::EXDEV,
            ) => StoreError::Conflict,
            Some(libc::ENOTEMPTY) => StoreError::NotEmpty,
            Some(libc::ENAMETOOLONG | libc::EINVAL | libc::EILSEQ) => StoreError::InvalidKey,
            _ => StoreError::of_any(error),
        }
    }

    /// The error of a file that is already open: no name is to blame.
    pub(crate) fn of_any(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => StoreError::Full,
            Some(libc::EFBIG | libc::EOVERFLOW) => StoreError::TooLarge,
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => StoreError::Forbidden,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => StoreError::Busy,
            _ => StoreError::Io(error.kind()),
        }
    }
}
