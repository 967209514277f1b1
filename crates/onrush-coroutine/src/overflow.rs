//! Stack overflow: an access to the guard page ends the process, after a message that names the
//! coroutine and the size of its stack.
//!
//! A handler for `SIGSEGV` is installed once. It runs on the alternate stack that every thread with
//! coroutines has (`sigaltstack(2)`). Other faults than at the guard page of the running coroutine
//! go to the previous handler. Does not depend on how coroutines are switched.
#![allow(unsafe_code)]

use super::stack::RESERVED_BYTES;
use onrush_rt::sys::page_bytes;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{null, null_mut, with_exposed_provenance};
use std::sync::OnceLock;

/// The addresses of a coroutine's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Its lowest byte. Below it is the guard page.
    pub(super) lowest: usize,
    /// One past its highest byte.
    pub(super) top: usize,
}

impl Bounds {
    const NONE: Bounds = Bounds { lowest: 0, top: 0 };

    /// Whether `address` is on the stack.
    #[inline]
    pub(super) fn contains(self, address: usize) -> bool {
        (self.lowest..self.top).contains(&address)
    }

    /// The address of the [`Label`], at the beginning of the stack.
    #[inline]
    pub(super) fn label(self) -> usize {
        self.top - RESERVED_BYTES
    }

    fn guard(self) -> Range<usize> {
        self.lowest.saturating_sub(page_bytes())..self.lowest
    }
}

/// The name of the coroutine that a stack belongs to now.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Label {
    pub(super) name: *const u8,
    pub(super) name_bytes: usize,
}

thread_local! {
    /// The stack that was switched to last on this thread, possibly stale: a foreign coroutine may
    /// be suspended before it restores this. So it holds no pointer, and readers check it. It has
    /// no destructor, so that the signal handler may read it at any time.
    static RUNNING: Cell<Bounds> = const { Cell::new(Bounds::NONE) };
}

/// Runs `act`, which resumes the coroutine on the stack `running`.
#[inline]
pub(super) fn watched<R>(running: Bounds, act: impl FnOnce() -> R) -> R {
    struct Before(Bounds);
    impl Drop for Before {
        #[inline]
        fn drop(&mut self) {
            RUNNING.set(self.0);
        }
    }
    let _before = Before(RUNNING.replace(running));
    act()
}

/// The stack of the running coroutine; the caller may be on another stack.
#[inline]
pub(super) fn running() -> Bounds {
    RUNNING.get()
}

/// Whether a coroutine runs on this thread.
pub(super) fn is_watching() -> bool {
    RUNNING.get() != Bounds::NONE
}

/// The action for `SIGSEGV` before this module's.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Prepares the process and this thread for a coroutine's overflow. If that fails, only the message
/// is missing: the guard page ends the process in any case.
pub(super) fn prepare() {
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a query only, into memory of the right type, of which all bytes may be zero.
        let asked = unsafe { libc::sigaction(libc::SIGSEGV, null(), before.as_mut_ptr()) };
        // SAFETY: zeroed or written by the kernel; both are values of this plain structure.
        (asked == 0).then(|| unsafe { before.assume_init() })
    });
    static INSTALLED: OnceLock<()> = OnceLock::new();
    // After `BEFORE` is set, because the handler reads it.
    INSTALLED.get_or_init(|| {
        let mut action: libc::sigaction = match BEFORE.get() {
            Some(Some(before)) => *before, // For its mask.
            _ => return,
        };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_fault` has the signature that `SA_SIGINFO` requires, and calls only
        // async-signal-safe functions.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()) };
    });
    thread_local!(static ALTERNATE: Option<AlternateStack> = AlternateStack::install());
    // A thread that is ending keeps its present state.
    let _ = ALTERNATE.try_with(|_| ());
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` a valid structure, which has an address
    // for this signal.
    let address = unsafe { (*info).si_addr() }.addr();
    let running = RUNNING.get();
    if running.guard().contains(&address) {
        write_message(running);
        return reinstate();
    }
    let before = match BEFORE.get() {
        Some(Some(before)) => before,
        _ => return reinstate(),
    };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => reinstate(),
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: it was installed as a handler with `SA_SIGINFO`, so it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as a handler without `SA_SIGINFO`.
            let handler =
                unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Restores the previous action for the signal. The faulting instruction then faults again, with
/// that action: by default the process ends, with a core dump.
fn reinstate() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let before = match BEFORE.get() {
        Some(Some(before)) => before,
        _ => {
            // SAFETY: all zero is the default action.
            unsafe { action.assume_init_mut() }
        }
    };
    // SAFETY: a previous action, or the default one.
    unsafe { libc::sigaction(libc::SIGSEGV, before, null_mut()) };
}

/// Writes the message, only by `write(2)`.
fn write_message(running: Bounds) {
    let mut line = MessageBuffer {
        bytes: [0; 512],
        len: 0,
    };
    // SAFETY: the code that touched that guard page runs on the stack above it. So a coroutine
    // lives there; its label is at the beginning of the stack, and it keeps its name while it runs.
    let name = unsafe {
        let label = &*with_exposed_provenance::<Label>(running.label());
        // Short enough to leave space for the rest of the message.
        std::slice::from_raw_parts(label.name, label.name_bytes.min(300))
    };
    line.push(b"\ncoroutine '");
    line.push(name);
    line.push(b"' has overflowed its stack of ");
    line.push_number(running.top - running.lowest);
    line.push(b" bytes; the process ends\n");
    // SAFETY: that many bytes are there. A failure changes nothing.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len) };
}

struct MessageBuffer {
    bytes: [u8; 512],
    len: usize,
}

impl MessageBuffer {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }

    fn push_number(&mut self, mut number: usize) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.push(&digits[first..]);
            }
        }
    }
}

/// A stack for signal handlers, for a thread that has none: one that Rust did not start, or every
/// thread if other code has handled `SIGSEGV` since before `main`.
struct AlternateStack {
    start: *mut libc::c_void,
}

/// Enough for the registers of any processor, and for a previous handler.
const ALTERNATE_BYTES: usize = 64 << 10;

impl AlternateStack {
    fn install() -> Option<AlternateStack> {
        let mut present = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: a query only, into memory of the right type.
        let asked = unsafe { libc::sigaltstack(null(), present.as_mut_ptr()) };
        // SAFETY: zeroed or written by the kernel.
        let present = unsafe { present.assume_init() };
        if asked != 0 || present.ss_flags & libc::SS_DISABLE == 0 {
            return None;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), ALTERNATE_BYTES, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let stack = AlternateStack { start };
        stack.set(0).ok()?;
        Some(stack)
    }

    fn set(&self, flags: libc::c_int) -> io::Result<()> {
        let stack = libc::stack_t {
            ss_sp: self.start,
            ss_flags: flags,
            ss_size: ALTERNATE_BYTES,
        };
        // SAFETY: the memory belongs to this value, which removes the stack before it unmaps it.
        match unsafe { libc::sigaltstack(&raw const stack, null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        let taken_back = self.set(libc::SS_DISABLE).is_ok();
        if taken_back {
            // SAFETY: mapped by `install`, and no alternate stack any more.
            unsafe { libc::munmap(self.start, ALTERNATE_BYTES) };
        }
    }
}
