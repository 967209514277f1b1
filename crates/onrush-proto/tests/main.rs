//! The tests of the protocol, in one binary: it is linked once.

// Runs each raw case whole, split at each byte, byte by byte, and pipelined.
mod common;

// Chunked bodies (RFC 9112 §7.1).
mod chunked;
// HTTP dates (RFC 9110 §5.6.7).
mod date;
// Header compression of HTTP/2 (RFC 7541).
mod hpack;
// The same as encoders of others write it.
mod hpack_cases;
// Frames, streams and windows of HTTP/2 (RFC 9113).
mod http2;
// Conditional requests (RFC 9110 §13).
mod precondition;
// The header of the PROXY protocol.
mod proxy_header;
// Range requests (RFC 9110 §14).
mod range;
// Requests that must be refused, with their status.
mod requests_refused;
// Requests that must be accepted, and their values.
mod requests_valid;
// Bytes and framing of responses (RFC 9112 §6, §9).
mod response;
// Other protocols after a 101 (RFC 9110 §7.8).
mod upgrade;
