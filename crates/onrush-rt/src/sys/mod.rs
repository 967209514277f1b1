//! The kernel's structures and calls that no crate wraps, without policy.

use std::io;
use std::mem::MaybeUninit;

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
