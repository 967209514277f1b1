//! A value that tasks on any thread wait for.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A value and the tasks that wait for a change of it.
#[derive(Debug)]
pub(crate) struct Watch<T>(Mutex<Watched<T>>);

#[derive(Debug)]
struct Watched<T> {
    value: T,
    waiting: Vec<Waker>,
}

impl<T> Watch<T> {
    pub(crate) fn new(value: T) -> Watch<T> {
        Watch(Mutex::new(Watched {
            value,
            waiting: Vec::new(),
        }))
    }

    /// Whether a task waits.
    #[cfg(test)]
    pub(crate) fn is_awaited(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// Looks at the value.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock().value)
    }

    /// Changes the value and wakes all tasks that wait.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut watched = self.lock();
        let result = change(&mut watched.value);
        let waiting = std::mem::take(&mut watched.waiting);
        drop(watched); // A waker may run other code.
        for waker in waiting {
            waker.wake();
        }
        result
    }

    /// Waits until `look` returns a result.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> R {
        poll_fn(|cx| self.poll(cx, &mut look)).await
    }

    /// Polls for a result of `look`.
    pub(crate) fn poll<R>(
        &self,
        cx: &mut Context<'_>,
        look: impl FnOnce(&T) -> Option<R>,
    ) -> Poll<R> {
        let mut watched = self.lock();
        if let Some(result) = look(&watched.value) {
            return Poll::Ready(result);
        }
        if !(watched.waiting.iter()).any(|waker| waker.will_wake(cx.waker())) {
            watched.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Watched<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
