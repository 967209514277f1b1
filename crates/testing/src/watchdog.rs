//! A test that hangs ends its process.

use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

/// Aborts the process if the test that owns this takes more than four minutes: a hang is a failure.
/// A busy machine is slow, but not that slow.
pub struct Watchdog {
    /// Dropped with this, which ends the watchdog.
    _alive: mpsc::Sender<()>,
}

/// The watchdog of the test `what`.
pub fn watchdog(what: &'static str) -> Watchdog {
    let (alive, gone) = mpsc::channel();
    std::thread::spawn(move || {
        let limit = Duration::from_secs(240);
        if gone.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Not `eprintln!`: the test harness would capture the text, and abort loses it.
            let _ = writeln!(io::stderr(), "{what}: hangs");
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}
