//! Runs a change to its end, also if the client has gone.
//!
//! The engine drops the handler of a connection that is reset. Dropping a change in the middle
//! would separate what belongs together: the store may still publish the object, while its bytes
//! are not counted, and the table of locks does not contain the change any more. So a change that
//! is dropped goes on as a task: reading its body fails, and it ends as it does after
//! any incomplete body. A client that stays costs no task.

use onrush::WorkerHandle;
use onrush::worker::Lasting;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

/// While so many changes go on without their clients, no other one begins. Otherwise clients that
/// send and disconnect could begin changes without limit.
const MAX: usize = 1024;

/// The number of changes that go on without their clients.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(Arc<AtomicUsize>);

impl Abandoned {
    /// Whether another change may begin.
    pub(super) fn has_room(&self) -> bool {
        self.0.load(Relaxed) < MAX
    }
}

/// Runs `future` and returns its output. If this is dropped, a task of `worker` goes on, which
/// `abandoned` counts. A graceful shutdown waits for it; only the end of the worker ends it.
pub(super) async fn run_to_end<T: 'static>(
    worker: &WorkerHandle,
    abandoned: Abandoned,
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
    abandoned: Abandoned,
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
        if let Some(future) = self.future.take() {
            let counted = Counted::new(&self.abandoned);
            let lasting = self.lasting.take();
            let task = self.worker.spawn(async move {
                drop(future.await);
                drop((counted, lasting));
            });
            task.detach();
        }
    }
}

struct Counted(Abandoned);

impl Counted {
    fn new(abandoned: &Abandoned) -> Counted {
        abandoned.0.fetch_add(1, Relaxed);
        Counted(abandoned.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}
