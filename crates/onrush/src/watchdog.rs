//! What the workers of one server share so that one that is blocked is noticed, and the connections
//! at its listeners are accepted by others.
//!
//! While any worker has had something to do within [`ACTIVE_MS`], all of them look ten times a
//! second whether another one is blocked. So none has to be woken for that, and a server without
//! traffic does not wake up. The first one that has something to do after a pause wakes the others.
//!
//! Must not know what is done about a worker that is blocked.

use onrush_rt::driver::{ListenSocket, Socket};
use onrush_rt::net;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A worker that looks stores that it was active at most this often.
const STORE_MS: u64 = 100;
/// A worker goes on looking for so long after any of them was active.
const ACTIVE_MS: u64 = 1000;
/// After a pause of so long others may have stopped looking, and are woken. Shorter than
/// [`ACTIVE_MS`]: a worker may act on its clock a little later than it has read it.
const WAKE_MS: u64 = 700;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// When a worker last had something to do, in ms of `CLOCK_MONOTONIC`.
    active_ms: AtomicU64,
    /// The listening sockets of each worker, as long as it accepts.
    listeners: Box<[Mutex<Vec<ListenSocket>>]>,
}

impl Watchdog {
    pub(crate) fn new(workers: usize) -> Watchdog {
        Watchdog {
            active_ms: AtomicU64::new(0),
            listeners: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    /// A worker has something to do at `now_ms`; whether it has to wake the others.
    pub(crate) fn note_active(&self, now_ms: u64) -> bool {
        let last_ms = self.active_ms.load(Ordering::Relaxed);
        if now_ms >= last_ms + STORE_MS {
            self.active_ms.store(now_ms, Ordering::Relaxed);
        }
        now_ms >= last_ms + WAKE_MS
    }

    /// Whether a worker was active lately.
    pub(crate) fn is_active(&self, now_ms: u64) -> bool {
        now_ms < self.active_ms.load(Ordering::Relaxed) + ACTIVE_MS
    }

    /// Others may accept from these sockets of `worker` while it is blocked.
    pub(crate) fn lend(&self, worker: usize, sockets: Vec<ListenSocket>) {
        *lock(&self.listeners[worker]) = sockets;
    }

    /// Others accept from these sockets no more.
    pub(crate) fn take_back(&self, worker: usize) -> Vec<ListenSocket> {
        std::mem::take(&mut *lock(&self.listeners[worker]))
    }

    /// Accepts a connection that waits at a listener of `worker`, if there is one.
    pub(crate) fn accept_for(&self, worker: usize) -> Option<Socket> {
        let sockets = lock(&self.listeners[worker]);
        sockets
            .iter()
            .find_map(|socket| net::accept_now(socket).ok())
    }
}

fn lock(sockets: &Mutex<Vec<ListenSocket>>) -> std::sync::MutexGuard<'_, Vec<ListenSocket>> {
    sockets.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_woken_only_after_a_pause() {
        let watchdog = Watchdog::new(2);
        assert!(watchdog.note_active(5_000), "nobody looked before");
        assert!(watchdog.is_active(5_000) && watchdog.is_active(5_999));
        assert!(!watchdog.is_active(6_000));
        for now_ms in (5_000..20_000).step_by(699) {
            assert!(!watchdog.note_active(now_ms));
            assert!(watchdog.is_active(now_ms + 899));
        }
        assert!(watchdog.note_active(30_000));
    }

    #[test]
    fn what_waits_at_a_lent_listener_is_accepted_once() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sockets = net::share(listener.into(), 1).unwrap();
        let watchdog = Watchdog::new(2);
        watchdog.lend(1, sockets);
        assert!(watchdog.accept_for(1).is_none());
        let _client = std::net::TcpStream::connect(address).unwrap();
        assert!(watchdog.accept_for(0).is_none());
        assert!(watchdog.accept_for(1).is_some());
        assert!(watchdog.accept_for(1).is_none());
        assert_eq!(watchdog.take_back(1).len(), 1);
        assert!(watchdog.take_back(1).is_empty());
    }
}
