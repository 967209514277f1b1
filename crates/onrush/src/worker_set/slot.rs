//! What one worker shares with the others: its connections, its inbox and its load.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use onrush_rt::worker::{Notifier, PollMonitor};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// A worker whose event-loop iteration takes longer than this receives no new connections.
pub(crate) const BLOCKED_MS: u64 = 100;
/// How long a published load is valid.
const LOAD_VALID_MS: u64 = 300;

/// The shared state of one worker. Aligned, so that no two workers write to the same cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WorkerSlot<T> {
    /// Connections of this worker, including those on their way to it.
    open: AtomicUsize,
    /// The worker accepts transfers.
    is_receiving: AtomicBool,
    inbox: Mutex<Inbox<T>>,
    load: Arc<WorkerLoad>,
    /// Monitors what the worker runs. Reading it through the notifier in `load` takes a lock.
    poll_monitor: OnceLock<Arc<PollMonitor>>,
    /// It has no idle connection to close before this time, in ms of `CLOCK_MONOTONIC`.
    no_idle_until_ms: AtomicU64,
}

#[derive(Debug)]
struct Inbox<T> {
    items: Vec<T>,
    /// The worker has stopped.
    closed: bool,
}

impl<T> WorkerSlot<T> {
    pub(super) fn new() -> WorkerSlot<T> {
        WorkerSlot {
            open: AtomicUsize::new(0),
            is_receiving: AtomicBool::new(false),
            inbox: Mutex::new(Inbox {
                items: Vec::new(),
                closed: false,
            }),
            load: Arc::default(),
            poll_monitor: OnceLock::new(),
            no_idle_until_ms: AtomicU64::new(0),
        }
    }

    /// The worker starts to accept transfers.
    pub(super) fn join(&self, notifier: Notifier) {
        let _ = self.poll_monitor.set(notifier.poll_monitor().clone()); // A worker joins once.
        *self.load.notifier() = Some(notifier);
        self.is_receiving.store(true, Ordering::Relaxed);
    }

    /// The worker stops accepting transfers. Returns the items left in its inbox.
    pub(super) fn leave(&self) -> Vec<T> {
        self.is_receiving.store(false, Ordering::Relaxed);
        *self.load.notifier() = None;
        let mut inbox = self.inbox();
        inbox.closed = true;
        std::mem::take(&mut inbox.items)
    }

    pub(super) fn is_receiving(&self) -> bool {
        self.is_receiving.load(Ordering::Relaxed)
    }

    /// Connections of the worker, including those on their way to it.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Reserves a place for a connection.
    pub(super) fn reserve(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves a place if the worker still has `open` connections; returns whether it had.
    pub(super) fn reserve_if(&self, open: usize) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let exchanged = (self.open).compare_exchange(open, open + 1, success, failure);
        exchanged.is_ok()
    }

    /// Releases a place.
    pub(super) fn release(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts `item` into the inbox and wakes the worker. Returns the item if the worker has stopped.
    pub(super) fn send(&self, item: T) -> Result<(), T> {
        let notifier = self.load.notifier().clone();
        let mut inbox = self.inbox();
        match notifier {
            Some(notifier) if !inbox.closed => {
                inbox.items.push(item);
                drop(inbox);
                notifier.notify();
                Ok(())
            }
            _ => Err(item),
        }
    }

    /// Takes the items from the inbox.
    pub(super) fn take_inbox(&self) -> Vec<T> {
        std::mem::take(&mut self.inbox().items)
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<T>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the worker, unless it has stopped.
    pub(super) fn wake(&self) {
        let notifier = self.load.notifier().clone();
        if let Some(notifier) = notifier {
            notifier.notify();
        }
    }

    /// Whether the present event-loop iteration of the worker has taken longer than `limit_ms`.
    pub(super) fn iteration_exceeds(&self, now_ms: u64, limit_ms: u64) -> bool {
        let poll_monitor = self.poll_monitor.get();
        poll_monitor.is_some_and(|poll_monitor| poll_monitor.iteration_ms(now_ms) > limit_ms)
    }

    pub(super) fn is_blocked(&self, now_ms: u64) -> bool {
        self.iteration_exceeds(now_ms, BLOCKED_MS)
    }

    /// The worker found no idle connection to close, and looks again at `until_ms`.
    pub(super) fn set_no_idle_until(&self, until_ms: u64) {
        self.no_idle_until_ms.store(until_ms, Ordering::Relaxed);
    }

    /// Whether the worker may have an idle connection to close.
    pub(super) fn may_have_idle(&self, now_ms: u64) -> bool {
        self.no_idle_until_ms.load(Ordering::Relaxed) <= now_ms
    }

    pub(super) fn load(&self) -> &Arc<WorkerLoad> {
        &self.load
    }
}

/// The published load of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLoad {
    /// The share of time in which it did not sleep, in thousandths, and when that was published, in
    /// ms.
    permille: AtomicU32,
    at_ms: AtomicU64,
    /// Present while the worker accepts transfers. Removed afterwards, because metrics may hold the
    /// load for longer than the worker lives.
    notifier: Mutex<Option<Notifier>>,
}

impl WorkerLoad {
    /// Publishes the load: the worker was busy for `permille` of the time until `now_ms`.
    pub(super) fn publish(&self, permille: u32, now_ms: u64) {
        self.permille.store(permille, Ordering::Relaxed);
        self.at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The load of a worker. Without a recent publication it is 0 if the worker sleeps; otherwise
    /// 1000, because the worker is too busy to publish, or has stopped and takes no connections.
    pub(crate) fn permille(&self, now_ms: u64) -> u32 {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        match &*self.notifier() {
            _ if age_ms <= LOAD_VALID_MS => self.permille.load(Ordering::Relaxed),
            Some(notifier) if notifier.is_asleep() => 0,
            _ => 1000,
        }
    }

    /// Milliseconds since the worker began its present event-loop iteration, and the tag of what it
    /// runs; `None` while it sleeps or after it has stopped. `now_ms`: of `CLOCK_MONOTONIC`.
    pub(crate) fn iteration(&self, now_ms: u64) -> Option<(u64, u32)> {
        let notifier = self.notifier();
        let notifier = notifier.as_ref().filter(|notifier| !notifier.is_asleep())?;
        let poll_monitor = notifier.poll_monitor();
        Some((poll_monitor.iteration_ms(now_ms), poll_monitor.tag()))
    }

    /// Whether the worker is running.
    pub(crate) fn is_alive(&self) -> bool {
        self.notifier().is_some()
    }

    fn notifier(&self) -> MutexGuard<'_, Option<Notifier>> {
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
