//! The common parts of these programs: the responses, the limit on bodies, the command line and the
//! listening socket. This module does not depend on the library that a program is built on.

#![deny(unsafe_code)]

pub mod hyper_files;
pub mod raw;
pub mod tokio_http1;

use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// The answer to `GET /`.
pub const HELLO: &str = "Hello, World!";
/// Its type.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The type of [`json`].
pub const JSON: &str = "application/json";
/// The type of an echo whose request names none.
pub const BYTES: &str = "application/octet-stream";
/// Longest body that is sent back.
pub const ECHO_BYTES_MAX: usize = 1 << 20;
/// Connections the kernel queues before it refuses more.
pub const BACKLOG: i32 = 4096;

/// The object that answers `GET /json`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Message {
    /// What it says.
    pub message: &'static str,
}

/// Made anew for each answer.
pub const MESSAGE: Message = Message { message: HELLO };

/// [`MESSAGE`], serialised now.
pub fn json() -> Vec<u8> {
    serde_json::to_vec(&MESSAGE).expect("a struct of strings is always JSON")
}

/// The address of the only argument, `PORT`; ends the program when there is none or it is wrong.
pub fn address() -> SocketAddr {
    match address_and_folder() {
        (address, None) => address,
        _ => usage("PORT"),
    }
}

/// The address of the argument `PORT`, and the second argument if there is one. Ends the program
/// when they are wrong.
pub fn address_and_folder() -> (SocketAddr, Option<PathBuf>) {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().map(|port| port.parse());
    match (port, arguments.next(), arguments.next()) {
        (Some(Ok(port)), folder, None) => {
            let address = (Ipv4Addr::LOCALHOST, port).into();
            (address, folder.map(PathBuf::from))
        }
        _ => usage("PORT [FOLDER]"),
    }
}

fn usage(arguments: &str) -> ! {
    eprintln!("usage: PROGRAM {arguments}");
    std::process::exit(2);
}

#[allow(unsafe_code)]
fn defer_accept(socket: &Socket) -> io::Result<()> {
    let seconds: libc::c_int = 1;
    // SAFETY: the option's value is an int, which the kernel only reads during the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A listening socket that does not block. Connections inherit `TCP_NODELAY` from it, which saves
/// setting it on each, and are offered when their first bytes have come or a second is over
/// (`TCP_DEFER_ACCEPT`), which halves what a connection for one request costs.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    defer_accept(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
