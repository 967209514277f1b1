//! Time limits of connections. Each connection has one deadline and at most one timer. Moving the
//! deadline later is one store; a timer that fires before the deadline is set again.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::Expects;
use onrush_proto::limits::Limits;
use onrush_rt::worker::WorkerContext;
use std::cell::Cell;
use std::task::Waker;

/// How long an idle connection stays open while the server drains, in ms.
pub(in crate::engine) const DRAIN_IDLE_MS: u32 = 200;

/// How long a new connection may take to send its first request while the server drains, in ms. Its
/// client has nothing else to do. A first packet that is lost is sent again after a second.
pub(in crate::engine) const DRAIN_FIRST_MS: u32 = 1_500;

/// What a task waits for the client to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Wait {
    /// Send more of a request body.
    Body,
    /// Read more of a response.
    Write,
}

/// Sets the deadlines of the connections of one worker.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Deadlines<'e> {
    pub(in crate::engine) context: &'e WorkerContext,
    pub(in crate::engine) limits: &'e Cell<Limits>,
}

impl Deadlines<'_> {
    /// Sets the deadline of the connection to `limit_ms` from now; 0 for no limit.
    #[inline]
    pub(in crate::engine) fn set_timeout(&self, id: ConnId, conn: &mut Conn, limit_ms: u32) {
        let deadline = match limit_ms {
            0 => u64::MAX,
            ms => self.context.now_ms() + u64::from(ms),
        };
        self.set_deadline(id, conn, deadline);
    }

    #[inline]
    pub(in crate::engine) fn set_deadline(&self, id: ConnId, conn: &mut Conn, deadline_ms: u64) {
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

    /// Whether the deadline of a connection has passed, whose timer has fired. Otherwise starts the
    /// timer again.
    pub(in crate::engine) fn has_expired(&self, id: ConnId, conn: &mut Conn) -> bool {
        (conn.timer, conn.timer_ms) = (None, u64::MAX);
        let is_later = conn.deadline_ms > self.context.now_ms();
        if is_later && conn.deadline_ms != u64::MAX {
            self.start_timer(id, conn);
        }
        !is_later
    }

    /// Limits a task's wait for the client to `limit_ms` from now. 0 means that the wait has ended,
    /// or that it has no limit.
    pub(in crate::engine) fn set_wait_timeout(
        &self,
        id: ConnId,
        conn: &mut Conn,
        wait: Wait,
        limit_ms: u32,
    ) {
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
    pub(in crate::engine) fn begin_measured_wait(&self, conn: &mut Conn, wait: Wait) -> bool {
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
    pub(in crate::engine) fn drain_deadline_ms(&self, conn: &Conn, deadline_ms: u64) -> u64 {
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

    pub(in crate::engine) fn set_busy_deadline(&self, id: ConnId, conn: &mut Conn) {
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
    pub(in crate::engine) fn take_reader(&self, id: ConnId, conn: &mut Conn) -> Option<Waker> {
        let reader = conn.active.as_mut()?.exchange.reader.take()?;
        self.set_wait_timeout(id, conn, Wait::Body, 0);
        Some(reader)
    }
}
