//! TLS: the protocol machine of a connection.
//!
//! Modules, lowest first: `record` (protection of records) · `client_hello` (server name) ·
//! `traffic` (records after the handshake) · `handshake` · `session`.

mod client_hello;
mod handshake;
mod record;
pub(crate) mod session;
mod traffic;
