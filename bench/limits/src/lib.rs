//! What the bare loops have in common: the listener, and the answer to each request.
//!
//! A bare loop is the least a server can do with a driver: it receives, parses each request with
//! httparse, looks at nothing in it, and sends a canned answer of the same length as that of the
//! example `hello`. It has no limits on anything, no state for a connection and no care for
//! errors; it survives a benchmark and nothing else. What a real server costs beyond it is what
//! the server adds.

use std::{
    io,
    net::TcpListener,
    os::fd::{AsRawFd, OwnedFd},
};

/// As `hello` answers, but for the date, which no client of a benchmark reads.
pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: onrush\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 13\r\n\
    \r\n\
    Hello, World!";

/// Fields that fit in a request; one with more is not answered.
const FIELDS_MAX: usize = 32;

/// Appends one answer for each whole request in `received`; a rest is dropped.
#[inline]
pub fn answer_all(received: &[u8], out: &mut Vec<u8>) {
    let mut rest = received;
    while !rest.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let Ok(httparse::Status::Complete(len)) = httparse::Request::new(&mut fields).parse(rest)
        else {
            break;
        };
        out.extend_from_slice(ANSWER);
        rest = &rest[len..];
    }
}

/// Listens on the port that is the first argument, on the loopback address, without blocking.
pub fn listen() -> io::Result<OwnedFd> {
    let argument = std::env::args()
        .nth(1)
        .and_then(|port| port.parse::<u16>().ok());
    let usage = || io::Error::new(io::ErrorKind::InvalidInput, "usage: PROGRAM PORT");
    let listener = TcpListener::bind(("127.0.0.1", argument.ok_or_else(usage)?))?;
    listener.set_nonblocking(true)?;
    // SAFETY: a call on a descriptor that `listener` holds open. It only enlarges the backlog.
    check(unsafe { libc::listen(listener.as_raw_fd(), 4096) })?;
    Ok(listener.into())
}

/// Answers leave at once, not when the kernel has gathered more.
pub fn set_no_delay(socket: i32) {
    let on: libc::c_int = 1;
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes at `on`, which outlives the call. On a descriptor that
    // is no socket it fails, and nothing depends on that.
    unsafe {
        libc::setsockopt(
            socket,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            len,
        )
    };
}

/// Sends without blocking. What does not fit is lost: these loops do not keep it.
#[inline]
pub fn send(socket: i32, bytes: &[u8]) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the kernel reads `bytes.len()` bytes at `bytes`, and keeps no reference to them.
    unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Closes a connection's descriptor, which must not be used again.
pub fn close(socket: i32) {
    // SAFETY: the loops keep descriptors as numbers, and forget each when it is closed.
    unsafe { libc::close(socket) };
}

/// The result of a kernel call, or the error it left behind.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_whole_request_has_an_answer() {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut out = Vec::new();
        answer_all(&request.repeat(3), &mut out);
        assert_eq!(out, ANSWER.repeat(3));
        out.clear();
        answer_all(&request[..20], &mut out);
        assert!(out.is_empty());
    }
}
