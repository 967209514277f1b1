//! Counts what the objects and folders in a folder count for a quota.

use super::{Folder, FolderInner, parents};
use crate::error::{Result, StoreError};
use crate::key::{Key, is_reserved};
use crate::usage::{COUNTED_BYTES_MIN, counted_bytes};
use onrush_rt::fs::{Dir, FileKind};
use std::io;
use std::ops::ControlFlow;

/// After so many names, the numbers are reported.
const NAMES_PER_STEP: u64 = 4096;

/// The numbers of a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The number of objects.
    pub objects: u64,
    /// The number of folders.
    pub folders: u64,
    /// What they count, in bytes.
    pub bytes: u64,
}

impl Counted {
    fn names(&self) -> u64 {
        self.objects + self.folders
    }
}

impl Folder {
    /// What all objects and folders beneath a folder count for a [`Quota`](crate::Quota)
    /// (`None`: beneath the top folder), without those of [`Key::state`], in bytes; 0 if it does
    /// not exist. Symbolic links do not count. Blocks.
    pub fn count_bytes(&self, folder: Option<&Key>) -> Result<u64> {
        let counted = self.count_all(&[folder], &mut |_| {})?;
        Ok(counted.iter().sum())
    }

    /// As [`Folder::count_bytes`], for several folders, of which one may contain another: each
    /// folder is read once. Calls `progress` with the numbers so far, now and then.
    pub(crate) fn count_all(
        &self,
        folders: &[Option<&Key>],
        progress: &mut dyn FnMut(Counted),
    ) -> Result<Vec<u64>> {
        let mut count = Count {
            inner: &self.inner,
            folders: (folders.iter())
                .map(|folder| folder.map_or(&b""[..], Key::as_bytes))
                .collect(),
            sums: vec![0; folders.len()],
            is_read: vec![false; folders.len()],
            counted: Counted::default(),
            reported: 0,
            progress,
        };
        count.run()?;
        Ok(count.sums)
    }
}

/// A count of all regular files and folders beneath some folders, without what is reserved for the
/// store. Symbolic links do not count.
struct Count<'c> {
    inner: &'c FolderInner,
    /// Empty: the top folder.
    folders: Vec<&'c [u8]>,
    /// What each of them counts, in bytes.
    sums: Vec<u64>,
    /// Whether each of them has been read.
    is_read: Vec<bool>,
    /// The numbers of all.
    counted: Counted,
    /// How many names there were when the numbers were last reported.
    reported: u64,
    progress: &'c mut dyn FnMut(Counted),
}

impl Count<'_> {
    fn run(&mut self) -> Result<()> {
        let mut order: Vec<usize> = (0..self.folders.len()).collect();
        order.sort_by_key(|&at| self.folders[at].len()); // The outer ones first.
        for at in order {
            // One that is reached through a symbolic link is not read with those that contain it.
            if !self.is_read[at] {
                self.read_tree(at)?;
            }
        }
        Ok(())
    }

    /// Counts what is beneath a folder: for it, and for those beneath it.
    fn read_tree(&mut self, top: usize) -> Result<()> {
        let left = (0..self.folders.len()).filter(|&at| !self.is_read[at]);
        let left: Vec<usize> = left.collect();
        self.is_read[top] = true;
        let mut paths = vec![self.folders[top].to_vec()];
        while let Some(path) = paths.pop() {
            let before = self.counted.bytes;
            self.read_folder(&path, &mut paths)?;
            let bytes = self.counted.bytes - before;
            for &at in &left {
                let rest = path.strip_prefix(self.folders[at]);
                if rest.is_some_and(|rest| rest.is_empty()) {
                    self.is_read[at] = true;
                }
                let is_top = self.folders[at].is_empty();
                if rest.is_some_and(|rest| is_top || matches!(rest.first(), None | Some(b'/'))) {
                    self.sums[at] = self.sums[at].saturating_add(bytes);
                }
            }
        }
        Ok(())
    }

    /// Counts the entries of a folder; nothing if there is none. Adds the paths of its folders to
    /// `paths`.
    fn read_folder(&mut self, path: &[u8], paths: &mut Vec<Vec<u8>>) -> Result<()> {
        let opened;
        let dir = match path.is_empty() {
            true => &*self.inner.root,
            false => match self.inner.root.open_dir(path) {
                Ok(dir) => {
                    opened = dir;
                    &opened
                }
                // It is gone, or is none.
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(StoreError::from_lookup(error)),
            },
        };
        let mut report = |counted: &Counted| {
            if counted.names() - self.reported >= NAMES_PER_STEP {
                self.reported = counted.names();
                (self.progress)(*counted);
            }
        };
        count_entries(dir, path, paths, &mut self.counted, &mut report)
    }
}

/// Counts the entries of a folder. Adds the paths of its folders to `paths`.
fn count_entries(
    dir: &Dir,
    path: &[u8],
    paths: &mut Vec<Vec<u8>>,
    counted: &mut Counted,
    report: &mut dyn FnMut(&Counted),
) -> Result<()> {
    let mut failure = None;
    let mut each = |name: &[u8], _: Option<FileKind>| {
        if is_reserved(name, path.is_empty()) {
            return ControlFlow::Continue(());
        }
        match dir.entry_metadata(name) {
            Ok(found) if found.kind == FileKind::File => {
                counted.objects += 1;
                counted.bytes = (counted.bytes).saturating_add(counted_bytes(found.size));
            }
            Ok(found) if found.kind == FileKind::Directory => {
                counted.folders += 1;
                counted.bytes = counted.bytes.saturating_add(COUNTED_BYTES_MIN);
                let below = parents::join(path, name);
                if below.len() < Key::BYTES_MAX {
                    paths.push(below);
                }
            }
            Ok(_) => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        report(counted);
        ControlFlow::Continue(())
    };
    let read = dir.read_dir(&mut each);
    match failure.map_or(read, Err) {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(StoreError::from_lookup(error)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
