//! Calls of wakers, which may be user code: `Wake::wake` and the destructor of its type may panic
//! and may call back.
//!
//! So no waker is woken or dropped while a cell of the worker is borrowed, and none is woken by a
//! plain call where a panic would end the worker.

use crate::user::discard;
use std::task::Waker;

/// Wakes `waker`. The panic hook has printed a panic of its code or its destructor; it goes no
/// further.
#[inline]
pub fn wake(waker: Waker) {
    discard(Call(Some(waker)));
}

/// Wakes when it is dropped.
struct Call(Option<Waker>);

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::Wake;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn panicking_waker_does_not_affect_others() {
        wake(Waker::from(Arc::new(Panics)));
    }
}
