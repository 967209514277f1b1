//! The requests of the loops with a fixed response: parses heads, and appends the response for
//! each. It does not depend on the driver.

use crate::{
    arguments::Closing,
    net::{self, Follows},
    responses::{LAST_RESPONSE, RESPONSE},
};
use std::collections::HashMap;

/// The most fields of a request. A request with more closes the connection.
pub const FIELDS_MAX: usize = 32;

/// The most bytes of an incomplete request. With more, the connection is closed.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What follows for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It stays open.
    Open,
    /// It must be closed now. All responses have been sent.
    Close,
}

/// The complete requests at the beginning of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Complete {
    /// Their length in bytes.
    used: usize,
    then: Then,
}

/// Responds to the requests of all connections of a loop.
pub struct Responses {
    closing: Closing,
    /// Incomplete requests by connection. Empty if every receive returned complete requests.
    begun: HashMap<i32, Vec<u8>>,
    out: Vec<u8>,
}

impl Responses {
    /// For connections that are closed according to `closing`.
    #[must_use]
    pub fn new(closing: Closing) -> Responses {
        Responses {
            closing,
            begun: HashMap::new(),
            out: Vec::new(),
        }
    }

    /// Responds to each complete request in `received` with one send. Stores an incomplete request.
    #[inline]
    pub fn respond(&mut self, socket: i32, received: &[u8]) -> Then {
        if !self.begun.is_empty() {
            return self.respond_joined(socket, received);
        }
        self.out.clear();
        let complete = respond_all(self.closing, received, &mut self.out);
        self.send(socket, complete, received)
    }

    /// Drops the state of a connection. Must be called whenever one is closed.
    #[inline]
    pub fn forget(&mut self, socket: i32) {
        if !self.begun.is_empty() {
            self.begun.remove(&socket);
        }
    }

    #[cold]
    fn respond_joined(&mut self, socket: i32, received: &[u8]) -> Then {
        let mut joined = self.begun.remove(&socket).unwrap_or_default();
        joined.extend_from_slice(received);
        self.out.clear();
        let complete = respond_all(self.closing, &joined, &mut self.out);
        self.send(socket, complete, &joined)
    }

    #[inline]
    fn send(&mut self, socket: i32, complete: Complete, received: &[u8]) -> Then {
        if complete.then == Then::Close {
            // The end of the connection leaves in the same segment.
            net::send(socket, &self.out, Follows::More);
            return Then::Close;
        }
        net::send(socket, &self.out, Follows::Nothing);
        if complete.used == received.len() {
            return Then::Open;
        }
        self.keep(socket, &received[complete.used..])
    }

    #[cold]
    fn keep(&mut self, socket: i32, beginning: &[u8]) -> Then {
        if beginning.len() > HEAD_BYTES_MAX {
            return Then::Close;
        }
        self.begun.insert(socket, beginning.to_vec());
        Then::Open
    }
}

/// Appends a response to `out` for each complete request at the beginning of `received`, up to a
/// request that closes the connection. Malformed bytes close it without a response.
#[inline]
fn respond_all(closing: Closing, received: &[u8], out: &mut Vec<u8>) -> Complete {
    let mut used = 0;
    while used < received.len() {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let len = match request.parse(&received[used..]) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => break,
            Err(_) => {
                let then = Then::Close;
                return Complete { used, then };
            }
        };
        used += len;
        let last = match closing {
            Closing::Never => false,
            Closing::Always => true,
            Closing::Asked => asks_to_close(request.headers),
        };
        if last {
            out.extend_from_slice(LAST_RESPONSE);
            let then = Then::Close;
            return Complete { used, then };
        }
        out.extend_from_slice(RESPONSE);
    }
    let then = Then::Open;
    Complete { used, then }
}

/// Whether the fields of a request contain exactly `Connection: close`.
#[inline]
fn asks_to_close(fields: &[httparse::Header<'_>]) -> bool {
    fields.iter().any(|field| {
        field.name.eq_ignore_ascii_case("connection") && field.value.eq_ignore_ascii_case(b"close")
    })
}

/// Counts the requests of one connection, for loops whose response does not depend on them.
#[derive(Default)]
pub struct Counter {
    /// An incomplete request.
    begun: Vec<u8>,
}

impl Counter {
    /// The number of requests that the `received` bytes complete. `None` if they are malformed or
    /// too long; the connection must be closed then.
    #[inline]
    pub fn count(&mut self, received: &[u8]) -> Option<usize> {
        let count = if self.begun.is_empty() {
            let (count, used) = count(received)?;
            self.begun.extend_from_slice(&received[used..]);
            count
        } else {
            self.begun.extend_from_slice(received);
            let (count, used) = count(&self.begun)?;
            self.begun.drain(..used);
            count
        };
        (self.begun.len() <= HEAD_BYTES_MAX).then_some(count)
    }
}

/// The number of complete requests at the beginning of `received`, and their length in bytes.
/// `None` if a request is malformed.
#[inline]
fn count(received: &[u8]) -> Option<(usize, usize)> {
    let (mut count, mut used) = (0, 0);
    while used < received.len() {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let parsed = httparse::Request::new(&mut fields).parse(&received[used..]);
        match parsed.ok()? {
            httparse::Status::Complete(len) => used += len,
            httparse::Status::Partial => break,
        }
        count += 1;
    }
    Some((count, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const LAST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nconnection: Close\r\n\r\n";

    fn responses(closing: Closing, received: &[u8]) -> (Complete, Vec<u8>) {
        let mut out = Vec::new();
        let complete = respond_all(closing, received, &mut out);
        (complete, out)
    }

    #[test]
    fn each_complete_request_has_a_response() {
        let three = REQUEST.repeat(3);
        let (complete, out) = responses(Closing::Never, &three);
        assert_eq!((complete.used, complete.then), (three.len(), Then::Open));
        assert_eq!(out, RESPONSE.repeat(3));
    }

    #[test]
    fn an_incomplete_request_is_left() {
        let (complete, out) = responses(Closing::Never, &REQUEST.repeat(2)[..REQUEST.len() + 20]);
        assert_eq!((complete.used, complete.then), (REQUEST.len(), Then::Open));
        assert_eq!(out, RESPONSE);
    }

    #[test]
    fn no_response_follows_the_last_one() {
        let received = [REQUEST, LAST, REQUEST].concat();
        let (complete, out) = responses(Closing::Asked, &received);
        assert_eq!(complete.used, REQUEST.len() + LAST.len());
        assert_eq!(complete.then, Then::Close);
        assert_eq!(out, [RESPONSE, LAST_RESPONSE].concat());
        assert_eq!(responses(Closing::Always, &received).1, LAST_RESPONSE);
        assert_eq!(responses(Closing::Never, &received).1, RESPONSE.repeat(3));
    }

    #[test]
    fn malformed_bytes_close_the_connection() {
        let (complete, out) = responses(Closing::Never, b"\0\0\0\0");
        assert_eq!((complete.then, out.len()), (Then::Close, 0));
    }

    #[test]
    fn complete_requests_are_counted_at_every_split() {
        let two = REQUEST.repeat(2);
        for split in 1..two.len() {
            let mut counter = Counter::default();
            let first = counter.count(&two[..split]).expect("well-formed");
            let second = counter.count(&two[split..]).expect("well-formed");
            assert_eq!(first + second, 2, "split at {split}");
            assert!(counter.begun.is_empty());
        }
        assert_eq!(Counter::default().count(b"\0\0\0"), None);
    }
}
