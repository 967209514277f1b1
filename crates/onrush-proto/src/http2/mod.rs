//! HTTP/2 (RFC 9113) without I/O.

pub mod hpack;
