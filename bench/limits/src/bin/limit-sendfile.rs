//! A bare `sendfile` loop on epoll: `limit-sendfile PORT FILE` answers every request with `FILE`,
//! which is opened once. Each request is parsed; nothing in it is looked at.
//!
//! An answer is a canned head, of the length of the head that `onrush` gives the same file, and
//! the file by `sendfile`, whatever its size. The head is held back with `MSG_MORE`, so that it
//! leaves in the segment in which the file begins. What does not fit goes on when the socket is
//! writable, from the edge that the one registration also tells.

use limits::{
    arguments::argument,
    epoll::Epoll,
    net::{self, Follows, Received},
    requests::{FIELDS_MAX, HEAD_BYTES_MAX},
};
use std::{
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
};

const USAGE: &str = "limit-sendfile PORT FILE";

const RECEIVE_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, USAGE)?)?;
    let path: PathBuf = argument(2, USAGE)?;
    let file = File::open(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let response = Response::of(file)?;
    let mut epoll = Epoll::new()?;
    epoll.watch(listener.as_raw_fd(), libc::EPOLLIN)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        for event in 0..epoll.wait()? {
            let socket = epoll.ready(event);
            if socket == listener.as_raw_fd() {
                accept_all(&listener, &epoll, &mut connections)?;
                continue;
            }
            let connection = &mut connections[socket as usize];
            if !connection.go_on(socket, &response, &mut buffer) {
                *connection = Connection::default();
                net::close(socket);
            }
        }
    }
}

/// Connections have the place of their descriptor.
fn accept_all(
    listener: &OwnedFd,
    epoll: &Epoll,
    connections: &mut Vec<Connection>,
) -> io::Result<()> {
    while let Some(socket) = net::accept(listener) {
        let place = socket as usize;
        if connections.len() <= place {
            connections.resize_with(place + 1, Connection::default);
        }
        epoll.watch(socket, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET)?;
    }
    Ok(())
}

/// What every request is answered.
struct Response {
    head: Vec<u8>,
    file: File,
    len: u64,
}

impl Response {
    fn of(file: File) -> io::Result<Response> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("FILE is not a regular file"));
        }
        let (head, len) = (head(&metadata), metadata.len());
        Ok(Response { head, file, len })
    }

    /// A head that was held back for an empty file would wait for nothing.
    fn follows(&self) -> Follows {
        match self.len {
            0 => Follows::Nothing,
            _ => Follows::More,
        }
    }
}

/// As `onrush` begins the answer with a file of no known type, but for its dates.
fn head(metadata: &Metadata) -> Vec<u8> {
    let (inode, len) = (metadata.ino(), metadata.len());
    let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    format!(
        "HTTP/1.1 200 OK\r\n\
         Server: onrush\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: application/octet-stream\r\n\
         Content-Length: {len}\r\n\
         Accept-Ranges: bytes\r\n\
         Cache-Control: no-cache\r\n\
         X-Content-Type-Options: nosniff\r\n\
         ETag: \"{inode:x}-{len:x}-{modified:x}\"\r\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         \r\n"
    )
    .into_bytes()
}

#[derive(Default)]
struct Connection {
    /// The beginning of a request.
    begun: Vec<u8>,
    /// Requests whose answer has not begun.
    waiting: usize,
    /// Bytes of the file that were sent, while it is.
    sent: Option<u64>,
}

impl Connection {
    /// Sends and receives until neither is possible; gives false when the connection is to be
    /// closed.
    #[inline]
    fn go_on(&mut self, socket: i32, response: &Response, buffer: &mut [u8]) -> bool {
        let mut drained = false;
        loop {
            if let Some(sent) = self.sent {
                match send_file(socket, response, sent) {
                    Sent::All => self.sent = None,
                    Sent::UpTo(sent) => {
                        self.sent = Some(sent);
                        return true;
                    }
                    Sent::Failed => return false,
                }
            } else if self.waiting > 0 {
                self.waiting -= 1;
                net::send(socket, &response.head, response.follows());
                self.sent = Some(0);
            } else if drained {
                // What comes from now on is a new edge.
                return true;
            } else {
                match net::receive(socket, buffer) {
                    Received::Bytes(len) => {
                        drained = len < buffer.len();
                        if !self.take(&buffer[..len]) {
                            return false;
                        }
                    }
                    Received::Nothing => return true,
                    Received::End => return false,
                }
            }
        }
    }

    /// Counts the whole requests in what was received; gives false when it is none.
    #[inline]
    fn take(&mut self, received: &[u8]) -> bool {
        if self.begun.is_empty() {
            let Some((count, used)) = count(received) else {
                return false;
            };
            self.waiting = count;
            self.begun.extend_from_slice(&received[used..]);
        } else {
            self.begun.extend_from_slice(received);
            let Some((count, used)) = count(&self.begun) else {
                return false;
            };
            self.waiting = count;
            self.begun.drain(..used);
        }
        self.begun.len() <= HEAD_BYTES_MAX
    }
}

/// How many whole requests `received` begins with, and their bytes; `None` when it has what is no
/// request.
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

enum Sent {
    All,
    /// The socket takes no more now.
    UpTo(u64),
    Failed,
}

#[inline]
fn send_file(socket: i32, response: &Response, mut sent: u64) -> Sent {
    while sent < response.len {
        let mut offset = sent as libc::off_t;
        let rest = (response.len - sent) as usize;
        // SAFETY: the kernel reads and writes `offset`, which outlives the call.
        let len =
            unsafe { libc::sendfile(socket, response.file.as_raw_fd(), &raw mut offset, rest) };
        match len {
            1.. => sent += len as u64,
            -1 if net::would_block() => return Sent::UpTo(sent),
            // The client has gone, or the file has become shorter than was promised.
            _ => return Sent::Failed,
        }
    }
    Sent::All
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_requests_are_counted_at_every_split() {
        let two = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
        for split in 1..two.len() {
            let mut connection = Connection::default();
            assert!(connection.take(&two[..split]));
            let first = connection.waiting;
            assert!(connection.take(&two[split..]));
            assert_eq!(first + connection.waiting, 2, "split at {split}");
            assert!(connection.begun.is_empty());
        }
        assert!(!Connection::default().take(b"\0\0\0"));
    }
}
