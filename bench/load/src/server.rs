//! The connections to a server, and non-blocking requests on them.

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

/// Events taken from the kernel at once. The number is small, because a request that becomes due
/// waits until all of them are read.
const EVENTS: usize = 64;

const RECEIVE_BYTES: usize = 64 * 1024;

/// Timeout of a connection attempt.
const PATIENCE: Duration = Duration::from_secs(10);

/// The request, and the expected response.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: Vec<u8>,
    /// Length of the response's content in bytes.
    pub(crate) len: u64,
}

impl Ask {
    /// A `GET path` that expects 200 and `len` bytes.
    pub(crate) fn get(path: &str, len: u64) -> Ask {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
        Ask { request, len }
    }
}

/// The epoll instance for the connections of all servers.
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

    /// Waits for events, at most for `patience`. Returns the number of events.
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

    /// The server's number and the connection's index of one event.
    pub(crate) fn event(&self, event: usize) -> (usize, usize) {
        let data = self.ready[event].data.u64();
        ((data >> 32) as usize, data as u32 as usize)
    }
}

/// One server, with all its connections.
pub(crate) struct Server {
    address: SocketAddr,
    /// Identifies the events of this server.
    number: usize,
    ask: Ask,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    reader: Reader,
    /// A request was sent and its response is not complete.
    is_busy: bool,
    has_failed: bool,
}

impl Server {
    /// Opens all connections and registers them with `watch` for server `number`.
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

    /// Whether any response is outstanding.
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

    /// Replaces connections that failed or still wait for a response. Closing a connection removes
    /// it from the epoll instance.
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

    /// Sends the request on an idle connection. Returns false on failure; further calls then fail
    /// until the connection is renewed.
    pub(crate) fn send(&mut self, place: usize) -> bool {
        let connection = &mut self.connections[place];
        if connection.has_failed {
            return false;
        }
        // The request is far smaller than the socket's buffer, which is empty.
        let sent = connection.stream.write(&self.ask.request);
        connection.is_busy = sent.is_ok_and(|len| len == self.ask.request.len());
        connection.has_failed = !connection.is_busy;
        connection.is_busy
    }

    /// Receives on a ready connection. If its request ends, returns whether the response was as
    /// expected. `None` if the response is not complete, or no request was outstanding.
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
                // The closed socket would stay readable and cause events forever.
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

    /// A server that sends `responses` on each connection, one for each receive, and closes it.
    fn serve(responses: &'static [&'static [u8]], connections: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        thread::spawn(move || {
            for stream in listener.incoming().take(connections) {
                let mut stream = stream.expect("a connection");
                for response in responses {
                    let len = stream.read(&mut [0; 1024]).expect("a request");
                    assert!(len > 0);
                    stream.write_all(response).expect("sent");
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
