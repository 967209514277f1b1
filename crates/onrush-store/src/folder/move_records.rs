//! The records of moves in which two names exchange what they have (`displaced`), in
//! `.onrush/moves`. A process that ends before the old one has its staged name leaves its record,
//! by which others make the second step: the next start, another process that uses the folder
//! (within a second, if it has requests), and a move, a copy or a delete there, before it changes
//! anything at these names, above or beneath them. Otherwise a client that repeats its MOVE would
//! exchange both once more, and so delete what is new.
//!
//! A move has the locks of both names until it has removed its record. So a change that has these
//! locks and finds the record knows that its maker has ended or given up, whatever other processes
//! do. Only where the file system has no such locks is it asked whether the maker is alive.
//!
//! The record says which file or folder is the old one and which is the new one. Unless both are
//! there, each at the other's name, and nothing in the old one was changed since, only the record
//! is removed: then nothing is known to be superfluous. If the folders of both names are others
//! than then, as where a file system is not mounted, nothing is known, and the record stays.
//! Inodes tell that, and no devices: their numbers may be others after a restart of the machine.

use super::FolderInner;
use super::dirs::names;
use super::key_locks;
use super::locks::Locks;
use super::parents::{self, Parent};
use super::staged::StagedName;
use super::trees;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::store::{Overlap, Relocation};
use onrush_rt::fs::{Dir, FileKind, Metadata, OpenHow};
use std::io;
use std::str;
use std::sync::Arc;

/// The folder of the records, next to that of staged files of the root folder.
const MOVES: &[u8] = b"moves";
/// The maximum length of a record in bytes: two keys and a line of numbers.
const RECORD_BYTES_MAX: usize = 2 * Key::BYTES_MAX + 256;

/// Only the owner of the store may read a record.
const MODE: u32 = 0o600;

/// The names of a rename, in open folders.
pub(super) struct Names<'a> {
    pub(super) from: &'a Parent,
    pub(super) to: &'a Parent,
    pub(super) how: &'a Relocation,
}

impl Names<'_> {
    pub(super) fn exchange(&self) -> io::Result<()> {
        let (from, to) = (self.from.dir(), self.to.dir());
        from.exchange(self.how.from.name(), to, self.how.to.name())
    }
}

/// The file that says what a move exchanges: the inodes of both folders, of the old one and of the
/// new one, the time of the old one, the length of the first key; then both keys. Dropping it
/// removes it.
pub(super) struct Record {
    folder: Dir,
    name: Vec<u8>,
}

impl Record {
    /// Durable before anything is exchanged, if the store is durable. Where it is seen, it is
    /// whole.
    pub(super) fn write(inner: &Arc<FolderInner>, names: &Names<'_>) -> io::Result<Record> {
        let Relocation { from, to, .. } = names.how;
        let new = names.from.dir().entry_metadata(from.name())?;
        let old = names.to.dir().entry_metadata(to.name())?;
        let line = format!(
            "{} {} {} {} {} {}\n",
            names.from.dir().self_metadata()?.inode,
            names.to.dir().self_metadata()?.inode,
            old.inode,
            new.inode,
            old.modified_ns,
            from.as_bytes().len(),
        );
        let text = [line.as_bytes(), from.as_bytes(), to.as_bytes()].concat();
        let staging = inner.staging().map_err(|_| io::ErrorKind::NotFound)?;
        let number = |number: u64| number.to_string().into_bytes();
        let (own, number, file) = staging.create_named(number, MODE)?;
        let mut staged = StagedName::new(inner, &staging, own, number);
        file.write_all_at(&text, 0)?;
        if inner.durable() {
            file.sync()?;
        }
        let (folder, reserved) = staging.ensure_folder(MOVES)?;
        let name = staging.unique_name();
        (staged.folder.dir).rename(&staged.name, &folder, &name, false)?;
        staged.name.clear();
        let record = Record { folder, name };
        if inner.durable() {
            // The folders above may be new.
            for dir in [&record.folder, &reserved, staging.dir()] {
                inner.parents.sync(dir)?;
            }
        }
        Ok(record)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // One that stays does nothing, unless both are there, each at the other's name.
        let _ = self.folder.unlink(&self.name);
    }
}

/// A record that was found.
pub(super) struct FoundRecord {
    name: Vec<u8>,
    /// When it was made: nothing in the old one has changed since.
    made_ns: i64,
    /// `None`: it cannot be understood, which a power cut explains.
    pub(super) exchange: Option<Exchange>,
}

/// What a record says.
pub(super) struct Exchange {
    from: Key,
    to: Key,
    /// The inodes of the folders of both.
    folders: [u64; 2],
    old: u64,
    new: u64,
    old_modified_ns: i64,
}

/// What a look at the names of a record shows.
enum RecordState {
    /// The old one is in this folder, at the name that the new one had.
    Exchanged(Parent, FileKind),
    /// Anything else.
    Ended,
    /// The folders are not there.
    Away,
}

/// Whether a move that has not ended concerns one of `keys`. `also_near`: or what is above or
/// beneath one of them. The caller has the locks of `keys`. Blocks.
pub(super) fn is_pending(inner: &FolderInner, keys: &[&Key], also_near: bool) -> bool {
    all(inner).iter().any(|found| match &found.exchange {
        Some(moved) => moved.concerns(keys, also_near) && !matches!(moved.folders(inner), Ok(None)),
        None => false,
    })
}

/// Completes the moves of dead processes, except those whose names are in use now. Blocks.
pub(super) fn complete_free(inner: &Arc<FolderInner>) {
    for found in all(inner) {
        let locks = found.exchange.as_ref().map(|moved| {
            let (first, second) = moved.ordered();
            let first = key_locks::try_acquire(inner, first)?;
            let mut locks = Locks::two(first, key_locks::try_acquire(inner, second)?);
            locks.try_exclude_processes(inner).is_ok().then_some(locks)
        });
        if !matches!(locks, Some(None)) {
            let _ = found.complete(inner); // The next look tries again.
        }
    }
}

/// All records.
pub(super) fn all(inner: &FolderInner) -> Vec<FoundRecord> {
    let folder = inner.staging().map(|staging| staging.open_folder(MOVES));
    let Ok(Ok(folder)) = folder else {
        return Vec::new();
    };
    let found = names(&folder, Some(FileKind::File)).into_iter();
    found
        .filter_map(|name| FoundRecord::read(&folder, name))
        .collect()
}

impl FoundRecord {
    /// `None`: it is not there any more, or cannot be read now.
    fn read(folder: &Dir, name: Vec<u8>) -> Option<FoundRecord> {
        let mut text = Vec::with_capacity(RECORD_BYTES_MAX);
        let file = folder.open(&name, OpenHow::READ).ok()?;
        loop {
            let at = text.len() as u64;
            if file.read_to_vec(&mut text, RECORD_BYTES_MAX, at).ok()? == 0 {
                break;
            }
        }
        Some(FoundRecord {
            name,
            made_ns: file.metadata().ok()?.changed_ns,
            exchange: Exchange::parse(&text),
        })
    }

    /// Gives the old one a staged name if both have exchanged theirs, and removes the record. The
    /// caller has the locks of both keys.
    pub(super) fn complete(self, inner: &Arc<FolderInner>) -> Result<()> {
        let staging = inner.staging()?;
        let folder = match staging.open_folder(MOVES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            folder => folder.map_err(StoreError::from_change)?,
        };
        // Another thread or process may have completed it since.
        let is_there = folder.entry_metadata(&self.name).is_ok();
        let excludes = inner.process_locks.are_supported();
        if !is_there || !excludes && staging.is_of_live_process(&self.name) {
            return Ok(());
        }
        if let Some(moved) = &self.exchange {
            match moved.look(inner, self.made_ns)? {
                RecordState::Exchanged(parent, kind) => {
                    moved.end(inner, &parent, kind, self.made_ns)?
                }
                RecordState::Ended => {}
                RecordState::Away => return Ok(()),
            }
        }
        folder.unlink(&self.name).map_err(StoreError::from_change)
    }
}

impl Exchange {
    fn parse(text: &[u8]) -> Option<Exchange> {
        let end = text.iter().position(|&byte| byte == b'\n')?;
        let mut words = str::from_utf8(&text[..end]).ok()?.split(' ');
        let mut inode = || words.next()?.parse().ok();
        let folders = [inode()?, inode()?];
        let (old, new) = (inode()?, inode()?);
        let old_modified_ns = words.next()?.parse().ok()?;
        let from_len = words.next()?.parse().ok()?;
        let (from, to) = text[end + 1..].split_at_checked(from_len)?;
        Some(Exchange {
            from: Key::parse(from).ok()?,
            to: Key::parse(to).ok()?,
            folders,
            old,
            new,
            old_modified_ns,
        })
    }

    /// Both keys, in the order in which they are locked.
    pub(super) fn ordered(&self) -> (&Key, &Key) {
        match self.from < self.to {
            true => (&self.from, &self.to),
            false => (&self.to, &self.from),
        }
    }

    pub(super) fn concerns(&self, keys: &[&Key], also_near: bool) -> bool {
        let concerns = |own: &Key, key: &Key| match Overlap::of_keys(own, key) {
            Overlap::Same => true,
            Overlap::Beneath | Overlap::Contains => also_near,
            Overlap::None => false,
        };
        keys.iter()
            .any(|own| concerns(own, &self.from) || concerns(own, &self.to))
    }

    /// The folders of both names. `None`: they are others than then.
    fn folders(&self, inner: &FolderInner) -> Result<Option<[Parent; 2]>> {
        let open = |key: &Key, inode: u64| {
            let opened = parents::open(inner, key.split().0)
                .and_then(|parent| parent.dir().self_metadata().map(|found| (parent, found)));
            match opened.map_err(StoreError::from_lookup) {
                Ok((parent, found)) => Ok((found.inode == inode).then_some(parent)),
                Err(StoreError::NotFound | StoreError::NotDirectory) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let from = open(&self.from, self.folders[0])?;
        Ok(match (from, open(&self.to, self.folders[1])?) {
            (Some(from), Some(to)) => Some([from, to]),
            _ => None,
        })
    }

    fn look(&self, inner: &FolderInner, made_ns: i64) -> Result<RecordState> {
        let Some([from, to]) = self.folders(inner)? else {
            return Ok(RecordState::Away);
        };
        let old = entry(from.dir(), self.from.name())?;
        let new = entry(to.dir(), self.to.name())?;
        let (Some(old), Some(new)) = (old, new) else {
            return Ok(RecordState::Ended);
        };
        if new.inode != self.new || self.is_changed(from.dir(), self.from.name(), made_ns) {
            return Ok(RecordState::Ended);
        }
        Ok(RecordState::Exchanged(from, old.kind))
    }

    /// Whether something else has the name, or it has changed since. What cannot be examined counts
    /// as changed: it stays.
    fn is_changed(&self, dir: &Dir, name: &[u8], made_ns: i64) -> bool {
        let Ok(found) = dir.entry_metadata(name) else {
            return true;
        };
        let is_old = found.inode == self.old && found.modified_ns == self.old_modified_ns;
        let is_changed = || trees::has_changed_since(dir, name, made_ns).unwrap_or(true);
        !is_old || found.kind == FileKind::Directory && is_changed()
    }

    /// Makes the second step. Puts the old one back if it has changed meanwhile: what is beneath
    /// has locks of its own.
    fn end(
        &self,
        inner: &Arc<FolderInner>,
        parent: &Parent,
        kind: FileKind,
        made_ns: i64,
    ) -> Result<()> {
        let (_, mut staged) = StagedName::for_copy(inner, &self.from)?;
        let changing = match kind {
            FileKind::Directory => inner.key_locks.change_all(),
            _ => inner.key_locks.change(&self.from),
        };
        // Nothing has the staged name, and not every file system knows `RENAME_NOREPLACE`.
        let renamed =
            (parent.dir()).rename(self.from.name(), &staged.folder.dir, &staged.name, false);
        if renamed.is_ok() && self.is_changed(&staged.folder.dir, &staged.name, made_ns) {
            let (from, to) = (&staged.folder.dir, parent.dir());
            return match from.rename(&staged.name, to, self.from.name(), true) {
                Ok(()) => Ok(()),
                // The name is taken, or the file system cannot be asked to replace nothing.
                Err(_) => staged.move_aside().map_err(StoreError::from_change),
            };
        }
        drop(changing);
        renamed.map_err(StoreError::from_change)?;
        inner.parents.forget(self.from.as_bytes());
        if inner.durable() {
            let synced = inner.parents.sync(parent.dir());
            synced.map_err(StoreError::from_open_file)?;
        }
        drop(staged); // The pool removes it.
        Ok(())
    }
}

/// What describes an entry. `None` if there is none.
fn entry(dir: &Dir, name: &[u8]) -> Result<Option<Metadata>> {
    match dir.entry_metadata(name).map_err(StoreError::from_lookup) {
        Err(StoreError::NotFound) => Ok(None),
        found => found.map(Some),
    }
}
