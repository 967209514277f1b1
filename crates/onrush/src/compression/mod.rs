//! Compression of responses while they are sent. With the feature `compression`.
//!
//! [`compress`] is a layer for [`Router::layer`](crate::Router::layer). What `Accept-Encoding` says
//! decides between Zstandard and gzip (RFC 9110 §12.5.3); of equal weights, Zstandard. Without an
//! acceptable coding the content is sent as it is, also with `identity;q=0`: a response that the
//! client may be able to use is better than 406.
//!
//! **Which responses.** Those of types that become smaller ([`is_compressible`]), of at least 1 KiB
//! or of unknown length. Not: 204, 205, 206 and 304; responses with `Content-Encoding`,
//! `Content-Range` or a digest; with `Cache-Control: no-transform`, by which a handler declines;
//! server-sent events, whose clients would each keep an encoder for hours; and content of known
//! length that does not become smaller.
//!
//! **Fields.** `Vary: Accept-Encoding` is added, whether or not this client accepts a coding. A
//! strong `ETag` becomes weak, so a handler that evaluates `If-None-Match` compares weakly, and
//! `If-Match` and `If-Range` need the tag from a response without a coding. `Accept-Ranges` is
//! removed. Content of up to 64 KiB that is not a stream keeps a length; other responses have none.
//! A `HEAD` has the fields of a `GET`, if its handler returns the same content.
//!
//! **Streams.** When a stream has nothing more ready, what it has yielded is compressed, flushed
//! and sent.
//!
//! **Memory.** An encoder of gzip uses 320 KiB with a window of 32 KiB, one of Zstandard up to 2
//! MiB with a window of 256 KiB. Beside it, a response holds two pieces of at most 64 KiB, and what
//! its stream yields at once. The encoders of long responses use at most 64 MiB of each worker;
//! when those are in use, further responses are sent as they are. An encoder is dropped with its
//! response, also when the client disconnects.
//!
//! **CPU time.** A worker compresses up to 8 KiB at once; more is a job of the
//! [offload](crate::offload()) pool in pieces of 64 KiB. Content that is not a stream is sent as it
//! is if the pool refuses its first piece. A later piece, and every piece of a stream, waits half a
//! second for the pool; then the worker compresses it, 8 KiB at a time between other work.
//!
//! [`Accepted`], [`Encoder`] and [`OffloadEncoder`] are the parts, for handlers that compress by
//! rules of their own.
//!
//! Modules, lowest first: `media_types` · `codings` · `encoder` · `offload_encoder` · `content` ·
//! `layer`.

mod codings;
mod content;
mod encoder;
mod layer;
mod media_types;
mod offload_encoder;

pub use codings::{Accepted, Coding};
#[doc(hidden)] // For the crate `onrush-files`.
pub use content::{Need, compress_known};
pub use encoder::{Encoder, Then};
pub use layer::compress;
#[doc(hidden)] // For the crate `onrush-files`.
pub use layer::permits_coding;
pub use media_types::{is_compressible, is_worth_it};
pub use offload_encoder::OffloadEncoder;
