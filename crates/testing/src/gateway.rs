//! A gateway from HTTP/1.1 to HTTP/2 without a socket, for tests that write requests of HTTP/1.1
//! and read such responses: requests become frames, and received frames become responses (RFC 9113
//! §8).
//!
//! Content is sent as far as the windows of the server allow. What HTTP/2 does not have makes a
//! test panic, which is then about HTTP/1: malformed chunks, other codings of transfers.

use crate::http2::{Answer, Client};
use std::collections::VecDeque;
use std::io::Write;

/// The windows that a connection and its streams begin with, in bytes (RFC 9113 §6.9.2).
const WINDOW_BYTES: u64 = 65_535;

/// The code of a `RST_STREAM` of a client that sends no more of a request.
const CANCEL: u32 = 8;

/// One connection.
#[derive(Debug, Default)]
pub struct Gateway {
    client: Client,
    /// Received of a request, and not translated.
    input: Vec<u8>,
    next: Next,
    /// Those whose response is not complete, in the order of the requests.
    exchanges: VecDeque<Exchange>,
    /// The responses.
    received: Vec<u8>,
    /// The content that was sent on all streams.
    sent_bytes: u64,
    is_over: bool,
}

/// What comes next in the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Head,
    /// This many bytes of content.
    Content(u64),
    ChunkSize,
    /// This many bytes of a chunk.
    Chunk(u64),
    ChunkEnd,
    /// The end of chunked content.
    End,
}

/// A request and its response.
#[derive(Debug, Default)]
struct Exchange {
    stream: u32,
    is_head: bool,
    /// The request has `Connection: close`.
    closes: bool,
    content: Vec<u8>,
    /// How much of the content was sent, in bytes.
    sent: usize,
    /// The content is whole.
    is_whole: bool,
    /// The server knows that.
    has_ended: bool,
    /// The interim responses that were rendered.
    interim: usize,
    head_is_rendered: bool,
    is_chunked: bool,
    /// How much content of the response was rendered, in bytes.
    rendered: usize,
}

impl Gateway {
    /// Takes a part of requests of HTTP/1.1.
    ///
    /// # Panics
    /// If they are malformed.
    pub fn send(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        while self.take_part() {}
        self.send_content();
    }

    /// Ends the last request, although its content is shorter than announced: a stream can end
    /// without its connection.
    pub fn end_early(&mut self) {
        self.end_content();
        self.send_content();
    }

    /// Takes the frames that are to be sent to the server.
    pub fn take_out(&mut self) -> Vec<u8> {
        self.client.take_out()
    }

    /// Takes bytes of the server.
    ///
    /// # Panics
    /// If they break a rule of HTTP/2, or say that the client has broken one.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.client.receive(bytes);
        let goaways = &self.client.goaways;
        assert!(goaways.iter().all(|(_, code)| *code == 0), "{goaways:?}");
        self.render();
        self.send_content();
    }

    /// Takes what was received of responses, as HTTP/1.1. The interim and the final ones follow
    /// each other in the order of the requests.
    pub fn take_received(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// Whether content waits for the server, which has not responded yet.
    pub fn is_blocked(&self) -> bool {
        self.exchanges
            .iter()
            .any(|exchange| exchange.sent < exchange.content.len())
    }

    /// Whether a connection of HTTP/1.1 would have ended: a request has asked for that, its content
    /// is not whole when its response is, or the response was cut off.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether the server takes another request on this connection.
    pub fn is_open(&self) -> bool {
        self.client.goaways.is_empty()
    }

    /// Whether the server has not processed a request, because it ended the connection before: the
    /// client is to repeat it on another one (RFC 9113 §6.8).
    pub fn is_refused(&self) -> bool {
        let last = self.client.goaways.iter().map(|(last, _)| *last).min();
        let exchange = self.exchanges.front();
        last.zip(exchange)
            .is_some_and(|(last, exchange)| exchange.stream > last)
    }

    /// Prepares for another request: what ends a connection of HTTP/1.1 ends only a stream here.
    pub fn reuse(&mut self) {
        *self = Gateway {
            client: std::mem::take(&mut self.client),
            sent_bytes: self.sent_bytes,
            ..Gateway::default()
        };
    }

    /// Resets the streams whose response is not complete, as a client does that loses interest.
    pub fn cancel(&mut self) {
        for exchange in self.exchanges.drain(..) {
            self.client.reset(exchange.stream, CANCEL);
        }
    }

    /// Translates what comes next. Returns whether it was there.
    fn take_part(&mut self) -> bool {
        match self.next {
            Next::Head => {
                let Some(head) = self.take_through(b"\r\n\r\n") else {
                    return false;
                };
                self.begin(&String::from_utf8(head).expect("UTF-8"));
            }
            Next::Content(0) => self.end_content(),
            Next::Content(left) => match self.take_content(left) {
                0 => return false,
                taken => self.next = Next::Content(left - taken),
            },
            Next::Chunk(0) => self.next = Next::ChunkEnd,
            Next::Chunk(left) => match self.take_content(left) {
                0 => return false,
                taken => self.next = Next::Chunk(left - taken),
            },
            Next::ChunkSize | Next::ChunkEnd | Next::End => {
                let Some(line) = self.take_through(b"\r\n") else {
                    return false;
                };
                self.take_line(&String::from_utf8(line).expect("UTF-8"));
            }
        }
        true
    }

    /// Takes a line between the bytes of chunks.
    fn take_line(&mut self, line: &str) {
        self.next = match self.next {
            Next::ChunkSize => match u64::from_str_radix(line, 16).expect("the size of a chunk") {
                0 => Next::End,
                bytes => Next::Chunk(bytes),
            },
            Next::ChunkEnd => {
                assert!(line.is_empty(), "{line:?} behind a chunk");
                Next::ChunkSize
            }
            _ => {
                assert!(line.is_empty(), "trailers are not translated: {line:?}");
                return self.end_content();
            }
        };
    }

    /// Takes the input up to `end`, which is left out.
    fn take_through(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        let at = self
            .input
            .windows(end.len())
            .position(|found| found == end)?;
        let taken = self.input.drain(..at + end.len()).take(at).collect();
        Some(taken)
    }

    /// Moves input to the content of the last request: at most `left` bytes. Returns how many.
    fn take_content(&mut self, left: u64) -> u64 {
        let bytes = left.min(self.input.len() as u64);
        let taken = self.input.drain(..bytes as usize);
        // If its response is complete already, nobody needs the rest of it.
        if let Some(exchange) = self.exchanges.back_mut() {
            exchange.content.extend(taken);
        }
        bytes
    }

    fn end_content(&mut self) {
        self.next = Next::Head;
        if let Some(exchange) = self.exchanges.back_mut() {
            exchange.is_whole = true;
        }
    }

    /// Begins a stream with a request whose head is `head`, without the empty line.
    fn begin(&mut self, head: &str) {
        let (line, lines) = head.split_once("\r\n").unwrap_or((head, ""));
        let (method, rest) = line.split_once(' ').expect("a method");
        let (target, _) = rest.rsplit_once(' ').expect("a version");
        let mut exchange = Exchange {
            is_head: method == "HEAD",
            ..Exchange::default()
        };
        let (mut host, mut fields) = (None, Vec::new());
        for line in lines.split("\r\n").filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').expect("a field");
            let (name, value) = (name.to_ascii_lowercase(), value.trim_matches([' ', '\t']));
            match &name[..] {
                "host" => host = Some(value),
                "connection" => exchange.closes = value.eq_ignore_ascii_case("close"),
                "transfer-encoding" => {
                    assert!(value.eq_ignore_ascii_case("chunked"), "{value}");
                    self.next = Next::ChunkSize;
                }
                _ => {
                    if name == "content-length" {
                        self.next = Next::Content(value.parse().expect("a length"));
                    }
                    fields.push((name, value));
                }
            }
        }
        if matches!(self.next, Next::Head | Next::Content(0)) {
            self.next = Next::Head;
            (exchange.is_whole, exchange.has_ended) = (true, true);
        }
        // The authority of a target replaces the host (RFC 9112 §3.2.2).
        let absolute = target
            .split_once("://")
            .filter(|_| !target.starts_with('/'));
        let (scheme, authority, path) = match absolute {
            Some((scheme, rest)) => {
                let (authority, path) = rest.split_once('/').expect("a path");
                (scheme, Some(authority), format!("/{path}"))
            }
            None => ("http", host, target.to_owned()),
        };
        let mut all = vec![
            (":method", method),
            (":scheme", scheme),
            (":path", &path[..]),
        ];
        all.extend(authority.map(|authority| (":authority", authority)));
        all.extend(fields.iter().map(|(name, value)| (&name[..], *value)));
        exchange.stream = self.client.request_with(&all, exchange.has_ended);
        self.exchanges.push_back(exchange);
    }

    /// Sends content, as far as the windows allow.
    fn send_content(&mut self) {
        let client = &mut self.client;
        for exchange in self
            .exchanges
            .iter_mut()
            .filter(|exchange| !exchange.has_ended)
        {
            let stream = exchange.stream;
            let room = |stream: u32, sent: u64| {
                let granted = client.room.get(&stream).copied().unwrap_or(0);
                (WINDOW_BYTES + granted).saturating_sub(sent)
            };
            let room = room(stream, exchange.sent as u64).min(room(0, self.sent_bytes));
            let left = &exchange.content[exchange.sent..];
            let bytes = left.len().min(room as usize);
            let ends = exchange.is_whole && bytes == left.len();
            if bytes > 0 || ends {
                client.data(stream, &left[..bytes], ends);
            }
            exchange.sent += bytes;
            self.sent_bytes += bytes as u64;
            exchange.has_ended = ends;
        }
    }

    /// Renders what has arrived.
    fn render(&mut self) {
        while let Some(exchange) = self.exchanges.front_mut() {
            let answer = self.client.answer(exchange.stream);
            exchange.render(answer, &mut self.received);
            if !answer.is_complete && answer.reset.is_none() {
                return;
            }
            self.is_over |= exchange.closes || !exchange.is_whole || !answer.is_complete;
            if !exchange.has_ended && answer.reset.is_none() {
                self.client.reset(exchange.stream, CANCEL);
            }
            self.exchanges.pop_front();
        }
    }
}

impl Exchange {
    /// Appends what was not rendered of a response.
    fn render(&mut self, answer: &Answer, out: &mut Vec<u8>) {
        while let Some(&status) = answer.interim.get(self.interim) {
            render_head(status, &answer.interim_fields[self.interim], out);
            out.extend_from_slice(b"\r\n");
            self.interim += 1;
        }
        if answer.status == 0 {
            return;
        }
        if !self.head_is_rendered {
            self.head_is_rendered = true;
            render_head(answer.status, &answer.fields, out);
            let has_content = !self.is_head && !matches!(answer.status, 204 | 304);
            self.is_chunked = has_content && answer.field("content-length").is_none();
            if self.is_chunked {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            out.extend_from_slice(b"\r\n");
        }
        let piece = &answer.body[self.rendered..];
        self.rendered = answer.body.len();
        if !self.is_chunked {
            return out.extend_from_slice(piece);
        }
        if !piece.is_empty() {
            write!(out, "{:x}\r\n", piece.len()).expect("memory");
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        if answer.is_complete {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

/// Appends a status line and fields, without the empty line. The first letter of each word of a
/// name is a capital, as in HTTP/1.1.
///
/// # Panics
/// If a field does not belong into HTTP/2 (RFC 9113 §8.2).
fn render_head(status: u16, fields: &[(String, Vec<u8>)], out: &mut Vec<u8>) {
    let phrase = match status {
        100 => "Continue",
        104 => "Upload Resumption Supported",
        _ => "",
    };
    write!(out, "HTTP/1.1 {status} {phrase}\r\n").expect("memory");
    for (name, value) in fields {
        let is_of_connection = matches!(
            &name[..],
            "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade"
        );
        let is_lower = !name.starts_with(':') && *name == name.to_ascii_lowercase();
        assert!(is_lower && !is_of_connection, "{name:?} in HTTP/2");
        let mut begins_word = true;
        for byte in name.bytes() {
            out.push(if begins_word {
                byte.to_ascii_uppercase()
            } else {
                byte
            });
            begins_word = byte == b'-';
        }
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
