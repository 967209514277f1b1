//! What becomes of connections when the new process refuses them, closes its end, never replies, or
//! ends.

use super::super::MESSAGE_BYTES_MAX;
use super::*;
use onrush::{Request, Running, Server};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn facts_of_connections_are_lines() {
    for client in [None, Some("192.0.2.1:80"), Some("[2001:db8::1]:65535")] {
        let facts = ConnectionFacts {
            client: client.map(|client| client.parse().unwrap()),
            deadline_ms: u64::MAX,
        };
        let line = to_line(facts);
        assert!(line.len() * BATCH_MAX + CONNECTIONS.len() < MESSAGE_BYTES_MAX);
        assert_eq!(from_line(line.trim_end()), Some(facts));
    }
    for malformed in ["", "1", "x -", "1 localhost", "1 -x", "-1 -"] {
        assert_eq!(from_line(malformed), None, "{malformed}");
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";

/// A server with a client whose connection is idle.
struct Old {
    running: Running,
    client: TcpStream,
}

impl Old {
    fn serve() -> Old {
        let application = |_: Request| async { "old" };
        let server = Server::bind("127.0.0.1:0").workers(1).pinned(false);
        let running = server.start(application).unwrap();
        let client = TcpStream::connect(running.addresses()[0].to_string()).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let mut old = Old { running, client };
        old.client.write_all(REQUEST).unwrap();
        old.responds();
        old
    }

    /// The client gets a response of this server.
    fn responds(&mut self) -> String {
        let mut response = Vec::new();
        while !response.ends_with(b"old") {
            let mut piece = [0; 1024];
            let read = match self.client.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert_ne!(read, 0, "closed after {response:?}");
            response.extend_from_slice(&piece[..read]);
        }
        String::from_utf8(response).unwrap()
    }
}

/// Passes the connection of the client to a process that does `receive` with the message and
/// replies nothing. Returns the server, the error, and what `receive` has returned.
fn pass<T: Send>(
    limit: Duration,
    has_ended: bool,
    receive: impl FnOnce(OwnedFd, Vec<OwnedFd>) -> T + Send,
) -> (Old, Errno, T) {
    let old = Old::serve();
    let passing = old.running.handle().pass_on();
    let batch = vec![passing.next(LONG).expect("it is idle")];
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (one, other) = pair.unwrap();
    let (passed, result) = std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let (message, sockets) = receive_within(&other, LONG).unwrap();
            assert_eq!(facts(&message).map(|facts| facts.len()), Some(1));
            receive(other, sockets)
        });
        let passed = pass_batch(&one, batch, limit, || has_ended);
        (passed, peer.join().unwrap())
    });
    (old, passed.unwrap_err(), result)
}

/// The next request of the client is for the other process alone.
fn belongs_to_other(mut old: Old, sockets: Vec<OwnedFd>) {
    old.client.write_all(REQUEST).unwrap();
    old.running.wait().unwrap(); // It has no connection.
    let mut socket = TcpStream::from(sockets.into_iter().next().unwrap());
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let mut received = vec![0; REQUEST.len()];
    socket.read_exact(&mut received).unwrap();
    assert_eq!(received, REQUEST);
}

#[test]
fn connections_without_a_reply_belong_to_the_new_process() {
    let short = Duration::from_millis(50);
    let (old, error, (_channel, sockets)) = pass(short, false, |channel, sockets| {
        (channel, sockets) // It stays open.
    });
    assert_eq!(error, Errno::AGAIN);
    belongs_to_other(old, sockets);
}

#[test]
fn connections_belong_to_a_process_that_closes_its_end() {
    let (old, error, sockets) = pass(LONG, false, |channel, sockets| {
        drop(channel);
        sockets
    });
    assert_eq!(error, Errno::PIPE);
    belongs_to_other(old, sockets);
}

#[test]
fn connections_of_a_process_that_has_ended_return() {
    let (mut old, error, ()) = pass(LONG, true, |channel, sockets| drop((sockets, channel)));
    assert_eq!(error, Errno::PIPE);
    old.client.write_all(REQUEST).unwrap();
    assert!(old.responds().contains("onnection: close"));
    old.running.wait().unwrap();
}

/// What the new process cannot use is refused in a reply, so the old one keeps the connections.
#[test]
fn a_message_that_cannot_be_used_is_refused() {
    let old = Old::serve();
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (one, other) = pair.unwrap();
    let handle = old.running.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| take_over(&other, &handle));
        for message in [&b"connections\n1 -\n"[..], b"connections\nx\n", b"other"] {
            send(&one, message, NO_SOCKETS).unwrap();
            assert_eq!(receive_within(&one, LONG).unwrap().0, SERVED);
        }
        drop(one);
    });
    old.running.handle().shutdown_now();
    old.running.wait().unwrap();
}
