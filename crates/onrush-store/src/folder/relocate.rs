//! Copying an object and renaming an object or a folder, on the disk.
//!
//! A copy is a staged file into which the kernel copies (`copy_file_range(2)`), so file systems
//! that can share blocks do. It is committed like an upload. The source is opened once: it stays
//! one version, even if it is replaced meanwhile.
//!
//! A rename holds the locks of both keys and is one `renameat2(2)`. If a sync fails afterwards, it
//! is undone: what it has replaced has a staged name until then (`displaced`). A rename between two
//! folders is in both or in none after a power cut on file systems with a journal. Files without
//! hard links cannot be kept, nor can an empty folder: after such a failure, they stay replaced.

use super::change;
use super::copying;
use super::displaced::{self, Displaced};
use super::key_locks;
use super::locks::Locks;
use super::move_records::{self, Names};
use super::moves;
use super::overlap;
use super::parents::{self, CreatedFolders, Parent, ParentState};
use super::properties;
use super::staged::{self, DeferredFree, StagedFile, StagedName};
use super::trees;
use super::upload::StagedUpload;
use super::{FolderInner, existing_object};
use crate::attributes;
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::shown::ShownNames;
use crate::store::{Committed, Overlap, Relocation, Upload};
use crate::usage::counted_bytes;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{File, FileKind};
use std::io;
use std::sync::Arc;

/// The number of attempts when the folder of the new name is deleted meanwhile.
const ATTEMPTS: usize = 4;

/// Copies an object.
pub(super) async fn copy(inner: &Arc<FolderInner>, how: Relocation) -> Result<Committed> {
    check(inner, &how)?;
    let pool = inner.change_pool.clone();
    let request = how.clone();
    let job = move |inner: &Arc<FolderInner>| {
        let (meta, source) = inner.open(&request.from, FileUse::Download)?;
        inner.check(&request.from_condition, Some(&meta))?;
        let metadata = attributes::read_metadata(&source)?;
        inner.check_free(&request.to, meta.size)?;
        let mut staged = StagedFile::create(inner, &request.to, FileUse::Upload)?;
        staged.checksum = None; // No byte passes through this process.
        match properties::copy(&source, &staged.file) {
            Ok(()) => Ok((meta, source, metadata, staged)),
            Err(error) => {
                staged.remove_unless_kept();
                Err(error)
            }
        }
    };
    let (meta, source, metadata, mut staged) = inner.run(&pool, job).await?;
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

/// What a rename may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Replaces {
    /// An object an object, a folder an empty folder.
    Alike,
    /// Anything, as [`Store::replace`](crate::Store::replace).
    All { shown: ShownNames },
}

/// Renames an object or a folder.
pub(super) async fn rename(
    inner: &Arc<FolderInner>,
    how: Relocation,
    kind: Kind,
    replaces: Replaces,
) -> Result<Committed> {
    check(inner, &how)?;
    check_trees(inner, &how, kind, replaces.clone()).await?;
    let sync_failures = inner.parents.sync_failures();
    let mut created = CreatedFolders::new(inner);
    let mut is_first = true;
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
        let (request, replaces) = (how.clone(), replaces.clone());
        let job = move |inner: &Arc<FolderInner>, _locks| match move_records::is_pending(
            inner,
            &[&request.from, &request.to],
            is_first,
        ) {
            true => Ok(Renamed::MovePending),
            false => try_rename(inner, &request, kind, &replaces, sync_failures),
        };
        match change::run(inner, locks, job).await? {
            Renamed::Done(mut committed, removed) => {
                created.keep();
                if let Some(removed) = removed {
                    committed.replaced_bytes = staged::remove(inner, removed).await;
                }
                return Ok(committed);
            }
            Renamed::MovePending => moves::complete(inner, &[&how.from, &how.to]).await?,
            Renamed::ParentNotReady => {}
        }
        is_first = false;
    }
    Err(StoreError::Conflict)
}

/// Checks what the folders contain, which takes long, without the locks.
async fn check_trees(
    inner: &Arc<FolderInner>,
    how: &Relocation,
    kind: Kind,
    replaces: Replaces,
) -> Result<()> {
    // A copy has no links.
    let checks_links = kind == Kind::Directory && !how.from.is_staged();
    let is_needed = checks_links || replaces != Replaces::Alike;
    let how = how.clone();
    let job = move |inner: &Arc<FolderInner>| {
        if checks_links {
            trees::check_links(inner, &how.from)?;
        }
        match replaces {
            Replaces::All { shown } => trees::check_shown(inner, &how.to, &shown),
            Replaces::Alike => Ok(()),
        }
    };
    match is_needed {
        true => inner.run(&inner.pool, job).await,
        false => Ok(()),
    }
}

fn check(inner: &FolderInner, how: &Relocation) -> Result<()> {
    inner.staging()?;
    match how.from.is_internal() || how.to.is_internal() || how.from == how.to {
        true => Err(StoreError::Forbidden),
        false => Ok(()),
    }
}

/// What a rename replaces.
struct Replaced {
    meta: Meta,
    /// It is not an object that an object replaces, nor an empty folder that a folder replaces.
    is_other: bool,
}

/// The result of an attempt to rename.
enum Renamed {
    /// With what has been replaced and is still to be removed.
    Done(Committed, Option<StagedName>),
    /// The folder of the new name is not ready.
    ParentNotReady,
    /// A dead process has left an exchange of one of the names.
    MovePending,
}

fn try_rename(
    inner: &Arc<FolderInner>,
    how: &Relocation,
    kind: Kind,
    replaces: &Replaces,
    sync_failures: u64,
) -> Result<Renamed> {
    let source = source(inner, &how.from, kind)?;
    inner.check(&how.from_condition, Some(&source))?;
    let replaced = replaced(inner, &how.to, kind, replaces)?;
    inner.check(
        &how.to_condition,
        replaced.as_ref().map(|found| &found.meta),
    )?;
    let found = parents::look_up(inner, how.to.split().0).map_err(StoreError::from_change)?;
    let ParentState::Ready(to) = found else {
        return Ok(Renamed::ParentNotReady);
    };
    let from = parents::open(inner, how.from.split().0).map_err(StoreError::from_lookup)?;
    let is_other = replaced.as_ref().is_some_and(|found| found.is_other);
    if kind == Kind::Directory || is_other {
        match overlap::find(inner, &how.from, &how.to)? {
            Overlap::Same | Overlap::Beneath => return Err(StoreError::Forbidden),
            Overlap::Contains if is_other => return Err(StoreError::Conflict),
            Overlap::Contains | Overlap::None => {}
        }
    }
    let names = Names {
        from: &from,
        to: &to,
        how,
    };
    let is_file = kind == Kind::File && !is_other;
    let is_linked = is_file && are_links(&from, &to, how)?;
    let change = || match is_file {
        true => {
            let from = inner.key_locks.change(&how.from);
            (from, Some(inner.key_locks.change(&how.to)))
        }
        // All objects beneath have other keys.
        false => (inner.key_locks.change_all(), None),
    };
    let changing = change();
    let displaced = match &replaced {
        Some(_) if is_other => Some(Displaced::replace(inner, &names)?),
        // Without syncs no later step can fail.
        Some(_) if is_file && !is_linked && inner.durable() => {
            Displaced::replace_file(inner, &names)?
        }
        _ => None,
    };
    let replaced = replaced.map(|found| found.meta);
    let _content = match displaced {
        None => DeferredFree::hold(inner, to.dir(), how.to.name(), replaced.as_ref()),
        Some(_) => DeferredFree::NONE,
    };
    if displaced.is_none() {
        rename_alike(&names, is_linked, replaced.is_none())?;
    }
    inner.parents.forget(how.from.as_bytes());
    inner.parents.forget(how.to.as_bytes());
    drop(changing);
    if let Err(error) = sync(inner, &names, sync_failures) {
        let _changing = change();
        match displaced {
            Some(displaced) => displaced.put_back(&names),
            None if replaced.is_none() => {
                let _ = (to.dir()).rename(how.to.name(), from.dir(), how.from.name(), true);
            }
            None => {}
        }
        return Err(error);
    }
    let meta = match source.has_fragile_version() {
        // The rename changed it.
        true => existing_object(inner, to.dir(), &how.to)?.unwrap_or(source),
        false => source,
    };
    let committed = Committed {
        created: replaced.is_none(),
        replaced_bytes: replaced.map_or(0, |replaced| counted_bytes(replaced.size)),
        meta,
    };
    let removed = displaced.and_then(Displaced::into_removed);
    Ok(Renamed::Done(committed, removed))
}

/// Renames to a free name, or to that of an object or an empty folder. `is_linked`: both names are
/// of one file.
fn rename_alike(names: &Names<'_>, is_linked: bool, is_free: bool) -> Result<()> {
    let (from, from_name) = (names.from.dir(), names.how.from.name());
    let rename = |no_replace| match is_linked {
        true => from.unlink(from_name),
        false => from.rename(from_name, names.to.dir(), names.how.to.name(), no_replace),
    };
    let renamed = match rename(is_free) {
        // The file system does not support this rename.
        Err(error) if is_unsupported(&error) && is_free => rename(false),
        renamed => renamed,
    };
    renamed.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::PreconditionFailed,
        _ => displaced::rename_error(error),
    })
}

/// Makes a rename durable, if the store is durable.
fn sync(inner: &FolderInner, names: &Names<'_>, sync_failures: u64) -> Result<()> {
    if !inner.durable() {
        return Ok(());
    }
    let synced = inner.parents.sync(names.to.dir());
    let synced = synced.and_then(|()| inner.parents.sync(names.from.dir()));
    synced.map_err(StoreError::from_open_file)?;
    match inner.parents.sync_failures() == sync_failures {
        true => Ok(()),
        false => Err(StoreError::Io(io::ErrorKind::Other.into())),
    }
}

/// What has the new name. Fails if it must not be replaced.
fn replaced(
    inner: &FolderInner,
    to: &Key,
    kind: Kind,
    replaces: &Replaces,
) -> Result<Option<Replaced>> {
    let alike = |meta| Replaced {
        meta,
        is_other: false,
    };
    match (inner.existing_object(to), kind, replaces) {
        (Ok(None), _, _) => Ok(None),
        (Ok(Some(meta)), Kind::File, _) => Ok(Some(alike(meta))),
        (Ok(Some(_)), Kind::Directory, Replaces::Alike) => Err(StoreError::Conflict),
        (Err(StoreError::IsDirectory), Kind::Directory, Replaces::Alike) => {
            Ok(Some(alike(inner.meta(to)?)))
        }
        // An object, a folder, or a link to one of them.
        (
            Ok(Some(_)) | Err(StoreError::IsDirectory | StoreError::Conflict),
            _,
            Replaces::All { .. },
        ) => match inner.meta(to) {
            Ok(meta) => Ok(Some(Replaced {
                meta,
                is_other: true,
            })),
            Err(_) => Err(StoreError::Conflict),
        },
        (Err(error), _, _) => Err(error),
    }
}

/// Whether both names are hard links of one file. `rename(2)` would leave both; the removal of the
/// first one does what the caller wants. Fails if both are the same name, through symbolic links to
/// parent folders.
fn are_links(from: &Parent, to: &Parent, how: &Relocation) -> Result<bool> {
    let source = from.dir().entry_metadata(how.from.name());
    let found = source.and_then(|source| Ok((source, to.dir().entry_metadata(how.to.name())?)));
    let Ok((source, target)) = found else {
        return Ok(false); // There is no object to replace, or the rename fails.
    };
    if source.identity() != target.identity() {
        return Ok(false);
    }
    let folders = (from.dir().self_metadata()).and_then(|one| Ok((one, to.dir().self_metadata()?)));
    let (one, two) = folders.map_err(StoreError::from_change)?;
    match one.identity() == two.identity() && how.from.name() == how.to.name() {
        true => Err(StoreError::Forbidden),
        // A file system that ignores case has one entry for two names, and can rename it.
        // The number may be that of a second ago where it is not local (FUSE).
        false => Ok(source.nlink.max(target.nlink) > 1),
    }
}

/// What is renamed. A symbolic link is a conflict.
fn source(inner: &FolderInner, from: &Key, kind: Kind) -> Result<Meta> {
    if kind == Kind::File {
        return match inner.existing_object(from) {
            Ok(Some(found)) => Ok(found),
            // Also if the file system cannot have such a name.
            Ok(None) | Err(StoreError::InvalidKey) => Err(StoreError::NotFound),
            Err(error) => Err(error),
        };
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
