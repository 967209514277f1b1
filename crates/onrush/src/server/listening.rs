//! Binds the listening sockets of a server.

use super::socket_file::SocketFile;
use onrush_rt::driver::ListenSocket;
use onrush_rt::net::{self, Address, ListenMode, ListenOptions};
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;

/// The listening sockets of a server.
pub(super) struct Listening {
    /// One list for each worker.
    pub(super) sockets: Vec<Vec<ListenSocket>>,
    /// For each socket of such a list, whether its connections use TLS if the server does.
    pub(super) uses_tls: Vec<bool>,
    /// One or more addresses, for [`Running::addresses`](super::Running::addresses).
    pub(super) addresses: Vec<Address>,
    pub(super) files: Vec<SocketFile>,
}

impl Listening {
    /// Binds the addresses for the first `accepting` of `workers` workers. Each has a flag for
    /// [`Listening::uses_tls`].
    pub(super) fn bind<'a>(
        addresses: impl Iterator<Item = (&'a String, bool)>,
        mode: ListenMode,
        options: &ListenOptions,
        workers: usize,
        accepting: usize,
    ) -> io::Result<Listening> {
        let mut listening = Listening::new(workers);
        for (address, uses_tls) in addresses {
            let address = parse_address(address)?;
            let result = net::listen(&address, mode, accepting, options);
            let (sockets, address) = result.map_err(|error| explain(&address, error))?;
            if let Address::Unix(path) = &address {
                listening.files.extend(SocketFile::new(path));
            }
            listening.push(sockets, uses_tls);
            listening.addresses.push(address);
        }
        Ok(listening)
    }

    /// Takes sockets that are listening already. The first `accepting` of `workers` workers share
    /// them.
    pub(super) fn inherit(
        sockets: Vec<OwnedFd>,
        workers: usize,
        accepting: usize,
    ) -> io::Result<Listening> {
        let mut listening = Listening::new(workers);
        for socket in sockets {
            listening.push(net::share(socket, accepting)?, true);
        }
        listening.addresses.push(Address::Unix("inherited".into()));
        Ok(listening)
    }

    fn new(workers: usize) -> Listening {
        Listening {
            sockets: (0..workers).map(|_| Vec::new()).collect(),
            uses_tls: Vec::new(),
            addresses: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds one socket for each worker that accepts.
    fn push(&mut self, sockets: Vec<ListenSocket>, uses_tls: bool) {
        self.uses_tls.push(uses_tls);
        for (list, socket) in self.sockets.iter_mut().zip(sockets) {
            list.push(socket);
        }
    }
}

/// Parses an address in the form of [`Server::bind`](super::Server::bind).
fn parse_address(text: &str) -> io::Result<Address> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Address::Unix(path.into()));
    }
    let wrong =
        |what: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {what}"));
    let mut addresses = text.to_socket_addrs().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => wrong("not an address and port".to_owned()),
        // "failed to lookup address information: Name or service not known"
        _ => match error.to_string().rsplit_once(": ") {
            Some((_, why)) => wrong(format!("no such host ({why})")),
            None => wrong("no such host".to_owned()),
        },
    })?;
    let first = addresses.next();
    (first.map(Address::Tcp)).ok_or_else(|| wrong("no such host".to_owned()))
}

/// The error with a message for the operator.
fn explain(address: &Address, error: io::Error) -> io::Error {
    let is_unix = matches!(address, Address::Unix(_));
    let what = match error.kind() {
        io::ErrorKind::AddrInUse if is_unix => "is in use".to_owned(),
        io::ErrorKind::PermissionDenied if is_unix => "may not be created by this user".to_owned(),
        io::ErrorKind::AddrInUse => "is in use by another server; choose another port".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "may not be bound by this user; ports below 1024 need a privilege".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "is not an address of this machine".to_owned(),
        _ => format!("cannot be listened on: {error}"),
    };
    io::Error::new(error.kind(), format!("{address} {what}"))
}
