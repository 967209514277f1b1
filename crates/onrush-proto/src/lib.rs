//! HTTP/1 as pure state machines: bytes and a few facts in, events and bytes out.
//!
//! Nothing here knows a socket, a clock or a task, and nothing allocates per field. Body bytes do
//! not pass through: the machine says how a body is framed, so that its owner may splice it, send
//! it from a file or write it to one.
//!
//! Floors inside this crate, lowest first (a module uses only those before it): [`limits`] ·
//! [`reject`] · [`token`] · [`date`] · `span` · `target` · `scan` · `field_scan` · [`head`] ·
//! [`chunked`] · [`response`] · `actions` · [`connection`] · `trace`; and beside them, for
//! resources, [`etag`] · [`range`] · [`precondition`].
//!
//! # What is refused
//!
//! A request is read in one way or not at all. Every refusal closes the connection, after a
//! lingering close, so that the peer sees the answer.
//!
//! - **400**: `Content-Length` with `Transfer-Encoding`; more than one `Content-Length` line or a
//!   list in one, even of equal numbers; a length that is not digits alone, has a leading zero or
//!   does not fit 64 bits; `chunked` twice, not last, or with parameters; an empty member of
//!   `Transfer-Encoding`; `Transfer-Encoding` in HTTP/1.0; bare CR or LF; control characters;
//!   folded lines; space before a colon; `Host` missing (in 1.1), repeated, empty or malformed; a
//!   version other than `HTTP/`, a digit, a dot and a digit; a method that has not ended after 64
//!   bytes; a target with `#`, spaces or bytes outside ASCII, or of no known form; `*` for
//!   anything but OPTIONS; more than two empty lines before a request; broken chunk sizes,
//!   extensions, data ends and trailers; fields of framing as trailers.
//! - **413**: a body that is, or announces, more than `body_bytes_max`.
//! - **414**: a target beyond `target_bytes_max`, or no end of it within `head_bytes_max`.
//! - **417**: an expectation other than `100-continue` (ignored in HTTP/1.0).
//! - **431**: a head beyond `head_bytes_max`, too many fields, trailers beyond
//!   `trailer_bytes_max`.
//! - **501**: a transfer coding other than `chunked`; CONNECT; a method of 33 to 64 bytes.
//! - **505**: any well-formed version but HTTP/1.0 and HTTP/1.1.
//!
//! Let through, for others to judge: printable ASCII in a target that RFC 3986 wants encoded
//! (browsers send `|` and `"`), a backslash included; bytes above ASCII in field values; leading
//! zeros in a chunk size, which every reader takes to be hexadecimal.
#![forbid(unsafe_code)]

mod actions;
pub mod chunked;
pub mod connection;
pub mod date;
pub mod etag;
mod field_scan;
pub mod head;
pub mod limits;
pub mod precondition;
pub mod range;
pub mod reject;
pub mod response;
mod scan;
mod span;
mod target;
pub mod token;
#[doc(hidden)]
pub mod trace;
