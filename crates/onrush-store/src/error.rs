//! Errors of the store, reduced to the cases that a caller can act on.
//!
//! An error names neither the system call that failed nor a path.

use onrush_rt::blocking::JobPanicked;
use std::fmt;
use std::io;
use std::time::Duration;

/// The result type of this crate.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Why an operation failed. The text contains no paths of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such object, or the entry is not an object (a FIFO, a link that leaves the
    /// folder).
    NotFound,
    /// The key names a folder.
    IsDirectory,
    /// The key names an object where a folder was asked for, or an object is in the place of a
    /// parent folder of a change.
    NotDirectory,
    /// A symbolic link or a device is in the place of the object of a change, a link that leaves
    /// the store is in its path, or another program changes the path at the same time.
    Conflict,
    /// The folder is not empty, so it cannot be deleted.
    NotEmpty,
    /// The folder contains a relative symbolic link that leads out of it, so it cannot be moved.
    LeadsOutside,
    /// The two names are on different file systems, between which nothing can be renamed, or the
    /// file system of the object has no place for uploads.
    OtherFileSystem,
    /// Something is mounted at the name, which can be neither replaced nor deleted.
    MountPoint,
    /// The caller's condition does not hold for the current object.
    PreconditionFailed,
    /// The disk or the quota is full. Without an error number: that of the store's service, or the
    /// free space is below the limit of the store.
    Full(Cause),
    /// The objects beneath a prefix have all bytes that they may have.
    OverQuota,
    /// Whether a quota has room is not known yet, because its objects are being counted, or because
    /// another process uses a part of it for a moment. A later attempt may succeed.
    NotCounted,
    /// The file system is read-only, or became read-only after a device error.
    ReadOnly,
    /// The object is larger than the file system allows.
    TooLarge,
    /// The store is read-only, or the key is reserved for the store.
    Forbidden,
    /// The system denies access: the rights of a file or a folder do not permit it. Without an
    /// error number: the store's service denies it.
    PermissionDenied(Cause),
    /// The bytes are not a valid key, or the file system does not support the name.
    InvalidKey,
    /// The object has metadata, but the file system does not support extended attributes.
    NoMetadata,
    /// The process or the system is out of descriptors or memory. A later attempt may succeed.
    Busy,
    /// Another process uses the upload, for as long as its client sends.
    InUse,
    /// The object was replaced while it was read, and the store cannot read the old bytes.
    Changed,
    /// The store cannot do this: a condition, metadata or an operation that its service lacks.
    Unsupported,
    /// The service of the store refuses requests because there are too many.
    Throttled {
        /// When to try again, if the service says so.
        retry_after: Option<Duration>,
    },
    /// The service of the store cannot be reached or reports that it is unavailable.
    Unavailable,
    /// The connection to the service was lost during a change, or the service has failed. The
    /// change may have been made.
    Interrupted,
    /// The service of the store did not respond in time. A change may have been made.
    Timeout,
    /// The service of the store responded with something else than it should: another protocol, or
    /// fewer bytes than announced. A change may have been made.
    BadResponse,
    /// Any other error of a system call, usually of the disk. Without an error number: the store
    /// failed in another way, or a job panicked.
    Io(Cause),
}

/// The cause of a failed operation: the error number of a system call, or only a kind if no system
/// call failed. It contains no path.
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

    pub(crate) fn from_errno(errno: i32) -> Cause {
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
            StoreError::Conflict => {
                "a link or a special file is in the way, or the path changed meanwhile"
            }
            StoreError::NotEmpty => "the folder is not empty",
            StoreError::LeadsOutside => "the folder contains a relative link that leads out of it",
            StoreError::OtherFileSystem => "both names are not on one file system",
            StoreError::MountPoint => "something is mounted at the name",
            StoreError::PreconditionFailed => "the object does not meet the request's condition",
            StoreError::Full(cause) if cause.errno.is_none() => {
                "the store is full, or its space is kept free (--min-free)"
            }
            StoreError::Full(_) => "the disk is full",
            StoreError::OverQuota => "the object does not fit into what is left of the quota",
            StoreError::NotCounted => "the objects are being counted for the quota",
            StoreError::ReadOnly => "the disk is read-only",
            StoreError::TooLarge => "the object is too large for the store",
            StoreError::Forbidden => "the store does not allow this",
            StoreError::PermissionDenied(cause) if cause.errno.is_none() => {
                "the store's service denied access"
            }
            StoreError::PermissionDenied(_) => "the file system denied access",
            StoreError::InvalidKey => "this name cannot be stored",
            StoreError::NoMetadata => "the disk does not support metadata",
            StoreError::Busy => "the server is temporarily out of files or memory",
            StoreError::InUse => "another process uses the upload",
            StoreError::Changed => "the object changed while it was read",
            StoreError::Unsupported => "the store does not support this",
            StoreError::Throttled { .. } => "the store has too many requests",
            StoreError::Unavailable => "the store is unavailable",
            StoreError::Interrupted => "the store failed during the change",
            StoreError::Timeout => "the store did not respond in time",
            StoreError::BadResponse => "the store's service sent a malformed response",
            StoreError::Io(cause) if cause.errno.is_none() => {
                return write!(f, "the store failed: {cause}");
            }
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
    /// The cause of an error that an operator needs to know: [`StoreError::Full`],
    /// [`StoreError::ReadOnly`], [`StoreError::PermissionDenied`], [`StoreError::BadResponse`] and
    /// [`StoreError::Io`]. `None` for the other errors.
    pub fn cause(&self) -> Option<Cause> {
        match *self {
            StoreError::Full(cause)
            | StoreError::PermissionDenied(cause)
            | StoreError::Io(cause) => Some(cause),
            StoreError::ReadOnly => Some(Cause::from_errno(libc::EROFS)),
            StoreError::BadResponse => Some(io::ErrorKind::InvalidData.into()),
            _ => None,
        }
    }

    /// Whether the same change may succeed later, or may have been made: the service or the machine
    /// did not refuse it, but was not able to make it or to say so. What it needs has to be kept.
    /// That includes a full disk, a quota that is used up, and a disk that fails: someone frees
    /// space, or repairs it.
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            StoreError::Busy
                | StoreError::InUse
                | StoreError::Full(_)
                | StoreError::OverQuota
                | StoreError::NotCounted
                | StoreError::Io(_)
                | StoreError::Throttled { .. }
                | StoreError::Unavailable
                | StoreError::Interrupted
                | StoreError::Timeout
                | StoreError::BadResponse
        )
    }

    /// Maps the error of a lookup or a read. A path that cannot be reached is reported as not
    /// found.
    pub(crate) fn from_lookup(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            // Includes: a parent is a file, a link loops or leaves the folder, a socket, no driver,
            // bytes that are no name on a file system that knows only Unicode (`EILSEQ`, and
            // `EINVAL` with `casefold` and a strict encoding), a file that was removed since it was
            // opened (NFS, FUSE).
            Some(
                libc::ENOENT
                | libc::ENOTDIR
                | libc::ELOOP
                | libc::EXDEV
                | libc::ENXIO
                | libc::ENODEV
                | libc::ENAMETOOLONG
                | libc::EILSEQ
                | libc::EINVAL
                | libc::ESTALE,
            ) => StoreError::NotFound,
            Some(libc::EISDIR) => StoreError::IsDirectory,
            _ => StoreError::from_open_file(error),
        }
    }

    /// Maps the error of watching a folder. The system limits the number of watches.
    pub(crate) fn from_watch(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EMFILE | libc::ENFILE | libc::ENOMEM) => StoreError::Busy,
            Some(libc::EACCES) => StoreError::from_lookup(error),
            _ => StoreError::Unsupported, // By this kernel, a filter, or without `/proc`.
        }
    }

    /// Maps the error of a change. An entry in the way is a conflict.
    pub(crate) fn from_change(error: io::Error) -> StoreError {
        let own = error.get_ref().and_then(|error| error.downcast_ref());
        if let Some(own) = own {
            return StoreError::clone(own);
        }
        match error.raw_os_error() {
            Some(libc::EISDIR) => StoreError::IsDirectory,
            Some(libc::ENOTDIR) => StoreError::NotDirectory,
            Some(libc::EEXIST | libc::ENOENT | libc::ELOOP | libc::EXDEV) => StoreError::Conflict,
            Some(libc::EBUSY) => StoreError::MountPoint,
            Some(libc::ENOTEMPTY) => StoreError::NotEmpty,
            Some(libc::ENAMETOOLONG | libc::EINVAL | libc::EILSEQ) => StoreError::InvalidKey,
            _ => StoreError::from_open_file(error),
        }
    }

    /// Maps the error of an operation on an open file or directory, which no name can have caused.
    pub(crate) fn from_open_file(error: io::Error) -> StoreError {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => StoreError::Full(Cause::from(&error)),
            Some(libc::EFBIG | libc::EOVERFLOW) => StoreError::TooLarge,
            Some(libc::EROFS) => StoreError::ReadOnly,
            Some(libc::EACCES | libc::EPERM) => StoreError::PermissionDenied(Cause::from(&error)),
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => StoreError::Busy,
            // The store keeps the space free.
            None if error.kind() == io::ErrorKind::StorageFull => {
                StoreError::Full(Cause::from(&error))
            }
            _ => StoreError::Io(Cause::from(&error)),
        }
    }
}
