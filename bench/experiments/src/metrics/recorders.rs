//! The cost of recording one request, which is a counter and an observation in a histogram: under a
//! lock, by atomic read-modify-writes, and by plain loads and stores into cells with a single
//! writer. The cells repeat those of Onrush's workers and do not depend on them.

use crate::{
    chart::{Bar, bars},
    run::Run,
    table::{Table, median_and_range},
};
use onrush_rt::durations::{BUCKETS, bucket};
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

const THREADS: [usize; 4] = [1, 2, 4, 8];

/// Memory into which threads record.
trait Recorder: Default + Sync {
    fn record(&self, bucket: usize, ns: u64);
    /// The number of records by all threads. `None` if it is not counted.
    fn count(&self) -> Option<u64>;
}

/// Records nothing. Shows the cost of choosing a duration and finding its bucket.
#[derive(Default)]
struct Discard;

impl Recorder for Discard {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        black_box((bucket, ns));
    }

    fn count(&self) -> Option<u64> {
        None
    }
}

#[derive(Default)]
struct Plain {
    requests: u64,
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

/// Aligned, like all recorders, so that two of them share no cache line.
#[derive(Default)]
#[repr(align(128))]
struct Locked(Mutex<Plain>);

impl Recorder for Locked {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        let mut plain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plain.requests += 1;
        plain.buckets[bucket] += 1;
        plain.sum_ns = plain.sum_ns.wrapping_add(ns);
    }

    fn count(&self) -> Option<u64> {
        let plain = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(plain.buckets.iter().sum::<u64>(), plain.requests);
        Some(plain.requests)
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Atomics {
    requests: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Recorder for Atomics {
    #[inline]
    fn record(&self, bucket: usize, ns: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn count(&self) -> Option<u64> {
        let buckets = self.buckets.iter();
        let in_buckets: u64 = buckets.map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        let requests = self.requests.load(Ordering::Relaxed);
        assert_eq!(in_buckets, requests);
        Some(requests)
    }
}

/// The same memory with a single writing thread.
#[derive(Default)]
struct Cells(Atomics);

impl Recorder for Cells {
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

    fn count(&self) -> Option<u64> {
        self.0.count()
    }
}

/// The cost in one run of several threads.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// CPU for one record, averaged over all threads.
    cpu_ns: f64,
    records_per_s: f64,
}

/// A name, and a function that runs a number of threads with a number of records each.
type Method = (&'static str, fn(usize, u64) -> Outcome<Cost>);

/// The last one is that of Onrush.
const METHODS: [Method; 6] = [
    ("nothing recorded", shared::<Discard>),
    ("one mutex for all", shared::<Locked>),
    ("one mutex per thread", one_per_thread::<Locked>),
    ("atomics for all", shared::<Atomics>),
    ("atomics per thread", one_per_thread::<Atomics>),
    ("cells per thread, as in Onrush", one_per_thread::<Cells>),
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
    let title = format!("metrics · a counter and a histogram, {each} records per thread");
    let mut table = Table::new(&title, &head);
    let mut chart = Vec::new();
    // The methods alternate, so that disturbances affect all of them.
    let mut costs = vec![vec![Vec::new(); THREADS.len()]; METHODS.len()];
    for round in 1..=times {
        runner::progress(&format!("metrics · recorders, {round}/{times}"));
        for (method, (_, record)) in METHODS.iter().enumerate() {
            for (at, &threads) in THREADS.iter().enumerate() {
                run.check_interrupt()?;
                costs[method][at].push(record(threads, each)?);
            }
        }
    }
    for ((name, _), costs) in METHODS.iter().zip(&costs) {
        let cpu = |costs: &Vec<Cost>| costs.iter().map(|cost| cost.cpu_ns).collect::<Vec<_>>();
        let mut cells = vec![(*name).to_owned()];
        cells.extend(costs.iter().map(|costs| median_and_range(&cpu(costs), 1)));
        let rates = costs[1].iter().map(|cost| cost.records_per_s / 1e6);
        cells.push(format!("{:.0} M", runner::stats::median(rates)));
        table.row(cells);
        for at in [0, 1, 3] {
            let threads = THREADS[at];
            let word = if threads == 1 { "thread" } else { "threads" };
            chart.push(Bar {
                name: format!("{name}, {threads} {word}"),
                ours: name.ends_with("Onrush"),
                values: cpu(&costs[at]),
            });
        }
    }
    run.show("metrics", &table)?;
    let title = "metrics: recording one request, a counter and a histogram";
    let note = "CPU ns for one record, two cores; shorter is better; whiskers: all runs";
    run.write("metrics.svg", &bars(title, note, None, &chart))
}

/// All threads share one recorder.
fn shared<R: Recorder>(threads: usize, each: u64) -> Outcome<Cost> {
    let recorder = R::default();
    let cost = record(&vec![&recorder; threads], each);
    check(&recorder, threads as u64 * each)?;
    Ok(cost)
}

/// Each thread has its own recorder.
fn one_per_thread<R: Recorder>(threads: usize, each: u64) -> Outcome<Cost> {
    let recorders: Vec<R> = (0..threads).map(|_| R::default()).collect();
    let cost = record(&recorders.iter().collect::<Vec<_>>(), each);
    let mut all = recorders.iter();
    all.try_for_each(|recorder| check(recorder, each))?;
    Ok(cost)
}

/// Fails if a recorder has lost records.
fn check(recorder: &impl Recorder, expected: u64) -> Outcome {
    match recorder.count() {
        Some(count) if count != expected => Err(format!("{count} of {expected} were counted")),
        _ => Ok(()),
    }
}

/// The beginning and end of a thread, and its CPU in nanoseconds.
type Span = (Instant, Instant, u64);

fn record<R: Recorder>(recorders: &[&R], each: u64) -> Cost {
    let barrier = Barrier::new(recorders.len());
    let one = |(seed, recorder): (u64, &R)| -> Span {
        barrier.wait();
        let (begun, before) = (Instant::now(), thread_cpu_ns());
        // Durations of requests of 20 to 200 µs.
        let mut state = seed + 1;
        for _ in 0..each {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let ns = 20_000 + (state >> 40) % 180_000;
            recorder.record(bucket(ns), ns);
        }
        (begun, Instant::now(), thread_cpu_ns() - before)
    };
    let spans: Vec<Span> = thread::scope(|scope| {
        let one = &one;
        let threads = (0..).zip(recorders);
        let threads = threads.map(|(seed, &recorder)| scope.spawn(move || one((seed, recorder))));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok());
        joined.flatten().collect()
    });
    let records = recorders.len() as f64 * each as f64;
    let begun = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    let time = begun.zip(ended).map_or(0.0, |(begun, ended)| {
        ended.duration_since(begun).as_secs_f64()
    });
    Cost {
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
    fn no_method_loses_a_record() {
        for (name, method) in METHODS {
            for threads in [1, 3] {
                let cost = method(threads, 1000).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(cost.cpu_ns > 0.0 && cost.records_per_s > 0.0, "{name}");
            }
        }
    }
}
