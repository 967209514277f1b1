//! HTTP/1: from received bytes to requests, and from responses to sent bytes.
//!
//! Modules, lowest first: `send` (rendered responses) · `reject` (requests that break a rule) ·
//! `input` (queued input) · `idle` (waiting for requests) · `send_response` (large responses) ·
//! `render` (responses) · `pending` (responses that are not ready at once) · `receive` (requests).

mod idle;
mod input;
mod pending;
mod receive;
mod reject;
mod render;
mod send;
mod send_response;
