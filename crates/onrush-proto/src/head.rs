//! The request head (RFC 9112 §2, §3, §5) as offsets into the bytes it was parsed from.
//!
//! Parsing is httparse's; this module adds what a server must be strict about and keeps the table
//! of offsets. Must not know about connections or bodies beyond their framing.

use crate::{limits::Limits, reject::Reject};

/// HTTP/1.0 or HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version { /// HTTP/1.0
    Http10, /// HTTP/1.1
    Http11 }

/// How the body that follows a head is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing { /// No body, or `Content-Length: 0`... (`Length(0)` never occurs)
    None, /// `Content-Length`, > 0
    Length(u64), /// `Transfer-Encoding: chunked`
    Chunked }

/// One parsed head. Reusable: `parse` overwrites it, its table keeps its capacity.
/// Holds offsets only; every accessor takes the bytes it was parsed from (`bytes[0]` = first byte given to `parse`).
#[derive(Clone, Debug, Default)]
pub struct Head { /* private: offsets u32, Vec<Field{name_start:u32,name_len:u16,value_start:u32,value_len:u32}>, flags */ }

/// What `parse` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed { /// More bytes are needed.
    Partial, /// The head ends after this many bytes.
    Complete(usize) }

impl Head {
    /// Parses a head at the start of `bytes`...
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> { todo!() }
    pub fn version(&self) -> Version { todo!() }
    pub fn framing(&self) -> Framing { todo!() }
    /// `Content-Length` as sent (also 0), None when absent.
    pub fn content_length(&self) -> Option<u64> { todo!() }
    pub fn keep_alive(&self) -> bool { todo!() }
    pub fn expects_continue(&self) -> bool { todo!() }
    pub fn method<'b>(&self, bytes: &'b [u8]) -> &'b str { todo!() }
    /// Raw request target as sent.
    pub fn target<'b>(&self, bytes: &'b [u8]) -> &'b [u8] { todo!() }
    /// Path of the target, undecoded, without query; `*` for asterisk-form; "/" for empty path of absolute form.
    pub fn path<'b>(&self, bytes: &'b [u8]) -> &'b [u8] { todo!() }
    pub fn query<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> { todo!() }
    /// Host (absolute-form authority wins over the Host field).
    pub fn host<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> { todo!() }
    /// First value of a field, name compared without case.
    pub fn field<'b>(&self, bytes: &'b [u8], name: &str) -> Option<&'b [u8]> { todo!() }
    /// All field lines in order: (name, value).
    pub fn fields<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = (&'b str, &'b [u8])> + use<'b, '_> { std::iter::empty() }
    pub fn field_count(&self) -> usize { todo!() }
}
