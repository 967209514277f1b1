//! What the connections of one worker share. Each type owns what it touches, and gets a connection
//! or the table of all as an argument. None of them knows the engine, so none can close a
//! connection or start a request.
//!
//! Modules, lowest first: `listeners` (listening sockets) · `rendering` (what responses are
//! rendered with) · `shutdown` (how connections end while the server drains) · `peers` (whose
//! connections they are) · `exchange_log` (the access log) · `measurements` (metrics of requests) ·
//! `receive_memory` (received bytes) · `socket_io` (bytes and TLS records at sockets) · `crowding`
//! (clients with many connections) · `idle_order` (idle connections) · `handshakes`,
//! `no_handshakes` (TLS) · `checks` (of load and other workers) · `transfer` (connections that
//! move) · `outbox` (to another process).

pub(in crate::engine) mod checks;
pub(in crate::engine) mod crowding;
pub(in crate::engine) mod exchange_log;
#[cfg(feature = "tls")]
pub(in crate::engine) mod handshakes;
pub(in crate::engine) mod idle_order;
pub(in crate::engine) mod listeners;
pub(in crate::engine) mod measurements;
#[cfg(not(feature = "tls"))]
pub(in crate::engine) mod no_handshakes;
pub(in crate::engine) mod outbox;
pub(in crate::engine) mod peers;
pub(in crate::engine) mod receive_memory;
pub(in crate::engine) mod rendering;
pub(in crate::engine) mod shutdown;
pub(in crate::engine) mod socket_io;
pub(in crate::engine) mod transfer;

#[cfg(not(feature = "tls"))]
pub(in crate::engine) use no_handshakes as handshakes;
