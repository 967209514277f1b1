//! The modification times that a store sets. No two are the same, because they are part of the
//! version of an object.

use std::sync::atomic::{AtomicI64, Ordering};

/// The minimum distance between two modification times that the store sets. Some file systems store
/// times in units of 100 ns, and the times must differ there, too.
const STEP_NS: i64 = 1000;

/// The last modification time that was set, in nanoseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Stamps(AtomicI64);

impl Stamps {
    /// A modification time that this has not returned before. `now_ns` is the present time.
    pub(crate) fn next_ns(&self, now_ns: i64) -> i64 {
        let next = |last: i64| now_ns.max(last.saturating_add(STEP_NS));
        let update = |last| Some(next(last));
        match (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, update) {
            Ok(last) | Err(last) => next(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_differ_and_follow_the_clock() {
        let stamps = Stamps::default();
        let clock = [5_000, 5_000, 5_500, 4_000, 100_000, 100_000];
        let times = clock.map(|now_ns| stamps.next_ns(now_ns));
        assert_eq!(times, [5_000, 6_000, 7_000, 8_000, 100_000, 101_000]);
    }
}
