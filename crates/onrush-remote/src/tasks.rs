//! Runs what requests need on the runtime, each with a limit: the time at which it ends at the
//! latest. A call of the store begins with one limit for all its requests, attempts and pauses.

use crate::error::{store_error, uncertain};
use crate::observer::observe;
use crate::service::Service;
use onrush_store::{Result, StoreError};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::EnterGuard;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

impl Service {
    /// The limit of a call that begins now.
    pub(crate) fn limit(&self) -> Instant {
        Instant::now() + self.options.operation_timeout
    }

    /// The limit of a wait for the service to take or send bytes, if it begins now.
    pub(crate) fn silence(&self) -> Instant {
        Instant::now() + self.options.read_timeout
    }

    /// Starts requests that end at `until`. Dropping the task cancels them.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        until: Instant,
        operation: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Task<T> {
        self.spawn_until(until, async move {
            let (result, seen) = observe(until, operation).await;
            result.map_err(|error| match store_error(&error, seen.last) {
                error if seen.is_uncertain => uncertain(error),
                error => error,
            })
        })
    }

    /// Starts something that fails with [`StoreError::Timeout`] at `until`.
    pub(crate) fn spawn_until<T: Send + 'static>(
        &self,
        until: Instant,
        operation: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Task<T> {
        self.spawn(async move {
            let limited = timeout_at(until, operation).await;
            limited.unwrap_or(Err(StoreError::Timeout))
        })
    }

    /// Starts something whose caller limits it. Dropping the task cancels it.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Task<T> {
        Task(self.handle.spawn(operation))
    }

    /// Starts something that goes on without a caller, until its requests end.
    pub(crate) fn detach(&self, operation: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(operation);
    }

    /// Waits on the calling thread, which must not be that of a worker.
    pub(crate) fn wait_for<T>(&self, operation: impl Future<Output = T>) -> T {
        self.handle.block_on(operation)
    }

    /// Lets the caller poll what needs the runtime's timers.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}

/// An operation in progress. Dropping it cancels the operation.
pub(crate) struct Task<T>(JoinHandle<Result<T>>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let joined = std::task::ready!(Pin::new(&mut self.0).poll(cx));
        // It panicked, or the runtime ends.
        Poll::Ready(joined.unwrap_or(Err(StoreError::Io(io::ErrorKind::Other.into()))))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
