//! The two changes, put and delete, as blocking functions. The caller holds the lock of the key.
//!
//! After a failure, readers see the old object, and the staged file has been removed before the
//! error is returned. Steps after the rename may fail as well, when the new object has its name
//! already: the sync of the directory, the check for failed syncs of other requests, and the
//! removal of the old object. The commit therefore exchanges the old object for the new one instead
//! of replacing it, and exchanges them back after such a failure. It is unknown whether the new
//! name has reached the disk by then: a power cut right after such an error may leave the whole new
//! object, but never a mixture. If the file system does not support the exchange, the new object
//! stays after such an error.
//!
//! The lock belongs to the spelling of the key. An object with two names (through symbolic links to
//! parent folders) has two locks, and a condition on it holds only at the moment of the check. If
//! the key itself is a symbolic link, the put fails with a conflict and does not replace the link.

use super::Inner;
use super::parents::{self, Parent};
use super::staging::{Release, Temp};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Condition};
use onrush_rt::fs::FileKind;
use std::io;

/// The number of attempts when other requests change the object at the name meanwhile.
const ATTEMPTS: usize = 4;

/// Publishes the staged file as the object `key` in the folder `parent`. Returns the file if that
/// folder was deleted meanwhile. `sync_failures` is the count of failed syncs when the commit
/// began, before any step of it.
pub(super) fn commit(
    inner: &Inner,
    key: &Key,
    parent: &Parent<'_>,
    mut temp: Temp,
    condition: &Condition,
    sync_failures: u64,
) -> Result<std::result::Result<Committed, Temp>> {
    match publish(inner, key, parent, &mut temp, condition, sync_failures) {
        Ok(Some(committed)) => Ok(Ok(committed)),
        Ok(None) => Ok(Err(temp)),
        Err(error) => {
            temp.remove();
            Err(error)
        }
    }
}

/// `None`: the folder does not exist any more.
fn publish(
    inner: &Inner,
    key: &Key,
    parent: &Parent<'_>,
    temp: &mut Temp,
    condition: &Condition,
    sync_failures: u64,
) -> Result<Option<Committed>> {
    // Most puts create a new object. `RENAME_NOREPLACE` makes the lookup unnecessary, and fails if
    // another process has just created the object.
    let looks_first = !matches!(condition, Condition::None);
    let mut only_if_free = matches!(condition, Condition::None | Condition::Absent);
    let mut current = match looks_first {
        true => inner.replaced(key)?,
        false => None,
    };
    condition.check(current.as_ref())?;

    temp.file
        .set_modified(inner.next_stamp_ns())
        .map_err(StoreError::of_any)?;
    if inner.durable() {
        temp.file.sync().map_err(StoreError::of_any)?;
    }
    // Read back, because the file system may store times with a coarser resolution.
    let found = temp.file.metadata().map_err(StoreError::of_any)?;
    let meta = Meta::of_file(&found).ok_or(StoreError::Io(io::ErrorKind::InvalidData.into()))?;

    let mut attempt = 1;
    let (undo, _old) = loop {
        let target = match current {
            Some(_) => Target::Object,
            None if only_if_free => Target::Free,
            None => Target::Nothing,
        };
        let old = Release::of(inner, parent.dir(), key.name(), current.as_ref());
        let error = match place(inner, temp, parent, key, target) {
            Ok(undo) => break (undo, old),
            Err(error) => error,
        };
        let again = attempt < ATTEMPTS;
        attempt += 1;
        match error.kind() {
            io::ErrorKind::AlreadyExists if looks_first => {
                return Err(StoreError::PreconditionFailed);
            }
            // The folder was empty and has just been deleted.
            io::ErrorKind::NotFound => return Ok(None),
            io::ErrorKind::AlreadyExists if again => current = inner.replaced(key)?,
            // The file system does not support this rename.
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported if only_if_free => {
                only_if_free = false;
                if !looks_first {
                    current = inner.replaced(key)?;
                }
            }
            _ => return Err(StoreError::of_write(error)),
        }
    };
    inner.stripes.bump(key);
    let durable = make_durable(inner, temp, parent, &undo, sync_failures);
    if durable.is_err() {
        undo.take_back(temp, parent, key);
        inner.stripes.bump(key);
    }
    durable?;
    Ok(Some(Committed {
        created: current.is_none(),
        meta,
    }))
}

/// How to undo the rename of the staged file.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    /// The old object has the staged name: exchange them again.
    Exchange,
    /// There was no old object: unlink the new one.
    Unlink,
    /// The old object is gone: this cannot be undone.
    Never,
}

/// What is known to be at the object's name, and how to place the new object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Nothing. If something is there after all, it stays and the rename fails.
    Free,
    /// Nothing. If something is there after all, it is replaced.
    Nothing,
    /// The object to replace.
    Object,
}

/// Gives the object's name to the staged file.
fn place(
    inner: &Inner,
    temp: &mut Temp,
    parent: &Parent<'_>,
    key: &Key,
    target: Target,
) -> io::Result<Undo> {
    let replaces = target == Target::Object;
    // Without syncs no later step can fail, and a plain rename is cheaper.
    if replaces && inner.durable() {
        match temp.exchange(parent.dir(), key.name()) {
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
    temp.rename(parent.dir(), key.name(), target == Target::Free)?;
    Ok(if replaces { Undo::Never } else { Undo::Unlink })
}

/// Makes the new name durable and removes the old object.
fn make_durable(
    inner: &Inner,
    temp: &mut Temp,
    parent: &Parent<'_>,
    undo: &Undo,
    sync_failures: u64,
) -> Result<()> {
    if !inner.durable() {
        return Ok(());
    }
    let synced = inner.parents.sync(parent.dir());
    synced.map_err(StoreError::of_any)?;
    if inner.parents.sync_failures() != sync_failures {
        return Err(StoreError::Io(io::ErrorKind::Other.into()));
    }
    match undo {
        // The exchanged entry may be a folder that another program has just created.
        Undo::Exchange => temp.remove_exchanged().map_err(|_| StoreError::Conflict),
        Undo::Unlink | Undo::Never => Ok(()),
    }
}

impl Undo {
    /// Best effort: the caller returns the error of the commit in any case.
    fn take_back(self, temp: &Temp, parent: &Parent<'_>, key: &Key) {
        let _ = match self {
            Undo::Exchange => temp.exchange(parent.dir(), key.name()),
            Undo::Unlink => parent.dir().unlink(key.name()),
            Undo::Never => Ok(()),
        };
    }
}

/// Deletes an object or an empty folder, and returns its properties. After a failure of the last
/// sync it is gone for readers, but a power cut may bring it back.
pub(super) fn delete(inner: &Inner, key: &Key, condition: Condition) -> Result<Meta> {
    let meta = match inner.meta(key) {
        Err(StoreError::NotFound) => {
            condition.check(None)?;
            return Err(StoreError::NotFound);
        }
        other => other?,
    };
    condition.check(Some(&meta))?;

    let parent = parents::open(inner, key.split().0).map_err(StoreError::of_read)?;
    let _old = Release::of(inner, parent.dir(), key.name(), Some(&meta));
    let removed = match meta.kind {
        Kind::Directory if !is_link(&parent, key) => parent.dir().remove_dir(key.name()),
        // A link itself is removed, never its target.
        Kind::File | Kind::Directory => parent.dir().unlink(key.name()),
    };
    if let Err(error) = removed {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound, // another request was faster
            _ => StoreError::of_write(error),
        });
    }
    inner.parents.forget(key.as_bytes());
    inner.stripes.bump(key);

    if inner.durable() {
        inner
            .parents
            .sync(parent.dir())
            .map_err(StoreError::of_any)?;
    }
    Ok(meta)
}

fn is_link(parent: &Parent<'_>, key: &Key) -> bool {
    let found = parent.dir().entry_metadata(key.name());
    found.is_ok_and(|found| found.kind == FileKind::Symlink)
}
