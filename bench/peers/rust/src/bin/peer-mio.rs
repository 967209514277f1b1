//! `peer-mio PORT`: an event loop over mio with httparse. One thread.

#![forbid(unsafe_code)]

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use peers::raw::{Dated, respond_all};
use slab::Slab;
use std::io::{self, ErrorKind, Read, Write};

const LISTENER: Token = Token(usize::MAX);
/// Size of the receive buffer. A body of 64 KiB and its head fit.
const RECEIVE_BYTES: usize = 128 * 1024;

struct Connection {
    stream: TcpStream,
    /// An incomplete request.
    inbox: Vec<u8>,
    /// The length of the incomplete request at which it is parsed again.
    needed: usize,
    /// Responses that did not fit into the socket. The connection receives after they are sent.
    outbox: Vec<u8>,
    closing: bool,
}

/// What follows for a connection.
#[derive(PartialEq)]
enum Next {
    Open,
    Close,
}

/// Memory that all connections share.
struct Shared {
    dated: Dated,
    received: Vec<u8>,
    out: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            inbox: Vec::new(),
            needed: 0,
            outbox: Vec::new(),
            closing: false,
        }
    }

    /// Receives and responds until no data is available. `ended`: the client has ended its
    /// direction, so there is no further event.
    fn receive(&mut self, shared: &mut Shared, ended: bool) -> io::Result<Next> {
        while self.outbox.is_empty() {
            let count = match self.stream.read(&mut shared.received) {
                Ok(0) => return Ok(Next::Close),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.respond(count, shared)?;
            if self.closing && self.outbox.is_empty() {
                return Ok(Next::Close);
            }
            if count < shared.received.len() && !ended {
                break; // The socket is empty. New data causes an event.
            }
        }
        Ok(Next::Open)
    }

    /// Responds to the requests that are complete with the last `count` bytes.
    fn respond(&mut self, count: usize, shared: &mut Shared) -> io::Result<()> {
        let received = &shared.received[..count];
        shared.out.clear();
        if self.inbox.is_empty() {
            let progress = respond_all(received, &shared.dated, &mut shared.out);
            self.inbox.extend_from_slice(&received[progress.consumed..]);
            (self.needed, self.closing) = (progress.needed, progress.close);
        } else {
            self.inbox.extend_from_slice(received);
            if self.inbox.len() < self.needed {
                return Ok(());
            }
            let progress = respond_all(&self.inbox, &shared.dated, &mut shared.out);
            self.inbox.drain(..progress.consumed);
            (self.needed, self.closing) = (progress.needed, progress.close);
        }
        if !shared.out.is_empty() {
            let sent = self.send(&shared.out)?;
            self.outbox.extend_from_slice(&shared.out[sent..]);
        }
        Ok(())
    }

    /// Returns the number of bytes that the kernel accepted.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Sends the waiting responses.
    fn flush(&mut self) -> io::Result<Next> {
        let bytes = std::mem::take(&mut self.outbox);
        let sent = self.send(&bytes)?;
        if sent < bytes.len() {
            self.outbox = bytes;
            self.outbox.drain(..sent);
        } else if self.closing {
            return Ok(Next::Close);
        }
        Ok(Next::Open)
    }

    fn on_event(&mut self, event: &mio::event::Event, shared: &mut Shared) -> io::Result<Next> {
        let waited = !self.outbox.is_empty();
        if waited && self.flush()? == Next::Close {
            return Ok(Next::Close);
        }
        // Data may have arrived while responses waited. It causes no further event.
        if event.is_readable() || waited {
            return self.receive(shared, event.is_read_closed());
        }
        Ok(Next::Open)
    }
}

fn main() -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::from_std(peers::listen(peers::address())?);
    let registry = poll.registry().try_clone()?;
    registry.register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections = Slab::new();
    let mut events = Events::with_capacity(1024);
    let mut shared = Shared {
        dated: Dated::new(),
        received: vec![0; RECEIVE_BYTES],
        out: Vec::with_capacity(RECEIVE_BYTES),
    };
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        shared.dated.refresh();
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &registry, &mut connections)?;
                continue;
            }
            let key = event.token().0;
            // The client causes errors.
            if !matches!(
                connections[key].on_event(event, &mut shared),
                Ok(Next::Open)
            ) {
                connections.remove(key);
            }
        }
    }
}

/// Accepts all waiting connections. Each is registered once for both directions: edge-triggered
/// events report only changes.
fn accept(
    listener: &TcpListener,
    registry: &mio::Registry,
    connections: &mut Slab<Connection>,
) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let entry = connections.vacant_entry();
                let both = Interest::READABLE | Interest::WRITABLE;
                registry.register(&mut stream, Token(entry.key()), both)?;
                entry.insert(Connection::new(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                eprintln!("accept: {error}");
                return Ok(());
            }
        }
    }
}
