//! Tells handlers that their worker begins to drain, so that a response without an end can end.

use crate::panic_guard;
use onrush_rt::user;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Whether a worker drains, and the futures that wait for it.
#[derive(Debug, Default)]
pub(crate) struct DrainSignal {
    has_begun: Cell<bool>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
    next_id: Cell<u64>,
}

impl DrainSignal {
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.get()
    }

    /// Wakes all futures that wait.
    pub(crate) fn begin(&self) {
        self.has_begun.set(true);
        let waiting = self.waiting.take();
        for waker in waiting.into_values() {
            panic_guard::wake(Some(waker));
        }
    }

    /// A future that is ready when the worker drains.
    pub(crate) fn draining(self: &Rc<Self>) -> Draining {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        Draining {
            signal: self.clone(),
            id,
        }
    }
}

/// The future of [`Request::draining`](crate::Request::draining).
#[must_use = "a future does nothing unless it is awaited"]
pub struct Draining {
    signal: Rc<DrainSignal>,
    id: u64,
}

impl Future for Draining {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.signal.has_begun.get() {
            return Poll::Ready(());
        }
        let waker = user::clone_waker(cx.waker());
        let replaced = self.signal.waiting.borrow_mut().insert(self.id, waker);
        drop(replaced); // This runs user code, so the borrow has ended.
        Poll::Pending
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        let removed = self.signal.waiting.borrow_mut().remove(&self.id);
        drop(removed);
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Draining")
    }
}
