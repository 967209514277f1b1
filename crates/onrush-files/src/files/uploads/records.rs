//! The stored records: an object for each unfinished upload. A record is replaced only if it is
//! still the one that was read, so of several servers that continue an upload one succeeds.

use super::record::{self, Record, Used};
use super::{NO_UPLOAD, Parts, UploadId, Uploads};
use crate::files::http::http_error::HttpError;
use crate::files::object;
use crate::files::receive::upload::ReceiveError;
use crate::shares::Holder;
use onrush_rt::coop;
use onrush_store::{
    Condition, Key, Kind, ListHow, PartialUpload, RecordedUpload, StoreError, Version,
};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

pub(super) const TAKEN_OVER: HttpError =
    HttpError::new(409, "another server continues this upload");

/// Attempts to read a record while others replace it.
const READ_ATTEMPTS: usize = 5;

/// What a search needs of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    version: Version,
    /// The number of bytes that have arrived.
    pub(super) bytes: u64,
    pub(super) holder: Holder,
    pub(super) used: Used,
    /// Whether the bytes are still there. If not, the upload was completed, and the process ended
    /// before it could remove the record: that says so to the client, and counts no more.
    pub(super) is_kept: bool,
}

/// The records of the last search. One with the same version is not read again.
pub(super) type Known = Mutex<HashMap<UploadId, Summary>>;

impl Uploads {
    /// The record of an upload, and its version.
    pub(super) async fn read(&self, id: UploadId) -> Result<(Record, Version), ReceiveError> {
        let found = async {
            let (bytes, version) = self.read_bytes(id).await?;
            // Also if it is truncated.
            let record = Record::parse(&bytes).ok_or(StoreError::NotFound)?;
            Ok((record, version))
        };
        found.await.map_err(|error| match error {
            StoreError::NotFound => ReceiveError::Body(NO_UPLOAD),
            error => ReceiveError::Store(error),
        })
    }

    async fn read_bytes(&self, id: UploadId) -> onrush_store::Result<(Vec<u8>, Version)> {
        let mut attempts = 1..READ_ATTEMPTS;
        loop {
            match self.read_once(id).await {
                // Replaced at this moment, by another server.
                Err(StoreError::Changed) if attempts.next().is_some() => {}
                read => return read,
            }
        }
    }

    async fn read_once(&self, id: UploadId) -> onrush_store::Result<(Vec<u8>, Version)> {
        let object = self.store.get(&id.key()?).await?;
        let size = usize::try_from(object.meta().size).unwrap_or(usize::MAX);
        if size > record::BYTES_MAX {
            return Err(StoreError::NotFound);
        }
        let bytes = object::read(&object, size).await?;
        Ok((bytes.to_vec(), object.meta().version))
    }

    /// Replaces the record with this version, or writes the first one. Returns the version of the
    /// new one.
    pub(super) async fn write(
        &self,
        id: UploadId,
        record: &Record,
        version: Option<Version>,
    ) -> Result<Version, ReceiveError> {
        let condition = match version {
            Some(version) => Condition::Versions(vec![version]),
            None => Condition::Absent,
        };
        let bytes = record.to_bytes();
        let written = async {
            let key = id.key()?;
            let size = Some(bytes.len() as u64);
            let mut object = self.store.stage(&key, condition, size).await?;
            object.write(bytes.clone()).await?;
            object.commit().await
        };
        let error = match written.await {
            Ok(committed) => return Ok(committed.meta.version),
            Err(error) => error,
        };
        let may_be_written = matches!(
            error,
            StoreError::PreconditionFailed
                | StoreError::Interrupted
                | StoreError::Timeout
                | StoreError::BadResponse
        );
        // A service may have made the change before it failed, and refuse to make it again.
        if may_be_written
            && let Ok((found, version)) = self.read_bytes(id).await
            && found == bytes
        {
            return Ok(version);
        }
        Err(match error {
            StoreError::PreconditionFailed => ReceiveError::Body(TAKEN_OVER),
            error => ReceiveError::Store(error),
        })
    }

    /// Calls `visit` for each upload with a record. Only one record is in memory at a time, and the
    /// worker serves others after each. Fails if a record cannot be read now: the limits would not
    /// count it. What is no record is passed over.
    pub(super) async fn each_record(
        &self,
        visit: impl AsyncFnMut(UploadId, Summary),
    ) -> onrush_store::Result<()> {
        let mut before = std::mem::take(&mut *self.lock_known());
        let mut known = HashMap::new();
        let visited = self.visit_records(&mut before, &mut known, visit).await;
        if visited.is_err() {
            known.extend(before); // The next search compares their versions.
        }
        *self.lock_known() = known;
        visited
    }

    /// Moves what is still the same from `before` to `known`, and adds what is new.
    async fn visit_records(
        &self,
        before: &mut HashMap<UploadId, Summary>,
        known: &mut HashMap<UploadId, Summary>,
        mut visit: impl AsyncFnMut(UploadId, Summary),
    ) -> onrush_store::Result<()> {
        let each = async |id, listed| {
            let same = before.remove(&id);
            let same = same.filter(|known| known.version == listed);
            let summary = match same {
                Some(summary) => summary,
                None => {
                    let Some((record, version)) = self.find(id).await? else {
                        return Ok(());
                    };
                    Summary {
                        version,
                        bytes: record.kept_bytes(),
                        holder: record.holder(),
                        used: record.used,
                        is_kept: self.resumable()?.is_kept(&record.kept()).await?,
                    }
                }
            };
            known.insert(id, summary);
            visit(id, summary).await;
            Ok(())
        };
        self.list(each).await
    }

    /// All uploads with a record.
    pub(super) async fn all(&self) -> onrush_store::Result<Vec<RecordedUpload>> {
        let mut all = Vec::new();
        let each = async |id, _| {
            if let Some((record, _)) = self.find(id).await?
                && let Ok(key) = Key::parse(&record.key)
            {
                let kept = record.kept();
                let arrived_bytes = record.parts.as_ref().map(Parts::arrived_bytes);
                all.push(RecordedUpload {
                    key,
                    kept,
                    arrived_bytes,
                });
            }
            Ok(())
        };
        self.list(each).await?;
        Ok(all)
    }

    /// The record of an upload. `None` if there is none any more, or it cannot be understood.
    async fn find(&self, id: UploadId) -> onrush_store::Result<Option<(Record, Version)>> {
        match self.read(id).await {
            Ok(found) => Ok(Some(found)),
            Err(ReceiveError::Body(_)) => Ok(None),
            Err(ReceiveError::Store(error)) => Err(error),
        }
    }

    /// Calls `each` for each name of a record, with the version in the listing.
    async fn list(
        &self,
        mut each: impl AsyncFnMut(UploadId, Version) -> onrush_store::Result<()>,
    ) -> onrush_store::Result<()> {
        let folder = UploadId::folder()?;
        let mut how = ListHow {
            limit: 1000,
            hidden: true,
            ..ListHow::default()
        };
        loop {
            let page = match self.store.list(Some(&folder), how.clone()).await {
                Err(StoreError::NotFound) => break,
                page => page?,
            };
            for entry in page.entries {
                let id = UploadId::parse(&entry.name);
                let Some(id) = id.filter(|_| entry.kind == Kind::File) else {
                    continue;
                };
                each(id, entry.version).await?;
                coop::yield_now().await;
            }
            match page.next {
                Some(next) => how.after = Some(next),
                None => break,
            }
        }
        Ok(())
    }

    fn lock_known(&self) -> std::sync::MutexGuard<'_, HashMap<UploadId, Summary>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the bytes and the record of an upload, which has this version.
    pub(super) async fn remove(
        &self,
        id: UploadId,
        record: &Record,
        version: Version,
    ) -> Result<(), ReceiveError> {
        if self.store.features().shared_uploads {
            // Otherwise a server that continues it would lose what it has acknowledged.
            let removed = Record {
                is_removed: true,
                ..record.clone()
            };
            self.write(id, &removed, Some(version)).await?;
        }
        let remove = async {
            self.discard(&record.kept()).await?;
            self.remove_record(id).await
        };
        remove.await.map_err(ReceiveError::Store)
    }

    /// Removes what only `kept` needs, which could not be recorded in the place of `old` because
    /// another server has continued the upload: no limit counts it.
    pub(super) async fn drop_unrecorded(
        &self,
        id: UploadId,
        kept: &PartialUpload,
        old: &PartialUpload,
    ) {
        match self.read(id).await {
            // The other one may have found it in the record, if the change was made and refused
            // when it was repeated.
            Ok((current, _)) => self.discard_replaced(kept, &current.kept()).await,
            Err(ReceiveError::Body(_)) => self.discard_replaced(kept, old).await,
            Err(ReceiveError::Store(_)) => {} // Its age removes it.
        }
    }

    pub(super) async fn remove_record(&self, id: UploadId) -> onrush_store::Result<()> {
        let key = id.key()?;
        match self.store.delete(&key, Kind::File, Condition::None).await {
            Ok(_) | Err(StoreError::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.index.remove(id);
        Ok(())
    }
}
