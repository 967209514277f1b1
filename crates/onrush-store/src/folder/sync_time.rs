//! How long the disk needs for a sync, which decides whether puts share theirs (`group`).
//!
//! Sharing makes puts wait for each other, which costs more than it saves where a sync takes a
//! fraction of a millisecond. The shortest of several syncs counts: the time of a single one
//! includes that for which it waits for others, and for a CPU.
//!
//! This module does not measure.

use std::time::Duration;

/// Puts share syncs if these take at least so long.
const SHARED_FROM: Duration = Duration::from_millis(1);
/// The syncs of which the shortest counts.
const SYNCS: u32 = 16;

#[derive(Debug)]
pub(super) struct SyncTime {
    /// The shortest of the last complete group of syncs.
    shortest: Option<Duration>,
    /// The shortest of the next group so far, and the number of its syncs.
    next: Duration,
    count: u32,
}

impl SyncTime {
    pub(super) const UNKNOWN: SyncTime = SyncTime {
        shortest: None,
        next: Duration::MAX,
        count: 0,
    };

    /// A sync of little data has taken `time`.
    pub(super) fn note(&mut self, time: Duration) {
        self.next = self.next.min(time);
        self.count += 1;
        if self.count == SYNCS {
            *self = SyncTime {
                shortest: Some(self.next),
                ..SyncTime::UNKNOWN
            };
        }
    }

    /// As if many syncs had taken `time`.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn note_many(&mut self, time: Duration) {
        *self = SyncTime::UNKNOWN;
        (0..SYNCS).for_each(|_| self.note(time));
    }

    /// Whether sharing syncs saves more than it costs. Not while the time is unknown.
    pub(super) fn is_long(&self) -> bool {
        self.shortest
            .is_some_and(|shortest| shortest >= SHARED_FROM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(200);
    const LONG: Duration = Duration::from_millis(5);

    #[test]
    fn syncs_are_shared_only_after_several_were_long() {
        let mut time = SyncTime::UNKNOWN;
        for _ in 1..SYNCS {
            time.note(LONG);
            assert!(!time.is_long());
        }
        time.note(LONG);
        assert!(time.is_long());
        time.note_many(SHORT);
        assert!(!time.is_long());
    }

    #[test]
    fn waiting_for_others_does_not_count() {
        // On a fast disk, most syncs of many clients are long because of their queue.
        let mut time = SyncTime::UNKNOWN;
        for number in 0..10 * SYNCS {
            time.note(if number % SYNCS == 7 { SHORT } else { LONG });
            assert!(!time.is_long());
        }
    }

    #[test]
    fn a_disk_that_changes_is_noticed() {
        let mut time = SyncTime::UNKNOWN;
        for is_long in [true, false, true] {
            // The first sync of a group may be one of before.
            for _ in 0..2 * SYNCS {
                time.note(if is_long { LONG } else { SHORT });
            }
            assert_eq!(time.is_long(), is_long);
        }
        assert!(SHARED_FROM > SHORT && SHARED_FROM <= LONG);
    }
}
