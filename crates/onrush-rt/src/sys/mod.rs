//! The kernel's structures and calls that no crate wraps, without policy.

pub(crate) mod bufring;

use std::io;
use std::mem::MaybeUninit;

/// Memory that a callee only writes to, as it takes it.
pub(crate) fn writable(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout; callees (this crate's receive functions) write initialised bytes only.
    #[allow(unsafe_code)]
    unsafe {
        &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>])
    }
}

/// Appends what `receive` writes to the front of the memory it is given, at most `bytes_max`.
pub(crate) fn append(
    into: &mut Vec<u8>,
    bytes_max: usize,
    receive: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
) -> io::Result<usize> {
    let spare = into.spare_capacity_mut();
    let room = spare.len().min(bytes_max);
    let received = receive(&mut spare[..room])?;
    assert!(received <= room);
    // SAFETY: `receive` gives the number of bytes it has written to the front of the spare room,
    // which is checked to lie within it.
    #[allow(unsafe_code)]
    unsafe {
        into.set_len(into.len() + received);
    }
    Ok(received)
}
