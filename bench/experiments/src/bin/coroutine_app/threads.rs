//! The library on threads. Must not know its other half, from which it differs in these names.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    thread::{sleep, spawn},
};

#[path = "library.rs"]
mod library;

pub(super) fn serve(address: SocketAddr, behind: SocketAddr) -> io::Result<()> {
    library::serve(address, behind)
}
