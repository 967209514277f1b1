//! Resumable uploads as in draft-ietf-httpbis-resumable-upload, on the URL of the object.
//!
//! A `PUT` with `Upload-Complete` begins an upload. 104, and the response if more is to follow,
//! have its URL as `Location`: the path of the object with the id as a query (`uploads`). HEAD,
//! PATCH and DELETE of that URL return the offset, append, and cancel.
//!
//! As long as the draft is one, clients send `Upload-Draft-Interop-Version`; 104 is sent only to
//! clients with a version that behaves as the present one. Without 104, and without
//! `Upload-Complete: ?0`, a client cannot learn the URL: its request is an ordinary `PUT`. So is
//! one with a short body, because sending it again costs no more than asking for the offset.

use crate::files::http::digest::Digests;
use crate::files::http::http_error::HttpError;
use crate::files::http::negotiate::prefers_json;
use crate::files::receive::upload::ReceiveError;
use crate::files::resume::tus;
use crate::files::resume::upload_parts::with_parts;
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::resume::upload_target::{content_length, integer};
use crate::files::shared::client_rights::owner;
use crate::files::shared::destination::Destination;
use crate::files::uploads::{
    FoundUpload, NO_UPLOAD, NewUpload, Progress, Session, TOO_LONG, UploadId,
};
use crate::shares::Holder;
use onrush::{Request, Response};
use onrush_proto::token;

/// Shorter bodies are not worth an upload that can be continued.
const SHORT_BYTES: u64 = 256 * 1024;

/// The versions of the draft with the same fields: from draft 04 on.
const INTEROP_VERSIONS: std::ops::RangeInclusive<u64> = 6..=8;
/// The last version in which a limit had another name.
const INTEROP_WITH_EXPIRES: u64 = 6;

/// The type of the body of an append.
const PARTIAL_UPLOAD: &str = "application/partial-upload";

/// Where the problem types of the draft are registered.
const PROBLEMS: &str = "https://iana.org/assignments/http-problem-types#";

const NOT_OFFERED: HttpError = HttpError::new(
    501,
    "this store cannot continue uploads; send the whole object at once",
);
const NO_OFFSET: HttpError = HttpError::new(400, "an append needs Upload-Offset");
const PARTIAL: HttpError = HttpError::new(409, "this is a partial upload of a tus client");
const NO_COMPLETE: HttpError = HttpError::new(400, "an append needs Upload-Complete");

/// The fields of a request that concern uploads. Values of a wrong form are ignored, as the draft
/// demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) struct UploadFields {
    pub(in crate::files) is_complete: Option<bool>,
    pub(in crate::files) offset: Option<u64>,
    length: Option<u64>,
    interop_version: Option<u64>,
}

impl UploadFields {
    fn from_request(request: &Request) -> UploadFields {
        let number = |name: &str| integer(single(request, name)?);
        UploadFields {
            is_complete: match single(request, "upload-complete") {
                Some(b"?1") => Some(true),
                Some(b"?0") => Some(false),
                _ => None,
            },
            offset: number("upload-offset"),
            length: number("upload-length"),
            interop_version: number("upload-draft-interop-version")
                .filter(|version| INTEROP_VERSIONS.contains(version)),
        }
    }

    /// The length of the whole object after a request with `content_length` that begins at
    /// `offset`. Fails if it is announced twice, differently.
    fn total(&self, offset: u64, content_length: Option<u64>) -> Result<Option<u64>, Problem> {
        let from_content = match self.is_complete {
            Some(true) => content_length.map(|bytes| offset.saturating_add(bytes)),
            _ => None,
        };
        match (self.length, from_content) {
            (Some(announced), Some(found)) if announced != found => {
                Err(Problem::InconsistentLength)
            }
            (announced, found) => Ok(announced.or(found)),
        }
    }
}

/// The value of a field that occurs once, without parameters (RFC 9651 §3.3).
fn single<'r>(request: &'r Request, name: &'r str) -> Option<&'r [u8]> {
    let mut values = request.header_values(name);
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    let value = value.split(|&byte| byte == b';').next()?;
    Some(token::trim(value))
}

/// A problem type of the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    MismatchingOffset { expected: u64, provided: u64 },
    CompletedUpload,
    InconsistentLength,
}

impl Problem {
    /// The response. It is always a problem document, because clients depend on its type.
    fn response(self) -> Response {
        let (status, name, title) = match self {
            Problem::MismatchingOffset { .. } => (
                409,
                "mismatching-upload-offset",
                "the offset is not that of the upload",
            ),
            Problem::CompletedUpload => (400, "completed-upload", "the upload is complete already"),
            Problem::InconsistentLength => (
                400,
                "inconsistent-upload-length",
                "the lengths of the upload differ",
            ),
        };
        let offsets = match self {
            Problem::MismatchingOffset { expected, provided } => {
                format!(",\"expected-offset\":{expected},\"provided-offset\":{provided}")
            }
            _ => String::new(),
        };
        let text = format!(
            "{{\"type\":\"{PROBLEMS}{name}\",\"title\":\"{title}\",\"status\":{status}{offsets}}}\n"
        );
        let response = Response::with_body(text).content_type("application/problem+json");
        let response = response
            .with_status(status)
            .with_header("Cache-Control", "no-store");
        match self {
            Problem::MismatchingOffset { expected, .. } => {
                response.with_header("Upload-Offset", expected.to_string())
            }
            _ => response,
        }
    }
}

impl UploadProtocols {
    /// The fields of a `PUT` that begins an upload. `None`: it is an ordinary `PUT`.
    pub(in crate::files) fn begins_upload(&self, request: &Request) -> Option<UploadFields> {
        // Most have none of the fields.
        request.header("upload-complete")?;
        let fields = UploadFields::from_request(request);
        let begins = match fields.is_complete? {
            // A part must not become the object, also if uploads are not offered.
            false => true,
            true => {
                fields.interop_version.is_some()
                    && content_length(request).is_none_or(|bytes| bytes > SHORT_BYTES)
                    && self.uploads.serves(&self.objects.options)
            }
        };
        begins.then_some(fields)
    }

    /// `PUT` with `Upload-Complete`.
    pub(in crate::files) async fn put_resumable(
        &self,
        request: Request,
        fields: UploadFields,
    ) -> Result<Response, HttpError> {
        if !self.uploads.serves(&self.objects.options) {
            return Err(NOT_OFFERED);
        }
        let to = self.objects.object_destination(&request)?;
        let is_complete = fields.is_complete == Some(true);
        let content_length = content_length(&request);
        let Ok(length) = fields.total(0, content_length) else {
            return Ok(Problem::InconsistentLength.response());
        };
        let (plan, content) = self.plan(&request, &to, length).await?;
        let (worker, json) = (request.worker().clone(), prefers_json(&request));
        let mut body = request.into_body();
        let failed = |error| self.objects.upload_failure(error, &to.key);
        let mut session = self.uploads.create(plan, &worker).await.map_err(failed)?;
        if !is_complete {
            // The client may lose the response, and the URL with it; then this one expires.
            session.save().await.map_err(failed)?;
        }
        let url = to.location.clone() + &session.id().query();
        let interim = body.interim_responses();
        if let Some(version) = fields.interop_version {
            let limits = self.limits(&session.progress(), version);
            let version = version.to_string();
            let fields: [(&str, &[u8]); 3] = [
                ("Location", url.as_bytes()),
                ("Upload-Limit", limits.as_bytes()),
                ("Upload-Draft-Interop-Version", version.as_bytes()),
            ];
            let _ = interim.send(104, &fields);
        }
        let on_progress = |offset: u64| send_progress(&interim, fields.interop_version, offset);
        let buffers = &self.upload_buffers;
        let received = session.receive(&mut body, content_length, content, buffers, &on_progress);
        let received = received.await;
        let response = self
            .after_receiving(session, received, is_complete, (&to, json))
            .await;
        Ok(match response.header("location") {
            None => response.with_header("Location", url),
            Some(_) => response,
        })
    }

    /// What an upload needs to begin, and the digests of the content of this request.
    async fn plan(
        &self,
        request: &Request,
        to: &Destination,
        length: Option<u64>,
    ) -> Result<(NewUpload, Digests), HttpError> {
        let metadata_bytes_max = self.objects.store.features().metadata_bytes_max;
        let (metadata, digests) = self.objects.content_fields(request, metadata_bytes_max)?;
        let metadata = self.objects.fields_of_name(&to.key, metadata)?;
        let (content, mut digests) = digests.split();
        self.objects.demand_of_name(&to.key, &mut digests)?;
        let plan = NewUpload {
            key: to.key.clone(),
            owner: owner(request),
            holder: Holder::of(request),
            length,
            parts: self.announced(request, length, &digests)?,
            is_partial: false,
            condition: self.upload_condition(request, to).await?,
            metadata,
            digests,
            tus_metadata: None,
        };
        Ok((plan, content))
    }

    /// The response after the body of a request was received, or was not. `json`: the client
    /// prefers errors in JSON.
    async fn after_receiving(
        &self,
        mut session: Session,
        received: Result<(), ReceiveError>,
        is_complete: bool,
        (to, json): (&Destination, bool),
    ) -> Response {
        let failed = |error| self.objects.upload_failure(error, &to.key).render(json);
        match received {
            Ok(()) if is_complete && session.is_short() => {
                let _ = session.save().await;
                Problem::InconsistentLength.response()
            }
            Ok(()) if is_complete => {
                let response = match self.complete(session, to).await {
                    Ok(response) => response,
                    Err(failure) => failure.render(json),
                };
                response.with_header("Upload-Complete", "?1")
            }
            Ok(()) => match session.save().await {
                Ok(()) => {
                    let progress = session.progress();
                    let limits = self.limits(&progress, *INTEROP_VERSIONS.end());
                    let response = with_progress(Response::new(201), &progress);
                    with_parts(response.with_header("Upload-Limit", limits), &session)
                }
                Err(error) => failed(error).with_header("Upload-Complete", "?0"),
            },
            Err(ReceiveError::Body(failure)) if failure == TOO_LONG => {
                let _ = session.cancel().await;
                Problem::InconsistentLength.response()
            }
            Err(ReceiveError::Body(failure)) if failure == self.uploads.limits().too_large() => {
                let limits = self.limits(&session.progress(), *INTEROP_VERSIONS.end());
                let _ = session.cancel().await;
                failure.render(json).with_header("Upload-Limit", limits)
            }
            Err(error) => with_progress(failed(error), &session.progress()),
        }
    }

    /// HEAD, PATCH or DELETE of an unfinished upload.
    pub(in crate::files) async fn unfinished(
        &self,
        request: Request,
    ) -> Result<Response, HttpError> {
        let (is_tus, json) = (tus::is_tus(&request), prefers_json(&request));
        let result = self.use_unfinished(request).await;
        match is_tus {
            true => Ok(tus::response(result, json)),
            false => result,
        }
    }

    async fn use_unfinished(&self, request: Request) -> Result<Response, HttpError> {
        let id = UploadId::of_request(&request).ok_or(NO_UPLOAD)?;
        if !self.uploads.serves(&self.objects.options) {
            return Err(NO_UPLOAD);
        }
        let to = self.objects.object_destination(&request)?;
        let owner = owner(&request);
        let worker = request.worker().clone();
        let find = self.uploads.open(id, &to.key, owner.as_deref(), &worker);
        let found = find
            .await
            .map_err(|error| self.objects.upload_failure(error, &to.key))?;
        match request.method() {
            _ if tus::is_tus(&request) => self.tus(request, Some((found, to))).await,
            "HEAD" => Ok(self.offset_response(&found)),
            "PATCH" => self.append(request, found, &to).await,
            "DELETE" => match found {
                FoundUpload::Unfinished(session) => self.cancel(&request, *session, &to).await,
                FoundUpload::Completed(_) => Ok(Problem::CompletedUpload.response()),
            },
            _ => Err(HttpError::METHOD_NOT_ALLOWED),
        }
    }

    fn offset_response(&self, found: &FoundUpload) -> Response {
        let progress = match found {
            FoundUpload::Unfinished(session) => session.progress(),
            FoundUpload::Completed(upload) => completed(upload.length),
        };
        let limits = self.limits(&progress, *INTEROP_VERSIONS.end());
        let response = with_progress(Response::new(204), &progress)
            .with_header("Upload-Limit", limits)
            .with_header("Cache-Control", "no-store");
        match found {
            FoundUpload::Unfinished(session) => with_parts(response, session),
            FoundUpload::Completed(_) => response,
        }
    }

    /// `PATCH` of an unfinished upload.
    async fn append(
        &self,
        request: Request,
        found: FoundUpload,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        let fields = UploadFields::from_request(&request);
        let media_type = single(&request, "content-type").unwrap_or_default();
        if !media_type.eq_ignore_ascii_case(PARTIAL_UPLOAD.as_bytes()) {
            let failure = HttpError::new(415, "an append has the type application/partial-upload");
            let response = failure.into_response(&request);
            return Ok(response.with_header("Accept-Patch", PARTIAL_UPLOAD));
        }
        let offset = fields.offset.ok_or(NO_OFFSET)?;
        let is_complete = fields.is_complete.ok_or(NO_COMPLETE)?;
        let mut session = match found {
            FoundUpload::Unfinished(session) => session,
            FoundUpload::Completed(_) => return Ok(Problem::CompletedUpload.response()),
        };
        if session.is_partial() {
            return Err(PARTIAL);
        }
        if session.parts().is_some() && !is_complete {
            let session = self.receive_part(request, *session, offset, to).await?;
            return Ok(self.offset_response(&FoundUpload::Unfinished(Box::new(session))));
        }
        let expected = session.progress().offset;
        if offset != expected {
            let problem = Problem::MismatchingOffset {
                expected,
                provided: offset,
            };
            return Ok(problem.response().with_header("Upload-Complete", "?0"));
        }
        let content_length = content_length(&request);
        let (content, _) = Digests::from_request(&request)?.split();
        let total = match fields.total(offset, content_length) {
            Ok(total) => total,
            Err(problem) => return Ok(problem.response()),
        };
        let failed = |error| self.objects.upload_failure(error, &to.key);
        if let Some(total) = total
            && !session.announce(total).map_err(failed)?
        {
            return Ok(Problem::InconsistentLength.response());
        }
        let end = content_length.map(|bytes| offset.saturating_add(bytes));
        if end
            .zip(session.progress().length)
            .is_some_and(|(end, length)| end > length)
        {
            return Ok(Problem::InconsistentLength.response());
        }
        let resumed = session.resume(to.may_replace, Some(Holder::of(&request)));
        resumed.await.map_err(failed)?;
        let json = prefers_json(&request);
        let mut body = request.into_body();
        let interim = body.interim_responses();
        let on_progress = |offset: u64| send_progress(&interim, fields.interop_version, offset);
        let buffers = &self.upload_buffers;
        let received = session.receive(&mut body, content_length, content, buffers, &on_progress);
        let received = received.await;
        let response = self
            .after_receiving(*session, received, is_complete, (to, json))
            .await;
        Ok(match response.status() {
            201 if !is_complete => response.with_status(204),
            _ => response,
        })
    }

    /// The value of `Upload-Limit`.
    fn limits(&self, progress: &Progress, interop_version: u64) -> String {
        let name = match interop_version <= INTEROP_WITH_EXPIRES {
            true => "expires",
            false => "max-age",
        };
        let size = match self.uploads.limits().object_bytes_max {
            u64::MAX => String::new(),
            bytes => format!(", max-size={bytes}"),
        };
        format!("{name}={}{size}", progress.expires_in_s)
    }

    /// The fields of the response to `OPTIONS` that say that uploads can be continued.
    pub(in crate::files) fn add_upload_options(&self, response: Response) -> Response {
        let progress = Progress {
            expires_in_s: self.uploads.limits().age_max_s,
            ..completed(0)
        };
        response
            .with_header("Accept-Patch", PARTIAL_UPLOAD)
            .with_header(
                "Upload-Limit",
                self.limits(&progress, *INTEROP_VERSIONS.end()),
            )
    }
}

fn completed(length: u64) -> Progress {
    Progress {
        offset: length,
        length: Some(length),
        is_complete: true,
        expires_in_s: 0,
    }
}

fn with_progress(response: Response, progress: &Progress) -> Response {
    let is_complete = match progress.is_complete {
        true => "?1",
        false => "?0",
    };
    let response = response
        .with_header("Upload-Offset", progress.offset.to_string())
        .with_header("Upload-Complete", is_complete);
    match progress.length {
        Some(length) => response.with_header("Upload-Length", length.to_string()),
        None => response,
    }
}

fn send_progress(interim: &onrush::InterimResponses, version: Option<u64>, offset: u64) {
    if let Some(version) = version {
        let (offset, version) = (offset.to_string(), version.to_string());
        let fields: [(&str, &[u8]); 2] = [
            ("Upload-Offset", offset.as_bytes()),
            ("Upload-Draft-Interop-Version", version.as_bytes()),
        ];
        let _ = interim.send(104, &fields);
    }
}
