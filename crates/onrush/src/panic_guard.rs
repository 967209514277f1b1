//! The boundary to user code: handlers, destructors, wakers and log subscribers may panic, and a
//! panic must cost no more than the request that it belongs to.
//!
//! Each function here ends a panic of the code that it runs. A payload is leaked instead of
//! dropped, because its destructor is user code as well. Must not know what runs.

use onrush_rt::user;
use std::task::Waker;

pub(crate) use onrush_rt::user::call as catch;

/// Emits a log event. Its subscriber is user code, and a log line is not worth a request.
pub(crate) fn log(event: impl FnOnce()) {
    let _ = catch(event);
}

/// Drops a value that holds user code. A panic of its destructor is logged.
pub(crate) fn discard<T>(value: T) {
    if !user::discard(value) {
        log(|| tracing::error!("a destructor in a handler panicked"));
    }
}

/// Calls a waker, which may be one that a handler made (`std::task::Wake`).
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker
        && catch(|| waker.wake()).is_none()
    {
        log(|| tracing::error!("a waker of a handler panicked"));
    }
}

/// Holds a value of user code; a panic of its destructor ends here.
#[derive(Debug)]
pub(crate) struct PanicGuard<T>(Option<T>);

impl<T> PanicGuard<T> {
    pub(crate) fn new(value: T) -> PanicGuard<T> {
        PanicGuard(Some(value))
    }

    pub(crate) fn get(&self) -> &T {
        self.0.as_ref().expect("there until dropped")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("there until dropped")
    }
}

impl<T> Drop for PanicGuard<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            discard(value);
        }
    }
}
