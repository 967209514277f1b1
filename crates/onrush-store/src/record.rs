//! The form of a cached file: content, then a record that says of which object it is, then the
//! length of the record and a checksum of all (CRC-64/NVME).
//!
//! The content is at the beginning, so that it can be sent from the file as it is. The checksum
//! finds a file that a power cut has torn: nothing is synced, so after a restart a file may have
//! its name and its length without all of its bytes.

use crate::checksum::Checksum;
use crate::key::Key;
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta, Version};
use onrush_rt::fs::File;
use std::io;

/// Begins the last bytes of a file. The number is that of the form.
const MAGIC: &[u8; 8] = b"onrush01";
/// The last bytes: magic, length of the record, checksum.
const TAIL_BYTES: usize = 20;
/// The bytes of the numbers in a record, with those of lengths.
const NUMBERS_BYTES: usize = 36;
/// The most bytes of a record.
const RECORD_BYTES_MAX: usize =
    Key::BYTES_MAX + METADATA_BYTES_MAX + Version::BYTES_MAX + NUMBERS_BYTES;
/// A record and the last bytes fit into so many.
const END_BYTES_MAX: u64 = (RECORD_BYTES_MAX + TAIL_BYTES) as u64;

/// What a file has: the properties of an object, and its content or a block of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) meta: Meta,
    pub(crate) metadata: Vec<u8>,
    /// The bytes of content in this file.
    pub(crate) content_bytes: u64,
}

impl Record {
    /// The most bytes of a file with so much content.
    pub(crate) fn file_bytes_max(&self) -> u64 {
        self.content_bytes + (self.encode().len() + TAIL_BYTES) as u64
    }

    /// The most bytes that the record of an object adds to its content.
    pub(crate) fn bytes_max(key: &Key, metadata: &[u8]) -> u64 {
        let texts = key.as_bytes().len() + metadata.len() + Version::BYTES_MAX;
        (texts + NUMBERS_BYTES + TAIL_BYTES) as u64
    }

    fn encode(&self) -> Vec<u8> {
        let (key, version) = (self.key.as_bytes(), self.meta.version.as_bytes());
        let mut bytes = Vec::with_capacity(64 + key.len() + version.len() + self.metadata.len());
        for number in [
            self.content_bytes,
            self.meta.size,
            self.meta.modified_ns as u64,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for part in [key, version, &self.metadata] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Record> {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let (content_bytes, size, modified_ns) = (number()?, number()?, number()? as i64);
        let mut part = || {
            let (len, rest) = bytes.split_first_chunk::<4>()?;
            let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            bytes = rest;
            Some(part)
        };
        let (key, version, metadata) = (part()?, part()?, part()?);
        Some(Record {
            key: Key::parse(key).ok()?,
            meta: Meta {
                kind: Kind::File,
                size,
                modified_ns,
                changed_ns: None,
                version: Version::parse(version)?,
            },
            metadata: metadata.to_vec(),
            content_bytes,
        })
    }

    /// The bytes that follow the content, whose checksum is `content`.
    pub(crate) fn trailer(&self, mut content: Checksum) -> Vec<u8> {
        let mut bytes = self.encode();
        let len = bytes.len() as u32;
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&len.to_le_bytes());
        content.add(&bytes);
        bytes.extend_from_slice(&content.value().to_le_bytes());
        bytes
    }

    /// The record of a file of `size` bytes that ends with `end`.
    fn of_end(size: u64, end: &[u8]) -> Option<Record> {
        let (rest, tail) = end.split_last_chunk::<TAIL_BYTES>()?;
        let len = u32::from_le_bytes([tail[8], tail[9], tail[10], tail[11]]) as usize;
        if tail[..8] != MAGIC[..] || len > rest.len() {
            return None;
        }
        let record = Record::decode(&rest[rest.len() - len..])?;
        let content_bytes = size - (len + TAIL_BYTES) as u64;
        (record.content_bytes == content_bytes).then_some(record)
    }

    /// As [`Record::read`] without verification, but without waiting for a disk. `None` also if
    /// it would wait.
    pub(crate) fn try_read(file: &File) -> Option<Record> {
        let size = file.metadata().ok()?.size;
        let at = size.saturating_sub(END_BYTES_MAX);
        let len = (size - at) as usize;
        let mut end = Vec::with_capacity(len);
        let read = file.try_read_to_vec(&mut end, len, at).ok()?;
        (read == len).then(|| Record::of_end(size, &end))?
    }

    /// Reads the record of a file. `None` if it has none, or if it has not the length that it
    /// should have. With `verifies`, reads the whole file and compares the checksum. Blocks.
    pub(crate) fn read(file: &File, verifies: bool) -> io::Result<Option<Record>> {
        let size = file.metadata()?.size;
        let at = size.saturating_sub(END_BYTES_MAX);
        let mut end = vec![0; (size - at) as usize];
        if read_whole(file, &mut end, at)? < end.len() {
            return Ok(None);
        }
        let record = Record::of_end(size, &end);
        if verifies && record.is_some() {
            let mut checksum = Checksum::EMPTY;
            match checksum.add_file(file, 0..size - 8) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                read => read?,
            }
            if !end.ends_with(&checksum.value().to_le_bytes()) {
                return Ok(None);
            }
        }
        Ok(record)
    }
}

/// Fills `buf`. Returns fewer bytes only at the end of the file.
fn read_whole(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut have = 0;
    while have < buf.len() {
        match file.read_at(&mut buf[have..], offset + have as u64)? {
            0 => break,
            read => have += read,
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_rt::fs::{OpenHow, sim::SimFs};

    fn record(content: &[u8]) -> Record {
        Record {
            key: Key::parse(b"a/b").expect("a key"),
            meta: Meta {
                kind: Kind::File,
                size: content.len() as u64,
                modified_ns: -5,
                changed_ns: None,
                version: Version::parse(b"v1").expect("a version"),
            },
            metadata: b"x".to_vec(),
            content_bytes: content.len() as u64,
        }
    }

    #[test]
    fn every_torn_file_is_found() {
        let root = SimFs::new(1).root().expect("a folder");
        for content in [&b""[..], b"content", &[7; 300_000]] {
            let record = record(content);
            let mut checksum = Checksum::EMPTY;
            checksum.add(content);
            let whole = [content, &record.trailer(checksum)].concat();
            assert_eq!(whole.len() as u64, record.file_bytes_max());
            let bytes_max = Record::bytes_max(&record.key, &record.metadata);
            assert!(whole.len() as u64 <= content.len() as u64 + bytes_max);
            let read = |bytes: &[u8]| {
                let file = root.open(b"f", OpenHow::create_new(0o600)).expect("a file");
                file.write_all_at(bytes, 0).expect("room");
                root.unlink(b"f").expect("removed");
                if let Some(record) = Record::try_read(&file) {
                    assert_eq!(Record::read(&file, false).expect("read"), Some(record));
                }
                (
                    Record::read(&file, true).expect("read"),
                    Record::read(&file, false).expect("read"),
                )
            };
            assert_eq!(read(&whole), (Some(record.clone()), Some(record.clone())));
            let places = [0, 1, whole.len() / 2, whole.len() - 30, whole.len() - 1];
            for at in places {
                assert_eq!(read(&whole[..at]).0, None, "cut at {at}");
                let mut zeros = whole.clone();
                zeros[at..(at + 4096).min(whole.len())].fill(0);
                assert_eq!(read(&zeros).0, None, "zeros at {at}");
                let mut flipped = whole.clone();
                flipped[at] ^= 1;
                assert_eq!(read(&flipped).0, None, "flipped at {at}");
            }
        }
        assert_eq!(
            Record::read(&root.open(b"e", OpenHow::create_new(0)).unwrap(), true).unwrap(),
            None
        );
    }
}
