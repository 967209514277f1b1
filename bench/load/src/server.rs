//! The connections to a server, and requests on them, without blocking. Must not know when
//! requests are due.

use crate::response::{Read as Reading, Reader, Response};
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, Event, EventData, EventFlags},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    time::Duration,
};

/// Answers taken from the kernel at once: few, so that a request that is due meanwhile waits for
/// the reading of few.
const EVENTS: usize = 64;

const RECEIVE_BYTES: usize = 64 * 1024;

/// Longest wait for a connection to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked, and what must be answered.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: Vec<u8>,
    /// Bytes of the content of the answer.
    pub(crate) len: u64,
}

impl Ask {
    /// `GET path`, answered 200 with `len` bytes.
    pub(crate) fn get(path: &str, len: u64) -> Ask {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
        Ask { request, len }
    }
}

/// What watches the connections of all servers.
pub(crate) struct Watch {
    epoll: OwnedFd,
    ready: Vec<Event>,
}

impl Watch {
    /// # Errors
    /// As `epoll_create1` fails.
    pub(crate) fn new() -> io::Result<Watch> {
        Ok(Watch {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            ready: Vec::with_capacity(EVENTS),
        })
    }

    /// Waits until something is ready, at most `patience`: gives how many events.
    ///
    /// # Errors
    /// As `epoll_pwait2` fails.
    pub(crate) fn poll(&mut self, patience: Duration) -> io::Result<usize> {
        let patience = Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        self.ready.clear();
        let buffer = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.epoll, buffer, Some(&patience)) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Of one event: which server's connection it is of, and which of them.
    pub(crate) fn event(&self, event: usize) -> (usize, usize) {
        let data = self.ready[event].data.u64();
        ((data >> 32) as usize, data as u32 as usize)
    }
}

/// One server, with all its connections.
pub(crate) struct Server {
    address: SocketAddr,
    /// By which its events are told from those of others.
    number: usize,
    ask: Ask,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    reader: Reader,
    /// A request was sent whose answer has not ended.
    is_busy: bool,
    has_failed: bool,
}

impl Server {
    /// Makes all connections, to be watched by `watch` as those of server `number`.
    ///
    /// # Errors
    /// As connecting fails, or epoll.
    pub(crate) fn connect(
        watch: &Watch,
        number: usize,
        address: SocketAddr,
        count: usize,
        ask: Ask,
    ) -> io::Result<Server> {
        let mut server = Server {
            address,
            number,
            ask,
            connections: Vec::with_capacity(count),
            buffer: vec![0; RECEIVE_BYTES],
        };
        for place in 0..count {
            let connection = server.connection(watch, place)?;
            server.connections.push(connection);
        }
        Ok(server)
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether an answer is awaited.
    pub(crate) fn is_busy(&self) -> bool {
        self.connections.iter().any(|connection| connection.is_busy)
    }

    fn connection(&self, watch: &Watch, place: usize) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let data = EventData::new_u64((self.number as u64) << 32 | place as u64);
        epoll::add(&watch.epoll, &stream, data, EventFlags::IN)?;
        Ok(Connection {
            stream,
            reader: Reader::default(),
            is_busy: false,
            has_failed: false,
        })
    }

    /// Replaces connections that failed, or that still wait for an answer. Closing one ends its
    /// registration.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub(crate) fn renew(&mut self, watch: &Watch) -> io::Result<()> {
        for place in 0..self.connections.len() {
            let connection = &self.connections[place];
            if connection.is_busy || connection.has_failed {
                self.connections[place] = self.connection(watch, place)?;
            }
        }
        Ok(())
    }

    /// Sends the request on a connection that is idle. Gives false when that failed; it fails from
    /// then on, until it is renewed.
    pub(crate) fn send(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        if connection.has_failed {
            return false;
        }
        // A request is far smaller than a socket's buffer, and nothing else is in that.
        let sent = connection.stream.write(&self.ask.request);
        connection.is_busy = sent.is_ok_and(|len| len == self.ask.request.len());
        connection.has_failed = !connection.is_busy;
        connection.is_busy
    }

    /// Receives on a connection that is ready. When its request is over: whether the answer was the
    /// right one. `None` when it has not ended, or nothing was asked.
    pub(crate) fn receive(&mut self, watch: &Watch, place: usize) -> Option<bool> {
        let connection = &mut self.connections[place];
        let reading = match connection.stream.read(&mut self.buffer) {
            Ok(0) => Reading::Broken,
            Ok(len) => connection.reader.read(&self.buffer[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Reading::More,
            Err(_) => Reading::Broken,
        };
        let was_busy = connection.is_busy;
        let is_right = match reading {
            Reading::More => return None,
            Reading::Whole(Response { status, len }) => status == 200 && len == self.ask.len,
            Reading::Broken => {
                connection.has_failed = true;
                // It stays readable for ever; its registration is of no more use.
                let _ = epoll::delete(&watch.epoll, &connection.stream);
                false
            }
        };
        connection.is_busy = false;
        was_busy.then_some(is_right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// A server that answers each connection with `responses`, one for each receive, and closes it.
    fn serve(responses: &'static [&'static [u8]], connections: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        thread::spawn(move || {
            for stream in listener.incoming().take(connections) {
                let mut stream = stream.expect("a connection");
                for response in responses {
                    let len = stream.read(&mut [0; 1024]).expect("a request");
                    assert!(len > 0);
                    stream.write_all(response).expect("an answer");
                }
            }
        });
        address
    }

    fn next(watch: &mut Watch, server: &mut Server) -> bool {
        loop {
            for event in 0..watch.poll(PATIENCE).expect("polled") {
                assert_eq!(watch.event(event), (1, 0));
                if let Some(is_right) = server.receive(watch, 0) {
                    return is_right;
                }
            }
        }
    }

    #[test]
    fn right_wrong_and_closed() {
        const RIGHT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        const SHORT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nh";
        const BUSY: &[u8] = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno";
        const CUT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh";
        let address = serve(&[RIGHT, SHORT, BUSY, CUT], 2);
        let mut watch = Watch::new().expect("epoll");
        let ask = Ask::get("/", 2);
        let mut server = Server::connect(&watch, 1, address, 1, ask).expect("connected");
        for is_right in [true, false, false, false] {
            assert!(server.send(0));
            assert_eq!(next(&mut watch, &mut server), is_right);
        }
        assert!(!server.send(0));
        server.renew(&watch).expect("connected again");
        assert!(server.send(0));
        assert!(next(&mut watch, &mut server));
    }
}
