//! Closes a listening TCP port without resetting clients that are connected already.
//!
//! A listener's queue holds only a part of the connected clients. For other clients the handshake
//! is complete, but not yet for the kernel, because the last packet of the handshake is on its way
//! or because the kernel waits for data (`TCP_DEFER_ACCEPT`, tcp(7)). Closing the listener resets
//! them, together with any request that they have sent. So deferral is turned off and new
//! handshakes are ignored: a filter drops packets that begin one, and their clients retry after a
//! second, when they are refused or connect to another process. The listener accepts until no
//! handshake is in progress.
//!
//! Does not depend on how connections are accepted.

use crate::driver::ListenSocket;
use crate::sys;
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The time of the first check. A handshake that the filter did not prevent has begun by then.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// The longest pause between two checks, each of which searches the kernel's connection table.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A handshake ends within a second, with the first packet that the kernel retransmits.
const GRACE: Duration = Duration::from_millis(1_500);

/// Listening sockets of one port that are about to be closed. See the module's documentation.
#[derive(Debug)]
pub struct Closing {
    address: SocketAddr,
    begun: Instant,
    pause: Duration,
    next_look: Instant,
}

impl Closing {
    /// Prepares `sockets`, which listen on one port, for closing. The caller must continue to
    /// accept from them until [`Closing::poll_handshakes`] returns `None`. The result is `None`
    /// when none of them is a TCP socket: they may be closed as soon as their queues are empty.
    ///
    /// The preparation cannot be undone: do not pass sockets that other processes continue to
    /// listen on.
    pub fn start<'s>(sockets: impl IntoIterator<Item = &'s ListenSocket>) -> Option<Closing> {
        let mut address = None;
        for socket in sockets {
            let ListenSocket::Os(socket) = socket else {
                continue;
            };
            let bound = rustix::net::getsockname(socket);
            let Some(bound) = bound.ok().and_then(|name| SocketAddr::try_from(name).ok()) else {
                continue;
            };
            sys::clear_defer_accept(socket.as_fd());
            sys::ignore_handshakes(socket.as_fd());
            address = Some(bound);
        }
        let begun = Instant::now();
        Some(Closing {
            address: address?,
            begun,
            pause: FIRST_LOOK,
            next_look: begun + FIRST_LOOK,
        })
    }

    /// `None` when no handshake is in progress, or the time limit has passed: no connections will
    /// be added to the queues any more. Otherwise the time to wait before the next call; earlier
    /// calls cost little.
    pub fn poll_handshakes(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if now >= self.next_look {
            let late = now - self.begun >= GRACE;
            if late || are_handshakes_under_way(self.address) == Some(false) {
                return None;
            }
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            self.next_look = now + self.pause;
        }
        Some(self.next_look - now)
    }
}

const HEADER_BYTES: usize = 16;
const MESSAGE_BYTES: usize = HEADER_BYTES + 56;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
/// `TCPF_SYN_RECV`.
const HANDSHAKES: u32 = 1 << 3;

/// Whether the kernel waits for the end of a handshake at the port of `address` (sock_diag(7)).
/// `None` when the query fails.
fn are_handshakes_under_way(address: SocketAddr) -> Option<bool> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    // `struct nlmsghdr`, then `struct inet_diag_req_v2`, whose numbers are in native order except
    // for ports.
    let mut message = [0; MESSAGE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(MESSAGE_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST_DUMP.to_ne_bytes());
    put(
        HEADER_BYTES,
        &[family.as_raw() as u8, libc::IPPROTO_TCP as u8],
    );
    put(HEADER_BYTES + 4, &HANDSHAKES.to_ne_bytes());
    put(HEADER_BYTES + 8, &address.port().to_be_bytes());
    put(HEADER_BYTES + 48, &[0xff; 8]); // `INET_DIAG_NOCOOKIE`

    let kind = SocketType::DGRAM;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, protocol).ok()?;
    rustix::net::send(&socket, &message, SendFlags::empty()).ok()?;
    // The first message decides: it is a connection, or the end of the list.
    let mut response = [0; 8192];
    let (bytes, _) = rustix::net::recv(&socket, &mut response, RecvFlags::empty()).ok()?;
    match u16::from_ne_bytes(*response[..bytes].get(4..6)?.first_chunk()?) {
        SOCK_DIAG_BY_FAMILY => Some(true),
        NLMSG_DONE => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Address, ListenMode, ListenOptions, listen};
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    /// A listener that defers accepting, with a client whose request has not been sent.
    fn silent_client() -> (OwnedFd, SocketAddr, TcpStream) {
        let options = ListenOptions {
            defer_accept: true,
            ..ListenOptions::default()
        };
        let any = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let (mut sockets, address) = listen(&any, ListenMode::Shared, 1, &options).unwrap();
        let (Some(ListenSocket::Os(socket)), Address::Tcp(address)) = (sockets.pop(), address)
        else {
            panic!("one TCP socket");
        };
        let client = TcpStream::connect(address).unwrap();
        (socket, address, client)
    }

    #[test]
    fn a_client_that_accepting_was_deferred_for_is_accepted_before_the_end() {
        let (socket, address, mut client) = silent_client();
        if are_handshakes_under_way(address).is_none() {
            println!("skipped: sock_diag is refused");
            return;
        }
        assert_eq!(are_handshakes_under_way(address), Some(true));
        let sockets = [ListenSocket::Os(socket.try_clone().unwrap())];
        let mut closing = Closing::start(&sockets).expect("it is TCP");
        assert!(closing.poll_handshakes().is_some());
        // The client's request ends its handshake.
        client.write_all(b"x").unwrap();
        while let Some(pause) = closing.poll_handshakes() {
            std::thread::sleep(pause);
        }
        let (mut accepted, _) = TcpListener::from(socket).accept().expect("it is queued");
        accepted.set_nonblocking(false).unwrap();
        let mut byte = [0];
        accepted.read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
    }

    #[test]
    fn a_silent_client_holds_the_end_up_for_a_bounded_time() {
        let (socket, _, _client) = silent_client();
        let sockets = [ListenSocket::Os(socket.try_clone().unwrap())];
        let mut closing = Closing::start(&sockets).expect("it is TCP");
        while let Some(pause) = closing.poll_handshakes() {
            std::thread::sleep(pause);
        }
        // The kernel gave up waiting for data, because deferral was turned off.
        assert!(TcpListener::from(socket).accept().is_ok());
    }

    #[test]
    fn no_new_handshake_while_closing() {
        let (socket, address, _client) = silent_client();
        let closing = Closing::start(&[ListenSocket::Os(socket)]);
        assert!(closing.is_some());
        let connected = TcpStream::connect_timeout(&address, Duration::from_millis(200));
        let kind = connected.expect_err("it is ignored").kind();
        assert!(
            matches!(kind, ErrorKind::TimedOut | ErrorKind::ConnectionRefused),
            "{kind:?}"
        );
    }
}
