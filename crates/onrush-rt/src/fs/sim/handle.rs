//! Open files and directories of the simulator: each call is one numbered operation.
//!
//! The module `disk` decides what survives a power cut.

use super::disk::{Body, Content, Entries, Node};
use super::{DiskState, Fate, SimFs, errno};
use crate::fs::{Create, EachEntry, FileKind, Metadata, OpenHow};
use std::ffi::CStr;
use std::io;

/// The names that one step of reading a directory returns.
const NAMES_PER_STEP: usize = 16;

/// Keeps an inode open in one life of the file system.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) fs: SimFs,
    pub(super) inode: u64,
    pub(super) epoch: u64,
    /// Identifies this handle as the holder of a lock.
    pub(super) number: u64,
}

impl Handle {
    pub(super) fn new(fs: &SimFs, inode: u64, epoch: u64) -> Handle {
        let mut state = fs.lock();
        state.next_handle += 1;
        let number = state.next_handle;
        if state.epoch == epoch {
            *state.open.entry(inode).or_default() += 1;
        }
        drop(state);
        Handle {
            fs: fs.clone(),
            inode,
            epoch,
            number,
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.fs.lock();
        if state.epoch != self.epoch {
            return;
        }
        if let Some(held) = state.locks.get_mut(&self.inode) {
            held.retain(|&(by, _)| by != self.number);
        }
        state.byte_locks.retain(|_, by| *by != self.number);
        self.fs.unlocked.notify_all();
        if let Some(count) = state.open.get_mut(&self.inode) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.inode);
            }
        }
    }
}

/// A directory of a [`SimFs`], behind [`Dir`](crate::fs::Dir).
#[derive(Debug)]
pub struct SimDir {
    pub(super) at: Handle,
}

/// A file of a [`SimFs`], behind [`File`](crate::fs::File).
#[derive(Debug)]
pub struct SimFile {
    pub(super) at: Handle,
    read: bool,
    write: bool,
}

/// The entries of a directory, of which some were read.
#[derive(Debug)]
pub struct SimNames(std::vec::IntoIter<(Vec<u8>, Option<FileKind>)>);

impl SimNames {
    pub(in crate::fs) fn read_some(&mut self, each: &mut EachEntry<'_>) -> io::Result<bool> {
        for (name, kind) in self.0.by_ref().take(NAMES_PER_STEP) {
            if each(&name, kind).is_break() {
                return Ok(false);
            }
        }
        Ok(self.0.len() > 0)
    }
}

impl SimDir {
    pub(super) fn new(at: Handle) -> SimDir {
        SimDir { at }
    }

    pub(in crate::fs) fn open(&self, path: &[u8], how: OpenHow) -> io::Result<SimFile> {
        let inode = self
            .at
            .fs
            .atomically(self.at.epoch, |state| self.find(state, path, how))?;
        let at = Handle::new(&self.at.fs, inode, self.at.epoch);
        Ok(SimFile {
            at,
            read: how.read,
            write: how.write,
        })
    }

    fn find(&self, state: &mut DiskState, path: &[u8], how: OpenHow) -> io::Result<u64> {
        let found = state
            .disk
            .resolve(self.at.inode, path, how.create != Create::New)?;
        let Some(inode) = found.inode else {
            let (Some((dir, name)), true) = (found.entry, how.create != Create::No) else {
                return Err(errno(libc::ENOENT));
            };
            if state.space == Some(0) {
                return Err(errno(libc::ENOSPC));
            }
            let body = Body::File(Content::default());
            let mut node = Node::new(body, how.mode, state.clock_ns);
            node.mount = state.disk.node(dir)?.mount;
            let inode = state.disk.add_node(node, &state.open);
            state.disk.set_entry(dir, &name, Some(inode))?;
            return Ok(inode);
        };
        if how.create == Create::New {
            return Err(errno(libc::EEXIST));
        }
        match state.disk.node(inode)?.body {
            Body::Dir(_) if how.write => Err(errno(libc::EISDIR)),
            _ => Ok(inode),
        }
    }

    pub(in crate::fs) fn open_cached(&self, path: &[u8]) -> io::Result<SimFile> {
        if self.at.fs.lock().cold {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.open(path, OpenHow::READ)
    }

    pub(in crate::fs) fn open_dir(&self, path: &[u8]) -> io::Result<SimDir> {
        let inode = self.at.fs.atomically(self.at.epoch, |state| {
            let found = state.disk.resolve(self.at.inode, path, true)?;
            let inode = found.inode.ok_or_else(|| errno(libc::ENOENT))?;
            state.disk.dir(inode)?;
            Ok(inode)
        })?;
        Ok(SimDir::new(Handle::new(&self.at.fs, inode, self.at.epoch)))
    }

    pub(in crate::fs) fn metadata(&self, path: &[u8]) -> io::Result<Metadata> {
        self.lookup_metadata(path, true)
    }

    pub(in crate::fs) fn entry_metadata(&self, name: &[u8]) -> io::Result<Metadata> {
        self.lookup_metadata(name, false)
    }

    pub(in crate::fs) fn self_metadata(&self) -> io::Result<Metadata> {
        self.at
            .fs
            .atomically(self.at.epoch, |state| metadata(state, self.at.inode))
    }

    fn lookup_metadata(&self, path: &[u8], follow: bool) -> io::Result<Metadata> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let found = state.disk.resolve(self.at.inode, path, follow)?;
            metadata(state, found.inode.ok_or_else(|| errno(libc::ENOENT))?)
        })
    }

    pub(in crate::fs) fn create_dir(&self, name: &[u8], mode: u32) -> io::Result<()> {
        self.at.fs.new_folders.pass();
        self.at.fs.atomically(self.at.epoch, |state| {
            state.disk.check_name(name)?;
            if state.disk.dir(self.at.inode)?.now.contains_key(name) {
                return Err(errno(libc::EEXIST));
            }
            if state.space == Some(0) {
                return Err(errno(libc::ENOSPC));
            }
            let body = Body::Dir(Entries::default());
            let mut node = Node::new(body, mode, state.clock_ns);
            node.mount = state.disk.node(self.at.inode)?.mount;
            let inode = state.disk.add_node(node, &state.open);
            state.disk.set_entry(self.at.inode, name, Some(inode))
        })
    }

    pub(in crate::fs) fn rename(
        &self,
        from: &[u8],
        to_dir: &SimDir,
        to: &[u8],
        no_replace: bool,
    ) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            if no_replace && state.plain_renames {
                return Err(errno(libc::EINVAL));
            }
            check_mounts(state, self.at.inode, to_dir.at.inode)?;
            state.disk.check_name(to)?;
            let inode = entry(state, self.at.inode, from)?;
            check_movable(state, self.at.inode, inode)?;
            let moved_dir = state.disk.dir(inode).is_ok();
            let target = state.disk.dir(to_dir.at.inode)?.now.get(to).copied();
            if state.disk.is_within(to_dir.at.inode, inode) {
                return Err(errno(libc::EINVAL));
            }
            if let Some(target) = target {
                if no_replace {
                    return Err(errno(libc::EEXIST));
                }
                if target == inode {
                    return Ok(()); // Both are names of one file.
                }
                check_movable(state, to_dir.at.inode, target)?;
                match state.disk.dir(target) {
                    Ok(_) if !moved_dir => return Err(errno(libc::EISDIR)),
                    Ok(entries) if !entries.now.is_empty() => return Err(errno(libc::ENOTEMPTY)),
                    Ok(_) => state.disk.mark_removed(target)?,
                    Err(_) if moved_dir => return Err(errno(libc::ENOTDIR)),
                    Err(_) => {}
                }
            }
            state.disk.node(inode)?.changed_ns = state.clock_ns;
            state.disk.set_entries([
                (to_dir.at.inode, to, Some(inode)),
                (self.at.inode, from, None),
            ])
        })
    }

    pub(in crate::fs) fn exchange(
        &self,
        name: &[u8],
        other: &SimDir,
        other_name: &[u8],
    ) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            if state.plain_renames {
                return Err(errno(libc::EINVAL));
            }
            check_mounts(state, self.at.inode, other.at.inode)?;
            let here = entry(state, self.at.inode, name)?;
            let there = entry(state, other.at.inode, other_name)?;
            let (one, two) = (self.at.inode, other.at.inode);
            check_movable(state, one, here)?;
            check_movable(state, two, there)?;
            if state.disk.is_within(two, here) || state.disk.is_within(one, there) {
                return Err(errno(libc::EINVAL));
            }
            for inode in [here, there] {
                state.disk.node(inode)?.changed_ns = state.clock_ns;
            }
            state
                .disk
                .set_entries([(two, other_name, Some(here)), (one, name, Some(there))])
        })
    }

    pub(in crate::fs) fn unlink(&self, name: &[u8]) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let inode = entry(state, self.at.inode, name)?;
            if state.disk.dir(inode).is_ok() {
                return Err(errno(libc::EISDIR));
            }
            check_movable(state, self.at.inode, inode)?;
            state.disk.set_entry(self.at.inode, name, None)
        })
    }

    pub(in crate::fs) fn remove_dir(&self, name: &[u8]) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let inode = entry(state, self.at.inode, name)?;
            check_movable(state, self.at.inode, inode)?;
            if !state.disk.dir(inode)?.now.is_empty() {
                return Err(errno(libc::ENOTEMPTY));
            }
            state.disk.mark_removed(inode)?;
            state.disk.set_entry(self.at.inode, name, None)
        })
    }

    pub(in crate::fs) fn sync(&self) -> io::Result<()> {
        self.at
            .fs
            .sync_with(self.at.epoch, |state, fate| match fate {
                Fate::Whole | Fate::Ignored => state.disk.sync_dir(self.at.inode),
                Fate::Fails(code) => {
                    state.disk.fail_sync_dir(self.at.inode)?;
                    Err(errno(code))
                }
                Fate::Torn => {
                    state.disk.tear_sync_dir(self.at.inode, &mut state.random);
                    Err(errno(libc::EIO))
                }
            })
    }

    pub(in crate::fs) fn names(&self) -> io::Result<SimNames> {
        self.at.fs.lists.pass();
        // Copied, because the caller may operate on the same file system.
        let entries = self.at.fs.atomically(self.at.epoch, |state| {
            let now = &state.disk.dir(self.at.inode)?.now;
            let kind = |inode| state.disk.nodes.get(inode).map(|node| kind(&node.body));
            Ok(now
                .iter()
                .map(|(name, inode)| (name.clone(), kind(inode)))
                .collect::<Vec<_>>())
        })?;
        Ok(SimNames(entries.into_iter()))
    }

    pub(in crate::fs) fn free_bytes(&self) -> io::Result<u64> {
        self.at.fs.atomically(self.at.epoch, |state| {
            Ok(state.space.unwrap_or(u64::MAX / 2))
        })
    }

    pub(in crate::fs) fn used_bytes(&self) -> io::Result<u64> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let bytes = state.disk.nodes.values().map(|node| match &node.body {
                Body::File(content) => content.now.len() as u64,
                _ => 0,
            });
            Ok(bytes.sum())
        })
    }

    pub(in crate::fs) fn is_in_memory(&self) -> bool {
        false // It models a disk.
    }

    pub(in crate::fs) fn folds_names(&self) -> bool {
        false
    }

    pub(in crate::fs) fn is_local(&self) -> bool {
        !self.at.fs.lock().not_local
    }

    pub(in crate::fs) fn keeps_attributes(&self) -> bool {
        !self.at.fs.lock().no_attributes
    }

    pub(in crate::fs) fn now_ns(&self) -> i64 {
        self.at.fs.lock().clock_ns
    }
}

impl SimFile {
    pub(in crate::fs) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.at.fs.atomically(self.at.epoch, |state| {
            if !self.read {
                return Err(errno(libc::EBADF));
            }
            let content = state.disk.file(self.at.inode)?;
            let from = content
                .now
                .len()
                .min(usize::try_from(offset).unwrap_or(usize::MAX));
            let len = buf.len().min(content.now.len() - from);
            buf[..len].copy_from_slice(&content.now[from..from + len]);
            Ok(len)
        })
    }

    pub(in crate::fs) fn try_read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.is_resident() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.read_at(buf, offset)
    }

    pub(in crate::fs) fn read_to_vec(
        &self,
        buf: &mut Vec<u8>,
        len: usize,
        offset: u64,
        now: bool,
    ) -> io::Result<usize> {
        if now && !self.is_resident() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let before = buf.len();
        buf.resize(before + len.min(buf.capacity() - before), 0);
        let result = self.read_at(&mut buf[before..], offset);
        buf.truncate(before + *result.as_ref().unwrap_or(&0));
        result
    }

    pub(in crate::fs) fn is_local(&self) -> bool {
        !self.at.fs.lock().not_local
    }

    pub(in crate::fs) fn is_resident(&self) -> bool {
        !self.at.fs.lock().cold
    }

    pub(in crate::fs) fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let offset = usize::try_from(offset).map_err(|_| errno(libc::EFBIG))?;
        self.at.fs.operate(self.at.epoch, |state, fate| {
            if !self.write {
                return Err(errno(libc::EBADF));
            }
            let wanted = match fate {
                Fate::Fails(code) => return Err(errno(code)),
                Fate::Torn => state.random.up_to(buf.len()),
                Fate::Whole | Fate::Ignored => buf.len(),
            };
            let grows = (offset + wanted).saturating_sub(state.disk.file(self.at.inode)?.now.len());
            let missing = grows as u64 - state.take_space(grows as u64);
            let fits = wanted - (missing as usize).min(wanted);
            if fits == 0 && wanted > 0 {
                return Err(errno(libc::ENOSPC));
            }
            let now_ns = state.clock_ns;
            state.disk.file(self.at.inode)?.write(offset, &buf[..fits]);
            set_modified(state, self.at.inode, now_ns)?;
            Ok(fits)
        })
    }

    pub(in crate::fs) fn sync(&self, data_only: bool) -> io::Result<()> {
        self.at
            .fs
            .sync_with(self.at.epoch, |state, fate| match fate {
                Fate::Whole | Fate::Ignored => state.disk.sync_file(self.at.inode, !data_only),
                Fate::Fails(code) => {
                    state.disk.fail_sync_file(self.at.inode)?;
                    Err(errno(code))
                }
                Fate::Torn => {
                    state.disk.tear_sync_file(self.at.inode, &mut state.random);
                    Err(errno(libc::EIO))
                }
            })
    }

    pub(in crate::fs) fn metadata(&self) -> io::Result<Metadata> {
        self.at
            .fs
            .atomically(self.at.epoch, |state| metadata(state, self.at.inode))
    }

    pub(in crate::fs) fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            check_owner(state)?;
            set_modified(state, self.at.inode, modified_ns)
        })
    }

    pub(in crate::fs) fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            check_owner(state)?;
            let now_ns = state.clock_ns;
            let node = state.disk.node(self.at.inode)?;
            (node.mode, node.changed_ns) = (mode, now_ns);
            Ok(())
        })
    }

    pub(in crate::fs) fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            check_owner(state)?;
            let now_ns = state.clock_ns;
            let node = state.disk.node(self.at.inode)?;
            node.user = user.unwrap_or(node.user);
            node.group = group.unwrap_or(node.group);
            node.changed_ns = now_ns;
            Ok(())
        })
    }

    pub(in crate::fs) fn set_attribute(&self, name: &CStr, value: &[u8]) -> io::Result<()> {
        self.at.fs.atomically(self.at.epoch, |state| {
            if state.no_attributes {
                return Err(errno(libc::EOPNOTSUPP));
            }
            if let Some(code) = state.attributes_fail {
                return Err(errno(code));
            }
            let now_ns = state.clock_ns;
            let node = state.disk.node(self.at.inode)?;
            node.set_attribute(name.to_bytes(), value);
            node.changed_ns = now_ns;
            Ok(())
        })
    }

    pub(in crate::fs) fn attribute(
        &self,
        name: &CStr,
        len_max: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        self.at.fs.atomically(self.at.epoch, |state| {
            let node = state.disk.node(self.at.inode)?;
            match node.attributes.get(name.to_bytes()) {
                Some(value) if value.len() > len_max => Err(errno(libc::ERANGE)),
                value => Ok(value.cloned()),
            }
        })
    }

    pub(in crate::fs) fn allocate(&self, len: u64) -> io::Result<()> {
        self.at
            .fs
            .atomically(self.at.epoch, |state| match state.space {
                Some(space) if space < len => Err(errno(libc::ENOSPC)),
                _ => Ok(()),
            })
    }

    pub(in crate::fs) fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| errno(libc::EFBIG))?;
        self.at.fs.atomically(self.at.epoch, |state| {
            state.disk.file(self.at.inode)?.set_len(len);
            let now_ns = state.clock_ns;
            set_modified(state, self.at.inode, now_ns)
        })
    }
}

pub(super) fn entry(state: &DiskState, dir: u64, name: &[u8]) -> io::Result<u64> {
    state
        .disk
        .dir(dir)?
        .now
        .get(name)
        .copied()
        .ok_or_else(|| errno(libc::ENOENT))
}

/// Nothing can be renamed from one mount to another.
pub(super) fn check_mounts(state: &mut DiskState, one: u64, other: u64) -> io::Result<()> {
    let is_refused = state.single_folders && one != other;
    match is_refused || state.disk.node(one)?.mount != state.disk.node(other)?.mount {
        true => Err(errno(libc::EXDEV)),
        false => Ok(()),
    }
}

/// The top of a mount can be neither renamed nor removed.
fn check_movable(state: &mut DiskState, dir: u64, inode: u64) -> io::Result<()> {
    match state.disk.node(inode)?.mount != state.disk.node(dir)?.mount {
        true => Err(errno(libc::EBUSY)),
        false => Ok(()),
    }
}

/// The files of other users cannot be changed, except their content.
fn check_owner(state: &DiskState) -> io::Result<()> {
    match state.foreign_owner {
        true => Err(errno(libc::EPERM)),
        false => Ok(()),
    }
}

fn set_modified(state: &mut DiskState, inode: u64, modified_ns: i64) -> io::Result<()> {
    let now_ns = state.clock_ns;
    let node = state.disk.node(inode)?;
    (node.modified_ns, node.changed_ns) = (modified_ns, now_ns);
    state.disk.file(inode)?.set_modified(modified_ns);
    Ok(())
}

fn kind(body: &Body) -> FileKind {
    match body {
        Body::File(_) => FileKind::File,
        Body::Dir(_) => FileKind::Directory,
        Body::Symlink(_) => FileKind::Symlink,
        Body::Special => FileKind::Special,
    }
}

fn metadata(state: &mut DiskState, inode: u64) -> io::Result<Metadata> {
    let nlink = match state.has_links {
        true => state.disk.names(inode),
        false => 1,
    };
    let node = state.disk.node(inode)?;
    let size = match &node.body {
        Body::File(content) => content.now.len() as u64,
        Body::Symlink(target) => target.len() as u64,
        Body::Dir(_) | Body::Special => 0,
    };
    Ok(Metadata {
        kind: kind(&node.body),
        size,
        allocated_bytes: size.next_multiple_of(4096),
        inode,
        device: 1,
        modified_ns: node.modified_ns,
        changed_ns: node.changed_ns,
        mode: node.mode,
        user: node.user,
        group: node.group,
        mount: node.mount,
        nlink,
    })
}
