//! One HTTP/2 server connection as a state machine (RFC 9113): its state, and the order of frames.
//! `blocks`, `data` and `control` take the frames of each kind, `sending` has what this side sends,
//! `tunnel` the streams of other protocols.
//!
//! The caller owns the input, the output and the clock. It passes received bytes to
//! [`Connection::receive`], which takes one frame, or a piece of DATA, and says what has happened;
//! answers that the protocol itself needs are appended to the output. Frames other than DATA must
//! be in one piece, so that the machine needs no memory for parts of them: after
//! [`Event::NeedMore`] the caller joins what it has with what arrives.
//!
//! Two kinds of violation exist (§5.4). One that concerns a single stream resets it and is reported
//! as [`Event::Reset`], or as [`Event::Malformed`] if it is in its head. After any other one the
//! connection ends: [`Connection::receive`] returns an error and has appended a GOAWAY.

use crate::head::Head;
use crate::http2::budget::Allowance;
use crate::http2::frame::{
    self, ErrorCode, FRAME_HEAD_BYTES, FrameHead, PAYLOAD_BYTES_MAX, PREFACE, flag, kind, setting,
};
use crate::http2::hpack::{Decoder, Encoder};
use crate::http2::repeats::{LastRequest, LastResponse};
use crate::http2::request_head::HeaderBlock;
use crate::http2::streams::Streams;
use crate::http2::window::Window;
use crate::limits::Limits;
use crate::reject::Reject;
use std::ops::Range;

/// The window of a stream and of a connection that both sides begin with (§6.9.2). This side never
/// announces less: clients send this much before they read its settings.
pub const WINDOW_BYTES: u32 = 65_535;

/// The window of a connection after its first frames, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;

/// How many streams a client may have open at a time. Some clients fail requests above this number
/// instead of queuing them, so it is never lowered.
pub const STREAMS_MAX: usize = 128;

/// How many of the streams that either side has reset last are known: of those that this side has
/// reset, frames may still be on their way.
const RESETS_KEPT: usize = 16;

/// The memory for heads that an idle connection keeps, in bytes.
const HEAD_KEPT_BYTES: usize = 1024;

/// The encoded bytes of a header block, relative to the limit on its text: Huffman codes make most
/// text shorter, and nothing makes it longer than this.
pub(super) const BLOCK_FACTOR: usize = 2;

/// Frames that lead to nothing: at most this many at once, and per second.
const IDLE_FRAMES_MAX: u32 = 1_000;
const IDLE_FRAMES_PER_SECOND: u32 = 20;
/// What a completed request gives back.
const IDLE_FRAMES_PER_REQUEST: u32 = 10;

/// So many WINDOW_UPDATEs for a frame of content are none of those. Clients open two windows for
/// it, at once or in steps: Go's does so for each 4,096 bytes that a program reads.
const WINDOW_UPDATES_PER_DATA: u32 = 10;
/// At most so many are kept for later.
const WINDOW_UPDATES_MAX: u32 = 1 << 16;

/// Requests that end before their response, by the client or because of a violation: at most this
/// many more than have completed at once, and per second.
const CANCELLED_MAX: u32 = 200;
const CANCELLED_PER_SECOND: u32 = 20;

/// Why a connection ends: a GOAWAY with this code is in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The code of the GOAWAY.
    pub code: ErrorCode,
    /// A short fixed reason, for logs and for the GOAWAY.
    pub reason: &'static str,
}

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reason)
    }
}

impl std::error::Error for Fatal {}

pub(super) const fn protocol_error(reason: &'static str) -> Fatal {
    Fatal {
        code: ErrorCode::PROTOCOL_ERROR,
        reason,
    }
}

pub(super) const fn frame_size_error(reason: &'static str) -> Fatal {
    Fatal {
        code: ErrorCode::FRAME_SIZE_ERROR,
        reason,
    }
}

/// What [`Connection::receive`] has found at the start of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More input is needed. The next call gets the rest of this input with more behind it.
    NeedMore,
    /// A frame that the caller need not know.
    Nothing,
    /// A request. Its head is complete; the text of the head is
    /// [`Connection::head_bytes`].
    Request {
        /// The stream of the request.
        stream: u32,
    },
    /// A request that gets this response, from [`Connection::send_head`] on, and is not passed to
    /// the application. Its text is [`Connection::head_bytes`], as far as it was read.
    Rejected {
        /// The stream of the request.
        stream: u32,
        /// The response.
        reject: Reject,
    },
    /// A request whose head is malformed (§8.1.1). Its stream was reset, and nothing else of it
    /// follows. Its text is [`Connection::head_bytes`], as far as it was read.
    Malformed {
        /// The stream of the request.
        stream: u32,
        /// A short fixed reason, for logs.
        reason: &'static str,
    },
    /// A piece of a body: this part of the input. It uses up the windows until
    /// [`Connection::consume`] is told that it is processed.
    Data {
        /// The stream of the request.
        stream: u32,
        /// Where the bytes are in the input; empty if the frame only ends the body.
        data: Range<usize>,
        /// The body has ended.
        ends: bool,
    },
    /// The body has ended with trailers.
    Trailers {
        /// The stream of the request.
        stream: u32,
        /// Field lines with CRLF.
        lines: Box<[u8]>,
    },
    /// The stream is gone, by the client or because of a violation.
    Reset {
        /// The stream of the request.
        stream: u32,
    },
    /// More may be sent on this stream, or on all if it is 0.
    Writable {
        /// The stream, or 0.
        stream: u32,
    },
    /// The client begins no further streams. Those that are open go on.
    Leaving,
}

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) encoder: Encoder,
    pub(super) streams: Streams,
    /// What may be sent on all streams together, in bytes.
    pub(super) send_window: i64,
    /// The setting of the peer for new streams.
    pub(super) peer_window: i64,
    /// The last stream that the peer has begun.
    pub(super) last_stream: u32,
    /// The streams that it has left out of late.
    pub(super) skipped: Range<u32>,
    /// What the peer may send on all streams together.
    pub(super) window: Window,
    /// The last stream that is served, once a GOAWAY has said so.
    pub(super) last_served: Option<u32>,
    pub(super) decoder: Decoder,
    pub(super) phase: Phase,
    /// The header block that CONTINUATION frames continue, and its stream.
    pub(super) block: Vec<u8>,
    pub(super) block_stream: u32,
    pub(super) block_ends_stream: bool,
    pub(super) fields: HeaderBlock,
    pub(super) last_request: LastRequest,
    /// The last request is the same as the one before.
    pub(super) is_repeated: bool,
    pub(super) last_response: LastResponse,
    /// Streams that this side has reset, newest last.
    resets: [u32; RESETS_KEPT],
    /// Streams that the peer has reset, newest last.
    cancels: [u32; RESETS_KEPT],
    /// The highest number that is in the list no more.
    resets_forgotten: u32,
    idle_frames: Allowance,
    /// WINDOW_UPDATEs that the peer may send for content that it has got.
    window_updates: u32,
    cancelled: Allowance,
    /// Settings that the peer has not acknowledged.
    pub(super) unacknowledged: u32,
    /// Clients may ask for other protocols.
    pub(super) extended_connect: bool,
    now_s: u32,
}

/// What the next input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The preface of the client; `true` after its fixed bytes, when SETTINGS must follow.
    Preface(bool),
    /// A frame.
    Frame,
    /// The rest of a header block: only CONTINUATION may follow.
    Block,
    /// The rest of a DATA frame: of its content, and then of its padding.
    Data {
        stream: u32,
        content_bytes: usize,
        padding_bytes: usize,
        ends: bool,
        /// The stream takes it; otherwise it is discarded.
        is_taken: bool,
    },
    /// The rest of a frame without a meaning here.
    Skip(usize),
    /// The connection has ended.
    Done,
}

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

impl Connection {
    /// A connection whose client has sent nothing. [`Connection::begin`] follows.
    pub fn new() -> Connection {
        Connection {
            encoder: Encoder::new(),
            streams: Streams::default(),
            send_window: i64::from(WINDOW_BYTES),
            peer_window: i64::from(WINDOW_BYTES),
            last_stream: 0,
            skipped: 0..0,
            window: Window::new(CONNECTION_WINDOW_BYTES),
            last_served: None,
            decoder: Decoder::new(),
            phase: Phase::Preface(false),
            block: Vec::new(),
            block_stream: 0,
            block_ends_stream: false,
            fields: HeaderBlock::default(),
            last_request: LastRequest::default(),
            is_repeated: false,
            last_response: LastResponse::default(),
            resets: [0; RESETS_KEPT],
            cancels: [0; RESETS_KEPT],
            resets_forgotten: 0,
            idle_frames: Allowance::new(IDLE_FRAMES_MAX, IDLE_FRAMES_PER_SECOND),
            window_updates: 0,
            cancelled: Allowance::new(CANCELLED_MAX, CANCELLED_PER_SECOND),
            unacknowledged: 0,
            extended_connect: false,
            now_s: 0,
        }
    }

    /// Appends the settings of this side, which precede everything else (§3.4), and the window of
    /// the connection.
    pub fn begin(&mut self, limits: &Limits, out: &mut Vec<u8>) {
        let head_bytes_max = u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX);
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, STREAMS_MAX as u32),
            // The default, said all the same: niquests 3.21 takes its own setting for it.
            (setting::INITIAL_WINDOW_SIZE, WINDOW_BYTES),
            (setting::MAX_HEADER_LIST_SIZE, head_bytes_max),
            (setting::NO_RFC7540_PRIORITIES, 1),
            (setting::ENABLE_CONNECT_PROTOCOL, 1),
        ];
        let said = settings.len() - usize::from(!self.extended_connect);
        frame::put_settings(&settings[..said], out);
        self.unacknowledged += 1;
        frame::put_window_update(0, CONNECTION_WINDOW_BYTES - WINDOW_BYTES, out);
    }

    /// The text of the head that the last [`Event::Request`], [`Event::Rejected`] or
    /// [`Event::Malformed`] is about.
    pub fn head_bytes(&self) -> &[u8] {
        &self.fields.bytes
    }

    /// Whether [`Connection::head_bytes`] are the same as those of the [`Event::Request`] before.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Whether the peer has not acknowledged settings (§6.5.3), for a time limit on it.
    pub fn awaits_settings(&self) -> bool {
        self.unacknowledged > 0
    }

    /// The number of streams that are not closed.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// The memory that the connection has allocated, in bytes, for tests.
    #[doc(hidden)]
    pub fn memory_bytes(&self) -> usize {
        let tables = self.encoder.memory_bytes() + self.decoder.memory_bytes();
        let head = self.block.capacity() + self.fields.memory_bytes();
        tables + head + self.streams.memory_bytes()
    }

    /// The window of a stream, or that of the connection for 0, for tests: its target, and what
    /// could be announced of it, in bytes; negative after the target has become less. `None` if the
    /// stream is gone.
    #[doc(hidden)]
    pub fn receive_window(&mut self, stream: u32) -> Option<(i64, i64)> {
        let window = match stream {
            0 => &self.window,
            stream => &self.streams.get(stream)?.window,
        };
        Some((window.target(), window.free()))
    }

    /// Frees memory that an idle connection does not need: of a head that was large.
    pub fn release(&mut self) {
        if self.fields.memory_bytes() > HEAD_KEPT_BYTES {
            self.fields = HeaderBlock::default();
            self.last_request.forget();
        }
    }

    /// Whether a frame, or a piece of the content of one, is next: what has begun before it has
    /// ended.
    pub fn is_at_frame(&self) -> bool {
        matches!(self.phase, Phase::Frame | Phase::Data { .. })
    }

    /// Whether the preface or a header block has begun and not ended: the time limit of heads
    /// applies.
    pub fn is_within_block(&self) -> bool {
        self.phase == Phase::Block || matches!(self.phase, Phase::Preface(_))
    }

    /// The memory of a header block of which only a part has arrived, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block.capacity()
    }

    /// How many bytes [`Connection::receive`] needs to take something, with those of `input` from
    /// its start.
    pub fn needed_bytes(&self, input: &[u8]) -> usize {
        match self.phase {
            Phase::Preface(false) => PREFACE.len(),
            Phase::Preface(true) | Phase::Frame | Phase::Block => match input.first_chunk() {
                None => FRAME_HEAD_BYTES,
                Some(head) => match FrameHead::parse(head) {
                    head if head.kind == kind::DATA => {
                        FRAME_HEAD_BYTES + usize::from(head.has(flag::PADDED))
                    }
                    head if is_skipped(head) || head.payload_bytes > PAYLOAD_BYTES_MAX => {
                        FRAME_HEAD_BYTES
                    }
                    head => FRAME_HEAD_BYTES + head.payload_bytes,
                },
            },
            Phase::Data { .. } | Phase::Skip(_) | Phase::Done => 1,
        }
    }

    /// Takes a frame, or a piece of one, from the start of `input`. Returns the number of bytes
    /// taken and what they are. `head` is filled before [`Event::Request`]. `now_s`: a clock of
    /// seconds, which need not begin at any time.
    ///
    /// # Errors
    /// [`Fatal`]: the connection ends when the output is sent. Each further call takes all input
    /// and returns [`Event::NeedMore`].
    pub fn receive(
        &mut self,
        input: &[u8],
        now_s: u32,
        limits: &Limits,
        head: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event), Fatal> {
        self.now_s = now_s;
        let step = self.step(input, limits, head, out);
        match &step {
            // Of what was given back by the end of a stream.
            Ok((taken, _)) if *taken > 0 => self.announce(out),
            Ok(_) => {}
            Err(fatal) => self.fail(*fatal, out),
        }
        step
    }

    /// Ends the connection because of a violation, or because the caller cannot go on: appends a
    /// GOAWAY with the reason.
    pub fn fail(&mut self, fatal: Fatal, out: &mut Vec<u8>) {
        if self.phase != Phase::Done {
            self.phase = Phase::Done;
            let last = *self.last_served.get_or_insert(self.last_stream);
            frame::put_goaway(last, fatal.code, fatal.reason, out);
        }
    }

    fn step(
        &mut self,
        input: &[u8],
        limits: &Limits,
        head: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event), Fatal> {
        match self.phase {
            Phase::Done => Ok((input.len(), Event::NeedMore)),
            Phase::Preface(false) => self.preface(input),
            Phase::Skip(left) => {
                let taken = left.min(input.len());
                self.phase = match left - taken {
                    0 => Phase::Frame,
                    left => Phase::Skip(left),
                };
                Ok((
                    taken,
                    if taken < left {
                        Event::NeedMore
                    } else {
                        Event::Nothing
                    },
                ))
            }
            Phase::Data { .. } => Ok(self.data_piece(input)),
            Phase::Preface(true) | Phase::Frame | Phase::Block => {
                let Some(frame_head) = input.first_chunk() else {
                    return Ok((0, Event::NeedMore));
                };
                let frame_head = FrameHead::parse(frame_head);
                self.check_head(frame_head)?;
                let payload = &input[FRAME_HEAD_BYTES..];
                if frame_head.kind == kind::DATA {
                    return self.begin_data(frame_head, payload, out);
                }
                if is_skipped(frame_head) {
                    self.spend_idle(1)?;
                    if frame_head.payload_bytes > 0 {
                        self.phase = Phase::Skip(frame_head.payload_bytes);
                    }
                    return Ok((FRAME_HEAD_BYTES, Event::Nothing));
                }
                let Some(payload) = payload.get(..frame_head.payload_bytes) else {
                    return Ok((0, Event::NeedMore));
                };
                let event = self.frame(frame_head, payload, limits, head, out)?;
                Ok((FRAME_HEAD_BYTES + payload.len(), event))
            }
        }
    }

    fn preface(&mut self, input: &[u8]) -> Result<(usize, Event), Fatal> {
        let begins = input.len().min(PREFACE.len());
        if input[..begins] != PREFACE[..begins] {
            return Err(protocol_error("not the preface of HTTP/2"));
        }
        if begins < PREFACE.len() {
            return Ok((0, Event::NeedMore));
        }
        self.phase = Phase::Preface(true);
        Ok((begins, Event::Nothing))
    }

    /// The rules that a head of a frame can break, and the order of frames.
    fn check_head(&self, head: FrameHead) -> Result<(), Fatal> {
        let bytes = head.payload_bytes;
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(frame_size_error("a frame larger than the setting"));
        }
        match self.phase {
            Phase::Preface(_) if head.kind != kind::SETTINGS || head.has(flag::ACK) => {
                return Err(protocol_error("the preface has no settings"));
            }
            Phase::Block if head.kind != kind::CONTINUATION || head.stream != self.block_stream => {
                return Err(protocol_error("a frame within a header block"));
            }
            Phase::Frame if head.kind == kind::CONTINUATION => {
                return Err(protocol_error("CONTINUATION without a header block"));
            }
            _ => {}
        }
        let is_of_stream = match head.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM => true,
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE => false,
            kind::PUSH_PROMISE => return Err(protocol_error("a client pushes")),
            _ => return Ok(()),
        };
        if is_of_stream != (head.stream != 0) {
            return Err(protocol_error(
                "a frame of this kind on stream 0, or not on it",
            ));
        }
        Ok(())
    }

    fn frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        limits: &Limits,
        request: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        match head.kind {
            kind::HEADERS => {
                let fragment = self.begin_block(head, payload)?;
                self.block_fragment(head, fragment, limits, request, out)
            }
            kind::CONTINUATION => {
                if payload.is_empty() {
                    self.spend_idle(10)?;
                }
                self.block_fragment(head, payload, limits, request, out)
            }
            kind::PRIORITY => {
                self.spend_idle(1)?;
                self.priority_of_7540(head, payload, out)
            }
            kind::RST_STREAM => self.reset_received(head, payload),
            kind::SETTINGS => self.settings(head, payload, out),
            kind::PING => self.ping(head, payload, out),
            kind::GOAWAY => {
                self.spend_idle(1)?;
                match payload.len() {
                    8.. => Ok(Event::Leaving),
                    _ => Err(frame_size_error("a GOAWAY of a wrong size")),
                }
            }
            kind::WINDOW_UPDATE => self.window_update(head, payload, out),
            _ => self.priority_update(payload),
        }
    }

    /// Takes from the allowance for frames that lead to nothing.
    pub(super) fn spend_idle(&mut self, cost: u32) -> Result<(), Fatal> {
        match self.idle_frames.take(cost, self.now_s) {
            true => Ok(()),
            false => Err(Fatal {
                code: ErrorCode::ENHANCE_YOUR_CALM,
                reason: "too many frames that lead to nothing",
            }),
        }
    }

    /// A request has ended before its response was complete.
    pub(super) fn spend_cancelled(&mut self) -> Result<(), Fatal> {
        match self.cancelled.take(1, self.now_s) {
            true => Ok(()),
            false => Err(Fatal {
                code: ErrorCode::ENHANCE_YOUR_CALM,
                reason: "too many requests are cancelled",
            }),
        }
    }

    /// A request and its response are complete.
    pub(super) fn note_completed(&mut self) {
        self.idle_frames.give(IDLE_FRAMES_PER_REQUEST);
        self.cancelled.give(1);
    }

    /// The peer has got something that it has asked for.
    pub(super) fn note_useful(&mut self) {
        self.idle_frames.give(1);
        let updates = self.window_updates + WINDOW_UPDATES_PER_DATA;
        self.window_updates = updates.min(WINDOW_UPDATES_MAX);
    }

    /// Takes from what content has given for opening windows, and then from the allowance for
    /// frames that lead to nothing.
    pub(super) fn spend_window_update(&mut self) -> Result<(), Fatal> {
        match self.window_updates.checked_sub(1) {
            Some(left) => {
                self.window_updates = left;
                Ok(())
            }
            None => self.spend_idle(1),
        }
    }

    /// The settings of the peer have arrived.
    pub(super) fn leave_preface(&mut self) {
        self.phase = Phase::Frame;
    }

    pub(super) fn is_idle(&self, stream: u32) -> bool {
        stream > self.last_stream || stream.is_multiple_of(2)
    }

    /// Resets a stream, whether it is open or was never accepted.
    pub(super) fn put_reset(&mut self, stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
        self.remove_stream(stream);
        self.resets_forgotten = self.resets_forgotten.max(self.resets[0]);
        self.resets.copy_within(1.., 0);
        self.resets[RESETS_KEPT - 1] = stream;
        frame::put_reset(stream, code, out);
    }

    /// Whether frames of a stream that is gone may have been on their way when this side has reset
    /// it (RFC 9113 §5.1). Below the forgotten numbers nobody knows, so what arrives is ignored.
    pub(super) fn was_reset(&self, stream: u32) -> bool {
        stream <= self.resets_forgotten || self.resets.contains(&stream)
    }

    /// The peer has reset a stream.
    pub(super) fn note_cancelled(&mut self, stream: u32) {
        self.cancels.copy_within(1.., 0);
        self.cancels[RESETS_KEPT - 1] = stream;
    }

    /// Whether the peer has reset a stream of late. What it sends on it nevertheless is an error of
    /// that stream alone.
    pub(super) fn was_cancelled(&self, stream: u32) -> bool {
        self.cancels.contains(&stream)
    }

    /// Resets a stream because of a violation of its client.
    pub(super) fn stream_error(
        &mut self,
        stream: u32,
        code: ErrorCode,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        self.spend_cancelled()?;
        self.put_reset(stream, code, out);
        Ok(Event::Reset { stream })
    }
}

/// Frames whose payload has no meaning here: of unknown kinds (§5.5), and what is longer than any
/// meaningful one.
fn is_skipped(head: FrameHead) -> bool {
    const FIELD_BYTES_MAX: usize = 1024;
    match head.kind {
        kind::PRIORITY_UPDATE => head.payload_bytes > FIELD_BYTES_MAX,
        kind::DATA..=kind::CONTINUATION => false,
        _ => true,
    }
}
