//! The other side is a client of rustls, or [`raw`] records where a client of rustls would not send
//! them.

mod client_certificates;
mod data;
mod early_data;
mod handshakes;
mod limits;
mod malformed;
mod memory;
mod peer;
mod raw;
mod refusals;
