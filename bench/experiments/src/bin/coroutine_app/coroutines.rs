//! The library on coroutines. It differs from `threads` only in the imported names.

use onrush::coroutine::{
    self, Config, TcpListener, TcpStream,
    thread::{sleep, spawn},
};
use std::{io, net::SocketAddr};

#[path = "library.rs"]
mod library;

pub(super) fn serve(address: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    coroutine::run(crate::contract(), Config::from_env()?, move || {
        library::serve(address, backend)
    })
}
