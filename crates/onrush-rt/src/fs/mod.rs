//! Files and directories, as synchronous operations: each call is one or two system calls on the
//! calling thread. Calls that cannot block ([`Dir::open_cached`], [`File::try_read_at`], metadata
//! of an open file) are safe on a worker, if the file system is local ([`Dir::is_local`]);
//! everything else belongs on the [`blocking`](crate::blocking) pool.
//!
//! One API has two back ends: the kernel, and [`sim`], a file system in memory that models what a
//! disk loses when the power fails. A path is bytes, relative, and never leads out of the directory
//! it is looked up in ([`File::open`] is the exception). A *name* is one segment of a path.
//!
//! Errors are [`std::io::Error`]s that carry the errno and no path.
//!
//! Modules, lowest first: `types` · `attribute_at`, `mount_table`, `release`, `resident`,
//! `walk` · `kernel`, [`sim`] · `advice`, `again`, `by_path`, `copy`, `links`, `lock`, `notify`,
//! `rights`. They do not depend on tasks, drivers or objects.

mod advice;
mod again;
mod attribute_at;
mod by_path;
mod copy;
mod kernel;
mod links;
mod lock;
mod mount_table;
mod notify;
mod release;
mod resident;
mod rights;
pub mod sim;
#[cfg(test)]
mod tests;
mod types;
mod walk;

pub use notify::{Notice, Notifier, WatchId};
pub use release::Releaser;
pub use types::{Beneath, Create, FileKind, Metadata, OpenHow};

use crate::descriptors::{FilePermit, FileUse};
use release::Guard;
use std::any::Any;
use std::ffi::CStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Callback of [`Dir::read_dir`] for an entry: its name, and its kind if the file system provides
/// it; `Break` ends the reading.
pub type EachEntry<'a> = dyn FnMut(&[u8], Option<FileKind>) -> ControlFlow<()> + 'a;

/// An open directory; everything is looked up beneath it. Closed when dropped.
///
/// # Examples
/// ```
/// use onrush_rt::fs::{Dir, OpenHow};
/// # let folder = std::env::temp_dir().join(format!("onrush-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
///
/// let dir = Dir::open_root(&folder)?;
/// let file = dir.open(b"new", OpenHow::create_new(0o644))?;
/// file.write_all_at(b"hello", 0)?;
/// file.sync()?;
/// dir.rename(b"new", &dir, b"greeting", false)?;
/// dir.sync()?; // The content and its new name are durable now.
/// assert_eq!(dir.metadata(b"greeting")?.size, 5);
/// assert!(dir.open(b"../other", OpenHow::READ).is_err()); // No path leads out.
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Dir(DirInner);

#[derive(Debug)]
enum DirInner {
    Kernel(kernel::Dir),
    Sim(sim::SimDir),
}

/// The entries of a directory that were not read yet: [`Dir::names`]. Entries that are created or
/// removed meanwhile may be among them or not.
#[derive(Debug)]
pub struct Names(NamesInner);

#[derive(Debug)]
enum NamesInner {
    Kernel(kernel::Names),
    Sim(sim::SimNames),
}

/// An open file. It may be a directory or a FIFO; callers check that by [`File::metadata`]. Closed
/// when dropped.
///
/// # Examples
/// ```
/// use onrush_rt::fs::{OpenHow, sim::SimFs};
///
/// let root = SimFs::new(1).root()?; // Or `Dir::open_root`, for a folder of the kernel.
/// let file = root.open(b"digits", OpenHow::create_new(0o644))?;
/// file.write_all_at(b"0123456789", 0)?;
/// let mut part = [0; 4];
/// assert_eq!(file.read_at(&mut part, 8)?, 2); // The end of the file.
/// assert_eq!(&part[..2], b"89");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct File {
    // Fields are dropped in this order: a permit is returned after the file is closed, and the last
    // reference to its content is closed after this one.
    inner: FileInner,
    permit: Option<FilePermit>,
    last_reference: Option<LastReference>,
    guard: Option<Guard>,
}

#[derive(Debug)]
enum FileInner {
    Kernel(kernel::File),
    Sim(sim::SimFile),
}

/// Has the content of a removed file freed elsewhere, see [`File::release_on`].
#[derive(Debug)]
struct LastReference {
    releaser: Arc<Releaser>,
    /// A duplicate of the descriptor, made when the file is dropped.
    descriptor: Option<OwnedFd>,
    /// The guard of the file, which is dropped after the content is freed.
    guard: Option<Guard>,
}

impl Drop for LastReference {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.releaser.add(descriptor, self.guard.take());
        }
    }
}

/// A file that was opened in another way. Positions of reads and writes are explicit, so that of
/// the descriptor has no meaning.
///
/// # Examples
/// ```
/// use onrush_rt::fs::File;
///
/// # let path = std::env::temp_dir().join(format!("onrush-doc-std-{}", std::process::id()));
/// # std::fs::write(&path, "content")?;
/// let file = File::from(std::fs::File::open(&path)?);
/// assert_eq!(file.metadata()?.size, 7);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        FileInner::Kernel(kernel::File::from(OwnedFd::from(file))).into()
    }
}

impl From<FileInner> for File {
    fn from(inner: FileInner) -> File {
        File {
            inner,
            permit: None,
            last_reference: None,
            guard: None,
        }
    }
}

/// Calls the back end of `self`.
macro_rules! either {
    ($inner:expr, $kind:ident, $it:ident => $call:expr) => {
        match $inner {
            $kind::Kernel($it) => $call,
            $kind::Sim($it) => $call,
        }
    };
}
use either;

impl Dir {
    /// Opens the directory at `path`, which may be absolute and may lead through symbolic links:
    /// the caller is trusted. Probes once whether `openat2(2)` may be used.
    pub fn open_root(path: &Path) -> io::Result<Dir> {
        Dir::open_root_with(path, Beneath::Auto)
    }

    /// Like [`Dir::open_root`], with a choice of how paths are resolved (for tests of the
    /// fallback).
    pub fn open_root_with(path: &Path, beneath: Beneath) -> io::Result<Dir> {
        kernel::Dir::open_root(path, beneath).map(|dir| Dir(DirInner::Kernel(dir)))
    }

    /// Whether symbolic links that stay beneath the root are followed. If `openat2(2)` is missing
    /// or refused when the root is opened, every link is refused (`ELOOP`).
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
            DirInner::Kernel(dir) => dir.open(path, how).map(|f| FileInner::Kernel(f).into()),
            DirInner::Sim(dir) => dir.open(path, how).map(|f| FileInner::Sim(f).into()),
        }
    }

    /// Opens an existing file for reading if the kernel can do so from its caches alone
    /// (`RESOLVE_CACHED`). Otherwise, or if the kernel does not support this, fails with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock), and with
    /// [`CrossesDevices`](io::ErrorKind::CrossesDevices) if the path leads to another mount or out;
    /// use [`Dir::open`] on the pool then. On a file system that is not local ([`Dir::is_local`])
    /// this waits as [`Dir::open`] does.
    pub fn open_cached(&self, path: &[u8]) -> io::Result<File> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.open_cached(path).map(|f| FileInner::Kernel(f).into()),
            DirInner::Sim(dir) => dir.open_cached(path).map(|f| FileInner::Sim(f).into()),
        }
    }

    /// Opens a directory beneath this one (`b"."` is this one again), by the same rules.
    pub fn open_dir(&self, path: &[u8]) -> io::Result<Dir> {
        match &self.0 {
            DirInner::Kernel(dir) => dir.open_dir(path).map(|d| Dir(DirInner::Kernel(d))),
            DirInner::Sim(dir) => dir.open_dir(path).map(|d| Dir(DirInner::Sim(d))),
        }
    }

    /// Metadata of the file at `path`, by the rules of [`Dir::open`] (`statx(2)`; for a symbolic
    /// link or a longer path after an `openat2(2)` with `O_PATH`). Nothing is opened for reading,
    /// so a device is not disturbed.
    pub fn metadata(&self, path: &[u8]) -> io::Result<Metadata> {
        either!(&self.0, DirInner, dir => dir.metadata(path))
    }

    /// Metadata of the entry `name` itself, without following a symbolic link: one `statx(2)`.
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
    /// an existing entry unless `no_replace` (then `EEXIST`). A directory that is not empty is not
    /// replaced (`ENOTEMPTY`, on each file system). Between two back ends: `EXDEV`.
    pub fn rename(&self, from: &[u8], to_dir: &Dir, to: &[u8], no_replace: bool) -> io::Result<()> {
        check_name(from)?;
        check_name(to)?;
        match (&self.0, &to_dir.0) {
            (DirInner::Kernel(a), DirInner::Kernel(b)) => a.rename(from, b, to, no_replace),
            (DirInner::Sim(a), DirInner::Sim(b)) => a.rename(from, b, to, no_replace),
            _ => Err(io::Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Swaps the entry `name` of this directory with `other_name` of `other` in one step
    /// (`renameat2(2)`, `RENAME_EXCHANGE`). Both must exist. `EINVAL` if the file system does not
    /// support this.
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

    /// Removes the empty directory `name` (`unlinkat(2)` with `AT_REMOVEDIR`). If it is not empty:
    /// `ENOTEMPTY`, on each file system.
    pub fn remove_dir(&self, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        either!(&self.0, DirInner, dir => dir.remove_dir(name))
    }

    /// Makes this directory's entries durable (`fsync(2)`). After a failure the entries may or may
    /// not be durable; another call proves nothing, because the kernel reports an error once. File
    /// systems that cannot sync a directory (some network ones, `EINVAL`) count as success.
    pub fn sync(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.sync())
    }

    /// Calls `each` for every entry but `.` and `..`, in the disk's order, with the name and, if
    /// the file system provides it, the kind (`getdents64(2)`). Ends early on `Break`. Allocates
    /// one buffer, whatever the number of entries; concurrent calls do not disturb each other.
    pub fn read_dir(&self, each: &mut EachEntry<'_>) -> io::Result<()> {
        let mut names = self.names()?;
        while names.read_some(each)? {}
        Ok(())
    }

    /// The entries of this directory, to be read in steps. Opens a descriptor of its own.
    pub fn names(&self) -> io::Result<Names> {
        Ok(Names(match &self.0 {
            DirInner::Kernel(dir) => NamesInner::Kernel(dir.names()?),
            DirInner::Sim(dir) => NamesInner::Sim(dir.names()?),
        }))
    }

    /// Locks this directory exclusively, until the `Dir` is dropped or the process ends
    /// (`flock(2)`). Does not wait: a lock held elsewhere gives `WouldBlock`.
    pub fn lock_exclusive(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.lock(true))
    }

    /// Like [`Dir::lock_exclusive`], but shared with other shared locks.
    pub fn lock_shared(&self) -> io::Result<()> {
        either!(&self.0, DirInner, dir => dir.lock(false))
    }

    /// Bytes that this process may still write on this file system (`fstatvfs(3)`). The largest
    /// size of a file if it does not say how large it is.
    pub fn free_bytes(&self) -> io::Result<u64> {
        either!(&self.0, DirInner, dir => dir.free_bytes())
    }

    /// Bytes that are in use on this file system, by whomever (`fstatvfs(3)`).
    pub fn used_bytes(&self) -> io::Result<u64> {
        either!(&self.0, DirInner, dir => dir.used_bytes())
    }

    /// Whether this file system is only in memory (tmpfs, ramfs; `fstatfs(2)`), so that its
    /// operations never wait for a device. `false` if that is unknown.
    pub fn is_in_memory(&self) -> bool {
        either!(&self.0, DirInner, dir => dir.is_in_memory())
    }

    /// Whether the operations of this file system wait for nothing but a disk or the memory of this
    /// machine (`fstatfs(2)`), so that those that need no disk are safe on a worker. `false` for
    /// FUSE and network file systems, where a program or another machine responds to each open,
    /// `statx(2)` and close, and for unknown ones. May block.
    pub fn is_local(&self) -> bool {
        either!(&self.0, DirInner, dir => dir.is_local())
    }

    /// Whether files of this directory's file system keep extended attributes in the `user.`
    /// namespace (xattr(7)). Found out by setting one of this directory and removing it again, so
    /// the directory must be one's own: `false` also when that is refused. May block.
    pub fn keeps_attributes(&self) -> bool {
        either!(&self.0, DirInner, dir => dir.keeps_attributes())
    }

    /// Whether names in this directory are known not to be distinguished by case: by the kind of
    /// its file system (vfat, exFAT; `fstatfs(2)`), or because it is marked so (`casefold` of ext4
    /// and f2fs; `FS_IOC_GETFLAGS`). `false` if that is unknown.
    pub fn folds_names(&self) -> bool {
        either!(&self.0, DirInner, dir => dir.folds_names())
    }

    /// Identifies the time since the kernel has started (`/proc/sys/kernel/random/boot_id`, 36
    /// bytes), or since the last power cut of the simulator: what was written since then and not
    /// synced is there.
    ///
    /// # Errors
    ///
    /// If the kernel's file cannot be read.
    pub fn boot_id(&self) -> io::Result<String> {
        either!(&self.0, DirInner, dir => dir.boot_id())
    }

    /// The wall clock in nanoseconds since 1970 (`CLOCK_REALTIME`), or the simulator's clock. It
    /// may step back.
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

impl Names {
    /// As [`Dir::read_dir`], for the next entries: about a thousand, which one call of
    /// `getdents64(2)` returns. Returns whether there may be more.
    pub fn read_some(&mut self, each: &mut EachEntry<'_>) -> io::Result<bool> {
        either!(&mut self.0, NamesInner, names => names.read_some(each))
    }
}

impl File {
    /// The file with its permit of a descriptor budget, which is dropped after the file is closed.
    pub fn with_permit(mut self, permit: FilePermit) -> File {
        self.permit = Some(permit);
        self
    }

    /// Has `releaser` free the content if all names of the file are removed when this is dropped.
    /// The last close of a large file without a name takes long (50 ms for 1 GB in memory). If no
    /// descriptor is free at that moment, the content is freed by the drop itself.
    pub fn release_on(mut self, releaser: &Arc<Releaser>) -> File {
        self.last_reference = Some(LastReference {
            releaser: releaser.clone(),
            descriptor: None,
            guard: None,
        });
        self
    }

    /// The file with a value that is dropped after the file is closed, such as an account of its
    /// space.
    pub fn with_guard(mut self, guard: Arc<dyn Any + Send + Sync>) -> File {
        self.guard = Some(guard);
        self
    }

    /// Adds such a value to what the file has.
    pub fn add_guard(&mut self, guard: Arc<dyn Any + Send + Sync>) {
        self.guard = Some(match self.guard.take() {
            None => guard,
            Some(before) => Arc::new((before, guard)),
        });
    }

    /// Whether the budget allows this file to stay open for `what_for`; always without a budget.
    pub fn may_stay_open(&self, what_for: FileUse) -> bool {
        let permit = self.permit.as_ref();
        permit.is_none_or(|permit| permit.allows(what_for))
    }

    /// Reads at `offset` into `buf` (`pread(2)`). Returns the number of bytes read, possibly fewer
    /// than requested; 0 at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        either!(&self.inner, FileInner, file => file.read_at(buf, offset))
    }

    /// Like [`File::read_at`], but appends at most `len` bytes to `buf`, within its spare capacity;
    /// no byte is zeroed first.
    pub fn read_to_vec(&self, buf: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        either!(&self.inner, FileInner, file => file.read_to_vec(buf, len, offset, false))
    }

    /// Like [`File::read_at`], but reads only from the page cache (`preadv2(2)` with `RWF_NOWAIT`).
    /// `WouldBlock` if the first byte is not cached, or if the file system cannot tell.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        either!(&self.inner, FileInner, file => file.try_read_at(buf, offset))
    }

    /// Like [`File::read_to_vec`], but reads only from the page cache, as [`File::try_read_at`]
    /// does.
    pub fn try_read_to_vec(&self, buf: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        either!(&self.inner, FileInner, file => file.read_to_vec(buf, len, offset, true))
    }

    /// Writes some of `buf` at `offset` (`pwrite(2)`). Returns the number of bytes, at least one if
    /// `buf` is not empty.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        either!(&self.inner, FileInner, file => file.write_at(buf, offset))
    }

    /// Writes all of `buf` at `offset`; after an error an unknown part of it has been written.
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

    /// Makes content and metadata durable (`fsync(2)`). After a failure the kernel drops the pages
    /// that were to be written; a later success says nothing about them.
    pub fn sync(&self) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.sync(false))
    }

    /// Makes content and size durable, but not the time (`fdatasync(2)`). Fails like
    /// [`File::sync`].
    pub fn sync_data(&self) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.sync(true))
    }

    /// Kind, size, times (`statx(2)` of the descriptor; does not block on a local file system).
    pub fn metadata(&self) -> io::Result<Metadata> {
        either!(&self.inner, FileInner, file => file.metadata())
    }

    /// Sets the modification time (`utimensat(2)`), in nanoseconds since 1970, and the time of the
    /// last access as well. File systems may store it more coarsely; [`File::metadata`] returns the
    /// stored time.
    pub fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.set_modified(modified_ns))
    }

    /// Sets the extended attribute `name`, such as `user.origin`, or replaces it (`fsetxattr(2)`).
    /// [`File::sync`] makes it durable. `EOPNOTSUPP` where the file system keeps none, `ENOSPC`
    /// where it has no room for one of this length (ext4: a block for all attributes of a file).
    pub fn set_attribute(&self, name: &CStr, value: &[u8]) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.set_attribute(name, value))
    }

    /// The extended attribute `name` (`fgetxattr(2)`). `None` if the file has none of that name, or
    /// the file system keeps none. `ERANGE` if it is longer than `len_max` bytes. May block, unless
    /// the file has no attribute at all.
    pub fn attribute(&self, name: &CStr, len_max: usize) -> io::Result<Option<Vec<u8>>> {
        either!(&self.inner, FileInner, file => file.attribute(name, len_max))
    }

    /// Reserves disk space for the first `len` bytes without changing the size (`fallocate(2)` with
    /// `FALLOC_FL_KEEP_SIZE`), so that a full disk is detected early (`ENOSPC`). Does nothing if
    /// the file system does not support it.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.allocate(len))
    }

    /// Sets the size (`ftruncate(2)`); new bytes are zero.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        either!(&self.inner, FileInner, file => file.set_len(len))
    }

    /// Whether the file is on a local file system: see [`Dir::is_local`]. May block.
    pub fn is_local(&self) -> bool {
        either!(&self.inner, FileInner, file => file.is_local())
    }

    /// Whether a `sendfile(2)` of these bytes would find them all in the page cache: `cachestat(2)`
    /// (Linux 6.5), on older kernels probes with `RWF_NOWAIT`, sparse over long ranges. The range
    /// must lie within the file. A hint: pages may leave the cache at any moment, and a positive
    /// result is reused for a tenth of a second.
    pub fn is_resident(&self, offset: u64, len: u64) -> bool {
        match &self.inner {
            FileInner::Kernel(file) => file.is_resident(offset, len),
            FileInner::Sim(file) => file.is_resident(),
        }
    }

    /// The descriptor, for `sendfile(2)` or operations of a driver; `None` in the simulator.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            FileInner::Kernel(file) => Some(file.as_fd()),
            FileInner::Sim(_) => None,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(last_reference) = &mut self.last_reference else {
            return;
        };
        if let FileInner::Kernel(file) = &self.inner
            && file.metadata().is_ok_and(|found| found.nlink == 0)
        {
            last_reference.descriptor = file.as_fd().try_clone_to_owned().ok();
            if last_reference.descriptor.is_some() {
                last_reference.guard = self.guard.take();
            }
        }
    }
}

/// A name is one segment of a path; other strings would escape the checks of path lookup.
fn check_name(name: &[u8]) -> io::Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Ok(())
}
