//! Scopes: the part of a thread's life in which its coroutines can be made, polled and unwound.
//!
//! The stack of a coroutine can hold references to thread-locals (`LocalKey::with` around a wait).
//! A thread destroys its thread-locals after every function on its own stack has returned. A scope
//! is a call of [`scope`] on that stack. So while the scope in which a coroutine was made has not
//! ended, no thread-local that its stack refers to is destroyed, and the stack may run. Afterwards
//! it never runs again: polling panics, and dropping leaks the stack.
//!
//! A scope does not cover `exit(3)`, threads that a coroutine has lent a reference to, and pointers
//! in thread-locals of libraries. For these the creator of a coroutine makes a promise: see
//! [`Contract`](super::Contract).
//!
//! Does not depend on coroutines.
#![allow(unsafe_code)]

use libc::{c_int, c_void};
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

thread_local! {
    /// The scope that is active on this thread; 0 when there is none. Has no destructor, so that it
    /// can be read at any time.
    static ACTIVE: Cell<u64> = const { Cell::new(0) };
    /// The last scope of this thread. Numbers are never used twice.
    static LAST: Cell<u64> = const { Cell::new(0) };
    /// The addresses of this thread's own stack, when they are known.
    static OWN_STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Identifies a scope among those of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope(u64);

impl Scope {
    /// The scope that is active on this thread.
    #[inline]
    pub(super) fn active() -> Option<Scope> {
        Some(Scope(ACTIVE.get())).filter(|scope| scope.0 != 0)
    }

    /// Whether this scope has not ended.
    #[inline]
    pub(super) fn is_active(self) -> bool {
        ACTIVE.get() == self.0
    }
}

/// Runs `f` in a coroutine scope: coroutines can be created, polled and dropped while `f` runs.
///
/// A coroutine belongs to the scope in which it was created. After that scope has ended, polling
/// the coroutine panics, and dropping it leaks its stack with everything on it, if it has begun to
/// run. So the owner of a [`Worker`](onrush_rt::worker::Worker) that runs coroutines creates and
/// drops the worker within one scope. [`run`](super::run()) does so itself.
///
/// Scopes do not nest: a scope that begins while another is active is part of that one. A scope
/// begins only on the stack that the thread was started with. On the stack of a foreign stackful
/// coroutine, `f` runs without a scope.
///
/// ```
/// use onrush_coroutine::{self as coroutine, Contract, Coroutine};
/// # use std::{pin::pin, task::{Context, Poll, Waker}, future::Future};
/// # let mut cx = Context::from_waker(Waker::noop());
/// // SAFETY: the coroutine's function calls nothing but `wait`.
/// let contract = unsafe { Contract::accept() };
/// let result = coroutine::scope(|| {
///     let coroutine = Coroutine::new(contract, || coroutine::wait(async { 6 * 7 }));
///     pin!(coroutine).poll(&mut cx)
/// });
/// assert_eq!(result, Poll::Ready(42));
/// ```
pub fn scope<R>(f: impl FnOnce() -> R) -> R {
    /// Ends the scope, whether `f` returns or panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            end();
        }
    }
    if ACTIVE.get() != 0 || !is_own_stack() {
        return f();
    }
    let number = LAST.get() + 1;
    LAST.set(number);
    ACTIVE.set(number);
    let _end = End;
    f()
}

/// Ends the active scope, if there is one. Also called when this thread's thread-locals are
/// destroyed while a scope is active, as `exit(3)` does.
pub(super) fn end() {
    ACTIVE.set(0);
}

/// Whether the calling thread is inside `exit(3)`. That destroys the thread's thread-locals, the
/// last ones first, while functions of the thread are still active, so an active scope proves
/// nothing then. This walks the stack, so it is for rare paths. A stack that is too deep to walk
/// counts as one that exits.
#[cold]
pub(super) fn is_exiting() -> bool {
    /// Frames walked, at most.
    const FRAMES_MAX: usize = 4096;
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;

    // SAFETY: these are the functions of the unwinder that panics use, too, with its types
    // (Itanium C++ ABI, Exception Handling §1.3 and §1.6).
    unsafe extern "C" {
        fn _Unwind_Backtrace(
            trace: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            argument: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
        fn _Unwind_FindEnclosingFunction(address: *mut c_void) -> *mut c_void;
    }

    struct Walk {
        exit: usize,
        frames: usize,
        found: bool,
    }

    extern "C" fn trace(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: `is_exiting` passes a walk that nothing else uses meanwhile.
        let walk = unsafe { &mut *argument.cast::<Walk>() };
        // SAFETY: the context is the one that the unwinder has just given; an address in code is
        // looked up in tables and not read from. The address minus one, because a call may be the
        // last instruction of a function that does not return.
        let function = unsafe {
            let address = _Unwind_GetIP(context).wrapping_sub(1);
            _Unwind_FindEnclosingFunction(std::ptr::without_provenance_mut(address))
        };
        walk.frames += 1;
        walk.found = function.addr() == walk.exit || walk.frames >= FRAMES_MAX;
        if walk.found { STOP } else { CONTINUE }
    }

    let mut walk = Walk {
        exit: (libc::exit as unsafe extern "C" fn(c_int) -> !) as usize,
        frames: 0,
        found: false,
    };
    // SAFETY: `trace` has the required type, and `walk` lives until this returns.
    unsafe { _Unwind_Backtrace(trace, (&raw mut walk).cast()) };
    walk.found
}

/// Whether the caller runs on the stack that its thread was started with. A function there returns
/// before the thread ends; one on the stack of a coroutine may be suspended for ever.
fn is_own_stack() -> bool {
    let (lowest, end) = match OWN_STACK.get() {
        (0, 0) => {
            let Range { start, end } = own_stack().unwrap_or(0..0);
            OWN_STACK.set((start, end));
            (start, end)
        }
        known => known,
    };
    (lowest..end).contains(&address())
}

/// An address on the stack that the caller runs on.
#[inline(always)]
pub(super) fn address() -> usize {
    let context = 0_u8;
    std::hint::black_box(&raw const context).addr()
}

/// The addresses of this thread's own stack (`pthread_getattr_np(3)`). For the main thread glibc
/// reads `/proc`; without it, the kernel's auxiliary vector is used (`getauxval(3)`).
fn own_stack() -> Option<Range<usize>> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the thread is this one, and the attributes are written when the call returns 0.
    let error = unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) };
    if error != 0 {
        return main_stack();
    }
    let (mut lowest, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes were just initialised, and both results have their types.
    let error = unsafe {
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut bytes)
    };
    // SAFETY: initialised above, and not used after this.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (error == 0).then(|| lowest.addr()..lowest.addr().saturating_add(bytes))
}

/// The part of the main thread's stack that cannot contain another mapping: the addresses just
/// below the data that the kernel has put at its top.
fn main_stack() -> Option<Range<usize>> {
    /// Less than any usual `RLIMIT_STACK`.
    const SURE_BYTES: usize = 1 << 20;
    // SAFETY: queries a number.
    let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
    // SAFETY: both query a number.
    let is_main = unsafe { libc::getpid() == libc::gettid() };
    (top != 0 && is_main).then(|| top.saturating_sub(SURE_BYTES)..top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_have_numbers_of_their_own_and_do_not_nest() {
        assert_eq!(Scope::active(), None);
        let first = scope(|| {
            let outer = Scope::active().unwrap();
            assert_eq!(scope(Scope::active), Some(outer));
            assert!(outer.is_active(), "the inner call has not ended it");
            outer
        });
        assert!(!first.is_active());
        let panicked = std::panic::catch_unwind(|| scope(|| panic!("on purpose")));
        assert!(panicked.is_err() && Scope::active().is_none());
        scope(|| assert!(!first.is_active()));
    }

    #[test]
    fn a_foreign_stack_begins_no_scope() {
        let mut foreign = corosensei::Coroutine::<(), (), bool>::new(|_, ()| {
            scope(|| Scope::active().is_some()) || is_own_stack()
        });
        assert_eq!(foreign.resume(()).as_return(), Some(false));
        assert!(is_own_stack());
    }

    /// Tests run on threads other than the main one, where this must return `None`.
    #[test]
    fn only_main_thread_stack_is_known_to_kernel() {
        let found = std::thread::spawn(main_stack).join().unwrap();
        assert_eq!(found, None);
    }
}
