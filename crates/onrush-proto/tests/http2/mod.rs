//! Frames of HTTP/2 (RFC 9113): what the machine makes of them, and what it answers. Each script is
//! received whole, and in pieces that begin at each byte.

// Peers that cause work without end.
mod floods;
// Requests, and frames that control a connection.
mod requests;
// Responses, windows, and the end of a connection.
mod sending;
// Streams of other protocols.
mod tunnels;
// What breaks a rule, and what the limits refuse.
mod violations;

use onrush_proto::head::Head;
use onrush_proto::http2::connection::{
    CONNECTION_WINDOW_BYTES, Connection, Event, Fatal, STREAMS_MAX, WINDOW_BYTES,
};
use onrush_proto::http2::frame::{ErrorCode, PREFACE};
use onrush_proto::http2::hpack::{Encoder, Indexing};
use onrush_proto::http2::sending::ResponseHead;
use onrush_proto::limits::Limits;
use onrush_proto::response::ContentLength;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const PRIORITY_UPDATE: u8 = 16;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;
/// Of a request without a body.
const ALL: u8 = END_HEADERS | END_STREAM;

const DATE: &[u8; 29] = b"Sun, 29 Nov 2026 17:00:00 GMT";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// What a client sends before its first request.
fn opening() -> Vec<u8> {
    [
        &PREFACE[..],
        &frame(SETTINGS, 0, 0, b""),
        &frame(SETTINGS, ACK, 0, b""),
    ]
    .concat()
}

/// A header block that uses no table.
fn block(lines: &[(&str, &str)]) -> Vec<u8> {
    let (mut encoder, mut block) = (Encoder::new(), Vec::new());
    for (name, value) in lines {
        encoder.field(
            name.as_bytes(),
            value.as_bytes(),
            Indexing::Once,
            &mut block,
        );
    }
    block
}

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/"),
    (":authority", "a.example"),
];
const POST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":path", "/up"),
    (":authority", "a.example"),
];

fn with(lines: &[(&str, &str)], more: &[(&str, &str)]) -> Vec<u8> {
    block(&[lines, more].concat())
}

/// A server that records what it is told.
struct Server {
    connection: Connection,
    limits: Limits,
    head: Head,
    pending: Vec<u8>,
    out: Vec<u8>,
    events: Vec<String>,
    /// The text of each head.
    heads: Vec<String>,
    fatal: Option<Fatal>,
    malformed_heads: Vec<String>,
    /// The debug data of the last GOAWAY.
    reason: String,
    now_s: u32,
}

impl Server {
    fn new(limits: Limits) -> Server {
        Server::of(Connection::new(), limits)
    }

    /// A server that has sent its settings, and whose client has sent nothing.
    fn of(mut connection: Connection, limits: Limits) -> Server {
        let mut out = Vec::new();
        connection.begin(&limits, &mut out);
        out.clear();
        Server {
            connection,
            limits,
            head: Head::default(),
            pending: Vec::new(),
            out,
            events: Vec::new(),
            heads: Vec::new(),
            fatal: None,
            malformed_heads: Vec::new(),
            reason: String::new(),
            now_s: 0,
        }
    }

    /// A server whose client has sent its preface.
    fn begun() -> Server {
        let mut server = Server::new(Limits::default());
        server.receive(&opening());
        assert_eq!(server.sent(), ["SETTINGS ack"]);
        server
    }

    /// The same, which lets its client ask for other protocols.
    fn with_tunnels() -> Server {
        let mut connection = Connection::new();
        connection.allow_extended_connect();
        let mut server = Server::of(connection, Limits::default());
        server.receive(&opening());
        assert_eq!(server.sent(), ["SETTINGS ack"]);
        server
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        while !self.pending.is_empty() {
            let (connection, head) = (&mut self.connection, &mut self.head);
            let received =
                connection.receive(&self.pending, self.now_s, &self.limits, head, &mut self.out);
            let (taken, event) = match received {
                Ok(received) => received,
                Err(fatal) => {
                    self.fatal = Some(fatal);
                    self.events.push(format!("fatal {}", fatal.code.0));
                    continue;
                }
            };
            assert!(taken > 0 || event == Event::NeedMore, "no progress");
            let input: Vec<u8> = self.pending.drain(..taken).collect();
            match event {
                Event::NeedMore => return,
                Event::Nothing => {}
                Event::Request { stream } => {
                    let text = String::from_utf8_lossy(self.connection.head_bytes()).into_owned();
                    self.heads.push(text);
                    self.events
                        .push(format!("{stream} request {:?}", self.head.framing()));
                }
                Event::Rejected { stream, reject } => {
                    self.events
                        .push(format!("{stream} rejected {}", reject.status));
                }
                Event::Malformed { stream, reason } => {
                    assert!(reason.is_ascii() && reason.len() < 80, "{reason}");
                    let text = String::from_utf8_lossy(self.connection.head_bytes()).into_owned();
                    self.malformed_heads.push(text);
                    self.events.push(format!("{stream} malformed"));
                }
                Event::Data { stream, data, ends } => {
                    let bytes = String::from_utf8_lossy(&input[data]).into_owned();
                    // Pieces of one body are one event, however they arrive.
                    let before = format!("{stream} data ");
                    match self
                        .events
                        .last_mut()
                        .filter(|last| last.starts_with(&before))
                    {
                        Some(last) => last.push_str(&bytes),
                        None => self.events.push(before + &bytes),
                    }
                    if ends {
                        self.events.push(format!("{stream} end"));
                    }
                }
                Event::Trailers { stream, lines } => {
                    let lines = String::from_utf8_lossy(&lines).replace("\r\n", "|");
                    self.events.push(format!("{stream} trailers {lines}"));
                }
                Event::Reset { stream } => self.events.push(format!("{stream} reset")),
                Event::Writable { stream } => self.events.push(format!("{stream} writable")),
                Event::Leaving => self.events.push("leaving".to_owned()),
            }
        }
    }

    /// The frames that were sent since the last call, in words.
    fn sent(&mut self) -> Vec<String> {
        let out = std::mem::take(&mut self.out);
        let (mut rest, mut frames) = (&out[..], Vec::new());
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, stream @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes(stream);
            let (payload, after) = after.split_at(length);
            rest = after;
            let number = || u32::from_be_bytes(payload[..4].try_into().expect("four bytes"));
            frames.push(match kind {
                DATA => format!("{stream} DATA {length} {flags}"),
                HEADERS => format!("{stream} HEADERS {flags}"),
                CONTINUATION => format!("{stream} CONTINUATION {flags}"),
                RST_STREAM => format!("{stream} RST_STREAM {}", number()),
                SETTINGS if flags == ACK => "SETTINGS ack".to_owned(),
                PING => format!("PING {flags} {}", String::from_utf8_lossy(payload)),
                GOAWAY => {
                    let code = u32::from_be_bytes(payload[4..8].try_into().expect("four bytes"));
                    self.reason = String::from_utf8_lossy(&payload[8..]).into_owned();
                    format!("GOAWAY {} {code}", number())
                }
                WINDOW_UPDATE => format!("{stream} WINDOW_UPDATE {}", number()),
                _ => format!("{stream} frame {kind}"),
            });
        }
        assert!(rest.is_empty(), "a part of a frame");
        frames
    }

    fn respond(&mut self, stream: u32, length: ContentLength, fields: &[u8]) {
        let (status, content_type, date) = (200, Some("text/plain"), DATE);
        let head = ResponseHead {
            status,
            content_type,
            fields,
            length,
            date,
        };
        self.connection.send_head(stream, &head, &mut self.out);
    }
}

/// Receives a script behind the opening, whole and split. Checks the events and the answers.
#[track_caller]
fn check(script: &[Vec<u8>], events: &[&str], sent: &[&str]) {
    check_on(Server::begun, script, events, sent);
}

/// The same on another server.
#[track_caller]
fn check_on(begun: fn() -> Server, script: &[Vec<u8>], events: &[&str], sent: &[&str]) {
    let bytes = script.concat();
    for split in 0..=bytes.len() {
        let mut server = begun();
        server.receive(&bytes[..split]);
        server.receive(&bytes[split..]);
        assert_eq!(server.events, events, "split at {split}");
        assert_eq!(server.sent(), sent, "split at {split}");
    }
    let mut server = begun();
    bytes.iter().for_each(|byte| server.receive(&[*byte]));
    let answers = server.sent();
    assert_eq!(server.events, events, "byte by byte");
    assert_eq!(answers, sent, "byte by byte");
}

/// A violation that ends the connection with this code. `last`: the last stream that was begun.
#[track_caller]
fn check_fatal(script: &[Vec<u8>], code: ErrorCode, last: u32) {
    let mut server = Server::begun();
    server.receive(&script.concat());
    assert_eq!(
        server.fatal.map(|fatal| fatal.code),
        Some(code),
        "{:?}",
        server.events
    );
    let goaway = format!("GOAWAY {last} {}", code.0);
    assert_eq!(server.sent().last(), Some(&goaway));
    // The client is told why (§6.8), in a few words that have nothing of what it has sent.
    assert_eq!(
        Some(&server.reason[..]),
        server.fatal.map(|fatal| fatal.reason)
    );
    assert!(
        !server.reason.is_empty() && server.reason.len() < 80,
        "{}",
        server.reason
    );
    // Nothing that follows has an effect.
    server.receive(&frame(HEADERS, ALL, 101, &block(&GET)));
    assert!(server.sent().is_empty());
}

/// A violation that resets stream 1 with this code; the next request is served.
#[track_caller]
fn check_reset(script: &[Vec<u8>], code: ErrorCode) {
    let mut server = Server::begun();
    server.receive(&script.concat());
    assert_eq!(server.fatal, None);
    assert!(
        server.sent().contains(&format!("1 RST_STREAM {}", code.0)),
        "{:?}",
        server.events
    );
    server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
    assert_eq!(
        server.events.last().map(String::as_str),
        Some("3 request None")
    );
}
