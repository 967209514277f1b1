//! The kernel back end of [`super::Dir`] and [`super::File`]. Each function is the system call of
//! its name and repeats it on `EINTR`. The documentation is on the public types.
//!
//! This module does not depend on the simulator.

use super::attribute_at;
use super::mount_table::{self, PlaceInFileSystem};
use super::resident::{self, RecentProbe};
use super::walk::Lookup;
use super::{Beneath, Create, EachEntry, FileKind, Metadata, OpenHow};
use rustix::buffer::spare_capacity;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    self, Access, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, RawDir,
};
use rustix::fs::{RenameFlags, Statx, StatxFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::process::{Gid, Uid};
use std::ffi::CStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::path::Path;

/// File systems that are only in memory (linux/magic.h): tmpfs, ramfs.
const MEMORY_MAGIC: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// Of vfat and exFAT, which ignore the case of names (linux/magic.h).
const FOLDING_MAGIC: [u64; 2] = [0x4d44, 0x2011_bab0];
/// `FS_CASEFOLD_FL` (linux/fs.h).
const CASEFOLD_FLAG: u32 = 0x4000_0000;

/// Other file systems of the kernel whose calls wait for nothing but a disk of this machine.
const DISK_MAGIC: [u64; 11] = [
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x794c_7630, // overlay
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // SquashFS
    0x9660,      // ISO 9660
    0x7366_746e, // NTFS
];

/// The fields of [`Metadata`].
const STATX: StatxFlags = StatxFlags::TYPE
    .union(StatxFlags::MODE)
    .union(StatxFlags::NLINK)
    .union(StatxFlags::INO)
    .union(StatxFlags::SIZE)
    .union(StatxFlags::BLOCKS)
    .union(StatxFlags::MTIME)
    .union(StatxFlags::CTIME)
    .union(StatxFlags::UID)
    .union(StatxFlags::GID)
    .union(StatxFlags::MNT_ID);

/// The buffer size for directory entries, in bytes.
const DIR_BUF_BYTES: usize = 32 * 1024;

/// Set and removed to find out whether there are extended attributes.
const PROBE: &CStr = c"user.onrush.probe";

/// The length up to which an attribute is read by one call, in bytes.
const SHORT_ATTRIBUTE_BYTES: usize = 256;

const NS_PER_S: i64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    lookup: Lookup,
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

impl Dir {
    pub(super) fn open_root(path: &Path, beneath: Beneath) -> io::Result<Dir> {
        let fd = retry_on_intr(|| fs::open(path, DIR_FLAGS, Mode::empty()))?;
        let lookup = Lookup::probe(fd.as_fd(), beneath);
        Ok(Dir { fd, lookup })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn follows_links(&self) -> bool {
        self.lookup.follows_links()
    }

    pub(super) fn open(&self, path: &[u8], how: OpenHow) -> io::Result<File> {
        let flags = match (how.read, how.write) {
            (_, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
        };
        let (create, mode) = match how.create {
            Create::No => (OFlags::empty(), 0),
            Create::IfMissing => (OFlags::CREATE, how.mode),
            Create::New => (OFlags::CREATE | OFlags::EXCL, how.mode),
        };
        let flags = flags | create | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = Mode::from_raw_mode(mode);
        let fd = look_up(|| self.lookup.open(self.fd.as_fd(), path, flags, mode))?;
        Ok(fd.into())
    }

    pub(super) fn open_cached(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = look_up(|| self.lookup.open_cached(self.fd.as_fd(), path, flags))?;
        Ok(fd.into())
    }

    pub(super) fn open_dir(&self, path: &[u8]) -> io::Result<Dir> {
        let open = || (self.lookup).open(self.fd.as_fd(), path, DIR_FLAGS, Mode::empty());
        let fd = look_up(open)?;
        Ok(Dir {
            fd,
            lookup: self.lookup,
        })
    }

    pub(super) fn metadata(&self, path: &[u8]) -> io::Result<Metadata> {
        // An entry of this directory itself needs no descriptor, unless it is a link to follow.
        let one = !path.is_empty() && path != b".." && !path.contains(&b'/');
        if one {
            let found = self.entry_metadata(path)?;
            if found.kind != FileKind::Symlink {
                return Ok(found);
            }
        }
        let open = || (self.lookup).open(self.fd.as_fd(), path, OFlags::PATH, Mode::empty());
        let fd = look_up(open)?;
        stat_fd(fd.as_fd())
    }

    pub(super) fn entry_metadata(&self, name: &[u8]) -> io::Result<Metadata> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let found = look_up(|| fs::statx(&self.fd, name, flags, STATX))?;
        Ok(metadata(&found))
    }

    pub(super) fn self_metadata(&self) -> io::Result<Metadata> {
        let flags = AtFlags::EMPTY_PATH;
        let found = look_up(|| fs::statx(&self.fd, c"", flags, STATX))?;
        Ok(metadata(&found))
    }

    pub(super) fn create_dir(&self, name: &[u8], mode: u32) -> io::Result<()> {
        Ok(look_up(|| {
            fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode))
        })?)
    }

    pub(super) fn rename(
        &self,
        from: &[u8],
        to_dir: &Dir,
        to: &[u8],
        no_replace: bool,
    ) -> io::Result<()> {
        let flags = if no_replace {
            RenameFlags::NOREPLACE
        } else {
            RenameFlags::empty()
        };
        let renamed = look_up(|| fs::renameat_with(&self.fd, from, &to_dir.fd, to, flags));
        match no_replace {
            true => Ok(renamed?),
            false => Ok(not_empty(renamed)?),
        }
    }

    pub(super) fn exchange(&self, name: &[u8], other: &Dir, other_name: &[u8]) -> io::Result<()> {
        Ok(look_up(|| {
            fs::renameat_with(&self.fd, name, &other.fd, other_name, RenameFlags::EXCHANGE)
        })?)
    }

    pub(super) fn link(&self, name: &[u8], to_dir: &Dir, to: &[u8]) -> io::Result<()> {
        Ok(look_up(|| {
            fs::linkat(&self.fd, name, &to_dir.fd, to, AtFlags::empty())
        })?)
    }

    pub(super) fn read_link(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let target = look_up(|| fs::readlinkat(&self.fd, name, Vec::new()))?;
        Ok(target.into_bytes())
    }

    pub(super) fn is_within(&self, other: &Dir) -> io::Result<bool> {
        if self.is_reached_from(other)? {
            return Ok(true);
        }
        let places = [self, other].map(|dir| PlaceInFileSystem::of(dir.fd.as_fd()));
        Ok(match places {
            // Otherwise `..` has shown all that is above.
            [Some(own), Some(other)] if own.mount != other.mount => own.is_within(&other),
            _ => false,
        })
    }

    pub(super) fn mounted_beneath(&self) -> Option<Vec<Vec<u8>>> {
        mount_table::mounted_beneath(self.fd.as_fd())
    }

    /// Whether `other` is this directory, or above it by `..`.
    fn is_reached_from(&self, other: &Dir) -> io::Result<bool> {
        let wanted = other.self_metadata()?.identity();
        let mut here = self.self_metadata()?.identity();
        let mut above: Option<OwnedFd> = None;
        while here != wanted {
            let dir = above.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let next = match retry_on_intr(|| fs::openat(dir, c"..", flags, Mode::empty())) {
                // Removed, or above everything that this process may see.
                Err(Errno::NOENT | Errno::ACCESS) => return Ok(false),
                next => next?,
            };
            let found = stat_fd(next.as_fd())?.identity();
            if found == here {
                return Ok(false); // The top is its own `..`.
            }
            (here, above) = (found, Some(next));
        }
        Ok(true)
    }

    pub(super) fn may_change(&self) -> io::Result<bool> {
        let needed = Access::WRITE_OK | Access::EXEC_OK;
        match retry_on_intr(|| fs::accessat(&self.fd, c".", needed, AtFlags::EACCESS)) {
            Err(Errno::ACCESS | Errno::ROFS) => Ok(false),
            Ok(()) | Err(Errno::NOSYS | Errno::PERM) => Ok(true), // A sandbox may refuse the call.
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unlink(&self, name: &[u8]) -> io::Result<()> {
        Ok(look_up(|| fs::unlinkat(&self.fd, name, AtFlags::empty()))?)
    }

    pub(super) fn remove_dir(&self, name: &[u8]) -> io::Result<()> {
        Ok(not_empty(look_up(|| {
            fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)
        }))?)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        match retry_on_intr(|| fs::fsync(&self.fd)) {
            // Not a failed write: this file system cannot sync directories.
            Err(Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    pub(super) fn names(&self) -> io::Result<Names> {
        // A second descriptor, because the read position belongs to the first.
        let fd = look_up(|| fs::openat(&self.fd, c".", DIR_FLAGS, Mode::empty()))?;
        let mut buf = Vec::with_capacity(DIR_BUF_BYTES);
        buf.resize(DIR_BUF_BYTES, MaybeUninit::uninit());
        Ok(Names { fd, buf })
    }

    pub(super) fn lock(&self, exclusive: bool) -> io::Result<()> {
        let how = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        Ok(retry_on_intr(|| fs::flock(&self.fd, how))?)
    }

    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let found = retry_on_intr(|| fs::fstatvfs(&self.fd))?;
        // Without a size, as ramfs, tmpfs with `size=0`, and FUSE programs that do not tell.
        if found.f_blocks == 0 {
            return Ok(i64::MAX as u64);
        }
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(super) fn used_bytes(&self) -> io::Result<u64> {
        let found = retry_on_intr(|| fs::fstatvfs(&self.fd))?;
        let blocks = found.f_blocks.saturating_sub(found.f_bfree);
        Ok(blocks.saturating_mul(found.f_frsize))
    }

    pub(super) fn is_in_memory(&self) -> bool {
        is_one_of(self.fd.as_fd(), &[&MEMORY_MAGIC])
    }

    pub(super) fn is_local(&self) -> bool {
        is_local(self.fd.as_fd())
    }

    pub(super) fn folds_names(&self) -> bool {
        is_one_of(self.fd.as_fd(), &[&FOLDING_MAGIC])
            || fs::ioctl_getflags(&self.fd).is_ok_and(|flags| flags.bits() & CASEFOLD_FLAG != 0)
    }

    pub(super) fn keeps_attributes(&self) -> bool {
        let set = retry_on_intr(|| fs::fsetxattr(&self.fd, PROBE, b"1", XattrFlags::empty()));
        set.is_ok() && retry_on_intr(|| fs::fremovexattr(&self.fd, PROBE)).is_ok()
    }

    pub(super) fn attribute(&self, name: &CStr, len_max: usize) -> io::Result<Option<Vec<u8>>> {
        match attribute(self.fd.as_fd(), name, len_max) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Err(Errno::NOENT.into()),
            found => found,
        }
    }

    /// The attribute of the entry `name`; see [`attribute_at::read`].
    pub(super) fn entry_attribute(
        &self,
        name: &[u8],
        attribute: &CStr,
        len_max: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        let mut value = vec![0; SHORT_ATTRIBUTE_BYTES];
        loop {
            let read = attribute_at::read(self.fd.as_fd(), name, attribute, &mut value);
            match read.map_err(|error| (error.raw_os_error(), error)) {
                Ok(len) => {
                    value.truncate(len);
                    return Ok(Some(value));
                }
                Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::ERANGE), _)) if value.len() < len_max => value.resize(len_max, 0),
                Err((Some(libc::ENODATA | libc::EOPNOTSUPP), _)) => return Ok(None),
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Whether the file system has attributes of this kind.
    pub(super) fn knows_attribute(&self, name: &CStr) -> bool {
        let found = retry_on_intr(|| fs::fgetxattr_query(&self.fd, name));
        found.is_ok() || found == Err(Errno::NODATA)
    }

    pub(super) fn remove_attribute(&self, name: &CStr) -> io::Result<()> {
        Ok(retry_on_intr(|| fs::fremovexattr(&self.fd, name))?)
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(retry_on_intr(|| {
            fs::fchmod(&self.fd, Mode::from_raw_mode(mode))
        })?)
    }

    pub(super) fn boot_id(&self) -> io::Result<String> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(text.trim_end().to_owned())
    }

    pub(super) fn now_ns(&self) -> i64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        join_ns(now.tv_sec, now.tv_nsec)
    }
}

/// The entries of a directory that were not read yet.
#[derive(Debug)]
pub(super) struct Names {
    fd: OwnedFd,
    buf: Vec<MaybeUninit<u8>>,
}

impl Names {
    pub(super) fn read_some(&mut self, each: &mut EachEntry<'_>) -> io::Result<bool> {
        let mut entries = RawDir::new(&self.fd, &mut self.buf);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let name = entry.file_name().to_bytes();
            let is_own = name == b"." || name == b"..";
            if !is_own && each(name, kind(entry.file_type())).is_break() {
                return Ok(false);
            }
            if entries.is_buffer_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[derive(Debug)]
pub(super) struct File {
    fd: OwnedFd,
    recent: RecentProbe,
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File {
            fd,
            recent: RecentProbe::default(),
        }
    }
}

impl File {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn is_local(&self) -> bool {
        is_local(self.as_fd())
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| {
            rustix::io::pread(&self.fd, &mut *buf, offset)
        })?)
    }

    pub(super) fn read_to_vec(
        &self,
        buf: &mut Vec<u8>,
        len: usize,
        offset: u64,
        now: bool,
    ) -> io::Result<usize> {
        if now {
            let no_such_read = match resident::read_cached(self.as_fd(), buf, len, offset) {
                Err(error) => error.raw_os_error() == Some(libc::EOPNOTSUPP),
                read => return read,
            };
            let len = len.min(buf.capacity() - buf.len());
            if !no_such_read || !resident::is_surely_cached(self.as_fd(), offset, len) {
                return Err(Errno::AGAIN.into());
            }
        }
        if len >= buf.capacity() - buf.len() {
            return Ok(retry_on_intr(|| {
                rustix::io::pread(&self.fd, spare_capacity(buf), offset)
            })?);
        }
        // Fewer bytes are requested than fit.
        Ok(retry_on_intr(|| {
            resident::read_some(self.fd.as_fd(), buf, len, offset)
        })?)
    }

    pub(super) fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut slices = [IoSliceMut::new(&mut *buf)];
        match rustix::io::preadv2(&self.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(read),
            Err(Errno::OPNOTSUPP)
                if resident::is_surely_cached(self.as_fd(), offset, buf.len()) =>
            {
                self.read_at(buf, offset)
            }
            // The file system cannot tell, or a signal came: let the pool read it.
            Err(Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS) => Err(Errno::AGAIN.into()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::pwrite(&self.fd, buf, offset))?)
    }

    /// `None` if the kernel cannot copy between these files.
    pub(super) fn copy_from(
        &self,
        from: &File,
        offset: u64,
        to: u64,
        len: u64,
    ) -> io::Result<Option<u64>> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let copied = retry_on_intr(|| {
            let (mut from_at, mut to_at) = (offset, to);
            fs::copy_file_range(
                &from.fd,
                Some(&mut from_at),
                &self.fd,
                Some(&mut to_at),
                len,
            )
        });
        match copied {
            // Some mounts and filters deny the call, but not reads and writes.
            Err(
                Errno::XDEV
                | Errno::INVAL
                | Errno::NOSYS
                | Errno::OPNOTSUPP
                | Errno::PERM
                | Errno::ACCESS,
            ) => Ok(None),
            copied => Ok(Some(copied? as u64)),
        }
    }

    pub(super) fn sync(&self, data_only: bool) -> io::Result<()> {
        Ok(retry_on_intr(|| match data_only {
            true => fs::fdatasync(&self.fd),
            false => fs::fsync(&self.fd),
        })?)
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        stat_fd(self.fd.as_fd())
    }

    pub(super) fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        let time = Timespec {
            tv_sec: modified_ns.div_euclid(NS_PER_S),
            tv_nsec: modified_ns.rem_euclid(NS_PER_S),
        };
        // Both: programs with libfuse 2 (bindfs, exfat-fuse) ignore a change of one, and do not say
        // so.
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        Ok(retry_on_intr(|| fs::futimens(&self.fd, &times))?)
    }

    pub(super) fn set_attribute(&self, name: &CStr, value: &[u8]) -> io::Result<()> {
        let set = || fs::fsetxattr(&self.fd, name, value, XattrFlags::empty());
        Ok(retry_on_intr(set)?)
    }

    pub(super) fn attribute(&self, name: &CStr, len_max: usize) -> io::Result<Option<Vec<u8>>> {
        attribute(self.fd.as_fd(), name, len_max)
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(retry_on_intr(|| {
            fs::fchmod(&self.fd, Mode::from_raw_mode(mode))
        })?)
    }

    pub(super) fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
        Ok(retry_on_intr(|| fs::fchown(&self.fd, user, group))?)
    }

    pub(super) fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match retry_on_intr(|| fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, 0, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    pub(super) fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry_on_intr(|| fs::ftruncate(&self.fd, len))?)
    }

    pub(super) fn advise_needed(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else {
            return; // To the kernel 0 means up to the end of the file.
        };
        let _ = fs::fadvise(&self.fd, offset, Some(len), fs::Advice::WillNeed);
    }

    pub(super) fn advise_sequential(&self) {
        let _ = fs::fadvise(&self.fd, 0, None, fs::Advice::Sequential);
    }

    pub(super) fn advise_unneeded(&self) {
        let _ = fs::fadvise(&self.fd, 0, None, fs::Advice::DontNeed);
    }

    pub(super) fn start_writeback(&self, offset: u64, len: u64) {
        resident::start_writeback(self.as_fd(), offset, len);
    }

    pub(super) fn is_resident(&self, offset: u64, len: u64) -> bool {
        resident::is_resident(self.as_fd(), &self.recent, offset, len)
    }
}

/// Makes a call that looks up a name in an open directory, and repeats it on `EINTR`. If that
/// directory or the entry was removed meanwhile, NFS and programs with libfuse say `ESTALE`, and
/// all others `ENOENT`.
fn look_up<T>(call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    retry_on_intr(call).map_err(|error| match error {
        Errno::STALE => Errno::NOENT,
        error => error,
    })
}

fn is_local(fd: BorrowedFd<'_>) -> bool {
    is_one_of(fd, &[&MEMORY_MAGIC, &FOLDING_MAGIC, &DISK_MAGIC])
}

/// Whether the file system of `fd` has one of these numbers (`fstatfs(2)`).
fn is_one_of(fd: BorrowedFd<'_>, kinds: &[&[u64]]) -> bool {
    let found = retry_on_intr(|| fs::fstatfs(fd));
    found.is_ok_and(|found| {
        kinds
            .iter()
            .any(|kind| kind.contains(&(found.f_type as u64)))
    })
}

fn attribute(fd: BorrowedFd<'_>, name: &CStr, len_max: usize) -> io::Result<Option<Vec<u8>>> {
    // Most are short, and most files have none: neither needs a second call.
    let mut short = [0; SHORT_ATTRIBUTE_BYTES];
    match retry_on_intr(|| fs::fgetxattr(fd, name, &mut short[..])) {
        Err(Errno::RANGE) => {}
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        len => {
            return match len? {
                len if len > len_max => Err(Errno::RANGE.into()),
                len => Ok(Some(short[..len].to_vec())),
            };
        }
    }
    let len = match retry_on_intr(|| fs::fgetxattr_query(fd, name)) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        len => len?,
    };
    if len > len_max {
        return Err(Errno::RANGE.into());
    }
    let mut value = vec![0; len];
    match retry_on_intr(|| fs::fgetxattr(fd, name, &mut value[..])) {
        Err(Errno::NODATA) => Ok(None), // Removed since.
        len => {
            value.truncate(len?);
            Ok(Some(value))
        }
    }
}

fn stat_fd(fd: BorrowedFd<'_>) -> io::Result<Metadata> {
    let found = retry_on_intr(|| fs::statx(fd, c"", AtFlags::EMPTY_PATH, STATX))?;
    Ok(metadata(&found))
}

fn metadata(found: &Statx) -> Metadata {
    let mode = u32::from(found.stx_mode);
    Metadata {
        kind: kind(FileType::from_raw_mode(mode)).unwrap_or(FileKind::Special),
        size: found.stx_size,
        allocated_bytes: found.stx_blocks * 512,
        inode: found.stx_ino,
        device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
        modified_ns: join_ns(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec.into()),
        changed_ns: join_ns(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec.into()),
        mode: mode & 0o7777,
        user: found.stx_uid,
        group: found.stx_gid,
        mount: found.stx_mnt_id,
        nlink: found.stx_nlink,
    }
}

/// Times beyond the year 2262 or before 1677 become the nearest representable one.
fn join_ns(seconds: i64, nanoseconds: i64) -> i64 {
    seconds.saturating_mul(NS_PER_S).saturating_add(nanoseconds)
}

/// `None`: the file system did not provide it.
fn kind(found: FileType) -> Option<FileKind> {
    match found {
        FileType::RegularFile => Some(FileKind::File),
        FileType::Directory => Some(FileKind::Directory),
        FileType::Symlink => Some(FileKind::Symlink),
        FileType::Unknown => None,
        _ => Some(FileKind::Special),
    }
}

/// `ENOTEMPTY` for a directory that is not empty. POSIX also permits `EEXIST`, which XFS uses in
/// `rename(2)`.
fn not_empty(result: Result<(), Errno>) -> Result<(), Errno> {
    result.map_err(|error| match error {
        Errno::EXIST => Errno::NOTEMPTY,
        error => error,
    })
}
