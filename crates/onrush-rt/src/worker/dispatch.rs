//! From the driver's events and the timers to the sink and to the wakers of futures, and what
//! happens when one of those panics.
//!
//! Must not know how the worker sleeps.

use super::{EventHandler, Worker};
use crate::coop;
use crate::driver::Event;
use crate::job::guarded;
use crate::sources::RUNTIME;
use crate::wakers::wake;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A worker that was away for longer fetches what has arrived before it fires overdue timers.
pub(super) const LATE_MS: u64 = 50;
/// It does so for this long at most, and by so many calls of the driver.
const CATCH_UP_NS_MAX: u64 = 20_000_000;
const CATCH_UP_CALLS_MAX: u32 = 64;

/// What [`Worker::dispatch`] is about to tell, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
enum Step {
    #[default]
    Begin,
    Awake,
    Notified,
    Events,
    Timers,
}

/// How far [`Worker::dispatch`] is.
#[derive(Debug)]
struct Dispatch {
    step: Cell<Step>,
    /// Whether the sink or a waker is being called, rather than the driver or the timers.
    is_calling: Cell<bool>,
    /// Of the stream or the timer that is called for. With the bit [`RUNTIME`] it is not the
    /// sink's, or there is none.
    token: Cell<u64>,
    any: Cell<bool>,
    /// What the calls so far have spent of their budgets.
    spent: Cell<u32>,
    /// The worker was away for longer than [`LATE_MS`].
    is_late: bool,
    /// Calls of the driver to catch up, when to stop, and whether the last one gave an event.
    fetches: Cell<u32>,
    fetch_until_ns: Cell<u64>,
    any_fetched: Cell<bool>,
}

impl Dispatch {
    fn new(is_late: bool) -> Dispatch {
        Dispatch {
            step: Cell::default(),
            is_calling: Cell::default(),
            token: Cell::new(RUNTIME),
            any: Cell::default(),
            spent: Cell::default(),
            is_late,
            fetches: Cell::default(),
            fetch_until_ns: Cell::default(),
            any_fetched: Cell::default(),
        }
    }

    /// Whether this step has not begun before; it has, from then on.
    fn begins(&self, step: Step) -> bool {
        let begins = self.step.get() < step;
        if begins {
            self.step.set(step);
        }
        begins
    }

    #[inline]
    fn call(&self, token: u64) {
        // Each call has a budget of its own. One that no call has touched is still as it was made.
        if !coop::is_untouched() {
            self.renew_budget();
        }
        self.is_calling.set(true);
        self.any.set(true);
        self.token.set(token);
    }

    #[inline(never)]
    fn renew_budget(&self) {
        let spent = self.spent.get().saturating_add(coop::spent());
        self.spent.set(spent);
        coop::renew_for_event(spent);
    }
}

impl Worker {
    /// Tells what happened: to the sink, and to whoever waits for it. Gives whether anything did.
    ///
    /// What is called may run user code, and may panic. Such a panic ends here, and the calls that
    /// are left go on. A panic of the driver or of the timers does not: all connections share them,
    /// and nothing is known of their state then, so the worker ends.
    /// Fails when the driver does.
    pub(super) fn dispatch(&self, handler: &impl EventHandler, is_late: bool) -> io::Result<bool> {
        coop::renew(); // What was spent before is not the first call's.
        let dispatch = Dispatch::new(is_late);
        // One frame for all calls, not one for each: entering it is not free.
        loop {
            let gone_on = catch_unwind(AssertUnwindSafe(|| self.run_iteration(handler, &dispatch)));
            let payload = match gone_on {
                Ok(result) => return result.map(|()| dispatch.any.get()),
                Err(payload) => payload,
            };
            let was_calling = dispatch.is_calling.replace(false);
            let token = dispatch.token.replace(RUNTIME);
            let token = Some(token).filter(|token| token & RUNTIME == 0);
            // A sink that panicked once more has been told, and goes on.
            if !was_calling || !guarded(|| handler.on_panic(token)).unwrap_or(true) {
                resume_unwind(payload);
            }
            std::mem::forget(payload); // It may itself panic when it is dropped.
        }
    }

    /// The rest of [`Worker::dispatch`], from the beginning or behind a call that panicked.
    fn run_iteration(&self, handler: &impl EventHandler, dispatch: &Dispatch) -> io::Result<()> {
        let inner = &*self.context.0;
        if dispatch.begins(Step::Awake) {
            dispatch.is_calling.set(true);
            handler.on_wake();
        }
        // Before events, so that a connection passed from elsewhere can be served in this turn.
        if dispatch.begins(Step::Notified) && inner.mailbox.take_notified() {
            dispatch.call(RUNTIME);
            handler.on_notify();
        }
        if dispatch.step.get() <= Step::Events {
            dispatch.step.set(Step::Events);
            self.take_events(handler, dispatch);
            while dispatch.is_late && self.is_behind(dispatch) {
                inner
                    .driver
                    .borrow_mut()
                    .poll_events(Some(Duration::ZERO))?;
                dispatch.call(RUNTIME);
                handler.on_wake();
                self.take_events(handler, dispatch);
            }
        }
        dispatch.step.set(Step::Timers);
        self.expire(handler, dispatch);
        Ok(())
    }

    /// Hands out all events that the driver has fetched.
    fn take_events(&self, handler: &impl EventHandler, dispatch: &Dispatch) {
        let inner = &*self.context.0;
        loop {
            dispatch.is_calling.set(false);
            let event = inner.driver.borrow_mut().next();
            let Some(event) = event else { return };
            dispatch.any_fetched.set(true);
            // Most events are these. Where the kind is known, less of the event is moved.
            if let Event::Data { token, .. } = event
                && token & RUNTIME == 0
            {
                dispatch.call(token);
                handler.on_event(event);
                continue;
            }
            dispatch.call(event.token().unwrap_or(RUNTIME));
            self.other_event(handler, event);
        }
    }

    /// Hands out an event that is not received bytes of the sink's.
    #[inline(never)]
    fn other_event(&self, handler: &impl EventHandler, event: Event) {
        let inner = &*self.context.0;
        if let Some(event) = inner.sources.route(event, &inner.driver) {
            handler.on_event(event);
        }
    }

    /// Whether there may be more to fetch before overdue timers fire.
    ///
    /// A worker that was stopped (SIGSTOP), or without its core, finds timers due that end waits
    /// for input which has arrived in time. The call of the kernel that was under way may have
    /// ended without events (`EINTR`, signal(7)), and one call fetches a bounded number of them.
    /// Bounded as well, so that a flood of events does not keep timers from firing.
    #[cold]
    fn is_behind(&self, dispatch: &Dispatch) -> bool {
        let inner = &*self.context.0;
        let now_ns = self.context.clock_ns();
        let any = dispatch.any_fetched.replace(false);
        let fetches = dispatch.fetches.get();
        dispatch.fetches.set(fetches + 1);
        if fetches == 0 {
            dispatch.fetch_until_ns.set(now_ns + CATCH_UP_NS_MAX);
            let due = inner.wheel.borrow().next_ms();
            return due.is_some_and(|due| due.saturating_add(LATE_MS) < inner.now_ms.get());
        }
        any && fetches < CATCH_UP_CALLS_MAX && now_ns < dispatch.fetch_until_ns.get()
    }

    fn expire(&self, handler: &impl EventHandler, dispatch: &Dispatch) {
        let inner = &*self.context.0;
        let now = inner.now_ms.get();
        loop {
            dispatch.is_calling.set(false);
            let due = inner.wheel.borrow_mut().expire(now);
            let Some(payload) = due else { return };
            dispatch.call(payload);
            if payload & RUNTIME == 0 {
                handler.on_timer(payload);
                continue;
            }
            let key = (payload & !RUNTIME) as usize;
            let waker = inner
                .sleepers
                .borrow_mut()
                .get_mut(key)
                .and_then(Option::take);
            if let Some(waker) = waker {
                wake(waker);
            }
        }
    }
}
