//! A client that obeys what it knows: it reads the answers late, so frames to streams that are gone
//! meanwhile are on their way. It also breaks rules, if it is told to.

use crate::hpack::INDEXING;
use crate::http2::frames::{self, FrameHead, PAYLOAD_BYTES_MAX, WINDOW_MAX, put};
use crate::http2::input::Input;
use onrush_proto::http2::connection::{STREAMS_MAX, WINDOW_BYTES};
use onrush_proto::http2::hpack::{Encoder, TABLE_BYTES};
use std::collections::BTreeMap;

const METHODS: [&str; 8] = [
    "GET", "POST", "HEAD", "OPTIONS", "PUT", "CONNECT", "get", "A B",
];
const PATHS: [&str; 8] = [
    "/",
    "/up?a=b",
    "*",
    "//a/../b",
    "",
    "/#",
    "/a b",
    "http://a/",
];
const HOSTS: [&str; 6] = ["a.example", "A.example:80", "", "user@a", "[::1]", "a b"];
const NAMES: [&str; 20] = [
    "accept",
    "cookie",
    "cookie",
    "te",
    "content-length",
    "host",
    "expect",
    "priority",
    "x-a",
    "x-b",
    "connection",
    "transfer-encoding",
    "upgrade",
    ":path",
    ":scheme",
    ":status",
    "X-Upper",
    "a b",
    "",
    "trailer",
];
const VALUES: [&str; 20] = [
    "",
    "a",
    "a=1",
    "trailers",
    "0",
    "4",
    "04",
    "300",
    "99999999999999999999",
    "100-continue",
    "a.example",
    "u=1, i",
    "chunked",
    " b",
    "b\t",
    "a\tb",
    "b\r\nc: d",
    "b\nc",
    "\u{e9}",
    "\0",
];

/// Protocols, the last ones malformed.
const PROTOCOLS: [&str; 7] = ["websocket", "a/2.1", "connect-udp", "", "a b", "a,b", "a/"];

/// The client's side of a connection.
pub(super) struct Client {
    /// All that it has sent.
    pub(super) wire: Vec<u8>,
    /// It has broken a rule.
    pub(super) is_wrong: bool,
    /// Its requests with nothing unusual.
    pub(super) plain: Vec<u32>,
    /// Its requests for another protocol that the server lets it ask for, and others of the kind.
    pub(super) asking: Vec<u32>,
    pub(super) presuming: Vec<u32>,
    encoder: Encoder,
    /// How much of the server's output it has read.
    seen: usize,
    has_settings: bool,
    /// The settings let it ask for other protocols.
    is_offered: bool,
    leaves: bool,
    next: u32,
    /// What it may send on all streams, and what it has granted.
    window: i64,
    granted: i64,
    initial: i64,
    streams: BTreeMap<u32, Stream>,
}

/// What the client knows of a stream that it has begun.
#[derive(Clone, Copy)]
struct Stream {
    window: i64,
    /// In addition to the initial window.
    granted: i64,
    /// It has ended its side.
    has_ended: bool,
    /// The server has ended its side.
    is_answered: bool,
    /// One of the sides has reset it.
    is_reset: bool,
}

impl Stream {
    fn may_send(&self) -> bool {
        !self.has_ended && !self.is_reset
    }

    fn is_open(&self) -> bool {
        let is_complete = self.has_ended && self.is_answered;
        !self.is_reset && !is_complete
    }
}

impl Client {
    pub(super) fn new() -> Client {
        Client {
            wire: Vec::new(),
            is_wrong: false,
            plain: Vec::new(),
            asking: Vec::new(),
            presuming: Vec::new(),
            is_offered: false,
            encoder: Encoder::new(),
            seen: 0,
            has_settings: false,
            leaves: false,
            next: 1,
            window: i64::from(WINDOW_BYTES),
            granted: i64::from(WINDOW_BYTES),
            initial: i64::from(WINDOW_BYTES),
            streams: BTreeMap::new(),
        }
    }

    /// How many requests it has begun.
    pub(super) fn requests(&self) -> usize {
        self.streams.len()
    }

    /// Reads up to `count` frames of the server's output.
    pub(super) fn read(&mut self, out: &[u8], count: usize) {
        for _ in 0..count {
            let Some(head) = FrameHead::read(&out[self.seen..]) else {
                return;
            };
            let end = self.seen + head.frame_bytes();
            let payload = &out[self.seen + frames::HEAD_BYTES..end];
            self.seen = end;
            self.note(head, payload);
        }
    }

    fn note(&mut self, head: FrameHead, payload: &[u8]) {
        let ends = head.has(frames::END_STREAM);
        match head.kind {
            frames::SETTINGS if !head.has(frames::ACK) => {
                self.has_settings = true;
                let offers = (frames::CONNECT_PROTOCOL, 1);
                self.is_offered = frames::settings(payload).any(|setting| setting == offers);
                put(frames::SETTINGS, frames::ACK, 0, b"", &mut self.wire);
            }
            frames::GOAWAY => self.leaves = true,
            frames::WINDOW_UPDATE if head.stream == 0 => {
                self.window += i64::from(frames::number(payload));
            }
            _ => {
                let Some(stream) = self.streams.get_mut(&head.stream) else {
                    return;
                };
                match head.kind {
                    frames::WINDOW_UPDATE => stream.window += i64::from(frames::number(payload)),
                    frames::RST_STREAM => stream.is_reset = true,
                    frames::DATA | frames::HEADERS if ends => stream.is_answered = true,
                    _ => {}
                }
            }
        }
    }

    /// One of the streams for which `is_meant` holds.
    fn pick(&self, input: &mut Input<'_>, is_meant: impl Fn(&Stream) -> bool) -> Option<u32> {
        let meant = self.streams.iter().filter(|(_, stream)| is_meant(stream));
        let ids: Vec<u32> = meant.map(|(id, _)| *id).collect();
        input.one_of(&ids)
    }

    /// Sends the preface and the first settings.
    pub(super) fn begin(&mut self, input: &mut Input<'_>) {
        self.wire
            .extend_from_slice(onrush_proto::http2::frame::PREFACE);
        self.settings(input);
    }

    /// Begins a request, if the limits that it knows of allow one.
    pub(super) fn request(&mut self, input: &mut Input<'_>) {
        if !self.may_begin() {
            return;
        }
        let how = input.byte();
        let block = self.request_block(how, input);
        let has_ended = how & 1 == 0;
        let id = self.begin_stream(how, &block, has_ended, input);
        if how & 0b1_1100 == 0 {
            self.plain.push(id);
        }
    }

    /// Asks for another protocol, rightly or wrongly.
    pub(super) fn connect(&mut self, input: &mut Input<'_>) {
        if !self.may_begin() || !self.has_settings {
            return;
        }
        let how = input.byte();
        let unusual = |bit: u8| how >> bit & 1 == 1;
        let protocol = match unusual(1) {
            true => input.one_of(&PROTOCOLS).unwrap_or_default(),
            false => "websocket",
        };
        let method = match unusual(2) {
            true => input.one_of(&METHODS).unwrap_or_default(),
            false => "CONNECT",
        };
        let mut lines = vec![
            (":method", method),
            (":protocol", protocol),
            (":scheme", "https"),
            (":path", "/chat?room=1"),
            (":authority", "a.example"),
        ];
        if unusual(3) {
            lines.remove(usize::from(input.byte()) % lines.len());
        }
        if unusual(4) {
            lines.push((":protocol", protocol));
        }
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in lines {
            self.field(
                name.as_bytes(),
                value.as_bytes(),
                usize::from(how),
                &mut block,
            );
        }
        if unusual(5) {
            self.fields(input, &mut block);
        }
        let id = self.begin_stream(how, &block, how & 1 == 1, input);
        if how & 0b11_1110 == 0 {
            match self.is_offered {
                true => self.asking.push(id),
                false => self.presuming.push(id),
            }
        }
    }

    /// Whether the limits that it knows of allow a request.
    fn may_begin(&self) -> bool {
        let open = self
            .streams
            .values()
            .filter(|stream| stream.is_open())
            .count();
        !self.leaves && (!self.has_settings || open < STREAMS_MAX)
    }

    /// Sends a head on a new stream. The last bit of `how` skips a number. Returns the stream.
    fn begin_stream(
        &mut self,
        how: u8,
        block: &[u8],
        has_ended: bool,
        input: &mut Input<'_>,
    ) -> u32 {
        let id = self.next + 2 * u32::from(how >> 7);
        self.next = id + 2;
        self.streams.insert(
            id,
            Stream {
                window: i64::from(WINDOW_BYTES),
                granted: 0,
                has_ended,
                is_answered: false,
                is_reset: false,
            },
        );
        self.put_block(id, block, has_ended, input);
        id
    }

    /// The block of a request. The bits of `how` say what is unusual.
    fn request_block(&mut self, how: u8, input: &mut Input<'_>) -> Vec<u8> {
        let mut block = Vec::new();
        let unusual = |bit: u8| how >> bit & 1 == 1;
        if unusual(1) {
            self.encoder.set_table_bytes_max(input.number(TABLE_BYTES));
        }
        self.encoder.begin(&mut block);
        let (method, path, host) = match unusual(2) {
            true => (
                input.one_of(&METHODS).unwrap_or_default(),
                input.one_of(&PATHS).unwrap_or_default(),
                input.one_of(&HOSTS).unwrap_or_default(),
            ),
            false if unusual(0) => ("POST", "/up", "a.example"),
            false => ("GET", "/", "a.example"),
        };
        let lines = [
            (":method", method),
            (":scheme", "https"),
            (":path", path),
            (":authority", host),
        ];
        let count = if unusual(3) {
            usize::from(input.byte() & 7)
        } else {
            4
        };
        for (name, value) in lines.iter().take(count) {
            self.field(
                name.as_bytes(),
                value.as_bytes(),
                usize::from(how),
                &mut block,
            );
        }
        if unusual(4) {
            self.fields(input, &mut block);
        }
        block
    }

    /// Adds fields from the lists, and with any bytes.
    fn fields(&mut self, input: &mut Input<'_>, block: &mut Vec<u8>) {
        for _ in 0..=input.byte() & 3 {
            let how = input.byte();
            let name = match how & 0x80 {
                0 => input.one_of(&NAMES).unwrap_or_default().as_bytes().to_vec(),
                _ => input.bytes(usize::from(how & 7)),
            };
            let value = match how & 0x60 {
                0 | 0x20 => input
                    .one_of(&VALUES)
                    .unwrap_or_default()
                    .as_bytes()
                    .to_vec(),
                0x40 => input.bytes(usize::from(how & 31)),
                _ => vec![b'v'; input.number(20_000)],
            };
            self.field(&name, &value, usize::from(how >> 3), block);
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8], how: usize, block: &mut Vec<u8>) {
        let indexing = INDEXING[how % INDEXING.len()];
        self.encoder.field(name, value, indexing, block);
    }

    /// Sends a block in frames.
    fn put_block(&mut self, id: u32, block: &[u8], ends: bool, input: &mut Input<'_>) {
        let how = input.byte();
        let end_stream = if ends { frames::END_STREAM } else { 0 };
        let piece_bytes = match how >> 5 {
            0..=4 => PAYLOAD_BYTES_MAX - 300,
            5 => 100,
            _ => usize::from(how & 31) + 1,
        };
        let mut rest = block;
        let mut kind = frames::HEADERS;
        loop {
            let (piece, after) = rest.split_at(rest.len().min(piece_bytes));
            let end_headers = if after.is_empty() {
                frames::END_HEADERS
            } else {
                0
            };
            let (mut flags, mut payload) = (end_headers, piece.to_vec());
            if kind == frames::HEADERS {
                flags |= end_stream;
                if how & 1 == 1 {
                    flags |= frames::WITH_PRIORITY;
                    payload.splice(..0, [0x80, 0, 0, 3, 15]);
                }
                if how & 2 == 2 {
                    flags |= frames::PADDED;
                    payload.insert(0, how);
                    payload.resize(payload.len() + usize::from(how), 0);
                }
            }
            put(kind, flags, id, &payload, &mut self.wire);
            (rest, kind) = (after, frames::CONTINUATION);
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Sends a part of a body. `is_wrong`: also more than a window allows.
    pub(super) fn data(&mut self, input: &mut Input<'_>, is_wrong: bool) {
        let Some(id) = self.pick(input, Stream::may_send) else {
            return;
        };
        let how = input.byte();
        let padding = usize::from(if how & 2 == 2 { input.byte() } else { 0 });
        let overhead = if how & 2 == 2 { 1 + padding } else { 0 };
        let window = self
            .streams
            .get(&id)
            .map_or(0, |stream| stream.window.min(self.window));
        let mut bytes = match how >> 4 {
            0..=3 => usize::from(how >> 4),
            4..=9 => input.number(PAYLOAD_BYTES_MAX),
            _ => PAYLOAD_BYTES_MAX,
        };
        bytes = bytes.min(PAYLOAD_BYTES_MAX - overhead);
        let fits = i64::try_from(bytes + overhead).is_ok_and(|needed| needed <= window);
        if !fits && is_wrong {
            self.is_wrong = true;
        } else if !fits {
            let room = usize::try_from(window).unwrap_or_default();
            let Some(fitting) = room.checked_sub(overhead) else {
                return;
            };
            bytes = fitting;
        }
        // The first byte of the content differs from the others.
        let mut content = vec![how; bytes];
        content.iter_mut().take(1).for_each(|byte| *byte = b'(');
        let length = [padding as u8];
        let length = if overhead > 0 { &length[..] } else { &[] };
        let payload = [length, &content, &vec![0; padding]].concat();
        let ends = how & 1 == 1;
        let padded = if overhead > 0 { frames::PADDED } else { 0 };
        let flags = padded | if ends { frames::END_STREAM } else { 0 };
        put(frames::DATA, flags, id, &payload, &mut self.wire);
        self.window -= payload.len() as i64;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.window -= payload.len() as i64;
            stream.has_ended = ends;
        }
    }

    pub(super) fn trailers(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.pick(input, Stream::may_send) else {
            return;
        };
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        self.fields(input, &mut block);
        self.put_block(id, &block, true, input);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.has_ended = true;
        }
    }

    pub(super) fn reset(&mut self, input: &mut Input<'_>) {
        let Some(id) = self.pick(input, Stream::is_open) else {
            return;
        };
        let code = u32::from(input.byte()).to_be_bytes();
        put(frames::RST_STREAM, 0, id, &code, &mut self.wire);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.is_reset = true;
        }
    }

    /// Grants the server more.
    pub(super) fn window_update(&mut self, input: &mut Input<'_>) {
        let id = self.pick(input, |stream| !stream.is_reset && !stream.is_answered);
        let id = id.filter(|_| input.byte() & 1 == 1);
        let granted = match id.and_then(|id| self.streams.get_mut(&id)) {
            Some(stream) => &mut stream.granted,
            None => &mut self.granted,
        };
        let most = match id {
            Some(_) => WINDOW_MAX - self.initial.max(i64::from(WINDOW_BYTES)) - *granted,
            None => WINDOW_MAX - *granted,
        };
        let room = (input.number(WINDOW_MAX as usize) as i64).min(most);
        if room <= 0 {
            return;
        }
        *granted += room;
        let payload = (room as u32).to_be_bytes();
        put(
            frames::WINDOW_UPDATE,
            0,
            id.unwrap_or(0),
            &payload,
            &mut self.wire,
        );
    }

    pub(super) fn settings(&mut self, input: &mut Input<'_>) {
        let mut payload = Vec::new();
        for _ in 0..input.byte() & 3 {
            let name = u16::from(input.byte() % 10);
            let number = input.number(u32::MAX as usize) as u32;
            let value = match name {
                2 | 8 => number & 1,
                // No window becomes too large, whatever was granted.
                frames::INITIAL_WINDOW => {
                    let granted = self.streams.values().map(|stream| stream.granted).max();
                    let most = WINDOW_MAX - granted.unwrap_or_default();
                    self.initial = i64::from(number).min(most);
                    self.initial as u32
                }
                5 => number.clamp(1 << 14, (1 << 24) - 1),
                _ => number,
            };
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        put(frames::SETTINGS, 0, 0, &payload, &mut self.wire);
    }

    /// Sends a frame that controls nothing, or little.
    pub(super) fn other(&mut self, input: &mut Input<'_>) {
        let how = input.byte();
        let id = u32::from(input.byte());
        let wire = &mut self.wire;
        match how & 7 {
            0 => put(frames::PING, 0, 0, &[how; 8], wire),
            1 => put(frames::PING, frames::ACK, 0, &[how; 8], wire),
            2 => put(frames::PRIORITY, 0, id + 1, &[how; 5], wire),
            3 => {
                let update = [&(id + 1).to_be_bytes()[..], b"u=1, i"].concat();
                put(frames::PRIORITY_UPDATE, 0, 0, &update, wire);
            }
            4 => put(frames::PRIORITY_UPDATE, 0, 0, &[how; 1025], wire),
            5 => put(
                frames::GOAWAY,
                0,
                0,
                &vec![0; 8 + usize::from(how >> 3)],
                wire,
            ),
            6 => put(20, how, id, &vec![how; usize::from(how >> 3)], wire),
            _ => put(frames::SETTINGS, frames::ACK, 0, b"", wire),
        }
    }

    /// Sends any frame.
    pub(super) fn any_frame(&mut self, input: &mut Input<'_>) {
        self.is_wrong = true;
        let (kind, flags, id) = (input.byte(), input.byte(), u32::from(input.byte()));
        let length = usize::from(input.byte() & 31);
        let payload = input.bytes(length);
        put(kind & 31, flags, id, &payload, &mut self.wire);
    }

    /// Begins a request with any block.
    pub(super) fn any_block(&mut self, input: &mut Input<'_>) {
        self.is_wrong = true;
        let length = usize::from(input.byte());
        let block = input.bytes(length);
        let id = self.next;
        self.next += 2;
        self.put_block(id, &block, true, input);
    }

    /// Sends any bytes.
    pub(super) fn any_bytes(&mut self, bytes: &[u8]) {
        self.is_wrong = true;
        self.wire.extend_from_slice(bytes);
    }
}
