//! The tests of blocked workers again, through TLS. See `through_tls.rs`.
#![cfg(feature = "tls")]

#[path = "blocked.rs"]
mod blocked;
