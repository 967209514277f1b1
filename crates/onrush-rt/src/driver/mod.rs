//! Drivers: they turn kernel readiness and completions into one stream of [`Event`]s.
//!
//! A driver is *pulled*: [`Driver::poll_events`] enters the kernel once, then [`Driver::next`]
//! yields events one at a time. On epoll, `next` receives the bytes of a readable stream, so they
//! are still in the cache; on io_uring, the bytes are in ring-mapped buffers already. On both, a
//! send is tried at once by a plain non-blocking call. Only if the peer is slow does the driver
//! wait, and then for writability, so no operation ever owns the caller's memory.
//!
//! Each stream has a receive state: *buffers* (the driver receives into pooled blocks and yields
//! [`Event::Data`]) or *off*. While it is off, the owner can wait for *readiness* and read with
//! [`Driver::recv`] into its own memory. Leaving *buffers* may take the kernel a moment:
//! [`Driver::pause`] returns whether receiving stops at once; otherwise [`Event::ReceiveStopped`]
//! follows.
//!
//! Modules, lowest first: `direct`, `event`, `slots`, `bufring` · [`epoll`], [`uring`], [`sim`] ·
//! [`probe`]. They do not depend on tasks, timers or HTTP.

mod bufring;
mod direct;
pub mod epoll;
mod event;
pub mod probe;
pub mod sim;
mod slots;
pub mod uring;

use crate::fs::File;
use rustix::fd::OwnedFd;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

pub use event::Event;
pub use probe::{Choice, Preference, choose};

/// Identifies a stream of a driver. After the stream is closed, the id is stale and refers to no
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Identifies a listener of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId(pub(crate) u32);

/// A connected socket of the kernel or of the simulated network.
#[derive(Debug)]
pub enum Socket {
    /// A non-blocking socket descriptor.
    Os(OwnedFd),
    /// One end of a simulated connection.
    Sim(sim::End),
}

/// A listening socket of the kernel or of the simulated network.
#[derive(Debug)]
pub enum ListenSocket {
    /// A non-blocking listening descriptor.
    Os(OwnedFd),
    /// A simulated listener.
    Sim(sim::Listener),
}

/// The sizes of a driver's buffers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Receive buffers posted to the ring at a time; a power of two. io_uring only.
    pub ring_buffers: u16,
    /// Size of one ring buffer, in bytes.
    pub ring_buffer_bytes: usize,
    /// Size of the receive buffer on epoll, in bytes.
    pub epoll_buffer_bytes: usize,
    /// Cap on the receive memory of one worker, in bytes.
    pub receive_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            ring_buffers: 256,
            ring_buffer_bytes: 4096,
            epoll_buffer_bytes: 16 * 1024,
            receive_bytes_max: 256 << 20,
        }
    }
}

/// Connections that a driver reports per iteration from one queue, so that a burst of new
/// connections does not delay established ones.
pub(crate) const ACCEPT_BATCH: u32 = 256;

/// Longest time a listener stays paused after accepting failed.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The driver of one worker. An enum, so that no signature has a type parameter for it.
///
/// # Examples
/// ```
/// use onrush_rt::driver::sim::{Behaviour, Net, SimDriver};
/// use onrush_rt::driver::{Driver, Event};
/// use std::time::Duration;
///
/// let behaviour = Behaviour { split: false, ..Behaviour::default() };
/// let net = Net::new(1, behaviour);
/// let mut driver = Driver::Sim(Box::new(SimDriver::new(net.clone(), 1 << 20)));
/// let (socket, address) = net.listen();
/// driver.listen(socket)?;
/// let client = address.connect()?;
/// client.send(b"hello")?;
/// let mut received = Vec::new();
/// while received.len() < 5 {
///     driver.poll_events(Some(Duration::ZERO))?; // Enters the kernel once.
///     while let Some(event) = driver.next() {
///         match event {
///             Event::Accepted { socket, .. } => {
///                 let stream = driver.attach(socket, 7)?; // Its events have the token 7.
///                 driver.receive(stream);
///             }
///             Event::Data { data, token: 7, .. } => received.extend_from_slice(&data),
///             _ => {}
///         }
///     }
/// }
/// assert_eq!(received, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub enum Driver {
    /// io_uring: multishot accept and receive, ring-mapped buffers.
    Uring(Box<uring::Uring>),
    /// epoll, edge-triggered.
    Epoll(Box<epoll::Epoll>),
    /// The simulated network and clock.
    Sim(Box<sim::SimDriver>),
}

macro_rules! each {
    ($self:ident, $driver:ident => $call:expr) => {
        match $self {
            Driver::Uring($driver) => $call,
            Driver::Epoll($driver) => $call,
            Driver::Sim($driver) => $call,
        }
    };
}

impl Driver {
    /// Enters the kernel once: submits what is queued and waits up to `timeout` for an event
    /// (`None`: without limit; zero: not at all).
    ///
    /// Fails only when the driver itself is broken; a worker cannot continue then.
    pub fn poll_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        each!(self, driver => driver.poll_events(timeout))
    }

    /// The next event, or `None` when [`Driver::poll_events`] must be called.
    #[inline]
    #[allow(clippy::should_implement_trait)] // Not an iterator: others call in between.
    pub fn next(&mut self) -> Option<Event> {
        each!(self, driver => driver.next())
    }

    /// Whether events are ready without a system call: the next iteration must not sleep.
    pub fn has_ready(&self) -> bool {
        each!(self, driver => driver.has_ready())
    }

    /// Starts accepting.
    pub fn listen(&mut self, socket: ListenSocket) -> io::Result<ListenerId> {
        each!(self, driver => driver.listen(socket))
    }

    /// Stops accepting until [`Driver::accept_again`]: new connections wait in the kernel's queue
    /// (listen(2)). Connections that were already being accepted are still reported.
    pub fn hold_accepting(&mut self, listener: ListenerId) {
        each!(self, driver => driver.hold_accepting(listener));
    }

    /// Accepts again after [`Driver::hold_accepting`].
    pub fn accept_again(&mut self, listener: ListenerId) {
        each!(self, driver => driver.accept_again(listener));
    }

    /// Stops accepting and closes the listener. Connections that are queued at it are first
    /// reported, in the next iterations. See [`Driver::is_listening`].
    pub fn unlisten(&mut self, listener: ListenerId) {
        each!(self, driver => driver.unlisten(listener));
    }

    /// Whether any listener is open, including one that is being emptied.
    pub fn is_listening(&self) -> bool {
        each!(self, driver => driver.is_listening())
    }

    /// Takes over a connected socket. Receiving is off.
    pub fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        each!(self, driver => driver.attach(socket, token))
    }

    /// Starts to receive into pooled buffers. Yields `Data`, then one `End`.
    #[inline]
    pub fn receive(&mut self, stream: StreamId) {
        each!(self, driver => driver.receive(stream));
    }

    /// Stops receiving into pooled buffers. `true`: receiving has stopped; `false`: `Data` may
    /// still come, then `ReceiveStopped` (or `End`).
    pub fn pause(&mut self, stream: StreamId) -> bool {
        each!(self, driver => driver.pause(stream))
    }

    /// Reports the end of a paused stream: one `End` when the connection fails (`SO_ERROR`,
    /// socket(7)), or when the peer ends it and nothing is left to receive. To be called after
    /// [`Driver::pause`]; valid until the stream receives again. An owner that waits for `Readable`
    /// gets that event instead.
    pub fn watch_end(&mut self, stream: StreamId) {
        each!(self, driver => driver.watch_end(stream));
    }

    /// Receives into `into` without waiting (`recv(2)`); `Ok(0)` is the end of the stream. Use it
    /// only while the stream is paused and receiving has stopped.
    pub fn recv(&mut self, stream: StreamId, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: every driver's receive writes initialised bytes only.
        #[allow(unsafe_code)]
        let into = unsafe { crate::sys::writable(into) };
        each!(self, driver => driver.recv(stream, into))
    }

    /// Appends up to `bytes_max` bytes to `into`, within its spare capacity, as
    /// [`Driver::recv`] does; `Ok(0)` is the end of the stream.
    pub fn recv_append(
        &mut self,
        stream: StreamId,
        into: &mut Vec<u8>,
        bytes_max: usize,
    ) -> io::Result<usize> {
        each!(self, driver => {
            // SAFETY: every driver's receive returns the number of bytes it wrote to the front.
            #[allow(unsafe_code)]
            unsafe {
                crate::sys::append(into, bytes_max, |spare| driver.recv(stream, spare))
            }
        })
    }

    /// Receives up to `discard_buffer.len()` bytes and drops them, like [`Driver::recv`]. On TCP
    /// the kernel does not copy them (`MSG_TRUNC`, tcp(7)): `discard_buffer` only gives the length
    /// and its memory is not touched.
    pub fn discard(&mut self, stream: StreamId, discard_buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Driver::Epoll(driver) => driver.discard(stream, discard_buffer),
            _ => match self.descriptor(stream) {
                Some(fd) => direct::discard(fd, discard_buffer),
                None => self.recv(stream, discard_buffer),
            },
        }
    }

    /// Requests one `Readable` event, after [`Driver::recv`] returned `WouldBlock`.
    pub fn want_read(&mut self, stream: StreamId) {
        each!(self, driver => driver.want_read(stream));
    }

    /// Makes the stream readable only when this many bytes have arrived, or its end, or all that
    /// the kernel's buffer holds (`SO_RCVLOWAT`, socket(7)): one wake-up then delivers many bytes.
    /// The default is 1. Unix sockets ignore it, and so does [`Driver::recv`].
    pub fn set_low_water(&mut self, stream: StreamId, bytes: u32) {
        match self {
            Driver::Sim(driver) => driver.set_low_water(stream, bytes),
            _ => {
                if let Some(fd) = self.descriptor(stream) {
                    crate::sys::set_receive_low_water(fd, bytes);
                }
            }
        }
    }

    /// Changes the limit of
    /// [`unsent_bytes_max`](crate::net::ListenOptions::unsent_bytes_max) for this stream, in bytes;
    /// 0 for no limit but the send buffer. For a peer that has shown that it reads, fewer and
    /// longer calls cost less. What the kernel has taken already stays.
    pub fn set_unsent_max(&mut self, stream: StreamId, bytes: u32) {
        if let Some(fd) = self.descriptor(stream) {
            crate::sys::set_unsent_max(fd, bytes);
        }
    }

    /// Whether the peer has sent bytes that no event has delivered: they are in the kernel
    /// (`FIONREAD`, tcp(7)), where closing would reset the connection, or io_uring has received
    /// them and their completion is not processed yet.
    pub fn has_unread(&mut self, stream: StreamId) -> bool {
        if let Driver::Uring(driver) = self
            && driver.has_completed_receive(stream)
        {
            return true;
        }
        self.unread_bytes(stream) > 0
    }

    /// Bytes of the peer that wait in the kernel (`FIONREAD`, tcp(7)). 0 when the id is stale.
    pub fn unread_bytes(&mut self, stream: StreamId) -> u64 {
        match self {
            Driver::Sim(driver) => driver.unread_bytes(stream),
            _ => self
                .descriptor(stream)
                .and_then(|fd| rustix::io::ioctl_fionread(fd).ok())
                .unwrap_or(0),
        }
    }

    /// Sends without waiting (`send(2)`, `MSG_NOSIGNAL`); returns the number of bytes taken.
    #[inline]
    pub fn send(&mut self, stream: StreamId, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Driver::Sim(driver) => driver.send(stream, bytes),
            _ => direct::send(self.descriptor(stream).ok_or_else(stale)?, bytes),
        }
    }

    /// Like [`Driver::send`], with the hint that more follows at once (`MSG_MORE`): a response head
    /// then shares a segment with the beginning of the file that follows.
    pub fn send_more(&mut self, stream: StreamId, bytes: &[u8]) -> io::Result<usize> {
        match self.descriptor(stream) {
            Some(fd) => direct::send_more(fd, bytes),
            None => self.send(stream, bytes),
        }
    }

    /// Sends from several slices without waiting (`sendmsg(2)`); returns the number of bytes taken.
    pub fn send_vectored(&mut self, stream: StreamId, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Driver::Sim(driver) => driver.send_vectored(stream, parts),
            _ => direct::send_vectored(self.descriptor(stream).ok_or_else(stale)?, parts),
        }
    }

    /// Sends up to `bytes` of a file from `offset`, without copying (`sendfile(2)`) and without
    /// waiting for the peer. Returns the number of bytes taken, 0 at the end of the file. It does
    /// wait for the disk to read bytes that are not in the page cache: see [`File::is_resident`].
    pub fn send_file(
        &mut self,
        stream: StreamId,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        match self {
            Driver::Sim(driver) => driver.send_file(stream, file, offset, bytes),
            _ => {
                let fd = self.descriptor(stream).ok_or_else(stale)?;
                direct::send_file(fd, file, offset, bytes)
            }
        }
    }

    /// Requests one `Writable` event, after a send returned `WouldBlock` or was partial.
    pub fn want_write(&mut self, stream: StreamId) {
        each!(self, driver => driver.want_write(stream));
    }

    /// [`Driver::want_write`] after a partial send. Such a send need not mean that the socket
    /// buffer is full: a signal ends a send early, too. `Writable` comes at once if there is room.
    pub fn want_write_anew(&mut self, stream: StreamId) {
        if let Driver::Epoll(driver) = self {
            driver.forget_write_watch(stream);
        }
        self.want_write(stream);
    }

    /// Ends the sending direction (`shutdown(2)`, `SHUT_WR`); receiving continues.
    pub fn shutdown_write(&mut self, stream: StreamId) {
        match self {
            Driver::Sim(driver) => driver.shutdown_write(stream),
            _ => {
                if let Some(fd) = self.descriptor(stream) {
                    // It fails only when the peer is gone, which the next receive reports.
                    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
                }
            }
        }
    }

    /// Closes the stream. No event for it follows. Bytes sent before still arrive at the peer,
    /// unless bytes of the peer are unread: the kernel resets the connection then.
    pub fn close(&mut self, stream: StreamId) {
        each!(self, driver => driver.close(stream));
    }

    /// Closes the stream with a reset (`SO_LINGER` 0), dropping what was not sent.
    pub fn reset(&mut self, stream: StreamId) {
        match self {
            // An operation in the ring may hold the socket open; closing it would begin an orderly
            // end.
            Driver::Uring(driver) => return driver.reset(stream),
            Driver::Sim(driver) => driver.before_reset(stream),
            Driver::Epoll(driver) => {
                if let Some(fd) = driver.descriptor(stream) {
                    // If this fails, the close is orderly.
                    let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
                }
            }
        }
        self.close(stream);
    }

    /// Returns the socket, for another worker or another protocol. The stream must be paused and
    /// must have stopped receiving, with no `Readable` or `Writable` requested. `None` when the id
    /// is stale.
    pub fn detach(&mut self, stream: StreamId) -> Option<Socket> {
        each!(self, driver => driver.detach(stream))
    }

    /// The kernel's descriptor of a stream, for socket options; `None` when simulated or stale.
    #[inline]
    pub fn descriptor(&self, stream: StreamId) -> Option<rustix::fd::BorrowedFd<'_>> {
        match self {
            Driver::Uring(driver) => driver.descriptor(stream),
            Driver::Epoll(driver) => driver.descriptor(stream),
            Driver::Sim(_) => None,
        }
    }

    /// Wakes the driver when another thread uses a [`crate::worker::Notifier`].
    pub(crate) fn watch_wakes(&mut self, eventfd: &OwnedFd) -> io::Result<()> {
        match self {
            Driver::Uring(driver) => driver.watch_wakes(eventfd),
            Driver::Epoll(driver) => driver.watch_wakes(eventfd),
            Driver::Sim(_) => Ok(()),
        }
    }

    /// `io_uring`, `epoll` or `sim`.
    pub fn name(&self) -> &'static str {
        match self {
            Driver::Uring(_) => "io_uring",
            Driver::Epoll(_) => "epoll",
            Driver::Sim(_) => "sim",
        }
    }
}

/// Given when the pause of each listener ends, returns the listeners to resume now, and the timeout
/// shortened to the next end. Reads the clock only if a listener is paused.
pub(crate) fn pauses_over(
    ends: impl Iterator<Item = Option<Instant>>,
    mut timeout: Option<Duration>,
) -> (Vec<usize>, Option<Duration>) {
    let (mut over, mut now) = (Vec::new(), None);
    for (index, end) in ends.enumerate() {
        let Some(end) = end else { continue };
        let now = *now.get_or_insert_with(Instant::now);
        if end <= now {
            over.push(index);
        } else {
            timeout = Some(timeout.map_or(end - now, |t| t.min(end - now)));
        }
    }
    (over, timeout)
}

/// The error for a stale id.
pub(crate) fn stale() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
