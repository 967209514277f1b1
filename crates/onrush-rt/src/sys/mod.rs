//! Structures and calls of the kernel that no crate wraps, without policy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

/// The size of a cache line, in bytes.
pub const LINE_BYTES: usize = 64;

/// Prefetches this many cache lines from `address`, which may have any value. This is a cheap hint
/// that hides the latency of memory that is used soon. Does nothing except on x86-64.
#[inline]
#[allow(unsafe_code)]
pub fn prefetch(address: usize, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::without_provenance(address.wrapping_add(line * LINE_BYTES));
        // SAFETY: a hint, which neither reads nor faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, lines, LINE_BYTES);
}

/// The size of a page of memory, in bytes (`sysconf(3)`). Not rustix's: it reads the auxiliary
/// vector itself, which faults under valgrind.
#[inline]
#[allow(unsafe_code)]
pub fn page_bytes() -> usize {
    static PAGE_BYTES: OnceLock<usize> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        // SAFETY: queries a number; every argument is valid.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).expect("every system has pages")
    })
}

/// Views memory as the drivers' receive functions take it.
///
/// # Safety
/// The receiver must write only initialised bytes.
#[allow(unsafe_code)]
pub(crate) unsafe fn writable(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout, and what is written stays initialised by this function's contract.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// Calls `receive` with at most `bytes_max` bytes of spare capacity and appends what it writes.
///
/// # Safety
/// `receive` must return at most the number of bytes it has written to the front.
///
/// # Panics
/// When there is no spare capacity: 0 bytes received would mean the end of the stream.
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
    // SAFETY: `receive` has written this many bytes of the spare capacity, by this function's
    // contract.
    unsafe { into.set_len(into.len() + received) };
    Ok(received)
}

/// `SO_RCVLOWAT` (socket(7)): the number of bytes that makes a socket readable. The kernel uses a
/// smaller value if its buffers cannot grow that far; if it fails, it only costs wake-ups.
pub(crate) fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

/// `TCP_NOTSENT_LOWAT` (tcp(7)): bytes that the kernel takes beyond what it has sent. Connections
/// inherit it from their listener. 0 restores the system's default, which usually is no limit.
/// Sockets that are not TCP have no such limit.
pub(crate) fn set_unsent_max(socket: BorrowedFd<'_>, bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes);
}

/// `TCP_DEFER_ACCEPT` (tcp(7)), for the shortest time possible. Without it everything works, at a
/// higher cost.
pub(crate) fn set_defer_accept(socket: BorrowedFd<'_>) {
    const SECONDS: libc::c_int = 1;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, SECONDS);
}

/// Ends [`set_defer_accept`]: the kernel then reports connections without data, too.
pub(crate) fn clear_defer_accept(socket: BorrowedFd<'_>) {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0);
}

/// Makes a listening TCP socket ignore packets that begin a handshake (`SO_ATTACH_FILTER`,
/// socket(7)). Handshakes that have begun continue. If the filter is refused, nothing changes.
#[allow(unsafe_code)]
pub(crate) fn ignore_handshakes(socket: BorrowedFd<'_>) {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    const FLAGS_AT: u32 = 13; // Offset in the TCP header (RFC 9293, section 3.1).
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    let line = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut lines = [
        line(BPF_LD | BPF_B | BPF_ABS, 0, 0, FLAGS_AT),
        line(BPF_ALU | BPF_AND | BPF_K, 0, 0, SYN | ACK),
        line(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYN),
        line(BPF_RET | BPF_K, 0, 0, 0),
        line(BPF_RET | BPF_K, 0, 0, u32::MAX),
    ];
    let program = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the program, and the lines it points to, during the call only.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
}

/// Sets an integer option; ignores errors.
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

/// The calling thread's nice value (`getpriority(2)`), -20 to 19; 0 on failure.
pub(crate) fn niceness() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// The longest slice a thread may request, in nanoseconds; the kernel cuts longer ones.
const SLICE_MAX_NS: u64 = 100_000_000;

/// Returns a function that gives its thread all the cores that the current thread may use now
/// (`sched_setaffinity(2)`). A thread started by a pinned worker would otherwise stay on its core.
pub fn restore_affinity() -> impl Fn() + Send + Sync + 'static {
    let cores = rustix::thread::sched_getaffinity(None).ok();
    move || {
        if let Some(cores) = &cores {
            let _ = rustix::thread::sched_setaffinity(None, cores); // They may be offline by now.
        }
    }
}

/// Lowers the priority of the calling thread: `SCHED_BATCH` (sched(7)) at `nice` or 19, with the
/// longest slice possible (`sched_setattr(2)`; older kernels ignore slices). A `SCHED_IDLE` thread
/// stays so. If that is refused, only the nice value is set (`setpriority(2)`); if that is refused,
/// too, everything works with the old priority.
#[allow(unsafe_code)]
pub(crate) fn lower_priority(nice: i32) {
    // SAFETY: takes no pointers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    if policy == libc::c_long::from(libc::SCHED_IDLE) {
        return;
    }
    let nice = nice.clamp(-20, 19);
    let mut wanted = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_BATCH as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: SLICE_MAX_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread; the kernel reads `size` bytes at `wanted`, which are there
    // and outlive the call, and writes nothing but its `size`, when it knows a smaller one.
    let failed = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw mut wanted, 0) } != 0;
    if failed {
        let _ = rustix::process::setpriority_process(None, nice);
    }
}
