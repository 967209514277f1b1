//! Reads a folder step by step: its names ([`super::names`]), and the properties of some of them.
//!
//! A step is a part of a job, whose permit others may want ([`Permit::is_wanted`]). Nothing is held
//! between two jobs but names, and the descriptor of a directory while its names are being read.

use super::FolderInner;
use super::listing_queue::Permit;
use super::names::{Collector, Names};
use super::parents;
use super::properties;
use crate::attributes::read_metadata;
use crate::error::{Result, StoreError};
use crate::key::{Key, is_reserved};
use crate::meta::{Kind, Meta};
use crate::store::{CursorHow, DetailedEntry, Entry, NamesMemory};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, FileKind, Metadata, OpenHow};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The names after which others may go on.
const NAMES_PER_PART: usize = 4096;
/// The entries after which others may go on.
const ENTRIES_PER_PART: usize = 128;
/// The bytes of metadata and properties after which the entries so far are returned.
const DETAILS_BYTES_MAX: usize = 128 << 10;

/// A folder that is being read.
pub(super) struct Walk {
    folder: Option<Key>,
    how: CursorHow,
    /// At least so many names are read at a time.
    count_min: usize,
    state: WalkState,
    /// The next one of the names.
    at: usize,
}

enum WalkState {
    /// The names after this one are not read.
    Before(Vec<u8>, Box<dyn NamesMemory>),
    Reading(Box<Reading>),
    Names(Arc<Names>),
    /// Never between two steps.
    Changing,
}

struct Reading {
    names: onrush_rt::fs::Names,
    collector: Collector,
}

/// Why a step has ended.
#[derive(PartialEq, Eq)]
pub(super) enum End {
    /// The permit is for others now.
    Wanted,
    /// As many names as asked for were looked at.
    Enough,
    /// The folder has no more names.
    Folder,
}

impl Walk {
    pub(super) fn new(
        folder: Option<Key>,
        how: CursorHow,
        count_min: usize,
        memory: Box<dyn NamesMemory>,
    ) -> Walk {
        let after = how.after.clone().unwrap_or_default();
        Walk {
            folder,
            how,
            count_min,
            state: WalkState::Before(after, memory),
            at: 0,
        }
    }

    /// Begins with names that were read before, after the first `at` of them.
    pub(super) fn use_names(&mut self, names: Arc<Names>, at: usize) {
        (self.state, self.at) = (WalkState::Names(names), at);
    }

    /// The names that were read, and how many of them were looked at.
    pub(super) fn names(&self) -> Option<(&Arc<Names>, usize)> {
        match &self.state {
            WalkState::Names(names) => Some((names, self.at)),
            _ => None,
        }
    }

    /// Whether a step was made.
    pub(super) fn has_started(&self) -> bool {
        !matches!(self.state, WalkState::Before(..))
    }

    /// Goes on until `left` more names were looked at, which this reduces, and adds what is listed
    /// of them to `found`.
    pub(super) fn step(
        &mut self,
        inner: &FolderInner,
        permit: &Permit,
        left: &mut usize,
        found: &mut Vec<DetailedEntry>,
    ) -> Result<End> {
        let opened;
        let dir = match &self.folder {
            None => &*inner.root,
            Some(key) => {
                opened = open(inner, key)?;
                &opened
            }
        };
        while *left > 0 {
            match std::mem::replace(&mut self.state, WalkState::Changing) {
                WalkState::Before(after, memory) => {
                    let names = dir.names().map_err(StoreError::from_lookup)?;
                    let collector = Collector::new(after, self.count_min, memory);
                    self.state = WalkState::Reading(Box::new(Reading { names, collector }));
                }
                WalkState::Reading(mut reading) => {
                    if self.read(&mut reading, permit)? {
                        self.state = WalkState::Reading(reading);
                        return Ok(End::Wanted);
                    }
                    self.use_names(Arc::new(reading.collector.finish()), 0);
                }
                WalkState::Names(names) if self.at == names.len() => {
                    let Some(until) = names.until.clone() else {
                        self.state = WalkState::Names(names);
                        return Ok(End::Folder);
                    };
                    match Arc::try_unwrap(names) {
                        Ok(names) => self.state = WalkState::Before(until, names.into_memory()),
                        // Those that pages share are enough for a page.
                        Err(names) => {
                            self.state = WalkState::Names(names);
                            return Ok(End::Enough);
                        }
                    }
                }
                WalkState::Names(names) => {
                    let ended = self.look(inner, dir, &names, permit, left, found);
                    self.state = WalkState::Names(names);
                    if let Some(end) = ended? {
                        return Ok(end);
                    }
                }
                WalkState::Changing => return Ok(End::Folder), // After an error.
            }
        }
        Ok(End::Enough)
    }

    /// Reads names. Returns whether there are more, and the permit is for others now.
    fn read(&self, reading: &mut Reading, permit: &Permit) -> Result<bool> {
        let (mut count, is_top, hidden) = (0, self.folder.is_none(), self.how.hidden);
        let Reading { names, collector } = reading;
        loop {
            let mut each = |name: &[u8], kind: Option<FileKind>| {
                count += 1;
                let is_left_out = (name[0] == b'.' && (!hidden || is_reserved(name, is_top)))
                    || kind == Some(FileKind::Special);
                if !is_left_out {
                    collector.add(name, kind);
                }
                ControlFlow::Continue(())
            };
            if !names
                .read_some(&mut each)
                .map_err(StoreError::from_lookup)?
            {
                return Ok(false);
            }
            if count >= NAMES_PER_PART {
                count = 0;
                if permit.is_wanted() {
                    return Ok(true);
                }
            }
        }
    }

    /// Looks at names. `None`: all of them.
    fn look(
        &mut self,
        inner: &FolderInner,
        dir: &Dir,
        names: &Names,
        permit: &Permit,
        left: &mut usize,
        found: &mut Vec<DetailedEntry>,
    ) -> Result<Option<End>> {
        let (mut count, mut details_bytes) = (0, 0);
        while self.at < names.len() {
            if *left == 0 || details_bytes > DETAILS_BYTES_MAX {
                return Ok(Some(End::Enough));
            }
            if count == ENTRIES_PER_PART {
                count = 0;
                if permit.is_wanted() {
                    return Ok(Some(End::Wanted));
                }
            }
            let (name, kind) = names.get(self.at);
            (self.at, *left, count) = (self.at + 1, *left - 1, count + 1);
            let Some((meta, is_link)) = entry_meta(inner, self.folder.as_ref(), dir, name, kind)?
            else {
                continue;
            };
            let mut one = DetailedEntry::from(Entry {
                name: name.to_vec(),
                kind: meta.kind,
                size: meta.size,
                modified_ns: meta.modified_ns,
                version: meta.version,
            });
            if self.how.metadata || self.how.properties {
                details_bytes += self.read_details(inner, dir, is_link, &mut one);
            }
            found.push(one);
        }
        Ok(None)
    }

    /// Adds metadata and properties to an entry. Returns their length in bytes.
    fn read_details(
        &self,
        inner: &FolderInner,
        dir: &Dir,
        is_link: bool,
        one: &mut DetailedEntry,
    ) -> usize {
        let is_file = one.entry.kind == Kind::File;
        let metadata = self.how.metadata && is_file;
        if !metadata && !self.how.properties {
            return 0;
        }
        let Some(permit) = inner.options.descriptors.open_file(FileUse::Brief) else {
            return 0; // The caller asks for each by itself, and may wait for it.
        };
        let name = &one.entry.name;
        let file = match is_link {
            true => inner
                .root
                .open(&path(self.folder.as_ref(), name), OpenHow::READ),
            false => dir.open(name, OpenHow::READ),
        };
        let file = file.ok().map(|file| file.with_permit(permit));
        let read = |of: fn(&File) -> Result<Vec<u8>>| {
            let file = file.as_ref();
            file.and_then(|file| of(file).ok()).unwrap_or_default()
        };
        one.metadata = metadata.then(|| read(read_metadata));
        one.properties = self.how.properties.then(|| read(properties::of_file));
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        len(&one.metadata) + len(&one.properties)
    }
}

/// Opens a folder to list it.
pub(super) fn open(inner: &FolderInner, key: &Key) -> Result<Dir> {
    inner
        .root
        .open_dir(key.as_bytes())
        .map_err(|error| match error.kind() {
            // Either the last segment or an earlier one is not a directory.
            io::ErrorKind::NotADirectory => match inner.meta(key) {
                Ok(Meta {
                    kind: Kind::File, ..
                }) => StoreError::NotDirectory,
                _ => StoreError::NotFound,
            },
            _ => StoreError::from_lookup(error),
        })
}

fn path(folder: Option<&Key>, name: &[u8]) -> Vec<u8> {
    parents::join(folder.map_or(&b""[..], Key::as_bytes), name)
}

/// The properties of a name in `dir`, and whether it is a link; `None` if it is not an object, or
/// does not exist any more.
fn entry_meta(
    inner: &FolderInner,
    folder: Option<&Key>,
    dir: &Dir,
    name: &[u8],
    kind: Option<FileKind>,
) -> Result<Option<(Meta, bool)>> {
    let mut found = match kind {
        Some(FileKind::Symlink) => None,
        _ => match absent(dir.entry_metadata(name))? {
            Some(found) if found.kind != FileKind::Symlink => Some(found),
            Some(_) => None,
            None => return Ok(None),
        },
    };
    let is_link = found.is_none();
    if is_link {
        // The target of a link may be anywhere beneath the root, so it is resolved from the root.
        found = absent(inner.root.metadata(&path(folder, name)))?;
    }
    let meta = found.as_ref().and_then(Meta::from_file);
    Ok(meta.map(|meta| (meta, is_link)))
}

/// `None` for an entry that cannot be reached, so it is left out. Errors of the disk are returned.
fn absent(result: io::Result<Metadata>) -> Result<Option<Metadata>> {
    match result.map_err(StoreError::from_lookup) {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound | StoreError::PermissionDenied(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
