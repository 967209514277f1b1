//! HTTP/2: from received bytes to requests, and from responses to sent bytes.
//!
//! A connection that speaks HTTP/2 is in the phase `Streams` from its first byte, or from the end
//! of its handshake, until it ends. It has a slot for each stream
//! ([`Http2`](crate::engine::connection::http2::Http2)) with an exchange of its own, and a task for
//! each handler that was not ready at once. So requests start in the order of their heads and end
//! in any order.
//!
//! What is sent is appended to the frames of the connection. They leave in one send for all
//! streams: at the end of a receive, or when the task of [`DueList`] runs, which is behind the
//! tasks that were ready with the one that has added a frame. Content is added while little waits
//! for the client; then streams take turns.
//!
//! An idle connection keeps its machine, which has the tables of both sides, and nothing else. A
//! connection does not move to another worker.
//!
//! Modules, lowest first: `output` (frames to the socket) · `stream` (the end of a stream) ·
//! `upgrade` (streams of other protocols) · `sending` (content) · `respond` (responses) · `receive`
//! (frames and requests) · `lifetime` (how a connection begins, what is due, and how it ends).
//!
//! [`DueList`]: crate::engine::open::streams::DueList

mod lifetime;
mod output;
mod receive;
mod respond;
mod sending;
mod stream;
mod upgrade;
