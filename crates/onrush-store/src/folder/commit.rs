//! The two changes, each straight down, where blocking is allowed. Whoever calls holds the lock of
//! the key.
//!
//! What holds after a failure: readers see what they saw before, and the staged file is gone when
//! the error is told. The last step that may fail, the sync of the directory, comes when the new
//! object has its name already; so the old one is exchanged for it, not replaced, and changed back
//! if that sync fails. Whether the new name had reached the disk by then is unknown: a power cut
//! right after such an error may leave the new object, whole, but never a mixture. (Where the file
//! system cannot exchange, the new object stays after such an error.)
//!
//! The lock is of the key as it is spelled: one object under two names (by links to folders on the
//! way to it) has two locks, and a condition on it is then only as good as the moment it was
//! checked. A link that *is* the key is never replaced: that is a conflict.
//!
//! This module must not know futures.

use super::Inner;
use super::parents::{self, Parent};
use super::staging::{Release, Temp};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Condition};
use onrush_rt::fs::FileKind;
use std::io;

/// How often to try again when another request changes what is at the name.
const ATTEMPTS: usize = 4;

/// Makes the staged file the object `key` in the folder `parent`. Gives the file back when that
/// folder was deleted meanwhile. `sync_failures`: how many there had been when the commit began,
/// before anything was done for it.
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

/// `None`: the folder is no more.
fn publish(
    inner: &Inner,
    key: &Key,
    parent: &Parent<'_>,
    temp: &mut Temp,
    condition: &Condition,
    sync_failures: u64,
) -> Result<Option<Committed>> {
    // Most puts make something new. A rename that replaces nothing then tells what looking first
    // would have told, and also of what other processes have just put there.
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
    // Asked for, not assumed: the file system may keep times more coarsely than it was told.
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
            // The folder was deleted just now, as it was empty.
            io::ErrorKind::NotFound => return Ok(None),
            io::ErrorKind::AlreadyExists if again => current = inner.replaced(key)?,
            // The file system knows no such rename.
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

/// How to take back that the staged file got its name.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    /// The old object waits under the staged name.
    Exchange,
    /// There was none.
    Unlink,
    /// The old object is gone: this cannot be taken back.
    Never,
}

/// What is at the object's name, for all that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Nothing. If there is something all the same, it stays and placing fails.
    Free,
    /// Nothing. If there is something all the same, it is replaced.
    Nothing,
    /// What is to be replaced.
    Object,
}

/// Gives the staged file the object's name.
fn place(
    inner: &Inner,
    temp: &mut Temp,
    parent: &Parent<'_>,
    key: &Key,
    target: Target,
) -> io::Result<Undo> {
    let replaces = target == Target::Object;
    // Without syncs nothing can fail after this, and a plain rename is cheaper.
    if replaces && inner.durable() {
        match temp.exchange(parent.dir(), key.name()) {
            Ok(()) => return Ok(Undo::Exchange),
            Err(error) => match error.kind() {
                // The old object was deleted just now, or the file system cannot exchange.
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

/// Makes the new name durable, and lets go of the old object.
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
        // What was exchanged may be a folder that another program has just put there.
        Undo::Exchange => temp.remove_exchanged().map_err(|_| StoreError::Conflict),
        Undo::Unlink | Undo::Never => Ok(()),
    }
}

impl Undo {
    /// As far as that is possible: the error is told in any case.
    fn take_back(self, temp: &Temp, parent: &Parent<'_>, key: &Key) {
        let _ = match self {
            Undo::Exchange => temp.exchange(parent.dir(), key.name()),
            Undo::Unlink => parent.dir().unlink(key.name()),
            Undo::Never => Ok(()),
        };
    }
}

/// Deletes an object or an empty folder, and gives what it was. After a failure of the last sync
/// it is gone for readers, but a power cut may bring it back.
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
        // A link goes itself, and never what it leads to.
        Kind::File | Kind::Directory => parent.dir().unlink(key.name()),
    };
    if let Err(error) = removed {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound, // someone else was faster
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
