//! The library on coroutines. Must not know its other half, from which it differs in these names.

use onrush::coroutine::{
    self, Config, TcpListener, TcpStream,
    thread::{sleep, spawn},
};
use std::{io, net::SocketAddr};

#[path = "library.rs"]
mod library;

pub(super) fn serve(address: SocketAddr, behind: SocketAddr) -> io::Result<()> {
    coroutine::run(Config::from_env()?, move || library::serve(address, behind))
}
