//! The state that the workers of one server share to detect a blocked worker, and to accept the
//! connections at its listeners.
//!
//! While any worker has been active within [`ACTIVE_MS`], all workers check each other ten times
//! per second. So no worker has to be woken for the check, and a server without traffic does not
//! wake up. The first worker that becomes active after a pause wakes the others. There is no
//! watchdog thread: with one worker, a second thread adds the counting of references to descriptors
//! to each system call.
//!
//! The engine performs the checks and handles blocked workers (`engine/workers/stall.rs`).

use onrush_rt::driver::{ListenSocket, Socket};
use onrush_rt::net;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A worker records its activity at most once per this time.
const STORE_MS: u64 = 100;
/// Workers continue to check for this long after any of them was active.
const ACTIVE_MS: u64 = 1000;
/// After a pause of this length, other workers may have stopped checking and are woken. Shorter
/// than [`ACTIVE_MS`], because a worker may act a little later than it has read its clock.
const WAKE_MS: u64 = 700;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// When a worker was last active, in ms of `CLOCK_MONOTONIC`.
    active_ms: AtomicU64,
    /// The listening sockets of each worker, while it accepts.
    listeners: Box<[Mutex<Vec<ListenSocket>>]>,
}

impl Watchdog {
    pub(crate) fn new(workers: usize) -> Watchdog {
        Watchdog {
            active_ms: AtomicU64::new(0),
            listeners: (0..workers).map(|_| Mutex::default()).collect(),
        }
    }

    /// Records that a worker is active at `now_ms`; returns whether it has to wake the others.
    pub(crate) fn note_active(&self, now_ms: u64) -> bool {
        let last_ms = self.active_ms.load(Ordering::Relaxed);
        if now_ms >= last_ms + STORE_MS {
            self.active_ms.store(now_ms, Ordering::Relaxed);
        }
        now_ms >= last_ms + WAKE_MS
    }

    /// Whether any worker was active within [`ACTIVE_MS`].
    pub(crate) fn is_active(&self, now_ms: u64) -> bool {
        now_ms < self.active_ms.load(Ordering::Relaxed) + ACTIVE_MS
    }

    /// Permits other workers to accept from these sockets of `worker` while it is blocked.
    pub(crate) fn lend(&self, worker: usize, sockets: Vec<ListenSocket>) {
        *lock(&self.listeners[worker]) = sockets;
    }

    /// Ends the permission of [`Watchdog::lend`] and returns the sockets.
    pub(crate) fn take_back(&self, worker: usize) -> Vec<ListenSocket> {
        std::mem::take(&mut *lock(&self.listeners[worker]))
    }

    /// Duplicates of the sockets that `worker` has lent.
    pub(crate) fn duplicates(&self, worker: usize) -> io::Result<Vec<OwnedFd>> {
        let sockets = lock(&self.listeners[worker]);
        let duplicate = |socket: &ListenSocket| match socket {
            ListenSocket::Os(socket) => socket.try_clone(),
            ListenSocket::Sim(_) => Err(io::ErrorKind::Unsupported.into()),
        };
        sockets.iter().map(duplicate).collect()
    }

    /// Accepts a pending connection from a listener of `worker`, if there is one. Returns the
    /// position of the listener, and the connection.
    pub(crate) fn accept_for(&self, worker: usize) -> Option<(usize, Socket)> {
        let sockets = lock(&self.listeners[worker]);
        let accept = |(at, socket)| Some((at, net::accept_now(socket).ok()?));
        sockets.iter().enumerate().find_map(accept)
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
        assert!(watchdog.note_active(5_000), "the first activity");
        assert!(watchdog.is_active(5_000) && watchdog.is_active(5_999));
        assert!(!watchdog.is_active(6_000));
        for now_ms in (5_000..20_000).step_by(699) {
            assert!(!watchdog.note_active(now_ms));
            assert!(watchdog.is_active(now_ms + 899));
        }
        assert!(watchdog.note_active(30_000));
    }

    #[test]
    fn a_pending_connection_of_a_lent_listener_is_accepted_once() {
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
