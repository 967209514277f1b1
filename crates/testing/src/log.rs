//! What a part of a test logs.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tracing::subscriber::{NoSubscriber, with_default};
use tracing::{Dispatch, Subscriber};

/// A log in memory. Clones are the same log.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// What is in the log, which is empty after this.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn take(&self) -> String {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(std::mem::take(&mut *bytes)).expect("UTF-8")
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `act` logs on this thread, through the subscriber that writes to a log.
pub fn logged<S>(subscriber: impl FnOnce(Log) -> S, act: impl FnOnce()) -> String
where
    S: Subscriber + Send + Sync + 'static,
{
    let log = Log::default();
    with_subscriber(subscriber(log.clone()), act);
    log.take()
}

/// Calls `act`, with a subscriber for the events of this thread.
///
/// As long as a process has one subscriber, tracing asks only the thread that comes to an event
/// first whether anyone wants it. The threads of other tests have no subscriber, so it would be
/// disabled for all. With another subscriber, tracing asks all of them.
pub fn with_subscriber<S>(subscriber: S, act: impl FnOnce())
where
    S: Subscriber + Send + Sync + 'static,
{
    static OTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&OTHER);
    with_default(subscriber, act);
}
