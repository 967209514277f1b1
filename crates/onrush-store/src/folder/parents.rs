//! The folders an object lies in: made where missing, and known to be on the disk.
//!
//! An object is durable only if every folder above it is. A folder may have been made a moment
//! ago, by another request that has not synced it yet or by another program that never will; so
//! the first put into a folder syncs all that is above it, whoever made it, and what has been
//! synced once is remembered.
//!
//! This module must not know files or conditions.

use super::Inner;
use onrush_rt::fs::Dir;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Folders remembered as durable; when there are more, remembering begins anew.
const KNOWN_MAX: usize = 16_384;

#[derive(Default)]
pub(super) struct Parents {
    /// Path and inode of the folders whose names, and those of all above, were synced.
    known: Mutex<HashMap<Vec<u8>, u64>>,
    /// How often the sync of a directory has failed.
    sync_failures: AtomicU64,
}

/// The folder an object lies in.
pub(super) enum Parent<'a> {
    Root(&'a Dir),
    Below(Dir),
}

impl Parent<'_> {
    pub(super) fn dir(&self) -> &Dir {
        match self {
            Parent::Root(dir) => dir,
            Parent::Below(dir) => dir,
        }
    }
}

impl Parents {
    /// Changes when the sync of any directory fails. The kernel tells such an error once and may
    /// tell it to another request than the one whose entry was lost, so a request during which
    /// this changed cannot claim to be durable.
    pub(super) fn sync_failures(&self) -> u64 {
        self.sync_failures.load(Ordering::SeqCst)
    }

    /// Syncs a directory's entries, and counts if that fails.
    pub(super) fn sync(&self, dir: &Dir) -> io::Result<()> {
        dir.sync().inspect_err(|_| {
            self.sync_failures.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// The folder at `path` is no more, or not the one it was.
    pub(super) fn forget(&self, path: &[u8]) {
        self.lock().remove(path);
    }

    fn knows(&self, path: &[u8], inode: u64) -> bool {
        self.lock().get(path) == Some(&inode)
    }

    fn remember(&self, path: &[u8], inode: u64) {
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(path.into(), inode);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the folder at `path` (`None`: the top), making what is missing; if the store is durable,
/// then so is the folder when this returns. `NotFound` if something is removed meanwhile.
pub(super) fn ensure<'a>(inner: &'a Inner, path: Option<&[u8]>) -> io::Result<Parent<'a>> {
    let Some(path) = path else {
        return Ok(Parent::Root(&inner.root));
    };
    let mut made = Vec::new();
    let dir = match inner.root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(inner, path, &mut made),
        other => other,
    };
    let done = dir.and_then(|dir| {
        if inner.durable() {
            make_durable(inner, path, &dir)?;
        }
        Ok(Parent::Below(dir))
    });
    if done.is_err() {
        // A folder whose sync failed must not stay: the next put would find it there, and no sync
        // would ever tell the failure again. One that another request uses by now resists, and
        // that request sees the count of failures.
        for prefix in made.into_iter().rev() {
            let (above, name) = split(prefix);
            let _ = open(inner, above).and_then(|parent| parent.dir().remove_dir(name));
        }
    }
    done
}

/// Makes the folders of `path` that are missing, noting in `made` which this call made.
fn make<'p>(inner: &Inner, path: &'p [u8], made: &mut Vec<&'p [u8]>) -> io::Result<Dir> {
    let mut parent = Parent::Root(&inner.root);
    for prefix in prefixes(path) {
        let dir = match inner.root.open_dir(prefix) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match parent
                    .dir()
                    .create_dir(split(prefix).1, inner.options.dir_mode)
                {
                    Ok(()) => {
                        made.push(prefix);
                        inner.parents.forget(prefix);
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error),
                }
                inner.root.open_dir(prefix)?
            }
            other => other?,
        };
        parent = Parent::Below(dir);
    }
    match parent {
        Parent::Below(dir) => Ok(dir),
        Parent::Root(root) => root.open_dir(b"."),
    }
}

/// Syncs every directory that holds a name on the way to `path` and was not synced before.
fn make_durable(inner: &Inner, path: &[u8], dir: &Dir) -> io::Result<()> {
    let inode = dir.self_metadata()?.inode;
    if inner.parents.knows(path, inode) {
        return Ok(());
    }
    let mut unknown = vec![(path, inode)];
    for prefix in prefixes(path).collect::<Vec<_>>().into_iter().rev().skip(1) {
        let inode = inner.root.open_dir(prefix)?.self_metadata()?.inode;
        if inner.parents.knows(prefix, inode) {
            break;
        }
        unknown.push((prefix, inode));
    }
    for (prefix, inode) in unknown.into_iter().rev() {
        let above = open(inner, split(prefix).0)?;
        inner.parents.sync(above.dir())?;
        inner.parents.remember(prefix, inode);
    }
    Ok(())
}

/// Opens the folder at `path`, which must exist.
pub(super) fn open<'a>(inner: &'a Inner, path: Option<&[u8]>) -> io::Result<Parent<'a>> {
    match path {
        Some(path) => inner.root.open_dir(path).map(Parent::Below),
        None => Ok(Parent::Root(&inner.root)),
    }
}

/// `a`, `a/b`, `a/b/c` of `a/b/c`.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slash = |at: &usize| path.get(*at).is_none_or(|&byte| byte == b'/');
    (1..=path.len()).filter(slash).map(|end| &path[..end])
}

fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}
