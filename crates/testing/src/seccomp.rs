//! A real seccomp filter, as containers use them: listed system calls fail with a given errno, and
//! all others pass. It applies to this thread, the threads it starts, and programs it executes.
#![allow(unsafe_code)]

use std::io;

/// The maximum number of refused system calls.
const REFUSED_MAX: usize = 8;

/// Installs the filter permanently (`seccomp(2)`, `SECCOMP_SET_MODE_FILTER`). `calls` are pairs of
/// the number of a system call and the errno of its failure.
///
/// It does not allocate, so it may be called between `fork` and `exec`
/// (`std::os::unix::process::CommandExt::pre_exec`) to start a program under the filter.
///
/// # Panics
/// For more than eight calls.
pub fn refuse(calls: &[(libc::c_long, i32)]) -> io::Result<()> {
    assert!(calls.len() <= REFUSED_MAX);
    let step = |code: u32, k: u32, jump_false: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_false,
        k,
    };
    let give = libc::BPF_RET | libc::BPF_K;
    let mut program = [step(give, libc::SECCOMP_RET_ALLOW, 0); 2 * REFUSED_MAX + 2];
    // `seccomp_data.nr`, the number of the system call, is at offset 0.
    program[0] = step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);
    for (at, (call, errno)) in calls.iter().enumerate() {
        // Not this call: skip the next step.
        program[1 + 2 * at] = step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 1);
        program[2 + 2 * at] = step(give, libc::SECCOMP_RET_ERRNO | *errno as u32, 0);
    }
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: this call takes only numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel copies the program, which outlives the call.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
