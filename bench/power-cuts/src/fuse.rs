//! A file system with one file, which is the content of a [`Disk`]. One thread serves it, so the
//! log of the disk has the order in which the kernel got its responses.

use crate::disk::Disk;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// The name of the file.
pub(crate) const NAME: &str = "image";
const INODE: INodeNo = INodeNo(2);
/// Nothing changes but the content.
const VALID: Duration = Duration::from_secs(3600);

struct OneFile {
    disk: Disk,
    bytes: u64,
}

/// Mounts a file of `bytes` bytes in the folder.
pub(crate) fn mount(disk: &Disk, bytes: u64, folder: &Path) -> io::Result<BackgroundSession> {
    let disk = disk.clone();
    let mut config = Config::default();
    let name = MountOption::FSName("power-cuts".to_owned());
    config.mount_options.push(name);
    fuser::spawn_mount(OneFile { disk, bytes }, folder, &config)
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == INODE;
        FileAttr {
            ino: inode,
            size: if is_file { self.bytes } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: match is_file {
                true => FileType::RegularFile,
                false => FileType::Directory,
            },
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == NAME {
            true => reply.entry(&VALID, &self.attributes(INODE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&VALID, &self.attributes(inode));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.bytes.saturating_sub(offset);
        let mut bytes = vec![0; left.min(u64::from(size)) as usize];
        self.disk.read(offset, &mut bytes);
        reply.data(&bytes);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset + bytes.len() as u64 > self.bytes {
            return reply.error(Errno::ENOSPC);
        }
        self.disk.write(offset, bytes);
        reply.written(bytes.len() as u32);
    }

    /// A loop device flushes by it.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.disk.flush();
        reply.ok();
    }
}
