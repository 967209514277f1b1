//! The cooperative budget: how much one poll may do before other tasks and connections run.
//!
//! A future whose input is always ready never returns `Pending` by itself. A worker that polls it
//! would serve nothing else. So every poll of a task and every event starts with a budget of
//! operations and bytes. Futures that make progress without waiting (bodies, streams, sockets,
//! channels, timers) call [`spend`] for what they did, and [`poll_proceed`] before they do more.
//! When the budget is used up, `poll_proceed` wakes the task and returns `Pending`: the task runs
//! again in the next iteration of the event loop, after everything that is due before it.
//!
//! The budget belongs to the thread, as in tokio's `coop` module, so futures need no handle to
//! their worker. A thread polls one task at a time. Outside of a worker's polls there is no limit:
//! another executor would only delay itself. An executor *within* a poll (a handler that blocks on
//! a future) would be refused for ever, so after 1,024 refusals it gets a few more operations.

use std::cell::Cell;
use std::task::{Context, Poll};

/// Operations of one poll: receives, sends, items of a stream, values of a channel.
pub const OPERATIONS: u32 = 128;
/// Bytes moved by one poll. The last operation may exceed it. At some GB/s this takes well below a
/// millisecond.
pub const BYTES: u32 = 256 << 10;

/// The cost of an operation besides its bytes, in bytes: about a microsecond.
const OPERATION_COST: u32 = 2 << 10;
/// The minimum budget of an event, after other events in this iteration have used up [`BYTES`].
const EVENT_BYTES_MIN: u32 = 64 << 10;
/// The minimum after other events have spent [`MANY_EVENTS_BYTES`], because thousands of clients
/// have sent at once. It suffices for a small response; the rest of a large one is sent later.
const LATE_EVENT_BYTES_MIN: u32 = 16 << 10;
/// See [`LATE_EVENT_BYTES_MIN`].
const MANY_EVENTS_BYTES: u32 = 2 << 20;
/// The minimum number of operations of an event, in place of [`OPERATIONS`].
const EVENT_OPERATIONS_MIN: u32 = 32;

/// Refusals of [`poll_proceed`] in one poll after which it grants some more operations.
const REFUSALS: u32 = 1024;

/// The budget that is left.
#[derive(Clone, Copy, Debug)]
struct Left {
    operations: u32,
    bytes: u32,
    /// The initial values of both.
    granted_operations: u32,
    granted_bytes: u32,
    /// Refusals until more operations are granted. See [`REFUSALS`].
    refusals: u32,
}

const FULL: Left = Left {
    operations: OPERATIONS,
    bytes: BYTES,
    granted_operations: OPERATIONS,
    granted_bytes: BYTES,
    refusals: REFUSALS,
};

/// The budget outside of polls. [`spend`] does not change it.
const UNBOUNDED: Left = Left {
    operations: u32::MAX,
    bytes: BYTES,
    granted_operations: OPERATIONS,
    granted_bytes: BYTES,
    refusals: 0,
};

thread_local! {
    static LEFT: Cell<Left> = const { Cell::new(UNBOUNDED) };
}

/// Starts a new budget, before each poll of a task.
#[inline]
pub(crate) fn renew() {
    LEFT.set(FULL);
}

/// Starts a new budget for an event, when the events before it in this iteration have spent
/// `spent`. When many large responses or long pipelines begin at once, each does little at first,
/// so that all events are processed soon; tasks do the rest.
#[inline]
pub(crate) fn renew_for_event(spent: u32) {
    if spent == 0 {
        return LEFT.set(FULL);
    }
    let bytes_min = match spent {
        0..MANY_EVENTS_BYTES => EVENT_BYTES_MIN,
        _ => LATE_EVENT_BYTES_MIN,
    };
    let bytes = BYTES.saturating_sub(spent).max(bytes_min);
    let operations = OPERATIONS.saturating_sub(spent / OPERATION_COST);
    let operations = operations.max(EVENT_OPERATIONS_MIN);
    LEFT.set(Left {
        operations,
        bytes,
        granted_operations: operations,
        granted_bytes: bytes,
        ..FULL
    });
}

/// Stores the present budget and restores it when dropped. Needed around an event-loop iteration,
/// which may run within a poll of another worker.
#[derive(Debug)]
pub struct Restore(Left);

impl Restore {
    #[inline]
    pub(crate) fn new() -> Restore {
        Restore(LEFT.get())
    }
}

/// Lifts the limit until the returned value is dropped, for a poll that must not be refused.
pub fn unbounded() -> Restore {
    let restore = Restore::new();
    LEFT.set(UNBOUNDED);
    restore
}

impl Drop for Restore {
    #[inline]
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// The budget spent since it was renewed: bytes, and [`OPERATION_COST`] for each operation.
#[inline]
pub(crate) fn spent() -> u32 {
    let left = LEFT.get();
    match left.operations {
        u32::MAX => 0,
        operations => {
            let operations = left.granted_operations - operations;
            left.granted_bytes - left.bytes + operations * OPERATION_COST
        }
    }
}

/// Whether nothing was spent since the budget was renewed. Always `false` outside of polls.
#[inline]
pub(crate) fn is_untouched() -> bool {
    let left = LEFT.get();
    left.operations == left.granted_operations
}

/// The most bytes that the next operation should move: twice what is left, so that a large transfer
/// is not cut into small calls. At least 64 KiB, or the whole budget of an event that has less.
#[inline]
pub fn operation_bytes_max() -> usize {
    let left = LEFT.get();
    let bytes_min = left.granted_bytes.min(EVENT_BYTES_MIN);
    (2 * left.bytes).max(bytes_min) as usize
}

/// Whether the current event has less than a full budget, because of the events before it. A task
/// that waits until it is polled again has a full one.
#[inline]
pub fn is_reduced() -> bool {
    LEFT.get().granted_bytes < BYTES
}

/// Whether the current poll has used up its budget.
#[inline]
pub fn is_exhausted() -> bool {
    let left = LEFT.get();
    left.operations == 0 || left.bytes == 0
}

/// Spends one operation that moved `bytes` bytes (0 for one without bytes).
#[inline]
pub fn spend(bytes: usize) {
    let left = LEFT.get();
    if left.operations == u32::MAX {
        return;
    }
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    LEFT.set(Left {
        operations: left.operations.saturating_sub(1),
        bytes: left.bytes.saturating_sub(bytes),
        ..left
    });
}

/// [`spend`] of an operation without bytes followed by [`is_exhausted`], at the cost of one call.
#[inline]
pub fn spend_operation() -> bool {
    let left = LEFT.get();
    if left.operations == u32::MAX {
        return false;
    }
    let operations = left.operations.saturating_sub(1);
    LEFT.set(Left { operations, ..left });
    operations == 0 || left.bytes == 0
}

/// `Ready` while the current poll may do more. `Pending` when its budget is used up; the task is
/// woken then, so that it is polled again after the others.
///
/// # Examples
/// ```
/// use onrush_rt::coop;
/// use std::task::{Context, Poll, Waker};
///
/// fn poll_next(items: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Option<u8>> {
///     std::task::ready!(coop::poll_proceed(cx));
///     coop::spend(1);
///     Poll::Ready(items.pop())
/// }
/// # let mut cx = Context::from_waker(Waker::noop());
/// # assert_eq!(poll_next(&mut vec![7], &mut cx), Poll::Ready(Some(7)));
/// ```
#[inline]
pub fn poll_proceed(cx: &mut Context<'_>) -> Poll<()> {
    if is_exhausted() {
        refuse();
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    Poll::Ready(())
}

/// [`poll_proceed`], and if it is `Ready`, [`spend`] of an operation without bytes. For operations
/// that can end or fail at once, again and again.
#[inline]
pub fn poll_operation(cx: &mut Context<'_>) -> Poll<()> {
    let proceeds = poll_proceed(cx);
    if proceeds.is_ready() {
        spend(0);
    }
    proceeds
}

/// Lets the other tasks of the worker run before the caller goes on: `Pending` once, with the task
/// woken.
pub async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cold]
fn refuse() {
    let left = LEFT.get();
    crate::diagnose!(TRACE, operations = left.operations, bytes = left.bytes;
        "cooperative budget exhausted");
    LEFT.set(match left.refusals {
        // Grants operations, but of bytes only the one that lets the next operation proceed: the
        // bytes spent still count for the iteration.
        0 => Left {
            operations: EVENT_OPERATIONS_MIN,
            granted_operations: left.granted_operations + EVENT_OPERATIONS_MIN,
            bytes: left.bytes.max(1),
            refusals: REFUSALS,
            ..left
        },
        refusals => Left {
            refusals: refusals - 1,
            ..left
        },
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Spends `bytes` at a time until nothing is left; returns how often that was possible.
    fn spend_all(bytes: usize) -> u32 {
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        renew();
        let mut times = 0;
        while poll_proceed(&mut cx).is_ready() {
            assert_eq!(count.0.load(Ordering::Relaxed), 0);
            spend(bytes);
            times += 1;
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "the task is woken");
        times
    }

    #[test]
    fn operations_and_bytes_are_bounded() {
        assert_eq!(spend_all(0), OPERATIONS);
        assert_eq!(spend_all(1), OPERATIONS);
        assert_eq!(spend_all(BYTES as usize / 4), 4);
        assert_eq!(spend_all(BYTES as usize - 1), 2);
        assert_eq!(spend_all(usize::MAX), 1);
    }

    #[test]
    fn an_operation_tells_whether_it_was_the_last() {
        renew();
        assert!((1..OPERATIONS).all(|_| !spend_operation()));
        assert!(spend_operation() && is_exhausted());
        assert!(spend_operation());
        renew();
        spend(BYTES as usize);
        assert!(spend_operation());
        let unbounded = unbounded();
        assert!((0..2 * OPERATIONS).all(|_| !spend_operation()));
        drop(unbounded);
    }

    #[test]
    fn there_is_no_bound_outside_of_polls() {
        let outside = Restore::new();
        renew();
        spend(BYTES as usize);
        drop(outside);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..10 * OPERATIONS {
            assert!(poll_proceed(&mut cx).is_ready());
            spend(BYTES as usize);
        }
    }

    #[test]
    fn an_executor_within_a_poll_makes_progress() {
        renew();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut polls, mut done) = (0, 0);
        while done < 1000 {
            if poll_proceed(&mut cx).is_ready() {
                spend(0);
                done += 1;
            }
            polls += 1;
            assert!(polls < 1_000_000);
        }
    }

    #[test]
    fn events_that_follow_large_ones_move_less() {
        renew_for_event(0);
        assert_eq!(operation_bytes_max(), 2 * BYTES as usize);
        spend(BYTES as usize);
        assert!(!is_reduced());
        renew_for_event(BYTES - 100_000);
        assert!(is_reduced());
        assert_eq!(operation_bytes_max(), 200_000);
        spend(30_000);
        assert_eq!(spent(), 30_000 + OPERATION_COST);
        assert_eq!(operation_bytes_max(), 140_000);
        for (before, least) in [
            (BYTES, EVENT_BYTES_MIN),
            (MANY_EVENTS_BYTES, LATE_EVENT_BYTES_MIN),
            (u32::MAX, LATE_EVENT_BYTES_MIN),
        ] {
            renew_for_event(before);
            assert!(!is_exhausted());
            spend(least as usize);
            assert!(is_exhausted());
            assert_eq!(operation_bytes_max(), least as usize);
        }
    }

    #[test]
    fn spent_budget_is_reported() {
        renew();
        assert!(is_untouched());
        spend(10);
        assert!(!is_untouched());
        spend(20);
        assert_eq!(spent(), 30 + 2 * OPERATION_COST);
        spend(usize::MAX);
        assert_eq!(spent(), BYTES + 3 * OPERATION_COST);
        renew();
        assert_eq!(spent(), 0);
        renew_for_event(BYTES);
        assert!(is_untouched());
        let unbounded = unbounded();
        assert!(!is_untouched());
        drop(unbounded);
        assert!(is_untouched());
    }
}
