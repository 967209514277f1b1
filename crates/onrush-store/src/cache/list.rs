//! The list of files that a process leaves for the next one, which then need not look at each file.
//!
//! It is valid if no program has added a file since: a process removes the list before it stores
//! anything, and the list has the modification times of the folders. Files that others have removed
//! since are a part of the folder's time, too.
//!
//! ```text
//! magic (8 bytes) · times of the 256 folders in ns (8 each; -1: absent) · for each file its name
//! (16), the time of its last use in ms (8) and its space (8) · CRC-64/NVME of all before (8)
//! ```

use super::name::Name;
use crate::checksum::Checksum;
use onrush_rt::fs::{Dir, OpenHow};
use std::io;

const FILE: &[u8] = b"onrush-files";
const FILE_MODE: u32 = 0o600;
const MAGIC: &[u8; 8] = b"onrushf1";
const ENTRY_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 8;
/// The bytes before the first file.
const HEAD_BYTES: usize = 8 + 256 * 8;
const ABSENT: i64 = -1;

/// A file: its name, the time of its last use in milliseconds since 1970, and its space in bytes.
pub(super) type Listed = (Name, i64, u64);

/// Writes the list. No file may be added afterwards.
pub(super) fn save(root: &Dir, files: &[Listed]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + files.len() * ENTRY_BYTES + CHECKSUM_BYTES);
    bytes.extend_from_slice(&head(root)?);
    for (name, used_ms, space_bytes) in files {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&used_ms.to_le_bytes());
        bytes.extend_from_slice(&space_bytes.to_le_bytes());
    }
    bytes.extend_from_slice(&checksum(&bytes));
    let file = root.open(FILE, OpenHow::create_new(FILE_MODE))?;
    let written = file.write_all_at(&bytes, 0).and_then(|()| file.sync());
    written.inspect_err(|_| {
        let _ = root.unlink(FILE); // If this fails, it has no valid checksum.
    })
}

/// Removes the list, and returns it if it is valid. After an error it may still be there, so
/// nothing may be stored.
pub(super) fn take(root: &Dir) -> io::Result<Option<Vec<Listed>>> {
    let file = match root.open(FILE, OpenHow::READ) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let bytes = read(&file);
    root.unlink(FILE)?;
    root.sync()?; // It must not return after a power cut.
    let head = head(root)?;
    Ok(bytes.ok().and_then(|bytes| decode(&bytes, &head)))
}

fn read(file: &onrush_rt::fs::File) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.size as usize;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let left = size - bytes.len();
        if file.read_to_vec(&mut bytes, left, (size - left) as u64)? == 0 {
            break;
        }
    }
    Ok(bytes)
}

fn head(root: &Dir) -> io::Result<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    for number in 0..=u8::MAX {
        let modified_ns = match root.entry_metadata(&Name::folder(number)) {
            Ok(found) => found.modified_ns,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ABSENT,
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(&modified_ns.to_le_bytes());
    }
    Ok(bytes)
}

fn decode(bytes: &[u8], head: &[u8]) -> Option<Vec<Listed>> {
    let end = bytes.len().checked_sub(CHECKSUM_BYTES)?;
    let (content, sum) = bytes.split_at(end);
    let entries = content.strip_prefix(head)?.chunks_exact(ENTRY_BYTES);
    if sum != checksum(content) || !entries.remainder().is_empty() {
        return None;
    }
    let entry = |entry: &[u8]| {
        let (name, rest) = entry.split_first_chunk()?;
        let (used_ms, rest) = rest.split_first_chunk()?;
        let (space_bytes, _) = rest.split_first_chunk()?;
        let name = Name::from_bytes(*name);
        Some((
            name,
            i64::from_le_bytes(*used_ms),
            u64::from_le_bytes(*space_bytes),
        ))
    };
    entries.map(entry).collect()
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut checksum = Checksum::EMPTY;
    checksum.add(bytes);
    checksum.value().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_rt::fs::sim::SimFs;

    fn folder() -> Dir {
        let root = SimFs::new(1).root().expect("a folder");
        root.create_dir(b"ab", 0o700).expect("a folder");
        root
    }

    fn listed() -> Vec<Listed> {
        let file = |number: u8| (Name::of(&[&[number]]), i64::from(number) - 1, 4096);
        (0..3).map(file).collect()
    }

    #[test]
    fn a_list_is_taken_once() {
        let root = folder();
        assert_eq!(take(&root).expect("no error"), None);
        for files in [Vec::new(), listed()] {
            save(&root, &files).expect("a list");
            assert_eq!(take(&root).expect("no error"), Some(files));
            assert_eq!(take(&root).expect("no error"), None);
        }
    }

    #[test]
    fn a_damaged_or_old_list_is_not_used() {
        let root = folder();
        save(&root, &listed()).expect("a list");
        let file = root.open(FILE, OpenHow::READ).expect("a file");
        let whole = read(&file).expect("readable");
        for at in [0, 7, 100, HEAD_BYTES + 3, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, &head(&root).expect("a head")), None, "{at}");
        }
        for end in [0, 7, HEAD_BYTES, whole.len() - 1, whole.len() - ENTRY_BYTES] {
            assert_eq!(decode(&whole[..end], &head(&root).expect("a head")), None);
        }
        // Another program adds a folder.
        root.create_dir(b"ff", 0o700).expect("a folder");
        assert_eq!(take(&root).expect("no error"), None);
    }
}
