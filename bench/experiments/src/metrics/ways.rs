//! One recorded request, a counter and an observation in a histogram, in the ways there are: under
//! a lock, by atomic read-modify-writes, and by plain loads and stores into cells that one thread
//! alone writes, as Onrush's workers do. Must not know Onrush, whose cells these repeat.

use crate::{
    chart::{Bar, bars},
    run::Run,
    table::{Table, spread},
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    hint::black_box,
    sync::{
        Barrier, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};
use xtask::shell::Outcome;

/// Upper ends of the first buckets, in nanoseconds; the last has none.
const BOUNDS_NS: [u64; 17] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];
const BUCKETS: usize = BOUNDS_NS.len() + 1;

const THREADS: [usize; 4] = [1, 2, 4, 8];

/// Where threads record, and how.
trait Place: Sync {
    fn record(&self, bucket: usize, ns: u64);
    /// What was recorded, by any thread.
    fn count(&self) -> u64;
}

/// Nothing is recorded: what drawing a duration and finding its bucket costs.
#[derive(Default)]
struct Nowhere(AtomicU64);

impl Place for Nowhere {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        black_box((bucket, ns));
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Plain {
    requests: u64,
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

/// Aligned, as all are, so that two of them share no line of memory.
#[derive(Default)]
#[repr(align(128))]
struct Locked(Mutex<Plain>);

impl Place for Locked {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        let mut plain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plain.requests += 1;
        plain.buckets[bucket] += 1;
        plain.sum_ns = plain.sum_ns.wrapping_add(ns);
    }

    fn count(&self) -> u64 {
        let plain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(plain.buckets.iter().sum::<u64>(), plain.requests);
        plain.requests
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Atomics {
    requests: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Atomics {
    fn total(&self) -> u64 {
        let buckets = self.buckets.iter();
        let in_buckets: u64 = buckets.map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        let requests = self.requests.load(Ordering::Relaxed);
        assert_eq!(in_buckets, requests);
        requests
    }
}

impl Place for Atomics {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.total()
    }
}

/// The same memory, of which one thread alone is the writer.
#[derive(Default)]
struct Cells(Atomics);

impl Place for Cells {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        let add = |cell: &AtomicU64, more: u64| {
            let before = cell.load(Ordering::Relaxed);
            cell.store(before.wrapping_add(more), Ordering::Relaxed);
        };
        add(&self.0.requests, 1);
        add(&self.0.buckets[bucket], 1);
        add(&self.0.sum_ns, ns);
    }

    fn count(&self) -> u64 {
        self.0.total()
    }
}

/// What one run of some threads took.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// CPU for one record, over all threads.
    cpu_ns: f64,
    records_per_s: f64,
}

type Way = (&'static str, fn(usize, u64) -> Outcome<Took>);

/// The last is Onrush's.
const WAYS: [Way; 6] = [
    ("nothing recorded", |threads, each| {
        one_for_all::<Nowhere>(threads, each, false)
    }),
    ("a mutex for all", |threads, each| {
        one_for_all::<Locked>(threads, each, true)
    }),
    ("a mutex each", one_each::<Locked>),
    ("atomics for all", |threads, each| {
        one_for_all::<Atomics>(threads, each, true)
    }),
    ("atomics each", one_each::<Atomics>),
    ("cells each, as in Onrush", one_each::<Cells>),
];

pub(super) fn show(run: &Run) -> Outcome {
    let (times, each) = run.effort.of((3, 200_000), (9, 2_000_000), (9, 2_000_000));
    let head = [
        "CPU ns for one record",
        "1 thread",
        "2",
        "4",
        "8",
        "records/s with 2",
    ];
    let title = format!("metrics · a counter and a histogram, {each} records a thread");
    let mut table = Table::new(&title, &head);
    let mut drawn = Vec::new();
    // In turns, so that what disturbs one disturbs all.
    let mut took = vec![vec![Vec::new(); THREADS.len()]; WAYS.len()];
    for turn in 0..times {
        runner::progress(&format!("metrics · ways to count, {}/{times}", turn + 1));
        for (way, (_, record)) in WAYS.iter().enumerate() {
            for (at, &threads) in THREADS.iter().enumerate() {
                run.go_on()?;
                took[way][at].push(record(threads, each)?);
            }
        }
    }
    for ((name, _), took) in WAYS.iter().zip(&took) {
        let cpu = |took: &Vec<Took>| took.iter().map(|took| took.cpu_ns).collect::<Vec<_>>();
        let mut cells = vec![(*name).to_owned()];
        cells.extend(took.iter().map(|took| spread(&cpu(took), 1)));
        let rates = took[1].iter().map(|took| took.records_per_s / 1e6);
        cells.push(format!("{:.0} M", runner::stats::median(rates)));
        table.row(cells);
        for at in [0, 1, 3] {
            let threads = THREADS[at];
            let word = if threads == 1 { "thread" } else { "threads" };
            drawn.push(Bar {
                name: format!("{name}, {threads} {word}"),
                ours: name.ends_with("Onrush"),
                values: cpu(&took[at]),
            });
        }
    }
    run.show("metrics", &table)?;
    let title = "metrics: recording one request, a counter and a histogram";
    let note = "CPU ns for one record, two cores; shorter is better; whiskers: all runs";
    run.write("metrics.svg", &bars(title, note, None, &drawn))
}

/// All threads record in one place.
fn one_for_all<P: Place + Default>(threads: usize, each: u64, counts: bool) -> Outcome<Took> {
    let place = P::default();
    let places: Vec<&P> = (0..threads).map(|_| &place).collect();
    let took = record(&places, each);
    let expected = if counts { threads as u64 * each } else { 0 };
    match place.count() == expected {
        true => Ok(took),
        false => Err(format!("{} of {expected} were counted", place.count())),
    }
}

/// Each thread records in a place of its own.
fn one_each<P: Place + Default>(threads: usize, each: u64) -> Outcome<Took> {
    let places: Vec<P> = (0..threads).map(|_| P::default()).collect();
    let took = record(&places.iter().collect::<Vec<_>>(), each);
    match places.iter().all(|place| place.count() == each) {
        true => Ok(took),
        false => Err("a cell has lost counts".to_owned()),
    }
}

/// When a thread began and ended, and its CPU in nanoseconds.
type Span = (Instant, Instant, u64);

fn record<P: Place>(places: &[&P], each: u64) -> Took {
    let barrier = Barrier::new(places.len());
    let one = |(seed, place): (u64, &P)| -> Span {
        barrier.wait();
        let (begun, before) = (Instant::now(), thread_cpu_ns());
        // Durations of requests that take some 20 to 200 µs.
        let mut state = seed + 1;
        for _ in 0..each {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let ns = 20_000 + (state >> 40) % 180_000;
            let bucket = BOUNDS_NS.iter().position(|&bound| ns <= bound);
            place.record(bucket.unwrap_or(BUCKETS - 1), ns);
        }
        (begun, Instant::now(), thread_cpu_ns() - before)
    };
    let spans: Vec<Span> = thread::scope(|scope| {
        let one = &one;
        let threads = (0..).zip(places);
        let threads = threads.map(|(seed, &place)| scope.spawn(move || one((seed, place))));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok());
        joined.flatten().collect()
    });
    let records = places.len() as f64 * each as f64;
    let begun = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    let time = begun.zip(ended).map_or(0.0, |(begun, ended)| {
        ended.duration_since(begun).as_secs_f64()
    });
    Took {
        cpu_ns: spans.iter().map(|span| span.2).sum::<u64>() as f64 / records,
        records_per_s: records / time,
    }
}

fn thread_cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_loses_a_count() {
        for (name, way) in WAYS {
            for threads in [1, 3] {
                let took = way(threads, 1000).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(took.cpu_ns > 0.0 && took.records_per_s > 0.0, "{name}");
            }
        }
    }
}
