//! `207 Multi-Status` (RFC 4918 §13): responses about several resources, as XML.

use crate::files::http::http_error::HttpError;
use crate::files::path;
use onrush::{Body, Response};
use onrush_proto::response::reason_phrase;
use onrush_store::{Key, Kind};
use std::fmt::Write;

/// What could not be changed, and why. An object or a folder that fails only because of something
/// beneath it is not among them.
pub(in crate::files) type Failures = Vec<(Key, Kind, HttpError)>;

/// The beginning of the document. The prefix `D` is the namespace `DAV:`.
pub(in crate::files) const BEGIN: &str =
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";

/// Its end.
pub(in crate::files) const END: &str = "</D:multistatus>\n";

/// A 207 with this document.
pub(in crate::files) fn response(body: impl Into<Body>) -> Response {
    xml_response(207, body)
}

/// A response whose content is XML.
pub(in crate::files) fn xml_response(status: u16, body: impl Into<Body>) -> Response {
    Response::with_body(body)
        .with_status(status)
        .content_type("application/xml; charset=utf-8")
        .with_header("Cache-Control", "no-cache")
        .with_header("X-Content-Type-Options", "nosniff")
}

/// Appends the element `status` (RFC 4918 §14.28).
pub(in crate::files) fn push_status(out: &mut String, status: u16) {
    let reason = reason_phrase(status);
    // Writing to a String does not fail.
    let _ = write!(out, "<D:status>HTTP/1.1 {status} {reason}</D:status>");
}

/// The encoded path of an object or a folder, which needs no escaping in XML. `None`: the top
/// folder.
pub(in crate::files) fn href(mount: &str, key: Option<&Key>, kind: Kind) -> String {
    let key = key.map(Key::as_bytes).unwrap_or_default();
    match kind {
        Kind::Directory if !key.is_empty() => path::folder_href(mount, key, None),
        _ => path::href(mount, key),
    }
}

/// The response to a change of a folder that was not complete: what remained, and why.
pub(in crate::files) fn of_failures(mount: &str, failures: &Failures) -> Response {
    let mut text = BEGIN.to_owned();
    for (key, kind, failure) in failures {
        let HttpError { status, .. } = *failure;
        let href = href(mount, Some(key), *kind);
        let _ = write!(text, "<D:response><D:href>{href}</D:href>");
        push_status(&mut text, status);
        let detail = failure.detail(); // A constant without special characters.
        let _ = writeln!(
            text,
            "<D:responsedescription>{detail}</D:responsedescription></D:response>"
        );
    }
    text.push_str(END);
    response(text)
}
