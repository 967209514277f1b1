//! The counterpart of `std::net`: sockets with calls in blocking style.

use super::address::resolve;
use super::frame::resume_memory;
use super::lock::Lock;
use super::ports;
use super::suspend::try_wait;
use super::thread::context;
use onrush_rt::driver::{ListenSocket, Socket};
use onrush_rt::net::{Listener, Stream, peer_address};
use rustix::fd::BorrowedFd;
use rustix::net::sockopt;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use super::address::ToSocketAddrs;
pub use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The address of a peer that is unknown: after it has gone, or on a simulated network.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A listening socket, as `std::net::TcpListener`.
///
/// Under [`run`](super::run) with several workers, workers that bind the same address share its
/// port: the kernel distributes connections over them.
#[derive(Debug)]
pub struct TcpListener(Rc<Listening>);

#[derive(Debug)]
struct Listening {
    listener: RefCell<Listener>,
    accepting: Lock,
    address: io::Result<SocketAddr>,
}

impl TcpListener {
    /// Listens on the first of `address` that can be bound (`bind(2)`, `SO_REUSEADDR`).
    ///
    /// # Panics
    /// Outside a coroutine if a name must be looked up, and on a thread that polls no worker.
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        let index = context().index();
        first(resolve(&address)?, |address| {
            TcpListener::from_socket(ports::bind(address, index)?)
        })
    }

    /// Listens on an existing socket, inherited or simulated.
    ///
    /// # Panics
    /// On a thread that polls no worker.
    #[track_caller]
    pub fn from_socket(socket: ListenSocket) -> io::Result<TcpListener> {
        let address = match &socket {
            ListenSocket::Os(fd) => rustix::net::getsockname(fd)
                .map_err(io::Error::from)
                .and_then(|name| Ok(SocketAddr::try_from(name)?)),
            ListenSocket::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(TcpListener(Rc::new(Listening {
            listener: RefCell::new(Listener::new(&context(), socket)?),
            accepting: Lock::default(),
            address,
        })))
    }

    /// Waits for the next connection. Returns it with the peer's address: `0.0.0.0:0` if the peer
    /// is gone already. An error, such as `EMFILE`, does not end the listener.
    ///
    /// # Panics
    /// Outside a coroutine.
    #[track_caller]
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let Listening {
            listener,
            accepting,
            ..
        } = &*self.0;
        let stream = try_wait(async {
            let _held = accepting.hold().await; // The listener holds one waker.
            poll_fn(|cx| listener.borrow_mut().poll_accept(cx)).await
        })??;
        let peer = stream.with_descriptor(|fd| Ok(peer_address(fd)));
        let stream = TcpStream::over(stream);
        Ok((stream, peer.ok().flatten().unwrap_or(NOWHERE)))
    }

    /// Iterates over incoming connections, without end.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// The address it listens on (`getsockname(2)`); `Unsupported` for a simulated one.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0.address {
            Ok(address) => Ok(*address),
            Err(error) => Err(error.kind().into()),
        }
    }

    /// Another handle to the same listener.
    pub fn try_clone(&self) -> io::Result<TcpListener> {
        Ok(TcpListener(self.0.clone()))
    }
}

/// Iterator of [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'l>(&'l TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

/// A connected socket, as `std::net::TcpStream`. Dropping the last clone closes it.
pub struct TcpStream(Rc<Connected>);

#[derive(Debug)]
struct Connected {
    /// Borrowed for one poll at a time.
    stream: RefCell<Stream>,
    /// The stream holds one reader's and one writer's waker; further ones wait for the locks.
    reading: Lock,
    writing: Lock,
    read_timeout: Cell<Option<Duration>>,
    write_timeout: Cell<Option<Duration>>,
}

impl TcpStream {
    /// Connects to the first of `address` that accepts. Sets `TCP_NODELAY`.
    ///
    /// # Panics
    /// Outside a coroutine.
    #[track_caller]
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let context = context();
        first(resolve(&address)?, |address| {
            let stream = try_wait(Stream::connect(&context, address))??;
            Ok(TcpStream::over(stream))
        })
    }

    /// Connects; fails with `TimedOut` after `timeout`.
    ///
    /// # Panics
    /// Outside a coroutine.
    #[track_caller]
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        let context = context();
        let connected = context.timeout(timeout, Stream::connect(&context, *address));
        match try_wait(connected)? {
            Some(stream) => Ok(TcpStream::over(stream?)),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Takes over an existing connected socket.
    ///
    /// # Panics
    /// On a thread that polls no worker.
    #[track_caller]
    pub fn from_socket(socket: Socket) -> io::Result<TcpStream> {
        Stream::new(&context(), socket).map(TcpStream::over)
    }

    fn over(stream: Stream) -> TcpStream {
        TcpStream(Rc::new(Connected {
            stream: RefCell::new(stream),
            reading: Lock::default(),
            writing: Lock::default(),
            read_timeout: Cell::new(None),
            write_timeout: Cell::new(None),
        }))
    }

    /// Another handle to the same connection, for another coroutine: one may read while the other
    /// writes.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(TcpStream(self.0.clone()))
    }

    fn ask<R>(&self, ask: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<R>) -> io::Result<R> {
        self.0.stream.borrow().with_descriptor(ask)
    }

    /// The peer's address (`getpeername(2)`).
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let name = self.ask(|fd| rustix::net::getpeername(fd))?;
        let name = name.ok_or(io::ErrorKind::NotConnected)?;
        Ok(SocketAddr::try_from(name)?)
    }

    /// The local address (`getsockname(2)`).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::try_from(
            self.ask(|fd| rustix::net::getsockname(fd))?,
        )?)
    }

    /// Sets whether small segments are sent at once (`TCP_NODELAY`, tcp(7)).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.ask(|fd| sockopt::set_tcp_nodelay(fd, nodelay))
    }

    /// Whether small segments are sent at once.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.ask(|fd| sockopt::tcp_nodelay(fd))
    }

    /// Ends one direction or both (`shutdown(2)`), for all clones.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        use rustix::net::Shutdown as How;
        let how = match how {
            Shutdown::Read => How::Read,
            Shutdown::Write => How::Write,
            Shutdown::Both => How::Both,
        };
        match self.ask(|fd| rustix::net::shutdown(fd, how)) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported && how != How::Read => {
                self.0.stream.borrow_mut().shutdown_write(); // A simulated one.
                Ok(())
            }
            result => result,
        }
    }

    /// Limits how long a read may wait, for all clones; it then fails with `WouldBlock`. Zero is an
    /// error.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.0.read_timeout, timeout)
    }

    /// Limits how long a write may wait, for all clones; it then fails with `WouldBlock`. Zero is
    /// an error.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        set_timeout(&self.0.write_timeout, timeout)
    }

    /// The limit of [`TcpStream::set_read_timeout`].
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.read_timeout.get())
    }

    /// The limit of [`TcpStream::set_write_timeout`].
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.write_timeout.get())
    }

    /// Takes `lock`, then waits for `poll`, for at most `timeout`.
    #[track_caller]
    #[inline(always)]
    fn wait<R>(
        &self,
        lock: &Lock,
        timeout: Option<Duration>,
        mut poll: impl FnMut(&mut Stream, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> io::Result<R> {
        // The common case needs neither, and so a small frame: its cache lines are cold when it
        // resumes.
        if timeout.is_none()
            && let Some(_held) = lock.try_hold()
        {
            return try_wait(poll_fn(|cx| poll(&mut self.0.stream.borrow_mut(), cx)))?;
        }
        self.wait_in_turn(lock, timeout, poll)
    }

    #[track_caller]
    #[inline(never)]
    fn wait_in_turn<R>(
        &self,
        lock: &Lock,
        timeout: Option<Duration>,
        mut poll: impl FnMut(&mut Stream, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> io::Result<R> {
        let _held = match lock.try_hold() {
            Some(held) => held,
            None => try_wait(lock.hold())?,
        };
        let mut sleep = None; // Starts when `poll` is pending.
        try_wait(poll_fn(|cx| {
            let mut stream = self.0.stream.borrow_mut();
            if let Poll::Ready(result) = poll(&mut stream, cx) {
                return Poll::Ready(result);
            }
            let Some(timeout) = timeout else {
                return Poll::Pending;
            };
            let sleep = sleep.get_or_insert_with(|| stream.context().sleep(timeout));
            Pin::new(sleep)
                .poll(cx)
                .map(|()| Err(io::ErrorKind::WouldBlock.into()))
        }))?
    }
}

fn set_timeout(cell: &Cell<Option<Duration>>, timeout: Option<Duration>) -> io::Result<()> {
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        let what = "a time-out of no time";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    cell.set(timeout);
    Ok(())
}

/// The result of the first of `addresses` that succeeds; otherwise the error of the last one.
fn first<R>(
    addresses: Vec<SocketAddr>,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    let mut last = io::ErrorKind::InvalidInput.into();
    for address in addresses {
        match attempt(address) {
            Ok(result) => return Ok(result),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for &TcpStream {
    #[track_caller]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (lock, timeout) = (&self.0.reading, self.0.read_timeout.get());
        self.wait(lock, timeout, |stream, cx| {
            stream.poll_read_resuming(cx, into, resume_memory)
        })
    }
}

impl Write for &TcpStream {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (lock, timeout) = (&self.0.writing, self.0.write_timeout.get());
        self.wait(lock, timeout, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    #[track_caller]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(into)
    }
}

impl Write for TcpStream {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpStream")
            .field("peer", &self.peer_addr().ok())
            .finish()
    }
}
