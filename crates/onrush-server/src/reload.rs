//! Loading again what may change while the server runs, on a thread of its own: the thread of
//! signals must not wait for a disk.

use crate::failure::{self, Failure};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Requests to load something again.
#[derive(Clone, Debug)]
pub(crate) struct Reload {
    what: &'static str,
    sender: SyncSender<()>,
}

impl Reload {
    /// Starts the thread `thread`, which runs `run` with the requests. `what` is for the log.
    pub(crate) fn start(
        what: &'static str,
        thread: &str,
        run: impl FnOnce(&Receiver<()>) + Send + 'static,
    ) -> Result<Reload, Failure> {
        let (sender, receiver) = sync_channel(1);
        let thread = std::thread::Builder::new().name(thread.to_owned());
        let spawned = thread.spawn(move || run(&receiver));
        spawned.map_err(|error: io::Error| {
            let reason = failure::error_text(&error);
            Failure::run(format!("cannot start the thread for {what}: {reason}"))
        })?;
        Ok(Reload { what, sender })
    }

    /// Loads it again, on its thread. Requests that arrive while one waits are merged with it.
    pub(crate) fn request(&self) {
        match self.sender.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => {
                tracing::error!(
                    "the {} cannot be loaded again: their thread has ended",
                    self.what
                );
            }
        }
    }
}
