//! Counters and histograms that one thread writes and any thread may read.

use onrush_rt::durations::{self, Durations};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use durations::{BUCKETS as DURATION_BUCKETS, bucket as duration_bucket};

/// A counter that one thread writes and any thread may read.
///
/// Adding is a load and a store, not an atomic read-modify-write. If two threads added, counts
/// would be lost.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// let mut sim = Simulation::new(1, &hello, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert_eq!(sim.counters().requests.get(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(more), Ordering::Relaxed);
    }

    /// Sets the value, for quantities that can decrease.
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of values in each bucket, and the sum of all values.
#[derive(Debug)]
pub(crate) struct Histogram<const BUCKETS: usize> {
    counts: [Counter; BUCKETS],
    sum: Counter,
}

impl<const BUCKETS: usize> Default for Histogram<BUCKETS> {
    fn default() -> Self {
        Histogram {
            counts: std::array::from_fn(|_| Counter::default()),
            sum: Counter::default(),
        }
    }
}

impl<const BUCKETS: usize> Histogram<BUCKETS> {
    /// Adds `times` equal values to `bucket`.
    #[inline]
    pub(crate) fn record(&self, bucket: usize, value: u64, times: u64) {
        if let Some(count) = self.counts.get(bucket) {
            count.add(times);
            self.sum.add(value.wrapping_mul(times));
        }
    }

    /// Adds this histogram to `total`.
    pub(crate) fn add_to(&self, total: &mut HistogramSnapshot<BUCKETS>) {
        for (sum, count) in total.counts.iter_mut().zip(&self.counts) {
            *sum += count.get();
        }
        total.sum += self.sum.get();
    }
}

/// A snapshot of histograms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistogramSnapshot<const BUCKETS: usize> {
    pub(crate) counts: [u64; BUCKETS],
    pub(crate) sum: u64,
}

impl<const BUCKETS: usize> Default for HistogramSnapshot<BUCKETS> {
    fn default() -> Self {
        HistogramSnapshot {
            counts: [0; BUCKETS],
            sum: 0,
        }
    }
}

impl HistogramSnapshot<DURATION_BUCKETS> {
    /// Adds durations in nanoseconds from another source.
    pub(crate) fn add(&mut self, durations: &Durations) {
        for (sum, count) in self.counts.iter_mut().zip(durations.counts) {
            *sum += count;
        }
        self.sum += durations.sum_ns;
    }
}

/// The upper bounds of the buckets of durations, in seconds. The last bucket has none.
pub(crate) fn duration_bounds() -> impl Iterator<Item = String> {
    let seconds = durations::BOUNDS_NS.iter().map(|&ns| ns as f64 / 1e9);
    seconds.map(|seconds| seconds.to_string())
}

/// The first bound of sizes is this power of two. Each further bound is four times the previous
/// one.
const SIZE_FIRST_BITS: u32 = 8;

/// The number of buckets of sizes: up to 256 bytes, 1 KiB, … 1 GiB, and larger.
pub(crate) const SIZE_BUCKETS: usize = 13;

#[inline]
pub(crate) fn size_bucket(bytes: u64) -> usize {
    let bits = u64::BITS - bytes.saturating_sub(1).leading_zeros();
    let bucket = bits.saturating_sub(SIZE_FIRST_BITS).div_ceil(2) as usize;
    bucket.min(SIZE_BUCKETS - 1)
}

/// The upper bounds of the buckets of sizes, in bytes. The last bucket has none.
pub(crate) fn size_bounds() -> impl Iterator<Item = String> {
    (0..SIZE_BUCKETS - 1).map(|bucket| (1_u64 << (SIZE_FIRST_BITS + 2 * bucket as u32)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let bounds: Vec<u64> = size_bounds().map(|bound| bound.parse().unwrap()).collect();
        assert_eq!((bounds[0], bounds[11]), (256, 1 << 30));
        assert_eq!((size_bucket(0), size_bucket(u64::MAX)), (0, 12));
        for (bucket, &bound) in bounds.iter().enumerate() {
            assert_eq!(size_bucket(bound), bucket, "{bound}");
            assert_eq!(size_bucket(bound + 1), bucket + 1, "{bound} + 1");
        }
    }

    #[test]
    fn bounds_of_durations_are_told_in_seconds_without_an_exponent() {
        let bounds: Vec<String> = duration_bounds().collect();
        assert_eq!((bounds.len(), DURATION_BUCKETS), (17, 18));
        assert_eq!(bounds[..3], ["0.00005", "0.0001", "0.00025"]);
        assert_eq!(bounds[12..], ["0.5", "1", "2.5", "5", "10"]);
    }

    #[test]
    fn histograms_add_up() {
        let (a, b) = (Histogram::<3>::default(), Histogram::<3>::default());
        a.record(0, 5, 1);
        a.record(2, 7, 2);
        b.record(2, 1, 1);
        let mut total = HistogramSnapshot::default();
        a.add_to(&mut total);
        b.add_to(&mut total);
        assert_eq!((total.counts, total.sum), ([1, 0, 3], 20));
    }
}
