//! The modification times that a store sets. No two are the same, because they are part of the
//! version of an object. None is a whole second, because other programs set such times.

use crate::meta::NS_PER_S;
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
        let next = |last: i64| {
            let next = now_ns.max(last.saturating_add(STEP_NS));
            next + STEP_NS * i64::from(next % NS_PER_S == 0)
        };
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
        let seconds = [NS_PER_S, NS_PER_S, 2 * NS_PER_S - STEP_NS, 0];
        let times = seconds.map(|now_ns| stamps.next_ns(now_ns) % NS_PER_S);
        assert_eq!(times, [1_000, 2_000, 999_999_000, 1_000]);
    }
}
