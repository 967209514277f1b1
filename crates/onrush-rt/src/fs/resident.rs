//! File calls without a safe wrapper: query of the page cache, reading only from it, and starting
//! write-back.
//!
//! Callers decide how to use the results. This module depends on descriptors only, not on the types
//! of files.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::{ReadWriteFlags, preadv2, retry_on_intr};
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// `cachestat(2)` was refused once; it is not tried again.
static NO_CACHESTAT: AtomicBool = AtomicBool::new(false);

/// The maximum number of probes if `cachestat(2)` is missing.
const PROBES_MAX: u64 = 64;

/// The number of `cachestat(2)` on every architecture but Alpha; libc lacks it on some.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    off: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`; all counts are pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// A positive result is reused for this long.
const LATELY_MS: u64 = 100;

/// How much of a file, from its start, was recently found in the page cache. Otherwise a file sent
/// to many clients would be checked for each, and a check costs time for every page. Threads may
/// race here: the result is only a hint.
#[derive(Debug, Default)]
pub(super) struct RecentProbe {
    bytes: AtomicU64,
    /// The time of the first check that `bytes` relies on.
    at_ms: AtomicU64,
}

impl RecentProbe {
    fn known_bytes(&self, now_ms: u64) -> u64 {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        match age_ms < LATELY_MS {
            true => self.bytes.load(Ordering::Relaxed),
            false => 0,
        }
    }

    fn found(&self, begin: u64, end: u64, now_ms: u64) {
        let known = self.known_bytes(now_ms);
        if known == 0 && begin == 0 {
            self.at_ms.store(now_ms, Ordering::Relaxed);
        }
        if begin <= known {
            self.bytes.store(known.max(end), Ordering::Relaxed);
        }
    }
}

/// [`is_resident_now`], or a recent result of it, which `recent` keeps for this file.
pub(super) fn is_resident(fd: BorrowedFd<'_>, recent: &RecentProbe, offset: u64, len: u64) -> bool {
    let Some(end) = offset.checked_add(len) else {
        return false;
    };
    // Read without a system call, to some milliseconds.
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let now_ms = now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000;
    if end <= recent.known_bytes(now_ms) {
        return true;
    }
    let resident = is_resident_now(fd, offset, len);
    if resident {
        recent.found(offset, end, now_ms);
    }
    resident
}

/// Whether all pages of a range that lies within the file are in the page cache.
fn is_resident_now(fd: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = offset.checked_add(len - 1) else {
        return false;
    };
    let page_bytes = crate::sys::page_bytes() as u64;
    let (first_page, last_page) = (offset / page_bytes, last / page_bytes);
    if !NO_CACHESTAT.load(Ordering::Relaxed) {
        match pages_cached(fd, offset, len) {
            Ok(cached) => return cached > last_page - first_page,
            Err(_) => NO_CACHESTAT.store(true, Ordering::Relaxed),
        }
    }
    by_probes(offset, last, page_bytes, |at| is_byte_cached(fd, at))
}

/// Whether the byte at `offset` exists and can be read without waiting. `false` where the file
/// system has no such read.
fn is_byte_cached(fd: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let read = preadv2(fd, &mut slices, offset, ReadWriteFlags::NOWAIT);
    matches!(read, Ok(1))
}

/// Whether one byte of each page is cached; in long ranges, of some pages.
pub(super) fn by_probes(
    offset: u64,
    last: u64,
    page_bytes: u64,
    is_byte_cached: impl Fn(u64) -> bool,
) -> bool {
    let step = (last / page_bytes - offset / page_bytes) / PROBES_MAX + 1;
    let mut at = offset;
    loop {
        if !is_byte_cached(at) {
            return false;
        }
        if at == last {
            return true;
        }
        at = (at + step * page_bytes).min(last);
    }
}

/// For file systems without `RWF_NOWAIT`, mainly tmpfs: whether all bytes that a read of `len`
/// bytes could return are cached, so that a plain read does not wait.
pub(super) fn is_surely_cached(fd: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
    if NO_CACHESTAT.load(Ordering::Relaxed) {
        return false; // The probes need RWF_NOWAIT.
    }
    let Ok(found) = retry_on_intr(|| rustix::fs::fstat(fd)) else {
        return false;
    };
    let rest = u64::try_from(found.st_size)
        .unwrap_or(0)
        .saturating_sub(offset);
    is_resident_now(fd, offset, rest.min(len as u64))
}

fn pages_cached(fd: BorrowedFd<'_>, off: u64, len: u64) -> io::Result<u64> {
    let range = Range { off, len };
    let mut found = CacheStat::default();
    let no_flags: libc::c_uint = 0;
    // SAFETY: the kernel reads one `cachestat_range` and writes one `cachestat`, both laid out as
    // its header says and alive for the call; the descriptor is borrowed, so it is open.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            fd.as_raw_fd(),
            &raw const range,
            &raw mut found,
            no_flags,
        )
    };
    if result == 0 {
        Ok(found.cached)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Appends at most `len` cached bytes to `buf`, without growing it. `EOPNOTSUPP` if the file system
/// has no such read.
pub(super) fn read_cached(
    fd: BorrowedFd<'_>,
    buf: &mut Vec<u8>,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let spare = buf.spare_capacity_mut();
    let slice = libc::iovec {
        iov_base: spare.as_mut_ptr().cast(),
        iov_len: spare.len().min(len),
    };
    // SAFETY: the one slice covers spare capacity of `buf`, which is borrowed mutably and may be
    // written without having been initialised.
    let read = unsafe {
        libc::preadv2(
            fd.as_raw_fd(),
            &raw const slice,
            1,
            offset as libc::off_t,
            libc::RWF_NOWAIT,
        )
    };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written that many bytes to the one slice, at the start of the spare
    // capacity.
    unsafe { grow(buf, read) };
    Ok(read)
}

/// Adds `read` bytes, which the kernel has just written into the spare capacity, to `buf`.
///
/// # Safety
/// The first `read` bytes of the spare capacity are initialised.
///
/// # Panics
/// When the spare capacity is smaller.
unsafe fn grow(buf: &mut Vec<u8>, read: usize) {
    assert!(
        read <= buf.capacity() - buf.len(),
        "the kernel read more than it was given room"
    );
    // SAFETY: within the capacity, and initialised by this function's contract.
    unsafe { buf.set_len(buf.len() + read) };
}

/// Appends at most `len` bytes to `buf`, which must fit, by one `pread(2)`.
///
/// # Panics
/// When there is less spare capacity than `len`.
pub(super) fn read_some(
    fd: BorrowedFd<'_>,
    buf: &mut Vec<u8>,
    len: usize,
    offset: u64,
) -> rustix::io::Result<usize> {
    let spare = &mut buf.spare_capacity_mut()[..len];
    let (read, _) = rustix::io::pread(fd, &mut *spare, offset)?;
    let read = read.len();
    // SAFETY: rustix returns the part of the slice that was read to, which begins at the start of
    // the spare capacity.
    unsafe { grow(buf, read) };
    Ok(read)
}

pub(super) fn start_writeback(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return;
    };
    // SAFETY: a call on an open descriptor that touches no memory of ours.
    let _ =
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_known_for_a_moment_as_far_as_it_is_whole() {
        let lately = RecentProbe::default();
        lately.found(4096, 8192, 10_000);
        assert_eq!(lately.known_bytes(10_000), 0, "not from the start");
        lately.found(0, 4096, 10_000);
        lately.found(4096, 8192, 10_050);
        assert_eq!(lately.known_bytes(10_050), 8192);
        lately.found(100_000, 200_000, 10_050);
        lately.found(0, 10, 10_060);
        assert_eq!(lately.known_bytes(10_099), 8192);
        assert_eq!(lately.known_bytes(10_100), 0, "since the first check");
        lately.found(4096, 8192, 10_100);
        assert_eq!(
            lately.known_bytes(10_100),
            0,
            "the start is not known any more"
        );
        lately.found(0, 10, 10_200);
        assert_eq!(lately.known_bytes(10_200), 10);
    }
}
