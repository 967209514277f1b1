//! Sockets: listening sockets, and streams that futures read and write.
//!
//! Connecting, reading and writing try the call first and wait for readiness only if it would
//! block. So no kernel operation refers to a caller's buffer, and every future here may be dropped
//! at any point. Servers do not use these streams: they handle the driver's events directly.
//!
//! Files, lowest first: `closing` · this one. They do not depend on protocols.

mod closing;

pub use closing::Closing;

use crate::coop;
use crate::driver::{ListenSocket, ListenerId, Socket, StreamId};
use crate::sources::{ACCEPTED_AHEAD_MAX, Accepting, RUNTIME, Source};
use crate::worker::WorkerContext;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::task::{Context, Poll, ready};
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
    /// Connections the kernel queues before it refuses more (`listen(2)`; capped by `somaxconn`).
    pub backlog: u32,
    /// `SO_REUSEPORT`: several sockets on one port; the kernel distributes connections over them.
    pub reuse_port: bool,
    /// `TCP_NODELAY`, inherited by every accepted connection.
    pub nodelay: bool,
    /// Connections are accepted when their first bytes have arrived, or after a second without any
    /// (`TCP_DEFER_ACCEPT`, tcp(7)). For protocols in which the client speaks first.
    pub defer_accept: bool,
    /// Limit of the bytes that the kernel holds unsent for each accepted connection
    /// (`TCP_NOTSENT_LOWAT`, tcp(7)). A client that does not read then costs no more than this and
    /// its own receive window; the default send buffer would take 3 MB of a file. 0: as much as the
    /// send buffer. See [`Driver::lift_unsent_max`](crate::driver::Driver::lift_unsent_max).
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
pub fn listen(
    address: &Address,
    spread: ListenMode,
    workers: usize,
    options: &ListenOptions,
) -> io::Result<(Vec<ListenSocket>, Address)> {
    let address = match address {
        Address::Unix(path) => {
            let socket = bind_unix_patiently(path, options.backlog)?;
            return Ok((share(socket, workers)?, address.clone()));
        }
        Address::Tcp(address) => address,
    };
    let alone = ListenOptions {
        reuse_port: false,
        ..options.clone()
    };
    let first = bind_patiently(*address, &alone)?;
    let bound = bound_address(&first)?;
    if spread == ListenMode::Shared || workers == 1 {
        start_listening(&first, options)?;
        return Ok((share(first, workers)?, Address::Tcp(bound)));
    }
    // The port is free. Sockets that share a port must all set the option before they bind, so bind
    // again. This socket never listens: connections in its queue would be reset when it is closed.
    drop(first);
    let together = ListenOptions {
        reuse_port: true,
        ..options.clone()
    };
    let sockets = (0..workers).map(|_| {
        let socket = bind_tcp(bound, &together)?;
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

const NEW: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    }
}

/// How long binding is retried while the port is in use, and the pause between attempts.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);
const UNIX_PAUSE: Duration = Duration::from_millis(50);

fn bind_patiently(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
    let end = Instant::now() + PATIENCE;
    loop {
        match bind_tcp(address, options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(PAUSE);
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
    Ok(socket)
}

fn start_listening(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog)?)
}

/// As [`bind_patiently`]. Each look is a connection to the other server, if that is alive.
fn bind_unix_patiently(path: &Path, backlog: u32) -> io::Result<OwnedFd> {
    let end = Instant::now() + PATIENCE;
    loop {
        match bind_unix(path, backlog) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(UNIX_PAUSE);
            }
            result => return result,
        }
    }
}

/// Binds a Unix socket. The file of a server that has ended is replaced; the socket of a running
/// server gives `AddrInUse`, and so does a file that is no socket.
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

/// The peer of a connected socket (`getpeername(2)`); `None` for Unix and simulated sockets.
pub fn peer_address(descriptor: impl AsFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getpeername(descriptor).ok()??).ok()
}

/// A connected stream socket: TCP, Unix or simulated. Dropping it closes it.
#[derive(Debug)]
pub struct Stream {
    context: WorkerContext,
    id: StreamId,
    source: usize,
}

impl Stream {
    /// Takes over a connected socket.
    pub fn new(context: &WorkerContext, socket: Socket) -> io::Result<Stream> {
        let source = context
            .sources()
            .streams
            .borrow_mut()
            .insert(Source::default());
        match context.driver().attach(socket, RUNTIME | source as u64) {
            Ok(id) => Ok(Stream {
                context: context.clone(),
                id,
                source,
            }),
            Err(error) => {
                context.sources().streams.borrow_mut().remove(source);
                Err(error)
            }
        }
    }

    /// Connects over TCP.
    pub async fn connect(context: &WorkerContext, address: SocketAddr) -> io::Result<Stream> {
        let socket = rustix::net::socket_with(family(&address), SocketType::STREAM, NEW, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let result = rustix::net::connect(&socket, &address);
        Stream::connecting(context, socket, result).await
    }

    /// Connects to a Unix socket.
    pub async fn connect_unix(context: &WorkerContext, path: &Path) -> io::Result<Stream> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, NEW, None)?;
        let result = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
        Stream::connecting(context, socket, result).await
    }

    async fn connecting(
        context: &WorkerContext,
        socket: OwnedFd,
        result: Result<(), Errno>,
    ) -> io::Result<Stream> {
        match result {
            Ok(()) => return Stream::new(context, Socket::Os(socket)),
            Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = Stream::new(context, Socket::Os(socket))?;
        stream.writable().await;
        let driver = context.driver();
        let fd = driver
            .descriptor(stream.id)
            .ok_or(io::ErrorKind::NotConnected)?;
        let outcome = sockopt::socket_error(fd)?;
        drop(driver);
        outcome?;
        Ok(stream)
    }

    async fn writable(&self) {
        let mut asked = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) && self.source_is_woken(cx) {
                return Poll::Ready(());
            }
            self.wait_writable(cx);
            Poll::Pending
        })
        .await;
    }

    /// The event takes the writer's waker; a waker that is still there means a spurious poll.
    fn source_is_woken(&self, cx: &mut Context<'_>) -> bool {
        let before = {
            let mut streams = self.context.sources().streams.borrow_mut();
            match &mut streams[self.source].writer {
                Some(waker) if waker.will_wake(cx.waker()) => None,
                Some(waker) => Some(std::mem::replace(waker, cx.waker().clone())),
                None => return true,
            }
        };
        drop(before); // Outside the borrow: its destructor may do anything.
        false
    }

    fn wait_writable(&self, cx: &mut Context<'_>) {
        let waker = Some(cx.waker().clone());
        let before = {
            let source = &mut self.context.sources().streams.borrow_mut()[self.source];
            std::mem::replace(&mut source.writer, waker)
        };
        self.context.driver().want_write(self.id);
        drop(before); // Outside the borrow: its destructor may do anything.
    }

    /// Reads bytes that have arrived, waiting for the first; 0 at the end of the stream.
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, into)).await
    }

    /// [`Stream::read`] as a poll.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let result = self.context.driver().recv(self.id, into);
        match result {
            Err(ref error) if error.kind() == io::ErrorKind::WouldBlock => {
                let waker = Some(cx.waker().clone());
                let before = {
                    let source = &mut self.context.sources().streams.borrow_mut()[self.source];
                    source.reader_stack = (&raw const result).addr();
                    std::mem::replace(&mut source.reader, waker)
                };
                self.context.driver().want_read(self.id);
                drop(before); // Outside the borrow: its destructor may do anything.
                Poll::Pending
            }
            result => {
                coop::spend(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
        }
    }

    /// Writes some of `bytes`, waiting until the socket takes any.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    /// [`Stream::write`] as a poll.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let result = self.context.driver().send(self.id, bytes);
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.wait_writable(cx);
                Poll::Pending
            }
            result => {
                coop::spend(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
        }
    }

    /// Writes all of `bytes`.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write(bytes).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
        Ok(())
    }

    /// The result of `ask` for the descriptor; `Unsupported` on simulated streams, which have none.
    pub(crate) fn with_descriptor<R>(
        &self,
        ask: impl FnOnce(BorrowedFd<'_>) -> Result<R, Errno>,
    ) -> io::Result<R> {
        let driver = self.context.driver();
        let fd = driver.descriptor(self.id);
        Ok(ask(fd.ok_or(io::ErrorKind::Unsupported)?)?)
    }

    /// The worker of the stream.
    pub fn context(&self) -> &WorkerContext {
        &self.context
    }

    /// Ends the sending direction.
    pub fn shutdown_write(&mut self) {
        self.context.driver().shutdown_write(self.id);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.context.driver().close(self.id);
        let source = self
            .context
            .sources()
            .streams
            .borrow_mut()
            .remove(self.source);
        drop(source);
    }
}

/// A listener that futures accept connections from. Dropping it stops accepting.
#[derive(Debug)]
pub struct Listener {
    context: WorkerContext,
    id: ListenerId,
}

impl Listener {
    /// Starts accepting.
    pub fn new(context: &WorkerContext, socket: ListenSocket) -> io::Result<Listener> {
        let id = context.driver().listen(socket)?;
        context
            .sources()
            .listeners
            .borrow_mut()
            .push((id, Accepting::default()));
        Ok(Listener {
            context: context.clone(),
            id,
        })
    }

    /// The next connection. An error (such as `EMFILE`) does not end the listener: it accepts again
    /// by itself after a pause. A few hundred connections are accepted ahead of the calls of this
    /// function (on io_uring, whose accept empties the kernel's queue at once, as many more as that
    /// held). Others wait in that queue, whose length is [`ListenOptions::backlog`].
    pub async fn accept(&mut self) -> io::Result<Stream> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// [`Listener::accept`] as a poll.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        ready!(coop::poll_proceed(cx));
        let (next, before) = {
            let mut listeners = self.context.sources().listeners.borrow_mut();
            let found = listeners.iter_mut().find(|(id, _)| *id == self.id);
            let (_, accepting) = found.expect("registered until dropped");
            let next = accepting.queue.pop_front();
            let before = match next {
                None => accepting.waker.replace(cx.waker().clone()),
                Some(_) => None,
            };
            if accepting.held && accepting.queue.len() <= ACCEPTED_AHEAD_MAX / 2 {
                accepting.held = false;
                self.context.driver().accept_again(self.id);
            }
            (next, before)
        };
        drop(before); // Outside the borrow: its destructor may do anything.
        match next {
            Some(socket) => {
                coop::spend(0);
                Poll::Ready(socket.and_then(|socket| Stream::new(&self.context, socket)))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.context.driver().unlisten(self.id);
        let left = {
            let mut listeners = self.context.sources().listeners.borrow_mut();
            let place = listeners.iter().position(|(id, _)| *id == self.id);
            place.map(|place| listeners.swap_remove(place))
        };
        drop(left); // Outside the borrow: the destructor of its waker may do anything.
    }
}
