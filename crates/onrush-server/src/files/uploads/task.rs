//! Runs the use of an upload to its end, also if the connection is lost.
//!
//! The engine drops the handler of a connection that is reset. If that interrupted a session, the
//! next request could continue the same bytes while the store still writes or publishes them, and
//! what has arrived would be lost. A task goes on: reading the body fails, and the session ends as
//! it does after any incomplete body.

use onrush::WorkerHandle;
use onrush::worker::Task;
use std::future::poll_fn;
use std::pin::Pin;

/// Runs `future` as a task of `worker` and returns its output. If this is dropped, the task goes
/// on. Only the end of the worker ends it.
pub(in crate::files) async fn run_to_end<F>(worker: &WorkerHandle, future: F) -> F::Output
where
    F: Future + 'static,
    F::Output: 'static,
{
    let mut task = DetachOnDrop(Some(worker.spawn(future)));
    let task = task.0.as_mut();
    match task {
        Some(task) => poll_fn(|cx| Pin::new(&mut *task).poll(cx)).await,
        None => unreachable!("only dropping takes the task"),
    }
}

struct DetachOnDrop<T>(Option<Task<T>>);

impl<T> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}
