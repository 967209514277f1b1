//! The state that the workers of one server share: the number of connections, the load and an inbox
//! of each worker.
//!
//! A new connection is assigned to a worker here, in one atomic step. So two workers that accept at
//! the same moment do not both assign theirs to the same third worker. The items in the inboxes are
//! generic; the engine defines them.

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

/// Decides which worker serves a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The first worker accepts and serves all connections.
    Single,
    /// Each worker serves the connections that the kernel assigns to it by a hash of addresses
    /// (`SO_REUSEPORT`, socket(7)).
    ReusePort,
    /// The workers take connections in rotation, independent of which one accepted them.
    RoundRobin,
    /// The worker with the fewest connections. When no accept is in progress, the numbers differ by
    /// at most one. A blocked worker receives none, here and with [`Placement::RoundRobin`].
    #[default]
    LeastLoaded,
}

impl Placement {
    /// All values.
    pub const ALL: [Placement; 4] = [
        Placement::Single,
        Placement::ReusePort,
        Placement::RoundRobin,
        Placement::LeastLoaded,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Single => "single",
            Placement::ReusePort => "reuseport",
            Placement::RoundRobin => "round-robin",
            Placement::LeastLoaded => "least-loaded",
        }
    }
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(name: &str) -> Result<Placement, String> {
        let found = Placement::ALL.into_iter().find(|all| all.name() == name);
        found.ok_or_else(|| {
            let names = Placement::ALL.map(Placement::name).join(", ");
            format!("'{name}' is not one of {names}")
        })
    }
}

/// A worker whose event-loop iteration takes longer than this receives no new connections.
pub(crate) const BLOCKED_MS: u64 = 100;
/// How long a published load is valid.
const BUSY_HOLDS_MS: u64 = 300;

/// The workers of one server. They transfer items of type `T` to each other.
#[derive(Debug)]
pub(crate) struct WorkerSet<T> {
    placement: Placement,
    /// The next worker for [`Placement::RoundRobin`].
    next_worker: AtomicUsize,
    slots: Box<[WorkerSlot<T>]>,
    /// The server drains: no more items are transferred.
    draining: AtomicBool,
}

/// The shared state of one worker. Aligned, so that no two workers write to the same cache line.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerSlot<T> {
    /// Connections of this worker, including those on their way to it.
    open: AtomicUsize,
    /// The worker accepts transfers.
    is_receiving: AtomicBool,
    inbox: Mutex<Inbox<T>>,
    busy: Arc<WorkerLoad>,
    /// Monitors what the worker runs. Unlike the one in `busy`, it is read without a lock.
    poll_monitor: OnceLock<Arc<PollMonitor>>,
    /// It has no idle connection to close before this time, in ms of `CLOCK_MONOTONIC`.
    no_idle_until_ms: AtomicU64,
}

/// The published load of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLoad {
    /// The share of time in which it did not sleep, in thousandths, and when that was published, in
    /// ms.
    permille: AtomicU32,
    at_ms: AtomicU64,
    /// Present while the worker accepts transfers. It is then removed, because metrics hold this
    /// value longer than the worker lives.
    notifier: Mutex<Option<Notifier>>,
}

impl WorkerLoad {
    fn set(&self, permille: u32, now_ms: u64) {
        self.permille.store(permille, Ordering::Relaxed);
        self.at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The load. Without a recent publication it is 0 if the worker sleeps; otherwise 1000, because
    /// the worker is too busy to publish.
    pub(crate) fn permille(&self, now_ms: u64) -> u32 {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        match &*self.notifier() {
            _ if age_ms <= BUSY_HOLDS_MS => self.permille.load(Ordering::Relaxed),
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

#[derive(Debug)]
struct Inbox<T> {
    items: Vec<T>,
    /// The worker has stopped.
    closed: bool,
}

/// The worker that a connection is assigned to. Its place there is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    Own,
    Peer(usize),
}

impl<T> WorkerSet<T> {
    pub(crate) fn new(workers: usize, placement: Placement) -> WorkerSet<T> {
        let slot = |_| WorkerSlot {
            open: AtomicUsize::new(0),
            is_receiving: AtomicBool::new(false),
            inbox: Mutex::new(Inbox {
                items: Vec::new(),
                closed: false,
            }),
            busy: Arc::default(),
            poll_monitor: OnceLock::new(),
            no_idle_until_ms: AtomicU64::new(0),
        };
        WorkerSet {
            placement,
            next_worker: AtomicUsize::new(0),
            slots: (0..workers).map(slot).collect(),
            draining: AtomicBool::new(false),
        }
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.slots.len()
    }

    /// The worker `own` starts to accept transfers.
    pub(crate) fn join(&self, own: usize, notifier: Notifier) {
        let _ = self.slots[own]
            .poll_monitor
            .set(notifier.poll_monitor().clone()); // A worker joins once.
        *self.slots[own].busy.notifier() = Some(notifier);
        self.slots[own].is_receiving.store(true, Ordering::Relaxed);
    }

    /// The worker `own` stops accepting transfers. Returns the items left in its inbox.
    pub(crate) fn leave(&self, own: usize) -> Vec<T> {
        self.slots[own].is_receiving.store(false, Ordering::Relaxed);
        *self.slots[own].busy.notifier() = None;
        let mut inbox = self.inbox(own);
        inbox.closed = true;
        std::mem::take(&mut inbox.items)
    }

    /// Ends transfers. Items in inboxes are still received.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Connections of the worker `own`, including those on their way to it.
    pub(crate) fn open(&self, own: usize) -> usize {
        self.slots[own].open.load(Ordering::Relaxed)
    }

    /// Assigns a new connection that `own` accepted at `now_ms` (`CLOCK_MONOTONIC`).
    pub(crate) fn place_connection(&self, own: usize, now_ms: u64) -> Assignment {
        let place = match self.placement {
            _ if self.slots.len() == 1 || self.is_draining() => Assignment::Own,
            Placement::Single | Placement::ReusePort => Assignment::Own,
            Placement::RoundRobin => self.next_in_rotation(own, now_ms),
            Placement::LeastLoaded => return self.least_loaded(own, now_ms),
        };
        let index = match place {
            Assignment::Own => own,
            Assignment::Peer(other) => other,
        };
        self.reserve(index);
        place
    }

    fn next_in_rotation(&self, own: usize, now_ms: u64) -> Assignment {
        let index = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        match index == own || !self.is_receiving(index) || self.is_blocked(index, now_ms) {
            true => Assignment::Own,
            false => Assignment::Peer(index),
        }
    }

    /// Reserves a place at the worker with the fewest connections. Searches again if that worker
    /// received another connection meanwhile. As long as no connection closes, the numbers never
    /// differ by more than one.
    fn least_loaded(&self, own: usize, now_ms: u64) -> Assignment {
        loop {
            let (mut best, mut fewest) = (own, self.open(own));
            for other in 0..self.slots.len() {
                let open = self.open(other);
                if open < fewest && self.is_receiving(other) && !self.is_blocked(other, now_ms) {
                    (best, fewest) = (other, open);
                }
            }
            let open = &self.slots[best].open;
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            if open
                .compare_exchange(fewest, fewest + 1, success, failure)
                .is_ok()
            {
                return match best == own {
                    true => Assignment::Own,
                    false => Assignment::Peer(best),
                };
            }
        }
    }

    fn is_blocked(&self, other: usize, now_ms: u64) -> bool {
        let poll_monitor = self.slots[other].poll_monitor.get();
        poll_monitor.is_some_and(|poll_monitor| poll_monitor.iteration_ms(now_ms) > BLOCKED_MS)
    }

    /// Whether an iteration of any worker but `own` has taken longer than `limit_ms`.
    pub(crate) fn is_any_busy_for(&self, own: usize, now_ms: u64, limit_ms: u64) -> bool {
        let slots = self.slots.iter().enumerate();
        let mut peer_loads =
            slots.filter_map(|(at, slot)| slot.poll_monitor.get().filter(|_| at != own));
        peer_loads.any(|poll_monitor| poll_monitor.iteration_ms(now_ms) > limit_ms)
    }

    /// The worker `own` found no idle connection to close, and looks again at `until_ms`.
    pub(crate) fn set_no_idle_until(&self, own: usize, until_ms: u64) {
        let no_idle_until_ms = &self.slots[own].no_idle_until_ms;
        no_idle_until_ms.store(until_ms, Ordering::Relaxed);
    }

    /// The next worker after `own` that may have an idle connection to close.
    pub(crate) fn next_with_idle(&self, own: usize, now_ms: u64) -> Option<usize> {
        if self.is_draining() {
            return None;
        }
        let may_have_idle = |&other: &usize| {
            let no_idle_until_ms = &self.slots[other].no_idle_until_ms;
            self.is_receiving(other)
                && no_idle_until_ms.load(Ordering::Relaxed) <= now_ms
                && !self.is_blocked(other, now_ms)
        };
        let mut others = (own + 1..self.slots.len()).chain(0..own);
        others.find(may_have_idle)
    }

    /// Whether another worker than the accepting one may serve a connection.
    pub(crate) fn may_transfer(&self) -> bool {
        let chosen = matches!(
            self.placement,
            Placement::RoundRobin | Placement::LeastLoaded
        );
        chosen && !self.is_draining()
    }

    /// Wakes all workers but `own`.
    pub(crate) fn wake_others(&self, own: usize) {
        for (at, slot) in self.slots.iter().enumerate() {
            let notifier = (at != own).then(|| slot.busy.notifier().clone()).flatten();
            if let Some(notifier) = notifier {
                notifier.notify();
            }
        }
    }

    /// Takes the items from the inbox of the worker `from`, and moves their places to `own`.
    pub(crate) fn take_inbox_of(&self, own: usize, from: usize) -> Vec<T> {
        let items = self.take_inbox(from);
        for _ in &items {
            self.release(from);
            self.reserve(own);
        }
        items
    }

    fn is_receiving(&self, other: usize) -> bool {
        self.slots[other].is_receiving.load(Ordering::Relaxed)
    }

    /// Reserves a place at `index` for a connection that goes there.
    pub(crate) fn reserve(&self, index: usize) {
        self.slots[index].open.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases a place: its connection is closed, or moves to another worker.
    pub(crate) fn release(&self, index: usize) {
        self.slots[index].open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Transfers `item` to the worker `to`, where a place is reserved for it. If that worker has
    /// stopped, the place moves to `own` and the item is returned.
    pub(crate) fn transfer(&self, own: usize, to: usize, item: T) -> Result<(), T> {
        let notifier = self.slots[to].busy.notifier().clone();
        let mut inbox = self.inbox(to);
        match notifier {
            Some(notifier) if !inbox.closed => {
                inbox.items.push(item);
                drop(inbox);
                notifier.notify();
                Ok(())
            }
            _ => {
                self.reserve(own);
                self.release(to);
                Err(item)
            }
        }
    }

    /// Takes the items from the inbox of the worker `own`.
    pub(crate) fn take_inbox(&self, own: usize) -> Vec<T> {
        std::mem::take(&mut self.inbox(own).items)
    }

    fn inbox(&self, index: usize) -> MutexGuard<'_, Inbox<T>> {
        let inbox = self.slots[index].inbox.lock();
        inbox.unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the load of the worker `own`: it was busy for `permille` of the time until
    /// `now_ms`.
    pub(crate) fn set_busy(&self, own: usize, permille: u32, now_ms: u64) {
        self.slots[own].busy.set(permille, now_ms);
    }

    /// The published load of a worker.
    pub(crate) fn busy(&self, index: usize) -> &Arc<WorkerLoad> {
        &self.slots[index].busy
    }

    /// The loads of the workers that accept transfers, except `own`; `None` when no transfers are
    /// possible.
    pub(crate) fn peer_loads(&self, own: usize, now_ms: u64) -> Option<Vec<PeerLoad>> {
        if self.is_draining() || self.slots.len() == 1 {
            return None;
        }
        let peer_loads =
            (0..self.slots.len()).filter(|&index| index != own && self.is_receiving(index));
        let other = |index| PeerLoad {
            index,
            busy: self.busy(index).permille(now_ms),
        };
        Some(peer_loads.map(other).collect())
    }
}

/// See [`WorkerSet::peer_loads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerLoad {
    pub(crate) index: usize,
    /// In thousandths of the time.
    pub(crate) busy: u32,
}

/// Checks every interleaving of two workers (`cargo xtask loom`).
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;

    const WORKERS: usize = 2;

    /// Runs `act` for two workers concurrently, the second one on another thread, and `check` after
    /// both have ended.
    fn both(
        act: impl Fn(&WorkerSet<u32>, usize) + Clone + Send + Sync + 'static,
        check: impl Fn(&WorkerSet<u32>) + Send + Sync + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3); // Without a bound it takes minutes.
        model.check(move || {
            let net = Net::new(1, Behaviour::default());
            let worker_set = Arc::new(WorkerSet::new(WORKERS, Placement::LeastLoaded));
            let workers: Vec<Worker> = (0..WORKERS)
                .map(|own| {
                    let worker = Worker::simulated(net.clone(), own).expect("a worker");
                    worker_set.join(own, worker.notifier());
                    worker
                })
                .collect();
            let (theirs, acts) = (worker_set.clone(), act.clone());
            let thread = thread::spawn(move || acts(&theirs, 1));
            act(&worker_set, 0);
            thread.join().unwrap();
            check(&worker_set);
            drop(workers);
        });
    }

    fn open(worker_set: &WorkerSet<u32>) -> [usize; WORKERS] {
        [worker_set.open(0), worker_set.open(1)]
    }

    #[test]
    fn concurrent_accepts_balance_the_workers() {
        let accepts = |worker_set: &WorkerSet<u32>, own| {
            (0..2).for_each(|_| _ = worker_set.place_connection(own, 0))
        };
        both(accepts, |worker_set| assert_eq!(open(worker_set), [2, 2]));
    }

    /// The number of places equals the number of connections while some open and others close.
    #[test]
    fn reserved_and_released_places_are_counted() {
        let open_and_close = |worker_set: &WorkerSet<u32>, own: usize| {
            let index = match worker_set.place_connection(own, 0) {
                Assignment::Own => own,
                Assignment::Peer(other) => other,
            };
            worker_set.reserve(own);
            worker_set.release(index);
        };
        both(open_and_close, |worker_set| {
            assert_eq!(open(worker_set), [1, 1])
        });
    }

    /// An item that is transferred to a worker while it stops is received, found when the worker
    /// stops, or returned: exactly once, and its place moves with it.
    #[test]
    fn a_transfer_to_a_stopping_worker_is_not_lost() {
        let found = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counts = found.clone();
        let act = move |worker_set: &WorkerSet<u32>, own: usize| {
            let add = |more| counts.fetch_add(more, std::sync::atomic::Ordering::SeqCst);
            if own == 1 {
                let taken = worker_set.take_inbox(1).len() + worker_set.leave(1).len();
                (0..taken).for_each(|_| worker_set.release(1));
                add(taken);
                return;
            }
            worker_set.reserve(1);
            if let Err(item) = worker_set.transfer(0, 1, 7) {
                assert_eq!(item, 7);
                worker_set.release(0);
                add(1);
            }
        };
        both(act, move |worker_set| {
            assert_eq!(found.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
            assert_eq!(open(worker_set), [0, 0]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;

    fn worker_set(placement: Placement, workers: usize) -> (WorkerSet<u32>, Vec<Worker>) {
        let net = Net::new(1, Behaviour::default());
        let worker_set = WorkerSet::new(workers, placement);
        let workers = (0..workers).map(|index| {
            let worker = Worker::simulated(net.clone(), index).expect("a worker");
            worker_set.join(index, worker.notifier());
            worker
        });
        let workers = workers.collect();
        (worker_set, workers)
    }

    fn places(worker_set: &WorkerSet<u32>, own: usize, count: usize) -> Vec<usize> {
        let index = |place| match place {
            Assignment::Own => own,
            Assignment::Peer(other) => other,
        };
        (0..count)
            .map(|_| index(worker_set.place_connection(own, 0)))
            .collect()
    }

    #[test]
    fn each_placement_assigns_as_documented() {
        for (placement, expected) in [
            (Placement::Single, [0, 0, 0, 0, 0, 0]),
            (Placement::ReusePort, [0, 0, 0, 0, 0, 0]),
            (Placement::RoundRobin, [0, 1, 2, 0, 1, 2]),
            (Placement::LeastLoaded, [0, 1, 2, 0, 1, 2]),
        ] {
            let (worker_set, _workers) = worker_set(placement, 3);
            assert_eq!(places(&worker_set, 0, 6), expected, "{placement:?}");
            assert_eq!((0..3).map(|i| worker_set.open(i)).sum::<usize>(), 6);
        }
    }

    #[test]
    fn the_least_loaded_is_chosen_and_a_stopped_worker_is_not() {
        let (worker_set, _workers) = worker_set(Placement::LeastLoaded, 3);
        assert_eq!(places(&worker_set, 2, 4), [2, 0, 1, 2]);
        worker_set.release(1);
        assert_eq!(places(&worker_set, 2, 1), [1]);
        assert_eq!(worker_set.transfer(2, 1, 7), Ok(()));
        assert_eq!(worker_set.take_inbox(1), [7]);
        assert!(worker_set.leave(1).is_empty());
        worker_set.release(1);
        assert_eq!(places(&worker_set, 2, 1), [0]);
        // A worker that chose it before it stopped keeps the connection.
        worker_set.reserve(1);
        let open = (worker_set.open(1), worker_set.open(2));
        assert_eq!(worker_set.transfer(2, 1, 8), Err(8));
        assert_eq!(
            (worker_set.open(1), worker_set.open(2)),
            (open.0 - 1, open.1 + 1)
        );
        worker_set.drain();
        assert_eq!(places(&worker_set, 2, 2), [2, 2]);
    }

    #[test]
    fn accepting_at_the_same_moment_keeps_workers_balanced() {
        let (worker_set, _workers) = worker_set(Placement::LeastLoaded, 4);
        std::thread::scope(|scope| {
            for own in 0..4 {
                let worker_set = &worker_set;
                scope.spawn(move || places(worker_set, own, 1001));
            }
        });
        let open = [0, 1, 2, 3].map(|index| worker_set.open(index));
        assert_eq!(open, [1001; 4]);
    }

    #[test]
    fn a_worker_that_publishes_no_load_sleeps_or_is_blocked() {
        let (worker_set, _workers) = worker_set(Placement::LeastLoaded, 3);
        worker_set.set_busy(0, 900, 1000);
        worker_set.set_busy(1, 300, 1000);
        worker_set.set_busy(2, 600, 1000);
        let busy = |own, now_ms| {
            let peer_loads = worker_set
                .peer_loads(own, now_ms)
                .unwrap_or_default()
                .into_iter();
            peer_loads
                .map(|other| (other.index, other.busy))
                .collect::<Vec<_>>()
        };
        assert_eq!(busy(0, 1100), [(1, 300), (2, 600)]);
        // None of these workers is asleep.
        assert_eq!(worker_set.busy(1).permille(2000), 1000);
        worker_set.leave(2);
        assert_eq!(busy(0, 1100), [(1, 300)]);
    }
}
