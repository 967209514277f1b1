//! Loading again what may change while the server runs, on a thread of its own: the thread of
//! signals must not wait for a disk.

use crate::failure::{self, Failure};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A request to load everything again. What loads holds a clone meanwhile; when the last clone is
/// dropped, the request is complete.
#[derive(Clone)]
pub(crate) struct Reloading(#[expect(dead_code, reason = "it is dropped")] Option<Arc<Completion>>);

struct Completion(Box<dyn Fn() + Send + Sync>);

impl Drop for Completion {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Reloading {
    /// Calls `complete` when all have loaded.
    pub(crate) fn new(complete: impl Fn() + Send + Sync + 'static) -> Reloading {
        Reloading(Some(Arc::new(Completion(Box::new(complete)))))
    }
}

/// Sends requests to load something again.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    what: &'static str,
    sender: Sender<Reloading>,
}

/// The requests that a thread receives.
pub(crate) struct Requests(Receiver<Reloading>);

/// Why a thread continues. The value of a request is dropped when that has been done.
pub(crate) enum Wake {
    /// All requests that wait.
    Requested(Vec<Reloading>),
    TimedOut,
    /// No more requests are possible.
    Ended,
}

impl Requests {
    /// Waits for requests.
    pub(crate) fn wait(&self, limit: Duration) -> Wake {
        match self.0.recv_timeout(limit) {
            Ok(first) => Wake::Requested(std::iter::once(first).chain(self.0.try_iter()).collect()),
            Err(RecvTimeoutError::Timeout) => Wake::TimedOut,
            Err(RecvTimeoutError::Disconnected) => Wake::Ended,
        }
    }
}

impl Reload {
    /// Starts the thread `thread`, which runs `run` with the requests. `what` is for the log.
    pub(crate) fn start(
        what: &'static str,
        thread: &str,
        run: impl FnOnce(&Requests) + Send + 'static,
    ) -> Result<Reload, Failure> {
        let (sender, receiver) = channel();
        let requests = Requests(receiver);
        let thread = std::thread::Builder::new().name(thread.to_owned());
        let spawned = thread.spawn(move || run(&requests));
        spawned.map_err(|error: io::Error| {
            let reason = failure::error_text(&error);
            Failure::run(format!("cannot start the thread for {what}: {reason}"))
        })?;
        Ok(Reload { what, sender })
    }

    /// Loads it again, on its thread. Requests that wait are merged.
    pub(crate) fn request(&self, reloading: Reloading) {
        if self.sender.send(reloading).is_err() {
            tracing::error!(
                "the {} cannot be loaded again: their thread has ended",
                self.what
            );
        }
    }

    /// As [`Reload::request`], when nothing waits for the end.
    pub(crate) fn request_alone(&self) {
        self.request(Reloading(None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_request_is_complete_when_all_have_loaded() {
        let complete = Arc::new(AtomicBool::new(false));
        let seen = complete.clone();
        let (go, gone) = channel::<()>();
        let slow = Reload::start("a", "slow", move |requests| {
            let wake = requests.wait(Duration::MAX);
            gone.recv().unwrap();
            drop(wake);
        });
        let (done, is_done) = channel::<()>();
        let fast = Reload::start("b", "fast", move |requests| {
            drop(requests.wait(Duration::MAX));
            done.send(()).unwrap();
        });
        let (slow, fast) = (slow.unwrap(), fast.unwrap());
        let (end, has_ended) = channel::<()>();
        let reloading = Reloading::new(move || {
            seen.store(true, Ordering::Release);
            end.send(()).unwrap();
        });
        slow.request(reloading.clone());
        fast.request(reloading);
        is_done.recv().unwrap();
        assert!(!complete.load(Ordering::Acquire));
        go.send(()).unwrap();
        has_ended.recv().unwrap();
        assert!(complete.load(Ordering::Acquire));
    }
}
