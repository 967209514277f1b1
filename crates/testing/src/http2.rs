//! A client of HTTP/2 without a socket, for tests: requests become bytes, and received bytes
//! become answers. It reads at once what it receives, unless a test turns that off.

use onrush_proto::http2::frame::PREFACE;
use onrush_proto::http2::hpack::{Decoder, Encoder, Indexing};
use std::collections::BTreeMap;

/// Kinds of frames (RFC 9113 §6).
#[expect(missing_docs, reason = "the names are those of the RFC")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames.
#[expect(missing_docs, reason = "the names are those of the RFC")]
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const ACK: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// A frame as bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a server has sent on one stream.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// 0 before the head of the final response.
    pub status: u16,
    /// The statuses of interim responses.
    pub interim: Vec<u16>,
    /// The fields of each of them, without pseudo-header fields.
    pub interim_fields: Vec<Vec<(String, Vec<u8>)>>,
    /// The fields of the head, without pseudo-header fields.
    pub fields: Vec<(String, Vec<u8>)>,
    /// The content, as far as it was received.
    pub body: Vec<u8>,
    /// The fields behind it.
    pub trailers: Vec<(String, Vec<u8>)>,
    /// The server has ended its side.
    pub is_complete: bool,
    /// The code of a `RST_STREAM`.
    pub reset: Option<u32>,
}

impl Answer {
    /// The first field with this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.and_then(|(_, value)| std::str::from_utf8(value).ok())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A client of one connection.
#[derive(Debug)]
pub struct Client {
    encoder: Encoder,
    decoder: Decoder,
    next_stream: u32,
    /// What is to be sent.
    pub out: Vec<u8>,
    /// A part of a frame.
    pending: Vec<u8>,
    /// The part of a header block that has arrived.
    block: Vec<u8>,
    /// The answers, by stream.
    pub answers: BTreeMap<u32, Answer>,
    /// The last stream and the code of each `GOAWAY`.
    pub goaways: Vec<(u32, u32)>,
    /// The debug data of each `GOAWAY`.
    pub reasons: Vec<String>,
    /// The kinds, flags, streams and lengths of all frames, in order.
    pub frames: Vec<(u8, u8, u32, usize)>,
    /// Whether what was received is announced as read.
    pub reads: bool,
    /// The settings of the server.
    pub settings: Vec<(u16, u32)>,
    /// Whether the settings of the server are acknowledged.
    pub acknowledges: bool,
    /// The room that the server has announced, beyond the first 65,535 bytes, by stream.
    pub room: BTreeMap<u32, u64>,
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl Client {
    /// A client that is going to send its preface and empty settings.
    pub fn new() -> Client {
        Client::with_settings(&[])
    }

    /// The same with these settings.
    pub fn with_settings(settings: &[(u16, u32)]) -> Client {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Client {
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            next_stream: 1,
            out: [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &payload)].concat(),
            pending: Vec::new(),
            block: Vec::new(),
            answers: BTreeMap::new(),
            goaways: Vec::new(),
            reasons: Vec::new(),
            frames: Vec::new(),
            reads: true,
            settings: Vec::new(),
            acknowledges: true,
            room: BTreeMap::new(),
        }
    }

    /// Adds a request with the fields `fields`, pseudo-header fields first. `ends`: it has no body.
    /// Returns its stream.
    pub fn request_with(&mut self, fields: &[(&str, &str)], ends: bool) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder.field(name, value, Indexing::Added, &mut block);
        }
        let end_stream = if ends { flag::END_STREAM } else { 0 };
        let flags = flag::END_HEADERS | end_stream;
        self.out.extend(frame(kind::HEADERS, flags, stream, &block));
        self.answers.insert(stream, Answer::default());
        stream
    }

    /// Adds a request for `path`, with further fields. `ends`: it has no body. Returns its stream.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> u32 {
        let pseudo = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", path),
        ];
        self.request_with(&[&pseudo[..], fields].concat(), ends)
    }

    /// Adds an extended CONNECT (RFC 8441) for `path`, with further fields. Returns its stream.
    pub fn connect(&mut self, protocol: &str, path: &str, fields: &[(&str, &str)]) -> u32 {
        let pseudo = [
            (":method", "CONNECT"),
            (":protocol", protocol),
            (":scheme", "http"),
            (":authority", "test"),
            (":path", path),
        ];
        self.request_with(&[&pseudo[..], fields].concat(), false)
    }

    /// Adds a GET for `path`. Returns its stream.
    pub fn get(&mut self, path: &str) -> u32 {
        self.request("GET", path, &[], true)
    }

    /// Adds content in frames of at most 16,384 bytes, whatever the windows are.
    pub fn data(&mut self, stream: u32, bytes: &[u8], ends: bool) {
        let mut pieces = bytes.chunks(16_384).peekable();
        if bytes.is_empty() {
            self.send(kind::DATA, u8::from(ends), stream, b"");
        }
        while let Some(piece) = pieces.next() {
            let is_last = ends && pieces.peek().is_none();
            self.send(kind::DATA, u8::from(is_last), stream, piece);
        }
    }

    /// Adds trailers, which end a body.
    pub fn trailers(&mut self, stream: u32, fields: &[(&str, &str)]) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder.field(name, value, Indexing::Once, &mut block);
        }
        let flags = flag::END_HEADERS | flag::END_STREAM;
        self.send(kind::HEADERS, flags, stream, &block);
    }

    /// Adds a frame.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend(frame(kind, flags, stream, payload));
    }

    /// Adds a `RST_STREAM`.
    pub fn reset(&mut self, stream: u32, code: u32) {
        self.send(kind::RST_STREAM, 0, stream, &code.to_be_bytes());
    }

    /// Adds a `WINDOW_UPDATE`.
    pub fn grant(&mut self, stream: u32, bytes: u32) {
        self.send(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
    }

    /// Takes what is to be sent.
    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes bytes of the server.
    ///
    /// # Panics
    /// If they are no valid frames.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while let Some((head, rest)) = self.pending.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            assert!(length <= 16_384, "a frame of {length} bytes");
            let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else {
                return;
            };
            self.pending.drain(..9 + length);
            let stream = u32::from_be_bytes(stream);
            self.frames.push((kind, flags, stream, length));
            self.take_frame(kind, flags, stream, &payload);
        }
    }

    /// The answer on a stream.
    pub fn answer(&self, stream: u32) -> &Answer {
        &self.answers[&stream]
    }

    /// Whether all requests were answered, or reset.
    pub fn is_done(&self) -> bool {
        let is_over = |answer: &Answer| answer.is_complete || answer.reset.is_some();
        self.answers.values().all(is_over)
    }

    fn take_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number = |at: usize| {
            let bytes = payload[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        match kind {
            kind::DATA => self.take_data(flags, stream, payload),
            kind::HEADERS | kind::CONTINUATION => {
                self.block.extend_from_slice(payload);
                if kind == kind::HEADERS && flags & flag::END_STREAM != 0 {
                    self.answer_of(stream).is_complete = true;
                }
                if flags & flag::END_HEADERS != 0 {
                    self.take_block(stream);
                }
            }
            kind::RST_STREAM => self.answer_of(stream).reset = Some(number(0)),
            kind::SETTINGS if flags & flag::ACK == 0 => {
                let (settings, rest) = payload.as_chunks::<6>();
                assert!(rest.is_empty(), "settings");
                let parsed = settings.iter().map(|[a, b, value @ ..]| {
                    (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value))
                });
                self.settings.extend(parsed);
                if self.acknowledges {
                    self.send(kind::SETTINGS, flag::ACK, 0, b"");
                }
            }
            kind::PING if flags & flag::ACK == 0 => self.send(kind::PING, flag::ACK, 0, payload),
            kind::SETTINGS | kind::PING => {}
            kind::GOAWAY => {
                self.goaways.push((number(0), number(4)));
                let reason = String::from_utf8_lossy(&payload[8..]);
                self.reasons.push(reason.into_owned());
            }
            kind::WINDOW_UPDATE => {
                *self.room.entry(stream).or_default() += u64::from(number(0));
            }
            other => panic!("a frame of kind {other}"),
        }
    }

    fn take_data(&mut self, flags: u8, stream: u32, payload: &[u8]) {
        let answer = self.answer_of(stream);
        assert!(answer.status >= 200 && !answer.is_complete, "{answer:?}");
        answer.body.extend_from_slice(payload);
        answer.is_complete = flags & flag::END_STREAM != 0;
        let is_complete = answer.is_complete;
        if self.reads && !payload.is_empty() {
            self.grant(0, payload.len() as u32);
            if !is_complete {
                self.grant(stream, payload.len() as u32);
            }
        }
    }

    fn take_block(&mut self, stream: u32) {
        let block = std::mem::take(&mut self.block);
        let mut fields = Vec::new();
        let each = |name: &[u8], value: &[u8]| {
            let name = String::from_utf8(name.to_vec()).expect("a name");
            fields.push((name, value.to_vec()));
        };
        self.decoder.decode(&block, each).expect("a valid block");
        let answer = self.answer_of(stream);
        if answer.status >= 200 {
            answer.trailers = fields;
            return;
        }
        let (name, value) = fields.remove(0);
        assert_eq!(name, ":status");
        let status = std::str::from_utf8(&value).expect("digits");
        let status = status.parse().expect("a status");
        match status {
            ..200 => {
                answer.interim.push(status);
                answer.interim_fields.push(fields);
            }
            _ => (answer.status, answer.fields) = (status, fields),
        }
    }

    fn answer_of(&mut self, stream: u32) -> &mut Answer {
        self.answers
            .get_mut(&stream)
            .expect("a stream that was begun")
    }
}
