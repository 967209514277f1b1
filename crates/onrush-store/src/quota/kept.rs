//! What uploads count that outlive their requests, from the first bytes that are kept until they
//! are complete or discarded.

use crate::error::Result;
use crate::key::Key;
use crate::store::PartialUpload;
use crate::usage::{Reservation, Usages};
use std::collections::HashMap;
use std::iter;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An upload that was kept, as its record says ([`QuotaStore::find_partial`]).
///
/// [`QuotaStore::find_partial`]: super::QuotaStore::find_partial
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedUpload {
    /// The key of the object.
    pub key: Key,
    /// Where the bytes are.
    pub kept: PartialUpload,
    /// The number of bytes that have arrived, if that is in any order.
    pub arrived_bytes: Option<u64>,
}

/// The kept uploads that no request uses, by the names of their files.
#[derive(Debug)]
pub(super) struct KeptUploads {
    held: Mutex<HashMap<Vec<u8>, Held>>,
    /// See [`Store::swaps`](crate::Store::swaps).
    swaps: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Held {
    key: Key,
    reservation: Reservation,
    /// What has been written in any order, in the order of the positions.
    written: Vec<Range<u64>>,
    /// The number of swaps when it began.
    swaps: u64,
}

impl KeptUploads {
    pub(super) fn new(swaps: &Arc<AtomicU64>) -> KeptUploads {
        KeptUploads {
            held: Mutex::default(),
            swaps: swaps.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Acquire)
    }

    /// Forgets those of folders of before.
    pub(super) fn forget_swapped(&self) {
        let swaps = self.swaps();
        self.lock().retain(|_, held| held.swaps == swaps);
    }

    fn insert(&self, usages: &Arc<Usages>, name: Vec<u8>, mut held: Held) {
        let mut uploads = self.lock();
        if held.swaps != self.swaps() {
            return; // The file is in another folder.
        }
        // The quotas may have changed while it was in use.
        held.reservation.renew(usages, &held.key);
        uploads.insert(name, held);
    }

    /// Counts an upload of an earlier process.
    pub(super) fn find(&self, usages: &Arc<Usages>, name: Vec<u8>, key: &Key, bytes: u64) {
        let mut reservation = Reservation::new(usages, key);
        reservation.set(bytes);
        let held = Held {
            key: key.clone(),
            reservation,
            written: Vec::new(),
            swaps: self.swaps(),
        };
        self.lock().entry(name).or_insert(held);
    }

    /// All count for the quotas of this moment.
    pub(super) fn renew(&self, usages: &Arc<Usages>) {
        self.forget_swapped();
        for held in self.lock().values_mut() {
            held.reservation.renew(usages, &held.key);
        }
    }

    /// An upload does not count any more.
    pub(super) fn remove(&self, name: &[u8]) {
        self.lock().remove(name);
    }

    /// Counts bytes that are about to be written at any position. If there is no room for them,
    /// this fails and changes nothing. An upload that a request uses counts by that.
    pub(super) fn write(&self, name: &[u8], range: Range<u64>) -> Result<()> {
        let mut uploads = self.lock();
        let Some(held) = uploads.get_mut(name) else {
            return Ok(());
        };
        let mut written = held.written.clone();
        let added = add_range(&mut written, range);
        held.reservation.grow(added)?;
        held.written = written;
        Ok(())
    }
}

/// The room of an upload in use. Dropping it returns the room, or leaves it to the kept bytes.
#[derive(Debug)]
pub(super) struct Room {
    usages: Arc<Usages>,
    uploads: Arc<KeptUploads>,
    key: Key,
    reservation: Reservation,
    /// The name of the file, if it outlives this.
    kept: Option<Vec<u8>>,
    /// The number of swaps when it began.
    swaps: u64,
}

impl Room {
    /// For a new upload, which counts its name.
    pub(super) fn new(usages: &Arc<Usages>, uploads: &Arc<KeptUploads>, key: &Key) -> Result<Room> {
        let mut reservation = Reservation::new(usages, key);
        reservation.grow(0)?;
        Ok(Room {
            swaps: uploads.swaps(),
            usages: usages.clone(),
            uploads: uploads.clone(),
            key: key.clone(),
            reservation,
            kept: None,
        })
    }

    /// For an upload that was kept in the file `name`.
    pub(super) fn resume(
        usages: &Arc<Usages>,
        uploads: &Arc<KeptUploads>,
        key: &Key,
        name: Vec<u8>,
        kept: &PartialUpload,
    ) -> Result<Room> {
        let swaps = uploads.swaps();
        let held = uploads.lock().remove(&name);
        let held = held.filter(|held| held.swaps == swaps);
        let mut room = Room {
            swaps,
            usages: usages.clone(),
            uploads: uploads.clone(),
            key: key.clone(),
            kept: held.is_some().then(|| name.clone()),
            reservation: held
                .map_or_else(|| Reservation::new(usages, key), |held| held.reservation),
        };
        room.grow(kept.bytes.saturating_sub(room.reservation.size()))?;
        room.kept = Some(name);
        Ok(room)
    }

    /// The upload has so many bytes and no others.
    pub(super) fn set(&mut self, bytes: u64) {
        self.reservation.set(bytes);
    }

    /// See [`Reservation::grow`].
    pub(super) fn grow(&mut self, bytes: u64) -> Result<()> {
        self.reservation.grow(bytes)
    }

    /// The bytes stay in the file `name` when this is dropped.
    pub(super) fn keep(&mut self, name: Vec<u8>) {
        self.kept = Some(name);
    }

    /// The bytes are an object now, or gone. Dropping this returns the room.
    pub(super) fn end(&mut self) {
        self.kept = None;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(name) = self.kept.take() {
            let reservation = mem::take(&mut self.reservation);
            let held = Held {
                key: self.key.clone(),
                written: iter::once(0..reservation.size()).collect(),
                reservation,
                swaps: self.swaps,
            };
            self.uploads.insert(&self.usages, name, held);
        }
    }
}

/// Adds a range to ranges that are in order and do not touch. Returns how many bytes it adds.
fn add_range(all: &mut Vec<Range<u64>>, range: Range<u64>) -> u64 {
    let first = all.partition_point(|known| known.end < range.start);
    let end = first + all[first..].partition_point(|known| known.start <= range.end);
    let touched = &all[first..end];
    let known: u64 = touched.iter().map(|known| known.end - known.start).sum();
    let start = touched.first().map_or(range.start, |known| known.start);
    let last = touched.last().map_or(range.end, |known| known.end);
    let joined = start.min(range.start)..last.max(range.end);
    let added = (joined.end - joined.start) - known;
    all.splice(first..end, [joined]);
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_once() {
        let mut all = Vec::new();
        for (range, added) in [
            (10..20, 10),
            (10..20, 0),
            (30..40, 10),
            (0..5, 5),
            (5..6, 1),
            (15..32, 10),
            (0..50, 14),
            (60..60, 0),
            (50..70, 20),
        ] {
            assert_eq!(add_range(&mut all, range.clone()), added, "{range:?}");
        }
        assert_eq!((all.len(), all[0].clone()), (1, 0..70));
    }
}
