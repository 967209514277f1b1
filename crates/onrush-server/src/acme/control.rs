//! What other threads ask of the thread that orders: an attempt at once, and its end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// The thread that orders certificates. Clones are for the same thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders(Arc<ControlState>);

#[derive(Debug, Default)]
struct ControlState {
    flags: Mutex<Flags>,
    changed: Condvar,
    /// Ends an order in progress.
    stopped: Notify,
}

#[derive(Debug, Default)]
struct Flags {
    is_retry: bool,
    is_stopped: bool,
    has_ended: bool,
}

impl Orders {
    /// Orders a certificate that is due at once, whatever has failed before, unless the authority
    /// has asked for a pause. Does not wait.
    pub(crate) fn retry(&self) {
        self.flags().is_retry = true;
        self.0.changed.notify_all();
    }

    /// Ends the order in progress, which does not count as failed, and the thread. Does not wait.
    pub(crate) fn stop(&self) {
        self.flags().is_stopped = true;
        self.0.changed.notify_all();
        self.0.stopped.notify_one();
    }

    /// Waits for the end of the thread, at most for this time.
    pub(crate) fn join(&self, time: Duration) {
        self.wait(time, |flags| flags.has_ended);
    }

    /// Waits for this time, or until there is a request.
    pub(super) fn sleep(&self, time: Duration) {
        self.wait(time, |flags| flags.is_retry || flags.is_stopped);
    }

    /// Whether there was a request to try at once since the last call.
    pub(super) fn take_retry(&self) -> bool {
        std::mem::take(&mut self.flags().is_retry)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.flags().is_stopped
    }

    /// Waits for [`Orders::stop`].
    pub(super) async fn stopped(&self) {
        self.0.stopped.notified().await;
    }

    /// The thread has ended.
    pub(super) fn end(&self) {
        self.flags().has_ended = true;
        self.0.changed.notify_all();
    }

    fn wait(&self, time: Duration, until: impl Fn(&Flags) -> bool) {
        let pending = |flags: &mut Flags| !until(flags);
        let waited = (self.0.changed).wait_timeout_while(self.flags(), time, pending);
        drop(waited);
    }

    fn flags(&self) -> MutexGuard<'_, Flags> {
        self.0.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
