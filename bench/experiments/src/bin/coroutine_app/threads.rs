//! The library on threads. It differs from `coroutines` only in the imported names.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    thread::{sleep, spawn},
};

#[path = "library.rs"]
mod library;

pub(super) fn serve(address: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    library::serve(address, backend)
}
