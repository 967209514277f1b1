//! The bare TLS loop on epoll: one thread, edge-triggered, rustls with its buffered API, and a
//! canned response to every request.
//!
//! `limit-tls PORT CHAIN KEY hello` sends the response of `hello` and closes no connection. `close`
//! closes each connection after one response, with `close_notify` in the same segment. `file FILE`
//! sends the content of `FILE`, which it reads once: the cost of encrypting and sending those
//! bytes, without reading them. `read FILE` reads each piece from the file, before it is encrypted,
//! as a server of files must. `CHAIN` and `KEY` are PEM files.
//!
//! All responses that fit are encrypted together, and one call sends their records. Large ones are
//! encrypted and sent in pieces. The table has the CPU for 1 MB, as a ratio to pieces of 64 KiB:
//!
//! | pieces | CPU |
//! | --- | --- |
//! | 16 KiB | 0.87 |
//! | 32 KiB | 0.66 |
//! | 48 KiB | about 0.6, from the ratio to 256 KiB |
//! | 64 KiB | 1 |
//! | 256 KiB | 0.65 |

use limits::{
    arguments::argument,
    epoll::Epoll,
    net,
    requests::Counter,
    responses::{LAST_RESPONSE, RESPONSE, file_head},
    tls::{self, Socket},
};
use rustls::{ServerConfig, ServerConnection};
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::PathBuf,
    sync::Arc,
};

const USAGE: &str = "limit-tls PORT CHAIN KEY (hello | close | file FILE | read FILE)";

/// Responses that are prepared side by side: more than one receive can request.
const SIDE_BY_SIDE: usize = 256;

/// Room for more than one record, and for a piece of a file.
const RECEIVE_BYTES: usize = 64 * 1024;

/// The bytes that are encrypted before they are sent: three records, which leave in one segment. A
/// segment has at most 64 KiB, and four full records with their headers are longer.
const PIECE_BYTES: usize = 48 * 1024;

fn main() -> io::Result<()> {
    let listener = net::listen(argument(1, USAGE)?)?;
    let (chain, key): (PathBuf, PathBuf) = (argument(2, USAGE)?, argument(3, USAGE)?);
    let canned = Canned::of_arguments()?;
    let config = tls::config(&chain, &key)?;
    net::accept_with_data(&listener)?;
    let mut epoll = Epoll::new()?;
    epoll.watch(listener.as_raw_fd(), libc::EPOLLIN)?;
    let mut events = libc::EPOLLIN | libc::EPOLLET;
    if canned.is_long {
        events |= libc::EPOLLOUT;
    }
    let mut loops = Loop {
        config,
        canned,
        connections: Vec::new(),
        received: vec![0; RECEIVE_BYTES],
    };
    loop {
        for event in 0..epoll.wait()? {
            let socket = epoll.ready(event);
            if socket != listener.as_raw_fd() {
                loops.serve(socket);
                continue;
            }
            while let Some(socket) = net::accept(&listener) {
                // The first flight of the client has arrived.
                if loops.open(socket)? {
                    epoll.watch(socket, events)?;
                }
            }
        }
    }
}

/// The response to every request.
struct Canned {
    /// The response, repeated if it is short.
    bytes: Vec<u8>,
    /// Length of one response.
    len: usize,
    closes: bool,
    /// Whether it may not fit into the socket's buffer.
    is_long: bool,
    /// Where the bytes behind the head are read from, each time.
    file: Option<(File, usize)>,
}

impl Canned {
    fn of_arguments() -> io::Result<Canned> {
        let what: String = argument(4, USAGE)?;
        Ok(match &*what {
            "hello" => Canned {
                bytes: RESPONSE.repeat(SIDE_BY_SIDE),
                len: RESPONSE.len(),
                closes: false,
                is_long: false,
                file: None,
            },
            "close" => Canned {
                bytes: LAST_RESPONSE.to_vec(),
                len: LAST_RESPONSE.len(),
                closes: true,
                is_long: false,
                file: None,
            },
            "file" => Canned::of_file(&argument(5, USAGE)?)?,
            "read" => Canned::that_reads(&argument(5, USAGE)?)?,
            _ => return Err(io::Error::new(ErrorKind::InvalidInput, USAGE)),
        })
    }

    fn of_file(path: &PathBuf) -> io::Result<Canned> {
        let mut bytes = file_head(&File::open(path)?.metadata()?);
        bytes.extend(fs::read(path)?);
        let len = bytes.len();
        Ok(Canned {
            bytes,
            len,
            closes: false,
            is_long: true,
            file: None,
        })
    }

    fn that_reads(path: &PathBuf) -> io::Result<Canned> {
        let mut canned = Canned::of_file(path)?;
        let file = File::open(path)?;
        let head_bytes = canned.len - file.metadata()?.len() as usize;
        canned.file = Some((file, head_bytes));
        Ok(canned)
    }

    /// The bytes from `at`, at most [`PIECE_BYTES`] and `len`.
    #[inline]
    fn piece<'a>(&'a self, at: usize, len: usize, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let len = len.min(PIECE_BYTES);
        match &self.file {
            Some((file, head_bytes)) if at >= *head_bytes => {
                let read = file.read_at(&mut buffer[..len], (at - head_bytes) as u64)?;
                Ok(&buffer[..read])
            }
            Some((_, head_bytes)) => Ok(&self.bytes[at..*head_bytes]),
            None => Ok(&self.bytes[at..at + len]),
        }
    }
}

/// The connections by descriptor, and what they share.
struct Loop {
    config: Arc<ServerConfig>,
    canned: Canned,
    connections: Vec<Option<Connection>>,
    received: Vec<u8>,
}

impl Loop {
    /// Serves a new connection. Returns whether it stays open.
    fn open(&mut self, socket: i32) -> io::Result<bool> {
        let place = socket as usize;
        if self.connections.len() <= place {
            self.connections.resize_with(place + 1, || None);
        }
        let tls = ServerConnection::new(self.config.clone()).map_err(io::Error::other)?;
        self.connections[place] = Some(Connection {
            tls,
            requests: Counter::default(),
            left: 0,
            at: 0,
        });
        Ok(self.serve(socket))
    }

    #[inline]
    fn serve(&mut self, socket: i32) -> bool {
        let Some(connection) = &mut self.connections[socket as usize] else {
            return false;
        };
        let is_open = connection.serve(socket, &self.canned, &mut self.received);
        if !is_open {
            self.connections[socket as usize] = None;
            net::close(socket);
        }
        is_open
    }
}

struct Connection {
    tls: ServerConnection,
    requests: Counter,
    /// Bytes of the responses that are not encrypted yet.
    left: usize,
    /// Where they go on in the canned bytes.
    at: usize,
}

impl Connection {
    /// Sends and receives until neither is possible. Returns false if the connection must be
    /// closed.
    #[inline]
    fn serve(&mut self, socket: i32, canned: &Canned, buffer: &mut [u8]) -> bool {
        let mut socket = Socket::new(socket);
        loop {
            match self.send(&mut socket, canned, buffer) {
                Ok(()) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if socket.is_drained {
                // New data causes a new event.
                return true;
            }
            match self.tls.read_tls(&mut socket) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            let Some(count) = self.decrypt(buffer) else {
                // The alert, if there is one.
                let _ = self.tls.write_tls(&mut socket);
                return false;
            };
            if canned.closes && count > 0 {
                // A failed connection is closed, too.
                let _ = self.send_last(&mut socket, canned, buffer);
                return false;
            }
            self.left += count * canned.len;
        }
    }

    /// The number of requests in the received records. `None` if they are malformed, or if the
    /// client has ended the connection.
    #[inline]
    fn decrypt(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let state = self.tls.process_new_packets().ok()?;
        let mut plaintext_bytes = state.plaintext_bytes_to_read();
        let mut count = 0;
        while plaintext_bytes > 0 {
            let len = self.tls.reader().read(buffer).ok()?;
            count += self.requests.count(&buffer[..len])?;
            plaintext_bytes -= len;
        }
        (!state.peer_has_closed()).then_some(count)
    }

    /// Encrypts and sends until there is nothing left. Fails with `WouldBlock` if the socket's
    /// buffer is full.
    #[inline]
    fn send(&mut self, socket: &mut Socket, canned: &Canned, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            self.flush(socket, canned)?;
            if self.left == 0 {
                return Ok(());
            }
            self.encrypt(canned, buffer)?;
        }
    }

    #[inline]
    fn encrypt(&mut self, canned: &Canned, buffer: &mut [u8]) -> io::Result<()> {
        let len = self.left.min(canned.bytes.len() - self.at);
        let piece = canned.piece(self.at, len, buffer)?;
        let taken = self.tls.writer().write(piece)?;
        self.left -= taken;
        self.at += taken;
        if self.left == 0 || self.at == canned.bytes.len() {
            self.at = 0;
        }
        Ok(())
    }

    /// Sends one response and `close_notify`.
    fn send_last(
        &mut self,
        socket: &mut Socket,
        canned: &Canned,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        self.left = canned.len;
        self.encrypt(canned, buffer)?;
        self.tls.send_close_notify();
        self.flush(socket, canned)
    }

    /// Sends all records. If short ones do not fit into the socket's buffer, it blocks the whole
    /// loop until they do, as [`net::send`] does.
    #[inline]
    fn flush(&mut self, socket: &mut Socket, canned: &Canned) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !canned.is_long => {
                    net::wait_until_writable(socket.descriptor());
                }
                sent => _ = sent?,
            }
        }
        Ok(())
    }
}
