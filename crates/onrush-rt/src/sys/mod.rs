//! The kernel's structures and calls that no crate wraps, without policy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Memory that a receive writes to, as the drivers take it.
///
/// # Safety
/// Whoever is given it must write initialised bytes only.
#[allow(unsafe_code)]
pub(crate) unsafe fn writable(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout, and what is written stays initialised by this function's contract.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// Appends what `receive` writes to the front of the memory it is given, at most `bytes_max`.
///
/// # Safety
/// `receive` must give no more than the number of bytes it has written to the front.
///
/// # Panics
/// When there is no room at all: 0 bytes received would read as the end of the stream.
#[allow(unsafe_code)]
pub(crate) unsafe fn append(
    into: &mut Vec<u8>,
    bytes_max: usize,
    receive: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
) -> io::Result<usize> {
    let spare = into.spare_capacity_mut();
    let room = spare.len().min(bytes_max);
    assert!(room > 0, "receiving needs room");
    let received = receive(&mut spare[..room])?;
    assert!(received <= room);
    // SAFETY: so many bytes of the spare room are written, by this function's contract.
    unsafe { into.set_len(into.len() + received) };
    Ok(received)
}

/// `SO_RCVLOWAT` (socket(7)): the bytes a socket is readable from. The kernel takes less when its
/// buffers cannot grow so far; that it takes nothing at all only costs wake-ups.
pub(crate) fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

/// `TCP_DEFER_ACCEPT` (tcp(7)), for the shortest time there is. Without it all works, and costs
/// more.
pub(crate) fn set_defer_accept(socket: BorrowedFd<'_>) {
    const SECONDS: libc::c_int = 1;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, SECONDS);
}

/// Sets an option that is a number, if the socket knows it.
#[allow(unsafe_code)]
fn set_option(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes at `value`, which outlives the call.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
}
