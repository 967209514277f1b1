//! Coroutines polled by hand.

use onrush_rt::coroutine::{Contract, Coroutine};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// The contract of the coroutines of all tests.
#[allow(unsafe_code)]
pub fn contract() -> Contract {
    // SAFETY: no coroutine of a test uses what it borrowed from a thread-local, or lent to a scope,
    // after the owner is gone. Tests that violate the contract do so only where the runtime leaks
    // the coroutine or panics, which is what they test.
    unsafe { Contract::accept() }
}

pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub fn finish<T: 'static>(mut coroutine: Coroutine<T>) -> T {
    loop {
        if let Poll::Ready(output) = poll(&mut coroutine) {
            assert!(coroutine.is_over());
            return output;
        }
    }
}

/// Is pending once.
pub async fn pause() {
    let mut paused = false;
    poll_fn(|_| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// The message of the panic of `act`.
pub fn message(act: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(act)).expect_err("a panic");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| {
        payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    })
    .expect("a text payload")
}
