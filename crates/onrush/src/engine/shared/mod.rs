//! What the connections of one worker share. Each type owns what it touches, and gets a connection
//! or the table of all as an argument. None of them knows the engine, so none can close a
//! connection or start a request.
//!
//! Modules, lowest first: `listeners` (listening sockets) · `rendering` (what responses are
//! rendered with) · `shutdown` (how connections end while the server drains) · `deadlines` (time
//! limits) · `peers` (whose connections they are) · `exchange_log` (the access log) ·
//! `measurements` (metrics of requests) · `receive_memory` (received bytes) · `socket_io` (bytes
//! and TLS records at sockets) · `bodies` (request bodies) · `crowding` (clients with many
//! connections).

pub(in crate::engine) mod bodies;
pub(in crate::engine) mod crowding;
pub(in crate::engine) mod deadlines;
pub(in crate::engine) mod exchange_log;
pub(in crate::engine) mod listeners;
pub(in crate::engine) mod measurements;
pub(in crate::engine) mod peers;
pub(in crate::engine) mod receive_memory;
pub(in crate::engine) mod rendering;
pub(in crate::engine) mod shutdown;
pub(in crate::engine) mod socket_io;
