//! A disk in memory that logs its writes and flushes, and what a power cut leaves of it.
//!
//! A disk promises that a write is durable only after a flush. Until then it may have written any
//! of the later sectors, in any order. So a power cut leaves all writes before the last flush and a
//! random part of the others.

use crate::random::Random;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a disk writes as a whole, in bytes. Loop devices have sectors of this size.
const SECTOR: usize = 512;
/// The unit of memory of an image, in bytes.
const BLOCK: usize = 4096;
/// The chances, in 8ths, of a write after the last flush to be on the disk. A cut has one of them.
const KEPT_EIGHTHS: [u64; 5] = [0, 1, 4, 7, 8];

/// The content of a disk. What was never written is zero, and takes no memory.
#[derive(Clone, Default)]
pub(crate) struct Image {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (block, from, part) in parts(offset, bytes.len()) {
            let to = &mut bytes[part.clone()];
            match self.blocks.get(&block) {
                Some(found) => to.copy_from_slice(&found[from..from + part.len()]),
                None => to.fill(0),
            }
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (block, from, part) in parts(offset, bytes.len()) {
            let found = self.blocks.entry(block).or_insert_with(|| vec![0; BLOCK]);
            found[from..from + part.len()].copy_from_slice(&bytes[part]);
        }
    }

    /// Writes the image to a sparse file.
    pub(crate) fn save(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(bytes)?;
        for (block, content) in &self.blocks {
            file.write_all_at(content, block * BLOCK as u64)?;
        }
        Ok(())
    }
}

/// The blocks of a range: the number of each, the offset in it, and the part of the range.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let from = (at % BLOCK as u64) as usize;
        let part = done..length.min(done + BLOCK - from);
        done = part.end;
        (!part.is_empty()).then_some((at / BLOCK as u64, from, part))
    })
}

/// What a disk was asked to do.
#[derive(Clone, Debug)]
enum Entry {
    Write { offset: u64, bytes: Vec<u8> },
    Flush,
}

#[derive(Default)]
struct State {
    image: Image,
    log: Vec<Entry>,
}

/// A disk. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// A disk with this content and an empty log.
    pub(crate) fn with(image: Image) -> Disk {
        let log = Vec::new();
        Disk(Arc::new(Mutex::new(State { image, log })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of entries that the log has. An entry below it was complete before this call.
    pub(crate) fn position(&self) -> usize {
        self.lock().log.len()
    }

    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.lock().image.read(offset, bytes);
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.lock();
        state.image.write(offset, bytes);
        let bytes = bytes.to_vec();
        state.log.push(Entry::Write { offset, bytes });
    }

    pub(crate) fn flush(&self) {
        self.lock().log.push(Entry::Flush);
    }

    /// Its log, which begins again. Everything since its creation must be in it.
    pub(crate) fn take_log(&self) -> Log {
        let entries = std::mem::take(&mut self.lock().log);
        Log {
            entries,
            durable: Image::default(),
            applied: 0,
        }
    }
}

/// What a disk was asked to do since it was empty.
pub(crate) struct Log {
    entries: Vec<Entry>,
    /// The disk after the first `applied` entries.
    durable: Image,
    applied: usize,
}

impl Log {
    /// The numbers of writes and flushes.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let is_flush = |entry: &&Entry| matches!(entry, Entry::Flush);
        let flushes = self.entries.iter().filter(is_flush).count();
        (self.entries.len() - flushes, flushes)
    }

    /// The disk after a power cut when it had `at` entries. `at` never decreases.
    pub(crate) fn cut(&mut self, at: usize, random: &mut Random) -> Image {
        let is_flush = |entry: &Entry| matches!(entry, Entry::Flush);
        let flushed = self.entries[..at].iter().rposition(is_flush).unwrap_or(0);
        for entry in &self.entries[self.applied..flushed.max(self.applied)] {
            if let Entry::Write { offset, bytes } = entry {
                self.durable.write(*offset, bytes);
            }
        }
        self.applied = flushed.max(self.applied);
        let mut image = self.durable.clone();
        let kept_eighths = KEPT_EIGHTHS[random.below(KEPT_EIGHTHS.len() as u64) as usize];
        let is_by_sector = random.below(2) == 0;
        for entry in &self.entries[self.applied..at] {
            let Entry::Write { offset, bytes } = entry else {
                continue;
            };
            let unit = if is_by_sector { SECTOR } else { bytes.len() };
            for (number, part) in bytes.chunks(unit.max(1)).enumerate() {
                if random.below(8) < kept_eighths {
                    image.write(offset + (number * unit) as u64, part);
                }
            }
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(image: &Image, offset: u64) -> u8 {
        let mut byte = [0];
        image.read(offset, &mut byte);
        byte[0]
    }

    #[test]
    fn what_is_written_is_read() {
        let mut image = Image::default();
        let bytes: Vec<u8> = (0..10_000).map(|number| (number % 251) as u8).collect();
        image.write(4000, &bytes);
        let mut found = vec![1; 12_000];
        image.read(3000, &mut found);
        assert_eq!(found[..1000], [0; 1000]);
        assert_eq!(found[1000..11_000], bytes);
        assert_eq!(found[11_000..], [0; 1000]);
    }

    #[test]
    fn flushed_writes_survive_and_others_may() {
        let disk = Disk::default();
        disk.write(0, &[1; 512]);
        disk.write(8192, &[1; 1024]);
        disk.flush();
        let flushed = disk.position();
        disk.write(0, &[2; 512]);
        disk.write(8192, &[2; 1024]);
        let mut log = disk.take_log();
        assert_eq!(log.counts(), (4, 1));
        let mut random = Random::new(1);
        let before = log.cut(flushed - 1, &mut random);
        assert!(byte(&before, 0) <= 1);
        let exact = log.cut(flushed, &mut random);
        assert_eq!([byte(&exact, 0), byte(&exact, 8192)], [1, 1]);
        let mut seen = BTreeMap::new();
        for _ in 0..500 {
            let cut = log.cut(flushed + 2, &mut random);
            let found = [0, 8192, 8704].map(|offset| byte(&cut, offset));
            *seen.entry(found).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 8, "each sector is old or new: {seen:?}");
        assert!(seen.keys().flatten().all(|found| [1, 2].contains(found)));
    }
}
