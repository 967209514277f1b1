//! The unfinished uploads and their bytes in memory, for the limits; and the uploads that were
//! completed lately, for clients that have lost the response.
//!
//! Bytes count when they arrive. An announced length is compared with the room that is left, and
//! occupies nothing: otherwise clients that only announce uploads could keep out all others.

use super::{NO_SPACE, TOO_MANY, UploadId, UploadLimits};
use crate::files::upload::ReceiveError;
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
pub(super) struct Index(Mutex<State>);

#[derive(Default)]
struct State {
    is_loaded: bool,
    /// The bytes of each upload.
    unfinished: HashMap<UploadId, u64>,
    /// Their sum.
    bytes: u64,
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

impl State {
    fn set(&mut self, id: UploadId, bytes: Option<u64>) {
        if let Some(reading) = &mut self.reading {
            reading.changed.insert(id);
        }
        let before = match bytes {
            Some(bytes) => self.unfinished.insert(id, bytes),
            None => self.unfinished.remove(&id),
        };
        let others = self.bytes.saturating_sub(before.unwrap_or(0));
        self.bytes = others.saturating_add(bytes.unwrap_or(0));
    }
}

impl State {
    fn bytes_of(&self, id: UploadId) -> u64 {
        self.unfinished.get(&id).copied().unwrap_or(0)
    }

    /// Fails if there is no room for an upload of `bytes` in all.
    fn check(&self, id: UploadId, bytes: u64, limits: &UploadLimits) -> Result<(), ReceiveError> {
        let others = self.bytes.saturating_sub(self.bytes_of(id));
        match others.saturating_add(bytes) > limits.bytes_max {
            true => Err(ReceiveError::Body(NO_SPACE)),
            false => Ok(()),
        }
    }
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Adds an upload without bytes, of which `announced` are going to arrive. Fails because of a
    /// limit, also if there is no room for all of them.
    pub(super) fn begin(
        &self,
        id: UploadId,
        announced: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        let mut state = self.lock();
        if state.unfinished.len() >= limits.count_max {
            return Err(ReceiveError::Body(TOO_MANY));
        }
        state.check(id, announced, limits)?;
        state.set(id, Some(0));
        Ok(())
    }

    /// Fails if there is no room for an upload of `bytes` in all.
    pub(super) fn check(
        &self,
        id: UploadId,
        bytes: u64,
        limits: &UploadLimits,
    ) -> Result<(), ReceiveError> {
        self.lock().check(id, bytes, limits)
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
            state.check(id, bytes, limits)?;
            state.set(id, Some(bytes));
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
        state.check(id, all, limits)?;
        state.set(id, Some(all));
        Ok(())
    }

    /// Takes back what [`Index::add`] has counted, unless the upload has ended.
    pub(super) fn subtract(&self, id: UploadId, bytes: u64) {
        let mut state = self.lock();
        if state.unfinished.contains_key(&id) {
            let left = state.bytes_of(id).saturating_sub(bytes);
            state.set(id, Some(left));
        }
    }

    /// Sets the bytes of an upload, after some were dropped.
    pub(super) fn set(&self, id: UploadId, bytes: u64) {
        self.lock().set(id, Some(bytes));
    }

    pub(super) fn remove(&self, id: UploadId) {
        self.lock().set(id, None);
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
        state.set(id, None);
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
    pub(super) fn add(&self, id: UploadId, bytes: u64) {
        let mut state = self.0.lock();
        let Some(mut reading) = state.reading.take() else {
            return;
        };
        reading.seen.insert(id);
        if !reading.changed.contains(&id) {
            state.set(id, Some(bytes));
        }
        state.reading = Some(reading);
    }

    /// All records were read: uploads without one have ended, on other servers.
    pub(super) fn complete(self) {
        let mut state = self.0.lock();
        state.is_loaded = true;
        let Some(reading) = state.reading.take() else {
            return;
        };
        let is_there = |id: &UploadId| reading.seen.contains(id) || reading.changed.contains(id);
        let ids = state.unfinished.keys().filter(|id| !is_there(id));
        let ended: Vec<UploadId> = ids.copied().collect();
        ended.into_iter().for_each(|id| state.set(id, None));
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
        bytes_max: 1000,
    };

    fn id() -> UploadId {
        UploadId::random().expect("random numbers")
    }

    #[test]
    fn what_is_refused_is_not_counted() {
        let (index, first, second) = (Index::default(), id(), id());
        assert!(index.begin(first, 1001, &LIMITS).is_err());
        assert!(index.begin(first, 1000, &LIMITS).is_ok());
        assert!(index.grow(first, 1001, &LIMITS).is_err());
        assert!(
            index.begin(second, 1000, &LIMITS).is_ok(),
            "nothing has arrived"
        );
        assert!(index.grow(first, 10, &LIMITS).is_ok());
        assert!(index.check(second, 991, &LIMITS).is_err());
        assert!(index.grow(second, 990, &LIMITS).is_ok());
        assert!(index.grow(first, 11, &LIMITS).is_err());
        index.remove(second);
        assert!(index.grow(first, 1000, &LIMITS).is_ok());
        assert!(index.grow(first, 5, &LIMITS).is_ok(), "it stays counted");
        assert!(index.begin(second, 1, &LIMITS).is_err());
    }

    #[test]
    fn parts_count_together() {
        let (index, upload) = (Index::default(), id());
        assert!(index.begin(upload, 1000, &LIMITS).is_ok());
        assert!(index.add(upload, 600, &LIMITS).is_ok());
        assert!(index.add(upload, 401, &LIMITS).is_err());
        assert!(index.add(upload, 400, &LIMITS).is_ok());
        index.subtract(upload, 600);
        assert_eq!(index.lock().bytes, 400);
        index.remove(upload);
        index.subtract(upload, 400); // The upload ended before its part.
        assert_eq!(index.lock().bytes, 0);
        assert!(index.lock().unfinished.is_empty());
    }

    /// A record that was read before its upload ended, or grew.
    #[test]
    fn a_late_record_changes_nothing() {
        let (index, ended, grown) = (Index::default(), id(), id());
        let reading = index.begin_reading().expect("no one reads");
        assert!(index.begin_reading().is_none());
        assert!(index.begin(grown, 0, &LIMITS).is_ok() && index.grow(grown, 500, &LIMITS).is_ok());
        index.remove(ended);
        reading.add(ended, 600);
        reading.add(grown, 1);
        reading.add(id(), 400);
        assert_eq!(index.lock().bytes, 900);
        assert!(!index.is_loaded());
        reading.complete();
        assert!(index.is_loaded() && index.lock().bytes == 900);
    }

    /// Other servers of the same bucket begin, continue and end uploads as well.
    #[test]
    fn uploads_of_other_servers_are_counted() {
        let (index, own, theirs) = (Index::default(), id(), id());
        for (bytes, expected) in [(Some(400), 400), (Some(700), 700), (None, 0)] {
            let reading = index.begin_reading().expect("no one reads");
            bytes
                .into_iter()
                .for_each(|bytes| reading.add(theirs, bytes));
            reading.complete();
            assert_eq!(index.lock().bytes, expected);
        }
        // What began while the records were read has no record yet.
        let reading = index.begin_reading().expect("no one reads");
        assert!(index.begin(own, 0, &LIMITS).is_ok() && index.grow(own, 5, &LIMITS).is_ok());
        reading.complete();
        assert_eq!(index.lock().bytes, 5);
        // An error ends it without a result.
        drop(index.begin_reading().expect("no one reads"));
        assert_eq!(index.lock().bytes, 5);
    }
}
