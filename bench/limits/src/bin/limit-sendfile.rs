//! A bare `sendfile` loop on epoll: `limit-sendfile PORT FILE` responds to every request with
//! `FILE`, which it opens once. It parses each request and ignores its contents.
//!
//! A response is a fixed head, as long as the head of `onrush` for the same file, and the file by
//! `sendfile`, whatever its size. `MSG_MORE` delays the head, so that it leaves in one segment with
//! the beginning of the file. The rest of a large file follows when the socket is writable, which
//! the same registration reports.

use limits::{
    arguments::argument,
    connections::serve_all,
    net::{self, Follows, Received},
    requests::Counter,
    responses::file_head,
};
use std::{fs::File, io, os::fd::AsRawFd, path::PathBuf};

const USAGE: &str = "limit-sendfile PORT FILE";

const RECEIVE_BYTES: usize = 16 * 1024;

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, USAGE)?)?;
    let path: PathBuf = argument(2, USAGE)?;
    let file = File::open(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let response = Response::of(file)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    serve_all(&listener, events, |connection: &mut Connection, socket| {
        connection.serve(socket, &response, &mut buffer)
    })
}

/// The response to every request.
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
        let (head, len) = (file_head(&metadata), metadata.len());
        Ok(Response { head, file, len })
    }

    /// The head of an empty file is not delayed, because nothing follows it.
    fn follows(&self) -> Follows {
        match self.len {
            0 => Follows::Nothing,
            _ => Follows::More,
        }
    }
}

#[derive(Default)]
struct Connection {
    requests: Counter,
    /// Requests whose response has not begun.
    waiting: usize,
    /// Bytes of the file that were sent, during a response.
    sent: Option<u64>,
}

impl Connection {
    /// Sends and receives until neither is possible. Returns false if the connection must be
    /// closed.
    #[inline]
    fn serve(&mut self, socket: i32, response: &Response, buffer: &mut [u8]) -> bool {
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
                // New data causes a new event.
                return true;
            } else {
                match net::receive(socket, buffer) {
                    Received::Bytes(len) => {
                        drained = len < buffer.len();
                        let Some(count) = self.requests.count(&buffer[..len]) else {
                            return false;
                        };
                        self.waiting = count;
                    }
                    Received::Nothing => return true,
                    Received::End => return false,
                }
            }
        }
    }
}

enum Sent {
    All,
    /// The socket's buffer is full.
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
            // The client has closed the connection, or the file has become shorter than its head.
            _ => return Sent::Failed,
        }
    }
    Sent::All
}
