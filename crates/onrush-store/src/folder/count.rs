//! Counts what the objects and folders in a folder count for a quota.

use super::{Folder, Inner};
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
        self.count_with(folder, &mut |_| {})
    }

    /// As [`Folder::count_bytes`]. Calls `progress` with the numbers so far, now and then.
    pub(crate) fn count_with(
        &self,
        folder: Option<&Key>,
        progress: &mut dyn FnMut(Counted),
    ) -> Result<u64> {
        count(&self.inner, folder, progress).map(|counted| counted.bytes)
    }
}

/// Counts all regular files and folders beneath a folder (`None`: the top folder), without what is
/// reserved for the store; nothing if there is no such folder. Symbolic links do not count.
/// `progress` gets the numbers so far, now and then.
fn count(
    inner: &Inner,
    folder: Option<&Key>,
    progress: &mut dyn FnMut(Counted),
) -> Result<Counted> {
    let (mut counted, mut reported) = (Counted::default(), 0);
    let mut paths = vec![folder.map_or(Vec::new(), |folder| folder.as_bytes().to_vec())];
    while let Some(path) = paths.pop() {
        let opened;
        let dir = match path.is_empty() {
            true => &*inner.root,
            false => match inner.root.open_dir(&path) {
                Ok(dir) => {
                    opened = dir;
                    &opened
                }
                // It is gone, or is none.
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(StoreError::from_lookup(error)),
            },
        };
        let mut report = |counted: &Counted| {
            if counted.names() - reported >= NAMES_PER_STEP {
                reported = counted.names();
                progress(*counted);
            }
        };
        count_entries(dir, &path, &mut paths, &mut counted, &mut report)?;
    }
    Ok(counted)
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
                let separator = if path.is_empty() { &b""[..] } else { b"/" };
                let below = [path, separator, name].concat();
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
