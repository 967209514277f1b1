//! The kernel calls on sockets that every bare loop makes. Must not know requests.

use std::{
    io,
    net::TcpListener,
    os::fd::{AsRawFd, OwnedFd},
};

/// Connections the kernel queues before it refuses more, as far as it is allowed to.
const BACKLOG: libc::c_int = 16 * 1024;

/// How long the kernel waits for a first byte before it offers a connection without one.
const FIRST_BYTE_SECONDS: libc::c_int = 1;

/// Listens on `port` of the loopback address, without blocking. Connections send at once what
/// they are given; they have that from the listener, so that it costs no call for each.
///
/// # Errors
/// As `bind` and `listen` fail.
pub fn listen(port: u16) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    set_option(
        listener.as_raw_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        1,
    )?;
    // SAFETY: a call on a descriptor that `listener` holds open. It only enlarges the backlog.
    check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) })?;
    Ok(listener.into())
}

/// Connections are offered once their first bytes have come, so that the first receive succeeds.
/// For loops whose connections carry one request.
///
/// # Errors
/// As `setsockopt` fails.
pub fn accept_with_data(listener: &OwnedFd) -> io::Result<()> {
    let (socket, name) = (listener.as_raw_fd(), libc::TCP_DEFER_ACCEPT);
    set_option(socket, libc::IPPROTO_TCP, name, FIRST_BYTE_SECONDS)
}

/// Sets an option of a socket that is a number.
///
/// # Errors
/// As `setsockopt` fails.
pub fn set_option(
    socket: i32,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes at `value`, which outlives the call.
    check(unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) })
        .map(drop)
}

/// The next connection that waits, which does not block; `None` when there is none now.
#[inline]
pub fn accept(listener: &OwnedFd) -> Option<i32> {
    let none = std::ptr::null_mut::<libc::c_void>;
    // SAFETY: no address is asked for, so the kernel writes nothing.
    let socket = unsafe {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        libc::accept4(listener.as_raw_fd(), none().cast(), none().cast(), flags)
    };
    (socket >= 0).then_some(socket)
}

/// What receiving came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The connection has ended, or failed.
    End,
}

/// Receives once into `buffer`, without blocking.
#[inline]
pub fn receive(socket: i32, buffer: &mut [u8]) -> Received {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
    let len = unsafe {
        let start = buffer.as_mut_ptr().cast();
        libc::recv(socket, start, buffer.len(), libc::MSG_DONTWAIT)
    };
    received(len)
}

/// Takes at most `len` bytes out of the socket without copying them anywhere, without blocking.
#[inline]
pub fn discard(socket: i32, len: usize) -> Received {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: TCP does not write to the buffer when it is told to truncate, so there is none.
    received(unsafe { libc::recv(socket, std::ptr::null_mut(), len, flags) })
}

fn received(len: isize) -> Received {
    match len {
        1.. => Received::Bytes(len as usize),
        0 => Received::End,
        _ if would_block() => Received::Nothing,
        _ => Received::End,
    }
}

/// Whether the call that has just failed would succeed later.
#[inline]
pub fn would_block() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Whether the kernel holds an answer back for what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// It leaves now.
    Nothing,
    /// It leaves in one segment with what follows: more bytes, or the end of the connection.
    More,
}

/// Sends all of `bytes`. When they do not fit this waits, with every other connection, until they
/// do: that they fit is what is measured, and that none is lost is what makes it count.
#[inline]
pub fn send(socket: i32, bytes: &[u8], follows: Follows) {
    let more = if follows == Follows::More {
        libc::MSG_MORE
    } else {
        0
    };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: the kernel reads `rest.len()` bytes at `rest`, and keeps no reference to them.
        let len = unsafe { libc::send(socket, rest.as_ptr().cast(), rest.len(), flags) };
        match len {
            0.. => rest = &rest[len as usize..],
            _ if would_block() => wait_until_writable(socket),
            // The client has gone; receiving will say so.
            _ => return,
        }
    }
}

#[cold]
fn wait_until_writable(socket: i32) {
    let mut waited = libc::pollfd {
        fd: socket,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes the one entry it is told of, which outlives the call.
    unsafe { libc::poll(&raw mut waited, 1, -1) };
}

/// Ends a connection in both directions, sending what was held back; the descriptor stays open.
/// Whoever waits to receive from it is told the end.
#[inline]
pub fn shutdown(socket: i32) {
    // SAFETY: a call on a number; on one that is no connection it fails, and nothing depends on it.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Closes a connection's descriptor, which must not be used again.
#[inline]
pub fn close(socket: i32) {
    // SAFETY: the loops keep descriptors as numbers, and forget each when it is closed.
    unsafe { libc::close(socket) };
}

/// The result of a kernel call, or the error it left behind.
///
/// # Errors
/// That error, when `result` is negative.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
