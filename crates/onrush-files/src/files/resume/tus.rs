//! tus 1.0.0 (<https://tus.io/protocols/resumable-upload>): core, creation, creation-with-upload,
//! creation-defer-length, expiration, checksum, termination and concatenation (`tus_concat`).
//!
//! A `POST` to the URL of a folder creates an upload of the object that `filename` in
//! `Upload-Metadata` names; one to the URL of an object creates an upload of that. The object
//! appears when the last byte has arrived. `Tus-Resumable` distinguishes these requests from those
//! of `resumable`; both use the same uploads at the same URLs.
//!
//! `X-HTTP-Method-Override` makes a `POST` to the URL of an upload a `PATCH` or `DELETE`
//! ([`override_method`]). The `Location` of an upload is an absolute URL, because some clients drop
//! the query of a relative one.

use crate::files::http::digest::{Algorithm, Digests, MISMATCH};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::negotiate::prefers_json;
use crate::files::path::{self, Target};
use crate::files::receive::upload::body_failure;
use crate::files::resume::tus_concat::{Concat, Joined};
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::resume::upload_target::{content_length, integer};
use crate::files::shared::client_rights::owner;
use crate::files::shared::destination::Destination;
use crate::files::shared::stored_fields;
use crate::files::uploads::{FoundUpload, NO_UPLOAD, NewUpload, Progress, Session, UploadId};
use crate::shares::Holder;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onrush::{Request, Response};
use onrush_proto::date;
use onrush_store::{Condition, Key};
use std::io;

const VERSION: &str = "1.0.0";
const EXTENSIONS: &str =
    "creation,creation-with-upload,creation-defer-length,expiration,checksum,termination";
const ALGORITHMS: &str = "sha1,sha256,sha512,md5";

/// The type of the body of an append.
const OFFSET_STREAM: &[u8] = b"application/offset+octet-stream";

/// The maximum length of `Upload-Metadata`, in bytes. It is stored, and sent back.
const METADATA_BYTES_MAX: usize = 4096;

const NOT_JOINED: HttpError = HttpError::new(
    400,
    "an object in a folder cas is uploaded as a whole, so that its content is compared",
);
const NO_CONCAT: HttpError = HttpError::new(501, "this store cannot join uploads");
const NO_LENGTH: HttpError = HttpError::new(400, "Upload-Length or Upload-Defer-Length is missing");
const NO_NAME: HttpError = HttpError::new(
    400,
    "Upload-Metadata has no filename for an object of this folder",
);
const BAD_CHECKSUM: HttpError = HttpError::new(400, "Upload-Checksum is malformed or not known");
const WRONG_TYPE: HttpError = HttpError::new(
    415,
    "an append has the type application/offset+octet-stream",
);
const WRONG_OFFSET: HttpError = HttpError::new(409, "the offset is not that of the upload");
const WRONG_LENGTH: HttpError = HttpError::new(400, "the lengths of the upload differ");
const WRONG_CHECKSUM: HttpError = HttpError::new(460, "the checksum of the body does not match");
const IS_FINAL: HttpError = HttpError::new(403, "an upload that joins others takes no bytes");
const WRONG_VERSION: HttpError = HttpError::new(412, "this server supports tus 1.0.0");

/// Whether a request is one of a tus client.
pub(in crate::files) fn is_tus(request: &Request) -> bool {
    request.header("tus-resumable").is_some()
}

/// Replaces the method of a `POST` to the URL of an upload by the `PATCH` or `DELETE` that a tus
/// client means. Called before access control, so that all decisions are about the same method.
pub(crate) fn override_method(request: &mut Request) {
    const NAME: &str = "x-http-method-override";
    if request.method() != "POST" || !is_tus(request) || UploadId::of_request(request).is_none() {
        return;
    }
    let method = match request.header(NAME) {
        Some(b"PATCH") => "PATCH",
        Some(b"DELETE") => "DELETE",
        _ => return,
    };
    if request.header_values(NAME).count() == 1 {
        request.set_method(method);
    }
}

/// Adds the fields of the response to `OPTIONS`. `joins`: whether the store can join uploads.
pub(in crate::files) fn add_options(
    response: Response,
    object_bytes_max: u64,
    joins: bool,
) -> Response {
    let extensions = match joins {
        true => format!("{EXTENSIONS},concatenation"),
        false => EXTENSIONS.to_owned(),
    };
    let response = response
        .with_header("Tus-Resumable", VERSION)
        .with_header("Tus-Version", VERSION)
        .with_header("Tus-Extension", extensions)
        .with_header("Tus-Checksum-Algorithm", ALGORITHMS);
    match object_bytes_max {
        u64::MAX => response,
        bytes => response.with_header("Tus-Max-Size", bytes.to_string()),
    }
}

/// The response to a request of a tus client.
pub(in crate::files) fn response(
    result: Result<Response, HttpError>,
    prefers_json: bool,
) -> Response {
    let response = result.unwrap_or_else(|failure| match failure {
        WRONG_VERSION => failure
            .render(prefers_json)
            .with_header("Tus-Version", VERSION),
        failure => failure.render(prefers_json),
    });
    response.with_header("Tus-Resumable", VERSION)
}

impl UploadProtocols {
    /// A request of a tus client: `POST`, or a method of an upload that was found.
    pub(in crate::files) async fn tus(
        &self,
        request: Request,
        found: Option<(FoundUpload, Destination)>,
    ) -> Result<Response, HttpError> {
        let json = prefers_json(&request);
        let is_supported = request.header("tus-resumable") == Some(VERSION.as_bytes());
        let result = match (is_supported, found) {
            (false, _) => Err(WRONG_VERSION),
            (true, None) => self.tus_create(request).await,
            (true, Some((found, to))) => match request.method() {
                "HEAD" => Ok(self.tus_head(&found, request.worker().unix_seconds())),
                "PATCH" => self.tus_append(request, found, &to).await,
                "DELETE" => match found {
                    FoundUpload::Unfinished(session) => self.cancel(&request, *session, &to).await,
                    FoundUpload::Completed(_) => Err(NO_UPLOAD),
                },
                _ => Err(HttpError::METHOD_NOT_ALLOWED),
            },
        };
        Ok(response(result, json))
    }

    async fn tus_create(&self, request: Request) -> Result<Response, HttpError> {
        let number = |name| request.header(name).and_then(integer);
        let length = number("upload-length");
        let concat = Concat::of(&request)?;
        if concat != Concat::Whole && !self.uploads.can_be_joined() {
            return Err(NO_CONCAT);
        }
        let needs_length = !matches!(concat, Concat::Final(_));
        if needs_length && length.is_none() && number("upload-defer-length") != Some(1) {
            return Err(NO_LENGTH);
        }
        let is_partial = concat == Concat::Partial;
        let metadata = Metadata::of(&request)?;
        let to = self.tus_destination(&request, &metadata)?;
        let mut digests = Digests::default();
        if !is_partial {
            // Nothing is stored by the name of a part.
            self.objects.demand_of_name(&to.key, &mut digests)?;
        }
        if !needs_length && !digests.is_empty() {
            return Err(NOT_JOINED);
        }
        let joining = match concat {
            Concat::Final(urls) => match self.tus_begin_join(&request, urls, &to).await? {
                // Before the preconditions: they are of the time when it was published.
                Joined::Before(response) => return Ok(response),
                Joined::Not(joining) => Some(joining),
            },
            Concat::Whole | Concat::Partial => None,
        };
        let plan = NewUpload {
            key: to.key.clone(),
            owner: owner(&request),
            holder: Holder::of(&request),
            length,
            parts: None,
            is_partial,
            condition: match is_partial {
                true => Condition::None, // Those of the object are for the request that joins.
                false => self.upload_condition(&request, &to).await?,
            },
            metadata: self.objects.fields_of_name(
                &to.key,
                stored_fields::metadata_of_type(
                    &metadata.media_type,
                    self.objects.store.features().metadata_bytes_max,
                ),
            )?,
            digests,
            tus_metadata: Metadata::text(&request).map(str::to_owned),
        };
        if let Some(joining) = joining {
            return self.tus_join(&request, plan, joining, &to).await;
        }
        let worker = request.worker().clone();
        let failed = |error| self.objects.upload_failure(error, &to.key);
        let has_content = request.has_body();
        if has_content && request.header("content-type") != Some(OFFSET_STREAM) {
            return Err(WRONG_TYPE);
        }
        let content = checksum(&request)?;
        let mut session = self.uploads.create(plan, &worker).await.map_err(failed)?;
        session.save().await.map_err(failed)?;
        let url = path::absolute_url(&request, &(to.location.clone() + &session.id().query()));
        let response = match has_content || length == Some(0) {
            true => self.tus_receive(request, session, content, &to).await?,
            false => self.tus_progress(&session, worker.unix_seconds()),
        };
        let response = match response.status() {
            204 => response.with_status(201),
            _ => response, // The upload exists, and its URL says how far it is.
        };
        Ok(response.with_header("Location", url))
    }

    /// The key of what a `POST` creates. Fails if the `POST` does.
    pub(in crate::files) fn tus_key(&self, request: &Request) -> Result<Key, HttpError> {
        let metadata = Metadata::of(request)?;
        Ok(self.tus_destination(request, &metadata)?.key)
    }

    /// What a `POST` creates. Fails if the client may not create it.
    fn tus_destination(
        &self,
        request: &Request,
        metadata: &Metadata,
    ) -> Result<Destination, HttpError> {
        match path::target(request, Operation::Write)? {
            Target::Object(_) => self.objects.object_destination(request),
            Target::Folder(_) if metadata.name.is_empty() => Err(NO_NAME),
            Target::Folder(_) => self.objects.destination_in(request, &metadata.name),
        }
    }

    fn tus_head(&self, found: &FoundUpload, now_s: u64) -> Response {
        let response = match found {
            FoundUpload::Unfinished(session) => {
                let response = self.tus_progress(session, now_s);
                let response = match session.is_partial() {
                    true => response.with_header("Upload-Concat", "partial"),
                    false => response,
                };
                match session.tus_metadata() {
                    Some(metadata) => response.with_header("Upload-Metadata", metadata),
                    None => response,
                }
            }
            FoundUpload::Completed(upload) => {
                let response = Response::new(200)
                    .with_header("Upload-Offset", upload.length.to_string())
                    .with_header("Upload-Length", upload.length.to_string());
                match &upload.tus_concat {
                    Some(concat) => response.with_header("Upload-Concat", concat.to_string()),
                    None => response,
                }
            }
        };
        response
            .with_status(200)
            .with_header("Cache-Control", "no-store")
    }

    async fn tus_append(
        &self,
        request: Request,
        found: FoundUpload,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        if request.header("content-type") != Some(OFFSET_STREAM) {
            return Err(WRONG_TYPE);
        }
        let number = |name| request.header(name).and_then(integer);
        let offset = number("upload-offset");
        let mut session = match found {
            FoundUpload::Unfinished(session) => *session,
            FoundUpload::Completed(upload) if upload.tus_concat.is_some() => return Err(IS_FINAL),
            FoundUpload::Completed(upload) => {
                let length = upload.length;
                let is_end = offset == Some(length) && !request.has_body();
                let done = Response::new(204).with_header("Upload-Offset", length.to_string());
                return if is_end { Ok(done) } else { Err(WRONG_OFFSET) };
            }
        };
        let progress = session.progress();
        let is_last_byte = is_unpublished(&session) && offset == Some(acknowledged(&session));
        if offset != Some(progress.offset) && !is_last_byte {
            return Err(WRONG_OFFSET);
        }
        let failed = |error| self.objects.upload_failure(error, &to.key);
        if let Some(length) = number("upload-length")
            && !session.announce(length).map_err(failed)?
        {
            return Err(WRONG_LENGTH);
        }
        let content = checksum(&request)?;
        if is_last_byte {
            return self.tus_publish(request, session, content, to).await;
        }
        let resumed = session.resume(to.may_replace, Some(Holder::of(&request)));
        resumed.await.map_err(failed)?;
        self.tus_receive(request, session, content, to).await
    }

    /// Publishes an upload of which all bytes are kept, after the client has sent the last one
    /// again; see [`acknowledged`].
    async fn tus_publish(
        &self,
        mut request: Request,
        mut session: Session,
        mut content: Digests,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        let body = request.body().read_all(1).await;
        let body = body.map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => WRONG_LENGTH,
            _ => body_failure(error),
        })?;
        if body.is_empty() {
            return Ok(self.tus_progress(&session, request.worker().unix_seconds()));
        }
        content.update(&body).await;
        content.check().map_err(|_| WRONG_CHECKSUM)?;
        let length = session.progress().offset;
        let resumed = session.resume(to.may_replace, None).await;
        resumed.map_err(|error| self.objects.upload_failure(error, &to.key))?;
        let published = self.complete(session, to).await?;
        Ok(published_response(length, &published))
    }

    /// Appends the body of a request, and publishes the object with the last byte, unless the
    /// upload is partial.
    async fn tus_receive(
        &self,
        request: Request,
        mut session: Session,
        content: Digests,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        let content_length = content_length(&request);
        let progress = session.progress();
        let end = content_length.map(|bytes| progress.offset.saturating_add(bytes));
        if end
            .zip(progress.length)
            .is_some_and(|(end, length)| end > length)
        {
            return Err(WRONG_LENGTH);
        }
        let has_checksum = !content.is_empty();
        let now_s = request.worker().unix_seconds();
        let mut body = request.into_body();
        let buffers = &self.upload_buffers;
        let received = session.receive(&mut body, content_length, content, buffers, &|_| {});
        received
            .await
            .map_err(|error| match self.objects.upload_failure(error, &to.key) {
                MISMATCH if has_checksum => WRONG_CHECKSUM,
                failure => failure,
            })?;
        let length = session.progress().length;
        if let Some(length) = length.filter(|_| !session.is_short() && !session.is_partial()) {
            let published = self.complete(session, to).await?;
            return Ok(published_response(length, &published));
        }
        let saved = session.save().await;
        saved.map_err(|error| self.objects.upload_failure(error, &to.key))?;
        Ok(self.tus_progress(&session, now_s))
    }

    fn tus_progress(&self, session: &Session, now_s: u64) -> Response {
        let progress = session.progress();
        let expires = date::format(now_s.saturating_add(progress.expires_in_s));
        let response = Response::new(204)
            .with_header("Upload-Offset", acknowledged(session).to_string())
            .with_header("Upload-Expires", expires);
        match progress.length {
            Some(length) => response.with_header("Upload-Length", length.to_string()),
            None => response.with_header("Upload-Defer-Length", "1"),
        }
    }
}

/// Whether all bytes are kept, and the object could not be published after the last one.
fn is_unpublished(session: &Session) -> bool {
    let Progress { offset, length, .. } = session.progress();
    let is_part = session.is_partial() || session.parts().is_some();
    !is_part && length == Some(offset)
}

/// The offset that the client learns. At the whole length, clients take an upload for complete and
/// send nothing more. So the last byte is not acknowledged until the object is published: the
/// client sends it again, which publishes the object.
fn acknowledged(session: &Session) -> u64 {
    let offset = session.progress().offset;
    match is_unpublished(session) {
        true => offset.saturating_sub(1),
        false => offset,
    }
}

/// The response after the object was published.
fn published_response(length: u64, published: &Response) -> Response {
    let response = Response::new(204).with_header("Upload-Offset", length.to_string());
    match published.header("etag") {
        Some(etag) => response.with_header("ETag", etag),
        None => response,
    }
}

/// What `Upload-Metadata` says about the object.
#[derive(Debug, Default, PartialEq, Eq)]
struct Metadata {
    /// Empty if there is none.
    name: Vec<u8>,
    media_type: Vec<u8>,
}

impl Metadata {
    /// That of a request.
    fn of(request: &Request) -> Result<Metadata, HttpError> {
        let mut metadata = Metadata::text(request).map_or(Metadata::default(), Metadata::parse);
        if metadata.name.is_empty() && Concat::of(request)? == Concat::Partial {
            // Clients do not name a part. The name is only for its URL: no object gets it.
            let name = UploadId::random().map(|id| id.to_string());
            metadata.name = name.unwrap_or_default().into_bytes();
        }
        Ok(metadata)
    }

    /// The field of a request, unless it is too long to be stored.
    fn text(request: &Request) -> Option<&str> {
        let text = request.header_str("upload-metadata")?;
        (text.len() <= METADATA_BYTES_MAX).then_some(text)
    }

    /// Pairs of a key and a value in base64, separated by commas. Malformed ones count as absent.
    fn parse(text: &str) -> Metadata {
        let mut metadata = Metadata::default();
        for pair in text
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once(' ').unwrap_or((pair, ""));
            let Ok(value) = STANDARD.decode(value.trim()) else {
                continue;
            };
            // The names of the protocol's examples, and of its common clients.
            match key {
                "filename" => metadata.name = value,
                "name" if metadata.name.is_empty() => metadata.name = value,
                "filetype" => metadata.media_type = value,
                "type" if metadata.media_type.is_empty() => metadata.media_type = value,
                _ => {}
            }
        }
        metadata
    }
}

/// The digest that `Upload-Checksum` demands of the body.
fn checksum(request: &Request) -> Result<Digests, HttpError> {
    let mut digests = Digests::default();
    let Some(text) = request.header_str("upload-checksum") else {
        return Ok(digests);
    };
    let demanded = text.split_once(' ').and_then(|(algorithm, digest)| {
        let algorithm = match algorithm {
            "md5" => Algorithm::Md5,
            "sha1" => Algorithm::Sha1,
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return None,
        };
        digests.demand(algorithm, STANDARD.decode(digest).ok()?)
    });
    demanded.map(|()| digests).ok_or(BAD_CHECKSUM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_has_pairs() {
        let parse = |text| {
            let found = Metadata::parse(text);
            Some((
                String::from_utf8(found.name).ok()?,
                String::from_utf8(found.media_type).ok()?,
            ))
        };
        let found = |name: &str, media_type: &str| Some((name.to_owned(), media_type.to_owned()));
        assert_eq!(parse(""), found("", ""));
        assert_eq!(parse("filename YS50eHQ="), found("a.txt", ""));
        assert_eq!(
            parse("is_confidential,name YQ==, filename Yg=="),
            found("b", "")
        );
        assert_eq!(
            parse("filename Yg==,name YQ==,filetype dGV4dC9hYmM="),
            found("b", "text/abc")
        );
        assert_eq!(parse("filename Y"), found("", ""));
        assert_eq!(parse("x ?,filename Yg==,type ?"), found("b", ""));
    }
}
