//! Chunked transfer coding (RFC 9112 §7.1): a decoder over borrowed pieces, and an encoder.
use crate::{limits::Limits, reject::Reject};
use std::ops::Range;

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the input used up, framing included; the caller drops them.
    pub consumed: usize,
    /// Where in the input the body bytes of this step are (may be empty).
    pub data: Range<usize>,
    /// The body (trailers included) ended with this step.
    pub end: bool,
}

/// Small (≤ 32 bytes), allocation-free until trailers occur.
#[derive(Clone, Debug)]
pub struct Decoder {/* … */}
impl Decoder {
    pub fn new() -> Self { todo!() }
    /// Uses up a prefix of `input`. `consumed == 0 && !end` only when `input` is empty. One call returns at most one data range.
    pub fn decode(&mut self, input: &[u8], limits: &Limits) -> Result<Piece, Reject> { todo!() }
    /// Bytes of the present chunk that are still to come: they may be read past this decoder and told with `skip`.
    pub fn chunk_remaining(&self) -> u64 { todo!() }
    pub fn skip(&mut self, bytes: u64) { todo!() }
    /// Raw trailer field lines, validated ("name: value\r\n" each), after the end.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> { todo!() }
}
/// Appends the chunk header for `len > 0` bytes: hex, CRLF. After the data the caller appends CRLF.
pub fn encode_chunk_header(len: usize, out: &mut Vec<u8>) { todo!() }
/// Appends `0 CRLF trailers CRLF`; trailers are already rendered field lines.
pub fn encode_end(trailers: &[u8], out: &mut Vec<u8>) { todo!() }
