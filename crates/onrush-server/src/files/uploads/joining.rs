//! Joins the bytes of partial uploads to an object.

use super::{Completed, Found, NO_UPLOAD, Plan, Session, UploadId, Uploads};
use crate::files::http_error::HttpError;
use crate::files::upload::ReceiveError;
use onrush::WorkerHandle;
use onrush_store::{Committed, Key, StoreError, Upload};
use std::sync::Arc;

const TWICE: HttpError = HttpError::new(400, "an upload can be joined only once");
const NOT_PARTIAL: HttpError = HttpError::new(400, "only partial uploads can be joined");
const NOT_FINISHED: HttpError = HttpError::new(409, "a partial upload is not complete");

impl Uploads {
    /// Publishes the bytes of `sources`, partial uploads of the same owner, in their order as an
    /// object, and removes them. `tus_concat` is the field that names them. If this fails, they are
    /// left as they were. Other requests that use one of them end. `check` is asked before the
    /// object is published. Returns the id of the upload that the object was.
    pub(in crate::files) async fn join(
        self: &Arc<Self>,
        plan: Plan,
        sources: &[(UploadId, Key)],
        tus_concat: &str,
        check: &dyn Fn() -> Result<(), HttpError>,
        worker: &WorkerHandle,
    ) -> Result<(UploadId, Committed), ReceiveError> {
        let id = UploadId::random().ok_or(ReceiveError::Body(super::NO_RANDOM))?;
        let sessions = self
            .open_all(sources, plan.owner.as_deref(), worker)
            .await?;
        let bytes = sessions.iter().map(|session| session.progress().offset);
        let length = bytes.fold(0, u64::saturating_add);
        if length > self.limits().object_bytes_max {
            return Err(ReceiveError::Body(self.limits().too_large()));
        }
        let stage = self.store.stage(&plan.key, plan.condition, Some(length));
        let mut upload = stage.await.map_err(ReceiveError::Store)?;
        let set = upload.set_metadata(plan.metadata);
        set.map_err(ReceiveError::Store)?;
        for session in &sessions {
            self.append(&mut *upload, session).await?;
        }
        check().map_err(ReceiveError::Body)?;
        let committed = upload.commit().await.map_err(ReceiveError::Store)?;
        for session in sessions {
            let _ = session.cancel().await; // What is left is removed by its age.
        }
        let completed = Completed {
            length,
            tus_concat: Some(tus_concat.into()),
        };
        self.index.complete(id, &plan.key, plan.owner, completed);
        Ok((id, committed))
    }

    /// The uploads, in their order, if all of them are partial and complete.
    async fn open_all(
        self: &Arc<Self>,
        sources: &[(UploadId, Key)],
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
            let Found::Unfinished(session) = self.open(*id, key, owner, worker).await? else {
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

    async fn append(&self, upload: &mut dyn Upload, from: &Session) -> Result<(), ReceiveError> {
        match upload.append_kept(&from.kept()).await {
            Err(StoreError::NotFound) => {
                // The bytes are lost, so the partial upload is.
                let _ = self.remove_record(from.id()).await;
                Err(ReceiveError::Body(NO_UPLOAD))
            }
            appended => appended.map_err(ReceiveError::Store),
        }
    }
}
