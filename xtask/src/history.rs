//! Checks recorded operations of an object that clients change under the condition that it still
//! has the version that they know. The operations must be linearizable: there is an order in which
//! each operation takes effect at one moment between its begin and its end.
//!
//! The search is that of Wing and Gong: it extends an order by each operation that may be next, and
//! remembers what it has tried. Every value is written at most once, so few orders are possible.

use std::collections::HashSet;
use std::fmt::Write;

/// What the object contains: a number that is written once, or nothing if there is no object.
pub type Value = Option<u64>;

/// What a client has asked, and the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read that has returned this value.
    Read(Value),
    /// A change that was acknowledged.
    Changed {
        /// The value of the condition.
        from: Value,
        /// The new value.
        to: Value,
    },
    /// A change that was refused, because the value was another one.
    Refused {
        /// The value of the condition.
        from: Value,
    },
    /// A change without a clear response. It takes effect at any time after its begin, or never.
    Unknown {
        /// The value of the condition.
        from: Value,
        /// The new value.
        to: Value,
    },
}

impl Operation {
    /// The value after the operation, if it can take effect on this one.
    fn apply(self, value: Value) -> Option<Value> {
        match self {
            Operation::Read(found) => (found == value).then_some(value),
            Operation::Refused { from } => (from != value).then_some(value),
            Operation::Changed { from, to } | Operation::Unknown { from, to } => {
                (from == value).then_some(to)
            }
        }
    }

    fn changes(self) -> bool {
        matches!(self, Operation::Changed { .. } | Operation::Unknown { .. })
    }

    fn is_known(self) -> bool {
        !matches!(self, Operation::Unknown { .. })
    }
}

/// An operation of a client. The times have one clock and any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was done.
    pub operation: Operation,
    /// Before the request was sent.
    pub begun: u64,
    /// After the response had arrived. Not used if the outcome is unknown.
    pub ended: u64,
}

/// The operations of one object that have taken effect, and its value then.
type Progress = (Vec<bool>, Value);

/// Checks that the operations are linearizable, from an object with the value `initial`. Fails with
/// all of them, and the longest order that was found.
pub fn check(initial: Value, events: &[Event]) -> Result<(), String> {
    let begin: Progress = (vec![false; events.len()], initial);
    let (mut open, mut tried) = (vec![begin.clone()], HashSet::new());
    let mut longest = (0, begin);
    while let Some((done, value)) = open.pop() {
        let waiting = || (0..events.len()).filter(|&at| !done[at]);
        let known = waiting().filter(|&at| events[at].operation.is_known());
        // An operation that begins after another one has ended comes after it.
        let Some(limit) = known.map(|at| events[at].ended).min() else {
            return Ok(());
        };
        let next = waiting().filter_map(|at| {
            let value = events[at].operation.apply(value)?;
            (events[at].begun <= limit).then_some((at, value))
        });
        let mut next: Vec<(usize, Value)> = next.collect();
        // What changes nothing and fits now need not come later.
        if let Some(&idle) = (next.iter()).find(|(at, _)| !events[*at].operation.changes()) {
            next = vec![idle];
        }
        for (at, value) in next {
            let mut done = done.clone();
            done[at] = true;
            if tried.insert((done.clone(), value)) {
                open.push((done, value));
            }
        }
        let count = done.iter().filter(|done| **done).count();
        if count >= longest.0 {
            longest = (count, (done, value));
        }
    }
    let (count, (done, value)) = longest;
    let mut text = format!(
        "after {count} of {} operations, marked with *, the value is {value:?}, and none of the \
         others fits:",
        events.len()
    );
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&at| events[at].begun);
    for at in order {
        let mark = if done[at] { '*' } else { ' ' };
        let Event {
            operation,
            begun,
            ended,
        } = events[at];
        let _ = write!(text, "\n{mark} {begun} to {ended}: {operation:?}");
    }
    Err(text)
}

#[cfg(test)]
mod tests {
    use super::Operation::{Changed, Read, Refused, Unknown};
    use super::*;

    fn changed(from: u64, to: u64) -> Operation {
        Changed {
            from: Some(from),
            to: Some(to),
        }
    }

    fn unknown(from: u64, to: u64) -> Operation {
        Unknown {
            from: Some(from),
            to: Some(to),
        }
    }

    /// Whether operations with begins and ends are linearizable from the value 0.
    fn holds(events: &[(u64, u64, Operation)]) -> bool {
        let event = |&(begun, ended, operation)| Event {
            operation,
            begun,
            ended,
        };
        let events: Vec<Event> = events.iter().map(event).collect();
        check(Some(0), &events).is_ok()
    }

    #[test]
    fn operations_in_order_are_linearizable() {
        let create = Changed {
            from: None,
            to: Some(1),
        };
        assert!(!holds(&[(1, 2, create)]));
        assert!(holds(&[]));
        let refused = Refused { from: None };
        assert!(holds(&[
            (1, 2, refused),
            (3, 4, changed(0, 1)),
            (5, 6, Read(Some(1)))
        ]));
    }

    #[test]
    fn operations_at_the_same_time_have_any_order() {
        for found in [0, 1] {
            assert!(holds(&[(1, 9, changed(0, 1)), (2, 3, Read(Some(found)))]));
        }
        // Once seen, it stays.
        let (new, old) = (Read(Some(1)), Read(Some(0)));
        assert!(holds(&[(1, 9, changed(0, 1)), (2, 3, old), (4, 5, new)]));
        assert!(!holds(&[(1, 9, changed(0, 1)), (2, 3, new), (4, 5, old)]));
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        // A stale read, a lost change, and a value that no client has written.
        assert!(!holds(&[(1, 2, changed(0, 1)), (3, 4, Read(Some(0)))]));
        assert!(!holds(&[(1, 2, changed(0, 1)), (3, 4, Read(None))]));
        assert!(!holds(&[(1, 2, Read(Some(7)))]));
        // Two clients have replaced the same version.
        assert!(!holds(&[(1, 9, changed(0, 1)), (1, 9, changed(0, 2))]));
        // A refusal, although the condition held all the time.
        let refused = Refused { from: Some(0) };
        assert!(!holds(&[(1, 2, refused), (3, 4, Read(Some(0)))]));
        // A change that was made is reported as refused.
        assert!(!holds(&[(1, 2, refused), (3, 4, Read(Some(5)))]));
        // A read of a change that has not begun.
        assert!(!holds(&[(1, 2, Read(Some(1))), (3, 4, changed(0, 1))]));
    }

    #[test]
    fn an_unknown_change_is_made_at_any_time_or_never() {
        let lost = unknown(0, 1);
        assert!(holds(&[(1, 2, lost)]));
        assert!(holds(&[(1, 2, lost), (3, 4, Read(Some(0)))]));
        let (new, old) = (Read(Some(1)), Read(Some(0)));
        assert!(holds(&[(1, 2, lost), (3, 4, old), (5, 6, new)]));
        assert!(!holds(&[(1, 2, lost), (3, 4, new), (5, 6, old)]));
        assert!(!holds(&[(1, 2, new), (3, 4, lost)]));
        // It made the refusal of another one.
        let refused = Refused { from: Some(0) };
        assert!(holds(&[(1, 2, lost), (3, 4, refused), (5, 6, new)]));
        // Not after the value has changed otherwise.
        assert!(!holds(&[(1, 2, lost), (3, 4, changed(0, 2)), (5, 6, new)]));
    }

    /// Numbers from a seed.
    fn random(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    /// Many clients of a correct object: each operation takes effect at its number times 10.
    fn correct(seed: &mut u64, count: u64) -> Vec<Event> {
        let (mut value, mut events) = (Some(0), Vec::new());
        for number in 1..=count {
            let stale = Some(random(seed) % number);
            let from = if random(seed).is_multiple_of(2) {
                value
            } else {
                stale
            };
            let to = Some(number);
            let operation = match random(seed) % 4 {
                0 => Read(value),
                1 if from == value => Unknown { from, to },
                1 => Unknown { from: stale, to },
                _ if from == value => Changed { from, to },
                _ => Refused { from },
            };
            // An unknown change that could be made is made, or was lost.
            let is_lost = !operation.is_known() && random(seed).is_multiple_of(2);
            if !is_lost {
                value = operation.apply(value).unwrap_or(value);
            }
            events.push(Event {
                operation,
                begun: (number * 10).saturating_sub(random(seed) % 100),
                ended: number * 10 + random(seed) % 100,
            });
        }
        events
    }

    #[test]
    fn long_histories_are_checked() {
        for mut seed in 1..60 {
            let mut events = correct(&mut seed, 300);
            assert_eq!(check(Some(0), &events), Ok(()));
            // A read of the first value, after all others have ended.
            events.push(Event {
                operation: Read(Some(0)),
                begun: 1_000_000,
                ended: 1_000_001,
            });
            assert!(check(Some(0), &events).is_err());
        }
    }
}
