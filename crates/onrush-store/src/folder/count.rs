//! Counts the bytes of all objects in a folder.

use super::Inner;
use crate::error::{Result, StoreError};
use crate::key::{Key, is_reserved};
use onrush_rt::fs::{Dir, FileKind};
use std::io;
use std::ops::ControlFlow;

/// The sum of the sizes of all regular files beneath a folder (`None`: the top folder), without
/// what is reserved for the store. 0 if there is no such folder. Symbolic links do not count.
pub(super) fn count_bytes(inner: &Inner, folder: Option<&Key>) -> Result<u64> {
    let mut bytes = 0u64;
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
        bytes = bytes.saturating_add(count_entries(dir, &path, &mut paths)?);
    }
    Ok(bytes)
}

/// The sum of the sizes of the files in a folder. Adds the paths of its folders to `paths`.
fn count_entries(dir: &Dir, path: &[u8], paths: &mut Vec<Vec<u8>>) -> Result<u64> {
    let (mut bytes, mut failure) = (0u64, None);
    let mut each = |name: &[u8], _: Option<FileKind>| {
        if is_reserved(name, path.is_empty()) {
            return ControlFlow::Continue(());
        }
        match dir.entry_metadata(name) {
            Ok(found) if found.kind == FileKind::File => {
                bytes = bytes.saturating_add(found.size);
            }
            Ok(found) if found.kind == FileKind::Directory => {
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
        ControlFlow::Continue(())
    };
    let read = dir.read_dir(&mut each);
    match failure.map_or(read, Err) {
        Ok(()) => Ok(bytes),
        Err(error) if is_gone(&error) => Ok(bytes),
        Err(error) => Err(StoreError::from_lookup(error)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
