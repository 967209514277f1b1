//! Runs a change to its end, also if the client has gone.
//!
//! The engine drops the handler of a connection that is reset. Dropping a change in the middle
//! would separate what belongs together: the store may still publish the object, while its bytes
//! are not counted, and the table of locks does not contain the change any more. So a change that
//! is dropped goes on as a task: reading its body fails, and it ends as it does after
//! any incomplete body. A client that stays costs no task.
//!
//! A change of many objects asks [`client_has_gone`] before each, and ends: what it has done is
//! complete, and no one waits for the rest.

use crate::shares::{Full, Holder, Shares};
use onrush::WorkerHandle;
use onrush::worker::Lasting;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

thread_local! {
    /// Whether the task that runs is that of a change without its client.
    static IS_ABANDONED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the client of the change that runs has gone.
pub(in crate::files) fn client_has_gone() -> bool {
    IS_ABANDONED.get()
}

/// Counts a change if it goes on without its client.
#[derive(Clone, Debug)]
pub(in crate::files) struct Abandoned {
    shares: Arc<Shares>,
    holder: Holder,
}

impl Abandoned {
    /// That of a change of `holder` that begins. Fails if it has its share of `shares`.
    pub(in crate::files) fn new(shares: &Arc<Shares>, holder: Holder) -> Result<Abandoned, Full> {
        shares.check_share(holder)?;
        Ok(Abandoned {
            shares: shares.clone(),
            holder,
        })
    }
}

/// Runs `future` and returns its output. If this is dropped, a task of `worker` goes on, which
/// `abandoned` counts. A graceful shutdown waits for it; only the end of the worker ends it.
pub(in crate::files) async fn run_to_end<T: 'static>(
    worker: &WorkerHandle,
    abandoned: Option<Abandoned>,
    future: Pin<Box<dyn Future<Output = T>>>,
) -> T {
    let mut running = Running {
        future: Some(future),
        worker: worker.clone(),
        abandoned,
        lasting: Some(worker.lasting()),
    };
    poll_fn(move |cx| running.poll(cx)).await
}

struct Running<T: 'static> {
    /// `None` while it is polled, so that one that has panicked does not go on; and at its end.
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    worker: WorkerHandle,
    abandoned: Option<Abandoned>,
    /// `None` at the end.
    lasting: Option<Lasting>,
}

impl<T> Running<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        let Some(mut future) = self.future.take() else {
            return Poll::Pending;
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if let Some(mut future) = self.future.take() {
            let abandoned = self.abandoned.take();
            let lasting = self.lasting.take();
            let share = abandoned.map(|change| change.shares.take_late(change.holder));
            let task = self.worker.spawn(async move {
                let end = poll_fn(|cx| {
                    let _end = Mark::new();
                    future.as_mut().poll(cx).map(drop)
                });
                end.await;
                drop(future);
                drop((share, lasting));
            });
            task.detach();
        }
    }
}

/// While it exists, this thread runs a change without its client.
struct Mark;

impl Mark {
    fn new() -> Mark {
        IS_ABANDONED.set(true);
        Mark
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        IS_ABANDONED.set(false);
    }
}
