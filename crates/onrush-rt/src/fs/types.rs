//! How files are opened, and how they are described.
//!
//! Does not depend on back ends.

use std::time::Duration;

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, not followed.
    Symlink,
    /// A FIFO, socket, device, or an unknown kind.
    Special,
}

/// The result of `statx(2)` for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Regular file, directory, …
    pub kind: FileKind,
    /// Bytes of content.
    pub size: u64,
    /// Bytes of the disk that the content occupies, with those that are reserved for it.
    pub allocated_bytes: u64,
    /// Inode number, unique on its device while the file exists.
    pub inode: u64,
    /// Device number, major and minor in one.
    pub device: u64,
    /// Time of the last change of content, in nanoseconds since 1970 (negative before).
    pub modified_ns: i64,
    /// Time of the last change of content or properties (ctime), in nanoseconds since 1970. Only
    /// the kernel sets it.
    pub changed_ns: i64,
    /// Permission bits (`0o7777` at most).
    pub mode: u32,
    /// The user that owns the file.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// The mount that the file was found through (`STATX_MNT_ID`, Linux 5.8). 0 if unknown.
    pub mount: u64,
    /// The number of names (hard links) of the file.
    pub nlink: u32,
}

impl Metadata {
    /// The age at which the times of a file are reliable. A younger file may change again within
    /// the same tick of the file system's clock, and then keeps its times. The tick is 1 to 10 ms
    /// on most file systems of Linux and 2 s on FAT.
    pub const RELIABLE_AFTER: Duration = Duration::from_secs(2);

    /// Device and inode. Two names with the same are names of one file or directory.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Mount and device of a directory. A file can be renamed between two directories only if both
    /// have the same: a bind mount has the device of its source, and a subvolume of btrfs the mount
    /// of the volume.
    pub fn file_system(&self) -> (u64, u64) {
        (self.mount, self.device)
    }
}

/// Whether an open may create the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It must exist.
    No,
    /// It is created unless it exists (`O_CREAT`).
    IfMissing,
    /// It must not exist (`O_CREAT | O_EXCL`).
    New,
}

/// How to open a file. `O_CLOEXEC`, `O_NONBLOCK` and `O_NOCTTY` are always added, so that a FIFO
/// cannot block the open and a terminal cannot become the controlling one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHow {
    /// Opens for reading.
    pub read: bool,
    /// Opens for writing.
    pub write: bool,
    /// Whether it is created.
    pub create: Create,
    /// Permission bits of a created file, before the process's umask.
    pub mode: u32,
}

impl OpenHow {
    /// An existing file, for reading.
    pub const READ: OpenHow = OpenHow {
        read: true,
        write: false,
        create: Create::No,
        mode: 0,
    };

    /// A file that must not exist yet, for reading and writing.
    pub const fn create_new(mode: u32) -> OpenHow {
        OpenHow {
            read: true,
            write: true,
            create: Create::New,
            mode,
        }
    }
}

/// How paths are confined to their directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beneath {
    /// `openat2(2)` if the kernel has it and allows it, otherwise as [`Beneath::Walk`].
    Auto,
    /// Segment by segment with `O_NOFOLLOW`: every symbolic link is refused (`ELOOP`).
    Walk,
}
