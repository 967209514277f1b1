//! The names of a folder, sorted, with little memory.
//!
//! The kernel returns names in no useful order. [`Collector`] takes all of them and keeps the
//! smallest after a position, as many as its memory permits; the result, [`Names`], says where the
//! following ones begin. So a folder is read once for each part of its names that fits, and nothing
//! else depends on its size: no file, no descriptor.
//!
//! A name takes its bytes and six more. When the memory is full, the greater half is dropped, and
//! from then on what sorts after the rest is not even kept. So each name is moved a few times on
//! average, and most names of a large folder are only compared once.

use crate::store::{Cursor, NamesMemory};
use onrush_rt::fs::FileKind;
use onrush_rt::region::Region;
use std::ops::{Deref, DerefMut};

/// The kind and the length in front of a name.
const HEAD_BYTES: usize = 2;
/// A name in the index.
const INDEX_BYTES: usize = size_of::<u32>();

/// The kinds of entries, as they are kept.
const KINDS: [Option<FileKind>; 5] = [
    None,
    Some(FileKind::File),
    Some(FileKind::Directory),
    Some(FileKind::Symlink),
    Some(FileKind::Special),
];

/// The number of bytes beyond which memory is mapped.
const HEAP_BYTES_MAX: usize = Cursor::NAMES_BYTES_MIN;

/// Bytes of which few are allocated and many are mapped.
enum Bytes {
    Heap(Vec<u8>),
    /// The second number is how many are used.
    Mapped(Region, usize),
}

impl Bytes {
    /// Room for so many bytes. If they cannot be mapped, they are allocated.
    fn with_capacity(bytes: usize) -> Bytes {
        let mapped = (bytes > HEAP_BYTES_MAX)
            .then(|| Region::new(bytes).ok())
            .flatten();
        match mapped {
            Some(region) => Bytes::Mapped(region, 0),
            None => Bytes::Heap(Vec::with_capacity(bytes.min(HEAP_BYTES_MAX))),
        }
    }

    /// Appends bytes, for which there is room.
    fn push(&mut self, bytes: &[u8]) {
        match self {
            Bytes::Heap(all) => all.extend_from_slice(bytes),
            Bytes::Mapped(region, used) => {
                region[*used..*used + bytes.len()].copy_from_slice(bytes);
                *used += bytes.len();
            }
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Bytes::Heap(all) => all.truncate(len),
            Bytes::Mapped(_, used) => *used = len,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Heap(all) => all,
            Bytes::Mapped(region, used) => &region[..*used],
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Heap(all) => all,
            Bytes::Mapped(region, used) => &mut region[..*used],
        }
    }
}

/// Some names of a folder, in order.
pub(super) struct Names {
    bytes: Bytes,
    /// Where each name begins in `bytes`, in the order of the names: numbers of [`INDEX_BYTES`].
    index: Bytes,
    /// The folder has names after this one, which these end with. `None`: these are all.
    pub(super) until: Option<Vec<u8>>,
    memory: Box<dyn NamesMemory>,
}

impl Names {
    pub(super) fn len(&self) -> usize {
        self.index.len() / INDEX_BYTES
    }

    /// A name, and the kind of its entry if the file system has it.
    pub(super) fn get(&self, at: usize) -> (&[u8], Option<FileKind>) {
        let begin = begin(&places(&self.index)[at]);
        (
            name_at(&self.bytes, begin),
            KINDS[usize::from(self.bytes[begin])],
        )
    }

    /// The number of names up to `position`, which need not be one of them.
    pub(super) fn up_to(&self, position: &[u8]) -> usize {
        places(&self.index).partition_point(|place| name_at(&self.bytes, begin(place)) <= position)
    }

    /// Drops the names and returns their memory, for others.
    pub(super) fn into_memory(self) -> Box<dyn NamesMemory> {
        self.memory
    }
}

type NameOffset = [u8; INDEX_BYTES];

fn places(index: &[u8]) -> &[NameOffset] {
    index.as_chunks().0
}

fn begin(place: &NameOffset) -> usize {
    u32::from_ne_bytes(*place) as usize
}

fn name_at(bytes: &[u8], begin: usize) -> &[u8] {
    let name = &bytes[begin + HEAD_BYTES..];
    &name[..usize::from(bytes[begin + 1])]
}

/// Selects names.
pub(super) struct Collector {
    bytes: Bytes,
    count: usize,
    after: Vec<u8>,
    /// Greater names were dropped.
    until: Option<Vec<u8>>,
    /// At least so many names are kept, whatever the memory.
    count_min: usize,
    /// The bytes that may be used.
    room: usize,
    memory: Box<dyn NamesMemory>,
}

impl Collector {
    pub(super) fn new(
        after: Vec<u8>,
        count_min: usize,
        mut memory: Box<dyn NamesMemory>,
    ) -> Collector {
        memory.resize(0);
        Collector {
            bytes: Bytes::Heap(Vec::new()),
            count: 0,
            after,
            until: None,
            count_min: count_min.max(1),
            room: Cursor::NAMES_BYTES_MIN,
            memory,
        }
    }

    pub(super) fn add(&mut self, name: &[u8], kind: Option<FileKind>) {
        let Ok(len) = u8::try_from(name.len()) else {
            return; // No key names it.
        };
        if name <= &self.after[..] {
            return;
        }
        let more = HEAD_BYTES + name.len() + INDEX_BYTES;
        if self.used() + more > self.room && !self.grow() {
            self.halve();
        }
        if self.until.as_ref().is_some_and(|until| name > &until[..]) {
            return;
        }
        let kind = KINDS.iter().position(|one| *one == kind).unwrap_or(0);
        self.bytes.push(&[kind as u8, len]);
        self.bytes.push(name);
        self.count += 1;
    }

    fn used(&self) -> usize {
        self.bytes.len() + self.count * INDEX_BYTES
    }

    /// Doubles the room, if there is memory, or if too few names fit without it.
    fn grow(&mut self) -> bool {
        let room = self.room * 2;
        let is_granted = room <= Cursor::NAMES_BYTES_MAX && self.memory.resize(room);
        if !is_granted && self.count > 2 * self.count_min {
            return false;
        }
        if let Bytes::Heap(few) = &self.bytes {
            let mut many = Bytes::with_capacity(Cursor::NAMES_BYTES_MAX);
            many.push(few);
            self.bytes = many;
        }
        self.room = room;
        true
    }

    /// Drops the greater half of the names.
    fn halve(&mut self) {
        let mut index = self.index();
        let (places, _) = index.as_chunks_mut();
        let last = (places.len() / 2).max(self.count_min) - 1;
        let name = |place: &NameOffset| name_at(&self.bytes, begin(place));
        let (_, last, _) =
            places.select_nth_unstable_by(last, |one, other| name(one).cmp(name(other)));
        let until = name(last).to_vec();
        let (mut from, mut to) = (0, 0);
        self.count = 0;
        while from < self.bytes.len() {
            let name = name_at(&self.bytes, from);
            let len = HEAD_BYTES + name.len();
            if name <= &until[..] {
                self.bytes.copy_within(from..from + len, to);
                to += len;
                self.count += 1;
            }
            from += len;
        }
        self.bytes.truncate(to);
        self.until = Some(until);
    }

    /// Where each name begins, in the order in which they were added.
    fn index(&self) -> Bytes {
        let mut index = Bytes::with_capacity(self.count * INDEX_BYTES);
        let mut begin = 0;
        while begin < self.bytes.len() {
            index.push(&(begin as u32).to_ne_bytes());
            begin += HEAD_BYTES + usize::from(self.bytes[begin + 1]);
        }
        index
    }

    pub(super) fn finish(mut self) -> Names {
        let mut index = self.index();
        let name = |place: &NameOffset| name_at(&self.bytes, begin(place));
        let (places, _) = index.as_chunks_mut();
        places.sort_unstable_by(|one, other| name(one).cmp(name(other)));
        // Some file systems return a name twice if the folder changes meanwhile.
        let mut kept = 0;
        for at in 0..places.len() {
            if kept == 0 || name(&places[at]) != name(&places[kept - 1]) {
                places[kept] = places[at];
                kept += 1;
            }
        }
        index.truncate(kept * INDEX_BYTES);
        let used = self.bytes.len() + index.len();
        self.memory.resize(match used <= Cursor::NAMES_BYTES_MIN {
            true => 0,
            false => used,
        });
        Names {
            bytes: self.bytes,
            index,
            until: self.until,
            memory: self.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// Memory with a limit, and what is used of it.
    struct Limited(usize, Arc<AtomicUsize>);

    impl NamesMemory for Limited {
        fn resize(&mut self, bytes: usize) -> bool {
            let is_granted = bytes <= self.0;
            if is_granted {
                self.1.store(bytes, Relaxed);
            }
            is_granted
        }
    }

    /// Different names in no order, some of them long, with their kinds.
    fn names(count: usize) -> BTreeMap<Vec<u8>, Option<FileKind>> {
        let name = |number: usize| {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let len = if number.is_multiple_of(50) { 255 } else { 20 };
            let mut name = format!("{hash:016x}{number:07}").into_bytes();
            name.resize(len.max(name.len()), b'x');
            (name, KINDS[number % KINDS.len()])
        };
        (0..count).map(name).collect()
    }

    type FoundNames = Vec<(Vec<u8>, Option<FileKind>)>;

    /// What passes over all names find, and their number.
    fn read(
        all: &BTreeMap<Vec<u8>, Option<FileKind>>,
        count_min: usize,
        memory: usize,
    ) -> (FoundNames, usize) {
        let used = Arc::new(AtomicUsize::new(0));
        let (mut found, mut passes) = (Vec::new(), 0);
        let mut after = Some(Vec::new());
        while let Some(position) = after {
            let memory = Box::new(Limited(memory, used.clone()));
            let mut collector = Collector::new(position, count_min, memory);
            let mut shuffled: Vec<_> = all.iter().collect();
            shuffled.sort_by_key(|(name, _)| name.iter().rev().copied().collect::<Vec<u8>>());
            for (name, kind) in shuffled.into_iter().chain(all.iter().take(3)) {
                collector.add(name, *kind);
            }
            let part = collector.finish();
            assert!(part.until.is_none() || part.len() >= count_min);
            for at in 0..part.len() {
                let (name, kind) = part.get(at);
                assert_eq!(
                    (part.up_to(name), part.up_to(&name[..name.len() - 1])),
                    (at + 1, at)
                );
                found.push((name.to_vec(), kind));
            }
            passes += 1;
            after = part.until.clone();
        }
        (found, passes)
    }

    #[test]
    fn passes_find_every_name_once_and_in_order_with_any_memory() {
        for count in [0, 1, 300, 4000] {
            let all = names(count);
            let expected: Vec<_> = all.clone().into_iter().collect();
            let mut last = usize::MAX;
            for memory in [0, 32 << 10, 128 << 10, 8 << 20] {
                let (found, passes) = read(&all, 1, memory);
                assert!(found == expected, "{count} names, {memory} bytes");
                assert!(passes <= last, "{passes} after {last}");
                last = passes;
            }
            assert_eq!(last, 1, "all fit");
        }
    }

    #[test]
    fn a_page_has_its_names_without_memory() {
        let all = names(4000);
        let (found, passes) = read(&all, 2001, 0);
        assert!(found.into_iter().eq(all));
        assert!(passes <= 2, "{passes}");
    }

    #[test]
    fn memory_is_what_is_kept() {
        let used = Arc::new(AtomicUsize::new(7));
        for (count, range) in [(100, 0..1), (4000, 100_000..150_000)] {
            let memory = Box::new(Limited(8 << 20, used.clone()));
            let mut collector = Collector::new(Vec::new(), 1, memory);
            names(count)
                .iter()
                .for_each(|(name, kind)| collector.add(name, *kind));
            let part = collector.finish();
            assert!(range.contains(&used.load(Relaxed)), "{used:?}");
            assert_eq!(part.len(), count);
        }
    }
}
