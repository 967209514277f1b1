//! The boundary to user code. Handlers, destructors, wakers and log subscribers may panic, and a
//! panic must affect only the request that it belongs to.
//!
//! Each function here catches a panic of the code that it runs. The panic payload is leaked instead
//! of dropped, because its destructor is user code as well.

use onrush_rt::user;
use std::task::Waker;

pub(crate) use onrush_rt::user::call as catch;

/// Emits a log event. The subscriber is user code, and its panic must not fail a request.
pub(crate) fn log(event: impl FnOnce()) {
    let _ = catch(event);
}

/// Drops a value of a user type. A panic of its destructor is caught and logged.
pub(crate) fn discard<T>(value: T) {
    if !user::discard(value) {
        log(|| tracing::error!("a destructor in a handler panicked"));
    }
}

/// Calls a waker, whose implementation may be user code (`std::task::Wake`).
pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker
        && catch(|| waker.wake()).is_none()
    {
        log(|| tracing::error!("a waker of a handler panicked"));
    }
}

/// Holds a value of a user type, and catches a panic of its destructor.
#[derive(Debug)]
pub(crate) struct PanicGuard<T>(Option<T>);

impl<T> PanicGuard<T> {
    pub(crate) fn new(value: T) -> PanicGuard<T> {
        PanicGuard(Some(value))
    }

    pub(crate) fn get(&self) -> &T {
        self.0.as_ref().expect("present until the drop")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("present until the drop")
    }
}

impl<T> Drop for PanicGuard<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            discard(value);
        }
    }
}
