//! Checksums of content (CRC-64/NVME), and the record of that of an object, which is kept in an
//! extended attribute of its file (`attributes`).
//!
//! The record says of which size and modification time the checksum is. If the file has others,
//! another program has written it, and the checksum says nothing. If it has these and its bytes
//! have another checksum, the bytes are damaged: neither a write nor a copy leaves that.

use crc_fast::{CrcAlgorithm, Digest};
use onrush_rt::crc64;
use onrush_rt::fs::{File, Metadata};
use std::io;
use std::ops::Range;

/// The bytes of a file that are read at a time.
const STEP_BYTES: usize = 256 * 1024;

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
        let state = !self.0;
        let folded = crc64::fold(state, bytes);
        let state = if folded.is_some() { 0 } else { state };
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, state);
        match folded {
            None => digest.update(bytes),
            Some(folded) => {
                digest.update(&folded.bytes);
                digest.update(&bytes[folded.replaced..]);
            }
        }
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
    /// The length of an encoded record.
    pub(crate) const BYTES: usize = 24;

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

    /// Checksum, size and time, the most significant bytes first.
    pub(crate) fn encode(&self) -> [u8; Record::BYTES] {
        let mut bytes = [0; Record::BYTES];
        bytes[..8].copy_from_slice(&self.checksum.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.size.to_be_bytes());
        bytes[16..].copy_from_slice(&self.modified_ns.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Record::BYTES]) -> Record {
        let number = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|index| bytes[at + index]);
            u64::from_be_bytes(bytes)
        };
        Record {
            checksum: Checksum(number(0)),
            size: number(8),
            modified_ns: number(16) as i64,
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

    /// Also where long pieces are folded first.
    #[test]
    fn long_pieces_have_the_checksum_of_the_whole() {
        let content: Vec<u8> = (0..70_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(&content);
        let whole = digest.finalize();
        for piece in [1, 511, 512, 513, 4096, 65_535, 70_000] {
            let mut checksum = Checksum::EMPTY;
            content.chunks(piece).for_each(|piece| checksum.add(piece));
            assert_eq!(checksum.value(), whole, "{piece}");
        }
    }

    #[test]
    fn record_is_decoded() {
        let record = Record {
            checksum: Checksum(u64::MAX - 1),
            size: 1 << 40,
            modified_ns: -7,
        };
        assert_eq!(Record::decode(&record.encode()), record);
    }
}
