//! Answers with a part of an object (RFC 9110 §14, §15.3.7): 206 and 416.
//!
//! This module must not know preconditions.

use super::failure::Failure;
use super::object::Found;
use onrush::{Body, Part, Request, Response};
use onrush_proto::range::{self, Ranges, Requested};
use std::hash::{BuildHasher, RandomState};

/// The answer to a `Range` field, or `None` when it asks for the whole.
pub(super) fn respond(request: &Request, value: &[u8], found: &Found) -> Option<Response> {
    match range::parse(value, found.size) {
        Requested::Whole => None,
        Requested::Unsatisfiable => {
            let mut content_range = Vec::new();
            range::write_unsatisfied(found.size, &mut content_range);
            let failure = Failure::new(416, "the object has no such bytes");
            Some(
                failure
                    .into_response(request)
                    .with_header("Content-Range", content_range),
            )
        }
        Requested::Satisfiable(ranges) => Some(match ranges.single() {
            Some(range) => {
                let mut content_range = Vec::new();
                range::write_content_range(&range, found.size, &mut content_range);
                partial(found, found.slice(range)).with_header("Content-Range", content_range)
            }
            None => several(found, &ranges),
        }),
    }
}

fn partial(found: &Found, body: Body) -> Response {
    let response = Response::with_body(body).with_status(206);
    found.clone().describe(response)
}

/// Several ranges, each as a part with a head of its own (RFC 9110 §14.6).
fn several(found: &Found, ranges: &Ranges) -> Response {
    let boundary = boundary();
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    for range in ranges.iter() {
        let lead = if parts.is_empty() { "--" } else { "\r\n--" };
        let content_type = found.content_type();
        let mut head =
            format!("{lead}{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: ")
                .into_bytes();
        range::write_content_range(&range, found.size, &mut head);
        head.extend_from_slice(b"\r\n\r\n");
        parts.push(Part::Bytes(head.into()));
        parts.push(found.part(range));
    }
    parts.push(Part::Bytes(format!("\r\n--{boundary}--\r\n").into()));
    partial(found, Body::parts(parts)).with_header(
        "Content-Type",
        format!("multipart/byteranges; boundary={boundary}"),
    )
}

/// A line that no content holds but by an accident of 128 bits: whoever wrote the object could
/// not know it.
fn boundary() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}
