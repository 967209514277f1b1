//! Ports for programs that cannot choose one, or cannot tell which one they have chosen.

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// A TCP port of 127.0.0.1 that the kernel chooses for no other socket as long as this exists:
/// neither for one that binds port 0 nor for an outgoing connection. Connections to it are refused
/// until a program listens.
///
/// A socket with `SO_REUSEADDR` is bound to the port and does not listen. That lets others with the
/// same option bind the port if they name it (socket(7)), and servers do set it.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl ReservedPort {
    /// Reserves a port that is free.
    ///
    /// # Errors
    /// Those of `socket`, `setsockopt`, `bind` and `getsockname`; `EADDRINUSE` if no port is free.
    pub fn new() -> io::Result<ReservedPort> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = getsockname(&socket)?.try_into()?;
        Ok(ReservedPort {
            _socket: socket,
            address,
        })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.address.port()
    }

    /// Its address, on loopback.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::ReservedPort;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    /// In a process of its own: what another test of this process starts has a copy of each
    /// listener from fork(2) to execve(2), and so long the port is not free.
    #[test]
    fn only_a_program_that_names_the_port_listens_there() {
        let name = "only_a_program_that_names_the_port_listens_there";
        if crate::child::elsewhere(module_path!(), name) {
            return;
        }
        let port = ReservedPort::new().expect("a port");
        let refused = TcpStream::connect(port.address()).expect_err("no program listens");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // A server starts, ends, and starts again.
        for _ in 0..2 {
            let server = TcpListener::bind(port.address()).expect("the port is free");
            TcpStream::connect(port.address()).expect("it listens");
            let second = TcpListener::bind(port.address()).expect_err("the server has it");
            assert_eq!(second.kind(), ErrorKind::AddrInUse);
            drop(server);
        }
    }

    /// In a network of its own with two ports, where the other one is all that there is to choose.
    #[test]
    fn the_kernel_chooses_the_port_for_no_other_socket() {
        const CHILD: &str = "ONRUSH_TEST_TWO_PORTS";
        let name = "the_kernel_chooses_the_port_for_no_other_socket";
        if std::env::var_os(CHILD).is_some() {
            let reserved = ReservedPort::new().expect("one of two ports");
            let other = TcpListener::bind("127.0.0.1:0").expect("the other one");
            let address = other.local_addr().expect("bound");
            assert_ne!(address, reserved.address());
            let third = TcpListener::bind("127.0.0.1:0").expect_err("none is left");
            assert_eq!(third.kind(), ErrorKind::AddrInUse);
            // A connection would get a port to which nothing is bound.
            let connection = TcpStream::connect(address).expect_err("none is left");
            assert_eq!(connection.kind(), ErrorKind::AddrNotAvailable);
            return;
        }
        let test = crate::child::only(module_path!(), name);
        let script = "ip link set lo up && \
            echo 50000 50001 > /proc/sys/net/ipv4/ip_local_port_range || exit 99; exec \"$@\"";
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["-rn", "sh", "-c", script, "sh"]);
        unshare.arg(test.get_program()).args(test.get_args());
        match unshare.env(CHILD, "1").output() {
            Ok(output) if matches!(output.status.code(), Some(0 | 101)) => {
                let text = crate::child::shown(&output);
                assert!(text.contains("1 passed"), "{text}");
            }
            other => println!("skipped: no network can be made: {other:?}"),
        }
    }
}
