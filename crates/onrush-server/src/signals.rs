//! Signals: what ends the server, and what does not. Must not know what it serves.

use onrush::server::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a server that is to leave at once has for it, before the process just ends.
const LEAVING: Duration = Duration::from_millis(500);

/// Signals so close behind the first are the same wish: `timeout(1)` signals its child and then the
/// group that the child is in.
const BURST: Duration = Duration::from_millis(100);

/// What signals have asked for, and the server to end, once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending(Arc<State>);

#[derive(Debug, Default)]
struct State {
    handle: OnceLock<Handle>,
    cut: AtomicBool,
}

impl Ending {
    /// From now on signals end this server; until now they ended the process.
    pub(crate) fn serve(&self, handle: Handle) {
        let _ = self.0.handle.set(handle); // It is called once.
    }

    /// Whether a second signal cut short what was in flight.
    pub(crate) fn was_cut(&self) -> bool {
        self.0.cut.load(Ordering::Acquire)
    }

    /// `first`: when the end was first asked for.
    fn take(&self, signal: i32, first: &mut Option<Instant>) {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        match self.0.handle.get() {
            _ if signal == SIGHUP => {
                tracing::info!(signal = name, "nothing is read again while it serves");
            }
            // Nobody has been served yet.
            None => std::process::exit(0),
            Some(_) if first.is_some_and(|first| first.elapsed() < BURST) => {
                tracing::debug!(signal = name, "came with the first one");
            }
            Some(handle) if handle.is_ending() => {
                self.0.cut.store(true, Ordering::Release);
                handle.shutdown_now();
                // A worker may wait for a disk.
                std::thread::sleep(LEAVING);
                std::process::exit(1);
            }
            Some(handle) => {
                tracing::info!(signal = name, "ending when requests in flight are answered");
                *first = Some(Instant::now());
                handle.shutdown();
            }
        }
    }
}

/// Takes the signals of this process, on a thread of its own.
///
/// `SIGTERM` and `SIGINT` drain the server, and a second one, unless it comes with the first, ends
/// it at once. `SIGHUP` is told in
/// the log. `SIGPIPE` is ignored by the standard library already.
pub(crate) fn watch() -> io::Result<Ending> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let ending = Ending::default();
    let watching = ending.clone();
    let thread = std::thread::Builder::new().name("onrush-signals".to_owned());
    thread.spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            watching.take(signal, &mut first);
        }
    })?;
    Ok(ending)
}
