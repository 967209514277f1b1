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

/// The content of the response to `GET /`.
pub const HELLO: &str = "Hello, World!";
/// Its type.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// The type of [`json`].
pub const JSON: &str = "application/json";
/// The type of an echo whose request has no `Content-Type`.
pub const BYTES: &str = "application/octet-stream";
/// The longest body of an echo.
pub const ECHO_BYTES_MAX: usize = 1 << 20;
/// Connections that the kernel queues.
pub const BACKLOG: i32 = 4096;

/// The content of the response to `GET /json`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Message {
    /// The text.
    pub message: &'static str,
}

/// Serialised for each response.
pub const MESSAGE: Message = Message { message: HELLO };

/// Serialises [`MESSAGE`].
pub fn json() -> Vec<u8> {
    serde_json::to_vec(&MESSAGE).expect("a struct of strings is always JSON")
}

/// The loopback address with the only argument, `PORT`. Ends the program if it is missing or
/// invalid.
pub fn address() -> SocketAddr {
    match address_and_folder() {
        (address, None) => address,
        _ => usage("PORT"),
    }
}

/// The loopback address with the argument `PORT`, and the second argument if present. Ends the
/// program if they are invalid.
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
    // SAFETY: the option's value is an int, which the kernel reads only during the call.
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

/// A non-blocking listening socket. Connections inherit `TCP_NODELAY` from it, which saves one call
/// for each. The kernel offers a connection after its first bytes or after one second
/// (`TCP_DEFER_ACCEPT`), which halves the cost of a connection with one request.
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
