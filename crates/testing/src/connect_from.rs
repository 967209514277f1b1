//! Connections of clients with other addresses.

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

/// A connection to `server` from the address `own` of this machine.
///
/// # Panics
/// If the address is not one of this machine, or the server does not listen.
pub fn connect_from(own: Ipv4Addr, server: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((own, 0))).expect("an address of this machine");
    connect(&socket, &server).expect("the server listens");
    socket.into()
}
