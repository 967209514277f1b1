//! The kernel's structures and calls that no crate wraps, without policy.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What one line of the cache holds, in bytes.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for so many lines of the cache, from `address` on, which may be anything: a hint that costs
/// little and saves the wait for memory that will be used in a moment. Nothing but on x86-64.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch(address: usize, lines: usize) {
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

/// `TCP_NOTSENT_LOWAT` (tcp(7)): bytes that the kernel takes beyond what it has sent. Connections
/// inherit it from their listener. 0 restores the system's default, which usually is no limit.
/// Sockets that are not TCP have no such limit.
pub(crate) fn set_unsent_max(socket: BorrowedFd<'_>, bytes: u32) {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes);
}

/// `TCP_DEFER_ACCEPT` (tcp(7)), for the shortest time there is. Without it all works, and costs
/// more.
pub(crate) fn set_defer_accept(socket: BorrowedFd<'_>) {
    const SECONDS: libc::c_int = 1;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, SECONDS);
}

/// Ends [`set_defer_accept`]: the kernel then gives connections without data, too.
pub(crate) fn clear_defer_accept(socket: BorrowedFd<'_>) {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 0);
}

/// Has a listening TCP socket ignore packets that begin a handshake (`SO_ATTACH_FILTER`,
/// socket(7)). Handshakes that have begun go on. Where a filter is refused nothing changes.
#[allow(unsafe_code)]
pub(crate) fn ignore_handshakes(socket: BorrowedFd<'_>) {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
    const FLAGS_AT: u32 = 13; // In the TCP header (RFC 9293, section 3.1), where the filter begins.
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

/// The calling thread's nice value (`getpriority(2)`), -20 to 19; 0 when it cannot be had.
pub(crate) fn niceness() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// The longest slice a thread may ask for, in nanoseconds; longer ones are cut to this.
const SLICE_MAX_NS: u64 = 100_000_000;

/// What gives a thread all the cores that the calling one may use now (`sched_setaffinity(2)`),
/// wherever it is started from: by a worker, which is pinned to one, it would begin there.
pub fn restore_affinity() -> impl Fn() + Send + Sync + 'static {
    let cores = rustix::thread::sched_getaffinity(None).ok();
    move || {
        if let Some(cores) = &cores {
            let _ = rustix::thread::sched_setaffinity(None, cores); // They may be gone by now.
        }
    }
}

/// Makes the calling thread give way to others: `SCHED_BATCH` (sched(7)) at `nice` or 19, with the
/// longest slice there is (`sched_setattr(2)`; older kernels take no notice of slices). A thread
/// that is `SCHED_IDLE` stays so. Where that is refused, the nice value alone is set
/// (`setpriority(2)`), and where that is refused too, all goes on as before, only less evenly.
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
