//! The parent folders of an object: creates missing ones and makes them durable.
//!
//! An object is durable only if every folder above it is. Another request may have just created a
//! folder and not synced it yet, or another program may have created it and will never sync it.
//! Therefore the first put into a folder syncs all folders above it, and the store remembers what
//! it has synced.
//!
//! Creating folders on a disk takes long: an entry and a sync each. It is done before the change
//! that needs them and without the lock of any key. Few threads of the pool do it at a time, in
//! steps of few folders, so a request that needs one folder does not wait for requests that need
//! many.

use super::FolderInner;
use crate::error::{Result, StoreError};
use crate::sync::semaphore::TaskSemaphore;
use onrush_rt::fs::Dir;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of entries of [`Parents::durable`]. When it is reached, all are removed.
const DURABLE_MAX: usize = 16_384;

/// The maximum number of folders that one job creates. A larger number needs fewer syncs of the
/// disk's journal, but other requests wait longer.
const FOLDERS_PER_JOB: usize = 8;

/// The number of attempts when a folder on the path is deleted meanwhile.
const ATTEMPTS: usize = 4;

pub(super) struct Parents {
    /// Path, device and inode of each folder whose entry was synced, as were those of all folders
    /// above it.
    durable: Mutex<HashMap<Vec<u8>, (u64, u64)>>,
    /// The number of failed syncs of directories, and of the whole file system.
    sync_failures: AtomicU64,
    /// Limits the jobs that create folders.
    create_permits: Arc<TaskSemaphore>,
}

/// The state of an object's parent folder.
pub(super) enum ParentState {
    /// It exists. If the store is durable, the folder is durable, too.
    Ready(Parent),
    /// It exists, but is not known to be durable.
    NotDurable,
    /// It does not exist.
    Missing,
}

/// The parent folder of an object.
pub(super) enum Parent {
    Root(Arc<Dir>),
    Below(Dir),
}

impl Parent {
    pub(super) fn dir(&self) -> &Dir {
        match self {
            Parent::Root(dir) => dir,
            Parent::Below(dir) => dir,
        }
    }
}

impl Parents {
    /// For a pool of `threads` threads. A quarter of them may create folders at the same time.
    pub(super) fn new(threads: usize) -> Parents {
        Parents {
            durable: Mutex::default(),
            sync_failures: AtomicU64::new(0),
            create_permits: TaskSemaphore::new((threads / 4).max(1)),
        }
    }

    /// The number of failed directory syncs. The kernel reports such an error once, and perhaps to
    /// another request than the one whose entry was lost. So if this number changes during a
    /// request, that request is not known to be durable.
    pub(super) fn sync_failures(&self) -> u64 {
        self.sync_failures.load(Ordering::SeqCst)
    }

    /// Syncs the entries of a directory and counts a failure.
    pub(super) fn sync(&self, dir: &Dir) -> io::Result<()> {
        dir.sync().inspect_err(|_| {
            self.sync_failures.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Forgets the folder at `path`, which was removed or replaced.
    pub(super) fn forget(&self, path: &[u8]) {
        self.lock().remove(path);
    }

    /// Forgets all folders, because the root folder is another one.
    pub(super) fn forget_all(&self) {
        self.lock().clear();
    }

    /// Whether the folder at `path` is known to be durable. If device or inode differ,
    /// another folder has replaced the one that was synced.
    fn is_durable(&self, path: &[u8], folder: (u64, u64)) -> bool {
        self.lock().get(path) == Some(&folder)
    }

    fn set_durable(&self, path: &[u8], folder: (u64, u64)) {
        let mut durable = self.lock();
        if durable.len() >= DURABLE_MAX {
            durable.clear();
        }
        durable.insert(path.into(), folder);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, (u64, u64)>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds out the state of the folder at `path` (`None`: the root folder), and opens it if it is
/// ready.
pub(super) fn look_up(inner: &FolderInner, path: Option<&[u8]>) -> io::Result<ParentState> {
    let Some(path) = path else {
        return Ok(ParentState::Ready(Parent::Root(inner.root.clone())));
    };
    let dir = match inner.root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ParentState::Missing),
        other => other?,
    };
    if inner.durable() {
        let folder = dir.self_metadata()?.identity();
        if !inner.parents.is_durable(path, folder) {
            return Ok(ParentState::NotDurable);
        }
    }
    Ok(ParentState::Ready(Parent::Below(dir)))
}

/// Creates the missing folders of `path`. If the store is durable, the folder is durable when this
/// returns. Returns `created`, extended by the folders that this call created. `sync_failures` is
/// the count of failed syncs when the change began. If the count has grown, no folder is known to
/// be durable, and this fails.
pub(super) async fn prepare(
    inner: &Arc<FolderInner>,
    path: &[u8],
    mut created: CreatedFolders,
    sync_failures: u64,
) -> Result<CreatedFolders> {
    let ends: Vec<usize> = prefixes(path).map(<[u8]>::len).collect();
    for step in ends.chunks(FOLDERS_PER_JOB) {
        let prefix = path[..*step.last().unwrap_or(&path.len())].to_vec();
        let permit = inner.parents.create_permits.acquire().await;
        // The job owns the folders of earlier steps as well. If its future is dropped, all folders
        // are removed after the job has ended. While it creates more, the outer ones would not be
        // empty.
        let job = move |inner: &Arc<FolderInner>| {
            let _permit = permit;
            create_and_sync_with_retries(inner, &prefix, &mut created.paths, sync_failures)
                .map(|()| created)
                .map_err(StoreError::from_change)
        };
        created = inner.run(&inner.change_pool, job).await?;
    }
    Ok(created)
}

/// The folders that were created for a change. Dropping it removes the empty ones on the pool,
/// unless the change was made ([`CreatedFolders::keep`]).
pub(super) struct CreatedFolders {
    inner: Arc<FolderInner>,
    /// Outer ones first.
    paths: Vec<Vec<u8>>,
}

impl CreatedFolders {
    pub(super) fn new(inner: &Arc<FolderInner>) -> CreatedFolders {
        CreatedFolders {
            inner: inner.clone(),
            paths: Vec::new(),
        }
    }

    /// Keeps the folders, because the change was made. Returns their number.
    pub(super) fn keep(mut self) -> usize {
        std::mem::take(&mut self.paths).len()
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        let paths = std::mem::take(&mut self.paths);
        if !paths.is_empty() {
            let inner = self.inner.clone();
            // This may run on a worker, which must not block.
            let job = move || remove_empty(&inner, paths.iter().map(Vec::as_slice));
            self.inner.change_pool.run(job).detach();
        }
    }
}

/// Removes those folders at `paths` (outer ones first) that are empty.
fn remove_empty<'p>(inner: &FolderInner, paths: impl DoubleEndedIterator<Item = &'p [u8]>) {
    for path in paths.rev() {
        let (above, name) = split(path);
        let removed = open(inner, above).and_then(|parent| parent.dir().remove_dir(name));
        if removed.is_ok() {
            inner.usages.remove_folder(path);
            inner.parents.forget(path);
        }
    }
}

/// As [`create_and_sync`], but retries when a folder is removed meanwhile.
fn create_and_sync_with_retries(
    inner: &FolderInner,
    path: &[u8],
    created: &mut Vec<Vec<u8>>,
    sync_failures: u64,
) -> io::Result<()> {
    let mut attempt = 1;
    loop {
        match create_and_sync(inner, path, sync_failures) {
            Ok(new) => {
                created.extend(new.into_iter().map(<[u8]>::to_vec));
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Creates the missing folders of `path` and returns those that it created. If the store is
/// durable, the folder is durable when this returns. Fails with `NotFound` if a folder is removed
/// meanwhile.
fn create_and_sync<'p>(
    inner: &FolderInner,
    path: &'p [u8],
    sync_failures: u64,
) -> io::Result<Vec<&'p [u8]>> {
    let mut created = Vec::new();
    let dir = match inner.root.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_missing(inner, path, &mut created)
        }
        other => other,
    };
    let result = dir.and_then(|dir| {
        if inner.durable() {
            make_durable(inner, path, &dir, sync_failures)?;
        }
        Ok(())
    });
    if result.is_err() {
        // A folder whose sync failed must not stay: the next put would find it, and no later sync
        // would report the failure again. If another request already uses the folder, the removal
        // fails, and that request sees the count of failures.
        remove_empty(inner, created.iter().copied());
    }
    result.map(|()| created)
}

/// Creates the missing folders of `path` and adds those that it created to `created`.
fn create_missing<'p>(
    inner: &FolderInner,
    path: &'p [u8],
    created: &mut Vec<&'p [u8]>,
) -> io::Result<Dir> {
    let mut parent = Parent::Root(inner.root.clone());
    for prefix in prefixes(path) {
        let dir = match inner.root.open_dir(prefix) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let is_free = inner.check_free_for_folder(prefix);
                is_free.map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
                inner.usages.add_folder(prefix).map_err(io::Error::other)?;
                let name = split(prefix).1;
                match (parent.dir()).create_dir(name, inner.options.dir_mode) {
                    Ok(()) => {
                        created.push(prefix);
                        inner.parents.forget(prefix);
                    }
                    Err(error) => {
                        inner.usages.remove_folder(prefix);
                        if error.kind() != io::ErrorKind::AlreadyExists {
                            return Err(error);
                        }
                    }
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

/// Syncs every directory on `path` that holds an entry of the path and is not known as synced.
fn make_durable(inner: &FolderInner, path: &[u8], dir: &Dir, sync_failures: u64) -> io::Result<()> {
    let folder = dir.self_metadata()?.identity();
    if inner.parents.is_durable(path, folder) {
        return Ok(());
    }
    let mut unknown = vec![(path, folder)];
    for prefix in prefixes(path).collect::<Vec<_>>().into_iter().rev().skip(1) {
        let folder = inner.root.open_dir(prefix)?.self_metadata()?.identity();
        if inner.parents.is_durable(prefix, folder) {
            break;
        }
        unknown.push((prefix, folder));
    }
    for (prefix, folder) in unknown.into_iter().rev() {
        let above = open(inner, split(prefix).0)?;
        inner.parents.sync(above.dir())?;
        if inner.parents.sync_failures() != sync_failures {
            return Err(io::ErrorKind::Other.into()); // The failure may concern this entry.
        }
        inner.parents.set_durable(prefix, folder);
    }
    Ok(())
}

/// Opens the folder at `path`, which must exist.
pub(super) fn open(inner: &FolderInner, path: Option<&[u8]>) -> io::Result<Parent> {
    match path {
        Some(path) => inner.root.open_dir(path).map(Parent::Below),
        None => Ok(Parent::Root(inner.root.clone())),
    }
}

/// Yields `a`, `a/b`, `a/b/c` for `a/b/c`.
pub(super) fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slash = |at: &usize| path.get(*at).is_none_or(|&byte| byte == b'/');
    (1..=path.len()).filter(slash).map(|end| &path[..end])
}

/// The path of the entry `name` of the folder at `path`; empty: the root folder.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        [] => name.to_vec(),
        path => [path, b"/", name].concat(),
    }
}

pub(super) fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}
