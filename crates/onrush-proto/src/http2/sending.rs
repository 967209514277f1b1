//! What this side sends: heads, content, resets, and the end of the connection.

use crate::connection::SendAs;
use crate::http2::connection::Connection;
use crate::http2::frame::{
    self, ErrorCode, FRAME_HEAD_BYTES, FrameHead, PAYLOAD_BYTES_MAX, flag, kind,
};
use crate::http2::hpack::Indexing;
use crate::http2::priority::Priority;
pub use crate::http2::response_head::ResponseHead;
use crate::http2::streams::{Side, Stream};
use crate::http2::tunnel::{Tunnel, begin_tunnel};
use crate::response::{ContentLength, has_no_content};
use crate::token;

/// Frames with at least this much content give the client something: they give back what it spends
/// on asking for the next ones. So do smaller ones, unless the client has asked for so little.
/// `nghttp -w 9` has windows of 512 bytes.
const USEFUL_BYTES_MIN: usize = 256;

/// The last stream number that exists (RFC 9113 §6.8): no stream is refused yet.
const EVERY_STREAM: u32 = (1 << 31) - 1;

impl Connection {
    /// Appends an interim response (RFC 9113 §8.1). `fields` are field lines with CRLF. Returns
    /// whether it was appended: the stream is there, and its final response has not begun.
    pub fn send_interim(
        &mut self,
        stream: u32,
        status: u16,
        fields: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        if self.may_respond(stream).is_none() {
            return false;
        }
        let start = begin_block(out);
        self.status(status, out);
        self.lines(fields, out);
        end_block(start, stream, false, out);
        true
    }

    /// Appends the head of a response with these values, `Server`, `Date` and what tells its
    /// length. Returns how its content follows: [`SendAs::Nothing`] ends the stream,
    /// [`SendAs::Length`] and [`SendAs::Chunked`] are sent with [`Connection::send_data_head`].
    /// Nothing is appended if the stream is gone or has responded. A 101 that
    /// [`Connection::begin_upgrade`] permits is sent as a 200, and the content is of the other
    /// protocol.
    pub fn send_head(&mut self, stream: u32, head: &ResponseHead<'_>, out: &mut Vec<u8>) -> SendAs {
        let Some(open) = self.may_respond(stream) else {
            return SendAs::Nothing;
        };
        let head_only = open.head_only;
        let of_tunnel;
        let head = match begin_tunnel(open, head) {
            None => head,
            Some(made) => {
                of_tunnel = made;
                &of_tunnel
            }
        };
        let (status, length) = (head.status, head.length);
        let send_as = match length {
            _ if head_only || has_no_content(status) => SendAs::Nothing,
            ContentLength::Known(0) => SendAs::Nothing,
            ContentLength::Known(bytes) => SendAs::Length(bytes),
            ContentLength::Unknown => SendAs::Chunked,
        };
        let ends = send_as == SendAs::Nothing;
        let start = begin_block(out);
        match self.last_response.get(head, self.encoder.version()) {
            Some(block) => out.extend_from_slice(block),
            None => self.encode_head(head, out),
        }
        end_block(start, stream, ends, out);
        if let Some(stream) = self.streams.get(stream) {
            stream.has_responded = true;
        }
        if ends {
            self.end_response(stream);
        }
        send_as
    }

    /// Appends the block of a head.
    fn encode_head(&mut self, head: &ResponseHead<'_>, out: &mut Vec<u8>) {
        let (status, length) = (head.status, head.length);
        let (start, version) = (out.len(), self.encoder.version());
        let has_update = self.encoder.has_update();
        self.status(status, out);
        self.encoder
            .field(b"server", b"onrush", Indexing::Added, out);
        self.encoder.field(b"date", head.date, Indexing::Added, out);
        // A value with a line break would be another field to a server of HTTP/1 behind a proxy.
        if let Some(value) =
            (head.content_type).filter(|value| token::is_field_value(value.as_bytes()))
        {
            self.encoder
                .field(b"content-type", value.as_bytes(), Indexing::Added, out);
        }
        self.lines(head.fields, out);
        // As `render_allowed_length` for HTTP/1 (RFC 9110 §8.6).
        let length = match (status, length) {
            (101 | 204, _) | (304, ContentLength::Known(0)) | (_, ContentLength::Unknown) => None,
            (205, _) => Some(0),
            (_, ContentLength::Known(bytes)) => Some(bytes),
        };
        if let Some(bytes) = length {
            let mut digits = itoa::Buffer::new();
            let text = digits.format(bytes);
            self.encoder
                .field(b"content-length", text.as_bytes(), Indexing::Once, out);
        }
        if self.encoder.version() == version && !has_update {
            self.last_response.keep(head, version, &out[start..]);
        }
    }

    /// How many bytes of content may be sent on a stream now, by the windows of the stream and of
    /// the connection. 0 if the stream is gone.
    pub fn room(&mut self, stream: u32) -> usize {
        let of_connection = self.send_window;
        let room = match self.streams.get(stream) {
            Some(stream) if stream.local == Side::Open => stream.send_window.min(of_connection),
            _ => 0,
        };
        usize::try_from(room).unwrap_or(0)
    }

    /// Whether the window of a stream itself is used up, whatever that of its connection is.
    pub fn is_window_used_up(&mut self, stream: u32) -> bool {
        (self.streams.get(stream)).is_some_and(|stream| stream.send_window <= 0)
    }

    /// Whether the stream is there and its response is not complete.
    pub fn is_open(&mut self, stream: u32) -> bool {
        (self.streams.get(stream)).is_some_and(|stream| stream.local == Side::Open)
    }

    /// Appends the head of a DATA frame with `bytes` bytes, which the caller appends behind it: at
    /// most [`Connection::room`], and at most 16,384. `ends`: the response is complete with it.
    pub fn send_data_head(&mut self, stream: u32, bytes: usize, ends: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.data_head(stream, bytes, ends));
    }

    /// As [`Connection::send_data_head`], for a caller that has the content in its place already.
    pub fn data_head(&mut self, stream: u32, bytes: usize, ends: bool) -> [u8; FRAME_HEAD_BYTES] {
        debug_assert!(
            bytes <= self.room(stream).min(PAYLOAD_BYTES_MAX),
            "more than the window"
        );
        self.send_window -= bytes as i64;
        let mut left = self.send_window;
        if let Some(stream) = self.streams.get(stream) {
            stream.send_window -= bytes as i64;
            left = left.min(stream.send_window);
        }
        if bytes >= USEFUL_BYTES_MIN || left > 0 {
            self.note_useful();
        }
        let flags = if ends { flag::END_STREAM } else { 0 };
        let head = FrameHead {
            payload_bytes: bytes,
            kind: kind::DATA,
            flags,
            stream,
        };
        if ends {
            self.end_response(stream);
        }
        head.bytes()
    }

    /// Ends a response with trailers: field lines with CRLF. Without lines, with an empty frame. So
    /// does a stream of another protocol, which has no trailers (RFC 9113 §8.5).
    pub fn send_trailers(&mut self, stream: u32, lines: &[u8], out: &mut Vec<u8>) {
        if lines.is_empty() || self.tunnel(stream) == Tunnel::Begun {
            return self.send_data_head(stream, 0, true, out);
        }
        let start = begin_block(out);
        self.encoder.begin(out);
        self.lines(lines, out);
        end_block(start, stream, true, out);
        self.end_response(stream);
    }

    /// Ends a stream early, if it is open in any direction. No event of it follows.
    pub fn reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        if self.streams.get(stream).is_some() {
            self.put_reset(stream, code, out);
            self.discard_data(stream, out);
            self.announce(out);
        }
    }

    /// Whether the client still sends the body of a request whose response is complete. The caller
    /// reads on for a while, so that the client can read the response, and then resets the stream
    /// with [`ErrorCode::NO_ERROR`].
    pub fn is_half_closed(&mut self, stream: u32) -> bool {
        let stream = self.streams.get(stream);
        stream.is_some_and(|stream| stream.local == Side::Ended && stream.remote == Side::Open)
    }

    /// The priority of a response.
    pub fn priority(&mut self, stream: u32) -> Priority {
        self.streams
            .get(stream)
            .map(|stream| stream.priority)
            .unwrap_or_default()
    }

    /// Tells the client that the connection ends soon (RFC 9113 §6.8): streams that it begins until
    /// it has read this are served. [`Connection::end`] follows after a round trip.
    pub fn announce_end(&mut self, out: &mut Vec<u8>) {
        if self.last_served.is_none() {
            frame::put_goaway(EVERY_STREAM, ErrorCode::NO_ERROR, "", out);
        }
    }

    /// Serves the streams that have begun and no more.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        if self.last_served.is_none() {
            self.last_served = Some(self.last_stream);
            frame::put_goaway(self.last_stream, ErrorCode::NO_ERROR, "", out);
        }
    }

    fn may_respond(&mut self, stream: u32) -> Option<&mut Stream> {
        let stream = self.streams.get(stream);
        stream.filter(|stream| stream.local == Side::Open && !stream.has_responded)
    }

    fn end_response(&mut self, id: u32) {
        self.note_completed();
        if let Some(stream) = self.streams.get(id) {
            stream.local = Side::Ended;
            if stream.remote == Side::Ended {
                self.remove_stream(id);
            }
        }
    }

    fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        self.encoder.begin(out);
        let mut digits = itoa::Buffer::new();
        let text = digits.format(status);
        self.encoder
            .field(b":status", text.as_bytes(), Indexing::Added, out);
    }

    /// Appends field lines of HTTP/1.
    fn lines(&mut self, lines: &[u8], out: &mut Vec<u8>) {
        let mut rest = lines;
        let mut lower = [0; 64];
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            rest = &rest[end + 1..];
            let Some(colon) = memchr::memchr(b':', line) else {
                continue;
            };
            let (name, value) = (&line[..colon], token::trim(&line[colon + 1..]));
            let long;
            let name = match lower.get_mut(..name.len()) {
                Some(lower) => {
                    lower.copy_from_slice(name);
                    lower.make_ascii_lowercase();
                    &*lower
                }
                None => {
                    long = name.to_ascii_lowercase();
                    &long[..]
                }
            };
            // RFC 9113 §8.2.2.
            if !matches!(
                name,
                b"connection"
                    | b"keep-alive"
                    | b"proxy-connection"
                    | b"transfer-encoding"
                    | b"upgrade"
            ) {
                self.encoder.field(name, value, indexing(name), out);
            }
        }
    }
}

/// Which fields of responses are likely to be the same in the next one, and which are secrets.
fn indexing(name: &[u8]) -> Indexing {
    match name {
        b"set-cookie" | b"authorization" | b"proxy-authorization" | b"authentication-info" => {
            Indexing::Never
        }
        b"age"
        | b"content-disposition"
        | b"content-length"
        | b"content-location"
        | b"content-range"
        | b"digest"
        | b"etag"
        | b"expires"
        | b"last-modified"
        | b"link"
        | b"location"
        | b"repr-digest"
        | b"content-digest"
        | b"retry-after"
        | b"traceparent"
        | b"www-authenticate"
        | b"upload-offset" => Indexing::Once,
        _ => Indexing::Added,
    }
}

/// Leaves room for the head of a HEADERS frame. Returns where it is.
fn begin_block(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    start
}

/// Writes the heads of the frames of a block, which begins behind `start`.
fn end_block(start: usize, stream: u32, ends: bool, out: &mut Vec<u8>) {
    let end_stream = if ends { flag::END_STREAM } else { 0 };
    let block_start = start + FRAME_HEAD_BYTES;
    let block_bytes = out.len() - block_start;
    let first = block_bytes.min(PAYLOAD_BYTES_MAX);
    let is_whole = first == block_bytes;
    let end_headers = if is_whole { flag::END_HEADERS } else { 0 };
    let head = FrameHead {
        payload_bytes: first,
        kind: kind::HEADERS,
        flags: end_stream | end_headers,
        stream,
    };
    out[start..block_start].copy_from_slice(&head.bytes());
    if is_whole {
        return;
    }
    let rest = out.split_off(block_start + first);
    let mut pieces = rest.chunks(PAYLOAD_BYTES_MAX).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() {
            flag::END_HEADERS
        } else {
            0
        };
        frame::put(kind::CONTINUATION, flags, stream, piece, out);
    }
}
