//! The two changes, each straight down on a thread of the pool. Whoever calls holds the lock of
//! the key.
//!
//! What holds after a failure: up to the rename nothing has changed for readers, and the staged
//! file is gone when the error is told. If only the sync of the directory *after* the rename
//! fails, readers see the new object, whole and itself on the disk, but whether its name survives
//! a power cut is unknown: afterwards there is the old object or the new one, never a mixture. The
//! error is told, since what was asked for, to be durable, cannot be promised.
//!
//! The lock is of the key as it is spelled: one object under two names (by links to folders on the
//! way to it) has two locks, and a condition on it is then only as good as the moment it was
//! checked. A link that *is* the key is never replaced: that is a conflict.
//!
//! This module must not know futures.

use super::Inner;
use super::parents::{self, Parent};
use super::staging::Temp;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Condition};
use onrush_rt::fs::FileKind;
use std::io;

/// How often to make the parents again when a delete of one comes between.
const ATTEMPTS: usize = 4;

/// Makes the staged file the object `key`.
pub(super) fn commit(
    inner: &Inner,
    key: &Key,
    mut temp: Temp,
    condition: Condition,
) -> Result<Committed> {
    let result = publish(inner, key, &mut temp, condition);
    if result.is_err() {
        temp.remove();
    }
    result
}

fn publish(inner: &Inner, key: &Key, temp: &mut Temp, condition: Condition) -> Result<Committed> {
    let sync_failures = inner.parents.sync_failures();

    let current = inner.replaced(key)?;
    condition.check(current.as_ref())?;

    let mut parent = ensure_parent(inner, key)?;

    temp.file
        .set_modified(inner.next_stamp_ns())
        .map_err(StoreError::of_any)?;
    if inner.durable() {
        temp.file.sync().map_err(StoreError::of_any)?;
    }
    // Asked for, not assumed: the file system may keep times more coarsely than it was told.
    let found = temp.file.metadata().map_err(StoreError::of_any)?;
    let meta = Meta::of_file(&found).ok_or(StoreError::Io(io::ErrorKind::InvalidData))?;

    for attempt in 1.. {
        match temp.rename(parent.dir(), key.name()) {
            Ok(()) => break,
            // The folder was deleted just now, as it was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {
                parent = ensure_parent(inner, key)?;
            }
            Err(error) => return Err(StoreError::of_write(error)),
        }
    }
    inner.stripes.bump(key);

    if inner.durable() {
        inner
            .parents
            .sync(parent.dir())
            .map_err(StoreError::of_any)?;
        if inner.parents.sync_failures() != sync_failures {
            return Err(StoreError::Io(io::ErrorKind::Other));
        }
    }
    Ok(Committed {
        created: current.is_none(),
        meta,
    })
}

fn ensure_parent<'a>(inner: &'a Inner, key: &Key) -> Result<Parent<'a>> {
    let mut attempt = 1;
    loop {
        match parents::ensure(inner, key.split().0) {
            Ok(parent) => return Ok(parent),
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {
                attempt += 1;
            }
            Err(error) => return Err(StoreError::of_write(error)),
        }
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
