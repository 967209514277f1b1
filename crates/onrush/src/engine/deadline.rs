//! Time limits of connections. Each connection has one deadline and at most one timer. Moving the
//! deadline later is one store; a timer that fires before the deadline is set again.

use super::Engine;
use super::connection::{Active, Conn};
use super::state::{Expects, Phase};
use crate::host::ConnId;
use crate::log::Outcome;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_proto::limits::Limits;
use onrush_proto::reject::Reject;
use onrush_rt::worker::WorkerContext;
use onrush_rt::{diagnose, user};
use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

/// How long an idle connection stays open while the server drains, in ms.
pub(super) const DRAIN_IDLE_MS: u32 = 200;

/// How long a new connection may take to send its first request while the server drains, in ms. Its
/// client has nothing else to do. A first packet that is lost is sent again after a second.
pub(super) const DRAIN_FIRST_MS: u32 = 1_500;

/// The extension of an expired head or idle time limit when the kernel holds unread input, in ms.
/// The worker was away and has to process that input first.
const EXTENSION_MS: u64 = 1_000;

/// What a task waits for the client to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Send more of a request body.
    Body,
    /// Read more of a response.
    Write,
}

/// Sets the deadlines of the connections of one worker.
pub(super) struct Deadlines {
    context: WorkerContext,
    limits: Rc<Cell<Limits>>,
}

impl Deadlines {
    pub(super) fn new(context: &WorkerContext, limits: &Rc<Cell<Limits>>) -> Deadlines {
        Deadlines {
            context: context.clone(),
            limits: limits.clone(),
        }
    }

    /// Sets the deadline of the connection to `limit_ms` from now; 0 for no limit.
    #[inline]
    pub(super) fn set_timeout(&self, id: ConnId, conn: &mut Conn, limit_ms: u32) {
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
            .and_then(|active| active.exchange.total_deadline_ms);
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

    /// Limits a task's wait for the client to `limit_ms` from now. 0 means that the wait has ended,
    /// or that it has no limit.
    pub(super) fn set_wait_timeout(&self, id: ConnId, conn: &mut Conn, wait: Wait, limit_ms: u32) {
        let now_ms = self.context.now_ms();
        let deadline = (limit_ms > 0).then(|| now_ms + u64::from(limit_ms));
        let active = conn.active();
        let rate_meter = match wait {
            Wait::Body => {
                active.exchange.body_deadline_ms = deadline;
                active.exchange.final_poll &= deadline.is_some();
                &mut active.exchange.body_rate
            }
            Wait::Write => {
                active.wire.write_deadline_ms = deadline;
                &mut active.wire.write_rate
            }
        };
        if limit_ms == 0 {
            rate_meter.end_wait(now_ms);
        }
        if conn.state.is_busy() {
            self.set_busy_deadline(id, conn);
        }
    }

    /// Begins or continues a wait for the client, during which its rate is measured. Returns
    /// whether the client is fast enough ([`Limits::rate_bytes_per_s_min`]).
    pub(super) fn begin_measured_wait(&self, conn: &mut Conn, wait: Wait) -> bool {
        let response_count = conn.response_count;
        let active = conn.active();
        let rate_meter = match wait {
            Wait::Body => &mut active.exchange.body_rate,
            Wait::Write => &mut active.wire.write_rate,
        };
        rate_meter.start_wait(response_count, self.context.now_ms(), &self.limits.get())
    }

    /// The deadline while the server drains, of a connection that waits for a request and has the
    /// deadline `deadline_ms` otherwise. A request may be on its way.
    pub(super) fn drain_deadline_ms(&self, conn: &Conn, deadline_ms: u64) -> u64 {
        let idle_ms = self.context.now_ms() + u64::from(DRAIN_IDLE_MS);
        let head_timeout_ms = u64::from(self.limits.get().head_timeout_ms);
        let end_ms = match conn.state.expects() {
            Expects::Head if head_timeout_ms > 0 => {
                let opened_ms = deadline_ms.saturating_sub(head_timeout_ms);
                idle_ms.max(opened_ms.saturating_add(u64::from(DRAIN_FIRST_MS)))
            }
            _ => idle_ms,
        };
        deadline_ms.min(end_ms)
    }

    pub(super) fn set_busy_deadline(&self, id: ConnId, conn: &mut Conn) {
        let active = conn.active();
        let waits = [
            active.exchange.body_deadline_ms,
            active.wire.write_deadline_ms,
        ];
        let first = waits.into_iter().flatten().min();
        self.set_deadline(id, conn, first.unwrap_or(u64::MAX));
    }

    /// Takes the waker of the body's reader, to wake it. The time limit starts again when the
    /// reader waits again.
    pub(super) fn take_reader(&self, id: ConnId, conn: &mut Conn) -> Option<Waker> {
        let reader = conn.active.as_mut()?.exchange.reader.take()?;
        self.set_wait_timeout(id, conn, Wait::Body, 0);
        Some(reader)
    }
}

impl Engine {
    /// Limits the time in which the client takes what was sent to `limit_ms` from now; 0 for no
    /// limit.
    pub(super) fn set_write_timeout(&self, id: ConnId, limit_ms: u32) {
        if let Some(conn) = self.conns.borrow_mut().get(id) {
            self.deadlines
                .set_wait_timeout(id, conn, Wait::Write, limit_ms);
        }
    }

    /// Ends the wait for body bytes and wakes the reader.
    pub(super) fn clear_body_reader(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            conns
                .get(id)
                .and_then(|conn| self.deadlines.take_reader(id, conn))
        };
        if let Some(reader) = reader {
            user::wake(reader); // The reader may live on in the response.
        }
    }

    pub(super) fn timer_fired(self: &Rc<Self>, id: ConnId) {
        let now = self.context.now_ms();
        let (phase, total_over, body_over, write_over) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            (conn.timer, conn.timer_ms) = (None, u64::MAX);
            if conn.deadline_ms > now {
                if conn.deadline_ms != u64::MAX {
                    self.deadlines.start_timer(id, conn);
                }
                return;
            }
            let over = |deadline: fn(&Active) -> Option<u64>| {
                let deadline = conn.active.as_deref().and_then(deadline);
                deadline.is_some_and(|deadline| deadline <= now)
            };
            (
                conn.state.phase(),
                over(|active| active.exchange.total_deadline_ms),
                over(|active| active.exchange.body_deadline_ms),
                over(|active| active.wire.write_deadline_ms),
            )
        };
        let is_between = matches!(phase, Phase::ProxyHeader | Phase::Ready | Phase::Leaving);
        if is_between && self.extend_deadline(id) {
            return;
        }
        let alive = match phase {
            Phase::ProxyHeader | Phase::Ready | Phase::Leaving | Phase::Lingering => false,
            _ if total_over => false,
            Phase::Busy => !write_over || self.retry_send(id),
            Phase::Flushing(_) => self.retry_send(id),
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
            && conn.state.is_busy()
        {
            self.deadlines.set_busy_deadline(id, conn);
        }
    }

    /// Extends the time limit of a connection that waits for a request, once, if the kernel holds
    /// unread input. The next request may have an extension again, because [`Active`] is dropped
    /// when the connection becomes idle.
    fn extend_deadline(&self, id: ConnId) -> bool {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return false;
        };
        let extended = conn
            .active
            .as_ref()
            .is_some_and(|active| active.wire.extended);
        let extends = !extended && self.context.driver().has_unread(conn.stream);
        if extends {
            conn.active().wire.extended = true;
            self.deadlines
                .set_deadline(id, conn, self.context.now_ms() + EXTENSION_MS);
        }
        extends
    }

    /// Wakes the reader of a body whose time limit has expired. The reader itself finds out whether
    /// bytes have arrived, because its task may have stopped waiting for the body.
    fn notify_body_timeout(&self, id: ConnId) {
        let reader = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let reader = self.deadlines.take_reader(id, conn);
            self.deadlines.set_wait_timeout(id, conn, Wait::Body, 0);
            let Some(reader) = reader else { return };
            let active = conn.active();
            // The socket may hold fewer bytes than the reader waits for.
            active.exchange.slow_sender |= active.wire.low_water > 1;
            active.exchange.final_poll = true;
            reader
        };
        user::wake(reader);
    }

    fn on_timeout(self: &Rc<Self>, id: ConnId, phase: Phase, limit: TimeLimit) {
        diagnose!(DEBUG, connection = id.token(), phase = phase.name(); "time limit reached");
        let is_handshaking = |conn: &mut Conn| conn.state.is_handshaking();
        let handshaking = self.conns.borrow_mut().get(id).is_some_and(is_handshaking);
        if handshaking {
            return self.on_handshake_timeout(id);
        }
        let has_partial_head = matches!(phase, Phase::Ready | Phase::Leaving) && {
            let mut conns = self.conns.borrow_mut();
            (conns.get(id)).is_some_and(|conn| conn.unprocessed_bytes() > 0)
        };
        match phase {
            Phase::Ready | Phase::Leaving if has_partial_head => {
                self.counters.timed_out.count(TimeLimit::Head);
                let reject = Reject::new(408, "request head took too long");
                self.reject_request(id, reject, Outcome::TimedOut);
            }
            Phase::ProxyHeader => self.on_proxy_header_timeout(id),
            // An idle connection, or one that has lingered long enough, receives no response.
            Phase::Lingering => self.close(id, CloseReason::Complete),
            Phase::Ready | Phase::Leaving if self.shutdown.has_begun() => {
                self.close(id, CloseReason::Drained);
            }
            Phase::Ready | Phase::Leaving => self.close(id, CloseReason::Idle),
            Phase::Busy | Phase::Flushing(_) => {
                self.counters.timed_out.count(limit);
                self.abort(id, CloseReason::TimedOut);
            }
        }
    }
}
