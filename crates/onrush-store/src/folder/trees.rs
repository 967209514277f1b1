//! A folder with everything beneath it, as a relocation needs it: whether it may be moved or
//! replaced, and its removal.
//!
//! Only one directory is open at a time, and paths are relative to the top of the tree, so neither
//! the depth nor the place of a tree limits this. Symbolic links are never followed.

use super::FolderInner;
use super::parents::{self, join};
use crate::error::{Result, StoreError};
use crate::key::{Key, is_reserved};
use crate::shown::ShownNames;
use crate::usage::{COUNTED_BYTES_MIN, counted_bytes};
use onrush_rt::fs::{Dir, FileKind};
use std::io;
use std::mem;
use std::ops::ControlFlow;

/// The entries that one job removes. Other jobs of the pool run between them.
pub(super) const ENTRIES_PER_JOB: usize = 1024;

/// Fails with [`StoreError::LeadsOutside`] if a relative symbolic link in a folder leads out of it:
/// at another place it would lead elsewhere, perhaps to what the client may not read. Links from
/// the root are never followed, so they do not matter.
pub(super) fn check_links(inner: &FolderInner, folder: &Key) -> Result<()> {
    let Ok(top) = inner.root.open_dir(folder.as_bytes()) else {
        return Ok(()); // The rename says why.
    };
    walk(&top, &mut |entry| {
        if entry.kind != FileKind::Symlink {
            return Ok(());
        }
        let target = entry.dir.read_link(entry.name)?;
        match leads_outside(&target, entry.depth) {
            true => Err(Stop::Because(StoreError::LeadsOutside)),
            false => Ok(()),
        }
    })
}

/// Whether anything in the folder `name` of `dir` was changed, created or removed after a time. Of
/// the folder itself, this does not tell.
pub(super) fn has_changed_since(dir: &Dir, name: &[u8], time_ns: i64) -> Result<bool> {
    let top = dir.open_dir(name).map_err(StoreError::from_lookup)?;
    let mut has_changed = false;
    walk(&top, &mut |entry| {
        // A folder changes with its entries.
        has_changed |= entry.dir.entry_metadata(entry.name)?.changed_ns > time_ns;
        Ok(())
    })?;
    Ok(has_changed)
}

/// Fails with [`StoreError::NotEmpty`] if what is at `key` must not be removed: it contains a file
/// that is no object, or a name that is reserved or hidden.
/// Fails with [`StoreError::OtherFileSystem`] if another file system is mounted there or beneath
/// it: nothing else can get that name, and what it has is not a part of this one. Fails with
/// [`StoreError::PermissionDenied`] if it contains what this process may not remove.
pub(super) fn check_shown(inner: &FolderInner, key: &Key, shown: &ShownNames) -> Result<()> {
    let Ok(parent) = parents::open(inner, key.split().0) else {
        return Ok(());
    };
    let found = parent.dir().entry_metadata(key.name());
    if !found.is_ok_and(|found| found.kind == FileKind::Directory) {
        return Ok(()); // A link is removed itself.
    }
    let opened = parent.dir().open_dir(key.name());
    let top = opened.map_err(StoreError::from_change)?;
    let own = parent.dir().self_metadata();
    let own = own.map_err(StoreError::from_open_file)?.file_system();
    let found = top.self_metadata().map_err(StoreError::from_open_file)?;
    if found.file_system() != own {
        return Err(StoreError::OtherFileSystem);
    }
    walk(&top, &mut |entry| {
        if entry.is_first && !entry.dir.may_change()? {
            return Err(Stop::Failed(io::Error::from_raw_os_error(libc::EACCES)));
        }
        if entry.kind == FileKind::Directory
            && entry.dir.entry_metadata(entry.name)?.file_system() != own
        {
            return Err(Stop::Because(StoreError::OtherFileSystem));
        }
        match shown.hide(entry.name)
            || is_reserved(entry.name, false)
            || entry.kind == FileKind::Special
        {
            true => Err(Stop::Because(StoreError::NotEmpty)),
            false => Ok(()),
        }
    })
}

/// Whether a relative link leads out of a tree from a folder that is `depth` folders beneath the
/// top. A name before `..` may be a link, so it counts as one that does.
fn leads_outside(target: &[u8], depth: usize) -> bool {
    if target.first() == Some(&b'/') {
        return false;
    }
    let (mut up, mut is_down) = (0, false);
    for segment in target.split(|&byte| byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." if is_down => return true,
            b".." => up += 1,
            _ => is_down = true,
        }
    }
    up > depth
}

struct TreeEntry<'a> {
    dir: &'a Dir,
    name: &'a [u8],
    kind: FileKind,
    /// The folders between the top and `dir`, with that.
    depth: usize,
    /// None of this folder came before.
    is_first: bool,
}

/// Why a walk ends early.
enum Stop {
    Because(StoreError),
    Failed(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Calls `each` for each entry of a tree.
fn walk(top: &Dir, each: &mut dyn FnMut(TreeEntry<'_>) -> Result<(), Stop>) -> Result<()> {
    let mut paths = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        match walk_one(top, &path, &mut paths, each) {
            Ok(()) => {}
            Err(Stop::Because(error)) => return Err(error),
            // Removed meanwhile.
            Err(Stop::Failed(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(Stop::Failed(error)) => return Err(StoreError::from_lookup(error)),
        }
    }
    Ok(())
}

fn walk_one(
    top: &Dir,
    path: &[u8],
    paths: &mut Vec<Vec<u8>>,
    each: &mut dyn FnMut(TreeEntry<'_>) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let dir = open(top, path)?;
    let depth = match path {
        [] => 0,
        path => 1 + path.iter().filter(|&&byte| byte == b'/').count(),
    };
    let mut ended = Ok(());
    let mut is_first = true;
    let mut look = |name: &[u8], kind: Option<FileKind>| {
        let kind = match kind {
            Some(kind) => kind,
            None => dir.entry_metadata(name)?.kind,
        };
        if kind == FileKind::Directory {
            paths.push(join(path, name));
        }
        each(TreeEntry {
            dir: &dir,
            name,
            kind,
            depth,
            is_first: mem::take(&mut is_first),
        })
    };
    dir.read_dir(&mut |name, kind| {
        ended = look(name, kind);
        match ended {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    ended
}

/// A tree that is being removed.
#[derive(Default)]
pub(super) struct Removal {
    /// The folders that are not removed yet, as far as they are known; each after those that
    /// contain it.
    paths: Vec<Vec<u8>>,
    /// What has been removed has counted so many bytes.
    pub(super) bytes: u64,
}

impl Removal {
    /// Removes about so many entries of the tree at `name`. Returns whether nothing is left.
    pub(super) fn step(&mut self, dir: &Dir, name: &[u8], entries: usize) -> io::Result<bool> {
        if self.paths.is_empty() && !self.remove_entry(dir, name, Vec::new())? {
            return Ok(true);
        }
        let top = dir.open_dir(name)?;
        let mut left = entries;
        while let (Some(path), true) = (self.paths.last().cloned(), left > 0) {
            let here = open(&top, &path)?;
            let mut names = Vec::new();
            here.read_dir(&mut |name, _| {
                names.push(name.to_vec());
                match names.len() < left {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })?;
            left = left.saturating_sub(names.len().max(1));
            for below in &names {
                self.remove_entry(&here, below, join(&path, below))?;
            }
            if names.is_empty() {
                self.paths.pop();
                match parents::split(&path) {
                    (_, []) => dir.remove_dir(name)?,
                    (None, last) => top.remove_dir(last)?,
                    (Some(above), last) => top.open_dir(above)?.remove_dir(last)?,
                }
            }
        }
        Ok(self.paths.is_empty())
    }

    /// Removes an entry, or adds it to those to be emptied and returns true if it is a folder.
    fn remove_entry(&mut self, dir: &Dir, name: &[u8], path: Vec<u8>) -> io::Result<bool> {
        let found = match dir.entry_metadata(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        match found.kind {
            FileKind::Directory => {
                self.paths.push(path);
                self.bytes = self.bytes.saturating_add(COUNTED_BYTES_MIN);
                return Ok(true);
            }
            FileKind::File => self.bytes = self.bytes.saturating_add(counted_bytes(found.size)),
            FileKind::Symlink | FileKind::Special => {}
        }
        dir.unlink(name).map(|()| false)
    }
}

/// Removes what is at `name` in one go.
pub(super) fn remove_all(dir: &Dir, name: &[u8]) -> io::Result<()> {
    let mut removal = Removal::default();
    while !removal.step(dir, name, ENTRIES_PER_JOB)? {}
    Ok(())
}

fn open(top: &Dir, path: &[u8]) -> io::Result<Dir> {
    match path {
        [] => top.open_dir(b"."),
        path => top.open_dir(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_outside_or_not() {
        for (target, depth, expected) in [
            ("x", 0, false),
            ("./x/y", 0, false),
            ("..", 0, true),
            ("../x", 0, true),
            ("..", 1, false),
            ("../x", 1, false),
            ("../../x", 1, true),
            (".//..//x", 1, false),
            ("x/..", 5, true),
            ("../x/../y", 5, true),
            ("/etc", 0, false),
        ] {
            let found = leads_outside(target.as_bytes(), depth);
            assert_eq!(found, expected, "{target} {depth}");
        }
    }
}
