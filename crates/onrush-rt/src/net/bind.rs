//! Listening sockets: their addresses and options, and binding.
//!
//! The module depends on the drivers' socket types, and not on drivers or workers.

use crate::driver::{ListenSocket, Socket};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Accepts a connection that is queued at `socket`, without waiting (accept4(2)). Fails with
/// `WouldBlock` when there is none, and with `Unsupported` for a simulated listener.
pub fn accept_now(socket: &ListenSocket) -> io::Result<Socket> {
    let ListenSocket::Os(socket) = socket else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(Socket::Os(rustix::net::accept_with(socket, flags)?))
}

/// Options of a listening socket.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// The maximum number of connections that the kernel queues before it refuses more
    /// (`listen(2)`; capped by `somaxconn`).
    pub backlog: u32,
    /// `SO_REUSEPORT`: several sockets on one port; the kernel distributes connections over them.
    pub reuse_port: bool,
    /// `TCP_NODELAY`, inherited by every accepted connection.
    pub nodelay: bool,
    /// Connections are accepted when their first bytes have arrived, or after a second without any
    /// (`TCP_DEFER_ACCEPT`, tcp(7)). For protocols in which the client speaks first.
    pub defer_accept: bool,
    /// The maximum number of unsent bytes that the kernel holds for each accepted connection
    /// (`TCP_NOTSENT_LOWAT`, tcp(7)). A client that does not read occupies no more memory than this
    /// and its own receive window. Without the limit, the send buffer takes up to 3 MB of a file.
    /// 0: no limit but the send buffer. See
    /// [`Driver::set_unsent_max`](crate::driver::Driver::set_unsent_max).
    pub unsent_bytes_max: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions {
            backlog: 4096,
            reuse_port: false,
            nodelay: true,
            defer_accept: false,
            unsent_bytes_max: 0,
        }
    }
}

/// How several workers accept from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenMode {
    /// One listener each, on the same port (`SO_REUSEPORT`).
    PerWorker,
    /// One listener for all; any idle worker accepts.
    Shared,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(std::path::PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Binds one listening socket for each of `workers`. Returns them with their address, which has the
/// actual port if port 0 was requested.
///
/// A port that another socket listens on is refused with `AddrInUse`, even if that socket belongs
/// to another process and has `SO_REUSEPORT`, so that the kernel would let both share the port.
/// Binding is retried for half a second: the kernel tears down the io_uring rings of an ended
/// process asynchronously, and they hold its port.
///
/// # Examples
/// ```
/// use onrush_rt::net::{Address, ListenMode, ListenOptions, listen};
///
/// let any = Address::Tcp(([127, 0, 0, 1], 0).into());
/// let options = ListenOptions { backlog: 128, ..ListenOptions::default() };
/// let (sockets, address) = listen(&any, ListenMode::PerWorker, 2, &options)?;
/// assert_eq!(sockets.len(), 2);
/// println!("listening on {address}"); // With the port that the kernel has chosen.
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn listen(
    address: &Address,
    mode: ListenMode,
    workers: usize,
    options: &ListenOptions,
) -> io::Result<(Vec<ListenSocket>, Address)> {
    let address = match address {
        Address::Unix(path) => {
            let socket = bind_with_retries(UNIX_RETRY_PAUSE, || bind_unix(path, options.backlog))?;
            return Ok((share(socket, workers)?, address.clone()));
        }
        Address::Tcp(address) => address,
    };
    for _ in 1..PORTS_MAX {
        match listen_tcp(*address, mode, workers, options) {
            // Another socket has taken the port that was free. The kernel chooses the next one.
            Err(error) if address.port() == 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            result => return result,
        }
    }
    listen_tcp(*address, mode, workers, options)
}

fn listen_tcp(
    address: SocketAddr,
    mode: ListenMode,
    workers: usize,
    options: &ListenOptions,
) -> io::Result<(Vec<ListenSocket>, Address)> {
    let exclusive = ListenOptions {
        reuse_port: false,
        ..options.clone()
    };
    let first = bind_with_retries(RETRY_PAUSE, || bind_tcp(address, &exclusive))?;
    let bound = bound_address(&first)?;
    if mode == ListenMode::Shared || workers == 1 {
        start_listening(&first, options)?;
        return Ok((share(first, workers)?, Address::Tcp(bound)));
    }
    // The port is free. Sockets that share a port must all set the option before they bind, so bind
    // again. This socket never listens: connections in its queue would be reset when it is closed.
    drop(first);
    let reusable = ListenOptions {
        reuse_port: true,
        ..options.clone()
    };
    let sockets = (0..workers).map(|_| {
        let socket = bind_tcp(bound, &reusable)?;
        start_listening(&socket, options)?;
        Ok(ListenSocket::Os(socket))
    });
    Ok((sockets.collect::<io::Result<_>>()?, Address::Tcp(bound)))
}

/// The same listening socket for each of `workers`, for example one passed by a supervisor. It is
/// made non-blocking.
pub fn share(socket: OwnedFd, workers: usize) -> io::Result<Vec<ListenSocket>> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let mut sockets = Vec::with_capacity(workers);
    for _ in 1..workers {
        sockets.push(ListenSocket::Os(socket.try_clone()?));
    }
    sockets.push(ListenSocket::Os(socket));
    Ok(sockets)
}

/// Flags of every new socket.
pub(super) const NEW: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// The family of an IP address.
pub(super) fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

/// The time for which binding is retried while the address is in use, and the pause between
/// attempts.
const RETRY_TIME: Duration = Duration::from_millis(500);
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// The ports that the kernel chooses at most, for port 0.
const PORTS_MAX: usize = 8;
/// The pause for a Unix socket. Longer, because each attempt connects to the other server, if that
/// is alive.
const UNIX_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Calls `bind` until the address is not in use any more, for at most [`RETRY_TIME`].
fn bind_with_retries(
    pause: Duration,
    bind: impl Fn() -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let end = Instant::now() + RETRY_TIME;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(pause);
            }
            result => return result,
        }
    }
}

fn bind_tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(family(&address), SocketType::STREAM, NEW, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if options.reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if options.defer_accept {
        crate::sys::set_defer_accept(socket.as_fd());
    }
    if options.unsent_bytes_max > 0 {
        crate::sys::set_unsent_max(socket.as_fd(), options.unsent_bytes_max);
    }
    if options.nodelay {
        sockopt::set_tcp_nodelay(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    avoid_pacing(&socket);
    Ok(socket)
}

/// A listener on a loopback address does not use BBR (`TCP_CONGESTION`, tcp(7)); its connections
/// inherit that. BBR paces what it sends, with a timer for each 64 KiB, as fast as it believes the
/// path to be. On loopback there is no path, and the timers take up to four fifths of the time of a
/// response of 1 MiB. Reno is in every kernel, is permitted to everybody, and sees no loss here.
pub(super) fn avoid_pacing(socket: &OwnedFd) {
    let is_loopback = bound_address(socket).is_ok_and(|at| at.ip().to_canonical().is_loopback());
    let paces = || sockopt::tcp_congestion(socket).is_ok_and(|name| name.starts_with("bbr"));
    if is_loopback && paces() {
        let _ = sockopt::set_tcp_congestion(socket, "reno"); // It only costs more otherwise.
    }
}

fn start_listening(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Binds a Unix socket and listens. The file of a server that has ended is replaced. Fails with
/// `AddrInUse` if a server is running at the path, or if the file is not a socket.
fn bind_unix(path: &Path, backlog: u32) -> io::Result<OwnedFd> {
    let new = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, NEW, None);
    let address = SocketAddrUnix::new(path)?;
    let socket = new()?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            // Connecting to an ordinary file is refused, too, and such a file must not be removed.
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            match rustix::net::connect(new()?, &address) {
                Err(Errno::CONNREFUSED) if is_socket => std::fs::remove_file(path)?,
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
            rustix::net::bind(&socket, &address)?;
        }
        result => result?,
    }
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket)
}

fn bound_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let name = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(name).map_err(|_| io::ErrorKind::Unsupported.into())
}
