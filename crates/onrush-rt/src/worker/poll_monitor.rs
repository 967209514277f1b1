//! Records what a worker runs, to report when it is blocked and by what.
//!
//! The worker stores each handler and task poll that it begins (two relaxed stores) and compares
//! the clock once per event-loop iteration, where it reads the clock anyway. Other threads see what
//! runs now and since when, so a worker that never returns is detected, too. The tags are opaque
//! here.

use super::WorkerContext;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

/// A longer iteration, without the time in the kernel, is reported.
pub(super) const BLOCKED_NS: u64 = 100_000_000;
/// After a long iteration with several unmeasured polls, each poll is measured for this long.
const CLOSELY_NS: u64 = 60_000_000_000;

/// What one worker runs. Only that worker writes it.
#[derive(Debug, Default)]
pub struct PollMonitor {
    /// Start of the current iteration, in ms of `CLOCK_MONOTONIC`; 0 while there is none.
    since_ms: AtomicU64,
    /// An iteration has ended before.
    has_turned: AtomicBool,
    /// Tag of the poll that began last.
    tag: AtomicU32,
    /// Polls begun in the current iteration.
    polls: AtomicU32,
    /// Whether each poll is measured.
    closely: AtomicBool,
    closely_until_ns: AtomicU64,
    /// While polls are measured: start of the current one, and the longest of this iteration.
    poll_ns: AtomicU64,
    longest_ns: AtomicU64,
    longest_tag: AtomicU32,
}

/// An iteration of the event loop that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// Handler and task polls in it.
    pub polls: u32,
    /// The tag of the longest poll. `None` when there was no poll, or several that were not
    /// measured; the next ones will be.
    pub tag: Option<u32>,
}

impl PollMonitor {
    /// The tag of the poll that began last.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.tag.load(Relaxed)
    }

    /// Replaces the tag of the current poll.
    #[inline]
    pub fn retag(&self, tag: u32) {
        self.tag.store(tag, Relaxed);
    }

    /// Milliseconds since the current iteration began; `now_ms` is the time of the monotonic clock.
    /// Meaningless while the worker sleeps.
    pub fn iteration_ms(&self, now_ms: u64) -> u64 {
        match self.since_ms.load(Relaxed) {
            0 => 0,
            since_ms => now_ms.saturating_sub(since_ms),
        }
    }

    #[inline]
    fn begin(&self, tag: u32, clock_ns: impl FnOnce() -> u64) {
        if self.closely.load(Relaxed) {
            self.measure(clock_ns());
        }
        self.tag.store(tag, Relaxed);
        self.polls.store(self.polls.load(Relaxed) + 1, Relaxed);
    }

    /// A poll ends, and another may begin.
    #[cold]
    fn measure(&self, now_ns: u64) {
        let took_ns = now_ns.saturating_sub(self.poll_ns.swap(now_ns, Relaxed));
        if self.polls.load(Relaxed) > 0 && took_ns > self.longest_ns.load(Relaxed) {
            self.longest_ns.store(took_ns, Relaxed);
            self.longest_tag.store(self.tag(), Relaxed);
        }
    }

    /// The worker is about to sleep: no iteration runs until it wakes.
    #[inline]
    pub(super) fn begin_sleep(&self) {
        self.since_ms.store(0, Relaxed);
    }

    /// An iteration that began at `began_ns` has ended at `ended_ns`; the next begins at `now_ns`.
    pub(super) fn end_iteration(
        &self,
        began_ns: u64,
        ended_ns: u64,
        now_ns: u64,
    ) -> Option<Blocked> {
        let duration_ns = ended_ns.saturating_sub(began_ns);
        let before_any = !self.has_turned.swap(true, Relaxed);
        let blocked = (duration_ns > BLOCKED_NS && !before_any)
            .then(|| self.report_blocked(duration_ns, ended_ns));
        self.since_ms.store((now_ns / 1_000_000).max(1), Relaxed);
        self.polls.store(0, Relaxed);
        if self.closely.load(Relaxed) {
            self.longest_ns.store(0, Relaxed);
            self.poll_ns.store(now_ns, Relaxed);
            if now_ns > self.closely_until_ns.load(Relaxed) {
                self.closely.store(false, Relaxed);
            }
        }
        blocked
    }

    #[cold]
    fn report_blocked(&self, duration_ns: u64, ended_ns: u64) -> Blocked {
        let polls = self.polls.load(Relaxed);
        let tag = match polls {
            0 => None,
            1 => Some(self.tag()),
            _ if self.closely.load(Relaxed) => {
                self.measure(ended_ns);
                Some(self.longest_tag.load(Relaxed))
            }
            _ => None,
        };
        self.closely.store(true, Relaxed);
        self.closely_until_ns.store(ended_ns + CLOSELY_NS, Relaxed);
        Blocked {
            duration_ns,
            polls,
            tag,
        }
    }
}

impl WorkerContext {
    /// What this worker runs.
    #[inline]
    pub fn poll_monitor(&self) -> &PollMonitor {
        &self.0.poll_monitor
    }

    /// Records that user code is about to be polled. `tag` identifies it in a report of a blocked
    /// worker.
    #[inline]
    pub fn begin_poll(&self, tag: u32) {
        self.0.poll_monitor.begin(tag, || self.clock_ns());
    }
}

pin_project! {
    /// A task with the tag of the code that spawned it.
    pub(super) struct TaggedTask<F> {
        context: WorkerContext,
        tag: u32,
        #[pin]
        future: F,
    }
}

impl<F> TaggedTask<F> {
    pub(super) fn new(context: &WorkerContext, future: F) -> TaggedTask<F> {
        TaggedTask {
            context: context.clone(),
            tag: context.poll_monitor().tag(),
            future,
        }
    }
}

impl<F: Future> Future for TaggedTask<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.context.begin_poll(*this.tag);
        this.future.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn blocked(duration_ms: u64, polls: u32, tag: Option<u32>) -> Option<Blocked> {
        Some(Blocked {
            duration_ns: duration_ms * MS,
            polls,
            tag,
        })
    }

    #[test]
    fn single_poll_is_reported_at_once_and_one_of_many_next_time() {
        let poll_monitor = PollMonitor::default();
        let clock = |ms: u64| move || ms * MS;
        // The time before the first iteration does not count.
        assert_eq!(poll_monitor.end_iteration(0, 500 * MS, 500 * MS), None);
        poll_monitor.begin(7, clock(0));
        assert_eq!(
            poll_monitor.end_iteration(500 * MS, 600 * MS, 1000 * MS),
            None
        );
        poll_monitor.begin(7, clock(0));
        let told = poll_monitor.end_iteration(1000 * MS, 1101 * MS, 1200 * MS);
        assert_eq!(told, blocked(101, 1, Some(7)));
        assert_eq!(poll_monitor.iteration_ms(1300), 100);

        let poll_monitor = PollMonitor::default();
        poll_monitor.end_iteration(0, MS, MS);
        for tag in [1, 2, 3] {
            poll_monitor.begin(tag, clock(0));
        }
        assert_eq!(
            poll_monitor.end_iteration(MS, 201 * MS, 201 * MS),
            blocked(200, 3, None)
        );
        for (tag, ms) in [(1, 201), (2, 211), (3, 391)] {
            poll_monitor.begin(tag, clock(ms));
        }
        let told = poll_monitor.end_iteration(201 * MS, 401 * MS, 401 * MS);
        assert_eq!(told, blocked(200, 3, Some(2)));
        // The longest poll is the last one of an iteration, and the only long one among short ones.
        for (tag, ms) in [(1, 401), (2, 402)] {
            poll_monitor.begin(tag, clock(ms));
        }
        let told = poll_monitor.end_iteration(401 * MS, 601 * MS, 601 * MS);
        assert_eq!(told, blocked(200, 2, Some(2)));
        // Polls are not measured for ever.
        assert_eq!(
            poll_monitor.end_iteration(601 * MS, 602 * MS, 100_000 * MS),
            None
        );
        for tag in [1, 2] {
            poll_monitor.begin(tag, || unreachable!("the clock is not read"));
        }
        assert_eq!(
            poll_monitor.end_iteration(100_000 * MS, 100_001 * MS, 100_001 * MS),
            None
        );
    }
}
