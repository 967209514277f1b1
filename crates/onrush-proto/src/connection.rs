//! One HTTP/1 server connection as a state machine; every transition is in this file.
//!
//! Requests are answered in order, one at a time: after [`Step::Request`] the machine gives no
//! further head until the answer has been finished with [`Connection::next`]. It holds no buffer
//! and no clock, and must not know what the answers mean.
//!
//! ```text
//! Ready -- receive_head --> Received -- send_head --> Responding -- next --> Ready,
//!   |                          |                                            Draining, or Done
//!   +-------- refused ---------+-------> send_reject, next --> Done
//!
//! Draining -- receive_body to its end --> Ready
//! ```

use crate::{
    chunked::{self, Decoder, Piece},
    head::{Framing, Head, Parsed, Version},
    limits::Limits,
    reject::Reject,
    response::{self, ContentLength, HeadCache},
};

pub use crate::actions::{After, Eof, SendAs, Step};

/// Most bytes of an unread request body that are read and thrown away to keep a connection.
pub const DRAIN_BYTES_MAX: u64 = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A head is due.
    Ready,
    /// A head was given out; the answer has not begun.
    Received,
    /// The final head was rendered.
    Responding,
    /// The answer has left; the rest of the request body is being thrown away.
    Draining,
    /// No request will be read any more.
    Done,
}

/// How the present request's body is delimited, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Ended,
    Length,
    Chunked,
}

/// The state of one connection; at most 64 bytes.
#[derive(Debug)]
pub struct Connection {
    decoder: Decoder,
    /// Body bytes that will come (`Body::Length`), or may yet come (`Body::Chunked`).
    budget: u64,
    /// Bytes of the unfinished head that hold no LF the parser has not seen.
    scanned: u32,
    /// Bytes of the unfinished head that the parser has seen.
    parsed: u32,
    phase: Phase,
    body: Body,
    version: Version,
    /// The request was HEAD: answers have no content.
    head_only: bool,
    /// A 100 was asked for and has not been sent or become pointless.
    expects: bool,
    /// The peer said that it sends nothing after this request.
    peer_closes: bool,
    /// The present answer is the last.
    last: bool,
    /// Set from outside: whatever answer comes next is the last.
    draining: bool,
    /// A chunked answer has begun and not ended.
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

    /// Parses one head at the start of `input`. Up to two empty lines (CRLF) before it are skipped
    /// and counted in `head_bytes`. Gives `NeedMore` also while a request is being answered, its
    /// body is being read or drained, and after the last one.
    ///
    /// After `NeedMore` the next call must get the same bytes again, and more behind them. A head
    /// that comes in crumbs is parsed again only when a line has ended or the bytes have doubled.
    ///
    /// Fails with the refusal to answer with [`send_reject`](Connection::send_reject). A declared
    /// body of more than `limits.body_bytes_max` is refused here (413).
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
            Err(reject) => self.refuse(reject),
        }
    }

    #[cold]
    fn remember_parsed(&mut self, input: &[u8]) {
        // Empty lines alone (there are at most two) are no request begun.
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

    /// Nothing that comes after a violation can be trusted to be what it seems.
    #[cold]
    fn refuse<T>(&mut self, reject: Reject) -> Result<T, Reject> {
        self.last = true;
        self.draining = true;
        if self.phase == Phase::Ready {
            // The head could not be read: answer in full, whatever its method was.
            self.phase = Phase::Received;
            self.head_only = false;
        }
        Err(reject)
    }

    /// Lowers the bound on the present request's body to `bytes`, after decoding; for handlers
    /// that take less than `limits.body_bytes_max`, which is the ceiling for all. To be called
    /// after the head and before the first `receive_body`; it never raises the bound.
    ///
    /// Fails with 413 at once when a larger length was declared; a chunked body fails later, in
    /// `receive_body`, when it has announced more.
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

    /// Decodes the next piece of the body at the start of `input`; works alike for both framings.
    /// At the end (also when there is no body) [`Piece::end`].
    ///
    /// Fails with 400 or 431 for malformed chunks and trailers, with 413 for a body that is or
    /// announces more than allowed. Then answer with `send_reject` if no answer has begun.
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

    /// Takes `count` bytes of a chunked body off its budget, which what the present chunk has
    /// announced must fit too: so a body fails at the same byte however it was split.
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

    /// Moves on when the body has just ended. Tells whether it has.
    fn update_body_end(&mut self) -> bool {
        let ended = match self.body {
            Body::Ended => true,
            Body::Length => self.budget == 0,
            Body::Chunked => self.decoder.ended(),
        };
        if ended {
            self.body = Body::Ended;
            if self.phase == Phase::Draining {
                self.phase = Phase::Ready;
            }
        }
        ended
    }

    /// Whether the present request's body, trailers included, has been read to its end.
    #[inline]
    pub fn body_ended(&self) -> bool {
        self.body == Body::Ended
    }

    /// Body bytes still to come, where the framing says: `None` while a chunked body has not ended.
    pub fn body_remaining(&self) -> Option<u64> {
        match self.body {
            Body::Ended => Some(0),
            Body::Length => Some(self.budget),
            Body::Chunked => None,
        }
    }

    /// The next so many bytes on the wire are body bytes as they are; they may bypass the machine
    /// (spliced, received straight to their place). In a chunked body 0 between chunks:
    /// `receive_body` must read the framing there.
    #[inline]
    pub fn body_run(&self) -> u64 {
        match self.body {
            Body::Ended => 0,
            Body::Length => self.budget,
            Body::Chunked => self.decoder.chunk_remaining(),
        }
    }

    /// Tells of `bytes` (≤ [`body_run`](Connection::body_run)) that went past the machine. Cannot
    /// pass the bound on the body: what a run announces was checked when it was announced.
    ///
    /// # Panics
    /// When `bytes` are more than `body_run()`.
    pub fn skip_body(&mut self, bytes: u64, _limits: &Limits) -> Result<(), Reject> {
        assert!(
            bytes <= self.body_run(),
            "skipped past the run of body bytes"
        );
        if bytes > 0 {
            self.expects = false;
        }
        match self.body {
            Body::Ended => {}
            Body::Length => self.budget -= bytes,
            Body::Chunked => {
                self.decoder.skip(bytes);
                self.spend(bytes)?;
            }
        }
        self.update_body_end();
        Ok(())
    }

    /// Trailer lines of a chunked body, once, after its end and before the next head.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        self.decoder.take_trailers()
    }

    /// Tells what the peer's end of stream means in the present state; changes nothing, so it can
    /// be asked again after each answer until all that is buffered has been served.
    pub fn receive_eof(&mut self) -> Eof {
        match self.phase {
            Phase::Ready if self.parsed == 0 => Eof::Clean,
            Phase::Ready => Eof::Truncated,
            Phase::Received | Phase::Responding if self.body == Body::Ended => Eof::ResponseDue,
            Phase::Received | Phase::Responding => Eof::Truncated,
            Phase::Draining | Phase::Done => Eof::Clean,
        }
    }

    /// A 100 is owed: `Expect: 100-continue` was sent in HTTP/1.1 with a body to follow, no byte
    /// of that body has been received, no final answer begun. (RFC 9110 §10.1.1)
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

    /// Appends another interim answer (102 to 199; 103 Early Hints) with rendered `fields`.
    /// Appends nothing for HTTP/1.0 (RFC 9110 §15.2), nor when the final answer has begun, nor for
    /// any other status.
    pub fn send_informational(&mut self, status: u16, fields: &[u8], out: &mut Vec<u8>) {
        let wanted = self.phase == Phase::Received && self.version == Version::Http11;
        if wanted && (102..=199).contains(&status) {
            response::render_status_line(status, out);
            out.extend_from_slice(fields);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Begins the final answer: appends status line, `Server`, `Date`, `Content-Type` with
    /// `content_type`, `Content-Length` or `Transfer-Encoding`, `Connection` as needed, the
    /// rendered `fields` and the empty line. Gives how the content must follow.
    ///
    /// `status` is 101 or 200 to 999. `content_type` and `fields` must be clean: `fields` come from
    /// [`FieldLines`](crate::response::FieldLines); a `content_type` with control characters is
    /// left out. A 304 states a length only when a positive one is given, for callers give 0 for
    /// "no content" and a 304 has to state what a 200 would. A 101 says `Connection: upgrade`;
    /// after it the bytes are no longer this machine's.
    ///
    /// Decides persistence; `close` asks for a close after this answer. The connection closes also
    /// when the peer said so, when it still waits for a 100 or has more than [`DRAIN_BYTES_MAX`] of
    /// its body to send, and when only the close can end the content (HTTP/1.0).
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
            _ => {}
        }
        if self.last || status == 101 || self.version == Version::Http10 {
            response::render_persistence(status, self.last, out);
        }
        out.extend_from_slice(fields);
        out.extend_from_slice(b"\r\n");
        send_as
    }

    /// [`send_head`](Connection::send_head) without further fields, by way of a cache of the last
    /// such head. Hot path.
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

    /// The transition that a final head is, and how its content is to be sent.
    #[inline]
    fn begin_response(&mut self, status: u16, length: ContentLength, close: bool) -> SendAs {
        debug_assert!(self.phase == Phase::Received, "an answer without a request");
        debug_assert!(
            status == 101 || (200..=999).contains(&status),
            "no final status"
        );
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

    /// RFC 9112 §6.3, seen from the sender.
    #[inline]
    fn content_framing(&self, status: u16, length: ContentLength) -> SendAs {
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

    /// Whether the unread rest of the body forbids another request behind it. A peer that waits
    /// for a 100 may send the body or leave it out: nobody can tell what its next byte is.
    #[cold]
    fn body_spoils_reuse(&self) -> bool {
        self.expects || (self.body == Body::Length && self.budget > DRAIN_BYTES_MAX)
    }

    /// Ends a chunked answer. `trailers` are rendered field lines. Appends nothing when the answer
    /// is not chunked or has ended.
    pub fn send_end(&mut self, trailers: &[u8], out: &mut Vec<u8>) {
        if std::mem::take(&mut self.open_response) {
            chunked::encode_end(trailers, out);
        }
    }

    /// The answer has been handed over whole. Tells how to go on, and makes the machine ready for
    /// the next head where there is one.
    ///
    /// A chunked answer that was not ended with `send_end` is cut off: the connection closes, for
    /// that is all that tells the peer. An answer of known length that fell short is the caller's
    /// to notice; call [`close_after_next`](Connection::close_after_next) first, or just close.
    #[inline]
    pub fn next(&mut self, _limits: &Limits) -> After {
        debug_assert!(self.phase == Phase::Responding, "no answer was begun");
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
                // Nobody knows its length; it may send a little more before we give up.
                self.budget = self.budget.min(DRAIN_BYTES_MAX);
                self.budget >= self.decoder.chunk_remaining()
            }
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

    /// Appends the answer to a refused request: whole, with `Connection: close`; `next` is then
    /// [`After::LingeringClose`]. Serves also for refusals that are not this machine's, a timeout
    /// (408) say, in the middle of a head. Appends nothing when a final answer has begun.
    pub fn send_reject(&mut self, reject: Reject, date: &[u8; 29], out: &mut Vec<u8>) {
        if !matches!(self.phase, Phase::Ready | Phase::Received) {
            return;
        }
        if self.phase == Phase::Ready {
            self.head_only = false;
        }
        self.phase = Phase::Responding;
        self.last = true;
        // What the peer announced is void: its bytes are not understood, or not wanted.
        self.peer_closes = false;
        response::render_reject(reject, self.head_only, date, out);
    }

    /// No further requests: answers from now on say `Connection: close`, and `next` closes (drain).
    pub fn close_after_next(&mut self) {
        self.draining = true;
    }
}
