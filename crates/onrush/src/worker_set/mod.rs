//! The state that the workers of one server share: the number of connections, the load and an inbox
//! of each worker.
//!
//! A new connection is assigned to a worker in one atomic step. So two workers that accept at the
//! same moment do not both choose the same third worker. The items in the inboxes are generic; the
//! engine defines them.
//!
//! Modules, lowest first: `placement` (the rule of assignment) · `slot` (what one worker shares).

#[cfg(all(test, loom))]
mod loom_tests;
mod placement;
mod slot;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use onrush_rt::worker::Notifier;
pub use placement::Placement;
use slot::WorkerSlot;
pub(crate) use slot::{BLOCKED_MS, WorkerLoad};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// The worker that a connection is assigned to. Its place there is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    Own,
    Peer(usize),
}

/// See [`WorkerSet::peer_loads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerLoad {
    pub(crate) index: usize,
    /// In thousandths of the time.
    pub(crate) busy: u32,
}

impl<T> WorkerSet<T> {
    pub(crate) fn new(workers: usize, placement: Placement) -> WorkerSet<T> {
        WorkerSet {
            placement,
            next_worker: AtomicUsize::new(0),
            slots: (0..workers).map(|_| WorkerSlot::new()).collect(),
            draining: AtomicBool::new(false),
        }
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.slots.len()
    }

    /// The worker `own` starts to accept transfers.
    pub(crate) fn join(&self, own: usize, notifier: Notifier) {
        self.slots[own].join(notifier);
    }

    /// The worker `own` stops accepting transfers. Returns the items left in its inbox.
    pub(crate) fn leave(&self, own: usize) -> Vec<T> {
        self.slots[own].leave()
    }

    /// Ends transfers. Items in inboxes are still received.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Connections of a worker, including those on their way to it.
    pub(crate) fn open(&self, index: usize) -> usize {
        self.slots[index].open()
    }

    /// Assigns a new connection that `own` accepted at `now_ms` (`CLOCK_MONOTONIC`).
    pub(crate) fn place_connection(&self, own: usize, now_ms: u64) -> Assignment {
        let place = match self.placement {
            _ if self.slots.len() == 1 || self.is_draining() => Assignment::Own,
            Placement::Single | Placement::ReusePort => Assignment::Own,
            Placement::RoundRobin => self.next_in_rotation(own, now_ms),
            Placement::LeastLoaded => return self.fewest_connections(own, now_ms),
        };
        let index = match place {
            Assignment::Own => own,
            Assignment::Peer(other) => other,
        };
        self.reserve(index);
        place
    }

    /// Assigns a connection that no worker has accepted. Returns the worker, where its place is
    /// reserved.
    pub(crate) fn place_adopted(&self, now_ms: u64) -> usize {
        let place = match self.placement {
            // The kernel has chosen for its previous process.
            Placement::ReusePort => self.fewest_connections(0, now_ms),
            _ => self.place_connection(0, now_ms),
        };
        match place {
            Assignment::Own => 0,
            Assignment::Peer(index) => index,
        }
    }

    /// Puts an item into the inbox of a worker, where a place is reserved for it. If that worker
    /// has stopped, the place is released and the item is returned.
    pub(crate) fn send(&self, to: usize, item: T) -> Result<(), T> {
        self.slots[to].send(item).inspect_err(|_| self.release(to))
    }

    /// Releases the place of a connection that has left the server, and has its worker notice it.
    pub(crate) fn release_and_wake(&self, index: usize) {
        self.release(index);
        self.slots[index].wake();
    }

    fn next_in_rotation(&self, own: usize, now_ms: u64) -> Assignment {
        let index = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let slot = &self.slots[index];
        match index == own || !slot.is_receiving() || slot.is_blocked(now_ms) {
            true => Assignment::Own,
            false => Assignment::Peer(index),
        }
    }

    /// Reserves a place at the worker with the fewest connections, whatever its [`WorkerLoad`].
    /// Searches again if that worker received another connection meanwhile. As long as no
    /// connection closes and no worker is blocked, the numbers never differ by more than one.
    fn fewest_connections(&self, own: usize, now_ms: u64) -> Assignment {
        loop {
            let (mut best, mut fewest) = (own, self.open(own));
            for (other, slot) in self.slots.iter().enumerate() {
                let open = slot.open();
                if open < fewest && slot.is_receiving() && !slot.is_blocked(now_ms) {
                    (best, fewest) = (other, open);
                }
            }
            if self.slots[best].reserve_if(fewest) {
                return match best == own {
                    true => Assignment::Own,
                    false => Assignment::Peer(best),
                };
            }
        }
    }

    /// Whether an iteration of any worker but `own` has taken longer than `limit_ms`.
    pub(crate) fn any_iteration_exceeds(&self, own: usize, now_ms: u64, limit_ms: u64) -> bool {
        let mut slots = self.slots.iter().enumerate();
        slots.any(|(at, slot)| at != own && slot.iteration_exceeds(now_ms, limit_ms))
    }

    /// The worker `own` found no idle connection to close, and looks again at `until_ms`.
    pub(crate) fn set_no_idle_until(&self, own: usize, until_ms: u64) {
        self.slots[own].set_no_idle_until(until_ms);
    }

    /// The next worker after `own` that may have an idle connection to close.
    pub(crate) fn next_with_idle(&self, own: usize, now_ms: u64) -> Option<usize> {
        if self.is_draining() {
            return None;
        }
        let may_have_idle = |&other: &usize| {
            let slot = &self.slots[other];
            slot.is_receiving() && slot.may_have_idle(now_ms) && !slot.is_blocked(now_ms)
        };
        let mut others = (own + 1..self.slots.len()).chain(0..own);
        others.find(may_have_idle)
    }

    /// Whether a new connection may be assigned to a worker other than the accepting one.
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
            if at != own {
                slot.wake();
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

    /// Reserves a place for a connection at the worker `index`.
    pub(crate) fn reserve(&self, index: usize) {
        self.slots[index].reserve();
    }

    /// Releases a place: its connection is closed, or moves to another worker.
    pub(crate) fn release(&self, index: usize) {
        self.slots[index].release();
    }

    /// Transfers `item` to the worker `to`, where a place is reserved for it. If that worker has
    /// stopped, the place moves to `own` and the item is returned.
    pub(crate) fn transfer(&self, own: usize, to: usize, item: T) -> Result<(), T> {
        self.slots[to].send(item).inspect_err(|_| {
            self.reserve(own);
            self.release(to);
        })
    }

    /// Takes the items from the inbox of a worker.
    pub(crate) fn take_inbox(&self, index: usize) -> Vec<T> {
        self.slots[index].take_inbox()
    }

    /// Publishes the load of a worker: it was busy for `permille` of the time until `now_ms`.
    pub(crate) fn publish_load(&self, index: usize, permille: u32, now_ms: u64) {
        self.slots[index].load().publish(permille, now_ms);
    }

    /// The published load of a worker.
    pub(crate) fn load(&self, index: usize) -> &Arc<WorkerLoad> {
        self.slots[index].load()
    }

    /// The loads of the workers that accept transfers, except `own`; `None` when no transfers are
    /// possible.
    pub(crate) fn peer_loads(&self, own: usize, now_ms: u64) -> Option<Vec<PeerLoad>> {
        if self.is_draining() || self.slots.len() == 1 {
            return None;
        }
        let receiving = |&index: &usize| index != own && self.slots[index].is_receiving();
        let load = |index| PeerLoad {
            index,
            busy: self.load(index).permille(now_ms),
        };
        let peers = (0..self.slots.len()).filter(receiving);
        Some(peers.map(load).collect())
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
        worker_set.publish_load(0, 900, 1000);
        worker_set.publish_load(1, 300, 1000);
        worker_set.publish_load(2, 600, 1000);
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
        assert_eq!(worker_set.load(1).permille(2000), 1000);
        worker_set.leave(2);
        assert_eq!(busy(0, 1100), [(1, 300)]);
    }
}
