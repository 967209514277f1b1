//! Addresses as in `std::net`; names are looked up without blocking the worker.

use super::suspend::try_wait;
use onrush_rt::worker::WorkerContext;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The counterpart of `std::net::ToSocketAddrs`, for the same types.
pub trait ToSocketAddrs {
    /// The known addresses, or the host and port to look up.
    fn addresses(&self) -> Lookup;
}

/// Result of [`ToSocketAddrs::addresses`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// These addresses.
    Known(Vec<SocketAddr>),
    /// The addresses of this `host:port`.
    Name(String),
    /// The addresses of this host, with this port.
    Host(String, u16),
}

/// The addresses; at least one. A thread of the blocking pool looks names up (`getaddrinfo(3)`).
pub(super) fn resolve(addresses: &impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    use std::net::ToSocketAddrs as _;
    let found = match addresses.addresses() {
        Lookup::Known(addresses) => addresses,
        Lookup::Name(name) => on_pool(move || name.to_socket_addrs().map(Vec::from_iter))?,
        Lookup::Host(host, port) => {
            on_pool(move || (host.as_str(), port).to_socket_addrs().map(Vec::from_iter))?
        }
    };
    match found.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no address was given",
        )),
        false => Ok(found),
    }
}

/// Runs a job that may block on the blocking pool, and waits for it.
#[track_caller]
pub(super) fn on_pool<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let Some(context) = WorkerContext::current() else {
        return Err(io::Error::other("this thread polls no worker"));
    };
    let job = context.blocking().run(job);
    try_wait(job)?.unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
}

impl ToSocketAddrs for SocketAddr {
    fn addresses(&self) -> Lookup {
        Lookup::Known(vec![*self])
    }
}

impl ToSocketAddrs for str {
    fn addresses(&self) -> Lookup {
        match self.parse() {
            Ok(address) => Lookup::Known(vec![address]),
            Err(_) => Lookup::Name(self.to_owned()),
        }
    }
}

impl ToSocketAddrs for (&str, u16) {
    fn addresses(&self) -> Lookup {
        let (host, port) = *self;
        match host.parse::<IpAddr>() {
            Ok(address) => (address, port).addresses(),
            Err(_) => Lookup::Host(host.to_owned(), port),
        }
    }
}

impl ToSocketAddrs for (String, u16) {
    fn addresses(&self) -> Lookup {
        (self.0.as_str(), self.1).addresses()
    }
}

impl ToSocketAddrs for String {
    fn addresses(&self) -> Lookup {
        self.as_str().addresses()
    }
}

impl ToSocketAddrs for [SocketAddr] {
    fn addresses(&self) -> Lookup {
        Lookup::Known(self.to_vec())
    }
}

impl<T: ToSocketAddrs + ?Sized> ToSocketAddrs for &T {
    fn addresses(&self) -> Lookup {
        (**self).addresses()
    }
}

macro_rules! known {
    ($($kind:ty),*) => {$(
        impl ToSocketAddrs for $kind {
            fn addresses(&self) -> Lookup {
                Lookup::Known(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

known!(
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16)
);
