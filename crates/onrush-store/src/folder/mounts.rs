//! The file systems of the folder: its own, and others that are mounted beneath it (bind mounts,
//! further disks, volumes of a container, subvolumes).
//!
//! A rename never leads from one file system to another. So each has a staging folder, which is
//! made when it is first needed: `.onrush` in the root folder, `.onrush-staging` in the first
//! folder of another file system where the process may create one. Names that begin so are
//! reserved in every folder.
//!
//! Where even a rename on one file system is refused (project quotas, unions of disks), or the
//! mounts have changed since an upload was staged, the commit copies its bytes next to the object
//! (`upload`).
//!
//! A file system whose staging folder is open is in use, so it cannot be unmounted without force.

use super::FolderInner;
use super::parents;
use super::staging::{Staging, Top};
use crate::error::{Result, StoreError};
use crate::key::{Key, STAGING};
use onrush_rt::fs::{Dir, Metadata};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The staging folders of other file systems, by [`Metadata::file_system`].
///
/// [`Metadata::file_system`]: onrush_rt::fs::Metadata::file_system
#[derive(Default)]
pub(super) struct Mounts(Mutex<HashMap<(u64, u64), Arc<Staging>>>);

impl Mounts {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), Arc<Staging>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all, because the root folder is another one.
    pub(super) fn forget_all(&self) {
        self.lock().clear();
    }

    /// All staging folders that were needed.
    pub(super) fn all(&self) -> Vec<Arc<Staging>> {
        self.lock().values().cloned().collect()
    }
}

/// The staging folder for the object `key`, whose folder need not exist yet. Blocks.
pub(super) fn staging_for(inner: &FolderInner, key: &Key) -> Result<Arc<Staging>> {
    let (dir, path) = deepest(inner, key)?;
    let found = dir.self_metadata().map_err(StoreError::from_change)?;
    staging_of(inner, &found, path)
}

/// The staging folder for objects in `folder`, which is at `path` (empty: the root folder). Blocks.
pub(super) fn staging_of(
    inner: &FolderInner,
    folder: &Metadata,
    path: &[u8],
) -> Result<Arc<Staging>> {
    let own = inner.staging()?;
    let wanted = folder.file_system();
    if path.is_empty() || wanted == own.file_system() {
        return Ok(own);
    }
    if let Some(known) = inner.mounts.lock().get(&wanted) {
        return Ok(known.clone());
    }
    let opened = open(inner, wanted, path).map_err(StoreError::from_change)?;
    let mut known = inner.mounts.lock();
    // What was mounted there before is gone.
    known.retain(|&of, staging| of == wanted || staging.path() != opened.path());
    Ok(known.entry(wanted).or_insert(Arc::new(opened)).clone())
}

/// The staging folder whose [`Staging::path`] is `path`. Fails with [`StoreError::Unavailable`] if
/// its file system is not mounted now: its files will be back with it. Blocks.
pub(super) fn staging_at(inner: &FolderInner, path: &[u8]) -> Result<Arc<Staging>> {
    let own = inner.staging()?;
    if path.is_empty() {
        return Ok(own);
    }
    let (dir, at) = deepest_of(inner, path)?;
    let found = dir.self_metadata().map_err(StoreError::from_change)?;
    // Its mount point is a folder of the file system above, or is not there either.
    if at != path || found.file_system() == own.file_system() {
        return Err(StoreError::Unavailable);
    }
    let staging = staging_of(inner, &found, path)?;
    match staging.path() == path {
        true => Ok(staging),
        false => Err(StoreError::Unavailable),
    }
}

/// Opens the staging folders at `paths`, and those that are at the top of a file system which is
/// mounted beneath the folder now, as far as there are any. So they are swept. Blocks.
pub(super) fn open_used<'p>(inner: &FolderInner, paths: impl Iterator<Item = &'p [u8]>) {
    let mut all: HashSet<Vec<u8>> = paths.map(<[u8]>::to_vec).collect();
    all.extend(inner.root.mounted_beneath().unwrap_or_default());
    for path in all.iter().filter(|path| !path.is_empty()) {
        if inner.root.open_dir(&parents::join(path, STAGING)).is_ok() {
            let _ = staging_at(inner, path); // What cannot be opened cannot be used, either.
        }
    }
}

/// Makes a staging folder on the file system `wanted`, which has the folder at `path`, as far up as
/// possible: objects and folders there come and go.
fn open(inner: &FolderInner, wanted: (u64, u64), path: &[u8]) -> io::Result<Staging> {
    let mut failure = io::Error::from_raw_os_error(libc::EXDEV);
    for prefix in parents::prefixes(path) {
        let dir = inner.root.open_dir(prefix)?;
        if dir.self_metadata()?.file_system() != wanted {
            continue;
        }
        match Staging::open(Top::new(Arc::new(dir), STAGING, prefix)?) {
            Ok(staging) => return Ok(staging),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = error,
            Err(error) => return Err(error),
        }
    }
    Err(failure)
}

/// Whether a file that was found in the folder `parent` is mounted there, as containers mount one
/// file of their configuration. Such a mount is no other's, so a file of the mount of the root
/// folder is none, and costs no further system call.
pub(super) fn is_mount_point(inner: &FolderInner, parent: &Dir, file: &Metadata) -> Result<bool> {
    let own = inner.staging().map(|staging| staging.file_system().0);
    if own == Ok(file.mount) {
        return Ok(false);
    }
    let folder = parent.self_metadata().map_err(StoreError::from_change)?;
    Ok(folder.mount != file.mount)
}

/// Whether there is no folder at a path. If something else is in its place, the commit says so.
fn is_no_folder(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::CrossesDevices
    ) || error.raw_os_error() == Some(libc::ELOOP)
}

/// The folder of the object `key`, or the last one above it that exists, and its path.
pub(super) fn deepest<'k>(inner: &FolderInner, key: &'k Key) -> Result<(Dir, &'k [u8])> {
    deepest_of(inner, key.split().0.unwrap_or_default())
}

/// The folder at `path`, or the last one above it that exists, and its path.
fn deepest_of<'k>(inner: &FolderInner, mut path: &'k [u8]) -> Result<(Dir, &'k [u8])> {
    while !path.is_empty() {
        match inner.root.open_dir(path) {
            Err(error) if is_no_folder(&error) => {
                path = parents::split(path).0.unwrap_or_default();
            }
            opened => return Ok((opened.map_err(StoreError::from_change)?, path)),
        }
    }
    let root = inner.root.open_dir(b".").map_err(StoreError::from_change)?;
    Ok((root, path))
}
