//! Tests of the pool with and without threads: refusal, dropping, errors and counters.

use super::*;
use crate::blocking::block_on;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

fn one_thread(queue_max: usize) -> OffloadPool {
    OffloadPool::new(&OffloadOptions::default().threads(1).queue_max(queue_max))
}

/// A job that runs until its gate is opened or dropped.
fn busy(pool: &OffloadPool) -> (OffloadJob<bool>, mpsc::Sender<()>) {
    let (begun, beginning) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let job = pool.run(move |token| {
        begun.send(()).unwrap();
        let _ = gate.recv();
        token.is_cancelled()
    });
    beginning.recv().unwrap();
    (job, open)
}

/// Waits until another thread has done something.
fn until(done: impl Fn() -> bool) {
    while !done() {
        thread::yield_now();
    }
}

/// Counts how often it was dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn returns_output_of_jobs() {
    for pool in [one_thread(8), OffloadPool::inline()] {
        assert_eq!(block_on(pool.run(|_| 6 * 7)), Ok(42));
        until(|| pool.stats().done_total == 1);
        let stats = pool.stats();
        assert_eq!((stats.queued, stats.running), (0, 0));
        assert_eq!((stats.wait.count(), stats.run.count()), (1, 1));
    }
    let (pool, hand) = OffloadPool::manual(&OffloadOptions::default());
    let job = pool.run(|_| 1);
    assert_eq!(pool.stats().queued, 1);
    assert!(hand.run_one() && !hand.run_one());
    assert_eq!(block_on(job), Ok(1));
}

#[test]
fn a_full_queue_refuses_at_once_and_a_place_given_back_is_free() {
    for queue_max in [0, 1, 3] {
        let pool = one_thread(queue_max);
        let (first, open) = busy(&pool);
        let mut queued: Vec<_> = (0..queue_max).map(|i| pool.run(move |_| i)).collect();
        for _ in 0..2 {
            // The thread is busy, so the result can only be a refusal.
            assert_eq!(block_on(pool.run(|_| 0)), Err(OffloadError::Full));
        }
        assert_eq!(pool.stats().queued, queue_max);
        if queued.pop().is_some() {
            let again = pool.run(move |_| queue_max - 1);
            assert_eq!(block_on(pool.run(|_| 0)), Err(OffloadError::Full));
            queued.push(again);
        }
        open.send(()).unwrap();
        assert_eq!(block_on(first), Ok(false));
        for (i, job) in queued.into_iter().enumerate() {
            assert_eq!(block_on(job), Ok(i));
        }
    }
}

#[test]
fn dropped_while_it_waits_a_job_is_dropped_at_once_and_never_run() {
    let pool = one_thread(1);
    let (first, open) = busy(&pool);
    let (ran, dropped) = (Arc::<AtomicUsize>::default(), Arc::default());
    for times in 1..=3 {
        let (ran, counted) = (ran.clone(), Counted(Arc::clone(&dropped)));
        let job = pool.run(move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            drop(counted);
        });
        assert_eq!(pool.stats().queued, 1);
        drop(job);
        assert_eq!(dropped.load(Ordering::SeqCst), times);
        assert_eq!(pool.stats().queued, 0);
    }
    open.send(()).unwrap();
    assert_eq!(block_on(first), Ok(false));
    assert_eq!(block_on(pool.run(|_| ())), Ok(()));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    let stats = pool.stats();
    assert_eq!((stats.dropped_total, stats.cancelled_total), (3, 0));
}

#[test]
fn dropped_at_work_a_job_sees_its_token_and_its_result_is_dropped_over_there() {
    let pool = one_thread(1);
    let dropped = Arc::<AtomicUsize>::default();
    let result = Counted(dropped.clone());
    let (begun, beginning) = mpsc::channel();
    let job = pool.run(move |token| {
        begun.send(()).unwrap();
        until(|| token.is_cancelled());
        result
    });
    beginning.recv().unwrap();
    drop(job);
    assert_eq!(block_on(pool.run(|_| ())), Ok(()));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(pool.stats().cancelled_total, 1);
}

#[test]
fn panic_is_returned_and_pool_survives() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose: while dropped");
        }
    }
    for pool in [one_thread(8), OffloadPool::inline()] {
        let job = pool.run(|_| panic!("on purpose"));
        assert_eq!(block_on(job), Err::<(), _>(OffloadError::Panicked));
        assert_eq!(block_on(pool.run(|_| 1)), Ok(1));
        until(|| pool.stats().done_total == 1);
        assert_eq!(pool.stats().panicked_total, 1);
    }
    // A panic in the destructor of a result that nothing waits for.
    let pool = one_thread(8);
    let (begun, beginning) = mpsc::channel();
    let job = pool.run(move |token| {
        begun.send(()).unwrap();
        until(|| token.is_cancelled());
        Bomb
    });
    beginning.recv().unwrap();
    drop(job);
    assert_eq!(block_on(pool.run(|_| 1)), Ok(1));
    assert_eq!(pool.stats().threads, 1, "the same one");
}

#[test]
fn job_past_max_wait_is_late() {
    let limit = Duration::from_millis(20);
    let (pool, hand) = OffloadPool::manual(&OffloadOptions::default().wait_max(limit));
    let mut jobs: Vec<_> = (0..3).map(|i| pool.run(move |_| i)).collect();
    hand.advance(limit);
    assert!(hand.run_one());
    hand.advance(Duration::from_nanos(1));
    let fresh = pool.run(|_| 7);
    // A caller with a timer withdraws the job in time, and only once.
    assert!(jobs[1].expire() && !jobs[1].expire());
    assert!(!jobs[0].expire(), "it has run");
    assert_eq!(pool.stats().queued, 2);
    while hand.run_one() {}
    let mut results = jobs.into_iter();
    assert_eq!(block_on(results.next().unwrap()), Ok(0));
    drop(results.next());
    assert_eq!(
        block_on(results.next().unwrap()),
        Err(OffloadError::TimedOut)
    );
    assert_eq!(block_on(fresh), Ok(7));
    let stats = pool.stats();
    assert_eq!((stats.late_total, stats.done_total), (2, 2));
    assert_eq!((stats.dropped_total, stats.cancelled_total), (0, 0));
    assert_eq!(stats.wait.sum_ns, 20_000_000);
}

#[test]
fn what_is_queued_survives_the_pool_and_so_do_the_figures() {
    let pool = one_thread(8);
    let (first, open) = busy(&pool);
    let second = pool.run(|_| "done");
    let watch = pool.stats_handle();
    assert!(watch.is_same(&pool.stats_handle()) && !watch.is_same(&one_thread(1).stats_handle()));
    drop(pool);
    open.send(()).unwrap();
    assert_eq!(block_on(first), Ok(false));
    assert_eq!(block_on(second), Ok("done"));
    until(|| watch.stats().threads == 0);
    assert_eq!(watch.stats().done_total, 2);
}

#[test]
fn without_a_thread_a_job_is_refused_and_not_run_here() {
    let pool = one_thread(8);
    *pool.owner.thread_pool().spawn_failure.lock().unwrap() = Some(Box::new(|| {}));
    let job = pool.run(|_| thread::current().id());
    assert_eq!(block_on(job), Err(OffloadError::Full));
    assert_eq!(pool.stats().full_total, 1);
    let other = block_on(pool.run(|_| thread::current().id()));
    assert_ne!(other, Ok(thread::current().id()));
}

/// Field `at` of the calling thread's `/proc/thread-self/stat`, counted from 1 as in proc(5).
fn own_stat(at: usize) -> i32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let (_, behind_the_name) = stat.rsplit_once(") ").unwrap();
    let field = behind_the_name.split(' ').nth(at - 3).unwrap();
    field.parse().unwrap()
}

fn allowed_cores() -> rustix::thread::CpuSet {
    rustix::thread::sched_getaffinity(None).unwrap()
}

#[test]
fn threads_have_low_priority_and_run_on_every_core() {
    const NICE: usize = 19;
    const POLICY: usize = 41;
    let (cores, nice, policy) = (allowed_cores(), own_stat(NICE), own_stat(POLICY));
    let pool = one_thread(8);
    let seen = thread::spawn(move || {
        let core = (0..).find(|&core| allowed_cores().is_set(core)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(core);
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        block_on(pool.run(|_| (allowed_cores(), own_stat(NICE), own_stat(POLICY))))
    });
    let seen = seen.join().unwrap().unwrap();
    let (batch, idle) = (3, 5);
    match policy == idle {
        true => assert_eq!(seen, (cores, nice, idle)),
        false => assert_eq!(seen, (cores, (nice + 10).min(19), batch)),
    }
}

/// Every job counts in exactly one counter, whichever race it loses.
#[test]
fn nothing_is_lost_or_counted_twice() {
    const ROUNDS: usize = 300;
    const CALLERS: usize = 3;
    let pool = OffloadPool::new(&OffloadOptions::default().threads(2).queue_max(4));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let pool = pool.clone();
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let mut job = pool.run(move |_| assert_ne!(round % 7, 0, "on purpose"));
                    match (round + caller) % 4 {
                        0 => drop(block_on(job)),
                        1 => drop(job),
                        2 => drop(job.expire()),
                        _ => {
                            thread::yield_now();
                            drop(job);
                        }
                    }
                }
            })
        })
        .collect();
    callers
        .into_iter()
        .for_each(|caller| caller.join().unwrap());
    until(|| pool.stats().running == 0);
    let stats = pool.stats();
    assert_eq!((stats.queued, stats.running), (0, 0));
    let ran = stats.done_total + stats.panicked_total;
    assert_eq!(stats.run.count(), ran);
    assert!(stats.wait.count() >= ran);
    let ends = stats.full_total + stats.late_total + stats.dropped_total;
    // A job that was cancelled while it ran counts as run, too, or was dropped just before.
    let total = (ROUNDS * CALLERS) as u64;
    assert!(
        (total - stats.cancelled_total..=total).contains(&(ends + ran)),
        "{stats:?}"
    );
    assert!(stats.dropped_total + stats.full_total > 0, "{stats:?}");
}
