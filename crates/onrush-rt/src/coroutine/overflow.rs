//! Stack overflow: the guard page was hit, so the process ends, after a message that says whose
//! stack it was and how large.
//!
//! A handler for `SIGSEGV` is installed once, and runs on the alternate stack that every thread
//! with coroutines has (`sigaltstack(2)`). Faults that are not at the guard page of the coroutine
//! that is running go to whoever handled them before. Must not know how coroutines are switched.
#![allow(unsafe_code)]

use super::memory::page_bytes;
use super::stack::RESERVED_BYTES;
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

    /// Whether `address` lies on the stack.
    #[inline]
    pub(super) fn contains(self, address: usize) -> bool {
        (self.lowest..self.top).contains(&address)
    }

    /// Where the [`Label`] is, at the beginning of the stack.
    #[inline]
    pub(super) fn label(self) -> usize {
        self.top - RESERVED_BYTES
    }

    fn guard(self) -> Range<usize> {
        self.lowest.saturating_sub(page_bytes())..self.lowest
    }
}

/// The name of the coroutine that a stack belongs to at present.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Label {
    pub(super) name: *const u8,
    pub(super) name_bytes: usize,
}

thread_local! {
    /// The stack that was switched to last on this thread, as far as is known: foreign coroutines
    /// may suspend whoever is to restore it. So it holds no pointer, and whoever reads it checks
    /// whether it is true. Without a destructor, so that the signal handler may look at it at any
    /// time.
    static RUNNING: Cell<Bounds> = const { Cell::new(Bounds::NONE) };
}

/// Runs `act`, in which the coroutine on the stack `running` is resumed.
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

/// The stack that a coroutine runs on, if it is the caller.
#[inline]
pub(super) fn running() -> Bounds {
    RUNNING.get()
}

/// Whether a coroutine runs on this thread.
pub(super) fn is_watching() -> bool {
    RUNNING.get() != Bounds::NONE
}

/// What was done about `SIGSEGV` before.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Prepares the process and this thread for a coroutine's overflow. What cannot be prepared costs
/// the message: the guard page ends the process in any case.
pub(super) fn prepare() {
    BEFORE.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks only, into memory of the right type, of which all bytes may be zero.
        let asked = unsafe { libc::sigaction(libc::SIGSEGV, null(), before.as_mut_ptr()) };
        // SAFETY: zeroed or written by the kernel; both are values of this plain structure.
        (asked == 0).then(|| unsafe { before.assume_init() })
    });
    static INSTALLED: OnceLock<()> = OnceLock::new();
    // After `BEFORE` is set, for the handler reads it.
    INSTALLED.get_or_init(|| {
        let mut action: libc::sigaction = match BEFORE.get() {
            Some(Some(before)) => *before, // For its mask.
            _ => return,
        };
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: `on_fault` has the signature that `SA_SIGINFO` asks for, and calls nothing that
        // is not async-signal-safe.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()) };
    });
    thread_local!(static ALTERNATE: Option<AlternateStack> = AlternateStack::install());
    // A thread that is ending keeps what it has.
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

/// Puts back what handled the signal before. The instruction that faulted faults again then, and
/// has its way: by default the process ends, with its core.
fn reinstate() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let before = match BEFORE.get() {
        Some(Some(before)) => before,
        _ => {
            // SAFETY: all zero is the default action.
            unsafe { action.assume_init_mut() }
        }
    };
    // SAFETY: an action that was there before, or the default one.
    unsafe { libc::sigaction(libc::SIGSEGV, before, null_mut()) };
}

/// Writes the message, by `write(2)` alone.
fn write_message(running: Bounds) {
    let mut line = MessageBuffer {
        bytes: [0; 512],
        len: 0,
    };
    // SAFETY: whoever touched that guard page runs on the stack above it. So a coroutine lives
    // there, whose label is at the beginning of the stack, and which keeps its name while it runs.
    let name = unsafe {
        let label = &*with_exposed_provenance::<Label>(running.label());
        // Short enough for all that follows, whatever the name is.
        std::slice::from_raw_parts(label.name, label.name_bytes.min(300))
    };
    line.push(b"\ncoroutine '");
    line.push(name);
    line.push(b"' has overflowed its stack of ");
    line.push_number(running.top - running.lowest);
    line.push(b" bytes; the process ends\n");
    // SAFETY: that many bytes are there. That it fails changes nothing.
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

/// A stack for signal handlers, of a thread that had none: those that Rust did not start, or all,
/// where somebody else handles `SIGSEGV` since before `main`.
struct AlternateStack {
    start: *mut libc::c_void,
}

/// Enough for the registers of any processor, and for a handler that was there before.
const ALTERNATE_BYTES: usize = 64 << 10;

impl AlternateStack {
    fn install() -> Option<AlternateStack> {
        let mut present = MaybeUninit::<libc::stack_t>::zeroed();
        // SAFETY: asks only, into memory of the right type.
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
        // SAFETY: the memory is this value's, which takes the stack back before it unmaps it.
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
