//! `peer-mio PORT`: a loop over mio, written by hand, with httparse. One thread.

#![forbid(unsafe_code)]

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use peers::raw::{Dated, respond_all};
use slab::Slab;
use std::io::{self, ErrorKind, Read, Write};

const LISTENER: Token = Token(usize::MAX);
/// Received at once at most: a body of 64 KiB and its head fit.
const RECEIVE_BYTES: usize = 128 * 1024;

struct Connection {
    stream: TcpStream,
    /// The beginning of a request whose rest has not come.
    inbox: Vec<u8>,
    /// Bytes of that request that are worth looking at it again.
    needed: usize,
    /// Answers that did not fit into the kernel. Nothing is received before they have left.
    outbox: Vec<u8>,
    closing: bool,
}

/// Whether a connection goes on.
#[derive(PartialEq)]
enum Fate {
    Kept,
    Over,
}

/// What all connections share, because one at a time is worked on.
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

    /// Receives and answers until nothing is there. `ended`: the peer has said that it sends no
    /// more, so there will be no other event.
    fn receive(&mut self, shared: &mut Shared, ended: bool) -> io::Result<Fate> {
        while self.outbox.is_empty() {
            let count = match self.stream.read(&mut shared.received) {
                Ok(0) => return Ok(Fate::Over),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.respond(count, shared)?;
            if self.closing && self.outbox.is_empty() {
                return Ok(Fate::Over);
            }
            if count < shared.received.len() && !ended {
                break; // The socket is empty; what comes makes an event.
            }
        }
        Ok(Fate::Kept)
    }

    /// Answers what is complete with the `count` bytes that have just been received.
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

    /// Gives how many bytes the kernel took.
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

    /// Sends what had to wait.
    fn flush(&mut self) -> io::Result<Fate> {
        let bytes = std::mem::take(&mut self.outbox);
        let sent = self.send(&bytes)?;
        if sent < bytes.len() {
            self.outbox = bytes;
            self.outbox.drain(..sent);
        } else if self.closing {
            return Ok(Fate::Over);
        }
        Ok(Fate::Kept)
    }

    fn turn(&mut self, event: &mio::event::Event, shared: &mut Shared) -> io::Result<Fate> {
        let waited = !self.outbox.is_empty();
        if waited && self.flush()? == Fate::Over {
            return Ok(Fate::Over);
        }
        // Its bytes may have come while the answers waited, and their event is gone.
        if event.is_readable() || waited {
            return self.receive(shared, event.is_read_closed());
        }
        Ok(Fate::Kept)
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
            // An error is the peer's end.
            if !matches!(connections[key].turn(event, &mut shared), Ok(Fate::Kept)) {
                connections.remove(key);
            }
        }
    }
}

/// Accepts all that wait. They are asked for both directions once: with edges, a direction in which
/// nothing happens makes no event.
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
