//! One request with a part of an upload whose parts arrive in any order.

use super::{FoundUpload, NO_UPLOAD, Session, UploadId, Uploads};
use crate::files::http::digest::Digests;
use crate::files::receive::upload::{self, ReceiveError, Sink, UploadBuffers};
use onrush::{RequestBody, WorkerHandle};
use onrush_store::sync::Held;
use onrush_store::{Key, PartialUpload, StoreError};
use std::ops::Range;
use std::sync::Arc;

/// Where a part belongs, and for whom.
pub(in crate::files) struct PartPlan {
    pub(in crate::files) id: UploadId,
    pub(in crate::files) key: Key,
    pub(in crate::files) owner: Option<String>,
    pub(in crate::files) range: Range<u64>,
    /// The digests of its content.
    pub(in crate::files) content: Digests,
}

impl Uploads {
    /// Receives a part, and returns the upload with it. An earlier request for the part ends; if it
    /// has arrived, the body is not read. If this fails, the part is missing as before. If bytes of
    /// other parts may be lost, the upload is removed.
    pub(in crate::files) async fn receive_part(
        self: &Arc<Self>,
        plan: PartPlan,
        body: &mut RequestBody,
        buffers: &UploadBuffers,
        worker: &WorkerHandle,
    ) -> Result<Session, ReceiveError> {
        let (id, offset) = (plan.id, plan.range.start);
        let open = async || {
            let found = self.open(id, &plan.key, plan.owner.as_deref(), worker);
            match found.await? {
                FoundUpload::Unfinished(session) => Ok(*session),
                FoundUpload::Completed(_) => Err(ReceiveError::Body(NO_UPLOAD)),
            }
        };
        let guard = self.active_parts.acquire((id, offset)).await;
        let session = open().await?;
        if session.parts().is_none_or(|parts| parts.contains(offset)) {
            return Ok(session); // Its bytes were verified and must not change.
        }
        let mut sink = PartSink {
            uploads: self.clone(),
            id,
            kept: session.kept(),
            swaps: session.swaps(),
            position: offset,
            content: plan.content,
            counted: 0,
        };
        drop(session); // Others may use the upload meanwhile.
        let length = plan.range.end - plan.range.start;
        sink.receive(body, length, buffers, &guard).await?;
        let synced = async { self.resumable()?.sync_partial(&sink.kept).await }.await;
        let mut session = open().await?;
        if let Err(error) = synced {
            // A sync that was not tried says nothing about what was acknowledged.
            if !was_not_tried(&error) {
                let _ = session.cancel().await;
            }
            return Err(ReceiveError::Store(error));
        }
        session.add_part(offset).await?;
        sink.counted = 0; // From now on, they count until the upload ends.
        Ok(session)
    }
}

/// Whether a sync was refused before it was made.
fn was_not_tried(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable | StoreError::Busy)
}

/// Writes a part to its place.
struct PartSink {
    uploads: Arc<Uploads>,
    id: UploadId,
    kept: PartialUpload,
    /// See [`Uploads::end_use`].
    swaps: u64,
    position: u64,
    content: Digests,
    /// The bytes that no longer count if the part does not arrive.
    counted: u64,
}

impl Drop for PartSink {
    fn drop(&mut self) {
        self.uploads.index.subtract(self.id, self.counted);
        self.uploads.end_use(self.id, self.swaps);
    }
}

impl PartSink {
    async fn receive(
        &mut self,
        body: &mut RequestBody,
        length: u64,
        buffers: &UploadBuffers,
        guard: &Held<(UploadId, u64)>,
    ) -> Result<(), ReceiveError> {
        let stop = |cx: &mut std::task::Context<'_>| guard.is_wanted(cx);
        upload::receive(body, Some(length), self, buffers, &stop).await?;
        std::mem::take(&mut self.content)
            .check()
            .map_err(ReceiveError::Body)
    }
}

impl Sink for PartSink {
    async fn write(&mut self, buf: Vec<u8>) -> Result<Vec<u8>, ReceiveError> {
        let bytes = buf.len() as u64;
        (self.uploads.index).add(self.id, bytes, &self.uploads.limits())?;
        self.counted += bytes;
        self.content.update(&buf).await;
        let uploads = self.uploads.resumable().map_err(ReceiveError::Store)?;
        let written = uploads.write_partial(&self.kept, self.position, buf).await;
        self.position += bytes;
        written.map_err(|error| match error {
            StoreError::NotFound => ReceiveError::Body(NO_UPLOAD),
            error => ReceiveError::Store(error),
        })
    }
}
