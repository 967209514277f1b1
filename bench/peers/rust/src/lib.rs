//! The common parts of these programs: the responses, the limit on bodies, the command line and the
//! listening socket. This module does not depend on the library that a program is built on.

#![deny(unsafe_code)]

pub mod axum_app;
pub mod hyper_files;
pub mod tls;
pub mod tokio_http;

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

/// What the command line states: `PORT [FOLDER] [--tls-cert FILE --tls-key FILE] [--http2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The port of the loopback address.
    pub address: SocketAddr,
    /// The folder to serve.
    pub folder: Option<PathBuf>,
    /// The files of the certificate chain and of its key. With them the server speaks TLS only.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether the server speaks HTTP/2 only.
    pub http2: bool,
}

impl Arguments {
    /// The arguments of this program. Ends it if they are invalid.
    pub fn of_program() -> Arguments {
        let arguments = Arguments::parse(std::env::args().skip(1));
        arguments
            .unwrap_or_else(|| usage("PORT [FOLDER] [--tls-cert FILE --tls-key FILE] [--http2]"))
    }

    fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
        let mut places = Vec::new();
        let (mut chain, mut key) = (None, None);
        let mut http2 = false;
        while let Some(word) = words.next() {
            match &*word {
                "--tls-cert" => chain = Some(PathBuf::from(words.next()?)),
                "--tls-key" => key = Some(PathBuf::from(words.next()?)),
                "--http2" => http2 = true,
                _ => places.push(word),
            }
        }
        let mut places = places.into_iter();
        let port: u16 = places.next()?.parse().ok()?;
        let folder = places.next().map(PathBuf::from);
        let certificate = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (None, None) => None,
            _ => return None,
        };
        let arguments = Arguments {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            folder,
            certificate,
            http2,
        };
        places.next().is_none().then_some(arguments)
    }
}

/// The loopback address with the only argument, `PORT`. Ends the program if it is missing or
/// invalid.
pub fn address() -> SocketAddr {
    match Arguments::of_program() {
        Arguments {
            address,
            folder: None,
            certificate: None,
            http2: false,
        } => address,
        _ => usage("PORT"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Arguments> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let all = parse("80 files --tls-cert c --tls-key k").expect("valid");
        assert_eq!((all.address.port(), all.folder), (80, Some("files".into())));
        assert_eq!(all.certificate, Some(("c".into(), "k".into())));
        let plain = parse("80").expect("valid");
        assert_eq!((plain.folder, plain.certificate), (None, None));
        assert!(!plain.http2 && parse("80 --http2").expect("valid").http2);
        for line in ["", "x", "80 a b", "80 --tls-cert c", "80 --tls-key"] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
