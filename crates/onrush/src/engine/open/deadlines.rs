//! Time limits of connections. Each connection has one deadline and at most one timer. Moving the
//! deadline later is one store; a timer that fires before the deadline is set again.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::Expects;
use crate::engine::open::{OpenConn, OpenConns};
use onrush_rt::user;
use std::task::Waker;

/// How long an idle connection stays open while the server drains, in ms.
pub(in crate::engine) const DRAIN_IDLE_MS: u32 = 200;

/// How long a new connection may take to send its first request while the server drains, in ms. Its
/// client has nothing else to do. A first packet that is lost is sent again after a second.
const DRAIN_FIRST_MS: u32 = 1_500;

/// What a task waits for the client to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Wait {
    /// Send more of a request body.
    Body,
    /// Read more of a response.
    Write,
}

/// The time limit of a connection whose response was sent and whose client sends the rest of the
/// body too slowly: it can be closed.
const CLOSE_SOON_MS: u32 = 1;

/// The extension of an expired head or idle time limit when the kernel holds unread input, in ms.
/// The worker was away and has to process that input first.
const EXTENSION_MS: u64 = 1_000;

impl OpenConns {
    /// As [`OpenConn::set_timeout`].
    #[inline]
    pub(in crate::engine) fn set_timeout(&self, id: ConnId, conn: &mut Conn, limit_ms: u32) {
        let deadline = match limit_ms {
            0 => u64::MAX,
            ms => self.context.now_ms() + u64::from(ms),
        };
        self.set_deadline(id, conn, deadline);
    }

    #[inline]
    fn set_deadline(&self, id: ConnId, conn: &mut Conn, deadline_ms: u64) {
        let active = conn.active.as_ref();
        let total = active.and_then(|active| active.exchange.total_deadline_ms);
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

    /// Limits the time in which the client takes what was sent to `limit_ms` from now; 0 for no
    /// limit.
    pub(in crate::engine) fn set_write_timeout(&self, id: ConnId, limit_ms: u32) {
        if let Some(mut conn) = self.open(id) {
            conn.set_wait_timeout(Wait::Write, limit_ms);
        }
    }

    /// Ends the wait for body bytes and wakes the reader.
    pub(in crate::engine) fn clear_body_reader(&self, id: ConnId) {
        let reader = self.open(id).and_then(|mut conn| conn.take_reader());
        if let Some(reader) = reader {
            user::wake(reader); // The reader may live on in the response.
        }
    }

    /// Wakes the reader of a body whose time limit has expired. The reader itself finds out whether
    /// bytes have arrived, because its task may have stopped waiting for the body.
    pub(in crate::engine) fn notify_body_timeout(&self, id: ConnId) {
        let expire = |mut conn: OpenConn<'_>| conn.expire_body_wait();
        if let Some(reader) = self.open(id).and_then(expire) {
            user::wake(reader);
        }
    }
}

impl OpenConn<'_> {
    /// Sets the deadline of the connection to `limit_ms` from now; 0 for no limit.
    #[inline]
    pub(in crate::engine) fn set_timeout(&mut self, limit_ms: u32) {
        self.all.set_timeout(self.id, &mut self.conn, limit_ms);
    }

    #[inline]
    pub(in crate::engine) fn set_deadline(&mut self, deadline_ms: u64) {
        (self.all).set_deadline(self.id, &mut self.conn, deadline_ms);
    }

    /// Sets the time limit for what a connection begins with.
    pub(in crate::engine) fn set_first_timeout(&mut self) {
        self.set_timeout(match self.all.shutdown.ends(self) {
            true => DRAIN_FIRST_MS,
            false => self.all.limits.get().head_timeout_ms,
        });
    }

    /// Whether the deadline of a connection has passed, whose timer has fired. Otherwise starts the
    /// timer again.
    pub(in crate::engine) fn has_expired(&mut self) -> bool {
        (self.timer, self.timer_ms) = (None, u64::MAX);
        let is_later = self.deadline_ms > self.all.context.now_ms();
        if is_later && self.deadline_ms != u64::MAX {
            self.all.start_timer(self.id, &mut self.conn);
        }
        !is_later
    }

    /// Limits a task's wait for the client to `limit_ms` from now. 0 means that the wait has ended,
    /// or that it has no limit.
    pub(in crate::engine) fn set_wait_timeout(&mut self, wait: Wait, limit_ms: u32) {
        let now_ms = self.all.context.now_ms();
        let deadline = (limit_ms > 0).then(|| now_ms + u64::from(limit_ms));
        let active = self.active();
        let rate_meter = match wait {
            Wait::Body => {
                active.exchange.body_deadline_ms = deadline;
                active.exchange.final_poll &= deadline.is_some();
                &mut active.exchange.body_rate
            }
            Wait::Write => {
                active.exchange.write_deadline_ms = deadline;
                &mut active.exchange.write_rate
            }
        };
        if limit_ms == 0 {
            rate_meter.end_wait(now_ms);
        }
        if self.state.is_busy() {
            self.set_busy_deadline();
        } else if let Some(deadline_ms) = deadline.filter(|_| self.state.has_streams()) {
            self.note_deadline(deadline_ms);
        }
    }

    /// The time limit for a client to take what was sent, in ms; 0 for none.
    pub(in crate::engine) fn write_timeout_ms(&self) -> u32 {
        self.all.limits.get().write_timeout_ms
    }

    /// Begins or continues a wait for the client, during which its rate is measured. Returns
    /// whether the client is fast enough (`Limits::rate_bytes_per_s_min`).
    pub(in crate::engine) fn begin_measured_wait(&mut self, wait: Wait) -> bool {
        let (all, response_count) = (self.all, self.response_count);
        let active = self.active();
        let rate_meter = match wait {
            Wait::Body => &mut active.exchange.body_rate,
            Wait::Write => &mut active.exchange.write_rate,
        };
        rate_meter.start_wait(response_count, all.context.now_ms(), &all.limits.get())
    }

    /// The deadline while the server drains, of a connection that waits for a request and has the
    /// deadline `deadline_ms` otherwise. A request may be on its way.
    pub(in crate::engine) fn drain_deadline_ms(&self, deadline_ms: u64) -> u64 {
        let idle_ms = self.all.context.now_ms() + u64::from(DRAIN_IDLE_MS);
        let head_timeout_ms = u64::from(self.all.limits.get().head_timeout_ms);
        let end_ms = match self.state.expects() {
            Expects::Head if head_timeout_ms > 0 => {
                let opened_ms = deadline_ms.saturating_sub(head_timeout_ms);
                idle_ms.max(opened_ms.saturating_add(u64::from(DRAIN_FIRST_MS)))
            }
            _ => idle_ms,
        };
        deadline_ms.min(end_ms)
    }

    pub(in crate::engine) fn set_busy_deadline(&mut self) {
        let active = self.active();
        let waits = [
            active.exchange.body_deadline_ms,
            active.exchange.write_deadline_ms,
        ];
        let first = waits.into_iter().flatten().min();
        self.set_deadline(first.unwrap_or(u64::MAX));
    }

    /// Takes the waker of the body's reader, to wake it. The time limit starts again when the
    /// reader waits again.
    pub(in crate::engine) fn take_reader(&mut self) -> Option<Waker> {
        let reader = self.active.as_mut()?.exchange.reader.take()?;
        self.set_wait_timeout(Wait::Body, 0);
        Some(reader)
    }

    /// Ends a wait for body bytes that has taken too long. Returns the reader.
    fn expire_body_wait(&mut self) -> Option<Waker> {
        let reader = self.take_reader();
        self.set_wait_timeout(Wait::Body, 0);
        let reader = reader?;
        let active = self.active();
        // The socket may hold fewer bytes than the reader waits for.
        active.exchange.slow_sender |= active.wire.low_water > 1;
        active.exchange.final_poll = true;
        Some(reader)
    }

    /// Extends the time limit of a connection that waits for a request, once, if the kernel holds
    /// unread input. The next request may have an extension again, because
    /// [`Active`](crate::engine::connection::Active) is dropped when the connection becomes idle.
    pub(in crate::engine) fn extend_deadline(&mut self) -> bool {
        let active = self.active.as_ref();
        let is_extended = active.is_some_and(|active| active.wire.extended);
        let context = &self.all.context;
        let extends = !is_extended && context.driver().has_unread(self.stream);
        if extends {
            self.active().wire.extended = true;
            self.set_deadline(context.now_ms() + EXTENSION_MS);
        }
        extends
    }

    /// Sets the deadline of a connection that waits for its next request or for the rest of a body.
    pub(in crate::engine) fn set_idle_deadline(&mut self) {
        let limits = self.all.limits.get();
        let limit_ms = match self.state.expects() {
            _ if self.all.shutdown.ends(self) => DRAIN_IDLE_MS,
            Expects::Request | Expects::Head | Expects::Handshake | Expects::Nothing => {
                limits.idle_timeout_ms
            }
            Expects::RestOfBody => match self.begin_measured_wait(Wait::Body) {
                true => limits.body_timeout_ms,
                false => CLOSE_SOON_MS,
            },
        };
        self.set_timeout(limit_ms);
    }
}
