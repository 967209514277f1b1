//! Owner, group, mode and access control list (acl(5)) of an object that a put makes.
//!
//! The kernel gives a new file the rights that its folder prescribes, but a staged file is created
//! in another one. So a put gives it what it would have got in the folder of its object: the group
//! of a setgid folder, and the default list. An object that replaces another one takes the rights
//! of that, and so does a folder. Where the process may not set the owner or the group (`EPERM`),
//! the object keeps those of the process, and the group gets no more rights than all users have.
//!
//! A mount that shows another owner refuses all of that, and has rules of its own.

use super::staged::StagedFile;
use super::{FolderInner, parents};
use crate::error::{Result, StoreError};
use crate::key::Key;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, FileKind, Metadata, OpenHow};
use std::io;

/// `S_ISGID`: what is created in the folder gets its group.
const SETGID: u32 = 0o2000;

/// The bits that a replaced object passes on. A program of clients is never setuid.
const MODE_BITS: u32 = 0o777;

/// The bits of a folder that another one has instead, with `S_ISGID` and `S_ISVTX`.
const FOLDER_BITS: u32 = 0o3777;

/// Tags of the entries of an access control list (linux/posix_acl.h).
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// The header of a list: its version. Each entry has a tag, rights, and a user or group.
const LIST_HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// Gives a staged file, described by `found`, the rights of a new file in `dir`, which is described
/// by `folder`.
pub(super) fn inherit(
    inner: &FolderInner,
    staged: &StagedFile,
    found: &Metadata,
    dir: &Dir,
    folder: &Metadata,
) -> Result<()> {
    let keeps_lists = staged.name.staging.keeps_lists();
    inherit_from(inner, &staged.file, found, (dir, folder), keeps_lists)
}

/// As [`inherit`], for a file or a folder. Without `keeps_lists`, the file system has none.
fn inherit_from(
    inner: &FolderInner,
    new: &File,
    found: &Metadata,
    (dir, folder): (&Dir, &Metadata),
    keeps_lists: bool,
) -> Result<()> {
    let is_folder = found.kind == FileKind::Directory;
    if folder.mode & SETGID != 0 {
        // A process of another group has no right to set this one: the object keeps its own.
        let has_group =
            folder.group == found.group || new.set_owner(None, Some(folder.group)).is_ok();
        if is_folder && has_group {
            tolerate(new.set_mode(found.mode & FOLDER_BITS | SETGID))?;
        }
    }
    if !keeps_lists {
        return Ok(());
    }
    let mut list = match dir.default_access_list() {
        Ok(Some(list)) => list,
        Ok(None) => return Ok(()),
        // The folder was removed, which the rename notices.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return tolerate(Err(error)),
    };
    let mode = match is_folder {
        true => inner.options.dir_mode,
        false => inner.options.file_mode,
    };
    if is_folder {
        tolerate(new.set_default_access_list(&list))?;
    }
    limit(&mut list, mode);
    tolerate(new.set_access_list(&list))
}

/// Gives a copy with a staged name, an object or a folder, the rights that it needs at `to`: those
/// of the folder that it replaces as a folder, otherwise those of something new there. What is
/// created in it later inherits from it. Blocks.
pub(super) fn of_copy(inner: &FolderInner, copy: &Key, to: &Key) -> Result<()> {
    if inner.root.as_fd().is_none() {
        return Ok(()); // The simulator has no such rights.
    }
    let permits = [(); 2].map(|()| inner.options.descriptors.open_file(FileUse::Brief));
    if permits.iter().any(Option::is_none) {
        return Err(StoreError::Busy);
    }
    let open = |key: &Key| inner.root.open(key.as_bytes(), OpenHow::READ);
    let new = open(copy).map_err(StoreError::from_lookup)?;
    let found = new.metadata().map_err(StoreError::from_open_file)?;
    let parent = parents::open(inner, to.split().0).map_err(StoreError::from_change)?;
    let old = parent.dir().entry_metadata(to.name());
    match (found.kind, old.map(|old| old.kind)) {
        (FileKind::Directory, Ok(FileKind::Directory)) => {
            keep_folder(&new, &found, &open(to).map_err(StoreError::from_change)?)
        }
        _ => {
            let dir = parent.dir();
            let folder = dir.self_metadata().map_err(StoreError::from_change)?;
            inherit_from(inner, &new, &found, (dir, &folder), true)
        }
    }
}

/// Gives the folder `new`, described by `found`, all rights of the folder `old`.
fn keep_folder(new: &File, found: &Metadata, old: &File) -> Result<()> {
    let was = old.metadata().map_err(StoreError::from_open_file)?;
    let (has_group, mode) = take_owner(new, found, &was, FOLDER_BITS);
    tolerate(new.set_mode(mode))?;
    // A file system without lists refuses to read them.
    if has_group && let Ok(Some(list)) = old.access_list() {
        tolerate(new.set_access_list(&list))?;
    }
    match old.default_access_list() {
        Ok(Some(list)) => tolerate(new.set_default_access_list(&list)),
        _ => Ok(()),
    }
}

/// Gives `new`, described by `found`, the owner and the group of `old`, as far as that is
/// permitted. Returns whether it has the group, and the `bits` of the mode of `old` that it may
/// have then.
fn take_owner(new: &File, found: &Metadata, old: &Metadata, bits: u32) -> (bool, u32) {
    if old.user != found.user {
        let _ = new.set_owner(Some(old.user), None);
    }
    let has_group = old.group == found.group || new.set_owner(None, Some(old.group)).is_ok();
    let all = old.mode & bits;
    let mode = match has_group {
        true => all,
        false => all & 0o1707 | (all & 0o007) << 3,
    };
    (has_group, mode)
}

/// Gives a staged file, described by `found`, the rights of the object `name` in `dir`, which it
/// replaces and `old` describes.
pub(super) fn keep(
    inner: &FolderInner,
    staged: &StagedFile,
    found: &Metadata,
    dir: &Dir,
    name: &[u8],
    old: &Metadata,
) -> Result<()> {
    let file = &staged.file;
    let (has_group, mode) = take_owner(file, found, old, MODE_BITS);
    let list = match staged.name.staging.keeps_lists() && has_group {
        true => list_of(inner, dir, name)?,
        false => None,
    };
    match list {
        Some(list) => tolerate(file.set_access_list(&list)),
        None if mode != found.mode & MODE_BITS => tolerate(file.set_mode(mode)),
        None => Ok(()),
    }
}

/// The list of the object `name`. `None` if it has none, is gone, or may not be read.
fn list_of(inner: &FolderInner, dir: &Dir, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let list = match dir.entry_access_list(name) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let permit = inner.options.descriptors.open_file(FileUse::Brief);
            let permit = permit.ok_or(StoreError::Busy)?;
            let opened = dir.open(name, OpenHow::READ);
            opened.and_then(|file| file.with_permit(permit).access_list())
        }
        list => list,
    };
    match list {
        Err(error) if is_refused(&error) || error.kind() == io::ErrorKind::NotFound => Ok(None),
        list => list.map_err(StoreError::from_open_file),
    }
}

/// A change that the file system or the mount refuses is left out.
fn tolerate(set: io::Result<()>) -> Result<()> {
    match set {
        Err(error) if !is_refused(&error) => Err(StoreError::from_open_file(error)),
        _ => Ok(()),
    }
}

/// Whether a file system or a mount does not permit a property to be set, or does not know it.
pub(super) fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// Takes the rights from a default list that the mode of a new file does not have, as the kernel
/// does.
fn limit(list: &mut [u8], mode: u32) {
    let Some(entries) = list.get_mut(LIST_HEAD_BYTES..) else {
        return;
    };
    let tag = |entry: &[u8]| u16::from_le_bytes([entry[0], entry[1]]);
    let has_mask = entries
        .chunks_exact(ENTRY_BYTES)
        .any(|entry| tag(entry) == MASK);
    for entry in entries.chunks_exact_mut(ENTRY_BYTES) {
        let shift = match tag(entry) {
            USER_OBJ => 6,
            MASK => 3,
            GROUP_OBJ if !has_mask => 3,
            OTHER => 0,
            _ => continue,
        };
        entry[2] &= (mode >> shift & 7) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_list_is_limited_by_the_mode() {
        let entry = |tag: u16, rights: u16, id: u32| {
            let mut bytes = tag.to_le_bytes().to_vec();
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes
        };
        let list = |entries: &[(u16, u16)]| {
            let mut bytes = 2_u32.to_le_bytes().to_vec();
            for (tag, rights) in entries {
                bytes.extend(entry(*tag, *rights, u32::MAX));
            }
            bytes
        };
        let (user, group_of) = (0x02, 0x08);
        let mut with_mask = list(&[
            (USER_OBJ, 7),
            (user, 7),
            (GROUP_OBJ, 7),
            (group_of, 5),
            (MASK, 7),
            (OTHER, 5),
        ]);
        limit(&mut with_mask, 0o640);
        let expected = list(&[
            (USER_OBJ, 6),
            (user, 7),
            (GROUP_OBJ, 7),
            (group_of, 5),
            (MASK, 4),
            (OTHER, 0),
        ]);
        assert_eq!(with_mask, expected);
        let mut without = list(&[(USER_OBJ, 7), (GROUP_OBJ, 7), (OTHER, 7)]);
        limit(&mut without, 0o640);
        assert_eq!(without, list(&[(USER_OBJ, 6), (GROUP_OBJ, 4), (OTHER, 0)]));
        limit(&mut [], 0o640);
    }
}
