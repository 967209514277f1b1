//! Loading again what may change while the server runs, on a thread of its own: the thread of
//! signals must not wait for a disk.

use crate::process::failure::{self, Failure};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// Why something is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// It was requested. All requests that wait are complete afterwards.
    Requested,
    TimedOut,
}

impl Requests {
    /// Calls `load` for each request, and when none has arrived within `limit`, until no more are
    /// possible. A panic ends only that call: the next request must have its effect, such as that
    /// of a user who was removed.
    pub(crate) fn serve<T>(
        &self,
        mut state: T,
        limit: impl Fn(&T) -> Duration,
        load: impl Fn(&mut T, Wake),
    ) {
        loop {
            // Dropped when that has been done.
            let (wake, _requests) = match self.0.recv_timeout(limit(&state)) {
                Ok(first) => {
                    let others = self.0.try_iter();
                    (
                        Wake::Requested,
                        std::iter::once(first).chain(others).collect(),
                    )
                }
                Err(RecvTimeoutError::Timeout) => (Wake::TimedOut, Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // The hook of panics logs it.
            let _ = catch_unwind(AssertUnwindSafe(|| load(&mut state, wake)));
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
            let load = |gone: &mut Receiver<()>, _| gone.recv().unwrap();
            requests.serve(gone, |_| Duration::MAX, load);
        });
        let (done, is_done) = channel::<()>();
        let fast = Reload::start("b", "fast", move |requests| {
            let load = |done: &mut Sender<()>, _| done.send(()).unwrap();
            requests.serve(done, |_| Duration::MAX, load);
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

    #[test]
    fn a_panic_ends_one_reload() {
        let (done, is_done) = channel();
        let reload = Reload::start("a", "panics", move |requests| {
            let load = |count: &mut usize, wake| {
                *count += 1;
                assert_ne!(*count, 1, "the first one fails");
                done.send((*count, wake)).unwrap();
            };
            requests.serve(0, |_| Duration::MAX, load);
        });
        let reload = reload.unwrap();
        let (end, has_ended) = channel();
        reload.request(Reloading::new(move || end.send(()).unwrap()));
        has_ended.recv().expect("it is complete, too");
        reload.request_alone();
        assert_eq!(is_done.recv(), Ok((2, Wake::Requested)));
    }
}
