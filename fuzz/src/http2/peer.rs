//! What a client that reads everything at once can know of a connection: the frames that the server
//! has taken and those that it has sent. Each frame is checked against those before it.

use crate::hpack::{Fields, Peer as HeaderDecoder};
use crate::http2::blocks::{Asked, Blocks};
use crate::http2::frames::{self, FrameHead, WINDOW_MAX};
use crate::http2::stream::Stream;
use onrush_proto::head::Head;
use onrush_proto::http2::connection::WINDOW_BYTES;
use onrush_proto::http2::frame::PREFACE;
use onrush_proto::http2::hpack::Decoder;
use onrush_proto::http2::tunnel::Tunnel;
use onrush_proto::token;
use std::collections::{BTreeMap, VecDeque};

/// The largest window that the server gives, in bytes.
const WINDOW_BYTES_MAX: i64 = 16 << 20;

const PROTOCOL_ERROR: u32 = 1;
const STREAM_CLOSED: u32 = 5;
const REFUSED_STREAM: u32 = 7;

/// What both sides have sent.
pub(super) struct Peer {
    /// Where the next frame of the client begins.
    frame_at: usize,
    /// The DATA frame there has begun.
    is_counted: bool,
    /// The header blocks of the client, and what the last one says.
    blocks: Blocks,
    asked: Asked,
    highest: u32,
    /// The stream of a request, whole or in part, that the server has not reported or refused.
    unreported: Option<u32>,
    /// The server lets clients ask for other protocols.
    offers: bool,
    pings: VecDeque<Vec<u8>>,
    /// The table sizes in each SETTINGS that is not acknowledged.
    settings: VecDeque<Vec<usize>>,
    /// What the server may send, by the initial setting and on all streams.
    initial: i64,
    send_window: i64,
    /// What the client may send on all streams, and what it has sent.
    announced: i64,
    received: i64,
    /// How much of the output is read.
    sent_bytes: usize,
    decoder: Decoder,
    /// Another decoder of the server's blocks, which takes much longer.
    other_decoder: Option<HeaderDecoder>,
    /// A header block of the server, its stream and whether it ends that.
    block: Option<(u32, bool, Vec<u8>)>,
    /// The last stream and the code of the last GOAWAY.
    goaway: Option<(u32, u32)>,
    streams: BTreeMap<u32, Stream>,
}

impl Peer {
    /// What both know before they have sent anything. `offers`: the server lets clients ask for
    /// other protocols. `is_thorough`: another decoder reads heads, too.
    pub(super) fn new(offers: bool, is_thorough: bool) -> Peer {
        Peer {
            frame_at: PREFACE.len(),
            is_counted: false,
            blocks: Blocks::new(),
            asked: Asked::default(),
            highest: 0,
            unreported: None,
            offers,
            pings: VecDeque::new(),
            settings: VecDeque::new(),
            initial: i64::from(WINDOW_BYTES),
            send_window: i64::from(WINDOW_BYTES),
            announced: i64::from(WINDOW_BYTES),
            received: 0,
            sent_bytes: 0,
            decoder: Decoder::new(),
            other_decoder: is_thorough.then(HeaderDecoder::new),
            block: None,
            goaway: None,
            streams: BTreeMap::new(),
        }
    }

    /// The server has taken the first `taken` bytes of `input`.
    pub(super) fn take(&mut self, input: &[u8], taken: usize) {
        while let Some(begun) = input[..taken].get(self.frame_at..)
            && let Some(head) = FrameHead::read(begun)
        {
            let is_whole = begun.len() >= head.frame_bytes();
            match head.kind {
                frames::DATA => {
                    if !std::mem::replace(&mut self.is_counted, true) {
                        self.data(head);
                    }
                }
                // Frames without a meaning are skipped in pieces.
                10..=15 | 17.. => {}
                frames::PRIORITY_UPDATE if head.payload_bytes > 1024 => {}
                _ => {
                    assert!(is_whole, "a part of a frame is taken: {head:?}");
                    let payload = &begun[frames::HEAD_BYTES..head.frame_bytes()];
                    self.frame(head, payload);
                }
            }
            if !is_whole {
                return;
            }
            self.is_counted = false;
            self.frame_at += head.frame_bytes();
        }
    }

    /// A frame that is not DATA.
    fn frame(&mut self, head: FrameHead, payload: &[u8]) {
        match head.kind {
            frames::HEADERS | frames::CONTINUATION => {
                if head.stream > self.highest {
                    (self.highest, self.unreported) = (head.stream, Some(head.stream));
                }
                if let Some(asked) = self.blocks.take(head, payload) {
                    self.asked = asked;
                    self.note_late(head.stream);
                }
            }
            frames::SETTINGS if !head.has(frames::ACK) => {
                let mut sizes = Vec::new();
                for (name, value) in frames::settings(payload) {
                    match name {
                        frames::TABLE_SIZE => sizes.push(value as usize),
                        frames::INITIAL_WINDOW => self.initial = i64::from(value),
                        _ => {}
                    }
                }
                self.settings.push_back(sizes);
            }
            frames::PING if !head.has(frames::ACK) => self.pings.push_back(payload.to_vec()),
            frames::WINDOW_UPDATE => {
                let room = i64::from(frames::number(payload) & (u32::MAX >> 1));
                match head.stream {
                    0 => self.send_window += room,
                    id => self.stream(id).send_window += room,
                }
            }
            _ => {}
        }
    }

    fn data(&mut self, head: FrameHead) {
        let bytes = head.payload_bytes as i64;
        self.received += bytes;
        assert!(
            self.received <= self.announced,
            "more than the window is taken"
        );
        assert!(
            bytes > 0 || !head.has(frames::PADDED),
            "a length of padding that is not there (RFC 9113 §4.2)"
        );
        self.stream(head.stream).received += bytes;
        self.note_late(head.stream);
    }

    fn note_late(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_late = stream.is_gone && !stream.was_reset;
        }
    }

    fn stream(&mut self, id: u32) -> &mut Stream {
        self.streams.entry(id).or_insert_with(Stream::new)
    }

    /// The frame behind what is taken has ended the connection with an error. `is_flow`: by the
    /// rules of flow control.
    pub(super) fn fail(&mut self, input: &[u8], is_flow: bool) {
        let begun = input.get(self.frame_at..).unwrap_or_default();
        let Some(head) = FrameHead::read(begun) else {
            return; // The preface.
        };
        assert!(
            !is_flow || self.exceeds_window(head, begun),
            "no window is exceeded"
        );
        if head.kind == frames::HEADERS {
            self.highest = self.highest.max(head.stream);
        }
    }

    fn exceeds_window(&self, head: FrameHead, begun: &[u8]) -> bool {
        match (head.kind, head.stream) {
            (frames::DATA, _) => self.received + head.payload_bytes as i64 > self.announced,
            (frames::WINDOW_UPDATE, 0) => {
                let room = frames::number(&begun[frames::HEAD_BYTES..]) & (u32::MAX >> 1);
                self.send_window + i64::from(room) > WINDOW_MAX
            }
            (frames::SETTINGS, _) => {
                let payload = &begun[frames::HEAD_BYTES..head.frame_bytes()];
                let added = self.streams.values().map(|stream| stream.send_window);
                let most = added.max().unwrap_or_default().max(0);
                frames::settings(payload).any(|(name, value)| {
                    name == frames::INITIAL_WINDOW && i64::from(value) + most > WINDOW_MAX
                })
            }
            _ => false,
        }
    }

    /// A request was reported, and is rejected if the caller has no head of it. Returns whether it
    /// has no body.
    pub(super) fn begin(&mut self, id: u32, head: Option<(&Head, &[u8])>) -> bool {
        let (asked, offers) = (self.asked, self.offers);
        assert_eq!(
            id, asked.stream,
            "a request of another stream than that of the frame"
        );
        assert_eq!(self.unreported.take(), Some(id), "{id} is reported again");
        let stream = self.stream(id);
        assert!(!stream.is_known && !stream.is_gone, "a second request");
        (stream.is_known, stream.remote_ended) = (true, asked.ends);
        stream.is_head = asked.is_head;
        if let Some((head, bytes)) = head {
            let is_connect = head.method(bytes) == "CONNECT";
            assert_eq!(is_connect, asked.has_protocol, "CONNECT has a protocol");
            assert!(offers || !is_connect, "a protocol that nobody offers");
            assert_eq!(asked.is_head, head.is_head_method());
            stream.has_length = head.content_length().is_some();
            if is_connect {
                stream.tunnel = Tunnel::Asked;
            }
        }
        asked.ends
    }

    /// A malformed request was reported. Its stream is reset, and nothing else of it follows.
    pub(super) fn malformed(&mut self, id: u32) {
        assert_eq!(self.unreported.take(), Some(id), "{id} is reported again");
        let stream = self.stream(id);
        assert!(stream.was_reset && !stream.is_known, "{id} is not reset");
    }

    /// Content was reported.
    pub(super) fn content(&mut self, id: u32, bytes: usize, ends: bool) {
        let stream = self.stream(id);
        assert!(
            stream.may_receive(),
            "content of a stream without a body: {id}"
        );
        assert!(
            stream.received <= stream.announced,
            "more than the window of {id}"
        );
        stream.unconsumed += bytes;
        stream.remote_ended = ends;
    }

    /// The end of a body with trailers was reported.
    pub(super) fn trailers(&mut self, id: u32) {
        let asked = self.asked;
        assert!(
            asked.stream == id && asked.ends,
            "trailers of another frame"
        );
        assert_eq!(self.stream(id).tunnel, Tunnel::No, "trailers of a tunnel");
        self.content(id, 0, true);
    }

    /// A reset was reported.
    pub(super) fn reset(&mut self, id: u32) {
        let stream = self.stream(id);
        assert!(stream.is_known, "a reset of {id}, which nobody knows");
        stream.is_gone = true;
    }

    /// The response will have so much content.
    pub(super) fn expect_content(&mut self, id: u32, bytes: u64) {
        self.stream(id).left = Some(bytes);
    }

    /// A 101 was sent.
    pub(super) fn begin_tunnel(&mut self, id: u32) {
        self.stream(id).tunnel = Tunnel::Begun;
    }

    /// The caller has consumed bytes.
    pub(super) fn consume(&mut self, id: u32, bytes: usize) {
        let stream = self.stream(id);
        stream.unconsumed -= bytes;
        stream.released = stream.released.min(stream.unconsumed);
    }

    /// The caller lets bytes wait.
    pub(super) fn release(&mut self, id: u32, bytes: usize) {
        self.stream(id).released += bytes;
    }

    /// The caller asks whether the response may be 101. Returns what it should be told.
    pub(super) fn upgrade(&mut self, id: u32) -> bool {
        let stream = self.stream(id);
        let is_open = stream.may_send() || stream.may_receive();
        if stream.tunnel == Tunnel::Asked && is_open && !stream.has_head && !stream.has_length {
            stream.tunnel = Tunnel::Permitted;
        }
        is_open && !stream.has_head && stream.tunnel == Tunnel::Permitted
    }

    /// Reads what the server has sent in addition, of all that it has sent.
    pub(super) fn read(&mut self, out: &[u8]) {
        while self.sent_bytes < out.len() {
            let rest = &out[self.sent_bytes..];
            let head = FrameHead::read(rest).expect("a whole head of a frame");
            assert!(
                rest.len() >= head.frame_bytes(),
                "a part of a frame: {head:?}"
            );
            assert!(head.payload_bytes <= frames::PAYLOAD_BYTES_MAX && !head.is_reserved_set);
            self.sent(head, &rest[frames::HEAD_BYTES..head.frame_bytes()]);
            self.sent_bytes += head.frame_bytes();
        }
        assert!(self.block.is_none(), "a header block without end");
    }

    fn sent(&mut self, head: FrameHead, payload: &[u8]) {
        let FrameHead {
            stream: id,
            flags,
            kind,
            ..
        } = head;
        assert!(
            self.goaway.is_none_or(|(_, code)| code == 0),
            "{head:?} behind an error"
        );
        let is_odd = id % 2 == 1;
        match &self.block {
            Some((stream, ..)) => assert_eq!((kind, id), (frames::CONTINUATION, *stream)),
            None => assert!(kind != frames::CONTINUATION, "no header block goes on"),
        }
        match kind {
            frames::DATA => self.sent_data(head),
            frames::HEADERS => {
                assert!(is_odd && flags & !(frames::END_STREAM | frames::END_HEADERS) == 0);
                self.block = Some((id, head.has(frames::END_STREAM), payload.to_vec()));
                self.end_block(head);
            }
            frames::CONTINUATION => {
                assert_eq!(flags & !frames::END_HEADERS, 0);
                if let Some((.., block)) = &mut self.block {
                    block.extend_from_slice(payload);
                }
                self.end_block(head);
            }
            frames::RST_STREAM => {
                assert!(is_odd && flags == 0 && payload.len() == 4);
                self.sent_reset(id, frames::number(payload));
            }
            frames::SETTINGS if flags == frames::ACK => {
                assert!(id == 0 && payload.is_empty());
                for size in self.settings.pop_front().expect("settings") {
                    if let Some(decoder) = &mut self.other_decoder {
                        decoder.set_table_bytes_max(size);
                    }
                }
            }
            frames::SETTINGS => {
                assert!((id, flags, payload.len() % 6) == (0, 0, 0) && self.sent_bytes == 0);
            }
            frames::PING => {
                assert_eq!((id, flags), (0, frames::ACK));
                assert_eq!(self.pings.pop_front().as_deref(), Some(payload));
            }
            frames::GOAWAY => {
                assert_eq!((id, flags), (0, 0));
                let last = frames::number(payload);
                let code = frames::number(&payload[4..]);
                // The reason has nothing of what was received.
                let reason = std::str::from_utf8(&payload[8..]).expect("text");
                assert!(reason.is_ascii() && reason.len() < 80, "{reason}");
                assert!(last <= self.highest || i64::from(last) == WINDOW_MAX);
                assert!(
                    self.goaway.is_none_or(|(before, _)| last <= before),
                    "{last}"
                );
                self.goaway = Some((last, code));
            }
            frames::WINDOW_UPDATE => self.sent_window_update(id, payload),
            _ => panic!("a frame of an unknown kind: {head:?}"),
        }
        assert!(
            self.sent_bytes > 0 || kind == frames::SETTINGS,
            "no settings in front"
        );
    }

    fn sent_reset(&mut self, id: u32, code: u32) {
        assert!(id <= self.highest, "{id} has not begun");
        if self.unreported == Some(id) {
            assert!(matches!(code, PROTOCOL_ERROR | REFUSED_STREAM), "{code}");
            if code == REFUSED_STREAM {
                self.unreported = None;
            }
        }
        let stream = self.stream(id);
        let is_late = std::mem::take(&mut stream.is_late) && code == STREAM_CLOSED;
        assert!(!stream.was_reset, "{id} is reset again");
        assert!(!stream.is_gone || is_late, "{id} is gone");
        assert!(
            !(stream.local_ended && stream.remote_ended),
            "{id} has ended"
        );
        (stream.is_gone, stream.was_reset) = (true, true);
    }

    fn sent_data(&mut self, head: FrameHead) {
        let bytes = head.payload_bytes;
        self.send_window -= bytes as i64;
        let (of_connection, initial) = (self.send_window, self.initial);
        let stream = self.stream(head.stream);
        stream.send_window -= bytes as i64;
        let window = of_connection.min(initial + stream.send_window);
        assert!(
            bytes == 0 || window >= 0,
            "more than the window of {}",
            head.stream
        );
        assert!(!stream.is_head, "content of {}, a HEAD", head.stream);
        assert!(stream.may_send() && stream.has_head && head.flags & !frames::END_STREAM == 0);
        if let Some(left) = &mut stream.left {
            *left -= bytes as u64;
        }
        stream.local_ended = head.has(frames::END_STREAM);
    }

    fn sent_window_update(&mut self, id: u32, payload: &[u8]) {
        assert_eq!(payload.len(), 4);
        let room = i64::from(frames::number(payload));
        assert!((1..=WINDOW_MAX).contains(&room));
        if id == 0 {
            self.announced += room;
            return;
        }
        let stream = self.stream(id);
        assert!(
            stream.may_receive(),
            "room on stream {id}, whose client has ended it"
        );
        stream.announced += room;
    }

    fn end_block(&mut self, head: FrameHead) {
        if !head.has(frames::END_HEADERS) {
            return;
        }
        if let Some((id, ends, block)) = self.block.take() {
            let mut fields = Fields::new();
            let result = self.decoder.decode(&block, |name, value| {
                fields.push((name.to_vec(), value.to_vec()));
            });
            assert_eq!(result, Ok(()));
            if let Some(decoder) = &mut self.other_decoder {
                assert_eq!(decoder.decode(&block), fields);
            }
            self.response(id, &fields, ends);
        }
    }

    /// A head of a response, an interim one, or trailers.
    fn response(&mut self, id: u32, fields: &Fields, ends: bool) {
        let stream = self.stream(id);
        assert!(stream.may_send(), "a head on stream {id}, which has ended");
        let status = match fields.first() {
            Some((name, value)) if name == b":status" => Some(value),
            _ => None,
        };
        assert_eq!(status.is_none(), stream.has_head && ends, "{fields:?}");
        let rest = &fields[usize::from(status.is_some())..];
        for (name, value) in rest {
            assert!(token::is_token(name) && !name.iter().any(u8::is_ascii_uppercase));
            assert!(token::is_field_value(value) && token::trim(value) == value);
            let of_connection: [&[u8]; 3] = [b"connection", b"transfer-encoding", b"upgrade"];
            assert!(!of_connection.contains(&&name[..]));
        }
        match status {
            Some(status) if status.starts_with(b"1") => assert!(!ends && !stream.has_head),
            Some(status) => {
                assert!(!stream.has_head, "a second head");
                assert!(ends || !stream.is_head, "a HEAD goes on");
                let has_length = rest.iter().any(|(name, _)| name == b"content-length");
                let is_tunnel = (&status[..], ends, has_length) == (b"200", false, false);
                assert!(is_tunnel || stream.tunnel != Tunnel::Begun, "{fields:?}");
                stream.has_head = true;
            }
            None => assert!(stream.tunnel != Tunnel::Begun, "trailers of a tunnel"),
        }
        stream.local_ended = ends;
    }

    /// What may be sent on a stream now, in bytes.
    pub(super) fn room(&self, id: u32) -> usize {
        let room = self.streams.get(&id).filter(|stream| stream.may_send());
        let room = room.map_or(0, |stream| {
            (self.initial + stream.send_window).min(self.send_window)
        });
        usize::try_from(room).unwrap_or_default()
    }

    /// The streams, by their numbers.
    pub(super) fn streams(&mut self) -> impl Iterator<Item = (u32, &mut Stream)> {
        self.streams.iter_mut().map(|(id, stream)| (*id, stream))
    }

    /// The number of streams that are not closed.
    pub(super) fn open_streams(&self) -> usize {
        self.streams
            .values()
            .filter(|stream| stream.is_open())
            .count()
    }

    /// Whether the client may still send a body that the response does not need.
    pub(super) fn is_half_closed(&self, id: u32) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| !stream.may_send() && stream.may_receive())
    }

    /// Whether a stream is one of another protocol, as far as it is there.
    pub(super) fn tunnel(&self, id: u32) -> Tunnel {
        let stream = self.streams.get(&id);
        let stream = stream.filter(|stream| stream.may_send() || stream.may_receive());
        stream.map_or(Tunnel::No, |stream| stream.tunnel)
    }

    /// The window of a stream that is there, or that of the connection for 0, and the received
    /// bytes that take it up.
    fn window(&self, id: u32) -> Option<(i64, i64)> {
        if id == 0 {
            // What a stream has taken up is given back at its end.
            let open = self.streams.values().filter(|stream| stream.is_open());
            let taken_up: usize = open.map(Stream::unreleased).sum();
            return Some((self.announced - self.received, taken_up as i64));
        }
        let stream = self.streams.get(&id).filter(|it| it.may_receive())?;
        let window = stream.announced - stream.received;
        Some((window, stream.unconsumed as i64))
    }

    /// Checks what holds between frames, if no error has ended the connection: all is answered, and
    /// what was announced of each window is what was received and what it is filled up to, less
    /// what waits. `taken`: what the server has taken. `says`: what the server says that a window
    /// is filled up to, and what it will announce later.
    pub(super) fn check(&self, taken: usize, mut says: impl FnMut(u32) -> Option<(i64, i64)>) {
        assert!(self.settings.is_empty() && self.pings.is_empty());
        let is_within_block = self.unreported.is_some() && !self.blocks.is_complete();
        assert!(
            self.unreported.is_none() || is_within_block,
            "a request is lost"
        );
        if taken > self.frame_at {
            return; // Within DATA.
        }
        for id in std::iter::once(0).chain(self.streams.keys().copied()) {
            let Some((window, taken_up)) = self.window(id) else {
                continue;
            };
            let (filled, later) = says(id).expect("a window");
            assert_eq!(window + taken_up + later, filled, "the window of {id}");
            assert!(window >= 0, "the window of {id} is {window}");
            assert!(filled >= i64::from(WINDOW_BYTES));
            if id > 0 {
                assert!(filled <= WINDOW_BYTES_MAX);
                assert!(later < filled / 2, "{later} of {id} is not announced");
            }
        }
    }
}
