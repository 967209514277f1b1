//! Responses with parts of an object (RFC 9110 §14, §15.3.7): 206 and 416.

use crate::files::http::http_error::HttpError;
use crate::files::object::LoadedObject;
use crate::files::shared::pieces::Piece;
use onrush::{Body, Request, Response};
use onrush_proto::etag::EntityTag;
use onrush_proto::range::{self, Ranges, Requested};
use std::hash::{BuildHasher, RandomState};

/// The response to a `Range` field. `None` if the whole object is to be sent.
pub(in crate::files) fn respond(
    request: &Request,
    value: &[u8],
    loaded: &LoadedObject,
) -> Option<Response> {
    match range::parse(value, loaded.size) {
        Requested::Whole => None,
        Requested::Unsatisfiable => {
            let mut content_range = Vec::new();
            range::write_unsatisfied(loaded.size, &mut content_range);
            let failure = HttpError::new(416, "the range contains no byte of the object");
            Some(
                failure
                    .into_response(request)
                    .with_header("Content-Range", content_range),
            )
        }
        Requested::Satisfiable(ranges) => Some(match ranges.single() {
            Some(range) => {
                let mut content_range = Vec::new();
                range::write_content_range(&range, loaded.size, &mut content_range);
                partial(loaded, loaded.slice(range)).with_header("Content-Range", content_range)
            }
            None => multipart(loaded, &ranges),
        }),
    }
}

/// Whether `If-Range`, if present, matches the object.
pub(in crate::files) fn applies(request: &Request, loaded: &LoadedObject) -> bool {
    request.header("if-range").is_none_or(|value| {
        let current = loaded.current();
        let etag = EntityTag::strong(loaded.version().as_bytes());
        range::if_range(value, etag, current.modified_s)
    })
}

fn partial(loaded: &LoadedObject, body: Body) -> Response {
    let response = Response::with_body(body).with_status(206);
    loaded.clone().add_fields(response)
}

/// A response with several ranges, each a part with its own head (RFC 9110 §14.6). An empty line
/// precedes the first boundary, as in the responses of nginx and Apache httpd: zsync expects it.
fn multipart(loaded: &LoadedObject, ranges: &Ranges) -> Response {
    let boundary = boundary();
    let mut pieces = Vec::with_capacity(2 * ranges.len() + 1);
    for range in ranges.iter() {
        let content_type = loaded.content_type();
        let mut head =
            format!("\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: ")
                .into_bytes();
        range::write_content_range(&range, loaded.size, &mut head);
        head.extend_from_slice(b"\r\n\r\n");
        pieces.push(Piece::Bytes(head.into()));
        pieces.push(Piece::Range(range));
    }
    pieces.push(Piece::Bytes(format!("\r\n--{boundary}--\r\n").into()));
    partial(loaded, loaded.body_of(pieces)).with_header(
        "Content-Type",
        format!("multipart/byteranges; boundary={boundary}"),
    )
}

/// A random boundary of 128 bits. The author of the content cannot predict it.
fn boundary() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}
