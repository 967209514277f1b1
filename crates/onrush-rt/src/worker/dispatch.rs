//! Dispatches driver events and expired timers to the event handler and to the wakers of futures,
//! and contains panics in them.
//!
//! Does not depend on how the worker sleeps.

use super::{EventHandler, Worker};
use crate::coop;
use crate::diagnose;
use crate::driver::Event;
use crate::sources::RUNTIME;
use crate::user::call;
use crate::wakers::wake;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A worker that was away for longer fetches the events that have arrived before it fires overdue
/// timers.
pub(super) const LATE_MS: u64 = 50;
/// Limits of that catch-up: its duration and the number of driver calls.
const CATCH_UP_NS_MAX: u64 = 20_000_000;
const CATCH_UP_CALLS_MAX: u32 = 64;

/// The steps of [`Worker::dispatch`], in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
enum Step {
    #[default]
    Begin,
    Awake,
    Notified,
    Events,
    Timers,
}

/// Progress of [`Worker::dispatch`].
#[derive(Debug)]
struct Dispatch {
    step: Cell<Step>,
    /// Whether the event handler or a waker is being called, rather than the driver or the timers.
    is_calling: Cell<bool>,
    /// Token of the stream or the timer of the current call. With the bit [`RUNTIME`], it does not
    /// belong to the event handler, or there is none.
    token: Cell<u64>,
    any: Cell<bool>,
    /// The budget that the calls so far have spent.
    spent: Cell<u32>,
    /// The worker was away for longer than [`LATE_MS`].
    is_late: bool,
    /// State of the catch-up: driver calls made, its end, and whether the last call returned an
    /// event.
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

    /// Enters this step. Returns false if it was entered before.
    fn begins(&self, step: Step) -> bool {
        let begins = self.step.get() < step;
        if begins {
            self.step.set(step);
        }
        begins
    }

    #[inline]
    fn call(&self, token: u64) {
        // Each call has a budget of its own. A budget that no call has used needs no renewal.
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
    /// Dispatches events to the event handler and to the waiting futures. Returns whether there
    /// were any.
    ///
    /// The called code may be user code and may panic. This function catches such a panic and
    /// continues with the remaining calls. It does not catch a panic of the driver or of the
    /// timers: all connections share them and their state is unknown then, so the worker ends.
    /// Fails when the driver fails.
    pub(super) fn dispatch(&self, handler: &impl EventHandler, is_late: bool) -> io::Result<bool> {
        coop::renew(); // The first call starts with a full budget.
        let dispatch = Dispatch::new(is_late);
        // One `catch_unwind` for all calls, not one for each: entering it has a cost.
        loop {
            let gone_on = catch_unwind(AssertUnwindSafe(|| self.run_iteration(handler, &dispatch)));
            let payload = match gone_on {
                Ok(result) => return result.map(|()| dispatch.any.get()),
                Err(payload) => payload,
            };
            let was_calling = dispatch.is_calling.replace(false);
            let token = dispatch.token.replace(RUNTIME);
            let token = Some(token).filter(|token| token & RUNTIME == 0);
            // If the handler panics again here, the panic has been reported; continue.
            if !was_calling || !call(|| handler.on_panic(token)).unwrap_or(true) {
                resume_unwind(payload);
            }
            std::mem::forget(payload); // Dropping it may panic.
        }
    }

    /// The rest of [`Worker::dispatch`]: from the beginning, or after a call that panicked.
    fn run_iteration(&self, handler: &impl EventHandler, dispatch: &Dispatch) -> io::Result<()> {
        let inner = &*self.context.0;
        if dispatch.begins(Step::Awake) {
            dispatch.is_calling.set(true);
            handler.on_wake();
        }
        // Before events, so that this iteration can serve a connection passed from another worker.
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

    /// Dispatches all events that the driver has fetched.
    fn take_events(&self, handler: &impl EventHandler, dispatch: &Dispatch) {
        let inner = &*self.context.0;
        loop {
            dispatch.is_calling.set(false);
            let event = inner.driver.borrow_mut().next();
            let Some(event) = event else { return };
            dispatch.any_fetched.set(true);
            // Most events are of this kind. Matching it here moves less of the event.
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

    /// Dispatches an event that is not received bytes for the event handler.
    #[inline(never)]
    fn other_event(&self, handler: &impl EventHandler, event: Event) {
        let inner = &*self.context.0;
        let worker = inner.index;
        match &event {
            Event::End {
                token,
                result: Err(error),
                ..
            } => {
                diagnose!(DEBUG, worker = worker, token = *token, error = error.to_string();
                    "stream failed");
            }
            Event::AcceptPaused { error, .. } => {
                diagnose!(DEBUG, worker = worker, error = error.to_string();
                    "accept failed, the listener pauses");
            }
            _ => {}
        }
        if let Some(event) = inner.sources.route(event, &inner.driver) {
            handler.on_event(event);
        }
    }

    /// Whether to fetch more events before overdue timers fire.
    ///
    /// A worker that was stopped (SIGSTOP) or lost its core finds expired timers of waits whose
    /// input arrived in time. The interrupted system call may have returned without events
    /// (`EINTR`, signal(7)), and one call fetches a bounded number of them. The catch-up is
    /// bounded, too: a flood of events cannot keep timers from firing.
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
