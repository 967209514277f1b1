//! The two changes, put and delete, as blocking functions. The caller holds the lock of the key.
//!
//! After a failure, readers see the old object, and the staged file has been removed before the
//! error is returned (or is removed on the pool, if the calling thread is a worker). A kept file
//! has its kept name again instead, and the upload can be continued: only the caller knows whether
//! the failure is final. If it does not get the name back, it stays the object. Steps after
//! the rename may fail as well, when the new object has its name already: the sync of the
//! directory, the check for failed syncs of other requests, and the removal of the old object. A
//! durable commit therefore exchanges the old object for the new one instead of replacing it, and
//! exchanges them back after such a failure. It is unknown whether the new name has reached the
//! disk by then: a power cut right after such an error may leave the whole new object, but never a
//! mixture. If the file system does not support the exchange, the new object stays after such an
//! error. It also stays if exchanging them back fails: the old object is then not removed, but
//! moved aside (`staging`).
//!
//! The lock belongs to the spelling of the key. An object with two names (through symbolic links to
//! parent folders) has two locks, and a condition on it holds only at the moment of the check. If
//! the key itself is a symbolic link, the put fails with a conflict and does not replace the link.

use super::locks::Locks;
use super::parents::{self, CreatedFolders, Parent};
use super::properties;
use super::rights;
use super::staged::{DeferredFree, StagedFile};
use super::{FolderInner, existing_file};
use crate::attributes;
use crate::checksum::Record;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::store::{Committed, Condition};
use crate::usage::counted_bytes;
use onrush_rt::fs::{Dir, FileKind, Metadata};
use std::io;
use std::mem;

/// The number of attempts when other requests change the object at the name meanwhile.
const ATTEMPTS: usize = 4;

/// The result of a commit that did not fail.
pub(super) enum CommitOutcome {
    Committed(Committed),
    /// Nothing was changed, and another attempt may succeed.
    NotPlaced(Obstacle, Box<(StagedFile, Condition, CreatedFolders)>),
}

/// Why a staged file did not get the name of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The parent folder was deleted meanwhile.
    ParentGone,
    /// The parent folder is on another file system.
    OtherFileSystem,
}

/// A put whose condition holds and whose bytes are in the staged file.
pub(super) struct Put {
    key: Key,
    parent: Parent,
    staged: StagedFile,
    condition: Condition,
    /// The folders that were created for it. They stay only if it succeeds.
    created: CreatedFolders,
    /// The object to replace, as far as it is known.
    current: Option<Meta>,
    meta: Meta,
    /// The count of failed syncs before the first step.
    sync_failures: u64,
    is_synced: bool,
    undo: Undo,
    old_content: DeferredFree,
    /// Released last.
    _locks: Locks,
}

/// What a put consists of.
pub(super) struct PutParts {
    pub(super) key: Key,
    pub(super) parent: Parent,
    /// What describes the parent folder, if it was needed already.
    pub(super) folder: Option<Metadata>,
    pub(super) condition: Condition,
    pub(super) created: CreatedFolders,
    pub(super) sync_failures: u64,
    pub(super) locks: Locks,
}

impl Put {
    /// Checks the condition, and sets the time, the checksum and `metadata` of the staged file. On
    /// failure, removes the file, unless it is kept.
    pub(super) fn prepare(
        inner: &FolderInner,
        staged: StagedFile,
        metadata: &[u8],
        parts: PutParts,
    ) -> Result<Put> {
        let found = stamp(inner, &staged, metadata, &parts);
        let (current, meta) = match found {
            Ok(found) => found,
            Err(error) => {
                staged.remove_unless_kept();
                return Err(error);
            }
        };
        Ok(Put {
            key: parts.key,
            parent: parts.parent,
            staged,
            condition: parts.condition,
            created: parts.created,
            current,
            meta,
            sync_failures: parts.sync_failures,
            is_synced: !inner.durable(),
            undo: Undo::Never,
            old_content: DeferredFree::NONE,
            _locks: parts.locks,
        })
    }

    /// Makes the content durable, if that is still to do.
    fn sync_content(&mut self) -> Result<()> {
        if !self.is_synced {
            (self.staged.file.sync()).map_err(StoreError::from_open_file)?;
            self.is_synced = true;
        }
        Ok(())
    }

    /// All remaining steps.
    pub(super) fn commit(mut self, inner: &FolderInner) -> Result<CommitOutcome> {
        let placed = self.sync_content().and_then(|()| self.place(inner));
        let synced = match placed {
            Ok(None) if inner.durable() => inner.parents.sync(self.parent.dir()),
            _ => Ok(()),
        };
        self.complete(inner, placed, synced.map_err(StoreError::from_open_file))
    }

    /// Gives the object's name to the staged file, whose content is durable. `None`: it has it.
    fn place(&mut self, inner: &FolderInner) -> Result<Option<Obstacle>> {
        // If no object is known, `RENAME_NOREPLACE` makes a lookup unnecessary: it fails if there
        // is one after all.
        let has_condition = !self.condition.is_none();
        let mut no_replace = matches!(self.condition, Condition::None | Condition::Absent);
        let mut attempt = 1;
        loop {
            let mode = match self.current {
                Some(_) => RenameMode::Exchange,
                None if no_replace => RenameMode::NoReplace,
                None => RenameMode::Overwrite,
            };
            let (dir, name) = (self.parent.dir(), self.key.name());
            self.old_content = DeferredFree::hold(inner, dir, name, self.current.as_ref());
            let changing = inner.key_locks.change(&self.key);
            let renamed = rename_into_place(inner, &mut self.staged, dir, name, mode);
            drop(changing);
            let error = match renamed {
                Ok(undo) => {
                    self.undo = undo;
                    inner.key_locks.note_put(&self.key);
                    return Ok(None);
                }
                Err(error) => error,
            };
            let may_retry = attempt < ATTEMPTS;
            attempt += 1;
            match error.kind() {
                io::ErrorKind::AlreadyExists if has_condition => {
                    return Err(StoreError::PreconditionFailed);
                }
                // The folder was empty and has just been deleted.
                io::ErrorKind::NotFound if self.staged.is_staged() => {
                    return Ok(Some(Obstacle::ParentGone));
                }
                io::ErrorKind::CrossesDevices => return Ok(Some(Obstacle::OtherFileSystem)),
                // Another program has removed the staged file.
                io::ErrorKind::NotFound => return Err(StoreError::from_open_file(error)),
                io::ErrorKind::AlreadyExists if may_retry => {
                    self.look_up(inner)?;
                }
                // The file system does not support this rename.
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported if no_replace => {
                    no_replace = false;
                    if !has_condition {
                        self.look_up(inner)?;
                    }
                }
                _ => return Err(StoreError::from_change(error)),
            }
        }
    }

    /// Looks up the object to replace, of which nothing was known before, and takes its rights.
    fn look_up(&mut self, inner: &FolderInner) -> Result<()> {
        let (dir, name) = (self.parent.dir(), self.key.name());
        let found = existing_file(inner, dir, &self.key)?;
        self.current = found.and_then(|found| Meta::from_file(&found));
        let Some(old) = found else { return Ok(()) };
        let own = (self.staged.file.metadata()).map_err(StoreError::from_open_file)?;
        rights::keep(inner, &self.staged, &own, dir, name, &old)?;
        self.is_synced = !inner.durable();
        self.sync_content()
    }

    /// Ends the put: with the result of [`Put::place`], and that of the sync of the folder since.
    /// After a failure, readers see the old object again.
    fn complete(
        mut self,
        inner: &FolderInner,
        placed: Result<Option<Obstacle>>,
        synced: Result<()>,
    ) -> Result<CommitOutcome> {
        match placed {
            Ok(None) => {}
            Ok(Some(obstacle)) => {
                let parts = Box::new((self.staged, self.condition, self.created));
                return Ok(CommitOutcome::NotPlaced(obstacle, parts));
            }
            Err(error) => return self.fail(error),
        }
        if let Err(error) = synced.and_then(|()| self.end(inner)) {
            let (undo, dir) = (mem::replace(&mut self.undo, Undo::Never), self.parent.dir());
            let changing = inner.key_locks.change(&self.key);
            undo.revert(inner, &mut self.staged, dir, self.key.name());
            drop(changing);
            return self.fail(error);
        }
        self.created.keep();
        if self.meta.has_fragile_version() {
            // The file system knows only seconds, and the rename has changed the version.
            let found = self.staged.file.metadata().ok();
            let meta = found.and_then(|found| Meta::from_file(&found));
            self.meta = meta.unwrap_or(self.meta);
        }
        Ok(CommitOutcome::Committed(Committed {
            created: self.current.is_none(),
            replaced_bytes: (self.current).map_or(0, |replaced| counted_bytes(replaced.size)),
            meta: self.meta,
        }))
    }

    /// Checks that the new name is durable, and removes the old object, if the store is durable.
    fn end(&mut self, inner: &FolderInner) -> Result<()> {
        if !inner.durable() {
            return Ok(());
        }
        if inner.parents.sync_failures() != self.sync_failures {
            return Err(StoreError::Io(io::ErrorKind::Other.into()));
        }
        match self.undo {
            // The exchanged entry may be a folder that another program has just created.
            Undo::Exchange => (self.staged.remove_exchanged()).map_err(|_| StoreError::Conflict),
            Undo::Unlink | Undo::MoveBack(_) | Undo::Never => Ok(()),
        }
    }

    /// Removes the staged file, unless it is kept.
    fn fail(self, error: StoreError) -> Result<CommitOutcome> {
        self.staged.remove_unless_kept();
        Err(error)
    }
}

/// Checks the condition, and sets the modification time, the checksum, the metadata, the rights,
/// and the properties that stay. Returns the object to replace, as far as it is known, and what
/// describes the new one.
fn stamp(
    inner: &FolderInner,
    staged: &StagedFile,
    metadata: &[u8],
    parts: &PutParts,
) -> Result<(Option<Meta>, Meta)> {
    let keeps_properties = inner.keeps_properties();
    // Most puts create an object, or replace one of the last: then the lookup costs less than a
    // rename that fails.
    // Syncs cost much more than either, and what is replaced decides on the rights of the file.
    let looks_up = !parts.condition.is_none()
        || keeps_properties
        || inner.durable()
        || inner.key_locks.was_put(&parts.key);
    let current = match looks_up {
        true => existing_file(inner, parts.parent.dir(), &parts.key)?,
        false => None,
    };
    let replaced = current;
    let current = replaced.and_then(|found| Meta::from_file(&found));
    inner.check(&parts.condition, current.as_ref())?;
    let file = &staged.file;
    let is_kept = staged.name.is_kept;
    if is_kept {
        properties::clear(file)?; // An earlier commit may have set some, and failed.
    }
    if keeps_properties && current.is_some() {
        properties::keep(inner, &parts.key, file)?;
    }
    match file.set_modified(inner.next_stamp_ns()) {
        // A mount that shows another owner. The time is that of the last write.
        Err(error) if rights::is_refused(&error) => {}
        set => set.map_err(StoreError::from_open_file)?,
    }
    // Read back, because the file system may store times with a coarser resolution.
    let found = file.metadata().map_err(StoreError::from_open_file)?;
    let meta = Meta::from_file(&found).ok_or(StoreError::Io(io::ErrorKind::InvalidData.into()))?;
    let record = (staged.checksum).map(|checksum| Record::new(checksum, &found));
    if record.is_some() || !metadata.is_empty() || is_kept {
        match attributes::write(file, record.as_ref(), metadata) {
            Err(error) if is_without_room(&error) || rights::is_refused(&error) => {
                // The object has no checksum, but what the client has sent for it must be kept.
                if !metadata.is_empty() {
                    return Err(match is_without_room(&error) {
                        true => StoreError::TooLarge,
                        false => StoreError::NoMetadata,
                    });
                }
            }
            written => written.map_err(StoreError::from_open_file)?,
        }
    }
    let dir = parts.parent.dir();
    match replaced {
        Some(old) => rights::keep(inner, staged, &found, dir, parts.key.name(), &old)?,
        None => {
            let folder = match parts.folder {
                Some(folder) => Ok(folder),
                None => dir.self_metadata(),
            };
            match folder {
                Ok(folder) => rights::inherit(inner, staged, &found, dir, &folder)?,
                // Some file systems say so about an open folder that was removed, which the rename
                // notices.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::from_open_file(error)),
            }
        }
    }
    Ok((current, meta))
}

/// Whether an attribute was longer than the file system permits.
fn is_without_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ERANGE))
}

/// How to undo the rename of the staged file.
#[derive(Debug, PartialEq, Eq)]
enum Undo {
    /// The old object has the staged name: exchange them again.
    Exchange,
    /// The name was free: unlink the new object.
    Unlink,
    /// The name was free, and the new object had this name of a kept file: it gets it back.
    MoveBack(Vec<u8>),
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
    inner: &FolderInner,
    staged: &mut StagedFile,
    dir: &Dir,
    name: &[u8],
    mode: RenameMode,
) -> io::Result<Undo> {
    let replaces = mode == RenameMode::Exchange;
    // Without syncs no later step can fail, and a plain rename is cheaper.
    if replaces && inner.durable() {
        match staged.exchange(dir, name) {
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
    let staged_name = staged.rename(dir, name, name_was_free)?;
    Ok(match name_was_free {
        true if staged.name.is_kept => Undo::MoveBack(staged_name),
        true => Undo::Unlink,
        false => Undo::Never,
    })
}

impl Undo {
    /// Best effort: the caller returns the error of the commit in any case.
    fn revert(self, inner: &FolderInner, staged: &mut StagedFile, dir: &Dir, name: &[u8]) {
        let _ = match self {
            Undo::Exchange => (staged.exchange(dir, name)).or_else(|_| staged.move_aside()),
            Undo::Unlink => dir.unlink(name),
            Undo::MoveBack(kept_name) => staged.move_back(dir, name, kept_name),
            Undo::Never => Ok(()),
        };
        // Otherwise a power cut may remove the kept name, which has just changed twice.
        if staged.name.is_kept && inner.durable() {
            let _ = inner.parents.sync(&staged.name.folder.dir);
        }
    }
}

/// Deletes an object or an empty folder. Returns its properties, and the bytes that count no
/// longer: none if it was a link, whose target stays. After a failure of the last sync it is gone
/// for readers, but a power cut may bring it back.
pub(super) fn delete(
    inner: &FolderInner,
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
    let changing = inner.key_locks.change(key);
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
    drop(changing);

    if inner.durable() {
        inner
            .parents
            .sync(parent.dir())
            .map_err(StoreError::from_open_file)?;
    }
    Ok((meta, if is_link { 0 } else { counted_bytes(meta.size) }))
}

fn is_link(parent: &Parent, key: &Key) -> bool {
    let found = parent.dir().entry_metadata(key.name());
    found.is_ok_and(|found| found.kind == FileKind::Symlink)
}
