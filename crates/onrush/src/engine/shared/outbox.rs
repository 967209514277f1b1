//! The connections that a draining worker passes on to another process.

use crate::engine::shared::transfer::EstablishedConn;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The connections that wait to be passed on. There are no more than open connections.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    connections: VecDeque<Box<EstablishedConn>>,
    /// No more are passed on.
    is_closed: bool,
}

impl Outbox {
    /// Adds a connection, or returns it when no more are passed on.
    pub(in crate::engine) fn add(
        &self,
        connection: Box<EstablishedConn>,
    ) -> Result<(), Box<EstablishedConn>> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(connection);
        }
        waiting.connections.push_back(connection);
        drop(waiting);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the first connection, and waits up to `limit` for one.
    pub(crate) fn take(&self, limit: Duration) -> Option<Box<EstablishedConn>> {
        let is_empty = |waiting: &mut Waiting| waiting.connections.is_empty();
        let waited = (self.changed).wait_timeout_while(self.lock(), limit, is_empty);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.connections.pop_front()
    }

    /// Passes no more on. Returns those that wait.
    pub(crate) fn close(&self) -> VecDeque<Box<EstablishedConn>> {
        let mut waiting = self.lock();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.connections)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_outbox_takes_no_connection() {
        let outbox = Outbox::default();
        assert!(outbox.take(Duration::ZERO).is_none());
        let connection = || Box::new(EstablishedConn::for_test());
        assert!(outbox.add(connection()).is_ok());
        assert!(outbox.add(connection()).is_ok());
        assert!(outbox.take(Duration::ZERO).is_some());
        assert_eq!(outbox.close().len(), 1);
        assert!(outbox.is_closed() && outbox.add(connection()).is_err());
    }
}
