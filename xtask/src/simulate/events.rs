//! The queue of a discrete-event simulation.

use std::collections::BTreeMap;

/// Events in the order of their times. Events of the same time keep the order in which they were
/// added, so that a run depends on nothing but its seed.
#[derive(Debug)]
pub(super) struct Events<E> {
    /// By the bits of the time, which order as the time does if it is not negative.
    waiting: BTreeMap<(u64, u64), E>,
    added: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Events<E> {
        Events {
            waiting: BTreeMap::new(),
            added: 0,
        }
    }
}

impl<E> Events<E> {
    /// Adds an event at a time in seconds, at least 0.
    pub(super) fn add(&mut self, at: f64, event: E) {
        debug_assert!(at >= 0.0);
        self.waiting.insert((at.to_bits(), self.added), event);
        self.added += 1;
    }

    /// Removes the next event.
    pub(super) fn next(&mut self) -> Option<(f64, E)> {
        let ((at, _), event) = self.waiting.pop_first()?;
        Some((f64::from_bits(at), event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_in_the_order_of_time_and_of_addition() {
        let mut events = Events::default();
        for (at, event) in [(2.0, 'd'), (0.0, 'a'), (1.5, 'b'), (1.5, 'c')] {
            events.add(at, event);
        }
        let order: String = std::iter::from_fn(|| events.next())
            .map(|(_, event)| event)
            .collect();
        assert_eq!(order, "abcd");
    }
}
