//! Copying an object and renaming an object or a folder, on the disk.
//!
//! A copy is a staged file into which the kernel copies (`copy_file_range(2)`), so file systems
//! that can share blocks do. It is committed like an upload. The source is opened once: it stays
//! one version, even if it is replaced meanwhile.
//!
//! A rename holds the locks of both keys and is one `renameat2(2)`. If a sync fails afterwards and
//! nothing was replaced, it is undone. A rename between two folders is in both or in none after a
//! power cut on file systems with a journal.

use super::change::{self, Locks};
use super::copying;
use super::key_locks;
use super::parents::{self, CreatedFolders, Parent, ParentState};
use super::properties;
use super::staging::{DeferredFree, StagedFile};
use super::upload::StagedUpload;
use super::{Inner, existing_object};
use crate::attributes;
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Relocation, Upload};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{File, FileKind, Metadata};
use std::io;
use std::sync::Arc;

/// The number of attempts when the folder of the new name is deleted meanwhile.
const ATTEMPTS: usize = 4;

/// Copies an object.
pub(super) async fn copy(inner: &Arc<Inner>, how: Relocation) -> Result<Committed> {
    check(inner, &how)?;
    let pool = inner.change_pool.clone();
    let (shared, request) = (inner.clone(), how.clone());
    let job = move || {
        let (meta, source) = shared.open(&request.from, FileUse::Download)?;
        shared.check(&request.from_condition, Some(&meta))?;
        let metadata = attributes::read_metadata(&source)?;
        shared.check_free(&request.to, meta.size)?;
        let mut staged = StagedFile::create(&shared, &request.to, FileUse::Upload)?;
        staged.checksum = None; // No byte passes through this process.
        match properties::copy(&source, &staged.file) {
            Ok(()) => Ok::<_, StoreError>((meta, source, metadata, staged)),
            Err(error) => {
                staged.remove_unless_kept();
                Err(error)
            }
        }
    };
    let (meta, source, metadata, mut staged) = pool.run(job).await??;
    staged.checksum = None; // That of the source, which need not be read for it.
    let (mut staged, source) =
        copying::append(inner, &how.to, staged, 0, source, meta.size).await?;
    if inner.has_checksums() {
        let job = move || match copied_checksum(&source) {
            Ok(checksum) => {
                staged.checksum = checksum;
                Ok(staged)
            }
            Err(error) => {
                staged.remove_unless_kept();
                Err(error)
            }
        };
        staged = pool.run(job).await??;
    }
    let upload = StagedUpload::of_file(inner, &how.to, how.to_condition, staged, meta.size);
    let mut upload = Box::new(upload);
    upload.set_metadata(metadata)?;
    upload.commit().await
}

/// The checksum of a file that was copied. `None` if it has none, or another program has written it
/// since: then it may have been copied in two states.
fn copied_checksum(source: &File) -> Result<Option<Checksum>> {
    let record = attributes::read_record(source).map_err(StoreError::from_open_file)?;
    let found = source.metadata().map_err(StoreError::from_open_file)?;
    Ok(record
        .filter(|record| record.is_of(&found))
        .map(|record| record.checksum))
}

/// Renames an object or a folder.
pub(super) async fn rename(inner: &Arc<Inner>, how: Relocation, kind: Kind) -> Result<Committed> {
    check(inner, &how)?;
    let sync_failures = inner.parents.sync_failures();
    let mut created = CreatedFolders::new(inner);
    for _ in 0..ATTEMPTS {
        if let Some(path) = how.to.split().0 {
            created = parents::prepare(inner, path, created, sync_failures).await?;
        }
        // Always in the same order, so that two renames do not wait for each other.
        let (first, second) = match how.from < how.to {
            true => (&how.from, &how.to),
            false => (&how.to, &how.from),
        };
        let locks = Locks::two(
            key_locks::acquire(inner, first).await,
            key_locks::acquire(inner, second).await,
        );
        let how = how.clone();
        let job = move |inner: &Arc<Inner>, _locks| try_rename(inner, &how, kind, sync_failures);
        if let Some(committed) = change::run(inner, locks, job).await? {
            created.keep();
            return Ok(committed);
        }
    }
    Err(StoreError::Conflict)
}

fn check(inner: &Inner, how: &Relocation) -> Result<()> {
    inner.staging()?;
    match how.from.is_internal() || how.to.is_internal() || how.from == how.to {
        true => Err(StoreError::Forbidden),
        false => Ok(()),
    }
}

/// Renames, or returns `None` if the folder of the new name is not ready.
fn try_rename(
    inner: &Inner,
    how: &Relocation,
    kind: Kind,
    sync_failures: u64,
) -> Result<Option<Committed>> {
    let source = source(inner, &how.from, kind)?;
    inner.check(&how.from_condition, Some(&source))?;
    let replaced = match inner.existing_object(&how.to) {
        // An empty folder may be replaced by a folder.
        Err(StoreError::IsDirectory) if kind == Kind::Directory => Some(inner.meta(&how.to)?),
        Ok(Some(_)) if kind == Kind::Directory => return Err(StoreError::Conflict),
        found => found?,
    };
    inner.check(&how.to_condition, replaced.as_ref())?;
    let found = parents::look_up(inner, how.to.split().0).map_err(StoreError::from_change)?;
    let ParentState::Ready(to) = found else {
        return Ok(None);
    };
    let from = parents::open(inner, how.from.split().0).map_err(StoreError::from_lookup)?;
    let _content = DeferredFree::hold(inner, to.dir(), how.to.name(), replaced.as_ref());
    let is_linked = are_links(&from, &to, how, kind)?;
    let rename = |no_replace| {
        let (from_name, to_name) = (how.from.name(), how.to.name());
        if is_linked {
            return from.dir().unlink(from_name);
        }
        (from.dir()).rename(from_name, to.dir(), to_name, no_replace)
    };
    let renamed = match rename(replaced.is_none()) {
        // The file system does not support this rename.
        Err(error) if is_unsupported(&error) && replaced.is_none() => rename(false),
        renamed => renamed,
    };
    renamed.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::PreconditionFailed,
        io::ErrorKind::NotFound => StoreError::NotFound,
        io::ErrorKind::CrossesDevices => StoreError::OtherFileSystem,
        _ => StoreError::from_change(error),
    })?;
    let changed = || match kind {
        Kind::File => {
            inner.key_locks.advance_generation(&how.from);
            inner.key_locks.advance_generation(&how.to);
        }
        // All objects beneath it have other keys.
        Kind::Directory => inner.key_locks.advance_all(),
    };
    changed();
    inner.parents.forget(how.from.as_bytes());
    inner.parents.forget(how.to.as_bytes());
    if inner.durable() {
        let synced = inner.parents.sync(to.dir());
        let synced = synced.and_then(|()| inner.parents.sync(from.dir()));
        let failed = match synced {
            Err(error) => Some(StoreError::from_open_file(error)),
            Ok(()) if inner.parents.sync_failures() != sync_failures => {
                Some(StoreError::Io(io::ErrorKind::Other.into()))
            }
            Ok(()) => None,
        };
        if let Some(error) = failed {
            if replaced.is_none() {
                let _ = (to.dir()).rename(how.to.name(), from.dir(), how.from.name(), true);
                changed();
            }
            return Err(error);
        }
    }
    let meta = match source.has_fragile_version() {
        true => existing_object(to.dir(), &how.to)?.unwrap_or(source), // The rename changed it.
        false => source,
    };
    Ok(Some(Committed {
        created: replaced.is_none(),
        replaced_bytes: replaced.map_or(0, |replaced| replaced.size),
        meta,
    }))
}

/// Whether both names are hard links of one file. `rename(2)` would leave both; the removal of the
/// first one does what the caller wants. Fails if both are the same name, through symbolic links to
/// parent folders.
fn are_links(from: &Parent, to: &Parent, how: &Relocation, kind: Kind) -> Result<bool> {
    let is_same =
        |one: &Metadata, two: &Metadata| (one.device, one.inode) == (two.device, two.inode);
    let source = from.dir().entry_metadata(how.from.name());
    let found = source.and_then(|source| Ok((source, to.dir().entry_metadata(how.to.name())?)));
    let Ok((source, target)) = found else {
        return Ok(false); // There is no object to replace, or the rename fails.
    };
    if !is_same(&source, &target) {
        return Ok(false);
    }
    let folders = (from.dir().self_metadata()).and_then(|one| Ok((one, to.dir().self_metadata()?)));
    let (one, two) = folders.map_err(StoreError::from_open_file)?;
    let is_one_name = is_same(&one, &two) && how.from.name() == how.to.name();
    match is_one_name || kind == Kind::Directory {
        true => Err(StoreError::Forbidden),
        // A file system that ignores case has one entry for two names, and can rename it.
        false => Ok(source.nlink > 1),
    }
}

/// What is renamed. A symbolic link is a conflict.
fn source(inner: &Inner, from: &Key, kind: Kind) -> Result<Meta> {
    if kind == Kind::File {
        return inner.existing_object(from)?.ok_or(StoreError::NotFound);
    }
    let parent = parents::open(inner, from.split().0).map_err(StoreError::from_lookup)?;
    let found = parent.dir().entry_metadata(from.name());
    let found = found.map_err(StoreError::from_lookup)?;
    match found.kind {
        FileKind::Directory => Meta::from_file(&found).ok_or(StoreError::NotFound),
        FileKind::Symlink => Err(StoreError::Conflict),
        FileKind::File | FileKind::Special => Err(StoreError::NotFound),
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}
