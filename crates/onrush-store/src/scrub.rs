//! Verifying the checksums of a folder on the disk, file by file.
//!
//! It reads the files beside a server: what is replaced or deleted meanwhile is no damage. It works
//! on the calling thread, which decides the pace.

use crate::attributes;
use crate::checksum::Checksum;
use crate::error::Cause;
use crate::key::is_reserved;
use onrush_rt::fs::{Dir, File, FileKind, Metadata, OpenHow};
use std::io;
use std::ops::ControlFlow;

/// The bytes that are read at a time.
const STEP_BYTES: usize = 256 * 1024;

/// The number of attempts when a file is written while it is read.
const ATTEMPTS: usize = 3;

/// What the checksum of a file says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The bytes are those that were stored.
    Intact,
    /// The bytes are not those that were stored, though no program has written the file since. With
    /// the stored checksum (CRC-64/NVME) and that of the bytes.
    Damaged(u64, u64),
    /// Another program has written the file since it was stored, so it cannot be verified.
    Changed,
    /// It has no checksum: another program has made it, or checksums were off.
    NoChecksum,
    /// It cannot be read.
    Unreadable(Cause),
    /// It has been deleted or replaced by something that is no object.
    Gone,
}

/// Callback of [`Scrub::files`]: a path, and whether its folder could be read; `Break` ends it.
pub type EachFile<'a> = dyn FnMut(&[u8], io::Result<()>) -> ControlFlow<()> + 'a;

/// Verifies the files beneath a folder. The store's own files do not count, nor do symbolic links.
#[derive(Debug)]
pub struct Scrub {
    root: Dir,
}

impl Scrub {
    /// For the folder `root`.
    pub fn new(root: Dir) -> Scrub {
        Scrub { root }
    }

    /// Calls `each` with the path of every file, ordered by their names in each folder, or of every
    /// folder that cannot be read, with the error. Files that are created meanwhile may be missing.
    /// Ends early on `Break`. Blocks.
    pub fn files(&self, each: &mut EachFile<'_>) {
        let mut folders = vec![Vec::new()];
        while let Some(folder) = folders.pop() {
            let entries = match self.entries(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => match each(&folder, Err(error)) {
                    ControlFlow::Continue(()) => continue,
                    ControlFlow::Break(()) => return,
                },
            };
            let mut inner = Vec::new();
            for (name, kind) in entries {
                if is_reserved(&name, folder.is_empty()) {
                    continue;
                }
                let path = match folder.is_empty() {
                    true => name,
                    false => [&folder[..], b"/", &name].concat(),
                };
                match kind {
                    FileKind::Directory => inner.push(path),
                    FileKind::File if each(&path, Ok(())).is_break() => return,
                    _ => {}
                }
            }
            folders.extend(inner.into_iter().rev());
        }
    }

    /// The entries of a folder, ordered by name.
    fn entries(&self, folder: &[u8]) -> io::Result<Vec<(Vec<u8>, FileKind)>> {
        let dir = match folder {
            b"" => self.root.open_dir(b".")?,
            path => self.root.open_dir(path)?,
        };
        let mut entries = Vec::new();
        dir.read_dir(&mut |name, kind| {
            let kind = kind.or_else(|| dir.entry_metadata(name).ok().map(|found| found.kind));
            entries.extend(kind.map(|kind| (name.to_vec(), kind)));
            ControlFlow::Continue(())
        })?;
        entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        Ok(entries)
    }

    /// The size in bytes of the file at `path`; 0 if it is gone.
    pub fn size(&self, path: &[u8]) -> u64 {
        self.root.metadata(path).map_or(0, |found| found.size)
    }

    /// Reads the file at `path` from the disk and compares its checksum. Calls `pace` after each
    /// step with the number of bytes that were read. Blocks.
    pub fn verify(&self, path: &[u8], pace: &mut dyn FnMut(u64)) -> Finding {
        let verified = (self.root.open(path, OpenHow::READ)).and_then(|file| verify(&file, pace));
        match verified {
            Ok(finding) => finding,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Finding::Gone,
            Err(error) => Finding::Unreadable(Cause::from(&error)),
        }
    }
}

fn verify(file: &File, pace: &mut dyn FnMut(u64)) -> io::Result<Finding> {
    for _ in 0..ATTEMPTS {
        let found = file.metadata()?;
        if found.kind != FileKind::File {
            return Ok(Finding::Gone);
        }
        let Some(record) = attributes::read_record(file)? else {
            return Ok(Finding::NoChecksum);
        };
        if !record.is_of(&found) {
            return Ok(Finding::Changed);
        }
        let checksum = read_all(file, &found, pace)?;
        if checksum == record.checksum {
            return Ok(Finding::Intact);
        }
        if record.is_of(&file.metadata()?) && attributes::read_record(file)? == Some(record) {
            let (stored, read) = (record.checksum.value(), checksum.value());
            return Ok(Finding::Damaged(stored, read));
        }
    }
    Ok(Finding::Changed)
}

/// The checksum of the bytes on the disk. What was not in the page cache does not stay there.
fn read_all(file: &File, found: &Metadata, pace: &mut dyn FnMut(u64)) -> io::Result<Checksum> {
    let was_cached = found.size > 0 && file.is_resident(0, found.size);
    file.advise_unneeded();
    file.advise_sequential();
    let mut checksum = Checksum::EMPTY;
    let mut step = vec![0; STEP_BYTES.min(found.size as usize)];
    let mut at = 0;
    while at < found.size {
        match file.read_at(&mut step, at)? {
            0 => break, // It has become shorter.
            read => {
                checksum.add(&step[..read]);
                at += read as u64;
                pace(read as u64);
            }
        }
    }
    if !was_cached {
        file.advise_unneeded();
    }
    Ok(checksum)
}
