//! The fields of a head that the machine itself obeys, noted as they pass by.
//!
//! One look at each field, while the table of offsets is being filled; what the notes mean together
//! is [`crate::head`]'s to say and not known here.

use crate::{span::Span, token};

/// The fields the machine itself obeys, as they pass by.
#[derive(Default)]
pub(crate) struct FieldScan<'b> {
    /// The last `Host`, and how many there were.
    pub(crate) host: Option<Span>,
    pub(crate) host_count: u32,
    /// The last `Content-Length`, and how many there were.
    pub(crate) length: &'b [u8],
    pub(crate) lengths: u32,
    pub(crate) coding: Coding,
    /// Members of `Connection`.
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    /// There was an `Expect`.
    pub(crate) expect: bool,
    /// One that is not `100-continue`.
    pub(crate) expect_other: bool,
}

/// `Transfer-Encoding`, all its lines together (RFC 9112 §6.1).
#[derive(Default)]
pub(crate) struct Coding {
    pub(crate) seen: bool,
    /// `chunked` was a member; nothing may follow.
    pub(crate) chunked: bool,
    /// A member is another coding.
    pub(crate) unknown: bool,
    /// No order of codings explains the members.
    pub(crate) malformed: bool,
}

impl<'b> FieldScan<'b> {
    #[inline]
    pub(crate) fn scan_field(&mut self, name: &[u8], value: &'b [u8], at: Span) {
        // The length rules out nearly every field that is not meant.
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
        // What nearly every client sends, if it sends anything.
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
            // Nothing may follow chunked, itself included; nor has it parameters.
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
