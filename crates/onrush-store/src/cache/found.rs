//! What a scan has found before it is complete: files in no order, of which the oldest are removed
//! if a new file needs their space.

use super::list::Listed;
use super::name::Name;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// The part of what was found that may be removed before everything is found: the oldest quarter of
/// a part is old in the whole, too, because names are hashes.
const REMOVED_DIVISOR: u64 = 4;

/// Files, the oldest first: the time of the last use, the name and the space.
#[derive(Debug, Default)]
pub(super) struct ByAge(BinaryHeap<Reverse<(i64, Name, u64)>>);

impl ByAge {
    /// The most recently used file first. This takes a while for a million files.
    pub(super) fn sort(self) -> Vec<Listed> {
        let listed = |Reverse((used_ms, name, bytes))| (name, used_ms, bytes);
        self.0.into_sorted_vec().into_iter().map(listed).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct FoundFiles {
    files: ByAge,
    found_bytes: u64,
    removed_bytes: u64,
    /// The names that were removed since the scan began, by anyone.
    removed: HashSet<Name>,
    /// The names that new files are about to get. To remove the old file could remove the new one.
    held: HashSet<Name>,
}

impl FoundFiles {
    /// Forgets the files: a scan begins again.
    pub(super) fn clear(&mut self) {
        self.files.0.clear();
        (self.found_bytes, self.removed_bytes) = (0, 0);
    }

    pub(super) fn add(&mut self, files: impl Iterator<Item = Listed>) {
        for (name, used_ms, bytes) in files {
            self.found_bytes += bytes;
            self.files.0.push(Reverse((used_ms, name, bytes)));
        }
    }

    /// Takes all files.
    pub(super) fn take(&mut self) -> ByAge {
        std::mem::take(&mut self.files)
    }

    /// The most that [`FoundFiles::evict`] frees, in bytes.
    pub(super) fn evictable_bytes(&self) -> u64 {
        (self.found_bytes / REMOVED_DIVISOR).saturating_sub(self.removed_bytes)
    }

    /// Removes the oldest files, until they have `bytes` bytes. Leaves out those that are `known`
    /// to the index. Removes none if too few files were found.
    pub(super) fn evict(&mut self, bytes: u64, known: impl Fn(&Name) -> bool) -> Vec<Listed> {
        let (mut freed, mut victims) = (0, Vec::new());
        while freed < bytes
            && let Some(&Reverse((used_ms, name, own))) = self.files.0.peek()
        {
            if known(&name) || self.removed.contains(&name) {
                self.files.0.pop();
                continue;
            }
            let is_too_much = self.removed_bytes + own > self.found_bytes / REMOVED_DIVISOR;
            if is_too_much || self.held.contains(&name) {
                break;
            }
            self.files.0.pop();
            self.remove(name);
            self.removed_bytes += own;
            freed += own;
            victims.push((name, used_ms, own));
        }
        victims
    }

    /// A file is removed now. The scan may have found it, or find it later.
    pub(super) fn remove(&mut self, name: Name) {
        self.removed.insert(name);
    }

    /// A file that was to be removed is still there.
    pub(super) fn keep(&mut self, name: &Name) {
        self.removed.remove(name);
    }

    /// From now on a file of this name is not evicted.
    pub(super) fn hold(&mut self, name: Name) {
        self.held.insert(name);
    }

    pub(super) fn release(&mut self, name: &Name) {
        self.held.remove(name);
    }

    pub(super) fn is_removed(&self, name: &Name) -> bool {
        self.removed.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u8) -> Name {
        Name::of(&[&[number]])
    }

    /// The file of this number, which has 10 bytes and was used at this time.
    fn file(number: u8) -> Listed {
        (name(number), i64::from(number), 10)
    }

    #[test]
    fn the_oldest_of_what_was_found_is_evicted_and_a_quarter_at_most() {
        let mut found = FoundFiles::default();
        assert_eq!(found.evict(1, |_| false), []);
        found.add([5, 1, 3].map(file).into_iter());
        assert_eq!(found.evict(1, |_| false), [], "10 of 30 bytes");
        found.add([4, 2, 0, 6, 7].map(file).into_iter());
        found.remove(name(1));
        let known = |known: &Name| *known == name(0);
        assert_eq!(found.evictable_bytes(), 20);
        assert_eq!(found.evict(1, known), [file(2)]);
        assert_eq!(found.evictable_bytes(), 10);
        assert_eq!(found.evict(20, known), [file(3)], "a quarter of 80 bytes");
        assert_eq!(found.take().sort(), [7, 6, 5, 4].map(file));
        assert!(found.is_removed(&name(3)) && !found.is_removed(&name(4)));
        found.clear();
        found.add([8, 9, 10, 11].map(file).into_iter());
        found.hold(name(8));
        assert_eq!(
            found.evict(100, known),
            [],
            "a new file is about to have its name"
        );
        found.release(&name(8));
        assert_eq!(found.evict(100, known), [file(8)]);
    }
}
