//! Calls of user code: closures of jobs, destructors, wakers, log subscribers, handlers.
//!
//! User code may panic, and it may call back. This module catches the panics. No cell of a worker is
//! borrowed during a call; debug builds assert that at each call. The payload of a panic is leaked,
//! because its destructor is user code as well.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Whether nothing is borrowed that user code may need.
type Check = fn() -> bool;

thread_local! {
    static CHECK: Cell<Option<Check>> = const { Cell::new(None) };
}

/// Sets the check that [`assert_unborrowed`] calls on this thread, and returns the previous one.
pub(crate) fn set_check(check: Option<Check>) -> Option<Check> {
    CHECK.replace(check)
}

/// In debug builds, panics if a cell of the current worker is borrowed: its driver, or what its
/// event handler has named to `worker::WorkerContext::check_before_user_code`. To be called before
/// each call of user code that [`call`] does not make.
#[inline]
#[track_caller]
pub fn assert_unborrowed() {
    #[cfg(debug_assertions)]
    if let Some(check) = CHECK.get()
        && !std::thread::panicking()
    {
        assert!(
            check(),
            "user code is called while a cell of the worker is borrowed"
        );
    }
}

/// Runs user code. `None` when it panicked; the panic hook has printed the message.
#[inline]
#[track_caller]
pub fn call<T>(code: impl FnOnce() -> T) -> Option<T> {
    assert_unborrowed();
    catch_unwind(AssertUnwindSafe(code))
        .map_err(std::mem::forget)
        .ok()
}

/// Drops a value that holds user code. Returns whether its destructor returned.
#[track_caller]
pub fn discard<T>(value: T) -> bool {
    call(|| drop(value)).is_some()
}

/// Clones a waker. What a waker does when it is cloned is user code (`RawWakerVTable`), whose panic
/// goes on to the caller.
#[inline]
#[track_caller]
pub fn clone_waker(waker: &Waker) -> Waker {
    assert_unborrowed();
    waker.clone()
}

/// Calls a waker. A panic goes on to the caller.
#[inline]
#[track_caller]
pub fn wake(waker: Waker) {
    assert_unborrowed();
    waker.wake();
}
