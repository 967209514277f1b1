//! The workers of one server, as far as they know of each other: how many connections each has, how
//! busy each is, and what is on its way from one to another.
//!
//! A new connection is given its place here, by one atomic step, so that two workers that accept at
//! the same moment do not both give theirs to the same third one. Must not know what a connection
//! is, nor how a worker is driven.

#[cfg(loom)]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use onrush_rt::worker::{Remote, Running};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// Which worker a new connection is served by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The first worker accepts all connections, and keeps them.
    Single,
    /// Each worker keeps what the kernel's hash of addresses gives it (`SO_REUSEPORT`, socket(7)).
    ReusePort,
    /// Each worker in its turn, whoever accepted it.
    RoundRobin,
    /// The worker that has the fewest. When accepting has gone quiet, no two differ by more than
    /// one. A worker that is blocked gets none, here and with [`Placement::RoundRobin`].
    #[default]
    LeastLoaded,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 4] = [
        Placement::Single,
        Placement::ReusePort,
        Placement::RoundRobin,
        Placement::LeastLoaded,
    ];

    /// Its name on the command line.
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
            format!("'{name}' is none of {names}")
        })
    }
}

/// A worker that has been in one iteration of its event loop for longer gets no new connections.
pub(crate) const BLOCKED_MS: u64 = 100;
/// How long a worker's word on how busy it is holds.
const BUSY_HOLDS_MS: u64 = 300;

/// The workers of one server. `T` is what they pass to each other.
#[derive(Debug)]
pub(crate) struct Crew<T> {
    placement: Placement,
    /// Whose turn it is, for [`Placement::RoundRobin`].
    turn: AtomicUsize,
    seats: Box<[Seat<T>]>,
    /// Nobody passes anything any more.
    draining: AtomicBool,
}

/// What others know of a worker. Aligned, so that no two workers write to the same line of memory.
#[derive(Debug)]
#[repr(align(128))]
struct Seat<T> {
    /// Connections here, or on their way here.
    open: AtomicUsize,
    /// It takes what it is passed.
    takes: AtomicBool,
    inbox: Mutex<Inbox<T>>,
    busy: Arc<Busy>,
    /// What it runs. Without a lock, unlike what is in `busy`.
    running: OnceLock<Arc<Running>>,
}

/// How busy a worker says it is.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// The share of time it was at work, in thousandths, and when it said so, in ms.
    permille: AtomicU32,
    at_ms: AtomicU64,
    /// While it can take what it is passed. Not longer, for figures outlive their workers.
    remote: Mutex<Option<Remote>>,
}

impl Busy {
    fn set(&self, permille: u32, now_ms: u64) {
        self.permille.store(permille, Ordering::Relaxed);
        self.at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Its share of time at work, lately. One that has not said so lately sleeps, or is so busy
    /// that it cannot.
    pub(crate) fn permille(&self, now_ms: u64) -> u32 {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        match &*self.remote() {
            _ if age_ms <= BUSY_HOLDS_MS => self.permille.load(Ordering::Relaxed),
            Some(remote) if remote.is_asleep() => 0,
            _ => 1000,
        }
    }

    /// Milliseconds since the worker began its present event-loop iteration, and the tag of what it
    /// runs; `None` while it sleeps or is gone. `now_ms`: of `CLOCK_MONOTONIC`.
    pub(crate) fn iteration(&self, now_ms: u64) -> Option<(u64, u32)> {
        let remote = self.remote();
        let remote = remote.as_ref().filter(|remote| !remote.is_asleep())?;
        let running = remote.running();
        Some((running.iteration_ms(now_ms), running.tag()))
    }

    /// Whether there is such a worker.
    pub(crate) fn is_alive(&self) -> bool {
        self.remote().is_some()
    }

    fn remote(&self) -> MutexGuard<'_, Option<Remote>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Inbox<T> {
    items: Vec<T>,
    /// Its worker has left.
    closed: bool,
}

/// Where a connection belongs. Its place is taken already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    At(usize),
}

impl<T> Crew<T> {
    pub(crate) fn new(workers: usize, placement: Placement) -> Crew<T> {
        let seat = |_| Seat {
            open: AtomicUsize::new(0),
            takes: AtomicBool::new(false),
            inbox: Mutex::new(Inbox {
                items: Vec::new(),
                closed: false,
            }),
            busy: Arc::default(),
            running: OnceLock::new(),
        };
        Crew {
            placement,
            turn: AtomicUsize::new(0),
            seats: (0..workers).map(seat).collect(),
            draining: AtomicBool::new(false),
        }
    }

    /// How many there are.
    pub(crate) fn workers(&self) -> usize {
        self.seats.len()
    }

    /// The worker `own` takes what it is passed, from now on.
    pub(crate) fn join(&self, own: usize, remote: Remote) {
        let _ = self.seats[own].running.set(remote.running().clone()); // It joins once.
        *self.seats[own].busy.remote() = Some(remote);
        self.seats[own].takes.store(true, Ordering::Relaxed);
    }

    /// The worker `own` takes no more; gives what it was passed and has not taken.
    pub(crate) fn leave(&self, own: usize) -> Vec<T> {
        self.seats[own].takes.store(false, Ordering::Relaxed);
        *self.seats[own].busy.remote() = None;
        let mut inbox = self.inbox(own);
        inbox.closed = true;
        std::mem::take(&mut inbox.items)
    }

    /// Nothing is passed any more; what is on its way arrives.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Connections at the worker `own`, and on their way to it.
    pub(crate) fn open(&self, own: usize) -> usize {
        self.seats[own].open.load(Ordering::Relaxed)
    }

    /// Finds the place of a new connection that `own` accepted at `now_ms` (`CLOCK_MONOTONIC`).
    pub(crate) fn place(&self, own: usize, now_ms: u64) -> Place {
        let place = match self.placement {
            _ if self.seats.len() == 1 || self.is_draining() => Place::Here,
            Placement::Single | Placement::ReusePort => Place::Here,
            Placement::RoundRobin => self.in_turn(own, now_ms),
            Placement::LeastLoaded => return self.least_loaded(own, now_ms),
        };
        let index = match place {
            Place::Here => own,
            Place::At(other) => other,
        };
        self.reserve(index);
        place
    }

    fn in_turn(&self, own: usize, now_ms: u64) -> Place {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.seats.len();
        match turn == own || !self.takes(turn) || self.is_blocked(turn, now_ms) {
            true => Place::Here,
            false => Place::At(turn),
        }
    }

    /// Takes a place at a worker that has the fewest. Should it have got one more meanwhile, it is
    /// looked again: as long as connections only come, no two workers ever differ by more than one.
    fn least_loaded(&self, own: usize, now_ms: u64) -> Place {
        loop {
            let (mut best, mut fewest) = (own, self.open(own));
            for other in 0..self.seats.len() {
                let open = self.open(other);
                if open < fewest && self.takes(other) && !self.is_blocked(other, now_ms) {
                    (best, fewest) = (other, open);
                }
            }
            let open = &self.seats[best].open;
            let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
            if open
                .compare_exchange(fewest, fewest + 1, success, failure)
                .is_ok()
            {
                return match best == own {
                    true => Place::Here,
                    false => Place::At(best),
                };
            }
        }
    }

    fn is_blocked(&self, other: usize, now_ms: u64) -> bool {
        let running = self.seats[other].running.get();
        running.is_some_and(|running| running.iteration_ms(now_ms) > BLOCKED_MS)
    }

    /// Whether any worker but `own` has been in one iteration for longer than `limit_ms`.
    pub(crate) fn is_any_at_work(&self, own: usize, now_ms: u64, limit_ms: u64) -> bool {
        let seats = self.seats.iter().enumerate();
        let mut others = seats.filter_map(|(at, seat)| seat.running.get().filter(|_| at != own));
        others.any(|running| running.iteration_ms(now_ms) > limit_ms)
    }

    /// Whether connections may be served by another worker than the one that accepts them.
    pub(crate) fn spreads(&self) -> bool {
        let chosen = matches!(
            self.placement,
            Placement::RoundRobin | Placement::LeastLoaded
        );
        chosen && !self.is_draining()
    }

    /// Wakes all workers but `own`.
    pub(crate) fn wake_others(&self, own: usize) {
        for (at, seat) in self.seats.iter().enumerate() {
            let remote = (at != own).then(|| seat.busy.remote().clone()).flatten();
            if let Some(remote) = remote {
                remote.notify();
            }
        }
    }

    /// Takes what was passed to the worker `from`; its places are `own`'s then.
    pub(crate) fn take_for(&self, own: usize, from: usize) -> Vec<T> {
        let items = self.take(from);
        for _ in &items {
            self.release(from);
            self.reserve(own);
        }
        items
    }

    fn takes(&self, other: usize) -> bool {
        self.seats[other].takes.load(Ordering::Relaxed)
    }

    /// Takes a place at `index` for a connection that goes there.
    pub(crate) fn reserve(&self, index: usize) {
        self.seats[index].open.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives up a place: its connection is closed, or goes elsewhere.
    pub(crate) fn release(&self, index: usize) {
        self.seats[index].open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Passes `item` to the worker `to`, where it has a place. When that worker has left, the place
    /// is `own`'s instead, and the item is given back.
    pub(crate) fn pass(&self, own: usize, to: usize, item: T) -> Result<(), T> {
        let remote = self.seats[to].busy.remote().clone();
        let mut inbox = self.inbox(to);
        match remote {
            Some(remote) if !inbox.closed => {
                inbox.items.push(item);
                drop(inbox);
                remote.notify();
                Ok(())
            }
            _ => {
                self.reserve(own);
                self.release(to);
                Err(item)
            }
        }
    }

    /// What the worker `own` was passed since it last asked.
    pub(crate) fn take(&self, own: usize) -> Vec<T> {
        std::mem::take(&mut self.inbox(own).items)
    }

    fn inbox(&self, index: usize) -> MutexGuard<'_, Inbox<T>> {
        let inbox = self.seats[index].inbox.lock();
        inbox.unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker `own` was at work for `permille` of the time until `now_ms`.
    pub(crate) fn set_busy(&self, own: usize, permille: u32, now_ms: u64) {
        self.seats[own].busy.set(permille, now_ms);
    }

    /// What a worker says, for others to see.
    pub(crate) fn busy(&self, index: usize) -> &Arc<Busy> {
        &self.seats[index].busy
    }

    /// How busy the workers but `own` are that take connections; `None` when nothing is to be
    /// passed to them.
    pub(crate) fn others(&self, own: usize, now_ms: u64) -> Option<Vec<Other>> {
        if self.is_draining() || self.seats.len() == 1 {
            return None;
        }
        let others = (0..self.seats.len()).filter(|&index| index != own && self.takes(index));
        let other = |index| Other {
            index,
            busy: self.busy(index).permille(now_ms),
        };
        Some(others.map(other).collect())
    }
}

/// See [`Crew::others`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Other {
    pub(crate) index: usize,
    /// In thousandths of the time.
    pub(crate) busy: u32,
}

/// Every order in which two workers may take their steps (`cargo xtask loom`).
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;

    const WORKERS: usize = 2;

    /// Runs `act` for each of two workers at once, the second on a thread of its own, and `check`
    /// when both have ended.
    fn both(
        act: impl Fn(&Crew<u32>, usize) + Clone + Send + Sync + 'static,
        check: impl Fn(&Crew<u32>) + Send + Sync + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3); // Without a bound it takes minutes.
        model.check(move || {
            let net = Net::new(1, Behaviour::default());
            let crew = Arc::new(Crew::new(WORKERS, Placement::LeastLoaded));
            let workers: Vec<Worker> = (0..WORKERS)
                .map(|own| {
                    let worker = Worker::simulated(net.clone(), own).expect("a worker");
                    crew.join(own, worker.remote());
                    worker
                })
                .collect();
            let (theirs, acts) = (crew.clone(), act.clone());
            let thread = thread::spawn(move || acts(&theirs, 1));
            act(&crew, 0);
            thread.join().unwrap();
            check(&crew);
            drop(workers);
        });
    }

    fn open(crew: &Crew<u32>) -> [usize; WORKERS] {
        [crew.open(0), crew.open(1)]
    }

    #[test]
    fn two_that_accept_at_once_stay_level() {
        let accepts = |crew: &Crew<u32>, own| (0..2).for_each(|_| _ = crew.place(own, 0));
        both(accepts, |crew| assert_eq!(open(crew), [2, 2]));
    }

    /// Places are as many as connections, while some come and others go.
    #[test]
    fn places_taken_and_given_up_are_counted() {
        let comes_and_goes = |crew: &Crew<u32>, own: usize| {
            let index = match crew.place(own, 0) {
                Place::Here => own,
                Place::At(other) => other,
            };
            crew.reserve(own);
            crew.release(index);
        };
        both(comes_and_goes, |crew| assert_eq!(open(crew), [1, 1]));
    }

    /// What is passed to a worker that leaves at that moment is taken, found when it leaves, or
    /// given back: once, and its place goes with it.
    #[test]
    fn nothing_is_lost_that_is_passed_to_one_that_leaves() {
        let found = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counts = found.clone();
        let act = move |crew: &Crew<u32>, own: usize| {
            let add = |more| counts.fetch_add(more, std::sync::atomic::Ordering::SeqCst);
            if own == 1 {
                let taken = crew.take(1).len() + crew.leave(1).len();
                (0..taken).for_each(|_| crew.release(1));
                add(taken);
                return;
            }
            crew.reserve(1);
            if let Err(item) = crew.pass(0, 1, 7) {
                assert_eq!(item, 7);
                crew.release(0);
                add(1);
            }
        };
        both(act, move |crew| {
            assert_eq!(found.swap(0, std::sync::atomic::Ordering::SeqCst), 1);
            assert_eq!(open(crew), [0, 0]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;

    fn crew(placement: Placement, workers: usize) -> (Crew<u32>, Vec<Worker>) {
        let net = Net::new(1, Behaviour::default());
        let crew = Crew::new(workers, placement);
        let workers = (0..workers).map(|index| {
            let worker = Worker::simulated(net.clone(), index).expect("a worker");
            crew.join(index, worker.remote());
            worker
        });
        let workers = workers.collect();
        (crew, workers)
    }

    fn places(crew: &Crew<u32>, own: usize, count: usize) -> Vec<usize> {
        let index = |place| match place {
            Place::Here => own,
            Place::At(other) => other,
        };
        (0..count).map(|_| index(crew.place(own, 0))).collect()
    }

    #[test]
    fn each_placement_places_as_it_says() {
        for (placement, expected) in [
            (Placement::Single, [0, 0, 0, 0, 0, 0]),
            (Placement::ReusePort, [0, 0, 0, 0, 0, 0]),
            (Placement::RoundRobin, [0, 1, 2, 0, 1, 2]),
            (Placement::LeastLoaded, [0, 1, 2, 0, 1, 2]),
        ] {
            let (crew, _workers) = crew(placement, 3);
            assert_eq!(places(&crew, 0, 6), expected, "{placement:?}");
            assert_eq!((0..3).map(|i| crew.open(i)).sum::<usize>(), 6);
        }
    }

    #[test]
    fn the_least_loaded_is_chosen_and_a_worker_that_left_is_not() {
        let (crew, _workers) = crew(Placement::LeastLoaded, 3);
        assert_eq!(places(&crew, 2, 4), [2, 0, 1, 2]);
        crew.release(1);
        assert_eq!(places(&crew, 2, 1), [1]);
        assert_eq!(crew.pass(2, 1, 7), Ok(()));
        assert_eq!(crew.take(1), [7]);
        assert!(crew.leave(1).is_empty());
        crew.release(1);
        assert_eq!(places(&crew, 2, 1), [0]);
        // Whoever had chosen it before keeps its connection.
        crew.reserve(1);
        let open = (crew.open(1), crew.open(2));
        assert_eq!(crew.pass(2, 1, 8), Err(8));
        assert_eq!((crew.open(1), crew.open(2)), (open.0 - 1, open.1 + 1));
        crew.drain();
        assert_eq!(places(&crew, 2, 2), [2, 2]);
    }

    #[test]
    fn accepting_at_the_same_moment_never_sets_workers_apart() {
        let (crew, _workers) = crew(Placement::LeastLoaded, 4);
        std::thread::scope(|scope| {
            for own in 0..4 {
                let crew = &crew;
                scope.spawn(move || places(crew, own, 1001));
            }
        });
        let open = [0, 1, 2, 3].map(|index| crew.open(index));
        assert_eq!(open, [1001; 4]);
    }

    #[test]
    fn a_worker_that_says_nothing_sleeps_or_is_stuck() {
        let (crew, _workers) = crew(Placement::LeastLoaded, 3);
        crew.set_busy(0, 900, 1000);
        crew.set_busy(1, 300, 1000);
        crew.set_busy(2, 600, 1000);
        let busy = |own, now_ms| {
            let others = crew.others(own, now_ms).unwrap_or_default().into_iter();
            others
                .map(|other| (other.index, other.busy))
                .collect::<Vec<_>>()
        };
        assert_eq!(busy(0, 1100), [(1, 300), (2, 600)]);
        // None of these workers is asleep.
        assert_eq!(crew.busy(1).permille(2000), 1000);
        crew.leave(2);
        assert_eq!(busy(0, 1100), [(1, 300)]);
    }
}
