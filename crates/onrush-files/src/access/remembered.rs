//! Credentials that were verified a short time ago, so that a request costs no password hash.
//!
//! A value of `Authorization` is remembered as a keyed digest (SipHash-2-4 with 128 bits, by a
//! random key of this process). The memory of this table shows no password, and without the key no
//! other value with the same digest can be found.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// How long credentials are remembered.
pub(crate) const REMEMBERED_MS: u64 = 5 * 60 * 1000;

/// The maximum number of credentials in a table.
const ENTRIES_MAX: usize = 4096;

/// The keyed digest of a value of `Authorization`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tag(u128);

/// The key of the digests.
#[derive(Clone)]
pub(crate) struct TagKey(SipHasher24);

impl TagKey {
    /// A random key.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub(crate) fn random() -> TagKey {
        let mut key = [0; 16];
        aws_lc_rs::rand::fill(&mut key).expect("the system has random numbers");
        TagKey(SipHasher24::new_with_key(&key))
    }

    pub(crate) fn tag(&self, value: &[u8]) -> Tag {
        let mut hasher = self.0;
        hasher.write(value);
        Tag(hasher.finish128().as_u128())
    }
}

/// Uses a part of the tag, which is random already.
#[derive(Default)]
pub(crate) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_ne_bytes(eight);
        }
    }

    fn write_u128(&mut self, tag: u128) {
        self.0 = tag as u64;
    }
}

/// Values by tag, each for [`REMEMBERED_MS`].
pub(crate) struct Remembered<T> {
    entries: HashMap<Tag, RememberedEntry<T>, BuildHasherDefault<TagHasher>>,
}

struct RememberedEntry<T> {
    value: T,
    until_ms: u64,
}

impl<T> Default for Remembered<T> {
    fn default() -> Remembered<T> {
        Remembered {
            entries: HashMap::default(),
        }
    }
}

impl<T> Remembered<T> {
    /// The value of a tag and the time until which it is remembered. Times are those of the
    /// monotonic clock of the workers.
    pub(crate) fn get(&self, tag: Tag, now_ms: u64) -> Option<(&T, u64)> {
        let entry = self.entries.get(&tag)?;
        (now_ms < entry.until_ms).then_some((&entry.value, entry.until_ms))
    }

    /// Remembers a value until the time `until_ms`.
    pub(crate) fn insert(&mut self, tag: Tag, value: T, now_ms: u64, until_ms: u64) {
        if self.entries.len() >= ENTRIES_MAX {
            self.entries.retain(|_, entry| now_ms < entry.until_ms);
        }
        if self.entries.len() >= ENTRIES_MAX {
            // All are valid credentials. Those that are dropped are verified again.
            self.entries.clear();
        }
        self.entries
            .insert(tag, RememberedEntry { value, until_ms });
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_remembered_for_a_time_and_in_bounded_number() {
        let key = TagKey::random();
        let mut table = Remembered::default();
        let tag = |number: usize| key.tag(format!("Basic {number}").as_bytes());
        table.insert(tag(0), 'a', 0, REMEMBERED_MS);
        assert_eq!(
            table.get(tag(0), REMEMBERED_MS - 1),
            Some((&'a', REMEMBERED_MS))
        );
        assert_eq!(table.get(tag(0), REMEMBERED_MS), None);
        assert_eq!(table.get(tag(1), 0), None);
        for number in 1..2 * ENTRIES_MAX {
            table.insert(tag(number), 'b', 0, REMEMBERED_MS);
            assert!(table.entries.len() <= ENTRIES_MAX);
            assert!(table.get(tag(number), 0).is_some());
        }
        assert!(TagKey::random().tag(b"x") != TagKey::random().tag(b"x"));
    }
}
