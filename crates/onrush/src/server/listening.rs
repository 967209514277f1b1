//! Binds the listening sockets of a server, or takes those that exist already.

use super::socket_file::SocketFile;
use onrush_rt::driver::ListenSocket;
use onrush_rt::net::{self, Address, ListenMode, ListenOptions};
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;

/// Sockets that listen on one address already.
#[derive(Debug)]
pub struct ListeningSockets {
    /// The address as it was given to the server, such as `127.0.0.1:0`.
    pub address: String,
    /// One or more. Several have `SO_REUSEPORT`: all of them are to be accepted from.
    pub sockets: Vec<OwnedFd>,
    /// Another process, such as a service manager, continues to listen on them when this one has
    /// ended. So the end of the server leaves new connections in their queues.
    pub is_shared: bool,
}

/// What one listening socket of each worker belongs to. All workers have the same.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// The position of its address.
    pub(super) address: usize,
    /// Its connections use TLS if the server does.
    pub(super) uses_tls: bool,
    /// See [`ListeningSockets::is_shared`].
    pub(super) is_shared: bool,
}

/// The listening sockets of a server.
pub(super) struct Listening {
    /// One list for each worker. It is empty for those that do not accept.
    pub(super) sockets: Vec<Vec<ListenSocket>>,
    /// One for each socket of such a list.
    pub(super) slots: Vec<Slot>,
    /// The addresses as they were given.
    pub(super) given: Vec<String>,
    /// One or more addresses, for [`Running::addresses`](super::Running::addresses).
    pub(super) addresses: Vec<Address>,
    pub(super) files: Vec<SocketFile>,
}

/// How a server listens.
pub(super) struct How<'h> {
    pub(super) mode: ListenMode,
    pub(super) options: &'h ListenOptions,
    pub(super) workers: usize,
    /// The first workers accept.
    pub(super) accepting: usize,
}

impl Listening {
    /// Listens on the addresses, with those of the `existing` sockets that have their text. Each
    /// address has a flag for [`Slot::uses_tls`].
    pub(super) fn bind<'a>(
        addresses: impl Iterator<Item = (&'a String, bool)>,
        mut existing: Vec<ListeningSockets>,
        how: &How<'_>,
    ) -> io::Result<Listening> {
        let mut listening = Listening::new(how.workers);
        for (text, uses_tls) in addresses {
            let found = existing.iter().position(|sockets| sockets.address == *text);
            if let Some(found) = found {
                listening.take(existing.remove(found), uses_tls, how)?;
                continue;
            }
            let address = parse_address(text)?;
            let result = net::listen(&address, how.mode, how.accepting, how.options);
            let (sockets, address) = result.map_err(|error| explain(&address, error))?;
            if let Address::Unix(path) = &address {
                listening.files.extend(SocketFile::new(path));
            }
            let slot = Slot {
                address: listening.addresses.len(),
                uses_tls,
                is_shared: false,
            };
            listening.push(sockets, slot);
            listening.given.push(text.clone());
            listening.addresses.push(address);
        }
        Ok(listening)
    }

    /// Takes sockets that are listening already, each of which is an address. All accepting workers
    /// share each of them.
    pub(super) fn inherit(sockets: Vec<OwnedFd>, how: &How<'_>) -> io::Result<Listening> {
        let mut listening = Listening::new(how.workers);
        for socket in sockets {
            let sockets = ListeningSockets {
                address: String::new(),
                sockets: vec![socket],
                is_shared: true,
            };
            listening.take(sockets, true, how)?;
        }
        Ok(listening)
    }

    fn take(
        &mut self,
        existing: ListeningSockets,
        uses_tls: bool,
        how: &How<'_>,
    ) -> io::Result<()> {
        let first = existing.sockets.first();
        let address = first.and_then(net::local_address);
        let address = address.unwrap_or(Address::Unix("inherited".into()));
        if let Address::Unix(path) = &address
            && !existing.is_shared
        {
            self.files.extend(SocketFile::new(path));
        }
        for sockets in net::spread(&existing.sockets, how.accepting, how.options)? {
            let slot = Slot {
                address: self.addresses.len(),
                uses_tls,
                is_shared: existing.is_shared,
            };
            self.push(sockets, slot);
        }
        self.given.push(existing.address);
        self.addresses.push(address);
        Ok(())
    }

    fn new(workers: usize) -> Listening {
        Listening {
            sockets: (0..workers).map(|_| Vec::new()).collect(),
            slots: Vec::new(),
            given: Vec::new(),
            addresses: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds one socket for each worker that accepts.
    fn push(&mut self, sockets: Vec<ListenSocket>, slot: Slot) {
        self.slots.push(slot);
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
            "may not be bound by this user: a port below 1024 needs CAP_NET_BIND_SERVICE, or a \
             lower net.ipv4.ip_unprivileged_port_start (sysctl)"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "is not an address of this machine".to_owned(),
        _ => format!("cannot be listened on: {error}"),
    };
    io::Error::new(error.kind(), format!("{address} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests often run as root, who may bind every port.
    #[test]
    fn a_port_below_1024_has_a_remedy() {
        let address = Address::Tcp(([0, 0, 0, 0], 443).into());
        let error = explain(&address, io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            error.to_string(),
            "0.0.0.0:443 may not be bound by this user: a port below 1024 needs \
             CAP_NET_BIND_SERVICE, or a lower net.ipv4.ip_unprivileged_port_start (sysctl)"
        );
    }
}
