//! Collects the fields of a head that the state machine itself acts on.
//!
//! The scan examines each field once, while [`crate::head`] fills its table of offsets.
//! [`crate::head`] then decides what the collected fields mean together.

use crate::{span::Span, token};

/// The fields that the state machine itself acts on.
#[derive(Default)]
pub(crate) struct FieldScan<'b> {
    /// The last `Host`.
    pub(crate) host: Option<Span>,
    /// Number of `Host` lines.
    pub(crate) host_count: u32,
    /// The last `Content-Length`.
    pub(crate) length: &'b [u8],
    /// Number of `Content-Length` lines.
    pub(crate) lengths: u32,
    pub(crate) coding: Coding,
    /// `Connection` has the member `close`.
    pub(crate) close: bool,
    /// `Connection` has the member `keep-alive`.
    pub(crate) keep_alive: bool,
    /// The head has an `Expect` field.
    pub(crate) expect: bool,
    /// An `Expect` field has a value other than `100-continue`.
    pub(crate) expect_other: bool,
}

/// All `Transfer-Encoding` lines together (RFC 9112 §6.1).
#[derive(Default)]
pub(crate) struct Coding {
    pub(crate) seen: bool,
    /// A member is `chunked`; no member may follow it.
    pub(crate) chunked: bool,
    /// A member is another coding.
    pub(crate) unknown: bool,
    /// A member is invalid, or follows `chunked`.
    pub(crate) malformed: bool,
}

impl<'b> FieldScan<'b> {
    #[inline]
    pub(crate) fn scan_field(&mut self, name: &[u8], value: &'b [u8], at: Span) {
        // The length rules out nearly every other field.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                self.host = Some(at);
                self.host_count += 1;
            }
            6 if name[0] | 0x20 == b'e' && name.eq_ignore_ascii_case(b"expect") => {
                self.expect = true;
                self.expect_other |= !value.eq_ignore_ascii_case(b"100-continue");
            }
            10 if name[0] | 0x20 == b'c' && name.eq_ignore_ascii_case(b"connection") => {
                self.scan_connection(value);
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                self.length = value;
                self.lengths += 1;
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.coding.scan_field(value),
            _ => {}
        }
    }
}

impl FieldScan<'_> {
    #[inline]
    fn scan_connection(&mut self, value: &[u8]) {
        // Most clients that send this field send exactly this value.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
        } else {
            self.close |= token::list_contains(value, "close");
            self.keep_alive |= token::list_contains(value, "keep-alive");
        }
    }
}

impl Coding {
    #[cold]
    fn scan_field(&mut self, value: &[u8]) {
        self.seen = true;
        for member in token::list(value) {
            let name = member
                .split(|&b| b == b';')
                .next()
                .map_or(member, token::trim);
            // No member may follow `chunked`, not even another `chunked`. It has no parameters.
            self.malformed |= self.chunked || !token::is_token(name);
            if !name.eq_ignore_ascii_case(b"chunked") {
                self.unknown = true;
            } else if name.len() == member.len() {
                self.chunked = true;
            } else {
                self.malformed = true;
            }
        }
    }
}
