//! The parts of an upload that arrive in any order. All have the same length, except for the last
//! one, so a part is identified by its position, and one bit says whether it has arrived.

use super::in_base64;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The maximum number of parts of an upload. It limits the size of its record.
const COUNT_MAX: u64 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::files) struct Parts {
    /// The length of the object in bytes.
    length: u64,
    /// The length of a part in bytes.
    part_bytes: u64,
    /// A bit for each part, the lowest bit of the first byte first.
    #[serde(with = "in_base64")]
    arrived: Vec<u8>,
}

impl Parts {
    /// The parts of an object of `length` bytes. `None` if there are too many, or none.
    pub(in crate::files) fn new(length: u64, part_bytes: u64) -> Option<Parts> {
        let count = length.checked_next_multiple_of(part_bytes)? / part_bytes;
        let bytes = usize::try_from(count.div_ceil(8)).ok()?;
        (1..=COUNT_MAX).contains(&count).then(|| Parts {
            length,
            part_bytes,
            arrived: vec![0; bytes],
        })
    }

    /// The part that begins at `offset`.
    pub(in crate::files) fn at(&self, offset: u64) -> Option<Range<u64>> {
        let is_part = offset < self.length && offset.is_multiple_of(self.part_bytes);
        is_part.then(|| offset..self.length.min(offset.saturating_add(self.part_bytes)))
    }

    /// The byte and the bit of the part that contains `offset`, which is less than the length.
    fn bit(&self, offset: u64) -> (usize, u8) {
        let number = (offset / self.part_bytes) as usize; // At most COUNT_MAX.
        (number / 8, 1 << (number % 8))
    }

    /// Whether the part that begins at `offset` has arrived.
    pub(in crate::files) fn contains(&self, offset: u64) -> bool {
        let (byte, bit) = self.bit(offset);
        self.arrived.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    pub(super) fn insert(&mut self, offset: u64) {
        let (byte, bit) = self.bit(offset);
        if let Some(bits) = self.arrived.get_mut(byte) {
            *bits |= bit;
        }
    }

    /// The number of bytes up to the first part that is missing.
    pub(super) fn offset(&self) -> u64 {
        let mut offset = 0;
        while let Some(part) = self.at(offset).filter(|_| self.contains(offset)) {
            offset = part.end;
        }
        offset
    }

    /// The number of bytes of the parts that have arrived.
    pub(super) fn arrived_bytes(&self) -> u64 {
        let ones: u64 = (self.arrived.iter())
            .map(|bits| u64::from(bits.count_ones()))
            .sum();
        // The last part may be shorter than the others.
        let last = (self.length - 1) / self.part_bytes * self.part_bytes;
        let missing = match self.contains(last) {
            true => self.part_bytes - (self.length - last),
            false => 0,
        };
        ones.saturating_mul(self.part_bytes).saturating_sub(missing)
    }

    pub(in crate::files) fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    /// The bits as a Byte Sequence (RFC 9651 §3.3.5).
    pub(in crate::files) fn arrived(&self) -> String {
        format!(":{}:", STANDARD.encode(&self.arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_arrive_in_any_order() {
        let mut parts = Parts::new(25, 10).expect("three parts");
        assert_eq!(
            (parts.at(20), parts.at(25), parts.at(5)),
            (Some(20..25), None, None)
        );
        for (arrived, offset, bits) in [(20, 0, ":BA==:"), (0, 10, ":BQ==:"), (10, 25, ":Bw==:")] {
            assert!(!parts.contains(arrived));
            parts.insert(arrived);
            assert!(parts.contains(arrived));
            assert_eq!((parts.offset(), &parts.arrived()[..]), (offset, bits));
        }
        assert_eq!(parts.arrived_bytes(), 25);
        let mut parts = Parts::new(25, 10).expect("three parts");
        for (offset, bytes) in [(20, 5), (0, 15), (10, 25)] {
            parts.insert(offset);
            assert_eq!(parts.arrived_bytes(), bytes);
        }
    }

    #[test]
    fn the_number_of_parts_is_limited() {
        for (length, part_bytes, expected) in [
            (0, 1, false),
            (1, 1, true),
            (1, u64::MAX, true),
            (u64::MAX, u64::MAX, true),
            (u64::MAX, u64::MAX - 1, false), // The end of the last part is no number.
            (10_000, 1, true),
            (10_001, 1, false),
            (10_001, 2, true),
        ] {
            let found = Parts::new(length, part_bytes);
            assert_eq!(found.is_some(), expected, "{length} {part_bytes}");
        }
        let mut whole = Parts::new(10_000, 1).expect("parts");
        (0..10_000).for_each(|offset| whole.insert(offset));
        assert_eq!(whole.offset(), 10_000);
    }
}
