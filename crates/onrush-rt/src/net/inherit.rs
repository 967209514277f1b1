//! Listening sockets that exist already: left open by the program that started this one, as
//! systemd does (sd_listen_fds(3)), or sent by another process.

use super::bind::{ListenOptions, avoid_pacing};
use crate::driver::{ListenSocket, Socket};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io;
use std::sync::{Mutex, PoisonError};

/// The first number that is not a standard stream.
const FIRST: RawFd = 3;

/// Takes the listening socket with this descriptor number, which the process had when it was
/// started. Afterwards the socket is not inherited by child processes, and cannot be taken again.
///
/// Call it before the program opens descriptors of its own without `O_CLOEXEC`.
///
/// # Errors
/// - `InvalidInput`: the number is that of a standard stream, or the descriptor is not a listening
///   stream socket of IPv4, IPv6 or Unix.
/// - `AlreadyExists`: the descriptor has `FD_CLOEXEC`, so it was not inherited, or was taken.
/// - `EBADF`: no descriptor has this number.
#[allow(unsafe_code)]
pub fn inherited_listener(number: RawFd) -> io::Result<OwnedFd> {
    /// Held from the check of the flag until it is set.
    static TAKING: Mutex<()> = Mutex::new(());

    let refused = |kind, why: &str| Err(io::Error::new(kind, format!("descriptor {number} {why}")));
    if number < FIRST {
        return refused(io::ErrorKind::InvalidInput, "is a standard stream");
    }
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: not -1. The borrow is used for system calls that fail if the number is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if rustix::io::fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return refused(
            io::ErrorKind::AlreadyExists,
            "was not inherited, or is taken",
        );
    }
    let family = sockopt::socket_domain(borrowed);
    let is_family = matches!(
        family,
        Ok(AddressFamily::INET | AddressFamily::INET6 | AddressFamily::UNIX)
    );
    let is_stream = sockopt::socket_type(borrowed) == Ok(SocketType::STREAM);
    if !is_family || !is_stream || sockopt::socket_acceptconn(borrowed) != Ok(true) {
        return refused(
            io::ErrorKind::InvalidInput,
            "is not a listening stream socket",
        );
    }
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open. Nothing in this process owns it: what a Rust program opens
    // has FD_CLOEXEC, and this had not. It has it now, so this function returns it once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The socket of a connection that another process has accepted, for a driver. Makes it
/// non-blocking (`FIONBIO`), because some system calls of a worker have no flag for that.
///
/// # Errors
/// - `InvalidInput`: it is not a stream socket, or it listens.
/// - The error of `ioctl(2)`.
pub fn established_stream(socket: OwnedFd) -> io::Result<Socket> {
    let is_stream = sockopt::socket_type(&socket) == Ok(SocketType::STREAM);
    if !is_stream || sockopt::socket_acceptconn(&socket) != Ok(false) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(Socket::Os(socket))
}

/// A number that only the duplicates of one socket have (`SO_COOKIE`, socket(7)).
pub fn socket_id(socket: impl AsFd) -> io::Result<u64> {
    Ok(sockopt::socket_cookie(socket)?)
}

/// Distributes listening sockets of one address to workers. Each inner list has a socket for each
/// of `workers`. No socket is left out; if there are fewer sockets than workers, or the numbers do
/// not divide, workers share some. `options` apply to the sockets, except for the backlog and
/// `SO_REUSEPORT`. Without sockets the result is empty.
pub fn spread(
    sockets: &[OwnedFd],
    workers: usize,
    options: &ListenOptions,
) -> io::Result<Vec<Vec<ListenSocket>>> {
    for socket in sockets {
        prepare(socket, options)?;
    }
    let socket = |position: usize| {
        let socket = &sockets[position % sockets.len()];
        Ok(ListenSocket::Os(socket.try_clone()?))
    };
    let lists = sockets.len().div_ceil(workers);
    let list = |list: usize| (list * workers..(list + 1) * workers).map(socket).collect();
    (0..lists).map(list).collect()
}

/// Makes a listening socket non-blocking and sets its options. Those of TCP have no effect on Unix
/// sockets.
fn prepare(socket: &OwnedFd, options: &ListenOptions) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    match options.defer_accept {
        true => sys::set_defer_accept(socket.as_fd()),
        false => sys::clear_defer_accept(socket.as_fd()),
    }
    sys::set_unsent_max(socket.as_fd(), options.unsent_bytes_max);
    avoid_pacing(socket);
    if options.nodelay {
        let _ = sockopt::set_tcp_nodelay(socket, true); // Not a TCP socket.
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsRawFd, IntoRawFd};
    use rustix::fs::fstat;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixListener, UnixStream};

    /// A copy of a descriptor that a child process would inherit.
    fn inheritable(descriptor: impl AsFd) -> RawFd {
        rustix::io::dup(descriptor).unwrap().into_raw_fd()
    }

    fn kind(number: RawFd) -> io::ErrorKind {
        inherited_listener(number).expect_err("refused").kind()
    }

    #[test]
    fn only_connections_are_taken_from_others() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let taken = established_stream(one.into()).expect("a stream");
        let Socket::Os(taken) = &taken else {
            panic!("a socket of the kernel");
        };
        let flags = rustix::fs::fcntl_getfl(taken).expect("flags");
        assert!(flags.contains(rustix::fs::OFlags::NONBLOCK));
        drop(other);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let file = std::fs::File::open("/dev/null").expect("a file");
        for wrong in [OwnedFd::from(listener), datagrams.into(), file.into()] {
            let refused = established_stream(wrong).expect_err("not a connection");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_listener_is_taken_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = inheritable(&listener);
        let taken = inherited_listener(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(
            rustix::io::fcntl_getfd(&taken)
                .unwrap()
                .contains(FdFlags::CLOEXEC)
        );
        assert_eq!(kind(number), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn other_descriptors_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (pair, _other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let others = [
            inheritable(&connected),
            inheritable(&pair),
            inheritable(&file),
            inheritable(&datagrams),
        ];
        for number in others {
            assert_eq!(kind(number), io::ErrorKind::InvalidInput);
        }
        assert_eq!(kind(0), io::ErrorKind::InvalidInput);
        assert_eq!(kind(-1), io::ErrorKind::InvalidInput);
        assert_eq!(kind(listener.as_raw_fd()), io::ErrorKind::AlreadyExists);
        let unopened = inherited_listener(1 << 28).expect_err("not open");
        assert_eq!(unopened.raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn every_socket_has_a_worker_and_every_worker_a_socket() {
        let folder = std::env::temp_dir();
        let path = |n: usize| folder.join(format!("spread-{}-{n}", std::process::id()));
        for (sockets, workers, lists) in [(1, 1, 1), (1, 3, 1), (2, 3, 1), (4, 2, 2), (5, 2, 3)] {
            let listeners: Vec<OwnedFd> = (0..sockets)
                .map(|n| {
                    let listener = UnixListener::bind(path(n)).unwrap();
                    std::fs::remove_file(path(n)).unwrap();
                    listener.into()
                })
                .collect();
            let spread = spread(&listeners, workers, &ListenOptions::default()).unwrap();
            assert_eq!(spread.len(), lists);
            let mut inodes: Vec<u64> = Vec::new();
            for list in spread {
                assert_eq!(list.len(), workers);
                inodes.extend(list.iter().map(|socket| match socket {
                    ListenSocket::Os(socket) => fstat(socket).unwrap().st_ino,
                    ListenSocket::Sim(_) => unreachable!("not simulated"),
                }));
            }
            inodes.sort_unstable();
            inodes.dedup();
            assert_eq!(inodes.len(), sockets, "{sockets} for {workers}");
        }
        assert!(
            spread(&[], 2, &ListenOptions::default())
                .unwrap()
                .is_empty()
        );
    }
}
