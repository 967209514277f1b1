//! Chunked transfer coding (RFC 9112 §7.1): a decoder over borrowed pieces, and an encoder.
//!
//! This module limits the size of the framing only; [`crate::connection`] limits the body.
//!
//! A small state machine reads the framing one byte at a time. It never examines the data. It is
//! stricter than the RFC in one place: it refuses white space between a chunk size and its
//! extensions, because readers disagree about it.

use crate::{limits::Limits, reject::Reject, token};
use std::ops::Range;

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the input that this step consumed, framing included. The caller drops them.
    pub consumed: usize,
    /// Position of this step's body bytes in the input (may be empty).
    pub data: Range<usize>,
    /// Whether the body, trailers included, ended with this step.
    pub end: bool,
}

impl Piece {
    /// A step that consumed `bytes` of framing and produced no data.
    pub(crate) fn framing(bytes: usize, end: bool) -> Piece {
        Piece {
            consumed: bytes,
            data: bytes..bytes,
            end,
        }
    }
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DecoderState {
    /// First digit of a chunk size.
    SizeStart,
    /// Further digits.
    Size,
    /// After `;`: white space or the name of an extension.
    ExtensionStart,
    ExtensionName,
    /// White space after a name: `=` or `;` must follow.
    ExtensionNameEnd,
    /// After `=`.
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    /// After a backslash in a quoted string.
    ExtensionEscape,
    /// After the closing quote.
    ExtensionQuotedEnd,
    /// White space after a value: `;` must follow.
    ExtensionEnd,
    /// The LF that ends a chunk size line.
    SizeLf,
    Data,
    /// The CR and LF after a chunk's data.
    DataCr,
    DataLf,
    /// First byte of a trailer line, or the CR of the empty line.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    /// The LF of the empty line.
    EndLf,
    End,
    /// A violation was found; the decoder reads nothing further.
    Broken,
}

/// Incremental decoder. It takes 32 bytes and allocates only for trailers.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// In `Size`: the value of the digits so far. In `Data`: remaining bytes of the chunk.
    remaining: u64,
    /// Trailer lines as received, without the empty line.
    trailers: Option<Box<Trailers>>,
    /// Extension bytes of all chunks so far.
    extension_bytes: u32,
    state: DecoderState,
    /// Digits of the current chunk size.
    digits: u8,
}

/// Boxed because few bodies have trailers.
#[derive(Clone, Debug, Default)]
struct Trailers {
    bytes: Vec<u8>,
    /// Where the current line begins.
    line: usize,
    count: usize,
}

/// Most digits of a chunk size. 64 bits need 16; further digits could only be leading zeros.
const DIGITS_MAX: u8 = 16;

/// Fields that must not follow the body, because they define how to frame or route the message
/// (RFC 9110 §6.5.1). Only an attacker has a use for them there.
const TRAILERS_FORBIDDEN: [&str; 11] = [
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "content-encoding",
    "content-range",
];

/// Whether a field must not follow the body.
pub(crate) fn is_forbidden_in_trailers(name: &[u8]) -> bool {
    let is_name = |forbidden: &&str| name.eq_ignore_ascii_case(forbidden.as_bytes());
    TRAILERS_FORBIDDEN.iter().any(is_name)
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder before the first chunk.
    pub const fn new() -> Self {
        Decoder {
            remaining: 0,
            trailers: None,
            extension_bytes: 0,
            state: DecoderState::SizeStart,
            digits: 0,
        }
    }

    /// Consumes a prefix of `input`: the framing up to the next data, and the part of that data
    /// that `input` holds. Each call returns at most one data range. `consumed` is 0 without `end`
    /// only if `input` is empty. After the end, calls consume nothing and set `end` again.
    ///
    /// Fails with 400 for malformed framing, and with 431 for a trailer section that is too large.
    /// The connection cannot be used after a failure, and every later call fails too.
    pub fn decode(&mut self, input: &[u8], limits: &Limits) -> Result<Piece, Reject> {
        let mut at = 0;
        loop {
            match self.state {
                DecoderState::Data => return Ok(self.data(at, input.len())),
                DecoderState::End => return Ok(Piece::framing(at, true)),
                _ => {}
            }
            let Some(&byte) = input.get(at) else {
                return Ok(Piece::framing(at, false));
            };
            at += 1;
            match self.step(byte, limits) {
                Ok(state) => self.state = state,
                Err(reject) => {
                    self.state = DecoderState::Broken;
                    return Err(reject);
                }
            }
        }
    }

    /// Takes the data at `start..` of an input with `len` bytes.
    fn data(&mut self, start: usize, len: usize) -> Piece {
        let there = (len - start) as u64;
        let count = self.remaining.min(there);
        self.skip(count);
        let end = start + count as usize;
        Piece {
            consumed: end,
            data: start..end,
            end: false,
        }
    }

    /// Performs every transition except those of data.
    fn step(&mut self, byte: u8, limits: &Limits) -> Result<DecoderState, Reject> {
        match self.state {
            DecoderState::SizeStart | DecoderState::Size => self.size(byte, limits),
            DecoderState::ExtensionStart
            | DecoderState::ExtensionName
            | DecoderState::ExtensionNameEnd
            | DecoderState::ExtensionValueStart
            | DecoderState::ExtensionToken
            | DecoderState::ExtensionQuoted
            | DecoderState::ExtensionEscape
            | DecoderState::ExtensionQuotedEnd
            | DecoderState::ExtensionEnd => self.extension(byte, limits),
            DecoderState::SizeLf => match (byte, self.remaining) {
                (b'\n', 0) => Ok(DecoderState::TrailerStart),
                (b'\n', _) => Ok(DecoderState::Data),
                _ => malformed("bare CR in a chunk size line"),
            },
            DecoderState::DataCr if byte == b'\r' => Ok(DecoderState::DataLf),
            DecoderState::DataLf if byte == b'\n' => {
                (self.remaining, self.digits) = (0, 0);
                Ok(DecoderState::SizeStart)
            }
            DecoderState::DataCr | DecoderState::DataLf => malformed("chunk data without its CRLF"),
            DecoderState::TrailerStart
            | DecoderState::TrailerName
            | DecoderState::TrailerValue
            | DecoderState::TrailerLf
            | DecoderState::EndLf => self.trailer(byte, limits),
            DecoderState::Data | DecoderState::End => Ok(self.state),
            DecoderState::Broken => malformed("malformed chunked body"),
        }
    }

    fn size(&mut self, byte: u8, limits: &Limits) -> Result<DecoderState, Reject> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.state == DecoderState::Size => return Ok(DecoderState::SizeLf),
            b';' if self.state == DecoderState::Size => return self.extension(byte, limits),
            _ => return malformed("malformed chunk size"),
        };
        self.digits += 1;
        if self.digits > DIGITS_MAX {
            return malformed("chunk size too long");
        }
        // Sixteen digits fit 64 bits: the shift loses no bit.
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(DecoderState::Size)
    }

    /// `*( ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`; the values are ignored.
    fn extension(&mut self, byte: u8, limits: &Limits) -> Result<DecoderState, Reject> {
        use DecoderState::*;
        let next = match (self.state, byte) {
            (ExtensionQuoted, b'"') => ExtensionQuotedEnd,
            (ExtensionQuoted, b'\\') => ExtensionEscape,
            (ExtensionQuoted | ExtensionEscape, _) if token::is_value_byte(byte) => ExtensionQuoted,
            (ExtensionName | ExtensionToken | ExtensionQuotedEnd, b'\r') => return Ok(SizeLf),
            (Size | ExtensionName | ExtensionNameEnd, b';') => ExtensionStart,
            (ExtensionToken | ExtensionQuotedEnd | ExtensionEnd, b';') => ExtensionStart,
            (ExtensionName | ExtensionNameEnd, b'=') => ExtensionValueStart,
            (ExtensionStart | ExtensionNameEnd | ExtensionValueStart, b' ' | b'\t') => self.state,
            (ExtensionName, b' ' | b'\t') => ExtensionNameEnd,
            (ExtensionToken | ExtensionQuotedEnd | ExtensionEnd, b' ' | b'\t') => ExtensionEnd,
            (ExtensionValueStart, b'"') => ExtensionQuoted,
            (ExtensionStart | ExtensionName, _) if token::is_tchar(byte) => ExtensionName,
            (ExtensionValueStart | ExtensionToken, _) if token::is_tchar(byte) => ExtensionToken,
            _ => return malformed("malformed chunk extension"),
        };
        self.extension_bytes = self.extension_bytes.saturating_add(1);
        if self.extension_bytes as usize > limits.chunk_extension_bytes_max {
            return malformed("chunk extensions too long");
        }
        Ok(next)
    }

    fn trailer(&mut self, byte: u8, limits: &Limits) -> Result<DecoderState, Reject> {
        if self.state == DecoderState::EndLf {
            return if byte == b'\n' {
                Ok(DecoderState::End)
            } else {
                malformed("malformed trailer")
            };
        }
        if self.state == DecoderState::TrailerStart && byte == b'\r' {
            return Ok(DecoderState::EndLf);
        }
        let trailers = self.trailers.get_or_insert_default();
        if trailers.bytes.len() >= limits.trailer_bytes_max {
            return Err(Reject::new(431, "trailer section too large"));
        }
        trailers.bytes.push(byte);
        match self.state {
            DecoderState::TrailerStart if token::is_tchar(byte) => {
                trailers.line = trailers.bytes.len() - 1;
                trailers.count += 1;
                if trailers.count > limits.field_count_max {
                    return Err(Reject::new(431, "too many trailer fields"));
                }
                Ok(DecoderState::TrailerName)
            }
            DecoderState::TrailerName if token::is_tchar(byte) => Ok(DecoderState::TrailerName),
            DecoderState::TrailerName if byte == b':' => {
                let name = &trailers.bytes[trailers.line..trailers.bytes.len() - 1];
                if is_forbidden_in_trailers(name) {
                    return malformed("a field that must not be a trailer");
                }
                Ok(DecoderState::TrailerValue)
            }
            DecoderState::TrailerValue if byte == b'\r' => Ok(DecoderState::TrailerLf),
            DecoderState::TrailerValue if token::is_value_byte(byte) => {
                Ok(DecoderState::TrailerValue)
            }
            DecoderState::TrailerLf if byte == b'\n' => Ok(DecoderState::TrailerStart),
            _ => malformed("malformed trailer"),
        }
    }

    /// Remaining bytes of the current chunk. The caller may receive them without this decoder and
    /// report them with [`skip`](Decoder::skip). 0 while the size of the next chunk is not known.
    #[inline]
    pub fn chunk_remaining(&self) -> u64 {
        if self.state == DecoderState::Data {
            self.remaining
        } else {
            0
        }
    }

    /// Records `bytes` data bytes that the caller received without this decoder.
    ///
    /// # Panics
    /// If `bytes` exceeds [`chunk_remaining`](Decoder::chunk_remaining).
    #[inline]
    pub fn skip(&mut self, bytes: u64) {
        assert!(bytes <= self.chunk_remaining(), "skipped past the chunk");
        self.remaining -= bytes;
        if self.state == DecoderState::Data && self.remaining == 0 {
            self.state = DecoderState::DataCr;
        }
    }

    /// Makes every later call fail with 400.
    pub(crate) fn break_off(&mut self) {
        self.state = DecoderState::Broken;
    }

    /// Whether the body, trailers included, has ended.
    #[inline]
    pub fn ended(&self) -> bool {
        self.state == DecoderState::End
    }

    /// Takes the validated trailer field lines as received (`name:value CRLF` each). `None` before
    /// the end of the body, without trailers, and on every later call.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        if self.state != DecoderState::End {
            return None;
        }
        self.trailers
            .take()
            .map(|trailers| trailers.bytes.into_boxed_slice())
    }
}

fn malformed<T>(reason: &'static str) -> Result<T, Reject> {
    Err(Reject {
        status: 400,
        reason,
    })
}

/// Appends the chunk header for `len > 0` bytes: hex, CRLF. The caller appends CRLF after the data.
/// A length of 0 appends nothing, because a chunk of size 0 ends the body.
#[inline]
pub fn encode_chunk_header(len: usize, out: &mut Vec<u8>) {
    if len == 0 {
        return;
    }
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4);
    let mut header = [0; 18];
    for (place, byte) in header[..digits as usize].iter_mut().rev().enumerate() {
        *byte = b"0123456789abcdef"[len >> (4 * place) & 15];
    }
    header[digits as usize] = b'\r';
    header[digits as usize + 1] = b'\n';
    out.extend_from_slice(&header[..digits as usize + 2]);
}

/// Appends `0 CRLF trailers CRLF`. `trailers` are rendered field lines.
#[inline]
pub fn encode_end(trailers: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
}
