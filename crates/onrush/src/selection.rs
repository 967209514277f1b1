//! What of a representation a request for it gets: all, a part, several parts, or none, by its
//! preconditions (RFC 9110 §13) and its ranges (§14). For handlers whose content is not one file;
//! [`ServedFile`](crate::ServedFile) does all of it for files.

use crate::request::Request;
use bytes::Bytes;
pub use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_proto::range::{self, Ranges, Requested};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// What a GET without any condition would get, as far as the selection depends on it.
///
/// # Examples
/// ```
/// use onrush::selection::{EntityTag, Representation, Selection};
/// use onrush::{Limits, Request, Response, sim::Simulation};
///
/// async fn digits(request: Request) -> Response {
///     let content = "0123456789";
///     let digits = Representation {
///         etag: EntityTag::strong(b"v1"),
///         modified_s: None,
///         size: content.len() as u64,
///         content_type: "text/plain",
///     };
///     match digits.select(&request) {
///         Selection::Part { range, content_range } => {
///             let part = &content[range.start as usize..range.end as usize];
///             let response = Response::text(part).with_status(206);
///             response.with_header("Content-Range", content_range)
///         }
///         Selection::NotModified => Response::new(304).with_header("ETag", "\"v1\""),
///         Selection::PreconditionFailed => Response::new(412),
///         _ => Response::text(content).with_header("ETag", "\"v1\""),
///     }
/// }
/// # let mut sim = Simulation::new(1, &digits, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=2-4\r\n\r\n");
/// # let response = String::from_utf8(client.receive()?).unwrap_or_default();
/// # assert!(response.contains("\r\nContent-Range: bytes 2-4/10\r\n"));
/// # assert!(response.ends_with("\r\n\r\n234"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Representation<'a> {
    /// The value of `ETag`, if there is one.
    pub etag: Option<EntityTag<'a>>,
    /// The value of `Last-Modified` in seconds since 1970, if there is one. It has to be a strong
    /// validator (RFC 9110 §8.8.2.2), because `If-Range` may have it.
    pub modified_s: Option<u64>,
    /// Bytes of the whole content.
    pub size: u64,
    /// The value of `Content-Type`, which the head of each of several parts repeats. It has no
    /// control characters.
    pub content_type: &'a str,
}

/// What a request gets, and the fields that belong to it. All but `Unsatisfiable` should also have
/// `ETag`, and those of content `Accept-Ranges: bytes`.
#[derive(Debug)]
pub enum Selection {
    /// 200, with the whole content.
    Whole,
    /// 206, with a part of the content.
    Part {
        /// The bytes, at least one.
        range: Range<u64>,
        /// The value of `Content-Range`.
        content_range: Vec<u8>,
    },
    /// 206, with several parts (`multipart/byteranges`, RFC 9110 §14.6). Together they have fewer
    /// bytes of the content than all of it.
    Parts {
        /// The content of the response, in order.
        pieces: Vec<Piece>,
        /// The value of `Content-Type`.
        content_type: String,
    },
    /// 304, without content (RFC 9110 §15.4.5).
    NotModified,
    /// 412 (RFC 9110 §15.5.13).
    PreconditionFailed,
    /// 416 (RFC 9110 §15.5.17).
    Unsatisfiable {
        /// The value of `Content-Range`.
        content_range: Vec<u8>,
    },
}

/// A piece of the content of a response with several parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The head of a part, or the end.
    Bytes(Bytes),
    /// Bytes of the representation, at least one.
    Range(Range<u64>),
}

impl Representation<'_> {
    /// What `request` gets, in the order of RFC 9110 §13.2.2: first the preconditions, then
    /// `If-Range` and `Range`. A field that is malformed, or asks for another unit or more than 256
    /// ranges, is as if it were not there, but a malformed `If-Match` fails. Ranges have no meaning
    /// for HEAD (RFC 9110 §14.2). Other methods than GET and HEAD get the whole.
    pub fn select(&self, request: &Request) -> Selection {
        self.select_by(request.method(), || request.headers())
    }

    /// Whether `If-Range`, if present, has the validator of this representation, so that `Range`
    /// applies (RFC 9110 §13.1.5).
    pub fn if_range_holds(&self, request: &Request) -> bool {
        self.permits_range(request.header("if-range"))
    }

    fn permits_range(&self, if_range: Option<&[u8]>) -> bool {
        if_range.is_none_or(|value| range::if_range(value, self.etag, self.modified_s))
    }

    /// As [`Representation::select`], for a request with this method and these fields.
    fn select_by<'f, I>(&self, method: &str, fields: impl Fn() -> I) -> Selection
    where
        I: Iterator<Item = (&'f str, &'f [u8])>,
    {
        if !matches!(method, "GET" | "HEAD") {
            return Selection::Whole;
        }
        let current = Current {
            exists: true,
            etag: self.etag,
            modified_s: self.modified_s,
        };
        match evaluate(true, &current, fields()) {
            Outcome::Proceed => {}
            Outcome::NotModified => return Selection::NotModified,
            Outcome::Failed => return Selection::PreconditionFailed,
        }
        let first = |name: &str| {
            let mut lines = fields();
            lines.find_map(|(known, value)| known.eq_ignore_ascii_case(name).then_some(value))
        };
        match first("range").filter(|_| method == "GET") {
            Some(value) if self.permits_range(first("if-range")) => self.select_ranges(value),
            _ => Selection::Whole,
        }
    }

    fn select_ranges(&self, value: &[u8]) -> Selection {
        let mut content_range = Vec::new();
        match range::parse(value, self.size) {
            Requested::Whole => Selection::Whole,
            Requested::Unsatisfiable => {
                range::write_unsatisfied(self.size, &mut content_range);
                Selection::Unsatisfiable { content_range }
            }
            Requested::Satisfiable(ranges) => match ranges.single() {
                Some(range) => {
                    range::write_content_range(&range, self.size, &mut content_range);
                    Selection::Part {
                        range,
                        content_range,
                    }
                }
                None => self.multipart(&ranges),
            },
        }
    }

    /// Each range is a part with its own head (RFC 9110 §14.6). An empty line precedes the first
    /// boundary, as in the responses of nginx and Apache httpd: zsync expects it.
    fn multipart(&self, ranges: &Ranges) -> Selection {
        let boundary = boundary();
        let mut pieces = Vec::with_capacity(2 * ranges.len() + 1);
        for range in ranges.iter() {
            let content_type = self.content_type;
            let mut head =
                format!("\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: ")
                    .into_bytes();
            range::write_content_range(&range, self.size, &mut head);
            head.extend_from_slice(b"\r\n\r\n");
            pieces.push(Piece::Bytes(head.into()));
            pieces.push(Piece::Range(range));
        }
        pieces.push(Piece::Bytes(format!("\r\n--{boundary}--\r\n").into()));
        Selection::Parts {
            pieces,
            content_type: format!("multipart/byteranges; boundary={boundary}"),
        }
    }
}

/// A random boundary of 128 bits. The author of the content cannot predict it.
fn boundary() -> String {
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 06 Nov 1994 08:49:37.
    const MODIFIED_S: u64 = 784_111_777;
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn select(method: &str, fields: &[(&str, &str)]) -> Selection {
        let ten = Representation {
            etag: EntityTag::strong(b"a"),
            modified_s: Some(MODIFIED_S),
            size: 10,
            content_type: "text/plain",
        };
        ten.select_by(method, || {
            fields.iter().map(|&(name, value)| (name, value.as_bytes()))
        })
    }

    /// The selection in short: the status, and the bytes of a part.
    fn short(method: &str, fields: &[(&str, &str)]) -> (u16, Option<Range<u64>>) {
        match select(method, fields) {
            Selection::Whole => (200, None),
            Selection::Part { range, .. } => (206, Some(range)),
            Selection::Parts { .. } => (206, None),
            Selection::NotModified => (304, None),
            Selection::PreconditionFailed => (412, None),
            Selection::Unsatisfiable { .. } => (416, None),
        }
    }

    #[test]
    fn preconditions_come_before_ranges() {
        let range = ("Range", "bytes=2-4");
        let part = (206, Some(2..5));
        for (fields, expected) in [
            (&[][..], (200, None)),
            (&[range], part.clone()),
            (&[("if-none-match", "\"a\""), range], (304, None)),
            (&[("If-None-Match", "W/\"a\"")], (304, None)),
            (&[("If-None-Match", "\"b\""), range], part.clone()),
            (&[("If-Match", "\"b\""), range], (412, None)),
            (&[("If-Match", "W/\"a\"")], (412, None)),
            (&[("If-Match", "\"a\""), range], part.clone()),
            (&[("If-Modified-Since", DATE), range], (304, None)),
            (&[("If-Modified-Since", EARLIER), range], part.clone()),
            (&[("If-Unmodified-Since", EARLIER)], (412, None)),
            (&[("If-Unmodified-Since", DATE)], (200, None)),
            (&[("If-Range", "\"a\""), range], part.clone()),
            (&[("If-Range", "W/\"a\""), range], (200, None)),
            (&[("If-Range", "\"b\""), range], (200, None)),
            (&[("If-Range", DATE), range], part),
            (&[("If-Range", EARLIER), range], (200, None)),
            (&[("Range", "bytes=10-")], (416, None)),
            (
                &[("Range", "bytes=10-"), ("If-Range", "\"b\"")],
                (200, None),
            ),
            (&[("Range", "bytes=4-2")], (200, None)),
        ] {
            assert_eq!(short("GET", fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn head_has_conditions_without_ranges_and_other_methods_have_neither() {
        let range = ("Range", "bytes=2-4");
        assert_eq!(short("HEAD", &[range]), (200, None));
        assert_eq!(short("HEAD", &[("Range", "bytes=10-")]), (200, None));
        assert_eq!(short("HEAD", &[("If-None-Match", "*")]), (304, None));
        assert_eq!(short("HEAD", &[("If-Match", "\"b\"")]), (412, None));
        assert_eq!(short("POST", &[range, ("If-Match", "\"b\"")]), (200, None));
    }

    #[test]
    fn each_of_several_parts_has_a_head() {
        let Selection::Parts {
            pieces,
            content_type,
        } = select("GET", &[("Range", "bytes=0-1,8-")])
        else {
            panic!("several parts");
        };
        let (_, boundary) = content_type.split_once("boundary=").expect("a boundary");
        assert_eq!(
            content_type,
            format!("multipart/byteranges; boundary={boundary}")
        );
        assert_eq!(boundary.len(), 32);
        let head = |range: &str| {
            let fields = format!("Content-Type: text/plain\r\nContent-Range: bytes {range}/10");
            Piece::Bytes(format!("\r\n--{boundary}\r\n{fields}\r\n\r\n").into())
        };
        let end = Piece::Bytes(format!("\r\n--{boundary}--\r\n").into());
        let (first, last) = (Piece::Range(0..2), Piece::Range(8..10));
        assert_eq!(pieces, [head("0-1"), first, head("8-9"), last, end]);
    }
}
