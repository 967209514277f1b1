//! The system calls of the bare loops on sockets.

use std::{
    io::{self, IoSlice},
    net::TcpListener,
    os::fd::{AsRawFd, OwnedFd},
};

/// Connections that the kernel queues, up to its own limit (`net.core.somaxconn`).
const BACKLOG: libc::c_int = 16 * 1024;

/// How long the kernel waits for the first byte of a connection before it offers the connection
/// without it.
const FIRST_BYTE_SECONDS: libc::c_int = 1;

/// Listens on `port` of the loopback address with a non-blocking socket. Connections inherit
/// `TCP_NODELAY` from it, which saves one call for each.
///
/// # Errors
/// `bind`, `setsockopt` or `listen` fails.
pub fn listen(port: u16) -> io::Result<OwnedFd> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    set_option(
        listener.as_raw_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        1,
    )?;
    // SAFETY: `listener` owns the open descriptor. The call only enlarges the backlog.
    check(unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) })?;
    Ok(listener.into())
}

/// Makes the kernel offer connections after their first bytes have arrived, so that the first
/// receive succeeds. For loops with one request per connection.
///
/// # Errors
/// `setsockopt` fails.
pub fn accept_with_data(listener: &OwnedFd) -> io::Result<()> {
    let (socket, name) = (listener.as_raw_fd(), libc::TCP_DEFER_ACCEPT);
    set_option(socket, libc::IPPROTO_TCP, name, FIRST_BYTE_SECONDS)
}

/// Sets a socket option whose value is a number.
///
/// # Errors
/// `setsockopt` fails.
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

/// Accepts the next waiting connection as a non-blocking socket. `None` if none is waiting.
#[inline]
pub fn accept(listener: &OwnedFd) -> Option<i32> {
    let none = std::ptr::null_mut::<libc::c_void>;
    // SAFETY: the address is null, so the kernel writes nothing.
    let socket = unsafe {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        libc::accept4(listener.as_raw_fd(), none().cast(), none().cast(), flags)
    };
    (socket >= 0).then_some(socket)
}

/// The result of receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The number of bytes, at least one.
    Bytes(usize),
    /// No data has arrived.
    Nothing,
    /// The connection has ended or failed.
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

/// Discards at most `len` received bytes inside the kernel, without blocking.
#[inline]
pub fn discard(socket: i32, len: usize) -> Received {
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: with `MSG_TRUNC`, TCP does not write to the buffer, so the buffer may be null.
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

/// Whether the last call failed because the socket is not ready (`EAGAIN`).
#[inline]
pub fn would_block() -> bool {
    io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

/// Whether the kernel delays bytes until others follow (`MSG_MORE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The bytes leave now.
    Nothing,
    /// The bytes leave in one segment with what follows: more bytes, or the end of the connection.
    More,
}

/// Sends all of `bytes`. If they do not fit into the socket's buffer, it blocks the whole loop
/// until they do. This does not happen on the measured path, but no response may be lost.
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
            // The client has closed the connection. The next receive reports that.
            _ => return,
        }
    }
}

/// Sends as much of `parts` as the socket's buffer has room for, with one call. Returns the number
/// of bytes.
///
/// # Errors
/// There is no room (`WouldBlock`), or the connection has failed.
#[inline]
pub fn send_parts(socket: i32, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: a message header of zeros is valid: it has no address, no parts and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // An `IoSlice` has the layout of an `iovec`. The kernel only reads it.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len();
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the kernel reads the parts, which outlive the call, and keeps no reference to them.
    let len = unsafe { libc::sendmsg(socket, &raw const message, flags) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Waits until a connection is writable, or has failed. Blocks the whole loop.
#[cold]
pub fn wait_until_writable(socket: i32) {
    let mut waited = libc::pollfd {
        fd: socket,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: the kernel reads and writes only this entry, which outlives the call.
    unsafe { libc::poll(&raw mut waited, 1, -1) };
}

/// Ends a connection in both directions, and sends delayed bytes. The descriptor stays open, and a
/// pending receive reports the end.
#[inline]
pub fn shutdown(socket: i32) {
    // SAFETY: the call accesses no memory. It fails if `socket` is no connection, and nothing
    // depends on its result.
    unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
}

/// Closes the descriptor of a connection, which must not be used again.
#[inline]
pub fn close(socket: i32) {
    // SAFETY: the loops store descriptors as numbers, and drop each number when they close it.
    unsafe { libc::close(socket) };
}

/// The result of a system call.
///
/// # Errors
/// The error in `errno` if `result` is negative.
pub fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
