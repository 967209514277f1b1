//! Accepts, sends and receives by plain system calls, as both kernel drivers do.
//!
//! Does not depend on drivers.

use crate::fs::File;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;

const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Accepts one connection without waiting (`accept4(2)`).
pub(crate) fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::accept_with(listener, flags)
}

/// Whether an accept failed because of one connection, or was interrupted (accept(2)). The next one
/// may succeed at once.
pub(crate) fn may_accept_next(error: Errno) -> bool {
    matches!(
        error,
        Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::PERM
    )
}

#[inline]
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    retry(|| rustix::net::send(fd, bytes, SEND))
}

pub(crate) fn send_more(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    retry(|| rustix::net::send(fd, bytes, SEND | SendFlags::MORE))
}

pub(crate) fn send_vectored(fd: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    retry(|| {
        let mut control = SendAncillaryBuffer::default();
        rustix::net::sendmsg(fd, parts, &mut control, SEND)
    })
}

pub(crate) fn send_file(
    fd: BorrowedFd<'_>,
    file: &File,
    offset: u64,
    bytes: usize,
) -> io::Result<usize> {
    let Some(from) = file.as_fd() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    retry(|| rustix::fs::sendfile(fd, from, Some(&mut offset.clone()), bytes))
}

#[inline]
pub(crate) fn recv(fd: BorrowedFd<'_>, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    let flags = RecvFlags::DONTWAIT;
    retry(|| rustix::net::recv(fd, &mut *into, flags).map(|((filled, _), _)| filled.len()))
}

/// How a stream ended that is not being received from; `None` while it has not ended, or holds
/// bytes that were not received. A failure is reported although such bytes are there.
pub(crate) fn find_end(fd: BorrowedFd<'_>) -> Option<io::Result<()>> {
    if let Ok(Err(error)) = rustix::net::sockopt::socket_error(fd) {
        return Some(Err(error.into()));
    }
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let mut byte = [0_u8];
    match retry(|| rustix::net::recv(fd, &mut byte[..], flags).map(|(_, bytes)| bytes)) {
        Ok(0) => Some(Ok(())),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(error)),
    }
}

pub(crate) fn discard(fd: BorrowedFd<'_>, discard_buffer: &mut [u8]) -> io::Result<usize> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    retry(|| rustix::net::recv(fd, &mut *discard_buffer, flags).map(|(filled, _)| filled))
}

#[inline]
fn retry(mut call: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_reports_an_empty_queue_and_skips_failed_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = OwnedFd::from(listener);
        let empty = accept(&listener).unwrap_err();
        assert_eq!(empty, Errno::AGAIN);
        assert!(!may_accept_next(empty) && !may_accept_next(Errno::MFILE));
        assert!(may_accept_next(Errno::CONNABORTED));
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = accept(&listener).unwrap();
        let flags = rustix::fs::fcntl_getfl(&accepted).unwrap();
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
    }
}
