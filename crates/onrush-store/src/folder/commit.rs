//! The two changes, put and delete, as blocking functions. The caller holds the lock of the key.
//!
//! After a failure, readers see the old object, and the staged file has been removed before the
//! error is returned (or is removed on the pool, if the calling thread is a worker). Steps after
//! the rename may fail as well, when the new object has its name already: the sync of the
//! directory, the check for failed syncs of other requests, and the removal of the old object. A
//! durable commit therefore exchanges the old object for the new one instead of replacing it, and
//! exchanges them back after such a failure. It is unknown whether the new name has reached the
//! disk by then: a power cut right after such an error may leave the whole new object, but never a
//! mixture. If the file system does not support the exchange, the new object stays after such an
//! error.
//!
//! The lock belongs to the spelling of the key. An object with two names (through symbolic links to
//! parent folders) has two locks, and a condition on it holds only at the moment of the check. If
//! the key itself is a symbolic link, the put fails with a conflict and does not replace the link.

use super::Inner;
use super::parents::{self, Parent};
use super::properties;
use super::staging::{DeferredFree, StagedFile};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Condition};
use onrush_rt::fs::FileKind;
use std::io;

/// The number of attempts when other requests change the object at the name meanwhile.
const ATTEMPTS: usize = 4;

/// The result of a commit that did not fail.
pub(super) enum CommitOutcome {
    Committed(Committed),
    /// The parent folder was deleted meanwhile. Nothing was changed.
    ParentGone(StagedFile),
}

/// Publishes the staged file as the object `key` in the folder `parent`. On failure, removes the
/// file. `sync_failures` is the count of failed syncs before the first step of the commit.
pub(super) fn commit(
    inner: &Inner,
    key: &Key,
    parent: &Parent<'_>,
    mut staged: StagedFile,
    condition: &Condition,
    sync_failures: u64,
) -> Result<CommitOutcome> {
    match publish(inner, key, parent, &mut staged, condition, sync_failures) {
        Ok(Some(committed)) => Ok(CommitOutcome::Committed(committed)),
        Ok(None) => Ok(CommitOutcome::ParentGone(staged)),
        Err(error) => {
            staged.remove();
            Err(error)
        }
    }
}

/// As [`commit`], but does not remove the file. `None`: the folder does not exist any more.
fn publish(
    inner: &Inner,
    key: &Key,
    parent: &Parent<'_>,
    staged: &mut StagedFile,
    condition: &Condition,
    sync_failures: u64,
) -> Result<Option<Committed>> {
    // Most puts create a new object. `RENAME_NOREPLACE` makes the lookup unnecessary: it fails if
    // the object exists.
    let has_condition = !condition.is_none();
    let keeps_properties = inner.options.keep_properties;
    let mut no_replace = matches!(condition, Condition::None | Condition::Absent);
    let mut current = match has_condition || keeps_properties {
        true => inner.existing_object(key)?,
        false => None,
    };
    inner.check(condition, current.as_ref())?;
    if keeps_properties && current.is_some() {
        properties::keep(inner, key, &staged.file)?;
    }

    staged
        .file
        .set_modified(inner.next_stamp_ns())
        .map_err(StoreError::from_open_file)?;
    if inner.durable() {
        staged.file.sync().map_err(StoreError::from_open_file)?;
    }
    // Read back, because the file system may store times with a coarser resolution.
    let found = staged.file.metadata().map_err(StoreError::from_open_file)?;
    let meta = Meta::from_file(&found).ok_or(StoreError::Io(io::ErrorKind::InvalidData.into()))?;

    let mut attempt = 1;
    let (undo, _old_content) = loop {
        let mode = match current {
            Some(_) => RenameMode::Exchange,
            None if no_replace => RenameMode::NoReplace,
            None => RenameMode::Overwrite,
        };
        let old_content = DeferredFree::hold(inner, parent.dir(), key.name(), current.as_ref());
        let error = match rename_into_place(inner, staged, parent, key, mode) {
            Ok(undo) => break (undo, old_content),
            Err(error) => error,
        };
        let may_retry = attempt < ATTEMPTS;
        attempt += 1;
        match error.kind() {
            io::ErrorKind::AlreadyExists if has_condition => {
                return Err(StoreError::PreconditionFailed);
            }
            // The folder was empty and has just been deleted.
            io::ErrorKind::NotFound if staged.is_staged() => return Ok(None),
            // Another program has removed the staged file.
            io::ErrorKind::NotFound => return Err(StoreError::from_open_file(error)),
            io::ErrorKind::AlreadyExists if may_retry => current = inner.existing_object(key)?,
            // The file system does not support this rename.
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported if no_replace => {
                no_replace = false;
                if !has_condition {
                    current = inner.existing_object(key)?;
                }
            }
            _ => return Err(StoreError::from_change(error)),
        }
    };
    inner.key_locks.advance_generation(key);
    let durable = make_durable(inner, staged, parent, &undo, sync_failures);
    if durable.is_err() {
        undo.revert(staged, parent, key);
        inner.key_locks.advance_generation(key);
    }
    durable?;
    Ok(Some(Committed {
        created: current.is_none(),
        replaced_bytes: current.map_or(0, |replaced| replaced.size),
        meta,
    }))
}

/// How to undo the rename of the staged file.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    /// The old object has the staged name: exchange them again.
    Exchange,
    /// The name was free: unlink the new object.
    Unlink,
    /// The rename has replaced an object, or may have: this cannot be undone. The new object stays.
    Never,
}

/// How to rename the staged file to the object's name (`renameat2(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenameMode {
    /// No object is known: `RENAME_NOREPLACE`, which fails if the name exists after all.
    NoReplace,
    /// No object is known: a plain rename, which replaces an object that exists after all.
    Overwrite,
    /// The object is known: `RENAME_EXCHANGE` if the store is durable and the file system supports
    /// it, otherwise a plain rename.
    Exchange,
}

/// Gives the object's name to the staged file, and returns how to undo that.
fn rename_into_place(
    inner: &Inner,
    staged: &mut StagedFile,
    parent: &Parent<'_>,
    key: &Key,
    mode: RenameMode,
) -> io::Result<Undo> {
    let replaces = mode == RenameMode::Exchange;
    // Without syncs no later step can fail, and a plain rename is cheaper.
    if replaces && inner.durable() {
        match staged.exchange(parent.dir(), key.name()) {
            Ok(()) => return Ok(Undo::Exchange),
            Err(error) => match error.kind() {
                // The old object has just been deleted, or the file system cannot exchange.
                io::ErrorKind::NotFound
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::Unsupported => {}
                _ => return Err(error),
            },
        }
    }
    let name_was_free = mode == RenameMode::NoReplace;
    staged.rename(parent.dir(), key.name(), name_was_free)?;
    Ok(match name_was_free {
        true => Undo::Unlink,
        false => Undo::Never,
    })
}

/// Makes the new name durable and removes the old object, if the store is durable.
fn make_durable(
    inner: &Inner,
    staged: &mut StagedFile,
    parent: &Parent<'_>,
    undo: &Undo,
    sync_failures: u64,
) -> Result<()> {
    if !inner.durable() {
        return Ok(());
    }
    let synced = inner.parents.sync(parent.dir());
    synced.map_err(StoreError::from_open_file)?;
    if inner.parents.sync_failures() != sync_failures {
        return Err(StoreError::Io(io::ErrorKind::Other.into()));
    }
    match undo {
        // The exchanged entry may be a folder that another program has just created.
        Undo::Exchange => staged.remove_exchanged().map_err(|_| StoreError::Conflict),
        Undo::Unlink | Undo::Never => Ok(()),
    }
}

impl Undo {
    /// Best effort: the caller returns the error of the commit in any case.
    fn revert(self, staged: &StagedFile, parent: &Parent<'_>, key: &Key) {
        let _ = match self {
            Undo::Exchange => staged.exchange(parent.dir(), key.name()),
            Undo::Unlink => parent.dir().unlink(key.name()),
            Undo::Never => Ok(()),
        };
    }
}

/// Deletes an object or an empty folder. Returns its properties, and the bytes that the folder has
/// less: none if it was a link, whose target stays. After a failure of the last sync it is gone for
/// readers, but a power cut may bring it back.
pub(super) fn delete(
    inner: &Inner,
    key: &Key,
    kind: Kind,
    condition: &Condition,
) -> Result<(Meta, u64)> {
    let meta = match inner.meta(key) {
        Err(StoreError::NotFound) => {
            inner.check(condition, None)?;
            return Err(StoreError::NotFound);
        }
        other => other?,
    };
    if meta.kind != kind {
        return Err(match kind {
            Kind::File => StoreError::IsDirectory,
            Kind::Directory => StoreError::NotFound,
        });
    }
    inner.check(condition, Some(&meta))?;

    let parent = parents::open(inner, key.split().0).map_err(StoreError::from_lookup)?;
    let _content = DeferredFree::hold(inner, parent.dir(), key.name(), Some(&meta));
    let is_link = is_link(&parent, key);
    let removed = match meta.kind {
        Kind::Directory if !is_link => parent.dir().remove_dir(key.name()),
        // A link itself is removed, never its target.
        Kind::File | Kind::Directory => parent.dir().unlink(key.name()),
    };
    if let Err(error) = removed {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound, // Another request was faster.
            _ => StoreError::from_change(error),
        });
    }
    inner.parents.forget(key.as_bytes());
    inner.key_locks.advance_generation(key);

    if inner.durable() {
        inner
            .parents
            .sync(parent.dir())
            .map_err(StoreError::from_open_file)?;
    }
    Ok((meta, if is_link { 0 } else { meta.size }))
}

fn is_link(parent: &Parent<'_>, key: &Key) -> bool {
    let found = parent.dir().entry_metadata(key.name());
    found.is_ok_and(|found| found.kind == FileKind::Symlink)
}
