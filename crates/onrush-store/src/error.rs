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
    Full(Cause),
    /// The file system is read-only, or has become so after an error of its device.
    ReadOnly,
    /// The object is larger than the file system can hold.
    TooLarge,
    /// The store is read-only, the key is the store's own, or the system refuses access.
    Forbidden,
    /// The bytes are not a key, or the file system cannot hold such a name.
    InvalidKey,
    /// The file system has no extended attributes, and the object has metadata.
    NoMetadata,
    /// The process or the system is out of descriptors or memory; later it may work.
    Busy,
    /// The disk, or something as deep, failed.
    Io(Cause),
}

/// What the system said of an operation that failed: the error number of a system call, or only a
/// kind where no system call failed. It has no path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cause {
    kind: io::ErrorKind,
    errno: Option<i32>,
}

impl Cause {
    /// The error number (errno(3)), if a system call failed.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The kind of the error.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }

    pub(crate) fn of_errno(errno: i32) -> Cause {
        Cause::from(&io::Error::from_raw_os_error(errno))
    }
}

impl From<&io::Error> for Cause {
    fn from(error: &io::Error) -> Cause {
        Cause {
            kind: error.kind(),
            errno: error.raw_os_error(),
        }
    }
}

impl From<io::ErrorKind> for Cause {
    fn from(kind: io::ErrorKind) -> Cause {
        Cause { kind, errno: None }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno).fmt(f),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cause({self})")
    }
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
            StoreError::Full(_) => "the disk is full",
            StoreError::ReadOnly => "the disk is read-only",
            StoreError::TooLarge => "the object is too large for the disk",
            StoreError::Forbidden => "the store does not allow this",
            StoreError::InvalidKey => "this name cannot be stored",
            StoreError::NoMetadata => "the disk keeps no metadata",
            StoreError::Busy => "the server is out of files or memory for the moment",
            StoreError::Io(cause) => return write!(f, "the disk failed: {cause}"),
        })
    }
}

impl std::error::Error for StoreError {}

impl From<JobPanicked> for StoreError {
    fn from(_: JobPanicked) -> StoreError {
        StoreError::Io(io::ErrorKind::Other.into())
    }
}

impl StoreError {
    /// What the system said, for errors that an operator has to know of: [`StoreError::Full`],
    /// [`StoreError::ReadOnly`] and [`StoreError::Io`].
    pub fn cause(&self) -> Option<Cause> {
        match *self {
            StoreError::Full(cause) | StoreError::Io(cause) => Some(cause),
            StoreError::ReadOnly => Some(Cause::of_errno(libc::EROFS)),
            _ => None,
        }
    }

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
            Some(libc::ENOSPC | libc::EDQUOT) => StoreError::Full(Cause::from(&error)),
            Some(libc::EFBIG | libc::EOVERFLOW) => StoreError::TooLarge,
            Some(libc::EROFS) => StoreError::ReadOnly,
            Some(libc::EACCES | libc::EPERM) => StoreError::Forbidden,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => StoreError::Busy,
            _ => StoreError::Io(Cause::from(&error)),
        }
    }
}
