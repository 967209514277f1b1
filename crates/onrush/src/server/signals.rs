//! The end of a server by SIGTERM and SIGINT (Ctrl-C).

use super::handle::Handle;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle as Source, Signals};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// Who handles the signals of this process. It belongs to the process, as signals do.
static HANDLING: Mutex<Option<Handling>> = Mutex::new(None);

struct Handling {
    /// The servers that end by a signal.
    servers: usize,
    /// The signals have their default effect.
    is_over: Arc<AtomicBool>,
}

fn lock() -> MutexGuard<'static, Option<Handling>> {
    HANDLING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handling of both signals for one server. When the last one is dropped, the signals end the
/// process again, as they do by default.
#[derive(Debug)]
pub(super) struct EndBySignal {
    signals: Option<Signals>,
    source: Source,
}

impl EndBySignal {
    /// Takes over the signals. One that arrives before [`EndBySignal::ends`] waits for it.
    pub(super) fn install() -> io::Result<EndBySignal> {
        let signals = Signals::new(ENDING)?;
        let mut handling = lock();
        if handling.is_none() {
            let is_over = Arc::new(AtomicBool::new(false));
            // The handlers of signal-hook remain in the process, and without an action they would
            // ignore the signals.
            for signal in ENDING {
                flag::register_conditional_default(signal, is_over.clone())?;
            }
            let servers = 0;
            *handling = Some(Handling { servers, is_over });
        }
        if let Some(handling) = &mut *handling {
            handling.servers += 1;
            handling.is_over.store(false, Ordering::SeqCst);
        }
        Ok(EndBySignal {
            source: signals.handle(),
            signals: Some(signals),
        })
    }

    /// Lets the first signal shut the server down, and a second one end it at once.
    pub(super) fn ends(&mut self, server: Handle) -> io::Result<()> {
        let Some(mut signals) = self.signals.take() else {
            return Ok(());
        };
        let thread = thread::Builder::new().name("onrush-signals".to_owned());
        thread.spawn(move || {
            for _ in signals.forever() {
                match server.is_ending() {
                    false => {
                        tracing::info!("a signal arrived: no more connections are accepted");
                        server.shutdown();
                    }
                    true => {
                        tracing::warn!("another signal arrived: requests in progress are lost");
                        server.shutdown_now();
                    }
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for EndBySignal {
    fn drop(&mut self) {
        self.source.close(); // The thread ends.
        if let Some(handling) = &mut *lock() {
            handling.servers -= 1;
            handling
                .is_over
                .store(handling.servers == 0, Ordering::SeqCst);
        }
    }
}
