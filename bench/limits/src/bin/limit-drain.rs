//! A bare drain on epoll: `limit-drain PORT` reads the head of each PUT, takes its body out of the
//! socket, all of it and nothing behind it, and answers as `onrush --sink` does. The body's length
//! is what `Content-Length` says; a request without one has no body.
//!
//! A body is dropped inside the kernel (`recv` with `MSG_TRUNC`), which copies nothing, and the
//! socket is told to be ready only when a good part of it has come (`SO_RCVLOWAT`), or its buffer
//! is full. Measured with bodies of 8 MiB from 8 clients, where `MSG_TRUNC` alone takes about 0.1 s
//! of CPU for each GB, as a ratio to that:
//!
//! | what | CPU |
//! | --- | --- |
//! | `MSG_TRUNC`, ready from 2 MiB | 0.45 |
//! | ready from 1 MiB | 0.52 |
//! | ready from 512 KiB | 0.56 |
//! | ready from 256 KiB | 0.67 |
//! | ready from the first byte | 1 |
//! | `splice` to a pipe and on to the null device | 0.94 |
//! | `recv` into 1 MiB, 256 KiB, 64 KiB | 2.1, 2.3, 2.4 |
//! | `recv` into 256 KiB, ready from 1 MiB | 2.1 |

use limits::{
    arguments::argument,
    epoll::Epoll,
    net::{self, Follows, Received},
    requests::{FIELDS_MAX, HEAD_BYTES_MAX},
};
use std::{io, os::fd::AsRawFd};

const USAGE: &str = "limit-drain PORT";

/// Room for a head and what came with it of the body.
const RECEIVE_BYTES: usize = 16 * 1024;

/// What must have come of a body, of what is missing, before the loop is told.
const READY_BYTES: u64 = 2 << 20;

/// Shorter bodies are not worth the calls that it takes to say so.
const READY_FROM_BYTES: u64 = 64 * 1024;

const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, USAGE)?)?;
    let mut epoll = Epoll::new()?;
    epoll.watch(listener.as_raw_fd(), libc::EPOLLIN)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        for event in 0..epoll.wait()? {
            let socket = epoll.ready(event);
            if socket != listener.as_raw_fd() {
                let connection = &mut connections[socket as usize];
                if !connection.go_on(socket, &mut buffer) {
                    *connection = Connection::default();
                    net::close(socket);
                }
                continue;
            }
            while let Some(socket) = net::accept(&listener) {
                let place = socket as usize;
                if connections.len() <= place {
                    connections.resize_with(place + 1, Connection::default);
                }
                epoll.watch(socket, libc::EPOLLIN | libc::EPOLLET)?;
            }
        }
    }
}

/// A connection has the place of its descriptor.
#[derive(Default)]
struct Connection {
    /// What came of a head that is not whole, or behind a body.
    begun: Vec<u8>,
    body: Option<Body>,
}

struct Body {
    len: u64,
    left: u64,
    /// Bytes the socket is ready from.
    ready_from: u64,
}

impl Body {
    /// Has the socket ready only when a good part of what is left has come; when nothing is left,
    /// from the first byte.
    fn set_ready(&mut self, socket: i32) {
        let due = match self.left {
            0 => 1,
            left => left.min(READY_BYTES),
        };
        let is_worth_it = self.len >= READY_FROM_BYTES;
        if due != self.ready_from && is_worth_it {
            self.ready_from = due;
            // If it fails, the loop is told more often than it need be.
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
            let _ = net::set_option(socket, level, name, due as libc::c_int);
        }
    }
}

impl Connection {
    /// Receives until nothing more has come; gives false when the connection is to be closed.
    #[inline]
    fn go_on(&mut self, socket: i32, buffer: &mut [u8]) -> bool {
        loop {
            if let Some(body) = &mut self.body {
                if body.left > 0 {
                    let wanted = usize::try_from(body.left).unwrap_or(usize::MAX);
                    match net::discard(socket, wanted) {
                        Received::Bytes(len) => {
                            body.left -= len as u64;
                            body.set_ready(socket);
                        }
                        Received::Nothing => return true,
                        Received::End => return false,
                    }
                    // Less than was wanted was all there is; what comes now is a new edge.
                    if body.left > 0 {
                        return true;
                    }
                }
                response(socket, body.len);
                self.body = None;
                if !self.begun.is_empty() && !self.take_head(socket) {
                    return false;
                }
                continue;
            }
            match net::receive(socket, buffer) {
                Received::Bytes(len) => self.begun.extend_from_slice(&buffer[..len]),
                Received::Nothing => return true,
                Received::End => return false,
            }
            if !self.take_head(socket) {
                return false;
            }
        }
    }

    /// Begins the body of the request whose head has come; gives false when it is none.
    fn take_head(&mut self, socket: i32) -> bool {
        let Some(head) = Head::of(&self.begun) else {
            return false;
        };
        let Some(head) = head else {
            return self.begun.len() <= HEAD_BYTES_MAX;
        };
        let behind = (self.begun.len() - head.len) as u64;
        if head.expects_go_on && behind == 0 && head.body_len > 0 {
            net::send(socket, GO_ON, Follows::Nothing);
        }
        let here = behind.min(head.body_len);
        self.begun.drain(..head.len + here as usize);
        let mut body = Body {
            len: head.body_len,
            left: head.body_len - here,
            ready_from: 1,
        };
        body.set_ready(socket);
        self.body = Some(body);
        true
    }
}

/// What a drain needs to know of a head.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    len: usize,
    body_len: u64,
    expects_go_on: bool,
}

impl Head {
    /// The head that `received` begins with; `Some(None)` when it is not whole, `None` when it is
    /// no head or its body has no length in bytes.
    fn of(received: &[u8]) -> Option<Option<Head>> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut fields);
        let httparse::Status::Complete(len) = request.parse(received).ok()? else {
            return Some(None);
        };
        let mut head = Head {
            len,
            body_len: 0,
            expects_go_on: false,
        };
        for field in request.headers {
            if field.name.eq_ignore_ascii_case("content-length") {
                head.body_len = std::str::from_utf8(field.value).ok()?.parse().ok()?;
            } else if field.name.eq_ignore_ascii_case("expect") {
                head.expects_go_on = field.value.eq_ignore_ascii_case(b"100-continue");
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                return None;
            }
        }
        Some(Some(head))
    }
}

fn response(socket: i32, len: u64) {
    const BEFORE: &[u8] = b"HTTP/1.1 204 No Content\r\n\
        Server: onrush\r\n\
        Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
        Onrush-Received-Bytes: ";
    let mut out = [0; BEFORE.len() + 32];
    let mut digits = itoa::Buffer::new();
    let parts = [BEFORE, digits.format(len).as_bytes(), b"\r\n\r\n"];
    let mut used = 0;
    for part in parts {
        out[used..used + part.len()].copy_from_slice(part);
        used += part.len();
    }
    net::send(socket, &out[..used], Follows::Nothing);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_at_every_split() {
        let head = b"PUT /x HTTP/1.1\r\nContent-Length: 12\r\nexpect: 100-Continue\r\n\r\n";
        for split in 0..head.len() {
            assert_eq!(Head::of(&head[..split]), Some(None), "split at {split}");
        }
        let whole = Head::of(head).flatten().expect("a head");
        assert_eq!((whole.len, whole.body_len), (head.len(), 12));
        assert!(whole.expects_go_on);
    }

    #[test]
    fn a_body_without_a_length_in_bytes_is_refused() {
        for field in [
            "Content-Length: -1",
            "Content-Length: x",
            "Transfer-Encoding: chunked",
        ] {
            let head = format!("PUT / HTTP/1.1\r\n{field}\r\n\r\n");
            assert_eq!(Head::of(head.as_bytes()), None, "{field}");
        }
    }
}
