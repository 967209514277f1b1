//! Files and directories, as straight-line operations: each call is one kernel call or two, done
//! on the thread that calls. What cannot block ([`Dir::open_cached`], [`File::try_read_at`],
//! metadata of an open file) may be called on a worker; everything else belongs on the
//! [`blocking`](crate::blocking) pool.
//!
//! One API has two back ends: the kernel, and [`sim`], a file system in memory that knows what a
//! disk forgets when the power goes. A path is bytes, relative, and never leads out of the
//! directory it is looked up in; where a *name* is asked for, it is one segment of a path.
//!
//! Errors are [`std::io::Error`]s that carry the errno and no path.
//!
//! This module must not know tasks, drivers or pools, and nothing of objects.

mod kernel;
mod resident;
pub mod sim;
#[cfg(test)]
mod tests;
mod walk;

use crate::descriptors::{FilePermit, FileUse};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// What [`Dir::read_dir`] calls for an entry: with its name, and its kind where the file system
/// tells it; `Break` ends the reading.
pub type EachEntry<'a> = dyn FnMut(&[u8], Option<FileKind>) -> ControlFlow<()> + 'a;

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, not followed.
    Symlink,
    /// A FIFO, socket, device, or a thing this kernel has and we do not know.
    Special,
}

/// What `statx(2)` tells of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Regular file, directory, …
    pub kind: FileKind,
    /// Bytes of content.
    pub size: u64,
    /// Inode number, unique on its device while the file exists.
    pub inode: u64,
    /// Device number, major and minor in one.
    pub device: u64,
    /// Time of the last change of content, in nanoseconds since 1970 (negative before).
    pub modified_ns: i64,
    /// Permission bits (`0o7777` at most).
    pub mode: u32,
    /// How many names the file has.
    pub nlink: u32,
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
/// or a terminal can neither hang the open nor become ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHow {
    /// For reading.
    pub read: bool,
    /// For writing.
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

/// How paths are kept beneath their directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beneath {
    /// `openat2(2)` where the kernel has it and lets us, otherwise as [`Beneath::Walk`].
    Auto,
    /// Segment by segment with `O_NOFOLLOW`: every symbolic link is refused (`ELOOP`).
    Walk,
}

/// An open directory; everything is looked up beneath it. Closed when dropped.
#[derive(Debug)]
pub struct Dir(DirInner);

#[derive(Debug)]
enum DirInner {
    Kernel(kernel::Dir),
    Sim(sim::SimDir),
}

/// An open file. Its kind is for the caller to check by [`File::metadata`]: it may be a directory
/// or a FIFO. Closed when dropped.
#[derive(Debug)]
pub struct File(FileInner, Option<FilePermit>);

#[derive(Debug)]
enum FileInner {
    Kernel(kernel::File),
    Sim(sim::SimFile),
}

/// Sends a call to whichever back end is behind `self`.
macro_rules! either {
    ($inner:expr, $kind:ident, $it:ident => $call:expr) => {
        match $inner {
            $kind::Kernel($it) => $call,
            $kind::Sim($it) => $call,
        }
    };
}

impl Dir {
    /// Opens the directory at `path`, which may be absolute and may lead through symbolic links:
    /// whoever names the root is trusted. Probes once whether `openat2(2)` may be used.
    pub fn open_root(path: &Path) -> io::Result<Dir> {
        Dir::open_root_with(path, Beneath::Auto)
    }

    /// As [`Dir::open_root`], with a say in how paths are resolved (for tests of the fallback).
    pub fn open_root_with(path: &Path, beneath: Beneath) -> io::Result<Dir> {
        kernel::Dir::open_root(path, beneath).map(|dir| Dir(DirInner::Kernel(dir)))
    }

    /// Whether symbolic links that stay beneath the root are followed. Not where `openat2(2)` is
    /// missing or refused when the root is opened: every link is refused then (`ELOOP`).
    pub fn follows_links(&self) -> bool {
        match &self.0 {
            DirInner::Kernel(dir) => dir.follows_links(),
            DirInner::Sim(_) => true,
        }
    }

    /// Opens a file beneath this directory: `openat2(2)` with `RESOLVE_BENEATH |
    /// RESOLVE_NO_MAGICLINKS`. A path that leads out fails with `EXDEV`; symbolic links that stay
    /// within are followed, except in the fallback.
    pub fn open(&self, path: &[u8], how: OpenHow) -> io::Result<File> {
        match &self.0 {
            DirInner::Kernel(dir) => dir
                .open(path, how)
                .map(|f| File(FileInner::Kernel(f), None)),
            DirInner::Sim(dir) => dir.open(path, how).map(|f| File(FileInner::Sim(f), None)),
        }
    }

    /// Opens an existing file for reading if the kernel can do so from its caches alone
    /// (`RESOLVE_CACHED`); otherwise, or where the kernel lacks it, fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) and [`Dir::open`] is to be used on the pool.
    pub fn open_cached(&self, path: &[u8]) -> io::Result<File> {
        match &self.0 {
            DirInner::Kernel(dir) => dir
                .open_cached(path)
                .map(|f| File(FileInner::Kernel(f), None)),
            DirInner::Sim(dir) => dir.open_cached(path).map(|f| File(FileInner::Sim(f), None)),
        }
    }

    /// Opens a directory beneath this one (`b"."` is this one again), by the same rules.
    pub fn open_dir(&self, path: &[u8]) -> io::Result<Dir> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.open_dir(path).map(|d| Dir(DirInner::Kernel(d))),
            DirInner::Sim(dir) => dir.open_dir(path).map(|d| Dir(DirInner::Sim(d))),
        }
    }

    /// What is at `path`, by the rules of [`Dir::open`] (`statx(2)`, for a symbolic link or a
    /// longer path after an `openat2(2)` with `O_PATH`). Nothing is opened for reading, so a
    /// device is not disturbed.
    pub fn metadata(&self, path: &[u8]) -> io::Result<Metadata> {
        either!(&self.0, DirInner, dir => dir.metadata(path))
    }

    /// What the entry `name` is, itself, a symbolic link not followed: one `statx(2)`.
    pub fn entry_metadata(&self, name: &[u8]) -> io::Result<Metadata> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.entry_metadata(name))
    }

    /// This directory's own metadata.
    pub fn self_metadata(&self) -> io::Result<Metadata> {
        either!(&self.0, DirInner, dir => dir.self_metadata())
    }

    /// Creates the directory `name` (`mkdirat(2)`), `mode` before the umask.
    pub fn create_dir(&self, name: &[u8], mode: u32) -> io::Result<()> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.create_dir(name, mode))
    }

    /// Renames the entry `from` of this directory to `to` in `to_dir` (`renameat2(2)`), replacing
    /// what is there unless `no_replace` (then `EEXIST`). Directories of two back ends: `EXDEV`.
    pub fn rename(&self, from: &[u8], to_dir: &Dir, to: &[u8], no_replace: bool) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        match (&self.0, &to_dir.0) {
            (DirInner::Kernel(a), DirInner::Kernel(b)) => a.rename(from, b, to, no_replace),
            (DirInner::Sim(a), DirInner::Sim(b)) => a.rename(from, b, to, no_replace),
            _ => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Swaps the entry `name` of this directory with `other_name` of `other`, both of which must
    /// exist, in one step (`renameat2(2)`, `RENAME_EXCHANGE`). `EINVAL` where the file system
    /// cannot.
    pub fn exchange(&self, name: &[u8], other: &Dir, other_name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        check_name(other_name)?;
        match (&self.0, &other.0) {
            (DirInner::Kernel(a), DirInner::Kernel(b)) => a.exchange(name, b, other_name),
            (DirInner::Sim(a), DirInner::Sim(b)) => a.exchange(name, b, other_name),
            _ => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Removes the entry `name`, which is not a directory (`unlinkat(2)`).
    pub fn unlink(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.unlink(name))
    }

    /// Removes the empty directory `name` (`unlinkat(2)` with `AT_REMOVEDIR`).
    pub fn remove_dir(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.remove_dir(name))
    }

    /// Makes this directory's entries durable (`fsync(2)`). After a failure the entries may or
    /// may not be; calling again proves nothing, the kernel reports an error once.
    /// File systems that cannot sync a directory (some network ones, `EINVAL`) count as done.
    pub fn sync(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.sync())
    }

    /// Calls `each` for every entry but `.` and `..`, in the disk's order, with the name and the
    /// kind where the file system tells it (`getdents64(2)`). Ends early on `Break`. Allocates
    /// one buffer, whatever the number of entries; concurrent calls do not disturb each other.
    pub fn read_dir(&self, each: &mut EachEntry<'_>) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.read_dir(each))
    }

    /// Locks this directory for us alone, until the `Dir` is dropped or the process ends
    /// (`flock(2)`). Does not wait: a lock held elsewhere gives `WouldBlock`.
    pub fn lock_exclusive(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.lock(true))
    }

    /// As [`Dir::lock_exclusive`], but others may hold it in the same way.
    pub fn lock_shared(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.lock(false))
    }

    /// Bytes that may still be written by us on this file system (`fstatvfs(3)`).
    pub fn free_bytes(&self) -> io::Result<u64> {
        either!(&self.0, DirInner, dir => dir.free_bytes())
    }

    /// Whether this file system is kept in memory alone (tmpfs, ramfs; `fstatfs(2)`), so that
    /// nothing done in it waits for a device. `false` where that is not known.
    pub fn is_in_memory(&self) -> bool {
        either!(&self.0, DirInner, dir => dir.is_in_memory())
    }

    /// The wall clock in nanoseconds since 1970 (`CLOCK_REALTIME`), or the simulator's. It may
    /// step back; whoever needs order must add it.
    pub fn now_ns(&self) -> i64 {
        either!(&self.0, DirInner, dir => dir.now_ns())
    }

    /// The descriptor, for operations of a driver; `None` in the simulator.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            DirInner::Kernel(dir) => Some(dir.as_fd()),
            DirInner::Sim(_) => None,
        }
    }
}

impl File {
    /// The file with its place in a budget of descriptors, which it gives back after it is closed.
    pub fn with_permit(self, permit: FilePermit) -> File {
        File(self.0, Some(permit))
    }

    /// Whether the budget lets this file stay open for `what_for`; always without a budget.
    pub fn may_stay_open(&self, what_for: FileUse) -> bool {
        let permit = self.1.as_ref();
        permit.is_none_or(|permit| permit.allows(what_for))
    }

    /// Reads at `offset` into `buf` (`pread(2)`): the bytes read, 0 at the end, perhaps fewer than
    /// asked for.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        either!(&self.0, FileInner, file => file.read_at(buf, offset))
    }

    /// As [`File::read_at`], but appends to `buf` at most `len` bytes, and never more than its
    /// spare capacity; no byte is zeroed first.
    pub fn read_to_vec(&self, buf: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        either!(&self.0, FileInner, file => file.read_to_vec(buf, len, offset, false))
    }

    /// As [`File::read_at`], but only what is in the page cache (`preadv2(2)` with `RWF_NOWAIT`);
    /// `WouldBlock` if the first byte is not, or where the file system cannot tell.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        either!(&self.0, FileInner, file => file.try_read_at(buf, offset))
    }

    /// [`File::read_to_vec`] of what is in the page cache, as [`File::try_read_at`].
    pub fn try_read_to_vec(&self, buf: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        either!(&self.0, FileInner, file => file.read_to_vec(buf, len, offset, true))
    }

    /// Writes some of `buf` at `offset` (`pwrite(2)`): how many bytes, at least one of a buffer
    /// that is not empty.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        either!(&self.0, FileInner, file => file.write_at(buf, offset))
    }

    /// Writes all of `buf` at `offset`; after an error an unknown part of it is written.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    buf = &buf[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes content and metadata durable (`fsync(2)`). After a failure the pages that were to be
    /// written are forgotten by the kernel; a later success says nothing about them.
    pub fn sync(&self) -> io::Result<()> {
        either!(&self.0, FileInner, file => file.sync(false))
    }

    /// Makes content and size durable, but not the time (`fdatasync(2)`). Fails as [`File::sync`].
    pub fn sync_data(&self) -> io::Result<()> {
        either!(&self.0, FileInner, file => file.sync(true))
    }

    /// Kind, size, times (`statx(2)` of the descriptor; does not block on a local file system).
    pub fn metadata(&self) -> io::Result<Metadata> {
        either!(&self.0, FileInner, file => file.metadata())
    }

    /// Sets the time of last change (`utimensat(2)`), in nanoseconds since 1970. File systems may
    /// keep it more coarsely; [`File::metadata`] tells what they kept.
    pub fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        either!(&self.0, FileInner, file => file.set_modified(modified_ns))
    }

    /// Reserves disk space for the first `len` bytes without changing the size (`fallocate(2)`
    /// with `FALLOC_FL_KEEP_SIZE`), so that a full disk is told early (`ENOSPC`). Where the file
    /// system has no such thing this does nothing.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        either!(&self.0, FileInner, file => file.allocate(len))
    }

    /// Sets the size (`ftruncate(2)`); new bytes are zero.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        either!(&self.0, FileInner, file => file.set_len(len))
    }

    /// Tells the kernel to read ahead generously (`posix_fadvise(2)`). A hint: never fails.
    pub fn advise_sequential(&self) {
        match &self.0 {
            FileInner::Kernel(file) => file.advise_sequential(),
            FileInner::Sim(_) => {}
        }
    }

    /// Starts reading exactly this range into the page cache (`posix_fadvise(2)`,
    /// `POSIX_FADV_WILLNEED`). Unlike the kernel's own read-ahead, which a plain read starts, it
    /// takes nothing beyond the range, and a later send of the range starts no further reading.
    /// A hint: never fails. May block while the disk's queue is full.
    pub fn advise_needed(&self, offset: u64, len: u64) {
        match &self.0 {
            FileInner::Kernel(file) => file.advise_needed(offset, len),
            FileInner::Sim(_) => {}
        }
    }

    /// Starts writing this range to disk without waiting (`sync_file_range(2)`), so that the
    /// `fsync` at the end of a long upload finds little to do. A hint: never fails, proves
    /// nothing. May block while the disk's queue is full.
    pub fn start_writeback(&self, offset: u64, len: u64) {
        match &self.0 {
            FileInner::Kernel(file) => resident::start_writeback(file.as_fd(), offset, len),
            FileInner::Sim(_) => {}
        }
    }

    /// Whether a `sendfile(2)` of these bytes would find them all in the page cache:
    /// `cachestat(2)` (Linux 6.5), before that probes with `RWF_NOWAIT`, sparse over long ranges.
    /// The range must lie within the file. A hint: pages may leave the cache at any moment, and
    /// what was found there is taken to be there still for a tenth of a second.
    pub fn is_resident(&self, offset: u64, len: u64) -> bool {
        match &self.0 {
            FileInner::Kernel(file) => resident::is_resident(file, offset, len),
            FileInner::Sim(file) => file.is_resident(),
        }
    }

    /// The descriptor, for `sendfile(2)` or operations of a driver; `None` in the simulator.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            FileInner::Kernel(file) => Some(file.as_fd()),
            FileInner::Sim(_) => None,
        }
    }
}

/// A name is one segment of a path: anything else would escape the checks of path lookup.
fn check_name(name: &[u8]) -> io::Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(())
}
