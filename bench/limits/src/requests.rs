//! Requests as the canned loops see them: heads to parse and count, each with the same answer.
//! Must not know by which driver they come.

use crate::{
    arguments::Closing,
    net::{self, Follows},
};
use std::collections::HashMap;

/// As `hello` answers, but for the date, which no client of a benchmark reads.
pub const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: onrush\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 13\r\n\
    \r\n\
    Hello, World!";

/// As `hello` answers for the last time.
pub const LAST_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: onrush\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 13\r\n\
    Connection: close\r\n\
    \r\n\
    Hello, World!";

/// Fields that fit in a request; one with more is not answered.
pub const FIELDS_MAX: usize = 32;

/// Bytes of a request whose end has not come; a client that sends more is closed.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It goes on.
    Open,
    /// It is to be closed, now: everything that is to be sent has been.
    Close,
}

/// The whole requests at the beginning of what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answered {
    /// Bytes of them.
    used: usize,
    then: Then,
}

/// Answers all connections of a loop.
pub struct Responses {
    closing: Closing,
    /// Beginnings of requests, by connection. Empty, when every receive has brought whole ones.
    begun: HashMap<i32, Vec<u8>>,
    out: Vec<u8>,
}

impl Responses {
    /// For connections that are closed as `closing` says.
    #[must_use]
    pub fn new(closing: Closing) -> Responses {
        Responses {
            closing,
            begun: HashMap::new(),
            out: Vec::new(),
        }
    }

    /// Answers each whole request in `received`, in one send; keeps the beginning of another.
    #[inline]
    pub fn response(&mut self, socket: i32, received: &[u8]) -> Then {
        if !self.begun.is_empty() {
            return self.response_begun(socket, received);
        }
        self.out.clear();
        let answered = respond_all(self.closing, received, &mut self.out);
        self.send(socket, answered, received)
    }

    /// Forgets a connection. To be called whenever one is closed.
    #[inline]
    pub fn forget(&mut self, socket: i32) {
        if !self.begun.is_empty() {
            self.begun.remove(&socket);
        }
    }

    #[cold]
    fn response_begun(&mut self, socket: i32, received: &[u8]) -> Then {
        let mut whole = self.begun.remove(&socket).unwrap_or_default();
        whole.extend_from_slice(received);
        self.out.clear();
        let answered = respond_all(self.closing, &whole, &mut self.out);
        self.send(socket, answered, &whole)
    }

    #[inline]
    fn send(&mut self, socket: i32, answered: Answered, received: &[u8]) -> Then {
        if answered.then == Then::Close {
            // The end of the connection leaves in the same segment.
            net::send(socket, &self.out, Follows::More);
            return Then::Close;
        }
        net::send(socket, &self.out, Follows::Nothing);
        if answered.used == received.len() {
            return Then::Open;
        }
        self.keep(socket, &received[answered.used..])
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

/// Appends an answer to `out` for each whole request at the beginning of `received`, until the
/// connection is to be closed. What is no request closes it without an answer.
#[inline]
fn respond_all(closing: Closing, received: &[u8], out: &mut Vec<u8>) -> Answered {
    let mut used = 0;
    while used < received.len() {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let len = match request.parse(&received[used..]) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => break,
            Err(_) => {
                let then = Then::Close;
                return Answered { used, then };
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
            return Answered { used, then };
        }
        out.extend_from_slice(RESPONSE);
    }
    let then = Then::Open;
    Answered { used, then }
}

/// Whether the fields of a request say `Connection: close`, and nothing else there.
#[inline]
fn asks_to_close(fields: &[httparse::Header<'_>]) -> bool {
    fields.iter().any(|field| {
        field.name.eq_ignore_ascii_case("connection") && field.value.eq_ignore_ascii_case(b"close")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const LAST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\nconnection: Close\r\n\r\n";

    fn responses(closing: Closing, received: &[u8]) -> (Answered, Vec<u8>) {
        let mut out = Vec::new();
        let answered = respond_all(closing, received, &mut out);
        (answered, out)
    }

    #[test]
    fn each_whole_request_has_an_answer() {
        let three = REQUEST.repeat(3);
        let (answered, out) = responses(Closing::Never, &three);
        assert_eq!((answered.used, answered.then), (three.len(), Then::Open));
        assert_eq!(out, RESPONSE.repeat(3));
    }

    #[test]
    fn a_beginning_is_left() {
        let (answered, out) = responses(Closing::Never, &REQUEST.repeat(2)[..REQUEST.len() + 20]);
        assert_eq!((answered.used, answered.then), (REQUEST.len(), Then::Open));
        assert_eq!(out, RESPONSE);
    }

    #[test]
    fn nothing_is_answered_after_the_last() {
        let received = [REQUEST, LAST, REQUEST].concat();
        let (answered, out) = responses(Closing::Asked, &received);
        assert_eq!(answered.used, REQUEST.len() + LAST.len());
        assert_eq!(answered.then, Then::Close);
        assert_eq!(out, [RESPONSE, LAST_RESPONSE].concat());
        assert_eq!(responses(Closing::Always, &received).1, LAST_RESPONSE);
        assert_eq!(responses(Closing::Never, &received).1, RESPONSE.repeat(3));
    }

    #[test]
    fn what_is_no_request_closes() {
        let (answered, out) = responses(Closing::Never, b"\0\0\0\0");
        assert_eq!((answered.then, out.len()), (Then::Close, 0));
    }

    #[test]
    fn both_answers_are_of_hello() {
        assert_eq!(
            RESPONSE.len() + b"Connection: close\r\n".len(),
            LAST_RESPONSE.len()
        );
    }
}
