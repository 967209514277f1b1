//! The dynamic table (RFC 7541 §2.3.2): a queue of fields, bounded by the bytes that it counts.

use std::collections::VecDeque;
use std::ops::Range;

/// What an entry counts in addition to its name and its value (RFC 7541 §4.1), in bytes.
const ENTRY_BYTES: usize = 32;

/// The fields that were added last, as many as fit.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Names and values, each entry's behind those of the entry before it. The oldest ones may
    /// belong to no entry any more.
    bytes: Vec<u8>,
    /// Newest first.
    entries: VecDeque<Entry>,
    size: usize,
    size_max: usize,
    /// Counts changes.
    version: u64,
}

/// Where a field is in [`DynamicTable::bytes`].
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    name_bytes: u32,
    value_bytes: u32,
}

impl Entry {
    fn name(self) -> Range<usize> {
        let start = self.start as usize;
        start..start + self.name_bytes as usize
    }

    fn value(self) -> Range<usize> {
        let start = self.name().end;
        start..start + self.value_bytes as usize
    }

    fn size(self) -> usize {
        self.value().end - self.start as usize + ENTRY_BYTES
    }
}

/// The name of a field that is added.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    New(&'a [u8]),
    /// The name of the entry at this place.
    OfEntry(usize),
}

impl DynamicTable {
    pub(super) fn new(size_max: usize) -> DynamicTable {
        DynamicTable {
            bytes: Vec::new(),
            entries: VecDeque::new(),
            size: 0,
            size_max,
            version: 0,
        }
    }

    /// A number that is another one after each change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn size_max(&self) -> usize {
        self.size_max
    }

    /// Changes the limit. Removes the oldest fields that do not fit any more.
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.version += 1;
        self.make_room(0);
        self.release();
    }

    /// The name and the value of the entry at `place`; 0 is the newest one.
    pub(super) fn get(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(place)?;
        Some((&self.bytes[entry.name()], &self.bytes[entry.value()]))
    }

    /// All fields, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let fields = self.entries.iter();
        fields.map(|entry| (&self.bytes[entry.name()], &self.bytes[entry.value()]))
    }

    /// The memory that is allocated, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Adds a field, and removes the oldest ones that do not fit any more. A field that is larger
    /// than the table empties it (RFC 7541 §4.4).
    pub(super) fn add(&mut self, name: Name<'_>, value: &[u8]) {
        self.version += 1;
        // The name may be that of an entry that is removed now. Its bytes are still there.
        let known = match name {
            Name::New(_) => None,
            Name::OfEntry(place) => Some(self.entries[place].name()),
        };
        let name_bytes = match (&known, name) {
            (Some(range), _) => range.len(),
            (None, Name::New(name)) => name.len(),
            (None, Name::OfEntry(_)) => 0,
        };
        let size = name_bytes + value.len() + ENTRY_BYTES;
        self.make_room(size);
        if size > self.size_max {
            return self.release();
        }
        let start = self.bytes.len();
        match (known, name) {
            (Some(range), _) => self.bytes.extend_from_within(range),
            (None, Name::New(name)) => self.bytes.extend_from_slice(name),
            (None, Name::OfEntry(_)) => {}
        }
        self.bytes.extend_from_slice(value);
        self.entries.push_front(Entry {
            start: start as u32,
            name_bytes: name_bytes as u32,
            value_bytes: value.len() as u32,
        });
        self.size += size;
        if self.bytes.len() > 2 * self.size_max {
            self.compact();
        }
    }

    /// Removes the oldest entries until `size` more bytes fit, or none is left.
    fn make_room(&mut self, size: usize) {
        while self.size + size > self.size_max
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size();
        }
    }

    /// Frees memory that an empty table does not need.
    fn release(&mut self) {
        if self.entries.is_empty() {
            (self.bytes, self.entries) = (Vec::new(), VecDeque::new());
        }
    }

    /// Removes the bytes of entries that are gone.
    fn compact(&mut self) {
        let gone = self
            .entries
            .back()
            .map_or(self.bytes.len(), |oldest| oldest.start as usize);
        self.bytes.drain(..gone);
        for entry in &mut self.entries {
            entry.start -= gone as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(table: &DynamicTable) -> Vec<&str> {
        let text = |name| std::str::from_utf8(name).expect("text");
        table.iter().map(|(name, _)| text(name)).collect()
    }

    #[test]
    fn the_oldest_fields_are_removed() {
        let mut table = DynamicTable::new(100);
        table.add(Name::New(b"a"), b"1");
        table.add(Name::New(b"b"), b"2");
        assert_eq!(names(&table), ["b", "a"]);
        table.add(Name::New(b"c"), b"3");
        assert_eq!(names(&table), ["c", "b"]);
        assert_eq!(table.get(1), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(2), None);
        table.set_size_max(40);
        assert_eq!(names(&table), ["c"]);
        table.add(Name::New(b"larger"), b"than all");
        assert!(names(&table).is_empty());
    }

    #[test]
    fn a_name_is_taken_from_an_entry_that_is_removed() {
        let mut table = DynamicTable::new(80);
        table.add(Name::New(b"name"), b"1");
        table.add(Name::New(b"other"), b"2");
        table.add(Name::OfEntry(1), b"a value");
        assert_eq!(
            table.iter().collect::<Vec<_>>(),
            [(&b"name"[..], &b"a value"[..])]
        );
    }

    #[test]
    fn memory_stays_bounded() {
        let mut table = DynamicTable::new(4096);
        for number in 0..10_000u32 {
            let value = vec![number as u8; number as usize % 300];
            table.add(Name::New(&number.to_be_bytes()), &value);
            let (name, found) = table.get(0).expect("it fits");
            assert_eq!((name, found), (&number.to_be_bytes()[..], &value[..]));
            assert!(table.bytes.len() <= 3 * 4096);
            let size = |(name, value): (&[u8], &[u8])| name.len() + value.len() + ENTRY_BYTES;
            assert_eq!(table.iter().map(size).sum::<usize>(), table.size);
        }
        table.set_size_max(0);
        assert_eq!((table.bytes.capacity(), table.entries.capacity()), (0, 0));
    }
}
