//! The folders an object lies in: made where missing, and known to be on the disk.
//!
//! An object is durable only if every folder above it is. A folder may have been made a moment
//! ago, by another request that has not synced it yet or by another program that never will; so
//! the first put into a folder syncs all that is above it, whoever made it, and what has been
//! synced once is remembered.
//!
//! Making folders takes long on a disk: a name and a sync each. It is done before the change that
//! needs them, without the lock of any key, by few threads of the pool at a time, and by few
//! folders at a time: who needs one folder does not wait for all of those who need many.
//!
//! This module must not know files or conditions.

use super::Inner;
use super::semaphore::TaskSemaphore;
use crate::error::{Result, StoreError};
use onrush_rt::fs::Dir;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Folders remembered as durable; when there are more, remembering begins anew.
const KNOWN_MAX: usize = 16_384;

/// Folders made by one job at most. More of them cost fewer syncs of the disk's journal, and let
/// others wait longer.
const STEP: usize = 8;

/// How often to try again when somebody deletes a folder on the way.
const ATTEMPTS: usize = 4;

pub(super) struct Parents {
    /// Path and inode of the folders whose names, and those of all above, were synced.
    known: Mutex<HashMap<Vec<u8>, u64>>,
    /// How often the sync of a directory has failed.
    sync_failures: AtomicU64,
    /// For jobs that make folders.
    making: Arc<TaskSemaphore>,
}

/// What is known of the folder that an object is to lie in.
pub(super) enum Found<'a> {
    /// It is there and, if the store is durable, so is it.
    Ready(Parent<'a>),
    /// It is there, but perhaps not durable.
    Unknown,
    /// It is not there.
    Missing,
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
    /// For a pool of so many threads, of which a quarter may make folders.
    pub(super) fn new(threads: usize) -> Parents {
        Parents {
            known: Mutex::default(),
            sync_failures: AtomicU64::new(0),
            making: TaskSemaphore::new((threads / 4).max(1)),
        }
    }

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

/// Opens the folder at `path` (`None`: the top), if that is all there is to do.
pub(super) fn find<'a>(inner: &'a Inner, path: Option<&[u8]>) -> io::Result<Found<'a>> {
    let Some(path) = path else {
        return Ok(Found::Ready(Parent::Root(&inner.root)));
    };
    let dir = match inner.root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
        other => other?,
    };
    if inner.durable() && !inner.parents.knows(path, dir.self_metadata()?.inode) {
        return Ok(Found::Unknown);
    }
    Ok(Found::Ready(Parent::Below(dir)))
}

/// Makes what is missing of the folder at `path`; if the store is durable, then so is the folder
/// when this returns. Gives `made` with what this makes added. `sync_failures`: how many there had
/// been when the change began. After another one nothing is known to be durable, and this fails.
pub(super) async fn prepare(
    inner: &Arc<Inner>,
    path: &[u8],
    mut made: Made,
    sync_failures: u64,
) -> Result<Made> {
    let ends: Vec<usize> = prefixes(path).map(<[u8]>::len).collect();
    for step in ends.chunks(STEP) {
        let prefix = path[..*step.last().unwrap_or(&path.len())].to_vec();
        let pass = inner.parents.making.acquire().await;
        let shared = inner.clone();
        // The job has the folders of earlier steps as well. When nobody waits for it any more, all
        // of them are removed after it: not while it makes more of them, for then the outer ones
        // would not be empty.
        let job = move || {
            let _pass = pass;
            ensure_patiently(&shared, &prefix, &mut made.paths, sync_failures).map(|()| made)
        };
        made = inner
            .changes
            .run(job)
            .await?
            .map_err(StoreError::of_write)?;
    }
    Ok(made)
}

/// The folders that were made for a change. Dropped, it removes them, on the pool, unless the
/// change was made or something else is in them.
pub(super) struct Made {
    inner: Arc<Inner>,
    /// Outer ones first.
    paths: Vec<Vec<u8>>,
}

impl Made {
    pub(super) fn new(inner: &Arc<Inner>) -> Made {
        Made {
            inner: inner.clone(),
            paths: Vec::new(),
        }
    }

    /// The change was made: the folders stay.
    pub(super) fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let paths = std::mem::take(&mut self.paths);
        if !paths.is_empty() {
            let inner = self.inner.clone();
            // This may be a worker, which must not block.
            let job = move || remove(&inner, paths.iter().map(Vec::as_slice));
            self.inner.changes.run(job).detach();
        }
    }
}

/// Removes the folders at `paths` (outer ones first) that are empty.
fn remove<'p>(inner: &Inner, paths: impl DoubleEndedIterator<Item = &'p [u8]>) {
    for path in paths.rev() {
        let (above, name) = split(path);
        let removed = open(inner, above).and_then(|parent| parent.dir().remove_dir(name));
        if removed.is_ok() {
            inner.parents.forget(path);
        }
    }
}

/// As [`ensure`], again when something is removed meanwhile.
fn ensure_patiently(
    inner: &Inner,
    path: &[u8],
    made: &mut Vec<Vec<u8>>,
    sync_failures: u64,
) -> io::Result<()> {
    let mut attempt = 1;
    loop {
        match ensure(inner, path, sync_failures) {
            Ok(new) => {
                made.extend(new.into_iter().map(<[u8]>::to_vec));
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes what is missing of the folder at `path`, and gives what it made; if the store is durable,
/// then so is the folder when this returns. `NotFound` if something is removed meanwhile.
fn ensure<'p>(inner: &Inner, path: &'p [u8], sync_failures: u64) -> io::Result<Vec<&'p [u8]>> {
    let mut made = Vec::new();
    let dir = match inner.root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(inner, path, &mut made),
        other => other,
    };
    let done = dir.and_then(|dir| {
        if inner.durable() {
            make_durable(inner, path, &dir, sync_failures)?;
        }
        Ok(())
    });
    if done.is_err() {
        // A folder whose sync failed must not stay: the next put would find it there, and no sync
        // would ever tell the failure again. One that another request uses by now resists, and
        // that request sees the count of failures.
        remove(inner, made.iter().copied());
    }
    done.map(|()| made)
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
fn make_durable(inner: &Inner, path: &[u8], dir: &Dir, sync_failures: u64) -> io::Result<()> {
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
        if inner.parents.sync_failures() != sync_failures {
            return Err(io::ErrorKind::Other.into()); // It may have been this name's.
        }
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
