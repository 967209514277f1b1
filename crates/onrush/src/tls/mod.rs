//! TLS: the protocol machine of a connection.
//!
//! Modules, lowest first: `record` (protection of records) · `next_keys` (key updates) · `outgoing`
//! (sending) · `message` (handshake messages after the handshake) · `client_hello` (server name) ·
//! `received` (results) · `traffic` (an established connection) · `handshake` · `session`.

#![cfg_attr(
    not(test),
    expect(dead_code, reason = "the engine's transport calls it")
)]

mod client_hello;
mod handshake;
mod message;
mod next_keys;
mod outgoing;
mod received;
mod record;
pub(crate) mod session;
mod traffic;
