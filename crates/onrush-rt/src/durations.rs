//! Histograms of durations, with the same buckets everywhere. Independent of what is measured and
//! how it is shown.

/// Upper bounds of all buckets but the last, in nanoseconds: 50 µs to 10 s.
pub const BOUNDS_NS: [u64; 17] = [
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

/// The number of buckets; the last is for durations above all bounds.
pub const BUCKETS: usize = BOUNDS_NS.len() + 1;

/// The bucket of a duration: the first whose bound it does not exceed.
#[inline]
pub fn bucket(ns: u64) -> usize {
    // Most durations are in the first buckets.
    let within = BOUNDS_NS.iter().position(|&bound| ns <= bound);
    within.unwrap_or(BOUNDS_NS.len())
}

/// A histogram of durations.
///
/// # Examples
/// ```
/// use onrush_rt::durations::{Durations, bucket};
/// use std::time::Duration;
///
/// let mut durations = Durations::default();
/// durations.record(Duration::from_micros(70));
/// assert_eq!(durations.counts[bucket(70_000)], 1);
/// assert_eq!((durations.count(), durations.sum_ns), (1, 70_000));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// The number of durations in each bucket.
    pub counts: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Durations {
    /// Counts one duration.
    pub fn record(&mut self, duration: std::time::Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(50_000), 0);
        assert_eq!(bucket(50_001), 1);
        assert_eq!(bucket(10_000_000_000), 16);
        assert_eq!(bucket(u64::MAX), 17);
    }

    #[test]
    fn what_is_recorded_adds_up() {
        let mut durations = Durations::default();
        durations.record(Duration::ZERO);
        durations.record(Duration::from_millis(3));
        durations.record(Duration::MAX);
        assert_eq!((durations.counts[0], durations.counts[6]), (1, 1));
        assert_eq!((durations.counts[17], durations.count()), (1, 3));
        assert_eq!(durations.sum_ns, u64::MAX);
    }
}
