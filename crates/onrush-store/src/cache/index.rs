//! What is in the cache: the name, the space and the last use of each file. It is a structure in
//! memory and knows no disk.

use super::found::FoundFiles;
use super::list::Listed;
use super::name::Name;
use super::space::Charge;
use lru::LruCache;
use std::collections::HashSet;
use std::sync::Arc;

/// The time of the last use is written to the disk again when it is older than this.
const STAMP_AFTER_MS: i64 = 60_000;

#[derive(Debug)]
pub(super) struct Index {
    entries: LruCache<Name, IndexEntry>,
    /// Used entries whose time is to be written to the disk.
    stamps: Vec<Name>,
    /// What the scan has found; `None` when the index is complete.
    found: Option<FoundFiles>,
    /// The names of evicted files that are still on the disk.
    evicted: HashSet<Name>,
    /// A thread removes files until there is room.
    pub(super) is_making_room: bool,
}

#[derive(Debug)]
struct IndexEntry {
    charge: Arc<Charge>,
    /// Written by this process, or found to be whole.
    is_trusted: bool,
    used_ms: i64,
    /// The time that the disk is to have, and the one that it has.
    stamp_ms: i64,
    stamped_ms: i64,
}

/// An entry that was found.
pub(super) struct FoundCopy {
    pub(super) charge: Arc<Charge>,
    pub(super) is_trusted: bool,
}

impl Index {
    /// An empty index that is not complete.
    pub(super) fn new() -> Index {
        Index {
            entries: LruCache::unbounded(),
            stamps: Vec::new(),
            found: Some(FoundFiles::default()),
            evicted: HashSet::new(),
            is_making_room: false,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.found.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, name: &Name) -> bool {
        self.entries.contains(name)
    }

    /// The entry, which is the most recently used one from now on.
    pub(super) fn get(&mut self, name: &Name, now_ms: i64) -> Option<FoundCopy> {
        let entry = self.entries.get_mut(name)?;
        entry.used_ms = now_ms;
        Some(FoundCopy {
            charge: entry.charge.clone(),
            is_trusted: entry.is_trusted,
        })
    }

    /// Has the time of a use written to the disk, soon if the disk has a much older one.
    pub(super) fn stamp(&mut self, name: &Name, now_ms: i64) {
        let Some(entry) = self.entries.peek_mut(name) else {
            return;
        };
        entry.stamp_ms = now_ms;
        if now_ms.saturating_sub(entry.stamped_ms) >= STAMP_AFTER_MS {
            entry.stamped_ms = now_ms;
            self.stamps.push(*name);
        }
    }

    /// As [`Index::get`] and [`Index::stamp`] for a part of `whole`, which is used with it: the
    /// whole is removed after its parts, also in the order that the disk has.
    pub(super) fn stamp_part(&mut self, name: &Name, whole: &Name, now_ms: i64) {
        self.get(name, now_ms);
        self.get(whole, now_ms);
        let Some(&IndexEntry { stamp_ms, .. }) = self.entries.peek(whole) else {
            return;
        };
        let due = self.stamps.len();
        self.stamp(name, stamp_ms - 1);
        if self.stamps.len() > due
            && let Some(entry) = self.entries.peek_mut(whole)
            && entry.stamped_ms < stamp_ms
        {
            entry.stamped_ms = stamp_ms;
            self.stamps.insert(due, *whole);
        }
    }

    /// The time that the disk is to have for a new part of `whole`.
    pub(super) fn part_ms(&self, whole: &Name) -> Option<i64> {
        Some(self.entries.peek(whole)?.stamped_ms - 1)
    }

    /// The names whose time is to be written to the disk soon, with that time; or with `all` those
    /// whose time on the disk is not the right one.
    pub(super) fn take_stamps(&mut self, all: bool) -> Vec<(Name, i64)> {
        let names = std::mem::take(&mut self.stamps);
        let mut stamps: Vec<(Name, i64)> = (names.into_iter())
            .filter_map(|name| Some((name, self.entries.peek(&name)?.stamped_ms)))
            .collect();
        if all {
            for (name, entry) in self.entries.iter_mut() {
                if entry.stamp_ms > entry.stamped_ms {
                    entry.stamped_ms = entry.stamp_ms;
                    stamps.push((*name, entry.stamp_ms));
                }
            }
        }
        stamps
    }

    /// All entries, with the times of their uses that the disk has.
    pub(super) fn list(&self) -> Vec<Listed> {
        let listed =
            |(name, entry): (&Name, &IndexEntry)| (*name, entry.stamped_ms, entry.charge.bytes());
        self.entries.iter().map(listed).collect()
    }

    /// Adds or replaces an entry, as the most recently used one. `used_ms`: the time that the disk
    /// has.
    pub(super) fn insert(
        &mut self,
        name: Name,
        charge: Arc<Charge>,
        is_trusted: bool,
        used_ms: i64,
    ) {
        let entry = IndexEntry {
            charge,
            is_trusted,
            used_ms,
            stamp_ms: used_ms,
            stamped_ms: used_ms,
        };
        self.entries.put(name, entry);
    }

    /// What the scan has found so far; `None` if the index is complete.
    pub(super) fn found(&mut self) -> Option<&mut FoundFiles> {
        self.found.as_mut()
    }

    /// Adds what the scan has found, beginning with the most recently used, behind all entries.
    /// Files that have entries or were removed meanwhile are left out. `find` accounts for the
    /// space of the others.
    pub(super) fn append(&mut self, files: &[Listed], find: impl Fn(u64) -> Arc<Charge>) {
        for &(name, used_ms, bytes) in files {
            if self.is_removed(&name) || self.entries.contains(&name) {
                continue;
            }
            let entry = IndexEntry {
                charge: find(bytes),
                is_trusted: false,
                used_ms,
                stamp_ms: used_ms,
                stamped_ms: used_ms,
            };
            self.entries.put(name, entry);
            self.entries.demote(&name);
        }
    }

    /// Whether a file was removed since the scan began, and the scan is not complete.
    pub(super) fn is_removed(&self, name: &Name) -> bool {
        (self.found.as_ref()).is_some_and(|found| found.is_removed(name))
    }

    /// All files are gone.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.stamps.clear();
        if let Some(found) = &mut self.found {
            found.clear();
        }
    }

    /// All files were scanned.
    pub(super) fn complete(&mut self) {
        self.found = None;
    }

    pub(super) fn trust(&mut self, name: &Name) {
        if let Some(entry) = self.entries.peek_mut(name) {
            entry.is_trusted = true;
        }
    }

    /// Removes an entry. Returns its space.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Arc<Charge>> {
        if let Some(found) = &mut self.found {
            found.remove(*name);
        }
        Some(self.entries.pop(name)?.charge)
    }

    /// The file of an entry that was `removed` cannot be removed from the disk.
    pub(super) fn keep(&mut self, name: &Name, removed: Option<Arc<Charge>>, now_ms: i64) {
        if let Some(found) = &mut self.found {
            found.keep(name);
        }
        if let Some(charge) = removed.filter(|_| !self.entries.contains(name)) {
            self.insert(*name, charge, false, now_ms);
        }
    }

    /// A new file is about to get this name: until [`Index::release`], the scan's file of the name
    /// is not evicted.
    pub(super) fn hold(&mut self, name: &Name) {
        if let Some(found) = &mut self.found {
            found.hold(*name);
        }
    }

    /// The new file has an entry, or did not get the name.
    pub(super) fn release(&mut self, name: &Name) {
        if let Some(found) = &mut self.found {
            found.release(name);
        }
    }

    /// Removes an entry that was `found`, unless another one has replaced it.
    pub(super) fn remove_found(&mut self, name: &Name, found: Option<&FoundCopy>) {
        let is_found = |entry: &IndexEntry| {
            found.is_some_and(|found| Arc::ptr_eq(&found.charge, &entry.charge))
        };
        if self.entries.peek(name).is_none_or(is_found) {
            self.remove(name);
        }
    }

    /// The space of an entry. While the caller has it, the entry is not evicted.
    pub(super) fn charge(&self, name: &Name) -> Option<Arc<Charge>> {
        Some(self.entries.peek(name)?.charge.clone())
    }

    /// Whether the file of an evicted entry is still on the disk.
    pub(super) fn is_evicted(&self, name: &Name) -> bool {
        self.evicted.contains(name)
    }

    /// Whether files of evicted entries are still on the disk.
    pub(super) fn is_evicting(&self) -> bool {
        !self.evicted.is_empty()
    }

    /// The file of an evicted entry was removed, or it cannot be removed.
    pub(super) fn end_eviction(&mut self, name: &Name) {
        self.evicted.remove(name);
    }

    /// Whether [`Index::evict`] may free `bytes` bytes, as far as is known without removing a file.
    pub(super) fn can_evict(&self, bytes: u64) -> bool {
        if let Some(found) = &self.found {
            return bytes <= found.evictable_bytes();
        }
        let mut left = bytes;
        let mut idle =
            (self.entries.iter().rev()).filter(|(_, entry)| Arc::strong_count(&entry.charge) == 1);
        while left > 0
            && let Some((_, entry)) = idle.next()
        {
            left = left.saturating_sub(entry.charge.bytes());
        }
        left == 0
    }

    /// Removes the least recently used entries that no reader has open, until they have `bytes`
    /// bytes. The caller removes their files, ends the eviction of each, and drops the space.
    ///
    /// Before the index is complete, its entries are the most recently used files. So the others
    /// are removed that the scan has found, for whose space `find` accounts.
    pub(super) fn evict(
        &mut self,
        bytes: u64,
        find: impl Fn(u64) -> Arc<Charge>,
    ) -> Vec<(Name, Arc<Charge>)> {
        if let Some(found) = &mut self.found {
            let victims = found.evict(bytes, |name| self.entries.contains(name));
            self.evicted.extend(victims.iter().map(|&(name, ..)| name));
            let charged = |(name, _, bytes)| (name, find(bytes));
            return victims.into_iter().map(charged).collect();
        }
        let mut freed = 0;
        let mut victims = Vec::new();
        for (name, entry) in self.entries.iter().rev() {
            if freed >= bytes {
                break;
            }
            // A file that is open would keep its space.
            if Arc::strong_count(&entry.charge) == 1 {
                freed += entry.charge.bytes();
                victims.push(*name);
            }
        }
        self.evicted.extend(&victims);
        let remove = |name: Name| Some((name, self.entries.pop(&name)?.charge));
        victims.into_iter().filter_map(remove).collect()
    }

    /// The time of the last use of the least recently used entry.
    pub(super) fn oldest_ms(&self) -> Option<i64> {
        let oldest = self.entries.peek_lru();
        oldest.map(|(_, entry)| entry.used_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::super::space::Space;
    use super::*;

    fn name(number: u8) -> Name {
        Name::of(&[&[number]])
    }

    /// An index whose scan is complete.
    fn scanned() -> Index {
        let mut index = Index::new();
        index.complete();
        index
    }

    fn victims(index: &mut Index, bytes: u64) -> Vec<Name> {
        index
            .evict(bytes, |_| unreachable!("the scan is complete"))
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn the_least_recently_used_idle_entries_are_evicted() {
        let space = Space::new(1000);
        let mut index = scanned();
        for number in 0..5 {
            index.insert(name(number), space.find(10), true, i64::from(number));
        }
        index.get(&name(0), 9).expect("an entry");
        let open = index.get(&name(1), 9).expect("an entry");
        index.get(&name(2), 9).expect("an entry");
        assert_eq!(victims(&mut index, 11), [name(3), name(4)]);
        assert_eq!((space.used_bytes(), index.len()), (30, 3));
        assert_eq!(victims(&mut index, 100), [name(0), name(2)], "1 is open");
        drop(open);
        assert_eq!(victims(&mut index, 1), [name(1)]);
        assert_eq!(space.used_bytes(), 0);
    }

    #[test]
    fn a_scan_adds_older_entries_and_none_that_changed_meanwhile() {
        let space = Space::new(1000);
        let mut index = Index::new();
        index.insert(name(1), space.find(10), true, 100);
        index.remove(&name(2));
        space.expect(40);
        let files = [(1, 9), (2, 8), (3, 7), (4, 6)];
        let files = files.map(|(number, used_ms)| (name(number), used_ms, 10));
        index.append(&files, |bytes| space.find(bytes));
        assert_eq!(space.used_bytes(), 50, "20 of 40 expected bytes are found");
        index.complete();
        space.end_expectation();
        assert_eq!((index.len(), space.used_bytes()), (3, 30));
        assert!(!index.get(&name(3), 7).expect("an entry").is_trusted);
        assert_eq!(index.oldest_ms(), Some(6));
        assert_eq!(victims(&mut index, 20), [name(4), name(1)]);
    }

    #[test]
    fn an_entry_that_has_replaced_another_one_stays() {
        let space = Space::new(1000);
        let mut index = scanned();
        index.insert(name(1), space.find(10), true, 0);
        let old = index.get(&name(1), 0);
        index.insert(name(1), space.find(20), true, 0);
        index.remove_found(&name(1), old.as_ref());
        index.remove_found(&name(1), None);
        assert_eq!(index.len(), 1);
        let new = index.get(&name(1), 0);
        index.remove_found(&name(1), new.as_ref());
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn a_part_is_older_than_the_whole() {
        let space = Space::new(1000);
        let mut index = scanned();
        for number in [2, 1] {
            index.insert(name(number), space.find(10), true, 0);
        }
        index.stamp(&name(1), 50_000);
        assert_eq!(index.part_ms(&name(1)), Some(-1), "as on the disk");
        index.stamp_part(&name(2), &name(1), 55_000);
        assert_eq!(index.take_stamps(false), []);
        index.stamp(&name(1), 59_999);
        index.stamp_part(&name(2), &name(1), 60_000);
        assert_eq!(index.take_stamps(false), []);
        index.insert(name(2), space.find(10), true, -5);
        index.stamp_part(&name(2), &name(1), 60_000);
        let stamps = [(name(1), 59_999), (name(2), 59_998)];
        assert_eq!(index.take_stamps(false), stamps, "the whole first");
        assert_eq!(victims(&mut index, 1), [name(2)]);
    }

    #[test]
    fn the_time_of_a_use_is_written_once_in_a_while() {
        let space = Space::new(1000);
        let mut index = scanned();
        index.insert(name(1), space.find(10), true, 0);
        let at = |index: &mut Index, ms| {
            index.get(&name(1), ms).expect("an entry");
            index.stamp(&name(1), ms);
            index.take_stamps(false)
        };
        assert_eq!(at(&mut index, 59_999), []);
        assert_eq!(at(&mut index, 60_000), [(name(1), 60_000)]);
        assert_eq!(at(&mut index, 60_001), []);
        assert_eq!(index.take_stamps(true), [(name(1), 60_001)]);
        assert_eq!(index.take_stamps(true), []);
    }
}
