//! The use of an unfinished upload by one request.

use super::record::{Record, SavedCondition, Used};
use super::records::TAKEN_OVER;
use super::{
    CHECKPOINT_BYTES, Completed, NO_UPLOAD, NewUpload, Parts, Progress, UploadId, Uploads,
};
use crate::files::http::digest::Digests;
use crate::files::http::http_error::HttpError;
use crate::files::receive::upload::{self, ReceiveError, Sink, UploadBuffers};
use crate::files::shared::client_rights::REVOKED;
use crate::shares::{Holder, Share};
use onrush::{RequestBody, WorkerHandle};
use onrush_store::sync::Held;
use onrush_store::{Committed, Condition, Key, PartialUpload, StoreError, Upload, Version};
use std::sync::Arc;
use std::time::Duration;

pub(in crate::files) const TOO_LONG: HttpError =
    HttpError::new(400, "the upload is longer than it has announced");
/// How long the record of a complete upload stays: longer than a response is on its way.
const RECORD_KEPT: Duration = Duration::from_secs(2);
const PARTS_MISSING: HttpError = HttpError::new(409, "parts of the upload are missing");

/// An unfinished upload that one request uses. Dropping it keeps what was saved.
pub(in crate::files) struct Session {
    state: SessionState,
    guard: Held<UploadId>,
}

struct SessionState {
    uploads: Arc<Uploads>,
    /// See [`Uploads::end_use`].
    swaps: u64,
    id: UploadId,
    key: Key,
    record: Record,
    /// The version of the stored record; `None` if there is none yet.
    version: Option<Version>,
    /// `None` until bytes are appended, and after an error that ends the upload of this session.
    upload: Option<Box<dyn Upload>>,
    /// The place of its file, which is closed before.
    place: Option<Share>,
    /// Of the whole object, as far as it has arrived.
    digests: Digests,
    /// What it joins. The partial uploads end when it is published, and its record after them.
    joins: Option<Joins>,
    worker: WorkerHandle,
}

/// What an upload that joins others is made of.
struct Joins {
    sources: Vec<Session>,
    tus_concat: Arc<str>,
}

impl Session {
    pub(super) fn new(
        uploads: &Arc<Uploads>,
        id: UploadId,
        guard: Held<UploadId>,
        plan: NewUpload,
        worker: &WorkerHandle,
    ) -> Session {
        let record = Record {
            key: plan.key.as_bytes().to_owned(),
            owner: plan.owner,
            length: plan.length,
            offset: 0,
            parts: plan.parts,
            is_partial: plan.is_partial,
            place: Vec::new(),
            condition: SavedCondition::new(&plan.condition),
            metadata: plan.metadata,
            digests: Vec::new(),
            tus_metadata: plan.tus_metadata,
            used: Used {
                updated_s: worker.unix_seconds(),
                claimed_s: 0,
            },
            is_removed: false,
        };
        let state = SessionState {
            uploads: uploads.clone(),
            swaps: uploads.store.swaps(),
            id,
            key: plan.key,
            record,
            version: None,
            upload: None,
            place: None,
            digests: plan.digests,
            joins: None,
            worker: worker.clone(),
        };
        Session { state, guard }
    }

    /// `holder`: the client that sends the bytes.
    pub(super) async fn begin(mut self, holder: Holder) -> Result<Session, ReceiveError> {
        self.state.hold(holder)?;
        let (condition, length) = (
            self.state.record.condition.condition(),
            self.state.record.length,
        );
        let uploads = self
            .state
            .uploads
            .resumable()
            .map_err(ReceiveError::Store)?;
        let staged = uploads.stage_resumable(&self.state.key, condition, length);
        let mut upload = staged.await.map_err(ReceiveError::Store)?;
        let set = upload.set_metadata(self.state.record.metadata.clone());
        set.map_err(ReceiveError::Store)?;
        self.state.upload = Some(upload);
        Ok(self)
    }

    /// An upload with a stored record.
    pub(super) fn saved(
        uploads: &Arc<Uploads>,
        id: UploadId,
        guard: Held<UploadId>,
        key: &Key,
        record: Record,
        version: Version,
        worker: &WorkerHandle,
    ) -> Result<Session, ReceiveError> {
        let digests = Digests::restore(&record.digests);
        let state = SessionState {
            uploads: uploads.clone(),
            swaps: uploads.store.swaps(),
            id,
            key: key.clone(),
            version: Some(version),
            upload: None,
            place: None,
            digests: digests.ok_or(ReceiveError::Body(NO_UPLOAD))?,
            joins: None,
            record,
            worker: worker.clone(),
        };
        Ok(Session { state, guard })
    }

    pub(in crate::files) fn id(&self) -> UploadId {
        self.state.id
    }

    /// `Upload-Metadata` of the tus client that has begun the upload.
    pub(in crate::files) fn tus_metadata(&self) -> Option<&str> {
        self.state.record.tus_metadata.as_deref()
    }

    /// The parts, if they arrive in any order.
    pub(in crate::files) fn parts(&self) -> Option<&Parts> {
        self.state.record.parts.as_ref()
    }

    /// Whether its bytes are a part of an object, which another request joins with others.
    pub(in crate::files) fn is_partial(&self) -> bool {
        self.state.record.is_partial
    }

    /// Where the store has the bytes.
    pub(super) fn kept(&self) -> PartialUpload {
        self.state.record.kept()
    }

    /// For [`Uploads::end_use`].
    pub(super) fn swaps(&self) -> u64 {
        self.state.swaps
    }

    /// Records that the part at `offset` has arrived. Its bytes are durable.
    pub(super) async fn add_part(&mut self, offset: u64) -> Result<(), ReceiveError> {
        let mut record = self.state.record.clone();
        let parts = record.parts.as_mut().ok_or(ReceiveError::Body(NO_UPLOAD))?;
        parts.insert(offset);
        record.offset = parts.offset();
        record.used.updated_s = self.state.worker.unix_seconds();
        self.state.write(record).await
    }

    /// What has been saved.
    pub(in crate::files) fn progress(&self) -> Progress {
        let age_s = self.state.uploads.limits().age_max_s;
        let expires_s = self.state.record.used.expires_s(age_s);
        Progress {
            offset: self.state.record.offset,
            length: self.state.record.length,
            is_complete: false,
            expires_in_s: expires_s.saturating_sub(self.state.worker.unix_seconds()),
        }
    }

    /// Sets the length of the object. Returns `false` if it was announced as another one, or more
    /// has arrived.
    pub(in crate::files) fn announce(&mut self, length: u64) -> Result<bool, ReceiveError> {
        if self
            .state
            .record
            .length
            .is_some_and(|known| known != length)
            || self.state.record.offset > length
        {
            return Ok(false);
        }
        let limits = self.state.uploads.limits();
        if length > limits.object_bytes_max {
            return Err(ReceiveError::Body(limits.too_large()));
        }
        (self.state.uploads.index).check(self.state.id, length, &limits)?;
        self.state.record.length = Some(length);
        Ok(true)
    }

    /// Prepares a saved upload for more bytes of the client `holder`; `None`: all have arrived.
    /// `may_replace`: the client may replace objects.
    pub(in crate::files) async fn resume(
        &mut self,
        may_replace: bool,
        holder: Option<Holder>,
    ) -> Result<(), ReceiveError> {
        let condition = match may_replace {
            true => self.state.record.condition.condition(),
            false => Condition::Absent,
        };
        if self.parts().is_some() && self.state.record.length != Some(self.state.record.offset) {
            return Err(ReceiveError::Body(PARTS_MISSING)); // A resume would drop those after it.
        }
        if let Some(holder) = holder {
            self.state.hold(holder)?;
        }
        let mut upload = match self.state.resume_saved(condition).await {
            Err(ReceiveError::Store(StoreError::NotFound)) => {
                // The bytes are lost, so the upload is, unless another server has continued it.
                self.state.remove().await?;
                return Err(ReceiveError::Body(NO_UPLOAD));
            }
            resumed => resumed?,
        };
        self.state.count_saved(); // The rest was dropped.
        let set = upload.set_metadata(self.state.record.metadata.clone());
        set.map_err(ReceiveError::Store)?;
        self.state.upload = Some(upload);
        self.state.take_over().await
    }

    /// Appends the body of a request. If that fails, what has arrived is kept, unless `content` has
    /// digests: bytes that cannot be verified are dropped. `on_progress` gets each offset that was
    /// saved on the way.
    pub(in crate::files) async fn receive(
        &mut self,
        body: &mut RequestBody,
        length: Option<u64>,
        content: Digests,
        buffers: &UploadBuffers,
        on_progress: &dyn Fn(u64),
    ) -> Result<(), ReceiveError> {
        let guard = &self.guard;
        let mut appending = Appending {
            is_saved: content.is_empty(),
            content,
            state: &mut self.state,
            on_progress,
        };
        let stop = |cx: &mut std::task::Context<'_>| guard.is_wanted(cx);
        let received = upload::receive(body, length, &mut appending, buffers, &stop).await;
        if let Err(error) = received {
            // The first error counts. What could not be saved was not acknowledged.
            match appending.is_saved && appending.state.upload.is_some() {
                true => drop(appending.state.save().await),
                false => appending.state.drop_unsaved().await,
            }
            self.state.upload = None;
            return Err(error);
        }
        let verified = appending.content.check();
        if verified.is_err() {
            appending.state.drop_unsaved().await;
        }
        verified.map_err(ReceiveError::Body)
    }

    /// Keeps the bytes and writes the record.
    pub(in crate::files) async fn save(&mut self) -> Result<(), ReceiveError> {
        self.state.save().await
    }

    /// The number of bytes that have arrived.
    fn written_bytes(&self) -> u64 {
        let upload = self.state.upload.as_ref();
        upload.map_or(self.state.record.offset, |upload| upload.written_bytes())
    }

    /// Whether fewer bytes have arrived than were announced.
    pub(in crate::files) fn is_short(&self) -> bool {
        let length = self.state.record.length;
        length.is_some_and(|length| self.written_bytes() < length)
    }

    /// Appends the bytes of `sources`, partial uploads, and records that. The upload is theirs from
    /// then on; `tus_concat` is the field that names them.
    pub(super) async fn append_all(
        &mut self,
        sources: Vec<Session>,
        tus_concat: &str,
    ) -> Result<(), ReceiveError> {
        for source in &sources {
            let upload = self.state.upload.as_mut();
            let upload = upload.ok_or(ReceiveError::Body(NO_UPLOAD))?;
            match upload.append_partial(&source.kept()).await {
                Err(StoreError::NotFound) => {
                    // The bytes are lost, so the partial upload is.
                    let _ = self.state.uploads.remove_record(source.id()).await;
                    return Err(ReceiveError::Body(NO_UPLOAD));
                }
                appended => appended.map_err(ReceiveError::Store)?,
            }
        }
        let tus_concat = tus_concat.into();
        self.state.joins = Some(Joins {
            sources,
            tus_concat,
        });
        self.state.save().await
    }

    /// Publishes the object. The upload ends, also if that fails, but not if it may succeed later:
    /// then the bytes are kept, and the next request publishes them.
    pub(in crate::files) async fn complete(mut self) -> Result<Committed, ReceiveError> {
        self.publish().await
    }

    /// As [`Session::complete`], but if it fails, the upload ends in any case.
    pub(super) async fn complete_or_cancel(mut self) -> Result<Committed, ReceiveError> {
        let published = self.publish().await;
        if published.is_err() {
            let _ = self.cancel().await;
        }
        published
    }

    async fn publish(&mut self) -> Result<Committed, ReceiveError> {
        if self.state.version.is_some() && self.state.is_shared() {
            // Another server may have taken it over meanwhile.
            self.state.save_or_take_over().await?;
        }
        let digests = std::mem::take(&mut self.state.digests);
        if let Err(failure) = digests.check() {
            self.state.upload = None;
            let _ = self.state.remove().await;
            return Err(ReceiveError::Body(failure));
        }
        let upload = self.state.upload.take();
        let upload = upload.ok_or(ReceiveError::Body(NO_UPLOAD))?;
        let committed = upload.commit().await;
        // If this fails, a later request finds that the bytes are gone. After a failed commit they
        // are still there.
        let mut tus_concat = None;
        if committed.is_ok()
            && let Some(joins) = self.state.joins.take()
        {
            for source in joins.sources {
                let _ = source.cancel().await; // What is left is removed by its age.
            }
            tus_concat = Some(joins.tus_concat);
        }
        match committed {
            Ok(_) if self.state.version.is_some() => self.state.remove_record_later(),
            Ok(_) => {}
            Err(error) if error.is_temporary() => self.state.count_saved(),
            Err(_) => drop(self.state.remove().await),
        }
        let is_shared = self.state.is_shared();
        let committed = match committed {
            // A request to another server has used the upload at the same time.
            Err(StoreError::NotFound) if is_shared => return Err(ReceiveError::Body(NO_UPLOAD)),
            Err(StoreError::Conflict) if is_shared => return Err(ReceiveError::Body(TAKEN_OVER)),
            committed => committed,
        };
        let committed = committed.map_err(ReceiveError::Store)?;
        let (owner, length) = (self.state.record.owner.take(), committed.meta.size);
        let completed = Completed { length, tus_concat };
        (self.state.uploads.index).complete(self.state.id, &self.state.key, owner, completed);
        Ok(committed)
    }

    /// Removes the upload.
    pub(in crate::files) async fn cancel(mut self) -> Result<(), ReceiveError> {
        self.state.upload = None; // Removes bytes that were not kept.
        self.state.remove().await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let SessionState { uploads, id, .. } = &self.state;
        match self.state.version {
            None => uploads.index.remove(*id),
            Some(_) => uploads.end_use(*id, self.state.swaps),
        }
    }
}

impl SessionState {
    /// Takes the place of the file that is going to be open while a client sends. The response is
    /// one after which clients of tus try again, which they do not after 429.
    fn hold(&mut self, holder: Holder) -> Result<(), ReceiveError> {
        let place = self.uploads.open_files.hold_upload(503, || holder);
        self.place = place.map_err(ReceiveError::Body)?;
        Ok(())
    }

    /// Keeps the bytes and writes the record.
    async fn save(&mut self) -> Result<(), ReceiveError> {
        let upload = self.upload.as_mut().ok_or(ReceiveError::Body(NO_UPLOAD))?;
        let kept = upload.keep().await.map_err(ReceiveError::Store)?;
        let is_new = self.version.is_none();
        let record = Record {
            offset: kept.bytes,
            place: kept.place.clone(),
            digests: self.digests.save(),
            // The store removes bytes by their age, so only bytes prolong the upload.
            used: match is_new || kept.bytes > self.record.offset {
                true => Used {
                    updated_s: self.worker.unix_seconds(),
                    ..self.record.used
                },
                false => self.record.used,
            },
            ..self.record.clone()
        };
        let old = self.record.kept();
        if let Err(error) = self.write(record).await {
            if is_new {
                self.upload = None;
                let _ = self.uploads.discard(&kept).await; // Nothing refers to it.
            } else if matches!(error, ReceiveError::Body(TAKEN_OVER)) {
                self.upload = None;
                self.uploads.drop_unrecorded(self.id, &kept, &old).await;
            }
            return Err(error);
        }
        if !is_new && old != kept {
            let uploads = self.uploads.clone();
            let discard_replaced = async move { uploads.discard_replaced(&old, &kept).await };
            self.worker.spawn(discard_replaced).detach();
        }
        Ok(())
    }

    /// Keeps the bytes that have arrived since the last time, or takes the upload over. A later
    /// request can complete it then without them.
    async fn save_or_take_over(&mut self) -> Result<(), ReceiveError> {
        let upload = self.upload.as_ref();
        match upload.is_some_and(|upload| upload.written_bytes() > self.record.offset) {
            true => self.save().await,
            false => self.take_over().await,
        }
    }

    /// Resumes what has been saved. Fails if another process has saved more since the record was
    /// read: now that it does not use the upload any more, the record is the last one.
    async fn resume_saved(&self, condition: Condition) -> Result<Box<dyn Upload>, ReceiveError> {
        let kept = self.record.kept();
        let uploads = self.uploads.resumable().map_err(ReceiveError::Store)?;
        let resumed = uploads.resume(&self.key, condition, &kept).await;
        let upload = resumed.map_err(ReceiveError::Store)?;
        if !self.is_shared() {
            let (_, version) = self.uploads.read(self.id).await?;
            if Some(version) != self.version {
                return Err(ReceiveError::Body(TAKEN_OVER));
            }
        }
        Ok(upload)
    }

    /// Records that this server continues the upload, if the store has other servers. Fails if
    /// another one does.
    async fn take_over(&mut self) -> Result<(), ReceiveError> {
        let upload = self.upload.as_mut().ok_or(ReceiveError::Body(NO_UPLOAD))?;
        let Some(kept) = upload.take_over() else {
            return Ok(());
        };
        let record = Record {
            place: kept.place,
            used: Used {
                claimed_s: self.worker.unix_seconds(),
                ..self.record.used
            },
            ..self.record.clone()
        };
        self.write(record).await
    }

    /// Removes the bytes and the record, if there is one and no other server has replaced it.
    async fn remove(&self) -> Result<(), ReceiveError> {
        match self.version {
            Some(version) => self.uploads.remove(self.id, &self.record, version).await,
            None => Ok(()),
        }
    }

    fn is_shared(&self) -> bool {
        self.uploads.store.features().shared_uploads
    }

    /// Replaces the stored record. Fails if its user has been removed.
    async fn write(&mut self, record: Record) -> Result<(), ReceiveError> {
        if self.uploads.is_of_removed(&record) {
            return Err(ReceiveError::Body(REVOKED));
        }
        let written = self.uploads.write(self.id, &record, self.version);
        self.version = Some(written.await?);
        self.record = record;
        Ok(())
    }

    /// Removes the record of a complete upload, once its client has had the time to learn of it. If
    /// the process is killed before, the record and the object say it to the next one.
    fn remove_record_later(&self) {
        self.uploads.index.remove(self.id);
        let (uploads, id, worker) = (self.uploads.clone(), self.id, self.worker.clone());
        let remove = async move {
            worker.sleep(RECORD_KEPT).await;
            let _ = uploads.remove_record(id).await; // What is left is removed by its age.
        };
        self.worker.spawn(remove).detach();
    }

    /// Drops the bytes that were not saved.
    async fn drop_unsaved(&mut self) {
        self.upload = None;
        if self.version.is_none() {
            return; // Nothing is kept.
        }
        if self.is_shared() {
            self.count_saved(); // The next resume has the kept bytes only.
            return;
        }
        // What follows the kept bytes is dropped when they are kept again.
        if let Ok(mut upload) = self.resume_saved(Condition::None).await
            && upload.keep().await.is_ok()
        {
            self.count_saved();
        }
    }

    /// Counts the saved bytes against the limit of all uploads, and no others.
    fn count_saved(&self) {
        (self.uploads.index).set(self.id, self.record.kept_bytes());
    }
}

/// Takes the bytes of one request.
struct Appending<'s> {
    state: &'s mut SessionState,
    /// The digests of the content of this request.
    content: Digests,
    /// Whether bytes are saved before the request is complete.
    is_saved: bool,
    on_progress: &'s dyn Fn(u64),
}

impl Sink for Appending<'_> {
    async fn write(&mut self, buf: Vec<u8>) -> Result<Vec<u8>, ReceiveError> {
        let state = &mut *self.state;
        let upload = state.upload.as_mut().ok_or(ReceiveError::Body(NO_UPLOAD))?;
        let end = upload.written_bytes().saturating_add(buf.len() as u64);
        if state.record.length.is_some_and(|length| end > length) {
            return Err(ReceiveError::Body(TOO_LONG));
        }
        if end > state.uploads.limits().object_bytes_max {
            return Err(ReceiveError::Body(state.uploads.limits().too_large()));
        }
        (state.uploads.index).grow(state.id, end, &state.uploads.limits())?;
        state.digests.update(&buf).await;
        self.content.update(&buf).await;
        let buf = match upload.write(buf).await {
            Ok(buf) => buf,
            Err(error) => {
                state.upload = None;
                return Err(match error {
                    // Another server has completed or removed it.
                    StoreError::NotFound => ReceiveError::Body(NO_UPLOAD),
                    error => ReceiveError::Store(error),
                });
            }
        };
        if self.is_saved && end - state.record.offset >= CHECKPOINT_BYTES {
            state.save().await?;
            (self.on_progress)(state.record.offset);
        }
        Ok(buf)
    }
}
