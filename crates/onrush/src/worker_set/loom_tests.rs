//! Checks every interleaving of two workers (`cargo xtask loom`).

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
