//! User code that panics while it is dropped: that costs no more than a panic elsewhere in it.
//!
//! Must not know what is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Holds a value of user code; a panic of its destructor ends here.
#[derive(Debug)]
pub(crate) struct Shield<T>(Option<T>);

impl<T> Shield<T> {
    pub(crate) fn new(value: T) -> Shield<T> {
        Shield(Some(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("there until dropped")
    }
}

impl<T> Drop for Shield<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            std::mem::forget(payload); // It may itself panic when it is dropped.
            tracing::error!("a destructor in a handler panicked");
        }
    }
}
