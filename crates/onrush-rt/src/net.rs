//! Sockets: listening sockets, and streams that futures read and write.
//!
//! Connecting, reading and writing try the call first and wait for readiness only if it would
//! block. So no kernel operation refers to a caller's buffer, and every future here may be dropped
//! at any point. Servers do not use these streams: they handle the driver's events directly.
//!
//! Files, lowest first: `bind` · `closing` · `inherit` · this one. They do not depend on protocols.

mod bind;
mod closing;
mod inherit;

pub use bind::{Address, ListenMode, ListenOptions, accept_now, listen, share};
pub use closing::Closing;
pub use inherit::{established_stream, inherited_listener, socket_id, spread};

use crate::coop;
use crate::driver::{Driver, ListenSocket, ListenerId, Socket, StreamId};
use crate::sources::{ACCEPTED_AHEAD_MAX, Accepting, RUNTIME, Source};
use crate::worker::WorkerContext;
use bind::{NEW, family};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::task::{Context, Poll, Waker, ready};

/// What is known about the other end of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A program at this address.
    Tcp(SocketAddr),
    /// A program of this machine: the socket is a Unix socket, or a simulated one.
    Local,
    /// The peer has disconnected, so its address is not known any more.
    Gone,
}

/// What counts as one client: an IPv6 network of 64 bits, because each of its hosts can use all of
/// it; otherwise the address. An IPv4 address that is mapped into IPv6 is itself.
///
/// ```
/// use onrush_rt::net::client_network;
///
/// let client = |text: &str| client_network(text.parse().unwrap());
/// assert_eq!(client("2001:db8:1:2::3"), client("2001:db8:1:2:ffff::4"));
/// assert_ne!(client("2001:db8:1:2::3"), client("2001:db8:1:3::3"));
/// assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
/// assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
/// ```
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(network.into())
        }
        address => address,
    }
}

/// The peer of a connected socket (`getpeername(2)`).
pub fn peer(descriptor: impl AsFd) -> Peer {
    match rustix::net::getpeername(descriptor) {
        Ok(Some(name)) => SocketAddr::try_from(name).map_or(Peer::Local, Peer::Tcp),
        Ok(None) => Peer::Local, // A Unix socket without a name.
        Err(_) => Peer::Gone,
    }
}

impl Socket {
    /// The peer of the socket.
    pub fn peer(&self) -> Peer {
        match self {
            Socket::Os(descriptor) => peer(descriptor),
            Socket::Sim(_) => Peer::Local,
        }
    }
}

impl Driver {
    /// The peer of a stream.
    pub fn peer(&self, stream: StreamId) -> Peer {
        match self {
            Driver::Sim(_) => Peer::Local,
            Driver::Uring(_) | Driver::Epoll(_) => self.descriptor(stream).map_or(Peer::Gone, peer),
        }
    }
}

/// The address of [`peer`], if it has one.
pub fn peer_address(descriptor: impl AsFd) -> Option<SocketAddr> {
    match peer(descriptor) {
        Peer::Tcp(address) => Some(address),
        Peer::Local | Peer::Gone => None,
    }
}

/// The local address of a connected socket (`getsockname(2)`). For a Unix socket it is the path of
/// its listener. `None` for simulated sockets and Unix sockets without a path.
pub fn local_address(descriptor: impl AsFd) -> Option<Address> {
    let name = rustix::net::getsockname(descriptor).ok()?;
    if let Ok(address) = SocketAddr::try_from(name.clone()) {
        return Some(Address::Tcp(address));
    }
    let path = SocketAddrUnix::try_from(name).ok()?;
    let path = path.path_bytes().filter(|path| !path.is_empty())?;
    Some(Address::Unix(OsStr::from_bytes(path).into()))
}

/// A connected stream socket: TCP, Unix or simulated. Dropping it closes it.
///
/// # Examples
/// ```
/// use onrush_rt::driver::{Socket, sim::{Behaviour, Net}};
/// use onrush_rt::net::Stream;
/// use onrush_rt::worker::Worker;
///
/// let net = Net::new(1, Behaviour::default());
/// let mut worker = Worker::simulated(net.clone(), 0)?;
/// let (one, other) = net.pair();
/// let mut sender = Stream::new(worker.context(), Socket::Sim(one))?;
/// let mut receiver = Stream::new(worker.context(), Socket::Sim(other))?;
/// let received = worker.block_on(async {
///     sender.write_all(b"hello").await?;
///     sender.shutdown_write();
///     let (mut all, mut part) = (Vec::new(), [0; 100]);
///     loop {
///         match receiver.read(&mut part).await? {
///             0 => return std::io::Result::Ok(all), // The end of the stream.
///             bytes => all.extend_from_slice(&part[..bytes]),
///         }
///     }
/// })??;
/// assert_eq!(received, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
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

    /// Stores the waker of `cx` as the reader's, and the memory that the reader uses first when it
    /// continues, if that is known: it is prefetched then.
    fn wait_readable(&self, cx: &mut Context<'_>, memory: Option<NonZeroUsize>) {
        let before = self.store_waker(cx, |source| {
            source.reader_memory = memory;
            &mut source.reader
        });
        self.context.driver().want_read(self.id);
        drop(before); // Outside the borrow: its destructor may do anything.
    }

    fn wait_writable(&self, cx: &mut Context<'_>) {
        let before = self.store_waker(cx, |source| &mut source.writer);
        self.context.driver().want_write(self.id);
        drop(before); // Outside the borrow: its destructor may do anything.
    }

    /// Replaces a waker of the stream by that of `cx`; returns the previous one.
    fn store_waker(
        &self,
        cx: &mut Context<'_>,
        place: impl FnOnce(&mut Source) -> &mut Option<Waker>,
    ) -> Option<Waker> {
        let waker = cx.waker().clone(); // Before the borrow: this may be user code.
        let mut streams = self.context.sources().streams.borrow_mut();
        place(&mut streams[self.source]).replace(waker)
    }

    /// Makes `call` once, within the cooperative budget. If it would block, calls `wait`, which has
    /// the task woken when the call may be tried again.
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        call: impl FnOnce(&mut Driver, StreamId) -> io::Result<usize>,
        wait: impl FnOnce(&Stream, &mut Context<'_>),
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let result = call(&mut self.context.driver(), self.id);
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(self, cx);
                Poll::Pending
            }
            result => {
                coop::spend(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
        }
    }

    /// Reads bytes that have arrived, waiting for the first; 0 at the end of the stream.
    pub async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, into)).await
    }

    /// [`Stream::read`] as a poll.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read_resuming(cx, into, || None)
    }

    /// [`Stream::poll_read`] by a reader that names the memory that it uses first when it
    /// continues. `memory` is called if the reader has to wait.
    #[inline]
    pub fn poll_read_resuming(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
        memory: impl FnOnce() -> Option<NonZeroUsize>,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(
            cx,
            |driver, id| driver.recv(id, into),
            |stream, cx| stream.wait_readable(cx, memory()),
        )
    }

    /// Writes some of `bytes`, waiting until the socket takes any.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| self.poll_write(cx, bytes)).await
    }

    /// [`Stream::write`] as a poll.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let send = |driver: &mut Driver, id| driver.send(id, bytes);
        self.poll_io(cx, send, Stream::wait_writable)
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
    pub fn with_descriptor<R>(
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
///
/// # Examples
/// ```
/// use onrush_rt::net::{Address, ListenMode, ListenOptions, Listener, Stream, listen};
/// # use onrush_rt::driver::{Config, Preference, choose};
/// # use onrush_rt::worker::{Pools, Worker};
/// # let config = Config::default();
/// # let choice = choose(Preference::Auto, &config)?;
/// # let mut worker = Worker::new(&choice, &config, Pools::inline(), 0)?;
///
/// let any = Address::Tcp(([127, 0, 0, 1], 0).into());
/// let (mut sockets, address) = listen(&any, ListenMode::Shared, 1, &ListenOptions::default())?;
/// let Address::Tcp(address) = address else { unreachable!("as requested") };
/// let context = worker.context().clone();
/// let mut listener = Listener::new(&context, sockets.remove(0))?;
/// let received = worker.block_on(async {
///     let server = context.spawn(async move {
///         let mut stream = listener.accept().await?;
///         stream.write_all(b"hello").await
///     });
///     let mut client = Stream::connect(&context, address).await?;
///     let mut bytes = [0; 100];
///     let received = client.read(&mut bytes).await?;
///     server.await?;
///     std::io::Result::Ok(bytes[..received].to_vec())
/// })??;
/// assert_eq!(received, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
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
