//! What a client that reads everything at once can know of a connection: the frames that the server
//! has taken and those that it has sent. Each frame is checked against those before it.

use crate::hpack::{Fields, Peer as HeaderDecoder};
use crate::http2::frames::{self, FrameHead, WINDOW_MAX};
use onrush_proto::http2::connection::WINDOW_BYTES;
use onrush_proto::http2::frame::PREFACE;
use onrush_proto::http2::hpack::Decoder;
use onrush_proto::token;
use std::collections::{BTreeMap, VecDeque};

/// The largest window that the server gives, and so what it may have to keep, in bytes.
const WINDOW_BYTES_MAX: i64 = 1 << 20;

/// What both sides have sent.
pub(super) struct Peer {
    /// Where the next frame of the client begins.
    frame_at: usize,
    /// The DATA frame there has begun.
    is_counted: bool,
    /// The stream of the last HEADERS, and whether it has ended that.
    headers: (u32, bool),
    highest: u32,
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

/// One stream.
pub(super) struct Stream {
    /// The server has reported its request.
    is_known: bool,
    /// It is reset, by one of the sides.
    is_gone: bool,
    was_reset: bool,
    pub(super) has_head: bool,
    local_ended: bool,
    remote_ended: bool,
    /// What follows of the content of the response, if it has a length.
    pub(super) left: Option<u64>,
    /// What the client has granted in addition to the initial window, less what was sent.
    send_window: i64,
    announced: i64,
    received: i64,
    /// Received bytes that the caller has not consumed.
    pub(super) unconsumed: usize,
}

impl Stream {
    fn new() -> Stream {
        Stream {
            is_known: false,
            is_gone: false,
            was_reset: false,
            has_head: false,
            local_ended: false,
            remote_ended: false,
            left: None,
            send_window: 0,
            announced: i64::from(WINDOW_BYTES),
            received: 0,
            unconsumed: 0,
        }
    }

    /// The server may send on it.
    pub(super) fn may_send(&self) -> bool {
        self.is_known && !self.is_gone && !self.local_ended
    }

    /// The client may send on it.
    fn may_receive(&self) -> bool {
        self.is_known && !self.is_gone && !self.remote_ended
    }
}

impl Peer {
    /// What both know before they have sent anything. `is_thorough`: another decoder reads heads,
    /// too.
    pub(super) fn new(is_thorough: bool) -> Peer {
        Peer {
            frame_at: PREFACE.len(),
            is_counted: false,
            headers: (0, false),
            highest: 0,
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
            frames::HEADERS => {
                self.headers = (head.stream, head.has(frames::END_STREAM));
                self.highest = self.highest.max(head.stream);
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

    /// A request was reported. Returns whether it has no body.
    pub(super) fn begin(&mut self, id: u32) -> bool {
        let (last, ends) = self.headers;
        assert_eq!(
            id, last,
            "a request of another stream than that of the frame"
        );
        let stream = self.stream(id);
        assert!(!stream.is_known && !stream.is_gone, "a second request");
        (stream.is_known, stream.remote_ended) = (true, ends);
        ends
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
        assert_eq!(self.headers, (id, true), "trailers of another frame");
        self.content(id, 0, true);
    }

    /// A reset was reported.
    pub(super) fn reset(&mut self, id: u32) {
        self.stream(id).is_gone = true;
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
                assert!(id <= self.highest, "{id} has not begun");
                let stream = self.stream(id);
                assert!(!stream.is_gone && !stream.was_reset, "{id} is reset");
                assert!(
                    !(stream.local_ended && stream.remote_ended),
                    "{id} has ended"
                );
                (stream.is_gone, stream.was_reset) = (true, true);
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
            Some(_) => {
                assert!(!stream.has_head, "a second head");
                stream.has_head = true;
            }
            None => {}
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

    /// Bytes that the caller has not consumed.
    fn unconsumed(&self) -> i64 {
        let each = self.streams.values().map(|stream| stream.unconsumed as i64);
        each.sum()
    }

    /// The streams, by their numbers.
    pub(super) fn streams(&mut self) -> impl Iterator<Item = (u32, &mut Stream)> {
        self.streams.iter_mut().map(|(id, stream)| (*id, stream))
    }

    /// The number of streams that are not closed.
    pub(super) fn open_streams(&self) -> usize {
        let open = |stream: &&Stream| stream.may_send() || stream.may_receive();
        self.streams.values().filter(open).count()
    }

    /// Whether the client may still send a body that the response does not need.
    pub(super) fn is_half_closed(&self, id: u32) -> bool {
        let stream = self.streams.get(&id);
        stream.is_some_and(|stream| !stream.may_send() && stream.may_receive())
    }

    /// Checks what holds between frames, if no error has ended the connection: all is answered, and
    /// windows neither shrink nor grow without end. `taken`: what the server has taken.
    pub(super) fn check(&self, taken: usize) {
        assert!(self.settings.is_empty() && self.pings.is_empty());
        let window = self.announced - self.received + self.unconsumed();
        assert!(window <= WINDOW_BYTES_MAX, "{window} bytes may be kept");
        if taken > self.frame_at {
            return; // Within DATA.
        }
        let least = i64::from(WINDOW_BYTES) / 2;
        assert!(
            window > least,
            "the window of the connection shrinks to {window}"
        );
        for (id, stream) in &self.streams {
            let window = stream.announced - stream.received + stream.unconsumed as i64;
            assert!(
                window <= WINDOW_BYTES_MAX,
                "{window} bytes of {id} may be kept"
            );
            assert!(
                window > least || !stream.may_receive(),
                "the window of {id}: {window}"
            );
        }
    }
}
