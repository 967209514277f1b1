//! The unfinished uploads and their bytes in memory, for the limits; and the uploads that were
//! completed lately, for clients that have lost the response.
//!
//! A client gets a share of each limit ([`crate::shares`]). After a restart, uploads of clients
//! without a user share one.
//!
//! Bytes count when they arrive. An announced length is compared with the room that is left, and
//! occupies nothing: otherwise clients that only announce uploads could keep out all others.

use super::{NO_SPACE, NO_SPACE_OWN, TOO_MANY, TOO_MANY_OWN, UploadId, UploadLimits};
use crate::files::receive::upload::ReceiveError;
use crate::shares::{self, Full, Holder, Ledger, Refused};
use onrush_store::Key;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of completed uploads that are remembered.
const COMPLETED_MAX: usize = 1024;

/// How far an upload is, for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct Progress {
    pub(in crate::files) offset: u64,
    pub(in crate::files) length: Option<u64>,
    pub(in crate::files) is_complete: bool,
    /// The remaining time of an unfinished upload, in seconds.
    pub(in crate::files) expires_in_s: u64,
}

/// An upload that was completed lately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::files) struct Completed {
    /// The length of the object in bytes.
    pub(in crate::files) length: u64,
    /// `Upload-Concat` of a tus client that has joined other uploads.
    pub(in crate::files) tus_concat: Option<Arc<str>>,
}

#[derive(Default)]
pub(super) struct Index {
    state: Mutex<IndexState>,
    refused_uploads: Refused,
    refused_bytes: Refused,
}

/// What counts for an unfinished upload.
#[derive(Clone, Copy, Debug)]
struct Counted {
    holder: Holder,
    bytes: u64,
}

#[derive(Default)]
struct IndexState {
    is_loaded: bool,
    unfinished: HashMap<UploadId, Counted>,
    /// The number of uploads of each holder, and their bytes.
    uploads: Ledger,
    bytes: Ledger,
    /// While the records are read.
    reading: Option<Reading>,
    /// The oldest first.
    completed: VecDeque<Remembered>,
}

/// What happens while the records are read.
#[derive(Default)]
struct Reading {
    /// The uploads that this process has changed: their records may have been read just before.
    changed: HashSet<UploadId>,
    /// Those with a record.
    seen: HashSet<UploadId>,
}

struct Remembered {
    id: UploadId,
    key: Key,
    owner: Option<String>,
    completed: Completed,
}

impl IndexState {
    fn holder_of(&self, id: UploadId) -> Holder {
        let counted = self.unfinished.get(&id);
        counted.map_or_else(|| Holder::address(None), |counted| counted.holder)
    }

    fn bytes_of(&self, id: UploadId) -> u64 {
        self.unfinished.get(&id).map_or(0, |counted| counted.bytes)
    }

    /// Sets the bytes of an upload.
    fn set(&mut self, id: UploadId, bytes: u64) {
        let holder = self.holder_of(id);
        self.replace(id, Some(Counted { holder, bytes }));
    }

    /// `None`: the upload has ended.
    fn replace(&mut self, id: UploadId, counted: Option<Counted>) {
        if let Some(reading) = &mut self.reading {
            reading.changed.insert(id);
        }
        let before = match counted {
            Some(counted) => self.unfinished.insert(id, counted),
            None => self.unfinished.remove(&id),
        };
        if let Some(Counted { holder, bytes }) = before {
            self.uploads.replace(holder, 1, 0);
            self.bytes.replace(holder, bytes, 0);
        }
        if let Some(Counted { holder, bytes }) = counted {
            self.uploads.replace(holder, 0, 1);
            self.bytes.replace(holder, 0, bytes);
        }
    }
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if there is no room for `bytes` in all of an upload of `holder`.
    fn check_bytes(
        &self,
        state: &IndexState,
        (id, holder): (UploadId, Holder),
        bytes: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let checked = (state.bytes).check(holder, state.bytes_of(id), bytes, limits.bytes_max);
        checked.map_err(|full| {
            self.refused_bytes.count(full);
            ReceiveError::Body(match full {
                Full::Own => NO_SPACE_OWN,
                Full::All => NO_SPACE,
            })
        })
    }

    /// What clients have of the limits.
    pub(super) fn shares(&self, limits: &UploadLimits) -> [shares::SharesState<'_>; 2] {
        let state = self.lock();
        [
            shares::SharesState {
                budget: "unfinished_uploads",
                used: state.uploads.used(),
                total: limits.count_max as u64,
                refused: &self.refused_uploads,
            },
            shares::SharesState {
                budget: "unfinished_bytes",
                used: state.bytes.used(),
                total: limits.bytes_max,
                refused: &self.refused_bytes,
            },
        ]
    }

    /// Forgets everything: the store is another one. What is being read is not of this one, either.
    pub(super) fn forget(&self) {
        *self.lock() = IndexState::default();
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.lock().is_loaded
    }

    /// Begins to read the records: of an earlier process, and of other servers if they share the
    /// store. They are read until the result is dropped. `None`: they are being read.
    pub(super) fn begin_reading(&self) -> Option<ReadingGuard<'_>> {
        let mut state = self.lock();
        if state.reading.is_some() {
            return None;
        }
        state.reading = Some(Reading::default());
        Some(ReadingGuard(self))
    }

    /// Adds an upload of `holder` without bytes, of which `announced` are going to arrive. Fails
    /// because of a limit, also if there is no room for all of them.
    pub(super) fn begin(
        &self,
        id: UploadId,
        holder: Holder,
        announced: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let mut state = self.lock();
        let checked = (state.uploads).check(holder, 0, 1, limits.count_max as u64);
        checked.map_err(|full| {
            self.refused_uploads.count(full);
            ReceiveError::Body(match full {
                Full::Own => TOO_MANY_OWN,
                Full::All => TOO_MANY,
            })
        })?;
        self.check_bytes(&state, (id, holder), announced, limits)?;
        state.replace(id, Some(Counted { holder, bytes: 0 }));
        Ok(())
    }

    /// Counts an upload that was found by its record, if it is not counted yet.
    pub(super) fn find(&self, id: UploadId, holder: Holder, bytes: u64) {
        let mut state = self.lock();
        if !state.unfinished.contains_key(&id) {
            state.replace(id, Some(Counted { holder, bytes }));
        }
    }

    /// Fails if there is no room for an upload of `bytes` in all.
    pub(super) fn check(
        &self,
        id: UploadId,
        bytes: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let state = self.lock();
        self.check_bytes(&state, (id, state.holder_of(id)), bytes, limits)
    }

    /// Counts at least `bytes` for an upload. If that exceeds the limit, this fails and changes
    /// nothing.
    pub(super) fn grow(
        &self,
        id: UploadId,
        bytes: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let mut state = self.lock();
        if bytes > state.bytes_of(id) {
            self.check_bytes(&state, (id, state.holder_of(id)), bytes, limits)?;
            state.set(id, bytes);
        }
        Ok(())
    }

    /// Counts `bytes` more for an upload. If that exceeds the limit, this fails and changes
    /// nothing.
    pub(super) fn add(
        &self,
        id: UploadId,
        bytes: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let mut state = self.lock();
        let all = state.bytes_of(id).saturating_add(bytes);
        self.check_bytes(&state, (id, state.holder_of(id)), all, limits)?;
        state.set(id, all);
        Ok(())
    }

    /// Takes back what [`Index::add`] has counted, unless the upload has ended.
    pub(super) fn subtract(&self, id: UploadId, bytes: u64) {
        let mut state = self.lock();
        if state.unfinished.contains_key(&id) {
            let left = state.bytes_of(id).saturating_sub(bytes);
            state.set(id, left);
        }
    }

    /// Sets the bytes of an upload, after some were dropped.
    pub(super) fn set(&self, id: UploadId, bytes: u64) {
        self.lock().set(id, bytes);
    }

    pub(super) fn remove(&self, id: UploadId) {
        self.lock().replace(id, None);
    }

    /// Remembers that an upload was completed.
    pub(super) fn complete(
        &self,
        id: UploadId,
        key: &Key,
        owner: Option<String>,
        completed: Completed,
    ) {
        let mut state = self.lock();
        state.replace(id, None);
        if state.completed.len() >= COMPLETED_MAX {
            state.completed.pop_front();
        }
        let key = key.clone();
        state.completed.push_back(Remembered {
            id,
            key,
            owner,
            completed,
        });
    }

    /// The upload of `owner` at `key`, if it was completed lately.
    pub(super) fn completed(
        &self,
        id: UploadId,
        key: &Key,
        owner: Option<&str>,
    ) -> Option<Completed> {
        let state = self.lock();
        let found = state
            .completed
            .iter()
            .find(|remembered| remembered.id == id);
        let found = found.filter(|found| found.key == *key && found.owner.as_deref() == owner);
        found.map(|found| found.completed.clone())
    }
}

/// The records are being read.
pub(super) struct ReadingGuard<'i>(&'i Index);

impl ReadingGuard<'_> {
    /// Counts an upload with a record, unless this process knows better.
    pub(super) fn add(&self, id: UploadId, holder: Holder, bytes: u64) {
        let mut state = self.0.lock();
        let Some(mut reading) = state.reading.take() else {
            return;
        };
        reading.seen.insert(id);
        if !reading.changed.contains(&id) {
            state.replace(id, Some(Counted { holder, bytes }));
        }
        state.reading = Some(reading);
    }

    /// All records were read: uploads without one have ended, on other servers.
    pub(super) fn complete(self) {
        let mut state = self.0.lock();
        let Some(reading) = state.reading.take() else {
            return; // They were those of a store of before.
        };
        state.is_loaded = true;
        let is_there = |id: &UploadId| reading.seen.contains(id) || reading.changed.contains(id);
        let ids = state.unfinished.keys().filter(|id| !is_there(id));
        let ended: Vec<UploadId> = ids.copied().collect();
        ended.into_iter().for_each(|id| state.replace(id, None));
    }
}

impl Drop for ReadingGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().reading = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: UploadLimits = UploadLimits {
        object_bytes_max: u64::MAX,
        age_max_s: 1,
        count_max: 10,
        bytes_max: 2000, // 1000 for one client.
    };

    fn id() -> UploadId {
        UploadId::random().expect("random numbers")
    }

    fn holder() -> Holder {
        Holder::user("ann")
    }

    fn begin(index: &Index, id: UploadId, announced: u64) -> Result<(), ReceiveError> {
        index.begin(id, holder(), announced, &LIMITS)
    }

    #[test]
    fn a_client_gets_a_share() {
        let index = Index::default();
        let ids: Vec<UploadId> = (0..6).map(|_| id()).collect();
        for id in &ids[..5] {
            assert!(begin(&index, *id, 0).is_ok());
        }
        let refused = begin(&index, ids[5], 0);
        assert!(matches!(refused, Err(ReceiveError::Body(TOO_MANY_OWN))));
        assert!(index.grow(ids[0], 1000, &LIMITS).is_ok());
        let refused = index.grow(ids[1], 1, &LIMITS);
        assert!(matches!(refused, Err(ReceiveError::Body(NO_SPACE_OWN))));
        let (other, bob) = (id(), Holder::user("bob"));
        assert!(index.begin(other, bob, 500, &LIMITS).is_ok());
        assert!(index.grow(other, 500, &LIMITS).is_ok());
        assert!(index.grow(other, 501, &LIMITS).is_err());
        // What is opened is counted for its owner, once.
        index.find(other, bob, 7);
        assert_eq!(index.lock().bytes.used(), 1500);
        let found = id();
        index.find(found, bob, 7);
        assert_eq!(index.lock().bytes.used(), 1507);
        for id in ids.into_iter().chain([other, found]) {
            index.remove(id);
        }
        let state = index.lock();
        assert_eq!((state.uploads.used(), state.bytes.used()), (0, 0));
    }

    #[test]
    fn what_is_refused_is_not_counted() {
        let (index, first, second) = (Index::default(), id(), id());
        assert!(begin(&index, first, 1001).is_err());
        assert!(begin(&index, first, 1000).is_ok());
        assert!(index.grow(first, 1001, &LIMITS).is_err());
        assert!(begin(&index, second, 1000).is_ok(), "nothing has arrived");
        assert!(index.grow(first, 10, &LIMITS).is_ok());
        assert!(index.check(second, 991, &LIMITS).is_err());
        assert!(index.grow(second, 990, &LIMITS).is_ok());
        assert!(index.grow(first, 11, &LIMITS).is_err());
        index.remove(second);
        assert!(index.grow(first, 1000, &LIMITS).is_ok());
        assert!(index.grow(first, 5, &LIMITS).is_ok(), "it stays counted");
        assert!(begin(&index, second, 1).is_err());
    }

    #[test]
    fn parts_count_together() {
        let (index, upload) = (Index::default(), id());
        assert!(begin(&index, upload, 1000).is_ok());
        assert!(index.add(upload, 600, &LIMITS).is_ok());
        assert!(index.add(upload, 401, &LIMITS).is_err());
        assert!(index.add(upload, 400, &LIMITS).is_ok());
        index.subtract(upload, 600);
        assert_eq!(index.lock().bytes.used(), 400);
        index.remove(upload);
        index.subtract(upload, 400); // The upload ended before its part.
        assert_eq!(index.lock().bytes.used(), 0);
        assert!(index.lock().unfinished.is_empty());
    }

    /// A record that was read before its upload ended, or grew.
    #[test]
    fn a_late_record_changes_nothing() {
        let (index, ended, grown) = (Index::default(), id(), id());
        let reading = index.begin_reading().expect("no one reads");
        assert!(index.begin_reading().is_none());
        assert!(begin(&index, grown, 0).is_ok() && index.grow(grown, 500, &LIMITS).is_ok());
        index.remove(ended);
        reading.add(ended, holder(), 600);
        reading.add(grown, holder(), 1);
        reading.add(id(), holder(), 400);
        assert_eq!(index.lock().bytes.used(), 900);
        assert!(!index.is_loaded());
        reading.complete();
        assert!(index.is_loaded() && index.lock().bytes.used() == 900);
    }

    /// Other servers of the same bucket begin, continue and end uploads as well.
    #[test]
    fn uploads_of_other_servers_are_counted() {
        let (index, own, theirs) = (Index::default(), id(), id());
        for (bytes, expected) in [(Some(400), 400), (Some(700), 700), (None, 0)] {
            let reading = index.begin_reading().expect("no one reads");
            bytes
                .into_iter()
                .for_each(|bytes| reading.add(theirs, holder(), bytes));
            reading.complete();
            assert_eq!(index.lock().bytes.used(), expected);
        }
        // What began while the records were read has no record yet.
        let reading = index.begin_reading().expect("no one reads");
        assert!(begin(&index, own, 0).is_ok() && index.grow(own, 5, &LIMITS).is_ok());
        reading.complete();
        assert_eq!(index.lock().bytes.used(), 5);
        // An error ends it without a result.
        drop(index.begin_reading().expect("no one reads"));
        assert_eq!(index.lock().bytes.used(), 5);
    }
}
