//! The request head (RFC 9112 §2, §3, §5) as offsets into the bytes it was parsed from.
//!
//! httparse splits the head into lines and fields. This module adds the stricter checks of a server
//! and keeps the table of offsets. Of the body it knows only the framing.
//!
//! httparse accepts a bare LF as a line end. Detecting it needs no second pass over the bytes: a
//! line end lies directly before the next field name, so this module checks the byte there. A head
//! that looks malformed or unfinished goes to `scan`, which names the first violation.

use crate::{
    field_scan::FieldScan,
    limits::Limits,
    reject::Reject,
    scan,
    span::Span,
    target::{self, Form},
    token,
};
use std::mem::MaybeUninit;

/// The version of HTTP that a request has.
///
/// A head of HTTP/1 with any other version is refused with 505. This includes other minor versions:
/// no version 1.x above 1.1 was ever published, so such a request comes from a probe and not from a
/// client. Bytes other than `HTTP/`, one digit, a dot and one digit (RFC 9112 §2.3) are refused
/// with 400.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
    /// HTTP/2, which the engine does not serve yet.
    Http2,
}

/// How the body that follows a head is delimited (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No body: the head has neither field, or `Content-Length: 0`. (`Length(0)` never occurs.)
    #[default]
    None,
    /// `Content-Length`, in bytes, more than 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`; in HTTP/2, a body without `content-length`.
    Chunked,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
}

/// One parsed head. It is reusable: `parse` overwrites it, and its table keeps its capacity.
///
/// It holds offsets only. Every accessor takes the bytes that the head was parsed from (`bytes[0]`
/// is the first byte passed to `parse`). With other bytes it panics or returns wrong values.
#[derive(Clone, Debug, Default)]
pub struct Head {
    fields: Vec<Field>,
    method: Span,
    target: Span,
    /// Empty for the empty path of absolute-form.
    path: Span,
    query: Option<Span>,
    host: Option<Span>,
    content_length: Option<u64>,
    framing: Framing,
    version: Version,
    keep_alive: bool,
    expects_continue: bool,
    is_head_method: bool,
    /// The bytes of this head, if it is short; otherwise empty. The same bytes under the same
    /// limits need not be parsed again.
    seen: Vec<u8>,
    /// The limits that applied to `seen`.
    seen_under: Bounds,
}

/// The limits that affect the parsing of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bounds {
    head_bytes_max: usize,
    field_count_max: usize,
    target_bytes_max: usize,
}

impl Bounds {
    #[inline]
    fn of(limits: &Limits) -> Bounds {
        Bounds {
            head_bytes_max: limits.head_bytes_max,
            field_count_max: limits.field_count_max,
            target_bytes_max: limits.target_bytes_max,
        }
    }
}

/// Longer heads are not remembered: copying them would cost more than it saves.
const SEEN_BYTES_MAX: usize = 1024;

/// A head of HTTP/2 that was written as one of HTTP/1: where its parts are in that text.
pub(crate) struct Parts<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) method: Span,
    pub(crate) target: Span,
    /// Names and values, without those that the text has in the place of pseudo-header fields.
    pub(crate) fields: &'b [(Span, Span)],
    /// No body follows.
    pub(crate) has_ended: bool,
}

/// The result of [`Head::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed.
    Partial,
    /// The head ends after this many bytes.
    Complete(usize),
}

/// Size of the small field table. Heads with more fields are rare and are parsed a second time.
const FIELDS_USUAL: usize = 32;

/// Upper limit on `head_bytes_max`, because offsets have 32 bits.
const HEAD_CEILING: usize = 1 << 30;

impl Head {
    /// Parses one head at the start of `bytes`, including up to two empty lines before it.
    ///
    /// `bytes` may hold more than one head; only the first is parsed. The accessors return
    /// meaningful values only after `Complete`.
    ///
    /// Fails with the refusal to send: 400 for malformed syntax and framing, 414, 417, 431, 501,
    /// 505 (the crate's documentation has the list). The reason for a refusal does not depend on
    /// how many of the bytes an earlier, `Partial` call received.
    #[inline(always)] // The comparison, which most heads need only.
    pub fn parse(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> {
        // Clients often send byte-identical heads on a persistent connection.
        if !self.seen.is_empty()
            && bytes.starts_with(&self.seen)
            && self.seen_under == Bounds::of(limits)
        {
            return Ok(Parsed::Complete(self.seen.len()));
        }
        self.parse_and_remember(bytes, limits)
    }

    #[inline(never)]
    fn parse_and_remember(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> {
        self.seen.clear();
        let parsed = self.parse_anew(bytes, limits)?;
        if let Parsed::Complete(n @ ..=SEEN_BYTES_MAX) = parsed {
            self.seen.extend_from_slice(&bytes[..n]);
            self.seen_under = Bounds::of(limits);
        }
        Ok(parsed)
    }

    fn parse_anew(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> {
        match self.read::<FIELDS_USUAL>(bytes, limits) {
            Ok(parsed) => Ok(parsed),
            Err(None) => self.parse_crowded(bytes, limits),
            Err(Some(reject)) => Err(reject),
        }
    }

    #[cold]
    fn parse_crowded(&mut self, bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> {
        self.read::<{ Limits::FIELDS_CEILING }>(bytes, limits)
            .map_err(|reject| {
                let scanned = || scan::scan(bytes, limits).err();
                reject
                    .or_else(scanned)
                    .unwrap_or(Reject::new(431, "too many fields"))
            })
    }

    /// Parses with room for `N` fields. Fails with `None` if the head has more.
    #[inline]
    fn read<const N: usize>(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
    ) -> Result<Parsed, Option<Reject>> {
        let mut table = [const { MaybeUninit::uninit() }; N];
        let mut request = httparse::Request::new(&mut []);
        let head_bytes = match request.parse_with_uninit_headers(bytes, &mut table) {
            Ok(httparse::Status::Complete(n)) => n,
            Ok(httparse::Status::Partial) => return Ok(partial(bytes, limits)?),
            Err(httparse::Error::TooManyHeaders) => return Err(None),
            // httparse refuses other versions at the first digit. Only the whole line shows whether
            // the version is malformed (400) or not supported (505).
            Err(httparse::Error::Version) => return Ok(partial(bytes, limits)?),
            Err(_) => return Err(Some(explain(bytes, limits))),
        };
        let (Some(method), Some(target)) = (request.method, request.path) else {
            return Err(Some(explain(bytes, limits)));
        };
        let base = bytes.as_ptr() as usize;
        self.method = Span::locate(method.as_bytes(), base);
        self.target = Span::locate(target.as_bytes(), base);
        self.is_head_method = method == "HEAD";
        self.version = match request.version {
            Some(0) => Version::Http10,
            _ => Version::Http11,
        };
        let bytes = &bytes[..head_bytes];
        let (field_scan, lines_end_well) = self.keep_fields(bytes, request.headers);
        if !(lines_end_well && self.sizes_fit(bytes, limits) && bytes.ends_with(b"\r\n\r\n")) {
            return Err(Some(explain(bytes, limits)));
        }
        let Some(query_mark) = target::check_bytes(target.as_bytes()) else {
            return Err(Some(explain(bytes, limits)));
        };
        self.resolve_target(bytes, query_mark, &field_scan)?;
        self.resolve_framing(&field_scan)?;
        self.resolve_connection(&field_scan)?;
        Ok(Parsed::Complete(head_bytes))
    }

    /// Makes this head the same as another one, which is not one of [`Head::parse`].
    pub(crate) fn copy_from(&mut self, other: &Head) {
        self.fields.clear();
        self.fields.extend_from_slice(&other.fields);
        self.seen.clear();
        (self.method, self.target) = (other.method, other.target);
        (self.path, self.query, self.host) = (other.path, other.query, other.host);
        (self.content_length, self.framing) = (other.content_length, other.framing);
        (self.version, self.keep_alive) = (other.version, other.keep_alive);
        self.expects_continue = other.expects_continue;
        self.is_head_method = other.is_head_method;
    }

    /// Takes a head of HTTP/2, whose limits and characters are checked. Fails as [`Head::parse`]:
    /// the request must be answered with this status.
    pub(crate) fn fill(&mut self, parts: &Parts<'_>) -> Result<(), Reject> {
        let bytes = parts.bytes;
        self.seen.clear();
        (self.method, self.target) = (parts.method, parts.target);
        self.is_head_method = self.method.of(bytes) == b"HEAD";
        self.version = Version::Http2;
        let mut field_scan = FieldScan::default();
        self.fields.clear();
        self.fields
            .extend(parts.fields.iter().map(|&(name, value)| {
                field_scan.scan_field(name.of(bytes), value.of(bytes), value);
                Field { name, value }
            }));
        let Some(query_mark) = target::check_bytes(self.target.of(bytes)) else {
            return Err(Reject::new(400, "malformed request target"));
        };
        self.resolve_target(bytes, query_mark, &field_scan)?;
        self.resolve_framing(&field_scan)?;
        self.framing = match self.framing {
            _ if parts.has_ended => Framing::None,
            // What follows a CONNECT is no body (RFC 9110 §9.3.6).
            Framing::None if self.method.of(bytes) == b"CONNECT" => Framing::None,
            Framing::None if self.content_length.is_none() => Framing::Chunked,
            framing => framing,
        };
        self.resolve_connection(&field_scan)
    }

    /// Fills the table of offsets and collects the fields that the state machine acts on. Also
    /// returns whether every line before a field ended with CR LF.
    #[inline]
    fn keep_fields<'b>(
        &mut self,
        bytes: &'b [u8],
        headers: &[httparse::Header<'b>],
    ) -> (FieldScan<'b>, bool) {
        let base = bytes.as_ptr() as usize;
        let mut field_scan = FieldScan::default();
        let mut lines_end_well = true;
        self.fields.clear();
        self.fields.extend(headers.iter().map(|header| {
            let name = Span::locate(header.name.as_bytes(), base);
            let value = Span::locate(header.value, base);
            // The LF needs no check: httparse starts a name only after a line end.
            let line_end = bytes.get((name.start as usize).wrapping_sub(2));
            lines_end_well &= line_end == Some(&b'\r');
            field_scan.scan_field(header.name.as_bytes(), header.value, value);
            Field { name, value }
        }));
        (field_scan, lines_end_well)
    }

    /// Checks the limits, and any bytes that httparse skipped before the method.
    #[inline]
    fn sizes_fit(&self, bytes: &[u8], limits: &Limits) -> bool {
        bytes.len() <= limits.head_bytes_max.min(HEAD_CEILING)
            && self.fields.len() <= limits.field_count_max
            && self.target.len as usize <= limits.target_bytes_max
            && self.method.len as usize <= scan::METHOD_BYTES_MAX
            && (self.method.start == 0 || scan::scan(bytes, limits).is_ok())
    }

    /// Splits the target and determines the host (RFC 9112 §3.2, §3.3).
    #[inline]
    fn resolve_target(
        &mut self,
        bytes: &[u8],
        query_mark: Option<usize>,
        field_scan: &FieldScan<'_>,
    ) -> Result<(), Reject> {
        let Span { start, len } = self.target;
        self.host = field_scan.host;
        match bytes[start as usize] {
            // Only the method CONNECT changes the meaning of a target; see below.
            b'/' => {
                let path = query_mark.map_or(len, |mark| mark as u32);
                self.path = Span { start, len: path };
                self.query = query_mark.map(|_| Span {
                    start: start + path + 1,
                    len: len - path - 1,
                });
            }
            _ => self.resolve_unusual_target(bytes, query_mark)?,
        }
        let is_connect = self.method.len == 7 && self.method.of(bytes) == b"CONNECT";
        // In HTTP/2, it is an extended one here.
        if is_connect && self.version != Version::Http2 {
            return Err(Reject::new(501, "CONNECT is not supported"));
        }
        match field_scan.host_count {
            1 => {
                let value = field_scan.host.map_or(&b""[..], |host| host.of(bytes));
                if value.is_empty() {
                    return Err(Reject::new(400, "empty Host"));
                }
                if !target::is_host(value) {
                    return Err(Reject::new(400, "malformed Host"));
                }
            }
            0 if self.version == Version::Http10 => {}
            0 => return Err(Reject::new(400, "missing Host")),
            _ => return Err(Reject::new(400, "more than one Host")),
        }
        Ok(())
    }

    /// Resolves the target forms other than origin-form.
    #[cold]
    fn resolve_unusual_target(
        &mut self,
        bytes: &[u8],
        query_mark: Option<usize>,
    ) -> Result<(), Reject> {
        let connect = self.method.of(bytes) == b"CONNECT";
        let options = self.method.of(bytes) == b"OPTIONS";
        let start = self.target.start as usize;
        self.query = None;
        match target::form(self.target.of(bytes), query_mark) {
            _ if connect => Err(Reject::new(501, "CONNECT is not supported")),
            Some(Form::Asterisk) if options => {
                self.path = self.target;
                Ok(())
            }
            Some(Form::Absolute { host, path, query }) => {
                self.host = Some(Span::new(start + host.start, host.len()));
                self.path = Span::new(start + path.start, path.len());
                self.query = query.map(|query| Span::new(start + query.start, query.len()));
                Ok(())
            }
            _ => Err(Reject::new(400, "malformed request target")),
        }
    }

    /// Applies RFC 9112 §6.1 to §6.3, without the leniency that they permit.
    #[inline]
    fn resolve_framing(&mut self, field_scan: &FieldScan<'_>) -> Result<(), Reject> {
        self.framing = Framing::None;
        self.content_length = None;
        if field_scan.lengths == 0 && !field_scan.coding.seen {
            return Ok(());
        }
        self.resolve_body(field_scan)
    }

    fn resolve_body(&mut self, field_scan: &FieldScan<'_>) -> Result<(), Reject> {
        if field_scan.lengths > 0 && field_scan.coding.seen {
            return Err(Reject::new(400, "Content-Length with Transfer-Encoding"));
        }
        if field_scan.lengths > 1 {
            return Err(Reject::new(400, "more than one Content-Length"));
        }
        if field_scan.lengths == 1 {
            // Some readers interpret a leading zero as an octal prefix.
            let has_leading_zero =
                field_scan.length.len() > 1 && field_scan.length.starts_with(b"0");
            let length = token::decimal(field_scan.length)
                .filter(|_| !has_leading_zero)
                .ok_or(Reject::new(400, "malformed Content-Length"))?;
            self.content_length = Some(length);
            if length > 0 {
                self.framing = Framing::Length(length);
            }
            return Ok(());
        }
        if self.version == Version::Http10 {
            return Err(Reject::new(400, "Transfer-Encoding in HTTP/1.0"));
        }
        if field_scan.coding.malformed {
            return Err(Reject::new(400, "malformed Transfer-Encoding"));
        }
        if field_scan.coding.unknown {
            return Err(Reject::new(501, "unknown transfer coding"));
        }
        self.framing = Framing::Chunked;
        Ok(())
    }

    /// Applies `Connection` and `Expect` (RFC 9112 §9.3, RFC 9110 §10.1.1).
    #[inline]
    fn resolve_connection(&mut self, field_scan: &FieldScan<'_>) -> Result<(), Reject> {
        let new = self.version != Version::Http10;
        self.keep_alive = !field_scan.close && (new || field_scan.keep_alive);
        self.expects_continue = false;
        if field_scan.expect && new {
            if field_scan.expect_other {
                return Err(Reject::new(417, "unknown expectation"));
            }
            self.expects_continue = true;
        }
        Ok(())
    }
}

/// The result for bytes that are not a complete head.
#[cold]
fn partial(bytes: &[u8], limits: &Limits) -> Result<Parsed, Reject> {
    scan::scan(bytes, limits).map(|_| Parsed::Partial)
}

/// Returns the first violation in bytes that the fast path rejected.
#[cold]
fn explain(bytes: &[u8], limits: &Limits) -> Reject {
    let scanned = scan::scan(bytes, limits);
    debug_assert!(
        scanned.is_err(),
        "the two parsers of a head disagree: {bytes:?}"
    );
    // If the two parsers disagree in a release build, the head is refused.
    scanned
        .err()
        .unwrap_or(Reject::new(400, "malformed request head"))
}

/// Accessors of a parsed head. `bytes` are always those that were passed to [`Head::parse`].
impl Head {
    /// The version of the request.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the body is delimited.
    #[inline]
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Whether the method is `HEAD`, whose responses have no content.
    #[inline]
    pub fn is_head_method(&self) -> bool {
        self.is_head_method
    }

    /// `Content-Length` as sent, in bytes (may be 0); `None` if absent.
    #[inline]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether the peer allows reuse of the connection (RFC 9112 §9.3).
    #[inline]
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether `Expect: 100-continue` was sent, in HTTP/1.1 (RFC 9110 §10.1.1).
    #[inline]
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// The method as sent; it is case-sensitive (RFC 9110 §9.1).
    #[inline]
    pub fn method<'b>(&self, bytes: &'b [u8]) -> &'b str {
        match self.method.of(bytes) {
            b"GET" => "GET",
            b"HEAD" => "HEAD",
            b"POST" => "POST",
            b"PUT" => "PUT",
            other => str::from_utf8(other).unwrap_or_default(),
        }
    }

    /// Raw request target as sent: printable ASCII without `#`.
    #[inline]
    pub fn target<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        self.target.of(bytes)
    }

    /// Path of the target, undecoded, without query; `*` for asterisk-form; `/` for the empty path
    /// of absolute-form. Otherwise it begins with `/`.
    #[inline]
    pub fn path<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        if self.path.len == 0 {
            b"/"
        } else {
            self.path.of(bytes)
        }
    }

    /// Query of the target, undecoded, without `?`; `None` if there is no `?`.
    #[inline]
    pub fn query<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        self.query.map(|query| query.of(bytes))
    }

    /// Host, with its port if one was sent. The authority of absolute-form takes precedence over
    /// the Host field (RFC 9112 §3.2.2). `None` only in HTTP/1.0; never empty.
    #[inline]
    pub fn host<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        self.host.map(|host| host.of(bytes))
    }

    /// First value of a field, without the white space around it. The name is case-insensitive.
    #[inline]
    pub fn header<'b>(&self, bytes: &'b [u8], name: &str) -> Option<&'b [u8]> {
        self.fields
            .iter()
            .find(|field| {
                field.name.len as usize == name.len()
                    && field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes())
            })
            .map(|field| field.value.of(bytes))
    }

    /// All field lines in order: (name as sent, value).
    #[inline]
    pub fn headers<'b>(
        &self,
        bytes: &'b [u8],
    ) -> impl Iterator<Item = (&'b str, &'b [u8])> + use<'b, '_> {
        self.fields.iter().map(move |field| {
            let name = str::from_utf8(field.name.of(bytes)).unwrap_or_default();
            (name, field.value.of(bytes))
        })
    }

    /// Number of field lines.
    #[inline]
    pub fn header_count(&self) -> usize {
        self.fields.len()
    }
}
