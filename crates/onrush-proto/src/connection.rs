//! One HTTP/1 server connection as a state machine; every transition is in this file.
//!
//! The connection handles requests in order, one at a time: after [`Step::Request`] it returns no
//! further head until [`Connection::finish_response`] has finished the response. It holds no buffer
//! and no clock; the caller owns both.
//!
//! ```text
//! Ready -- receive_head --> Received -- send_head --> Responding -- finish_response --> Ready,
//!   |                          |                                            Draining, or Done
//!   +-------- refused ---------+-------> send_reject, finish_response --> Done
//!
//! Draining -- receive_body to its end --> Ready
//! ```
//!
//! After [`Connection::begin_upgrade`], a response 101 (RFC 9110 §15.2.2) is the last one. Its
//! content and what [`Connection::receive_body`] returns are the bytes of the other protocol.

use crate::{
    chunked::{self, Decoder, Piece},
    head::{Framing, Head, Parsed, Version},
    limits::Limits,
    reject::Reject,
    response::{self, ContentLength, HeadCache},
};

pub use crate::actions::{After, Eof, SendAs, Step};

/// Most bytes of an unread request body that are read and discarded to keep a connection.
pub const DRAIN_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next input is a head.
    Ready,
    /// A head was returned; the response has not begun.
    Received,
    /// The final response head was rendered.
    Responding,
    /// The response has been sent; the caller discards the rest of the request body.
    Draining,
    /// The connection reads no further request.
    Done,
}

/// How the current request's body is delimited. [`Connection::budget`] has its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Ended,
    Length,
    Chunked,
    /// Not a body: what the peer sends in another protocol after a 101, until it ends.
    Upgraded,
}

/// The state of one connection; at most 64 bytes.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder,
    /// Body bytes still to be received (`Body::Length`), or still allowed (`Body::Chunked`).
    budget: u64,
    /// Bytes of the unfinished head that were parsed or searched for an LF.
    scanned: u32,
    /// Bytes of the unfinished head that the parser has seen.
    parsed: u32,
    phase: Phase,
    body: Body,
    version: Version,
    /// The request was HEAD: responses have no content.
    head_only: bool,
    /// The peer expects a 100, and none has been sent or become unnecessary.
    expects: bool,
    /// The peer announced that it sends nothing after this request.
    peer_closes: bool,
    /// The current response is the last one.
    last: bool,
    /// The next response is the last one, by the caller's request or after a refusal.
    draining: bool,
    /// A chunked response has begun and not ended.
    open_response: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Connection::new()
    }
}

impl Connection {
    /// A connection before its first request.
    pub const fn new() -> Self {
        Connection {
            decoder: Decoder::new(),
            budget: 0,
            scanned: 0,
            parsed: 0,
            phase: Phase::Ready,
            body: Body::Ended,
            version: Version::Http11,
            head_only: false,
            expects: false,
            peer_closes: false,
            last: false,
            draining: false,
            open_response: false,
        }
    }

    /// Parses one head at the start of `input`. Skips up to two empty lines (CRLF) before it and
    /// counts them in `head_bytes`. Also returns `NeedMore` until the current request's response
    /// is finished and its body is read or drained, and after the last request.
    ///
    /// After `NeedMore` the next call must pass the same bytes again, with more bytes after them.
    /// A head that arrives in small pieces is parsed again only if a line has ended or the number
    /// of bytes has doubled.
    ///
    /// Fails with the refusal to pass to [`send_reject`](Connection::send_reject). A declared body
    /// larger than `limits.body_bytes_max` fails here (413).
    #[inline]
    pub fn receive_head(
        &mut self,
        input: &[u8],
        head: &mut Head,
        limits: &Limits,
    ) -> Result<Step, Reject> {
        if self.phase != Phase::Ready || (self.parsed != 0 && !self.worth_parsing(input, limits)) {
            return Ok(Step::NeedMore);
        }
        match head.parse(input, limits) {
            Ok(Parsed::Complete(head_bytes)) => {
                self.begin(head, limits)?;
                Ok(Step::Request { head_bytes })
            }
            Ok(Parsed::Partial) => {
                self.remember_parsed(input);
                Ok(Step::NeedMore)
            }
            Err(reject) => {
                let refused = self.refuse(reject);
                // The method is known, if nothing else is: no content follows (RFC 9110 §9.3.2).
                self.head_only = input.trim_ascii_start().starts_with(b"HEAD ");
                refused
            }
        }
    }

    #[cold]
    fn remember_parsed(&mut self, input: &[u8]) {
        // Empty lines (at most two) do not begin a request.
        let begun = input.iter().any(|&byte| byte != b'\r' && byte != b'\n');
        self.parsed = if begun { input.len() as u32 } else { 0 };
        self.scanned = self.parsed;
    }

    #[cold]
    fn worth_parsing(&mut self, input: &[u8], limits: &Limits) -> bool {
        let new = input.get(self.scanned as usize..).unwrap_or_default();
        let line_ended = memchr::memchr(b'\n', new).is_some();
        self.scanned = input.len() as u32;
        line_ended
            || input.len() / 2 >= self.parsed as usize
            || input.len() >= limits.head_bytes_max
    }

    #[inline]
    fn begin(&mut self, head: &Head, limits: &Limits) -> Result<(), Reject> {
        self.scanned = 0;
        self.parsed = 0;
        self.phase = Phase::Received;
        self.version = head.version();
        self.peer_closes = !head.keep_alive();
        self.head_only = head.is_head_method();
        self.last = false;
        self.body = Body::Ended;
        self.expects = false;
        match head.framing() {
            Framing::None => return Ok(()),
            Framing::Length(bytes) if bytes > limits.body_bytes_max => {
                return self.refuse(Reject::new(413, "request body too large"));
            }
            Framing::Length(bytes) => {
                self.body = Body::Length;
                self.budget = bytes;
            }
            Framing::Chunked => {
                self.body = Body::Chunked;
                self.decoder = Decoder::new();
                self.budget = limits.body_bytes_max;
            }
        }
        self.expects = head.expects_continue();
        Ok(())
    }

    /// Makes the next response the last one: after a violation, the boundaries of further requests
    /// are not known.
    #[cold]
    fn refuse<T>(&mut self, reject: Reject) -> Result<T, Reject> {
        self.last = true;
        self.draining = true;
        if self.phase == Phase::Ready {
            self.phase = Phase::Received;
            self.head_only = false;
        }
        Err(reject)
    }

    /// Lowers the limit on the current request's body to `bytes`, after decoding. A handler uses
    /// it to accept less than `limits.body_bytes_max`. It never raises the limit. Call it after
    /// the head and before the first `receive_body`.
    ///
    /// Fails with 413 at once if the head declared a larger length. A chunked body fails later, in
    /// `receive_body`, when a chunk size exceeds the rest of the limit.
    pub fn set_body_limit(&mut self, bytes: u64) -> Result<(), Reject> {
        match self.body {
            Body::Length if self.budget > bytes => {
                self.refuse(Reject::new(413, "request body too large"))
            }
            Body::Chunked => {
                self.budget = self.budget.min(bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Decodes the next piece of the body at the start of `input`, for both framings. Sets
    /// [`Piece::end`] at the end of the body, and also if there is no body.
    ///
    /// Fails with 400 or 431 for malformed chunks and trailers, and with 413 for a body that is
    /// larger than allowed or declares to be. Then call `send_reject` if no response has begun.
    pub fn receive_body(&mut self, input: &[u8], limits: &Limits) -> Result<Piece, Reject> {
        if !input.is_empty() {
            self.expects = false;
        }
        let mut piece = match self.body {
            Body::Ended => return Ok(Piece::framing(0, true)),
            Body::Length => {
                let count = self.budget.min(input.len() as u64);
                self.budget -= count;
                Piece {
                    consumed: count as usize,
                    data: 0..count as usize,
                    end: self.budget == 0,
                }
            }
            Body::Upgraded if self.phase != Phase::Responding => {
                return Ok(Piece::framing(0, false));
            }
            Body::Upgraded => Piece {
                consumed: input.len(),
                data: 0..input.len(),
                end: false,
            },
            Body::Chunked => match self.decoder.decode(input, limits) {
                Ok(piece) => {
                    let count = piece.data.len() as u64;
                    self.spend(count)?;
                    piece
                }
                Err(reject) => return self.refuse(reject),
            },
        };
        piece.end |= self.update_body_end();
        Ok(piece)
    }

    /// Subtracts `count` bytes of a chunked body from its budget. The rest of the current chunk
    /// must fit the budget, too, so a body fails at the same byte however it was split.
    fn spend(&mut self, count: u64) -> Result<(), Reject> {
        match self.budget.checked_sub(count) {
            Some(budget) if budget >= self.decoder.chunk_remaining() => {
                self.budget = budget;
                Ok(())
            }
            _ => {
                self.decoder.break_off();
                self.refuse(Reject::new(413, "request body too large"))
            }
        }
    }

    /// Updates the state if the body has ended. Returns whether it has.
    fn update_body_end(&mut self) -> bool {
        let ended = match self.body {
            Body::Ended => true,
            Body::Length => self.budget == 0,
            Body::Chunked => self.decoder.ended(),
            Body::Upgraded => false,
        };
        if ended {
            self.body = Body::Ended;
            if self.phase == Phase::Draining {
                self.phase = Phase::Ready;
            }
        }
        ended
    }

    /// Whether the current request's body, trailers included, has been read to its end.
    #[inline]
    pub fn body_ended(&self) -> bool {
        self.body == Body::Ended
    }

    /// Remaining body bytes. `None` if the length is not known: in a chunked body before its end,
    /// and after an upgrade.
    pub fn body_remaining(&self) -> Option<u64> {
        match self.body {
            Body::Ended => Some(0),
            Body::Length => Some(self.budget),
            Body::Chunked | Body::Upgraded => None,
        }
    }

    /// How many of the next bytes on the wire are body bytes without framing. These bytes may
    /// bypass the machine (spliced, or received directly into their destination). Returns 0
    /// between chunks, where `receive_body` must read the framing.
    #[inline]
    pub fn body_run(&self) -> u64 {
        match self.body {
            Body::Ended | Body::Upgraded => 0,
            Body::Length => self.budget,
            Body::Chunked => self.decoder.chunk_remaining(),
        }
    }

    /// Records `bytes` (≤ [`body_run`](Connection::body_run)) that bypassed the machine. They
    /// cannot exceed the limit on the body, which was checked when the length or the chunk size
    /// was read.
    ///
    /// # Panics
    /// If `bytes` exceeds `body_run()`.
    pub fn skip_body(&mut self, bytes: u64) -> Result<(), Reject> {
        assert!(
            bytes <= self.body_run(),
            "skipped past the run of body bytes"
        );
        if bytes > 0 {
            self.expects = false;
        }
        match self.body {
            Body::Ended | Body::Upgraded => {}
            Body::Length => self.budget -= bytes,
            Body::Chunked => {
                self.decoder.skip(bytes);
                self.spend(bytes)?;
            }
        }
        self.update_body_end();
        Ok(())
    }

    /// Takes the trailer lines of a chunked body, after its end and before the next head.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        self.decoder.take_trailers()
    }

    /// Returns what the peer's end of stream means in the current state. Changes nothing: call it
    /// again after each response until all buffered requests have been served.
    pub fn receive_eof(&mut self) -> Eof {
        match self.phase {
            Phase::Ready if self.parsed == 0 => Eof::Clean,
            Phase::Ready => Eof::Truncated,
            Phase::Received | Phase::Responding => match self.body {
                Body::Ended | Body::Upgraded => Eof::ResponseDue,
                Body::Length | Body::Chunked => Eof::Truncated,
            },
            Phase::Draining | Phase::Done => Eof::Clean,
        }
    }

    /// Permits the response to the current request to be 101, after which both sides speak another
    /// protocol (RFC 9110 §7.8). Returns whether it does: the caller has checked that the peer asks
    /// for it, and the request is one of HTTP/1.1 without a body. With any other response, the
    /// connection goes on as if this was not called.
    pub fn begin_upgrade(&mut self) -> bool {
        let may = self.phase == Phase::Received
            && self.version == Version::Http11
            && self.body == Body::Ended;
        if may {
            self.body = Body::Upgraded;
        }
        may || self.may_upgrade()
    }

    /// Whether [`begin_upgrade`](Connection::begin_upgrade) permits the response to be 101.
    #[inline]
    pub fn may_upgrade(&self) -> bool {
        self.phase == Phase::Received && self.body == Body::Upgraded
    }

    /// Whether the connection speaks another protocol since its response 101.
    #[inline]
    pub fn is_upgraded(&self) -> bool {
        self.phase == Phase::Responding && self.body == Body::Upgraded
    }

    /// Whether a 100 is due: the peer sent `Expect: 100-continue` in HTTP/1.1 with a body to
    /// follow, no byte of that body has been received, and no final response has begun (RFC 9110
    /// §10.1.1).
    #[inline]
    pub fn continue_due(&self) -> bool {
        self.expects && self.phase == Phase::Received
    }

    /// Appends `100 Continue` if it is due, otherwise nothing.
    pub fn send_continue(&mut self, out: &mut Vec<u8>) {
        if self.continue_due() {
            self.expects = false;
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    /// Appends an interim response (102 to 199, such as 103 Early Hints) with rendered `fields`.
    /// Appends nothing for HTTP/1.0 (RFC 9110 §15.2), after the final response has begun, and for
    /// any other status.
    pub fn send_informational(&mut self, status: u16, fields: &[u8], out: &mut Vec<u8>) {
        let wanted = self.phase == Phase::Received && self.version == Version::Http11;
        if wanted && (102..=199).contains(&status) {
            response::render_status_line(status, out);
            out.extend_from_slice(fields);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Begins the final response: appends status line, `Server`, `Date`, `Content-Type` with
    /// `content_type`, `Content-Length` or `Transfer-Encoding`, `Connection` as needed, the
    /// rendered `fields` and the empty line. Returns how the content must follow.
    ///
    /// `status` is 101 or 200 to 999. `fields` must come from
    /// [`FieldLines`](crate::response::FieldLines). A `content_type` with control characters is
    /// left out. A 304 has a `Content-Length` only if `length` is positive: callers pass 0 for "no
    /// content", and the field of a 304 must equal that of a 200. A 101 has `Connection: upgrade`;
    /// this machine does not handle the bytes after it.
    ///
    /// Decides persistence; `close` requests a close after this response. The connection also
    /// closes if the peer requested it, if the peer still waits for a 100 or has more than
    /// [`DRAIN_BYTES_MAX`] of its body to send, and if only the close can end the content
    /// (HTTP/1.0).
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub fn send_head(
        &mut self,
        status: u16,
        content_type: Option<&str>,
        fields: &[u8],
        length: ContentLength,
        date: &[u8; 29],
        close: bool,
        out: &mut Vec<u8>,
    ) -> SendAs {
        let send_as = self.begin_response(status, length, close);
        let content_type_len = content_type.map_or(0, str::len);
        // 192 bytes hold every fixed part, the longest reason phrase and length included.
        out.reserve(192 + content_type_len + fields.len());
        response::render_opening(status, date, out);
        if let Some(content_type) = content_type {
            response::render_content_type(content_type, out);
        }
        match (send_as, length) {
            (SendAs::Chunked, _) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            (_, ContentLength::Known(bytes)) => response::render_allowed_length(status, bytes, out),
            // A client finds its end by the length (RFC 9112 §6.3), as that of a 200.
            _ if status == 205 => response::render_length(0, out),
            _ => {}
        }
        if self.last || status == 101 || self.version == Version::Http10 {
            response::render_persistence(status, self.last, out);
        }
        out.extend_from_slice(fields);
        out.extend_from_slice(b"\r\n");
        send_as
    }

    /// [`send_head`](Connection::send_head) without further fields, with a cache of the last such
    /// head. Hot path.
    #[inline]
    pub fn send_plain_head(
        &mut self,
        status: u16,
        content_type: Option<&'static str>,
        length: u64,
        date: &[u8; 29],
        cache: &mut HeadCache,
        out: &mut Vec<u8>,
    ) -> SendAs {
        let usual = !(self.draining || self.peer_closes)
            && self.body == Body::Ended
            && self.version == Version::Http11
            && status != 101;
        let known = ContentLength::Known(length);
        if !usual {
            return self.send_head(status, content_type, b"", known, date, false, out);
        }
        let send_as = self.begin_response(status, known, false);
        cache.render(status, content_type, length, date, out);
        send_as
    }

    /// Performs the state transition of a final head. Returns how to send its content.
    #[inline]
    fn begin_response(&mut self, status: u16, length: ContentLength, close: bool) -> SendAs {
        debug_assert!(
            self.phase == Phase::Received,
            "a response without a request"
        );
        debug_assert!(
            (status == 101 && self.body == Body::Upgraded) || (200..=999).contains(&status),
            "not a final status"
        );
        if self.body == Body::Upgraded && status != 101 {
            self.body = Body::Ended;
        }
        let send_as = self.content_framing(status, length);
        self.last = close
            || self.draining
            || self.peer_closes
            || send_as == SendAs::UntilClose
            || (self.body != Body::Ended && self.body_spoils_reuse());
        self.phase = Phase::Responding;
        self.expects = false;
        self.open_response = send_as == SendAs::Chunked;
        send_as
    }

    /// RFC 9112 §6.3, for a sender.
    #[inline]
    fn content_framing(&self, status: u16, length: ContentLength) -> SendAs {
        if self.body == Body::Upgraded {
            return SendAs::UntilClose;
        }
        if self.head_only || response::has_no_content(status) {
            return SendAs::Nothing;
        }
        match length {
            ContentLength::Known(0) => SendAs::Nothing,
            ContentLength::Known(bytes) => SendAs::Length(bytes),
            ContentLength::Unknown if self.version == Version::Http11 => SendAs::Chunked,
            ContentLength::Unknown => SendAs::UntilClose,
        }
    }

    /// Whether the unread rest of the body rules out another request after it. A peer that waits
    /// for a 100 may send the body or omit it, so the meaning of its next byte is not known.
    #[cold]
    fn body_spoils_reuse(&self) -> bool {
        self.expects || (self.body == Body::Length && self.budget > DRAIN_BYTES_MAX)
    }

    /// Ends a chunked response. `trailers` are rendered field lines. Appends nothing if the
    /// response is not chunked or has ended.
    pub fn send_end(&mut self, trailers: &[u8], out: &mut Vec<u8>) {
        if std::mem::take(&mut self.open_response) {
            chunked::encode_end(trailers, out);
        }
    }

    /// Finishes a response. Returns what to do with the connection, and prepares the machine for
    /// the next head if the connection persists.
    ///
    /// If a chunked response was not ended with `send_end`, the connection closes, because only
    /// the close tells the peer that the response is incomplete. The caller must detect a response
    /// that is shorter than its declared length, and then either call
    /// [`close_after_next`](Connection::close_after_next) first or close the connection.
    #[inline]
    pub fn finish_response(&mut self) -> After {
        debug_assert!(self.phase == Phase::Responding, "no response has begun");
        let reusable = self.phase == Phase::Responding && !self.last && !self.open_response;
        if reusable && self.body == Body::Ended && !self.draining {
            self.phase = Phase::Ready;
            return After::KeepAlive;
        }
        self.next_unusual(reusable)
    }

    #[cold]
    fn next_unusual(&mut self, reusable: bool) -> After {
        let small = match self.body {
            Body::Ended => true,
            Body::Length => self.budget <= DRAIN_BYTES_MAX,
            Body::Chunked => {
                // The length is not known: the peer may send this much before the connection
                // closes.
                self.budget = self.budget.min(DRAIN_BYTES_MAX);
                self.budget >= self.decoder.chunk_remaining()
            }
            Body::Upgraded => false,
        };
        if reusable && !self.draining && small {
            self.phase = Phase::Draining;
            return After::DrainThenKeepAlive;
        }
        let quiet = self.peer_closes && self.body == Body::Ended && self.phase == Phase::Responding;
        self.phase = Phase::Done;
        if quiet {
            After::Close
        } else {
            After::LingeringClose
        }
    }

    /// Appends a complete response to a refused request, with `Connection: close`.
    /// `finish_response` then returns [`After::LingeringClose`]. The caller may pass refusals of
    /// its own, such as a timeout (408) in the middle of a head. Appends nothing if a final
    /// response has begun.
    pub fn send_reject(&mut self, reject: Reject, date: &[u8; 29], out: &mut Vec<u8>) {
        if !matches!(self.phase, Phase::Ready | Phase::Received) {
            return;
        }
        if self.phase == Phase::Ready {
            self.head_only = false;
        }
        self.phase = Phase::Responding;
        self.last = true;
        if self.body == Body::Upgraded {
            self.body = Body::Ended;
        }
        // The peer may still send bytes, whatever it announced: `next` must linger.
        self.peer_closes = false;
        response::render_reject(reject, self.head_only, date, out);
    }

    /// Accepts no further request (drain): the next response has `Connection: close`, and
    /// `finish_response` closes.
    pub fn close_after_next(&mut self) {
        self.draining = true;
    }
}
