//! The files of uploads that outlive their request ([`Upload::keep`](crate::Upload::keep)), in
//! `.onrush/uploads`, or in `.onrush-staging/uploads` on another file system (`mounts`). Unlike the
//! folder of staged files, a start of the server does not sweep this one.
//!
//! A kept file has the bytes of an upload from the first one. Its first `PartialUpload::bytes` are
//! durable, if the store is. What follows them was written later: it may be missing or torn after a
//! power cut, so the first step after a resume drops it. Not the resume itself: its caller may
//! learn only then, when it has the lock, that another process has kept more meanwhile. A commit
//! renames the file, as any other staged file. If the power fails during that rename, some file
//! systems may lose the new name and the old one; then the upload is gone and the object is the old
//! one.
//!
//! A commit that replaces an object may exchange both files (`commit`), and the process may end
//! before the old object is removed: it then has the name of the kept file. The place of a kept
//! file therefore includes its inode number. The same number says that an object was made from
//! a kept file whose record is left ([`published`]). Where inode numbers change with each
//! mount, uploads do not continue after one.
//!
//! The staged file holds a lock on the name of the kept file. A job of a dropped upload goes on and
//! may publish the file: a resume waits for it. If another process has the upload, a resume and a
//! discard fail with [`StoreError::InUse`]: that process may hold it for as long as its client
//! sends.
//!
//! Parts of a kept file may be written at any position, each by a job that has the lock and opens
//! the file by its name. So such a write comes before the commit, or finds no file: no open
//! descriptor outlives the change into an object. The checksum of such a file is that of the bytes
//! that a resume reads, because parts in any order have none together.
//!
//! The store does not know which files are still needed. Callers discard them. What was lost in a
//! crash is removed after a start, if no other process uses the folder and the caller says which
//! files it knows ([`discard_unknown`]); otherwise by its age.

use super::dirs::names;
use super::key_locks;
use super::locks::Locks;
use super::mounts;
use super::parents;
use super::staged::{NO_TAIL, StagedFile, StagedName};
use super::staging::{Staging, StagingFolder, UPLOADS};
use super::writing::{spend_write, write_at, write_steps};
use super::{Folder, FolderInner};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::{Key, RESERVED};
use crate::store::PartialUpload;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Create, Dir, File, FileKind, OpenHow};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

const READ_AND_WRITE: OpenHow = OpenHow {
    read: true,
    write: true,
    create: Create::No,
    mode: 0,
};

impl Folder {
    /// Removes what uploads of dead processes have left and none of `known` needs, which are all
    /// results of [`Upload::keep`](crate::Upload::keep) that the caller knows. Returns the number
    /// of files. Does nothing if another process used the folder when this was opened: call it
    /// soon after that, once. `swaps`: [`Store::swaps`] of before the caller has looked for those.
    /// Does nothing, either, if the folder is another one by now. Blocks.
    ///
    /// [`Store::swaps`]: crate::Store::swaps
    pub fn discard_unknown(&self, known: &[PartialUpload], swaps: u64) -> Result<usize> {
        discard_unknown(&self.inner, known, swaps)
    }

    /// The name of the file of a kept upload, which no other one has.
    pub(crate) fn kept_name(kept: &PartialUpload) -> Result<Vec<u8>> {
        name_of(kept)
    }

    /// The same, and the size of the file in bytes. `None` if it is not there any more. Blocks.
    pub(crate) fn kept_file(&self, kept: &PartialUpload) -> Result<Option<(Vec<u8>, u64)>> {
        let size = find(&self.inner, kept)?;
        size.map(|size| Ok((name_of(kept)?, size))).transpose()
    }

    /// As [`ResumableUploads::discard_older`](crate::ResumableUploads::discard_older), but returns
    /// the names of the files.
    pub(crate) async fn discard_older_named(&self, age: Duration) -> Result<Vec<Vec<u8>>> {
        let job = move |inner: &Arc<FolderInner>| discard_older(inner, age);
        self.run(&self.inner.pool, job).await
    }
}

/// Keeps the bytes of a staged file, `bytes` long. Blocks.
pub(super) fn keep(staged: &mut StagedFile, bytes: u64) -> Result<PartialUpload> {
    let inner = staged.name.inner.clone();
    staged.drop_tail()?;
    if inner.durable() {
        (staged.file.sync_data()).map_err(StoreError::from_open_file)?;
    }
    if !staged.name.is_kept {
        move_to_kept(&inner, staged).map_err(StoreError::from_open_file)?;
    }
    let found = staged.file.metadata().map_err(StoreError::from_open_file)?;
    let place = PartialAt {
        name: &staged.name.name,
        inode: found.inode,
        checksum: staged.checksum.map(|checksum| (checksum, bytes)),
        mount: staged.name.staging.path(),
    };
    Ok(PartialUpload {
        bytes,
        place: place.to_bytes(),
    })
}

/// What identifies a kept file: see [`PartialUpload::place`].
struct PartialAt<'a> {
    name: &'a [u8],
    inode: u64,
    /// Of the first bytes of the file, and how many these are. Parts may have been written since.
    checksum: Option<(Checksum, u64)>,
    /// [`Staging::path`] of its file system.
    mount: &'a [u8],
}

impl<'a> PartialAt<'a> {
    /// The name, the inode number, and if there is a checksum, this in hexadecimal and the number
    /// of bytes, separated by slashes. On another file system, a NUL and the path follow.
    fn to_bytes(&self) -> Vec<u8> {
        let checksum = self
            .checksum
            .map(|(checksum, bytes)| format!("/{:x}/{bytes}", checksum.value()));
        let numbers = format!("/{}{}", self.inode, checksum.unwrap_or_default());
        let mut bytes = [self.name, numbers.as_bytes()].concat();
        if !self.mount.is_empty() {
            bytes.push(0);
            bytes.extend_from_slice(self.mount);
        }
        bytes
    }

    fn parse(bytes: &'a [u8]) -> Result<PartialAt<'a>> {
        let parse = || {
            let (bytes, mount) = match bytes.iter().position(|&byte| byte == 0) {
                Some(at) => (&bytes[..at], &bytes[at + 1..]),
                None => (bytes, &[][..]),
            };
            let at = bytes.iter().position(|&byte| byte == b'/')?;
            let mut numbers = str::from_utf8(&bytes[at + 1..]).ok()?.split('/');
            let inode = numbers.next()?.parse().ok()?;
            let checksum = match (numbers.next(), numbers.next()) {
                (Some(value), Some(bytes)) => {
                    let value = u64::from_str_radix(value, 16).ok()?;
                    Some((Checksum::from_value(value), bytes.parse().ok()?))
                }
                _ => None,
            };
            Some(PartialAt {
                name: &bytes[..at],
                inode,
                checksum,
                mount,
            })
        };
        parse().ok_or(StoreError::NotFound)
    }

    /// The checksum of the first `bytes` bytes, if it is known.
    fn checksum_of(&self, bytes: u64) -> Option<Checksum> {
        let (checksum, covered) = self.checksum?;
        (covered == bytes).then_some(checksum)
    }
}

fn move_to_kept(inner: &Arc<FolderInner>, staged: &mut StagedFile) -> io::Result<()> {
    let staging = staged.name.staging.clone();
    let name = staging.unique_name();
    let (uploads, own) = staging.ensure_folder(UPLOADS)?;
    let lease = try_lock(inner, &name).ok_or(io::ErrorKind::AlreadyExists)?; // It is unique.
    let from = &staged.name;
    (from.folder.dir).rename(&from.name, &uploads, &name, false)?;
    staged.name = StagedName {
        inner: from.inner.clone(),
        staging: staging.clone(),
        folder: Arc::new(StagingFolder::lasting(uploads)),
        name,
        is_kept: false,
        lease: Some(Box::new(lease)),
    };
    if inner.durable() {
        // The folders above may be new.
        for dir in [&staged.name.folder.dir, &own, staging.dir()] {
            inner.parents.sync(dir)?;
        }
    }
    staged.name.is_kept = true;
    Ok(())
}

/// The key of the lock of a kept file.
fn lock_key(name: &[u8]) -> Option<Key> {
    Key::parse(&[RESERVED, b"/", UPLOADS, b"/", name].concat()).ok()
}

/// Waits until no upload of this process has the kept file, and no job that an upload has begun.
pub(super) async fn lock(inner: &Arc<FolderInner>, kept: &PartialUpload) -> Result<Locks> {
    let at = lock_key(PartialAt::parse(&kept.place)?.name);
    let at = at.ok_or(StoreError::NotFound)?;
    Ok(Locks::one(key_locks::acquire(inner, &at).await))
}

/// Locks a kept file, if no upload of any process has it. Blocks.
fn try_lock(inner: &Arc<FolderInner>, name: &[u8]) -> Option<Locks> {
    let mut lease = Locks::one(key_locks::try_acquire(inner, &lock_key(name)?)?);
    lease.try_exclude_processes(inner).is_ok().then_some(lease)
}

/// Opens a kept file. Returns its size and its folder as well. Blocks.
pub(super) fn open(
    inner: &FolderInner,
    kept: &PartialUpload,
    what_for: FileUse,
) -> Result<(File, u64, Dir)> {
    let permit = inner.options.descriptors.open_file(what_for);
    let permit = permit.ok_or(StoreError::Busy)?;
    let place = PartialAt::parse(&kept.place)?;
    let uploads = open_uploads(&*mounts::staging_at(inner, place.mount)?)?;
    let file = uploads.open(place.name, READ_AND_WRITE);
    let file = file.map_err(StoreError::from_lookup)?.with_permit(permit);
    let found = file.metadata().map_err(StoreError::from_open_file)?;
    // This is an object that the upload has replaced, or another program has changed the file.
    if found.inode != place.inode || found.size < kept.bytes {
        return Err(StoreError::NotFound);
    }
    Ok((file, found.size, uploads))
}

/// Writes at any position of a kept file
/// ([`ResumableUploads::write_partial`](crate::ResumableUploads::write_partial)).
pub(super) async fn write(
    inner: &Arc<FolderInner>,
    kept: &PartialUpload,
    position: u64,
    mut buf: Vec<u8>,
) -> Result<Vec<u8>> {
    let pool = inner.change_pool.clone();
    for range in write_steps(&pool, buf.len()) {
        let mut lease = lock(inner, kept).await?;
        let (place, bytes) = (kept.clone(), range.len());
        let at = position + range.start as u64;
        let job = move |inner: &Arc<FolderInner>| {
            lease.try_exclude_processes(inner)?;
            let (file, _, uploads) = open(inner, &place, FileUse::Brief)?;
            inner.check_free_in(&uploads, bytes as u64)?;
            write_at(&file, &buf[range], at, inner.durable())?;
            drop(lease);
            Ok(buf)
        };
        buf = inner.run(&pool, job).await?;
        spend_write(&pool, bytes);
    }
    buf.clear();
    Ok(buf)
}

/// Makes a kept file durable, or removes it
/// ([`ResumableUploads::sync_partial`](crate::ResumableUploads::sync_partial)).
pub(super) async fn sync(inner: &Arc<FolderInner>, kept: &PartialUpload) -> Result<()> {
    if !inner.durable() {
        return Ok(());
    }
    let kept = kept.clone();
    // Without the lock, so that other parts are written meanwhile.
    let job = move |inner: &Arc<FolderInner>| {
        let (file, ..) = open(inner, &kept, FileUse::Brief)?;
        file.sync_data().map_err(|error| {
            // The kernel may report the loss of bytes of any part, and reports it once.
            let _ = discard(inner, &kept);
            StoreError::from_open_file(error)
        })
    };
    inner.run(&inner.change_pool, job).await
}

/// Opens a kept file to continue it. `lease` is its lock. Blocks.
pub(super) fn reopen(
    inner: &Arc<FolderInner>,
    kept: &PartialUpload,
    mut lease: Locks,
) -> Result<StagedFile> {
    lease.try_exclude_processes(inner)?;
    let (file, size, uploads) = open(inner, kept, FileUse::Upload)?;
    let place = PartialAt::parse(&kept.place)?;
    Ok(StagedFile {
        file,
        tail_at: match size > kept.bytes {
            true => kept.bytes,
            false => NO_TAIL,
        },
        name: StagedName {
            inner: inner.clone(),
            staging: mounts::staging_at(inner, place.mount)?,
            folder: Arc::new(StagingFolder::lasting(uploads)),
            name: place.name.to_vec(),
            is_kept: true,
            lease: Some(Box::new(lease)),
        },
        checksum: match inner.has_checksums() {
            true => place.checksum_of(kept.bytes),
            false => None,
        },
    })
}

/// The size of the object at `key` if it is the kept file. Blocks.
pub(super) fn published(
    inner: &FolderInner,
    key: &Key,
    kept: &PartialUpload,
) -> Result<Option<u64>> {
    let Ok(place) = PartialAt::parse(&kept.place) else {
        return Ok(None);
    };
    // Each file system numbers its own inodes.
    let staging = match mounts::staging_at(inner, place.mount) {
        Err(StoreError::NotFound | StoreError::Unavailable) => return Ok(None),
        staging => staging?,
    };
    let found = parents::open(inner, key.split().0)
        .and_then(|parent| parent.dir().entry_metadata(key.name()));
    match found {
        Ok(found) => {
            let is_kept = found.inode == place.inode
                && found.file_system() == staging.file_system()
                && found.size >= kept.bytes;
            Ok(is_kept.then_some(found.size))
        }
        Err(error) => match StoreError::from_lookup(error) {
            StoreError::NotFound | StoreError::NotDirectory => Ok(None),
            error => Err(error),
        },
    }
}

/// The name of a kept file, which no other one has.
pub(super) fn name_of(kept: &PartialUpload) -> Result<Vec<u8>> {
    let place = PartialAt::parse(&kept.place)?;
    Ok(file_name(place.name, place.mount))
}

fn file_name(name: &[u8], mount: &[u8]) -> Vec<u8> {
    [name, b"\0", mount].concat()
}

/// The size of a kept file in bytes. `None` if it is not there any more. On a file system that is
/// not mounted now, it has its size of before. Blocks.
pub(super) fn find(inner: &FolderInner, kept: &PartialUpload) -> Result<Option<u64>> {
    let found = PartialAt::parse(&kept.place).and_then(|place| {
        let uploads = match mounts::staging_at(inner, place.mount) {
            Err(StoreError::Unavailable) => return Ok(Some(kept.bytes)),
            staging => open_uploads(&*staging?)?,
        };
        let found = uploads.entry_metadata(place.name);
        let found = found.map_err(StoreError::from_lookup)?;
        let is_there = found.inode == place.inode && found.size >= kept.bytes;
        Ok(is_there.then_some(found.size))
    });
    match found {
        Err(StoreError::NotFound | StoreError::NotDirectory) => Ok(None),
        found => found,
    }
}

/// Removes the kept files that dead processes have left and that are none of `known`, nor in use:
/// those that were never recorded, and old objects that a commit has given the name of a kept file.
/// Returns their number. Does nothing if another process used the folder when it was opened.
/// Blocks.
pub(super) fn discard_unknown(
    inner: &Arc<FolderInner>,
    known: &[PartialUpload],
    swaps: u64,
) -> Result<usize> {
    let places = known
        .iter()
        .filter_map(|kept| PartialAt::parse(&kept.place).ok());
    let places: HashSet<_> = (places)
        .map(|place| (place.mount, place.name, place.inode))
        .collect();
    mounts::open_used(inner, places.iter().map(|(mount, ..)| *mount));
    let own = inner.staging()?;
    let all: Vec<_> = inner.mounts.all().into_iter().chain([own]).collect();
    // A swap is counted before the staging folders are those of the other folder.
    if inner.again.swaps().load(Acquire) != swaps {
        return Ok(0);
    }
    let mut discarded = 0;
    for staging in all {
        let left = staging.take_leftovers();
        let Ok(uploads) = open_uploads(&staging) else {
            continue;
        };
        let discard = |name: &Vec<u8>| {
            let lease = try_lock(inner, name);
            let Ok(found) = uploads.entry_metadata(name) else {
                return false;
            };
            let is_known = places.contains(&(staging.path(), &name[..], found.inode));
            lease.is_some() && !is_known && uploads.unlink(name).is_ok()
        };
        discarded += left.iter().filter(|name| discard(name)).count();
    }
    Ok(discarded)
}

/// As [`discard`], unless another process uses the kept file. Blocks.
pub(super) fn discard_unused(inner: &Arc<FolderInner>, kept: &PartialUpload) -> Result<()> {
    let at = PartialAt::parse(&kept.place).ok();
    let at = at.and_then(|place| lock_key(place.name));
    // If a job of this process has it, so has this process.
    let lock = at.and_then(|at| key_locks::try_acquire(inner, &at));
    let mut lease = lock.map(Locks::one);
    if let Some(lease) = &mut lease {
        lease.try_exclude_processes(inner)?;
    }
    discard(inner, kept)
}

/// Removes a kept file, but not the old object that a commit has given its name. Blocks.
pub(super) fn discard(inner: &FolderInner, kept: &PartialUpload) -> Result<()> {
    let Ok(place) = PartialAt::parse(&kept.place) else {
        return Ok(());
    };
    let uploads = mounts::staging_at(inner, place.mount);
    let uploads = match uploads.and_then(|staging| open_uploads(&staging)) {
        Ok(uploads) => uploads,
        // On a file system that is away, it is removed when it is old ([`discard_older`]).
        Err(StoreError::NotFound | StoreError::Unavailable) => return Ok(()),
        Err(error) => return Err(error),
    };
    let found = uploads.entry_metadata(place.name);
    let removed = match found {
        Ok(found) if found.inode == place.inode => uploads.unlink(place.name),
        found => found.map(drop),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::from_change(error))
        }
        _ => Ok(()),
    }
}

/// Removes the kept files, except those in use, that were last written longer than `age` ago.
/// Returns their names, as [`name_of`]. Blocks.
pub(super) fn discard_older(inner: &Arc<FolderInner>, age: Duration) -> Result<Vec<Vec<u8>>> {
    let age_ns = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
    let before_ns = inner.root.now_ns().saturating_sub(age_ns);
    let mut discarded = Vec::new();
    for staging in inner.mounts.all().into_iter().chain([inner.staging()?]) {
        let names = match open_uploads(&staging) {
            Err(StoreError::NotFound) => continue,
            opened => discard_before(inner, &opened?, before_ns),
        };
        discarded.extend(names.iter().map(|name| file_name(name, staging.path())));
    }
    Ok(discarded)
}

/// Removes the files in `uploads`, except those in use, that were last written before a time.
/// Returns their names.
fn discard_before(inner: &Arc<FolderInner>, uploads: &Dir, before_ns: i64) -> Vec<Vec<u8>> {
    let is_old = |name: &Vec<u8>| {
        let found = uploads.entry_metadata(name);
        found.is_ok_and(|found| found.modified_ns < before_ns)
    };
    let discard = |name: &Vec<u8>| {
        let lease = try_lock(inner, name);
        lease.is_some() && uploads.unlink(name).is_ok()
    };
    let all = names(uploads, Some(FileKind::File)).into_iter();
    all.filter(is_old).filter(discard).collect()
}

fn open_uploads(staging: &Staging) -> Result<Dir> {
    (staging.open_folder(UPLOADS)).map_err(StoreError::from_lookup)
}
