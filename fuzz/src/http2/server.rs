//! The machine with a caller that records what it is told and does what it is asked to. What holds
//! between two calls is checked after each.

use crate::http2::frames::PAYLOAD_BYTES_MAX;
use crate::http2::heads;
use crate::http2::peer::Peer;
use onrush_proto::connection::SendAs;
use onrush_proto::head::Head;
use onrush_proto::http2::connection::{Connection, Event, Fatal, STREAMS_MAX};
use onrush_proto::http2::frame::ErrorCode;
use onrush_proto::http2::sending::ResponseHead;
use onrush_proto::limits::Limits;
use onrush_proto::response::ContentLength;

/// Memory of a connection that does not depend on its limits, in bytes: tables, streams.
const MEMORY_BYTES: usize = 120_000;
/// And what does: the block of a head, its text, its cookies.
const MEMORY_FACTOR: usize = 16;

const DATE: &[u8; 29] = b"Sun, 29 Nov 2026 17:00:00 GMT";

/// Lines of responses and of trailers.
pub(super) const LINES: [&[u8]; 6] = [
    b"",
    b"X-Name: value\r\n",
    b"Set-Cookie: a=b\r\nETag: \"1\"\r\n",
    b"X-Empty:\r\nx-name:  spaces \t\r\nUpgrade: websocket\r\n",
    b"Connection: close\r\n",
    b"Server-Timing: a;dur=1\r\nVary: accept\r\n",
];

/// What the caller does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Interim {
        stream: u32,
        lines: u8,
    },
    Head {
        stream: u32,
        status: u16,
        lines: u8,
        length: ContentLength,
    },
    Data {
        stream: u32,
        bytes: usize,
        ends: bool,
    },
    Trailers {
        stream: u32,
        lines: u8,
    },
    Reset {
        stream: u32,
        code: ErrorCode,
    },
    Consume {
        stream: u32,
        bytes: usize,
        may_grow: bool,
    },
    Release {
        stream: u32,
        bytes: usize,
    },
    /// Asks whether the response may be 101.
    Upgrade {
        stream: u32,
    },
    AnnounceEnd,
    End,
    Fail(ErrorCode),
    /// Seconds pass.
    Wait(u32),
}

/// What the caller is told, or does. Pieces of content that follow each other are one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Event(Event),
    /// The text of a head.
    Head(Vec<u8>),
    Content(u32, Vec<u8>),
    End(u32),
    Fatal(Fatal),
    Acted(Option<SendAs>),
    Upgrade(bool),
}

/// One connection.
pub(super) struct Server {
    connection: Connection,
    limits: Limits,
    head: Head,
    now_s: u32,
    taken: usize,
    /// How much has arrived.
    pub(super) arrived: usize,
    pub(super) out: Vec<u8>,
    pub(super) log: Vec<Entry>,
    pub(super) peer: Peer,
    is_thorough: bool,
    pub(super) fatal: Option<Fatal>,
    /// The connection has ended with an error.
    has_failed: bool,
}

impl Server {
    /// A connection that has begun. `offers`: clients may ask for other protocols. `is_thorough`:
    /// all is checked after each step.
    pub(super) fn new(limits: Limits, offers: bool, is_thorough: bool) -> Server {
        let (mut connection, mut out) = (Connection::new(), Vec::new());
        if offers {
            connection.allow_extended_connect();
        }
        connection.begin(&limits, &mut out);
        let mut peer = Peer::new(offers, is_thorough);
        peer.read(&out);
        Server {
            connection,
            limits,
            head: Head::default(),
            now_s: 0,
            taken: 0,
            arrived: 0,
            out,
            log: Vec::new(),
            peer,
            is_thorough,
            fatal: None,
            has_failed: false,
        }
    }

    /// No further frame is taken.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Takes what is new in `input`, which is all that has arrived.
    pub(super) fn receive(&mut self, input: &[u8]) {
        self.arrived = input.len();
        loop {
            let (rest, sent_bytes) = (&input[self.taken..], self.out.len());
            let (connection, head) = (&mut self.connection, &mut self.head);
            let result = connection.receive(rest, self.now_s, &self.limits, head, &mut self.out);
            if self.has_failed {
                assert_eq!(result, Ok((rest.len(), Event::NeedMore)));
                assert_eq!(self.out.len(), sent_bytes, "an answer behind an error");
                self.taken = input.len();
                return;
            }
            let (taken, event) = match result {
                Ok(received) => received,
                Err(fatal) => {
                    self.end(fatal, input);
                    continue;
                }
            };
            let needs_more = event == Event::NeedMore;
            if needs_more && taken == 0 {
                assert_eq!(self.out.len(), sent_bytes, "an answer to nothing");
                return;
            }
            assert!(taken <= rest.len());
            assert!(taken > 0 || needs_more, "no progress: {event:?}");
            assert!(!needs_more || taken == rest.len(), "{taken} are taken");
            self.taken += taken;
            self.peer.take(input, self.taken);
            self.peer.read(&self.out);
            self.note(event, &rest[..taken]);
            if self.is_thorough {
                self.check();
            }
            if needs_more {
                return;
            }
        }
    }

    fn end(&mut self, fatal: Fatal, input: &[u8]) {
        self.peer
            .fail(input, fatal.code == ErrorCode::FLOW_CONTROL_ERROR);
        self.fatal = Some(fatal);
        self.has_failed = true;
        self.log.push(Entry::Fatal(fatal));
        self.peer.read(&self.out);
        let said = [&fatal.code.0.to_be_bytes(), fatal.reason.as_bytes()].concat();
        assert!(self.out.ends_with(&said), "no GOAWAY with the error");
    }

    fn note(&mut self, event: Event, input: &[u8]) {
        match event {
            Event::NeedMore | Event::Nothing => return,
            Event::Request { stream } => {
                let bytes = self.connection.head_bytes();
                let has_ended = self.peer.begin(stream, Some((&self.head, bytes)));
                heads::check_request(&self.head, bytes, has_ended, &self.limits);
                self.log.push(Entry::Head(bytes.to_vec()));
            }
            Event::Rejected { stream, reject } => {
                self.peer.begin(stream, None);
                assert!((400..=599).contains(&reject.status));
                let bytes = self.connection.head_bytes();
                self.log.push(Entry::Head(bytes.to_vec()));
            }
            Event::Data { stream, data, ends } => {
                let content = &input[data];
                self.peer.content(stream, content.len(), ends);
                match self.log.last_mut() {
                    _ if content.is_empty() => {}
                    Some(Entry::Content(last, bytes)) if *last == stream => {
                        bytes.extend_from_slice(content);
                    }
                    _ => self.log.push(Entry::Content(stream, content.to_vec())),
                }
                if ends {
                    self.log.push(Entry::End(stream));
                }
                return;
            }
            Event::Trailers { stream, ref lines } => {
                self.peer.trailers(stream);
                heads::check_trailers(lines, &self.limits);
            }
            Event::Malformed { stream, .. } => {
                self.peer.malformed(stream);
                let bytes = self.connection.head_bytes();
                self.log.push(Entry::Head(bytes.to_vec()));
            }
            Event::Reset { stream } => self.peer.reset(stream),
            Event::Writable { .. } | Event::Leaving => {}
        }
        self.log.push(Entry::Event(event));
    }

    /// Does what the caller is asked to. After an error, nothing.
    pub(super) fn act(&mut self, action: Action) {
        if self.has_failed {
            return;
        }
        let (connection, out) = (&mut self.connection, &mut self.out);
        let mut send_as = None;
        match action {
            Action::Interim { stream, lines } => {
                connection.send_interim(stream, 103, LINES[usize::from(lines)], out);
            }
            Action::Head {
                stream,
                status,
                lines,
                length,
            } => {
                let head = ResponseHead {
                    status,
                    content_type: Some("text/plain"),
                    fields: LINES[usize::from(lines)],
                    length,
                    date: DATE,
                };
                send_as = Some(connection.send_head(stream, &head, out));
                if status == 101 {
                    assert_eq!(send_as, Some(SendAs::Chunked));
                    self.peer.begin_tunnel(stream);
                }
            }
            Action::Data {
                stream,
                bytes,
                ends,
            } => {
                connection.send_data_head(stream, bytes, ends, out);
                out.extend_from_slice(&vec![b'x'; bytes]);
            }
            Action::Trailers { stream, lines } => {
                connection.send_trailers(stream, LINES[usize::from(lines)], out);
            }
            Action::Reset { stream, code } => connection.reset(stream, code, out),
            Action::Consume {
                stream,
                bytes,
                may_grow,
            } => {
                self.peer.consume(stream, bytes);
                connection.consume(stream, bytes, may_grow, out);
            }
            Action::Release { stream, bytes } => {
                self.peer.release(stream, bytes);
                connection.release_held(stream, bytes, out);
            }
            Action::Upgrade { stream } => {
                let may = connection.begin_upgrade(stream);
                assert_eq!(may, self.peer.upgrade(stream), "an upgrade of {stream}");
                self.log.push(Entry::Upgrade(may));
            }
            Action::AnnounceEnd => connection.announce_end(out),
            Action::End => connection.end(out),
            Action::Fail(code) => {
                let reason = "the caller cannot go on";
                connection.fail(Fatal { code, reason }, out);
                self.has_failed = true;
            }
            Action::Wait(seconds) => self.now_s += seconds,
        }
        self.peer.read(&self.out);
        if let (Action::Head { stream, .. }, Some(SendAs::Length(bytes))) = (action, send_as) {
            self.peer.expect_content(stream, bytes);
        }
        self.log.push(Entry::Acted(send_as));
        if self.is_thorough {
            self.check();
        }
    }

    /// What the machine says of its streams is what their client knows, and its memory is bounded.
    pub(super) fn check(&mut self) {
        if self.has_failed {
            return;
        }
        let connection = &mut self.connection;
        (self.peer).check(self.taken, |stream| connection.receive_window(stream));
        let open_streams = self.connection.open_streams();
        assert!(open_streams <= STREAMS_MAX);
        assert_eq!(open_streams, self.peer.open_streams());
        let known: Vec<(u32, bool, bool)> = (self.peer.streams())
            .map(|(id, stream)| (id, stream.may_send(), stream.may_receive()))
            .collect();
        for (id, is_open, may_receive) in known {
            assert_eq!(self.connection.is_open(id), is_open, "{id}");
            assert_eq!(self.connection.client_has_ended(id), !may_receive, "{id}");
            assert_eq!(self.connection.tunnel(id), self.peer.tunnel(id), "{id}");
            assert_eq!(
                self.connection.room(id),
                self.peer.room(id),
                "the room of {id}"
            );
            assert_eq!(
                self.connection.is_half_closed(id),
                self.peer.is_half_closed(id),
                "{id}"
            );
        }
        let text_bytes_max = self
            .limits
            .head_bytes_max
            .max(self.limits.trailer_bytes_max);
        let memory_bytes = self.connection.memory_bytes();
        assert!(
            memory_bytes <= MEMORY_BYTES + MEMORY_FACTOR * text_bytes_max,
            "{memory_bytes} bytes of memory"
        );
    }

    /// How much content may be sent on a stream with one frame, in bytes.
    pub(super) fn room(&mut self, stream: u32) -> usize {
        self.connection.room(stream).min(PAYLOAD_BYTES_MAX)
    }
}
