//! Uploads whose parts arrive in any order, over several connections at a time: an extension of
//! `resumable`.
//!
//! The `PUT` that begins one has `Onrush-Part-Size`, its length, and no content. A `PATCH` with
//! `Upload-Complete: ?0` sends the part at its offset. Responses say in `Onrush-Parts` which have
//! arrived. When all have, an empty `PATCH` completes the upload as any other.

use crate::files::http::digest::Digests;
use crate::files::http::http_error::HttpError;
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::resume::upload_target::{content_length, integer};
use crate::files::shared::client_rights::owner;
use crate::files::shared::destination::Destination;
use crate::files::uploads::{PartPlan, Parts, Session};
use onrush::{Request, Response};

const IN_ORDER: HttpError = HttpError::new(501, "this store takes the bytes of an upload in order");
const BAD_SIZE: HttpError = HttpError::new(
    400,
    "Onrush-Part-Size is malformed, or the upload has more than 10000 parts",
);
const NOT_PLANNED: HttpError = HttpError::new(
    400,
    "an upload in parts begins with its Upload-Length, without content and without Repr-Digest",
);
const NO_LENGTH: HttpError = HttpError::new(411, "a part needs Content-Length");
const WRONG_PART: HttpError = HttpError::new(
    400,
    "a part begins at a multiple of Onrush-Part-Size and has this length, except for the last one",
);

/// Adds the fields about the parts of an upload, if it has any.
pub(in crate::files) fn with_parts(response: Response, session: &Session) -> Response {
    match session.parts() {
        None => response,
        Some(parts) => response
            .with_header("Onrush-Part-Size", parts.part_bytes().to_string())
            .with_header("Onrush-Parts", parts.arrived()),
    }
}

impl UploadProtocols {
    /// The parts that the `PUT` of an upload announces. `length`: of the object; `digests`: those
    /// of the whole object, which cannot be computed in any order.
    pub(in crate::files) fn announced(
        &self,
        request: &Request,
        length: Option<u64>,
        digests: &Digests,
    ) -> Result<Option<Parts>, HttpError> {
        let Some(value) = request.header("onrush-part-size") else {
            return Ok(None);
        };
        if !self.uploads.take_parts() {
            return Err(IN_ORDER);
        }
        let part_bytes = integer(value).filter(|&bytes| bytes > 0).ok_or(BAD_SIZE)?;
        let length = length.filter(|_| content_length(request) == Some(0) && digests.is_empty());
        let parts = Parts::new(length.ok_or(NOT_PLANNED)?, part_bytes);
        parts.map(Some).ok_or(BAD_SIZE)
    }

    /// Receives the part of an upload that begins at `offset`.
    pub(in crate::files) async fn receive_part(
        &self,
        request: Request,
        session: Session,
        offset: u64,
        to: &Destination,
    ) -> Result<Session, HttpError> {
        let length = content_length(&request).ok_or(NO_LENGTH)?;
        let range = session.parts().and_then(|parts| parts.at(offset));
        let range = range.filter(|range| range.end - range.start == length);
        let (content, _) = Digests::from_request(&request)?.split();
        let plan = PartPlan {
            id: session.id(),
            key: to.key.clone(),
            owner: owner(&request),
            range: range.ok_or(WRONG_PART)?,
            content,
        };
        drop(session); // Other requests may use the upload.
        let worker = request.worker().clone();
        let mut body = request.into_body();
        let buffers = &self.upload_buffers;
        let received = (self.uploads).receive_part(plan, &mut body, buffers, &worker);
        let received = received.await;
        received.map_err(|error| self.objects.upload_failure(error, &to.key))
    }
}
