//! What windows of HTTP/2 have grown by: clients may send that much although nobody reads it.

use std::cell::Cell;
use std::rc::Rc;

/// The promises of one worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct Promises {
    bytes: Rc<Cell<usize>>,
}

impl Promises {
    /// The bytes of all of them.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Counts this many bytes until the promise is dropped.
    pub(in crate::engine) fn make(&self, bytes: usize) -> Promise {
        self.bytes.set(self.bytes.get() + bytes);
        Promise {
            all: self.bytes.clone(),
            bytes,
        }
    }
}

/// What a window has grown by.
#[derive(Debug)]
pub(in crate::engine) struct Promise {
    all: Rc<Cell<usize>>,
    bytes: usize,
}

impl Promise {
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}
