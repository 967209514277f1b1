//! Load by `POST /echo` over HTTP/2 with trailers, which h2load does not send. It runs as a
//! separate process on the clients' core, in one thread.

use crate::{
    http2::{
        self, ACK, ACKNOWLEDGED, BEGIN, DATA, END_HEADERS, END_STREAM, FRAME_HEAD_BYTES, Frame,
        GOAWAY, HEADERS, POST_ECHO, RST_STREAM, SETTINGS, TRAILERS, WINDOW_UPDATE, push,
    },
    probe::Response,
    wrk::{Report, Running},
};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// The hidden first argument with which this program runs as the load.
pub(crate) const SUBCOMMAND: &str = "--trailers";

/// Content of each request.
pub(crate) const BODY_BYTES: usize = 1024;

/// The window of a connection before the first WINDOW_UPDATE.
const WINDOW: i64 = 65_535;

/// Bytes that a server may send on a connection. It is refilled when half of it is used.
const RECEIVE_WINDOW: u32 = 1 << 30;

/// Longest wait for a response of the probe, and for any response of the load.
const PATIENCE: Duration = Duration::from_secs(10);

/// The load on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) streams: u32,
}

impl Shape {
    /// Sends one of the requests.
    pub(crate) fn probe(address: SocketAddr) -> Outcome<Response> {
        let failed = |error: io::Error| error.to_string();
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let body = http2::begin(&mut stream, &request(1))?;
        Ok(Response {
            status: 200,
            wire_bytes: FRAME_HEAD_BYTES + body.len(),
            body,
            closes: false,
        })
    }

    /// Starts the load on the server at `address` for `seconds`.
    pub(crate) fn start(&self, address: SocketAddr, seconds: u64) -> Outcome<Running> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args([SUBCOMMAND, &address.to_string(), &seconds.to_string()]);
        command.args([self.connections.to_string(), self.streams.to_string()]);
        Running::start(&command)
    }
}

/// `POST /echo` on a stream, with content and trailers.
fn request(stream: u32) -> Vec<u8> {
    let mut frames = Vec::with_capacity(BODY_BYTES + 64);
    push(&mut frames, (HEADERS, END_HEADERS), stream, POST_ECHO);
    push(&mut frames, (DATA, 0), stream, &[b'x'; BODY_BYTES]);
    let last = (HEADERS, END_STREAM | END_HEADERS);
    push(&mut frames, last, stream, TRAILERS);
    frames
}

/// Runs the load. The arguments are `ADDRESS SECONDS CONNECTIONS STREAMS`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let [address, seconds, connections, streams] = arguments else {
        return Err(format!("{SUBCOMMAND} is internal"));
    };
    let wrong = |what: &str| format!("{SUBCOMMAND}: not a number: {what}");
    let number = |text: &String| text.parse::<u32>().map_err(|_| wrong(text));
    let address: SocketAddr = address.parse().map_err(|_| wrong(address))?;
    let shape = Shape {
        connections: number(connections)?,
        streams: number(streams)?,
    };
    let time = Duration::from_secs(number(seconds)?.into());
    let report = load(shape, address, time).map_err(|error| error.to_string())?;
    println!("{}", report.line());
    Ok(())
}

fn load(shape: Shape, address: SocketAddr, time: Duration) -> io::Result<Report> {
    let begun = Instant::now();
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut all = Vec::new();
    for number in 0..shape.connections {
        let connection = Connection::open(address, shape.streams)?;
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        let number = EventData::new_u64(number.into());
        epoll::add(&epoll, &connection.socket, number, events)?;
        all.push(connection);
    }
    let mut ready = Vec::with_capacity(all.len());
    let mut piece = vec![0; 256 * 1024];
    while let Some(left) = time.checked_sub(begun.elapsed()) {
        let left = left.try_into().map_err(io::Error::other)?;
        epoll::wait(&epoll, spare_capacity(&mut ready), Some(&left))?;
        for event in ready.drain(..) {
            let connection = &mut all[event.data.u64() as usize];
            if connection.is_open && connection.turn(&mut piece).is_err() {
                connection.is_open = false;
                connection.seen.broken += 1;
            }
        }
        if all.iter().all(|connection| !connection.is_open) {
            break;
        }
    }
    let us = begun.elapsed().as_secs_f64() * 1e6;
    let sum = |of: fn(&Seen) -> u64| all.iter().map(|one| of(&one.seen)).sum::<u64>() as f64;
    Ok(Report {
        requests: sum(|seen| seen.complete),
        bytes: sum(|seen| seen.bytes),
        us,
        read: sum(|seen| seen.broken),
        status: sum(|seen| seen.refused),
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        ..Report::default()
    })
}

/// What a connection has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    complete: u64,
    /// As [`Shape::probe`] counts them.
    bytes: u64,
    /// Responses with another status than 200.
    refused: u64,
    /// Streams that were reset, and the connection if it has failed.
    broken: u64,
}

struct Connection {
    socket: TcpStream,
    is_open: bool,
    /// Requests that can be begun.
    free: u32,
    next_stream: u32,
    /// Bytes of content that the server permits.
    window: i64,
    /// Bytes that the server has sent since its window was refilled.
    used: u32,
    out: Vec<u8>,
    /// The beginning of a frame.
    received: Vec<u8>,
    seen: Seen,
}

impl Connection {
    fn open(address: SocketAddr, streams: u32) -> io::Result<Connection> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Connection {
            socket,
            is_open: true,
            free: streams,
            next_stream: 1,
            window: WINDOW,
            used: RECEIVE_WINDOW,
            out: BEGIN.to_vec(),
            received: Vec::new(),
            seen: Seen::default(),
        })
    }

    /// Receives all that has arrived, and sends what it permits.
    fn turn(&mut self, piece: &mut [u8]) -> io::Result<()> {
        loop {
            match self.socket.read(piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.receive(&piece[..length])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.ask();
        self.send()
    }

    fn receive(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.received);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        while let Some((frame, length)) = Frame::first(rest)? {
            self.count(&frame)?;
            rest = &rest[length..];
        }
        self.received.extend_from_slice(rest);
        Ok(())
    }

    fn count(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let ends = matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0;
        match frame.kind {
            DATA => {
                self.seen.bytes += frame.payload.len() as u64;
                self.used += frame.payload.len() as u32;
            }
            HEADERS => {
                self.seen.bytes += FRAME_HEAD_BYTES as u64;
                self.seen.refused += u64::from(!http2::is_200(frame.payload));
            }
            RST_STREAM => {
                self.seen.broken += 1;
                self.free += 1;
                return Ok(());
            }
            GOAWAY => return Err(io::Error::other("GOAWAY")),
            SETTINGS if frame.flags & ACK == 0 => self.out.extend_from_slice(ACKNOWLEDGED),
            WINDOW_UPDATE if frame.stream == 0 => self.window += i64::from(frame.increment()),
            _ => {}
        }
        self.seen.complete += u64::from(ends);
        self.free += u32::from(ends);
        Ok(())
    }

    /// Adds requests to the output, as many as streams and the window permit.
    fn ask(&mut self) {
        if self.used >= RECEIVE_WINDOW / 2 {
            let update = (self.used.min(RECEIVE_WINDOW)).to_be_bytes();
            push(&mut self.out, (WINDOW_UPDATE, 0), 0, &update);
            self.used = 0;
        }
        while self.free > 0 && self.window >= BODY_BYTES as i64 {
            self.out.extend_from_slice(&request(self.next_stream));
            self.next_stream += 2;
            self.free -= 1;
            self.window -= BODY_BYTES as i64;
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.socket.write(&self.out[sent..]) {
                Ok(length) => sent += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// Responds to what arrives on one connection, with a head and 2 bytes to each whole request.
    /// Sends nothing after `responses`, and returns the number of requests.
    fn server(responses: usize) -> (SocketAddr, thread::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut begin = vec![0; BEGIN.len()];
            stream.read_exact(&mut begin).expect("the begin");
            assert_eq!(begin, BEGIN);
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").expect("writes");
            stream.write_all(ACKNOWLEDGED).expect("writes");
            let (mut received, mut piece, mut ended) = (Vec::new(), vec![0; 4096], 0);
            while let Ok(length @ 1..) = stream.read(&mut piece) {
                received.extend_from_slice(&piece[..length]);
                let mut done = 0;
                while let Some((frame, length)) = Frame::first(&received[done..]).expect("short") {
                    done += length;
                    if frame.flags & END_STREAM == 0 || frame.kind != HEADERS {
                        continue;
                    }
                    assert_eq!(frame.payload, TRAILERS);
                    ended += 1;
                    if ended > responses {
                        let end = stream.shutdown(std::net::Shutdown::Write);
                        end.expect("sends its end");
                        continue;
                    }
                    let mut out = Vec::new();
                    push(&mut out, (HEADERS, END_HEADERS), frame.stream, b"\x88");
                    push(&mut out, (DATA, END_STREAM), frame.stream, b"hi");
                    push(&mut out, (WINDOW_UPDATE, 0), 0, &1024_u32.to_be_bytes());
                    stream.write_all(&out).expect("writes");
                }
                received.drain(..done);
            }
            ended
        });
        (address, server)
    }

    #[test]
    fn complete_responses_are_counted_and_requests_follow_them() {
        let (address, server) = server(200);
        let shape = Shape {
            connections: 1,
            streams: 3,
        };
        // It ends with its only connection.
        let report = load(shape, address, 6 * PATIENCE).expect("runs");
        assert_eq!((report.requests, report.bytes), (200.0, 200.0 * 11.0));
        assert_eq!((report.read, report.status), (1.0, 0.0));
        assert!(server.join().expect("ends") > 200);
    }

    #[test]
    fn the_probe_has_the_content() {
        let (address, server) = server(1);
        let response = Shape::probe(address).expect("a response");
        assert_eq!((response.wire_bytes, response.body), (11, b"hi".to_vec()));
        assert_eq!(server.join().expect("ends"), 1);
    }

    #[test]
    fn a_lost_connection_is_an_error_of_the_load() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || drop(listener.accept()));
        let shape = Shape {
            connections: 1,
            streams: 1,
        };
        let report = load(shape, address, PATIENCE).expect("runs");
        assert_eq!((report.requests, report.read), (0.0, 1.0));
        assert!(main(&[]).is_err() && main(&["x".to_owned()]).is_err());
    }
}
