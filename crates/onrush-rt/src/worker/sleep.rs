//! The future that waits for time to pass.

use super::WorkerContext;
use crate::coop;
use crate::sources::RUNTIME;
use crate::timer::TimerId;
use crate::user::discard;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Future of [`WorkerContext::sleep`]. May be dropped at any time.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    pub(super) context: WorkerContext,
    pub(super) deadline_ms: u64,
    /// The entry in the timer wheel and the key of the waker.
    pub(super) timer: Option<(TimerId, usize)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.context.now_ms() >= self.deadline_ms {
            // A loop of sleeps that are over at once must not keep other tasks from running. A
            // sleep that had to wait completes in any case: it may limit a future that uses the
            // budget up.
            if self.timer.is_none() {
                ready!(coop::poll_operation(cx));
            }
            self.disarm();
            return Poll::Ready(());
        }
        let waker = Some(cx.waker().clone());
        match self.timer {
            Some((_, key)) => {
                let before = {
                    let mut sleepers = self.context.0.sleepers.borrow_mut();
                    std::mem::replace(&mut sleepers[key], waker)
                };
                discard(before); // Outside the borrow: dropping the last waker may drop its task.
            }
            None => {
                let key = self.context.0.sleepers.borrow_mut().insert(waker);
                let payload = RUNTIME | key as u64;
                let timer = self
                    .context
                    .0
                    .wheel
                    .borrow_mut()
                    .schedule(self.deadline_ms, payload);
                self.timer = Some((timer, key));
            }
        }
        Poll::Pending
    }
}

impl Sleep {
    fn disarm(&mut self) {
        if let Some((timer, key)) = self.timer.take() {
            self.context.0.wheel.borrow_mut().cancel(timer);
            let waker = self.context.0.sleepers.borrow_mut().remove(key);
            discard(waker); // It may be user code, and this a destructor: panics are caught.
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
