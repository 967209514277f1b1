//! The common parts of the bare loops: arguments, sockets, the event loop, TLS, and fixed
//! responses.
//!
//! A bare loop does the least that a server can do with a driver. It receives, parses each request
//! with httparse, examines only what its purpose needs, and sends a response of the same length as
//! the server that it is the limit for. It has no size limits, no timeouts and a constant date. The
//! additional cost of a real server is the cost of its features.
//!
//! A bare loop loses no response, because a lost response would invalidate the measured row. It
//! joins a request that arrives in pieces, and finishes a response that does not fit. Neither
//! happens on the measured path, and neither adds a cost there.
//!
//! This crate does not depend on how it is measured.

pub mod arguments;
pub mod connections;
pub mod epoll;
pub mod net;
pub mod requests;
pub mod responses;
pub mod tls;
