//! HTTP/1: from received bytes to requests, and from responses to sent bytes.
//!
//! Modules, lowest first: `after_send` (what follows a send) · `reject` (requests that break a
//! rule) · `input` (queued input) · `idle` (waiting for requests) · `send_response` (large
//! responses) · `render` (responses) · `pending` (responses that are not ready at once) ·
//! `receive` (requests).

mod after_send;
mod idle;
mod input;
pub(in crate::engine) mod pending;
mod receive;
mod reject;
mod render;
pub(in crate::engine) mod send_response;
