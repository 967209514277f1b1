//! HTTP/1 as pure state machines: bytes and a few facts in, events and bytes out.
//!
//! Nothing here knows a socket, a clock or a task, and nothing allocates per field. Body bytes do
//! not pass through: the machine says how a body is framed, so that its owner may splice it, send
//! it from a file or write it to one.
//!
//! Floors inside this crate, lowest first (a module uses only those before it):
//! [`limits`] · [`reject`] · [`token`] · [`date`] · [`head`] · [`chunked`] · [`response`] ·
//! [`connection`]; and beside them, for resources, [`etag`] · [`range`] · [`precondition`].
#![forbid(unsafe_code)]

pub mod chunked;
pub mod connection;
pub mod date;
pub mod etag;
pub mod head;
pub mod limits;
pub mod precondition;
pub mod range;
pub mod reject;
pub mod response;
pub mod token;
