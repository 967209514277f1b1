//! Checksums of content (CRC-64/NVME), and the record of that of an object in an extended attribute
//! of its file.
//!
//! The record says of which size and modification time the checksum is. If the file has others,
//! another program has written it, and the checksum says nothing. If it has these and its bytes
//! have another checksum, the bytes are damaged: neither a write nor a copy leaves that.
//!
//! The record is an attribute of its own, beside the metadata: reading an object does not touch it,
//! and both fit into the inode of ext4.

use crc_fast::{CrcAlgorithm, Digest};
use onrush_rt::fs::{File, Metadata};
use std::ffi::CStr;
use std::io;
use std::ops::Range;

/// The extended attribute.
const ATTRIBUTE: &CStr = c"user.onrush.checksum";

/// The bytes of a file that are read at a time.
const STEP_BYTES: usize = 256 * 1024;

/// Begins the record. Another number would be another form.
const FORM: u8 = 1;
/// Form, checksum, size, time.
const RECORD_BYTES: usize = 25;

/// A checksum of bytes as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksum(u64);

impl Checksum {
    /// Of no bytes.
    pub(crate) const EMPTY: Checksum = Checksum(0);

    /// Of bytes whose checksum is known.
    pub(crate) fn from_value(value: u64) -> Checksum {
        Checksum(value)
    }

    /// Adds the bytes that follow.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        // The computation begins and ends with inverted bits.
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, !self.0);
        digest.update(bytes);
        self.0 = digest.finalize();
    }

    /// Adds the bytes of a file at `range`. Fails with `UnexpectedEof` if it is shorter. Blocks.
    pub(crate) fn add_file(&mut self, file: &File, range: Range<u64>) -> io::Result<()> {
        let mut step = vec![0; STEP_BYTES.min((range.end - range.start) as usize)];
        let mut at = range.start;
        while at < range.end {
            let want = step.len().min((range.end - at) as usize);
            match file.read_at(&mut step[..want], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    self.add(&step[..read]);
                    at += read as u64;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// The checksum of the content that a file had at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) checksum: Checksum,
    size: u64,
    modified_ns: i64,
}

impl Record {
    /// For the content that `file` has now.
    pub(crate) fn new(checksum: Checksum, file: &Metadata) -> Record {
        Record {
            checksum,
            size: file.size,
            modified_ns: file.modified_ns,
        }
    }

    /// Whether `file` has not been written since.
    pub(crate) fn is_of(&self, file: &Metadata) -> bool {
        (self.size, self.modified_ns) == (file.size, file.modified_ns)
    }

    /// Sets the record of a file. A sync of the file makes it durable.
    pub(crate) fn write(&self, file: &File) -> io::Result<()> {
        file.set_attribute(ATTRIBUTE, &self.encode())
    }

    /// The record of a file. `None` if it has none, or one of another form. May block.
    pub(crate) fn read(file: &File) -> io::Result<Option<Record>> {
        match file.attribute(ATTRIBUTE, RECORD_BYTES) {
            Ok(bytes) => Ok(bytes.as_deref().and_then(Record::decode)),
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [FORM; RECORD_BYTES];
        bytes[1..9].copy_from_slice(&self.checksum.0.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.size.to_be_bytes());
        bytes[17..].copy_from_slice(&self.modified_ns.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (&form, numbers) = bytes.split_first()?;
        let (numbers, rest) = numbers.as_chunks::<8>();
        match (form, numbers, rest) {
            (FORM, [checksum, size, modified], []) => Some(Record {
                checksum: Checksum(u64::from_be_bytes(*checksum)),
                size: u64::from_be_bytes(*size),
                modified_ns: i64::from_be_bytes(*modified),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the algorithm, from the catalogue of parametrised CRCs.
    #[test]
    fn checksum_does_not_depend_on_the_pieces() {
        for at in 0..=9 {
            let mut checksum = Checksum::EMPTY;
            checksum.add(&b"123456789"[..at]);
            let mut checksum = Checksum::from_value(checksum.value());
            checksum.add(&b"123456789"[at..]);
            assert_eq!(checksum.value(), 0xae8b_1486_0a79_9888);
        }
    }

    #[test]
    fn record_has_one_form() {
        let record = Record {
            checksum: Checksum(u64::MAX - 1),
            size: 1 << 40,
            modified_ns: -7,
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Some(record));
        for bad in [&bytes[..24], &[&bytes[..], &[0]].concat(), &[], &[2; 25]] {
            assert_eq!(Record::decode(bad), None);
        }
    }
}
