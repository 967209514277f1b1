//! Joins the bytes of partial uploads to an object.
//!
//! The upload that joins them has an id that follows from theirs, and a record from before its
//! object is published until they have been removed. So a client that sends its request again,
//! because it has lost the response or the process was killed, learns that the object is there.

use super::{FoundUpload, NO_UPLOAD, NewUpload, Session, UploadId, Uploads};
use crate::files::http::http_error::HttpError;
use crate::files::receive::upload::ReceiveError;
use onrush::WorkerHandle;
use onrush_store::sync::Held;
use onrush_store::{Committed, Key};
use std::sync::Arc;

const TWICE: HttpError = HttpError::new(400, "an upload can be joined only once");
const NOT_PARTIAL: HttpError = HttpError::new(400, "only partial uploads can be joined");
const NOT_FINISHED: HttpError = HttpError::new(409, "a partial upload is not complete");

/// The partial uploads that a request joins, with the paths of their URLs.
pub(in crate::files) type Sources = [(UploadId, Key)];

/// An upload that is about to join others.
pub(in crate::files) struct Joining(Held<UploadId>);

/// How far an earlier request has come that has joined the same uploads.
pub(in crate::files) enum Before {
    /// Its object is published.
    Joined,
    Nothing(Joining),
}

impl Uploads {
    /// Begins to join the uploads `sources` of `owner` to the object `key`. Returns the id of the
    /// upload that joins them as well.
    pub(in crate::files) async fn begin_join(
        self: &Arc<Self>,
        key: &Key,
        owner: Option<&str>,
        sources: &Sources,
        worker: &WorkerHandle,
    ) -> Result<(UploadId, Before), ReceiveError> {
        self.sweep_from_now_on(worker);
        self.load_index(worker).await?;
        let id = UploadId::of_joined(sources, key, owner);
        let guard = self.active.acquire(id).await;
        if self.index.completed(id, key, owner).is_some() {
            return Ok((id, Before::Joined));
        }
        match self.read(id).await {
            Ok((record, version)) => {
                let published = self.find_published(id, key, &record, worker).await?;
                if published.is_some() {
                    // Those that the earlier process has left.
                    for (id, key) in sources {
                        let found = self.open(*id, key, owner, worker).await;
                        if let Ok(FoundUpload::Unfinished(session)) = found
                            && session.is_partial()
                        {
                            let _ = session.cancel().await;
                        }
                    }
                    return Ok((id, Before::Joined));
                }
                self.remove(id, &record, version).await?;
            }
            Err(ReceiveError::Body(_)) => {}
            Err(error) => return Err(error),
        }
        Ok((id, Before::Nothing(Joining(guard))))
    }

    /// Publishes the bytes of `sources`, partial uploads of the same owner, in their order as an
    /// object, and removes them. `tus_concat` is the field that names them. If this fails, they are
    /// left as they were. Other requests that use one of them end. `check` is asked before the
    /// object is published.
    pub(in crate::files) async fn join(
        self: &Arc<Self>,
        (id, Joining(guard)): (UploadId, Joining),
        plan: NewUpload,
        (sources, tus_concat): (&Sources, &str),
        check: &dyn Fn() -> Result<(), HttpError>,
        worker: &WorkerHandle,
    ) -> Result<Committed, ReceiveError> {
        let sessions = self
            .open_all(sources, plan.owner.as_deref(), worker)
            .await?;
        let bytes = sessions.iter().map(|session| session.progress().offset);
        let length = bytes.fold(0, u64::saturating_add);
        if length > self.limits().object_bytes_max {
            return Err(ReceiveError::Body(self.limits().too_large()));
        }
        let holder = plan.holder;
        let plan = NewUpload {
            length: Some(length),
            ..plan
        };
        let session = Session::new(self, id, guard, plan, worker);
        let mut session = session.begin(holder).await?;
        session.append_all(sessions, tus_concat).await?;
        if let Err(failure) = check() {
            let _ = session.cancel().await;
            return Err(ReceiveError::Body(failure));
        }
        session.complete_or_cancel().await
    }

    /// The uploads, in their order, if all of them are partial and complete.
    async fn open_all(
        self: &Arc<Self>,
        sources: &Sources,
        owner: Option<&str>,
        worker: &WorkerHandle,
    ) -> Result<Vec<Session>, ReceiveError> {
        // In the order of their ids, so that two requests never wait for each other.
        let mut numbers: Vec<usize> = (0..sources.len()).collect();
        numbers.sort_by_key(|&number| sources[number].0);
        if numbers
            .windows(2)
            .any(|two| sources[two[0]].0 == sources[two[1]].0)
        {
            return Err(ReceiveError::Body(TWICE)); // The second one would wait for the first one.
        }
        let mut opened = Vec::new();
        for number in numbers {
            let (id, key) = &sources[number];
            let FoundUpload::Unfinished(session) = self.open(*id, key, owner, worker).await? else {
                return Err(ReceiveError::Body(NO_UPLOAD));
            };
            if !session.is_partial() {
                return Err(ReceiveError::Body(NOT_PARTIAL));
            }
            let progress = session.progress();
            if progress.length != Some(progress.offset) {
                return Err(ReceiveError::Body(NOT_FINISHED));
            }
            opened.push((number, *session));
        }
        opened.sort_by_key(|(number, _)| *number);
        Ok(opened.into_iter().map(|(_, session)| session).collect())
    }
}
