//! The extension `concatenation` of tus: a client sends the parts of an object as *partial*
//! uploads, several at a time, and joins them with a *final* one.
//!
//! A partial upload has a URL of its own beneath the URL of its `POST`, and never becomes an
//! object. Its bytes need the right to create objects there. What the object is (name, fields,
//! rights, preconditions) is decided by the `POST` of the final upload, which copies the bytes and
//! removes the partial uploads. They have to be complete: `concatenation-unfinished` is not
//! supported.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::object::object_fields::etag;
use crate::files::path::{self, ResolvedPath, Target};
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::resume::upload_target::integer;
use crate::files::shared::client_rights::owner;
use crate::files::shared::destination::Destination;
use crate::files::uploads::{Before, Joining, NO_UPLOAD, NewUpload, UploadId};
use onrush::{Request, Response};
use onrush_store::Key;

/// The maximum length of `Upload-Concat`, in bytes. It is remembered, and sent back.
const BYTES_MAX: usize = 8192;

const BAD_CONCAT: HttpError = HttpError::new(400, "Upload-Concat is malformed or too long");
const TAKES_NO_BYTES: HttpError = HttpError::new(
    400,
    "an upload that joins others has neither a length nor content",
);

/// What `Upload-Concat` says about an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Concat<'r> {
    /// It becomes an object.
    Whole,
    /// It is a part of one.
    Partial,
    /// It joins the uploads with these URLs, which are separated by spaces.
    Final(&'r str),
}

impl Concat<'_> {
    /// That of a request.
    pub(in crate::files) fn of(request: &Request) -> Result<Concat<'_>, HttpError> {
        let mut values = request.header_values("upload-concat");
        let Some(value) = values.next() else {
            return Ok(Concat::Whole);
        };
        let text = str::from_utf8(value)
            .ok()
            .filter(|_| values.next().is_none());
        match text.ok_or(BAD_CONCAT)? {
            "partial" => Ok(Concat::Partial),
            text if text.len() <= BYTES_MAX => {
                let urls = text.strip_prefix("final;").map(str::trim);
                let urls = urls.filter(|urls| !urls.is_empty());
                urls.map(Concat::Final).ok_or(BAD_CONCAT)
            }
            _ => Err(BAD_CONCAT),
        }
    }
}

/// A final upload that is about to join others.
pub(in crate::files) struct FinalUpload {
    id: UploadId,
    joining: Joining,
    sources: Vec<(UploadId, Key)>,
    /// `Upload-Concat`.
    field: String,
}

/// Whether a request of a final upload is a repeated one.
pub(in crate::files) enum Joined {
    /// It is, and this is the response to it: the object is published.
    Before(Response),
    Not(FinalUpload),
}

impl UploadProtocols {
    /// The beginning of the `POST` of a final upload.
    pub(in crate::files) async fn tus_begin_join(
        &self,
        request: &Request,
        urls: &str,
        to: &Destination,
    ) -> Result<Joined, HttpError> {
        let length = request.header("upload-length").and_then(integer);
        if length.is_some() || request.has_body() {
            return Err(TAKES_NO_BYTES);
        }
        let sources = urls
            .split_ascii_whitespace()
            .map(|url| source(request, url));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let (owner, worker) = (owner(request), request.worker().clone());
        let begun = (self.uploads).begin_join(&to.key, owner.as_deref(), &sources, &worker);
        let (id, before) = begun
            .await
            .map_err(|error| self.objects.upload_failure(error, &to.key))?;
        Ok(match before {
            Before::Joined => Joined::Before(created(request, to, id)),
            Before::Nothing(joining) => Joined::Not(FinalUpload {
                id,
                joining,
                sources,
                field: format!("final;{urls}"),
            }),
        })
    }

    /// `POST` of a final upload.
    pub(in crate::files) async fn tus_join(
        &self,
        request: &Request,
        plan: NewUpload,
        whole: FinalUpload,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        let check = || to.permission.check();
        let (sources, field) = (&whole.sources[..], &whole.field[..]);
        let begun = (whole.id, whole.joining);
        let joined = (self.uploads).join(begun, plan, (sources, field), &check, request.worker());
        let joined = joined.await;
        let committed = joined.map_err(|error| self.publication_failure(error, to))?;
        let response = created(request, to, whole.id);
        Ok(response.with_header("ETag", etag(&committed.meta.version)))
    }
}

fn created(request: &Request, to: &Destination, id: UploadId) -> Response {
    let url = path::absolute_url(request, &(to.location.clone() + &id.query()));
    Response::new(201).with_header("Location", url)
}

/// The partial upload that a URL names.
fn source(request: &Request, url: &str) -> Result<(UploadId, Key), HttpError> {
    let (whole, query) = url.split_once('?').ok_or(NO_UPLOAD)?;
    let id = UploadId::of_query(query).ok_or(NO_UPLOAD)?;
    let path = ResolvedPath::parse(path_of(whole).ok_or(NO_UPLOAD)?)?;
    match path.target(path::split(request)?.mount, Operation::Write) {
        Ok(Target::Object(key)) => Ok((id, key)),
        Ok(Target::Folder(_)) | Err(path::OUTSIDE) => Err(NO_UPLOAD),
        Err(failure) => Err(failure),
    }
}

/// The path of a URL of this server. Its host may be the one by which clients know a proxy, and has
/// no meaning: the id identifies the upload.
fn path_of(url: &str) -> Option<&str> {
    if url.starts_with('/') && !url.starts_with("//") {
        return Some(url);
    }
    let (_, rest) = url.split_once("//")?;
    Some(&rest[rest.find('/')?..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_path() {
        for (url, expected) in [
            ("/a/b", Some("/a/b")),
            ("http://h/a", Some("/a")),
            ("https://h:8080/a//b", Some("/a//b")),
            ("//h/a", Some("/a")),
            ("http://h", None),
            ("a/b", None),
            ("", None),
        ] {
            assert_eq!(path_of(url), expected, "{url}");
        }
    }
}
