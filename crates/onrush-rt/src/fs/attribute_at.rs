//! Reading an extended attribute of a name in a directory, without opening it: `getxattrat(2)` of
//! Linux 6.13, which has no safe wrapper.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::path::Arg;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The kernel or its seccomp filter has refused the call once; it is not tried again.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The number of the call on every architecture but Alpha.
pub(super) const SYS_GETXATTRAT: libc::c_long = 464;

/// `struct xattr_args` of `linux/xattr.h`.
#[repr(C)]
struct Arguments {
    value: u64,
    size: u32,
    flags: u32,
}

/// Reads the attribute `attribute` of `name` in a directory into `value`, and returns its length in
/// bytes. Does not follow a symbolic link. Fails with `ENODATA` if there is none, `ERANGE` if
/// `value` is too short, and `ENOSYS` if the call is not available.
pub(super) fn read(
    dir: BorrowedFd<'_>,
    name: &[u8],
    attribute: &CStr,
    value: &mut [u8],
) -> io::Result<usize> {
    let unavailable = || io::Error::from_raw_os_error(libc::ENOSYS);
    if IS_REFUSED.load(Ordering::Relaxed) {
        return Err(unavailable());
    }
    let result = name.into_with_c_str(|name| {
        let arguments = Arguments {
            value: value.as_mut_ptr() as u64,
            size: u32::try_from(value.len()).unwrap_or(u32::MAX),
            flags: 0,
        };
        // SAFETY: the kernel reads both strings and the arguments, laid out as its header says, and
        // writes at most `size` bytes at `value`; all are alive for the call. The descriptor is
        // borrowed, so it is open.
        let result = unsafe {
            libc::syscall(
                SYS_GETXATTRAT,
                dir.as_raw_fd(),
                name.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                attribute.as_ptr(),
                &raw const arguments,
                size_of::<Arguments>(),
            )
        };
        Ok(usize::try_from(result).map_err(|_| io::Error::last_os_error()))
    })?;
    match result {
        // A filter that does not know the call refuses it with either.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            IS_REFUSED.store(true, Ordering::Relaxed);
            Err(unavailable())
        }
        result => result,
    }
}
