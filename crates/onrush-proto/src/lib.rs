//! HTTP/1 and HTTP/2 as pure state machines: bytes and a few facts in, events and bytes out.
//!
//! This crate does no I/O, reads no clock and spawns no tasks. It does not allocate per field. Body
//! bytes do not pass through it: the state machine reports how a body is framed, so the caller can
//! splice it, send it from a file or write it to a file.
//!
//! Layers inside this crate, lowest first (a module uses only those before it): [`limits`] ·
//! [`reject`] · [`token`] · [`date`] · `span` · `target` · `scan` · `field_scan` · [`head`] ·
//! [`chunked`] · [`response`] · `actions` · [`connection`] · [`http2`] · `trace`; the modules about
//! connections of proxies and about resources are [`proxy_header`] · [`etag`] ·
//! [`range`] · [`precondition`] · [`traceparent`].
//!
//! # What is refused
//!
//! The parser refuses every request that two readers could understand differently. Every refusal
//! closes the connection with a lingering close, so that the peer can read the response.
//!
//! - **400**: `Content-Length` with `Transfer-Encoding`; more than one `Content-Length` line or a
//!   list in one, even of equal numbers; a length that has other bytes than digits, has a leading
//!   zero or does not fit 64 bits; `chunked` twice, not last, or with parameters; an empty member
//!   of `Transfer-Encoding`; `Transfer-Encoding` in HTTP/1.0; bare CR or LF; control characters;
//!   folded lines; space before a colon; `Host` missing (in 1.1), repeated, empty or malformed; a
//!   version other than `HTTP/`, a digit, a dot and a digit; a method that has not ended after 64
//!   bytes; a target with `#`, spaces or bytes outside ASCII, or of no known form; `*` with a
//!   method other than OPTIONS; more than two empty lines before a request; malformed chunk sizes,
//!   extensions, data ends and trailers; framing fields as trailers.
//! - **413**: a body that is larger than `body_bytes_max`, or declares to be.
//! - **414**: a target beyond `target_bytes_max`, or one that does not end within `head_bytes_max`.
//! - **417**: an expectation other than `100-continue` (ignored in HTTP/1.0).
//! - **431**: a head beyond `head_bytes_max`, too many fields, trailers beyond
//!   `trailer_bytes_max`.
//! - **501**: a transfer coding other than `chunked`; CONNECT (in HTTP/2 only one without
//!   `:protocol`); a method of 33 to 64 bytes.
//! - **505**: any well-formed version except HTTP/1.0 and HTTP/1.1.
//!
//! The parser accepts the following and leaves the decision to the application:
//!
//! - printable ASCII in a target that RFC 3986 requires to be encoded, including the backslash
//!   (browsers send `|` and `"`);
//! - bytes above ASCII in field values;
//! - leading zeros in a chunk size, which every reader takes to be hexadecimal.
#![forbid(unsafe_code)]

mod actions;
pub mod chunked;
pub mod connection;
pub mod date;
pub mod etag;
mod field_scan;
pub mod head;
pub mod http2;
pub mod limits;
pub mod precondition;
pub mod proxy_header;
pub mod range;
pub mod reject;
pub mod response;
mod scan;
mod span;
mod target;
pub mod token;
#[doc(hidden)]
pub mod trace;
pub mod traceparent;
