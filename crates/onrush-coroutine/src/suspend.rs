//! Waiting in a coroutine: polls a future, and suspends the coroutine while it is pending.
//!
//! Does not depend on what the coroutine waits for.

use super::frame::{Frame, NoSuspend, WaitState};
use super::overflow;
use onrush_rt::coop;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A destructor tried to wait while its coroutine's stack is unwound, which is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwinding;

impl std::fmt::Display for Unwinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the coroutine is being unwound")
    }
}

impl std::error::Error for Unwinding {}

impl From<Unwinding> for io::Error {
    fn from(unwinding: Unwinding) -> io::Error {
        io::Error::other(unwinding)
    }
}

/// Waits for `future` in blocking style: polls it with the context of the current poll of this
/// coroutine, and suspends the coroutine while it is pending. `future` is dropped in place when the
/// coroutine is dropped.
///
/// While the stack is unwound, by a panic or because the coroutine was dropped, destructors may
/// call this. They cannot be suspended: `future` is polled once and must be ready then.
///
/// The [`Contract`](super::Contract) of the coroutine says where it may wait.
///
/// ```
/// use onrush_coroutine::{self as coroutine, Contract, Coroutine};
/// # use std::{pin::pin, task::{Context, Poll, Waker}, future::Future};
/// // SAFETY: the coroutine's function calls nothing but `wait`.
/// let contract = unsafe { Contract::accept() };
/// coroutine::scope(|| {
///     let coroutine = Coroutine::new(contract, || coroutine::wait(async { 6 * 7 }));
///     # let mut cx = Context::from_waker(Waker::noop());
///     assert_eq!(pin!(coroutine).poll(&mut cx), Poll::Ready(42));
/// });
/// ```
///
/// # Panics
/// Outside a coroutine, and in a future that a coroutine waits for: that must be `async`, and
/// await. Also in a destructor during unwinding if `future` is not ready: that ends the process.
#[track_caller]
pub fn wait<F: Future>(future: F) -> F::Output {
    match try_wait(future) {
        Ok(output) => output,
        Err(Unwinding) => panic!("a destructor waits while its coroutine's stack is unwound"),
    }
}

/// [`wait`], with an error if a destructor calls it during unwinding and `future` is not ready. For
/// callers that can return an error.
///
/// # Panics
/// Outside a coroutine, and in a future that a coroutine waits for.
#[track_caller]
pub fn try_wait<F: Future>(future: F) -> Result<F::Output, Unwinding> {
    let Some(frame) = Frame::current() else {
        outside()
    };
    let mut future = pin!(future);
    loop {
        match frame.wait_state() {
            WaitState::Running if coop::is_exhausted() => {
                // The future may be ready each time without spending budget.
                let _ = frame.poll(pin!(poll_fn(coop::poll_proceed)));
            }
            WaitState::Running => {
                coop::spend(0);
                if let Poll::Ready(output) = frame.poll(future.as_mut()) {
                    return Ok(output);
                }
            }
            WaitState::InDestructors => {
                let _busy = NoSuspend::new(frame);
                let _unbounded = coop::unbounded(); // A ready future must not be refused.
                let cx = &mut Context::from_waker(Waker::noop());
                return match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Ok(output),
                    Poll::Pending => Err(Unwinding),
                };
            }
            WaitState::Refusing => {} // Unwinds once more.
        }
        frame.suspend();
    }
}

#[cold]
#[track_caller]
fn outside() -> ! {
    if overflow::is_watching() {
        panic!("a future that a coroutine waits for must not wait as if it blocked: await instead");
    }
    panic!("only a coroutine can wait as if it blocked: this is not one");
}

/// Spends an operation that needs no wait, on a channel or a lock. A coroutine that has used up its
/// budget lets others run first. Does nothing outside a coroutine, and in destructors.
#[inline]
#[track_caller]
pub(super) fn spend_operation() {
    if coop::is_exhausted() && is_inside() && !is_unwinding() {
        let (Ok(()) | Err(Unwinding)) = try_wait(poll_fn(coop::poll_proceed));
    }
    coop::spend(0);
}

/// Whether the caller is a coroutine, and so may [`wait`].
pub fn is_inside() -> bool {
    Frame::current().is_some()
}

/// Whether the caller is a destructor that runs while its coroutine's stack is unwound.
pub fn is_unwinding() -> bool {
    Frame::current().is_some_and(|frame| matches!(frame.wait_state(), WaitState::InDestructors))
}
