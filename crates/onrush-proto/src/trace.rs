//! Records the state machine's reactions to a byte stream as values that can be compared.
//!
//! For tests and fuzzers: the same bytes must cause the same events however they are split. A
//! server must not use this module, because it copies everything.

use crate::{
    connection::{After, Connection, Eof, Step},
    head::{Framing, Head, Version},
    limits::Limits,
    reject::Reject,
    response::ContentLength,
};

/// One event. Consecutive body pieces are merged into one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A head was accepted.
    Request(TracedRequest),
    /// These body bytes were received.
    Body(Vec<u8>),
    /// The body ended, with these trailer lines.
    End(Option<Box<[u8]>>),
    /// The bytes were refused.
    Rejected(Reject),
    /// The response was finished.
    Responded(After),
    /// The stream ended.
    Eof(Eof),
}

/// The parts of an accepted head.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the accessors of `Head` are")]
pub struct TracedRequest {
    pub method: String,
    pub target: Vec<u8>,
    pub path: Vec<u8>,
    pub query: Option<Vec<u8>>,
    pub host: Option<Vec<u8>>,
    pub version: Version,
    pub framing: Framing,
    pub content_length: Option<u64>,
    pub keep_alive: bool,
    pub expects_continue: bool,
    pub fields: Vec<(String, Vec<u8>)>,
}

impl TracedRequest {
    fn copy(head: &Head, bytes: &[u8]) -> TracedRequest {
        let fields = head
            .headers(bytes)
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        TracedRequest {
            method: head.method(bytes).to_owned(),
            target: head.target(bytes).to_owned(),
            path: head.path(bytes).to_owned(),
            query: head.query(bytes).map(<[u8]>::to_owned),
            host: head.host(bytes).map(<[u8]>::to_owned),
            version: head.version(),
            framing: head.framing(),
            content_length: head.content_length(),
            keep_alive: head.keep_alive(),
            expects_continue: head.expects_continue(),
            fields: fields.collect(),
        }
    }
}

/// Passes `bytes` to the state machine in pieces that end at the offsets `splits` (ascending;
/// offsets beyond the end are ignored). Responds to each request with a short 200 after its body.
/// Stops at the first event after which a server would read no more.
pub fn drive(bytes: &[u8], splits: &[usize], limits: &Limits) -> Vec<Event> {
    let mut driver = Driver {
        connection: Connection::new(),
        head: Head::default(),
        in_body: false,
        events: Vec::new(),
        limits,
    };
    let ends = splits
        .iter()
        .copied()
        .filter(|&end| end < bytes.len())
        .chain([bytes.len()]);
    let mut start = 0;
    for end in ends {
        match driver.receive(&bytes[start..end]) {
            Some(consumed) => start += consumed,
            None => return driver.events,
        }
    }
    let eof = driver.connection.receive_eof();
    driver.events.push(Event::Eof(eof));
    driver.events
}

struct Driver<'l> {
    connection: Connection,
    head: Head,
    in_body: bool,
    events: Vec<Event>,
    limits: &'l Limits,
}

impl Driver<'_> {
    /// Reads as much of `input` as possible and returns the number of bytes consumed. `None` if the
    /// connection reads nothing further.
    fn receive(&mut self, input: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let step = match self.in_body {
                true => self.body(&input[at..]),
                false => self.head(&input[at..]),
            };
            match step {
                Ok(Some(consumed)) => at += consumed,
                Ok(None) => return Some(at),
                Err(Stopped) => return None,
            }
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<Option<usize>, Stopped> {
        match self
            .connection
            .receive_head(input, &mut self.head, self.limits)
        {
            Ok(Step::NeedMore) => Ok(None),
            Ok(Step::Request { head_bytes }) => {
                self.events
                    .push(Event::Request(TracedRequest::copy(&self.head, input)));
                self.in_body = true;
                Ok(Some(head_bytes))
            }
            Err(reject) => self.reject(reject),
        }
    }

    fn body(&mut self, input: &[u8]) -> Result<Option<usize>, Stopped> {
        let piece = match self.connection.receive_body(input, self.limits) {
            Ok(piece) => piece,
            Err(reject) => return self.reject(reject),
        };
        let data = &input[piece.data.clone()];
        match self.events.last_mut() {
            _ if data.is_empty() => {}
            Some(Event::Body(body)) => body.extend_from_slice(data),
            _ => self.events.push(Event::Body(data.to_owned())),
        }
        if piece.end {
            self.events
                .push(Event::End(self.connection.take_trailers()));
            self.response()?;
        } else if piece.consumed == 0 {
            return Ok(None);
        }
        Ok(Some(piece.consumed))
    }

    fn response(&mut self) -> Result<(), Stopped> {
        let date = crate::date::format(0);
        let length = ContentLength::Known(2);
        self.connection
            .send_head(200, None, b"", length, &date, false, &mut Vec::new());
        let after = self.connection.finish_response();
        self.events.push(Event::Responded(after));
        self.in_body = false;
        if after == After::KeepAlive {
            Ok(())
        } else {
            Err(Stopped)
        }
    }

    fn reject(&mut self, reject: Reject) -> Result<Option<usize>, Stopped> {
        self.events.push(Event::Rejected(reject));
        let date = crate::date::format(0);
        self.connection.send_reject(reject, &date, &mut Vec::new());
        self.events
            .push(Event::Responded(self.connection.finish_response()));
        Err(Stopped)
    }
}

/// Nothing more is read.
struct Stopped;
