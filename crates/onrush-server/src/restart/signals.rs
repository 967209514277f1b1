//! Signals of the process: SIGTERM and SIGINT shut the server down, SIGHUP loads the configuration,
//! certificates and users again, and orders a certificate that is due. SIGUSR2 restarts the
//! process.

use crate::acme::Orders;
use crate::process::reload::{Reload, Reloading};
use crate::process::service_manager::ServiceManager;
use crate::restart::Restart;
use onrush::server::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time limit for a forced shutdown. The process exits after it.
const FORCED_EXIT_WAIT: Duration = Duration::from_millis(500);

/// Signals within this time after the first one count as the same request: `timeout(1)` signals its
/// child and then the process group of the child.
const BURST: Duration = Duration::from_millis(100);

/// The shutdown that signals have requested, and the server that it applies to, once it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shutdown(Arc<SignalsState>);

#[derive(Debug, Default)]
struct SignalsState {
    handle: OnceLock<Handle>,
    forced: AtomicBool,
    /// What can be loaded again: certificates, users.
    reloads: Mutex<Vec<Reload>>,
    /// Set if the server orders certificates.
    orders: OnceLock<Orders>,
    restart: OnceLock<Restart>,
    manager: OnceLock<ServiceManager>,
}

impl Shutdown {
    /// Sets the server that signals shut down. Before this call they end the process.
    pub(crate) fn attach(&self, handle: Handle) {
        let _ = self.0.handle.set(handle); // It is called once.
    }

    /// Adds what SIGHUP loads again. Without any, it has no effect.
    pub(crate) fn on_hangup(&self, reload: Reload) {
        self.reloads().push(reload);
    }

    fn reloads(&self) -> MutexGuard<'_, Vec<Reload>> {
        self.0
            .reloads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the orders that SIGHUP tries again at once, and that end with the server.
    pub(crate) fn attach_orders(&self, orders: Orders) {
        let _ = self.0.orders.set(orders); // It is called once.
    }

    /// Sets what SIGUSR2 restarts. Before this call the signal is ignored.
    pub(crate) fn attach_restart(&self, restart: Restart) {
        let _ = self.0.restart.set(restart); // It is called once.
    }

    /// Sets the service manager that is notified of signals.
    pub(crate) fn attach_manager(&self, manager: ServiceManager) {
        let _ = self.0.manager.set(manager); // It is called once.
    }

    fn manager(&self) -> ServiceManager {
        self.0.manager.get().cloned().unwrap_or_default()
    }

    /// Loads everything again that may have changed.
    fn reload(&self, signal: &str) {
        let reloads = self.reloads();
        if reloads.is_empty() {
            tracing::info!(signal, "signal ignored: options are read at start only");
        }
        let manager = self.manager();
        manager.reloading();
        let reloading = Reloading::new(move || manager.ready());
        for reload in reloads.iter() {
            reload.request(reloading.clone());
        }
        if let Some(orders) = self.0.orders.get() {
            orders.retry();
        }
    }

    /// Whether a second signal has ended the requests in progress.
    pub(crate) fn was_forced(&self) -> bool {
        self.0.forced.load(Ordering::Acquire)
    }

    /// Handles one signal. `first`: the time of the first signal that requested a shutdown.
    fn on_signal(&self, signal: i32, first: &mut Option<Instant>) {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        match self.0.handle.get() {
            _ if signal == SIGHUP => self.reload(name),
            _ if signal == SIGUSR2 => match self.0.restart.get() {
                Some(restart) => {
                    let orders = self.0.orders.get().cloned();
                    restart.request(move || orders.iter().for_each(Orders::stop));
                }
                None => tracing::info!(signal = name, "signal ignored: the server starts"),
            },
            // The server does not run yet.
            None => std::process::exit(0),
            Some(_) if first.is_some_and(|first| first.elapsed() < BURST) => {
                tracing::debug!(
                    signal = name,
                    "signal ignored: it follows the first one at once"
                );
            }
            // After a restart it is ending without a signal.
            Some(handle) if handle.is_ending() && first.is_some() => {
                self.0.forced.store(true, Ordering::Release);
                handle.shutdown_now();
                // A worker may be waiting for a disk and not stop.
                std::thread::sleep(FORCED_EXIT_WAIT);
                std::process::exit(1);
            }
            Some(handle) => {
                tracing::info!(
                    signal = name,
                    "shutting down; waiting for requests in progress"
                );
                *first = Some(Instant::now());
                self.manager().stopping();
                // First, because a validation cannot succeed any more.
                if let Some(orders) = self.0.orders.get() {
                    orders.stop();
                }
                handle.shutdown();
            }
        }
    }
}

/// Handles the signals of this process on a separate thread.
///
/// `SIGTERM` and `SIGINT` drain the server. A second one stops it at once, unless it follows within
/// [`BURST`]. `SIGHUP` loads again what can be, and orders a certificate that is due, or is logged
/// if there is nothing. `SIGUSR2` restarts the process. The standard library already ignores
/// `SIGPIPE`.
pub(crate) fn watch() -> io::Result<Shutdown> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR2])?;
    let shutdown = Shutdown::default();
    let watching = shutdown.clone();
    let thread = std::thread::Builder::new().name("onrush-signals".to_owned());
    thread.spawn(move || {
        let mut first = None;
        for signal in signals.forever() {
            watching.on_signal(signal, &mut first);
        }
    })?;
    Ok(shutdown)
}
