//! Header compression of HTTP/2 (HPACK, RFC 7541).
//!
//! A connection has a [`Decoder`] for the blocks of its peer and an [`Encoder`] for its own. Each
//! has a table of fields that both sides keep equal, so all blocks must pass through, in order,
//! also those whose request is refused.
//!
//! Layers, lowest first: `integer` · `huffman` · `static_table` · `dynamic_table` · `decoder` ·
//! `encoder`.

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod static_table;

pub use decoder::Decoder;
pub use encoder::{Encoder, Indexing};

/// The size of a table before a setting changes it (RFC 9113 §6.5.2), in the bytes of RFC 7541
/// §4.1. The tables of this crate are never larger.
pub const TABLE_BYTES: usize = 4096;

/// A block that breaks a rule. The tables of the two sides may differ after it, so the connection
/// ends with `COMPRESSION_ERROR` (RFC 9113 §4.3). Contains the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
