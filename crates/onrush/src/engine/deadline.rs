//! Time limits. Each connection has one deadline and at most one timer: moving the deadline later
//! is a store, and the timer, when it fires early, is set again.
//!
//! Must not know how answers are made, only that one may be owed.

use super::Engine;
use super::connection::{Active, Conn, Phase};
use crate::host::ConnId;
use crate::log::Outcome;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_proto::reject::Reject;
use onrush_rt::{diagnose, user};
use std::io;
use std::rc::Rc;
use std::task::Waker;

/// How long a connection without a request may live on while the server drains.
pub(super) const DRAIN_IDLE_MS: u32 = 200;

/// How much longer a head, or the silence before it, may take when its time is over and input is
/// there that has not been received: the worker was away, and must look at that first.
const EXTENSION_MS: u64 = 1_000;

/// What a task waits for its peer to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// To send more of a request body.
    Body,
    /// To take more of an answer.
    Write,
}

impl Engine {
    /// Gives the connection `limit_ms` from now for what it does next; 0 for no limit.
    #[inline]
    pub(super) fn set_limit(&self, id: ConnId, conn: &mut Conn, limit_ms: u32) {
        let deadline = match limit_ms {
            0 => u64::MAX,
            ms => self.context.now_ms() + u64::from(ms),
        };
        self.set_deadline(id, conn, deadline);
    }

    #[inline]
    pub(super) fn set_deadline(&self, id: ConnId, conn: &mut Conn, deadline_ms: u64) {
        let total = conn
            .active
            .as_ref()
            .and_then(|active| active.total_deadline_ms);
        conn.deadline_ms = total.map_or(deadline_ms, |total| total.min(deadline_ms));
        if conn.deadline_ms < conn.timer_ms {
            self.start_timer(id, conn);
        }
    }

    fn start_timer(&self, id: ConnId, conn: &mut Conn) {
        if let Some(timer) = conn.timer.take() {
            self.context.unschedule(timer);
        }
        conn.timer_ms = conn.deadline_ms;
        conn.timer = Some(self.context.schedule(conn.deadline_ms, id.token()));
    }

    /// Gives a task's wait for its peer `limit_ms` from now; 0 when it waits no more, or may wait
    /// for ever.
    pub(super) fn set_wait(&self, id: ConnId, conn: &mut Conn, wait: Wait, limit_ms: u32) {
        let now_ms = self.context.now_ms();
        let deadline = (limit_ms > 0).then(|| now_ms + u64::from(limit_ms));
        let active = conn.active();
        let rate_meter = match wait {
            Wait::Body => {
                active.body_deadline_ms = deadline;
                active.final_poll &= deadline.is_some();
                &mut active.body_rate
            }
            Wait::Write => {
                active.write_deadline_ms = deadline;
                &mut active.write_rate
            }
        };
        if limit_ms == 0 {
            rate_meter.end_wait(now_ms);
        }
        if conn.phase == Phase::Busy {
            self.set_busy_deadline(id, conn);
        }
    }

    /// Begins, or goes on with, a wait for the peer, whose rate is measured meanwhile. `false`: it
    /// has been too slow ([`Limits::rate_bytes_per_s_min`]).
    ///
    /// [`Limits::rate_bytes_per_s_min`]: onrush_proto::limits::Limits::rate_bytes_per_s_min
    pub(super) fn is_fast_enough(&self, conn: &mut Conn, wait: Wait) -> bool {
        let response_count = conn.response_count;
        let active = conn.active();
        let rate_meter = match wait {
            Wait::Body => &mut active.body_rate,
            Wait::Write => &mut active.write_rate,
        };
        rate_meter.start_wait(response_count, self.context.now_ms(), self.limits())
    }

    /// Gives the peer `limit_ms` from now to take what was sent; 0 for no limit.
    pub(super) fn limit_write(&self, id: ConnId, limit_ms: u32) {
        if let Some(conn) = self.conns.borrow_mut().get(id) {
            self.set_wait(id, conn, Wait::Write, limit_ms);
        }
    }

    /// Nobody waits for body bytes any more.
    pub(super) fn clear_body_reader(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            conns.get(id).and_then(|conn| self.take_reader(id, conn))
        };
        if let Some(reader) = reader {
            user::wake(reader); // What it belongs to may live on in the answer, and wait.
        }
    }

    pub(super) fn set_busy_deadline(&self, id: ConnId, conn: &mut Conn) {
        let active = conn.active();
        let waits = [active.body_deadline_ms, active.write_deadline_ms];
        let first = waits.into_iter().flatten().min();
        self.set_deadline(id, conn, first.unwrap_or(u64::MAX));
    }

    /// Who waits for body bytes, to be woken; its time begins again when it waits again.
    pub(super) fn take_reader(&self, id: ConnId, conn: &mut Conn) -> Option<Waker> {
        let reader = conn.active.as_mut()?.reader.take()?;
        self.set_wait(id, conn, Wait::Body, 0);
        Some(reader)
    }

    pub(super) fn timer_fired(self: &Rc<Self>, id: ConnId) {
        let now = self.context.now_ms();
        let (phase, total_over, body_over, write_over) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            (conn.timer, conn.timer_ms) = (None, u64::MAX);
            if conn.deadline_ms > now {
                if conn.deadline_ms != u64::MAX {
                    self.start_timer(id, conn);
                }
                return;
            }
            let over = |deadline: fn(&Active) -> Option<u64>| {
                let deadline = conn.active.as_deref().and_then(deadline);
                deadline.is_some_and(|deadline| deadline <= now)
            };
            (
                conn.phase,
                over(|active| active.total_deadline_ms),
                over(|active| active.body_deadline_ms),
                over(|active| active.write_deadline_ms),
            )
        };
        if matches!(phase, Phase::Ready | Phase::Leaving) && self.extend_deadline(id) {
            return;
        }
        let alive = match phase {
            Phase::Ready | Phase::Leaving | Phase::Lingering => false,
            _ if total_over => false,
            Phase::Busy => !write_over || self.retry_send(id),
            Phase::Flushing => self.retry_send(id),
        };
        if !alive {
            let limit = if total_over {
                TimeLimit::Total
            } else {
                TimeLimit::Write
            };
            return self.on_timeout(id, phase, limit);
        }
        if phase == Phase::Busy && body_over {
            self.notify_body_timeout(id);
        }
        let mut conns = self.conns.borrow_mut();
        if let Some(conn) = conns.get(id)
            && conn.phase == Phase::Busy
        {
            self.set_busy_deadline(id, conn);
        }
    }

    /// Gives a connection whose time for a request is over a little more of it, once, when input is
    /// there that has not been received. The next request has that chance again: what is remembered
    /// of this one is dropped when the connection is idle.
    fn extend_deadline(&self, id: ConnId) -> bool {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return false;
        };
        let extended = conn.active.as_ref().is_some_and(|active| active.extended);
        let extends = !extended && self.context.driver().has_unread(conn.stream);
        if extends {
            conn.active().extended = true;
            self.set_deadline(id, conn, self.context.now_ms() + EXTENSION_MS);
        }
        extends
    }

    /// Tells the handler that waits for its request's body. It is the one to find that nothing has
    /// come: it may have given up waiting for that, and wait for something else.
    fn notify_body_timeout(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let reader = self.take_reader(id, conn);
            self.set_wait(id, conn, Wait::Body, 0);
            let Some(reader) = reader else { return };
            let active = conn.active();
            // Fewer than it waits for may have come, and be all there is for now.
            active.slow_sender |= active.low_water > 1;
            active.final_poll = true;
            reader
        };
        user::wake(reader);
    }

    /// Notes that the body did not come in time, and which answer is owed for it.
    pub(super) fn body_timeout_error(&self, conn: &mut Conn) -> io::Error {
        conn.machine.close_after_next();
        let active = conn.active();
        active.broken_body = Some(io::ErrorKind::TimedOut);
        active.reject = Some(Reject::new(408, "request body took too long"));
        self.counters.timed_out.count(TimeLimit::Body);
        io::ErrorKind::TimedOut.into()
    }

    fn on_timeout(self: &Rc<Self>, id: ConnId, phase: Phase, limit: TimeLimit) {
        diagnose!(DEBUG, connection = id.token(), phase = phase.name(); "time limit reached");
        let in_head = matches!(phase, Phase::Ready | Phase::Leaving) && {
            let mut conns = self.conns.borrow_mut();
            let active = conns.get(id).and_then(|conn| conn.active.as_ref());
            active.is_some_and(|active| active.input_bytes > 0)
        };
        match phase {
            Phase::Ready | Phase::Leaving if in_head => {
                self.counters.timed_out.count(TimeLimit::Head);
                let reject = Reject::new(408, "request head took too long");
                self.reject_request(id, reject, Outcome::TimedOut);
            }
            // An idle connection, or one that lingered long enough: nobody is owed anything.
            Phase::Lingering => self.close(id, CloseReason::Answered),
            Phase::Ready | Phase::Leaving if self.draining.get() => {
                self.close(id, CloseReason::Drained);
            }
            Phase::Ready | Phase::Leaving => self.close(id, CloseReason::Idle),
            Phase::Busy | Phase::Flushing => {
                self.counters.timed_out.count(limit);
                self.abort(id, CloseReason::TimedOut);
            }
        }
    }
}
