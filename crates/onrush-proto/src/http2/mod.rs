//! HTTP/2 (RFC 9113) as a pure state machine, as [`crate::connection`] is for HTTP/1.
//!
//! A request head becomes the [`Head`](crate::head::Head) of the same request in HTTP/1, so what
//! reads heads does not know the difference.
//!
//! Layers, lowest first: [`hpack`] · [`frame`] · [`priority`] · `budget`, `window` · `streams` ·
//! `request_head` · `response_head` · `repeats` · [`connection`] · `flow`, `blocks`, `data`,
//! `control`, `tunnel`, [`sending`] (its parts).

mod blocks;
mod budget;
pub mod connection;
mod control;
mod data;
mod flow;
pub mod frame;
pub mod hpack;
pub mod priority;
mod repeats;
mod request_head;
mod response_head;
pub mod sending;
mod streams;
pub mod tunnel;
mod window;
