//! What a rename replaces. It has a staged name until the new one is durable, so that any failure
//! before that puts it back, and readers find one of both at every moment.
//!
//! - A file replaces a file: the old one gets a staged name besides its own (`link(2)`), and the
//!   rename replaces it.
//! - A copy that has a staged name itself (`Store::stage_copy`), or anything else that differs in
//!   kind or is a folder: both exchange their names (`RENAME_EXCHANGE`). A copy has then given its
//!   staged name to the old one.
//! - Otherwise the old one has the name that the new one had, and is renamed to a staged name at
//!   once. A process that ends between these two steps would leave it there, and a client that
//!   repeats its MOVE would undo it. So a record of the move is made before (`moves`), by which
//!   another process or the next start makes the second step.

use super::FolderInner;
use super::mounts;
use super::move_records::{Names, Record};
use super::staged::StagedName;
use super::staging::StagingFolder;
use crate::error::{Result, StoreError};
use std::io;
use std::sync::Arc;

/// What was replaced, under a staged name. Dropping it removes it.
pub(super) struct Displaced {
    staged: StagedName,
    how: How,
}

enum How {
    /// A file replaced a file.
    Linked,
    /// Both have exchanged their names, and the new one has had the staged name.
    Exchanged,
    /// Both have exchanged their names, and then the old one was renamed. The record is removed
    /// when this is dropped.
    Moved(#[expect(dead_code, reason = "held")] Record),
}

impl Displaced {
    /// Renames a file to a name that a file has. `None`: the old one cannot have a second name,
    /// because the file system has no links or is full, and nothing was changed.
    pub(super) fn replace_file(
        inner: &Arc<FolderInner>,
        names: &Names<'_>,
    ) -> Result<Option<Displaced>> {
        let (to, to_name) = (names.to.dir(), names.how.to.name());
        let Ok((_, staged)) = StagedName::for_copy(inner, &names.how.to) else {
            return Ok(None);
        };
        if (to.link(to_name, &staged.folder.dir, &staged.name)).is_err() {
            return Ok(None);
        }
        let renamed = (names.from.dir()).rename(names.how.from.name(), to, to_name, false);
        renamed.map_err(rename_error)?;
        let how = How::Linked;
        Ok(Some(Displaced { staged, how }))
    }

    /// Renames anything to a name that anything else has. Neither contains the other. Fails with
    /// [`StoreError::Unsupported`] if the file system cannot exchange names.
    pub(super) fn replace(inner: &Arc<FolderInner>, names: &Names<'_>) -> Result<Displaced> {
        let how = names.how;
        if how.from.is_staged() {
            let staging = mounts::staging_for(inner, &how.to)?;
            let dir = names.from.dir().open_dir(b".");
            let folder = StagingFolder::lasting(dir.map_err(StoreError::from_open_file)?);
            names.exchange().map_err(exchange_error)?;
            let name = how.from.name().to_vec();
            return Ok(Displaced {
                staged: StagedName::new(inner, &staging, Arc::new(folder), name),
                how: How::Exchanged,
            });
        }
        let (_, mut staged) = StagedName::for_copy(inner, &how.to)?;
        let record = Record::write(inner, names).map_err(StoreError::from_change)?;
        names.exchange().map_err(exchange_error)?;
        let from = names.from.dir();
        let moved = from.rename(how.from.name(), &staged.folder.dir, &staged.name, true);
        if let Err(error) = moved {
            staged.name.clear();
            // If this fails, the old one is whole, at the name that the new one had.
            let _ = names.exchange();
            return Err(StoreError::from_change(error));
        }
        let how = How::Moved(record);
        Ok(Displaced { staged, how })
    }

    /// Gives both their names again, as far as that succeeds. What was replaced is not removed if
    /// it does not.
    pub(super) fn put_back(self, names: &Names<'_>) {
        let Displaced { mut staged, how } = self;
        let (from, from_name) = (names.from.dir(), names.how.from.name());
        let (to, to_name) = (names.to.dir(), names.how.to.name());
        let (dir, name) = (&staged.folder.dir, &staged.name);
        let put_back = match how {
            // In this order, the new one always has a name.
            How::Linked => (to.link(to_name, from, from_name))
                .and_then(|()| dir.rename(name, to, to_name, false)),
            How::Exchanged => names.exchange(),
            How::Moved(_) => (dir.rename(name, from, from_name, true)).map(|()| {
                let _ = names.exchange(); // Otherwise both are there, each at the other's name.
            }),
        };
        match (put_back, how) {
            (Err(_), _) => drop(staged.move_aside()),
            (Ok(()), How::Exchanged) => {} // The copy is removed.
            (Ok(()), How::Linked | How::Moved(_)) => staged.name.clear(),
        }
    }

    /// What is to be removed in steps, because it may be a folder. A file that a file has replaced
    /// is removed at once.
    pub(super) fn into_removed(self) -> Option<StagedName> {
        match self.how {
            How::Linked => {
                self.staged.remove_file();
                None
            }
            How::Exchanged | How::Moved(_) => Some(self.staged),
        }
    }
}

/// Maps the error of a rename.
pub(super) fn rename_error(error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::NotFound,
        // The second is the top of a mount.
        io::ErrorKind::CrossesDevices | io::ErrorKind::ResourceBusy => StoreError::OtherFileSystem,
        _ => StoreError::from_change(error),
    }
}

fn exchange_error(error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => StoreError::Unsupported,
        io::ErrorKind::NotFound => StoreError::from_change(error),
        _ => rename_error(error),
    }
}
