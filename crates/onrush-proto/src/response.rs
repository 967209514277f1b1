//! Response heads (RFC 9112 §4, RFC 9110 §15): field lines that cannot split a response, and the
//! functions that render a head. [`crate::connection`] decides which parts a head has.

use crate::{reject::Reject, token};

/// Rendered field lines: `Name: value CRLF` each.
///
/// Refuses names that are not tokens, and values with CR, LF, NUL or other control characters
/// (response splitting). Also refuses the fields that the connection writes itself: `Connection`,
/// `Content-Length`, `Transfer-Encoding`, `Keep-Alive`, `Proxy-Connection`, `Date`, `Server`. The
/// arguments `close` and `length` of [`send_head`](crate::connection::Connection::send_head)
/// determine the connection and length fields. The handler may write `Upgrade` and `Trailer`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldLines {
    lines: Vec<u8>,
}

impl FieldLines {
    /// Whether no memory is allocated for lines, so there is nothing to drop.
    #[inline]
    pub fn is_unallocated(&self) -> bool {
        self.lines.capacity() == 0
    }
}

/// Minimum capacity that the first line allocates.
const FIRST_BYTES: usize = 192;

/// Why a field line was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldError {
    /// The name is not a token (RFC 9110 §5.1).
    Name,
    /// The value has control characters, or white space at its start or end (RFC 9110 §5.5).
    Value,
    /// The connection writes this field itself.
    Reserved,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FieldError::Name => "the field name is not a token",
            FieldError::Value => "the field value contains bytes that are not allowed",
            FieldError::Reserved => "the field is written by the server itself",
        })
    }
}

impl std::error::Error for FieldError {}

const RESERVED: [&str; 7] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "keep-alive",
    "proxy-connection",
    "date",
    "server",
];

impl FieldLines {
    /// Creates an empty list without allocating.
    pub const fn new() -> Self {
        FieldLines { lines: Vec::new() }
    }

    /// Appends a line, even if lines of that name exist. On failure nothing changes.
    pub fn append(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> {
        check(name, value)?;
        let line_bytes = name.len() + value.len() + 4;
        // Most responses have several lines: allocate room for them at once.
        self.lines.reserve(match self.lines.is_empty() {
            true => line_bytes.max(FIRST_BYTES),
            false => line_bytes,
        });
        self.lines.extend_from_slice(name.as_bytes());
        self.lines.extend_from_slice(b": ");
        self.lines.extend_from_slice(value);
        self.lines.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Replaces all lines of that name by one line. On failure nothing changes.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> {
        check(name, value)?;
        self.remove(name);
        self.append(name, value)
    }

    /// Removes all lines of that name. The name is case-insensitive.
    pub fn remove(&mut self, name: &str) {
        let mut at = 0;
        while let Some(line) = line_len(&self.lines[at..]) {
            if split(&self.lines[at..at + line])
                .0
                .eq_ignore_ascii_case(name)
            {
                self.lines.drain(at..at + line);
            } else {
                at += line;
            }
        }
    }

    /// The first value of that name. The name is case-insensitive.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(have, _)| have.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// All lines in order: (name, value).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.lines[..];
        std::iter::from_fn(move || {
            let (line, after) = rest.split_at(line_len(rest)?);
            rest = after;
            Some(split(line))
        })
    }

    /// The lines in wire format.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.lines
    }

    /// Whether there are no lines.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Removes all lines and keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        self.lines.clear();
    }
}

fn check(name: &str, value: &[u8]) -> Result<(), FieldError> {
    if !token::is_token(name.as_bytes()) {
        return Err(FieldError::Name);
    }
    if RESERVED
        .iter()
        .any(|reserved| name.eq_ignore_ascii_case(reserved))
    {
        return Err(FieldError::Reserved);
    }
    if !token::is_field_value(value) || token::trim(value).len() != value.len() {
        return Err(FieldError::Value);
    }
    Ok(())
}

/// Length of the first line, including its CRLF. `None` at the end.
fn line_len(lines: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', lines).map(|lf| lf + 1)
}

/// Name and value of one complete line, as `append` wrote it.
fn split(line: &[u8]) -> (&str, &[u8]) {
    let colon = memchr::memchr(b':', line).unwrap_or(0);
    let name = str::from_utf8(&line[..colon]).unwrap_or_default();
    let value = line.get(colon + 2..line.len() - 2).unwrap_or_default();
    (name, value)
}

/// Generates from one list the reason phrases and the rendered bytes before the date.
macro_rules! statuses {
    ($($code:literal $phrase:literal)*) => {
        /// The standard reason phrase (RFC 9110 §15 and the IANA registry), or `""` for unknown
        /// codes.
        pub fn reason_phrase(status: u16) -> &'static str {
            match status {
                $($code => $phrase,)*
                _ => "",
            }
        }

        /// Status line, `Server`, and the name of `Date`. `None` for unknown codes.
        #[inline]
        fn opening(status: u16) -> Option<&'static [u8]> {
            match status {
                $($code => Some(
                    concat!(
                        "HTTP/1.1 ", $code, " ", $phrase, "\r\nServer: onrush\r\nDate: "
                    ).as_bytes()
                ),)*
                _ => None,
            }
        }
    };
}

statuses! {
    100 "Continue" 101 "Switching Protocols" 102 "Processing" 103 "Early Hints"
    104 "Upload Resumption Supported"
    200 "OK" 201 "Created" 202 "Accepted" 203 "Non-Authoritative Information" 204 "No Content"
    205 "Reset Content" 206 "Partial Content" 207 "Multi-Status" 208 "Already Reported"
    226 "IM Used"
    300 "Multiple Choices" 301 "Moved Permanently" 302 "Found" 303 "See Other" 304 "Not Modified"
    305 "Use Proxy" 307 "Temporary Redirect" 308 "Permanent Redirect"
    400 "Bad Request" 401 "Unauthorized" 402 "Payment Required" 403 "Forbidden" 404 "Not Found"
    405 "Method Not Allowed" 406 "Not Acceptable" 407 "Proxy Authentication Required"
    408 "Request Timeout" 409 "Conflict" 410 "Gone" 411 "Length Required"
    412 "Precondition Failed" 413 "Content Too Large" 414 "URI Too Long"
    415 "Unsupported Media Type" 416 "Range Not Satisfiable" 417 "Expectation Failed"
    421 "Misdirected Request" 422 "Unprocessable Content" 423 "Locked" 424 "Failed Dependency"
    425 "Too Early" 426 "Upgrade Required" 428 "Precondition Required" 429 "Too Many Requests"
    431 "Request Header Fields Too Large" 451 "Unavailable For Legal Reasons"
    500 "Internal Server Error" 501 "Not Implemented" 502 "Bad Gateway"
    503 "Service Unavailable" 504 "Gateway Timeout" 505 "HTTP Version Not Supported"
    506 "Variant Also Negotiates" 507 "Insufficient Storage" 508 "Loop Detected"
    511 "Network Authentication Required"
}

/// The length of a response's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLength {
    /// Exactly this many bytes.
    Known(u64),
    /// Not known in advance: chunked in HTTP/1.1, until close in HTTP/1.0.
    Unknown,
}

/// Appends status line, `Server` and `Date`. `status` is 100 to 999.
#[inline]
pub(crate) fn render_opening(status: u16, date: &[u8; 29], out: &mut Vec<u8>) {
    match opening(status) {
        Some(opening) => out.extend_from_slice(opening),
        None => render_unknown_opening(status, out),
    }
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n");
}

#[cold]
fn render_unknown_opening(status: u16, out: &mut Vec<u8>) {
    render_status_line(status, out);
    out.extend_from_slice(b"Server: onrush\r\nDate: ");
}

/// Appends a status line (RFC 9112 §4). `status` is 100 to 999.
pub(crate) fn render_status_line(status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `Content-Length`.
#[inline]
pub(crate) fn render_length(bytes: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(bytes).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether responses with this status never have content (RFC 9110 §6.4.1; 205: §15.3.6).
#[inline]
pub(crate) fn has_no_content(status: u16) -> bool {
    status < 200 || matches!(status, 204 | 205 | 304)
}

/// Appends `Content-Type`, or nothing if the value could end the line.
#[inline]
pub(crate) fn render_content_type(content_type: &str, out: &mut Vec<u8>) {
    // A line break in the value would allow its author to forge fields (response splitting).
    if token::is_field_value(content_type.as_bytes()) {
        out.extend_from_slice(b"Content-Type: ");
        out.extend_from_slice(content_type.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Caches one rendered head for responses that differ only in their content: same status, type,
/// length and second, no further fields. One cache per worker is sufficient.
#[derive(Debug, Default)]
pub struct HeadCache {
    /// Status, content type and length. The content type is static, so its address and length
    /// identify it.
    key: (u16, usize, usize, u64),
    date: [u8; 29],
    bytes: Vec<u8>,
}

impl HeadCache {
    #[inline]
    fn key(
        status: u16,
        content_type: Option<&'static str>,
        length: u64,
    ) -> (u16, usize, usize, u64) {
        let text = content_type.unwrap_or_default();
        let address = if content_type.is_some() {
            text.as_ptr() as usize
        } else {
            0
        };
        (status, address, text.len(), length)
    }

    /// Appends the head of a response that keeps its HTTP/1.1 connection open.
    #[inline]
    pub(crate) fn render(
        &mut self,
        status: u16,
        content_type: Option<&'static str>,
        length: u64,
        date: &[u8; 29],
        out: &mut Vec<u8>,
    ) {
        let key = HeadCache::key(status, content_type, length);
        if self.key != key || self.date != *date {
            self.bytes.clear();
            render_opening(status, date, &mut self.bytes);
            if let Some(content_type) = content_type {
                render_content_type(content_type, &mut self.bytes);
            }
            render_allowed_length(status, length, &mut self.bytes);
            self.bytes.extend_from_slice(b"\r\n");
            (self.key, self.date) = (key, *date);
        }
        out.extend_from_slice(&self.bytes);
    }
}

/// Appends `Content-Length` if RFC 9110 §8.6 allows it.
#[inline]
pub(crate) fn render_allowed_length(status: u16, bytes: u64, out: &mut Vec<u8>) {
    match status {
        101 | 204 => {}
        205 => render_length(0, out),
        304 if bytes == 0 => {}
        _ => render_length(bytes, out),
    }
}

/// Appends the `Connection` field. `last`: the connection closes.
#[cold]
pub(crate) fn render_persistence(status: u16, last: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(match () {
        _ if status == 101 => b"Connection: upgrade\r\n".as_slice(),
        _ if last => b"Connection: close\r\n",
        _ => b"Connection: keep-alive\r\n",
    });
}

/// Appends the complete response to a refused request, without content for HEAD.
#[cold]
pub(crate) fn render_reject(reject: Reject, head: bool, date: &[u8; 29], out: &mut Vec<u8>) {
    render_opening(reject.status, date, out);
    render_content_type("text/plain; charset=utf-8", out);
    render_length(reject.reason.len() as u64 + 1, out);
    out.extend_from_slice(b"Connection: close\r\n\r\n");
    if !head {
        out.extend_from_slice(reject.reason.as_bytes());
        out.push(b'\n');
    }
}
