//! How a connection begins to speak HTTP/2, what is due when a time limit expires, and how it ends.

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::Responding;
use crate::engine::connection::http2::{Drain, Http2};
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::Engine;
use crate::engine::open::OpenConn;
use crate::engine::open::deadlines::DRAIN_IDLE_MS;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_proto::http2::connection::Fatal;
use onrush_proto::http2::frame::ErrorCode;
use onrush_rt::{diagnose, user};
use std::rc::Rc;

/// How long a draining connection with open streams says nothing, in ms. Requests that begin later
/// make it say that it ends.
const QUIET_MS: u64 = 5_000;

/// What has expired of a connection itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expired {
    Write,
    Input,
    Settings,
    Idle,
    Drain,
}

/// What has expired of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpiredStream {
    Total,
    Body,
    Write,
    Rest,
}

impl Engine {
    /// Continues a connection with HTTP/2, whose preface was not processed.
    pub(in crate::engine) fn begin_streams(self: &Rc<Self>, id: ConnId) {
        self.start_output();
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        diagnose!(DEBUG, connection = id.token(); "the connection speaks HTTP/2");
        let limits = self.limits();
        let deadline_ms = self.context.now_ms() + u64::from(limits.head_timeout_ms);
        let deadline_ms = (limits.head_timeout_ms > 0).then_some(deadline_ms);
        let mut http2 = Box::<Http2>::default();
        http2.input_deadline_ms = deadline_ms;
        http2.settings_deadline_ms = deadline_ms;
        if self.settings.extended_connect {
            http2.machine.allow_extended_connect();
        }
        http2.machine.begin(&limits, &mut http2.out);
        conn.unlist();
        conn.state.begin_streams(id);
        conn.active().http2 = Some(http2);
        conn.set_deadline(deadline_ms.unwrap_or(u64::MAX));
        conn.note_due();
        if self.conns.shutdown.has_begun() {
            conn.begin_drain(self.context.now_ms());
        }
    }

    /// Handles the half-close of a client, when all that it sent before was processed: no further
    /// request comes, and no further window.
    pub(in crate::engine) fn end_of_streams(self: &Rc<Self>, id: ConnId) {
        let (dropped, readers) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if conn.has_queued_input() {
                return; // `resume_frames` finds it.
            }
            let half_close = self.settings.half_close;
            let Some(http2) = conn.http2() else { return };
            http2.ends = true;
            let mut readers = Vec::new();
            let mut dropped = Vec::new();
            for slot in &mut http2.slots {
                let may_read = half_close || slot.exchange.responding == Responding::Known;
                match may_read && slot.rest.is_none() {
                    true => readers.extend(slot.exchange.reader.take()),
                    false => dropped.push(slot.stream),
                }
            }
            conn.note_due();
            (dropped, readers)
        };
        for stream in dropped {
            self.leave_stream(id, stream, CloseReason::Client);
        }
        readers.into_iter().for_each(user::wake);
    }

    /// Ends a connection after a violation, or for another `reason`: its last frame says so.
    pub(super) fn fail_streams(self: &Rc<Self>, id: ConnId, fatal: Fatal, reason: CloseReason) {
        diagnose!(DEBUG, connection = id.token(), code = fatal.code.0, reason = fatal.reason;
            "the connection fails (GOAWAY)");
        if let Some(mut conn) = self.conns.open(id)
            && let Some(http2) = conn.http2()
        {
            http2.failed = Some(reason);
        }
        let Some(out) = self.drop_slots(id, CloseReason::Client) else {
            return;
        };
        self.send_then(id, &out, AfterFlush::Linger);
    }

    /// Cancels all requests of a connection. Returns the frames that were not sent.
    pub(in crate::engine) fn drop_slots(&self, id: ConnId, reason: CloseReason) -> Option<Vec<u8>> {
        let (slots, out) = {
            let mut conn = self.conns.open(id)?;
            let http2 = conn.http2()?;
            http2.ends = true;
            (http2.take_slots(), std::mem::take(&mut http2.out))
        };
        for slot in slots {
            self.drop_slot(slot, reason);
        }
        Some(out)
    }

    /// Lists what a connection has received of a frame, and evicts connections if memory is short.
    pub(in crate::engine) fn watch_input(self: &Rc<Self>, id: ConnId) {
        if let Some(mut conn) = self.conns.open(id) {
            conn.watch_input();
        }
        self.reclaim_memory();
    }

    /// Handles what is due when the timer of a connection has fired.
    pub(in crate::engine) fn expire_streams(self: &Rc<Self>, id: ConnId) {
        let (expired, streams) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.expired(self.context.now_ms())
        };
        for (stream, what) in streams {
            let request = RequestId::of_stream(id, stream);
            self.expire_stream(request, what);
        }
        match expired {
            None => {}
            Some(Expired::Write) if self.retry_send(id) => {}
            Some(Expired::Write) => {
                self.counters.timed_out.count(TimeLimit::Write);
                return self.abort(id, CloseReason::TimedOut);
            }
            Some(Expired::Input) => {
                self.counters.timed_out.count(TimeLimit::Head);
                return self.fail_with(id, ErrorCode::ENHANCE_YOUR_CALM, "a frame took too long");
            }
            Some(Expired::Settings) => {
                let reason = "the settings were not acknowledged";
                return self.fail_with(id, ErrorCode::SETTINGS_TIMEOUT, reason);
            }
            Some(Expired::Idle) => return self.close_idle_streams(id),
            Some(Expired::Drain) => {
                if let Some(mut conn) = self.conns.open(id) {
                    conn.continue_drain(self.context.now_ms());
                }
            }
        }
        if let Some(mut conn) = self.conns.open(id) {
            let next_ms = conn.next_deadline_ms();
            conn.set_deadline(next_ms.unwrap_or(u64::MAX));
        }
    }

    fn expire_stream(self: &Rc<Self>, request: RequestId, what: ExpiredStream) {
        let limit = match what {
            ExpiredStream::Rest => return self.end_rest(request.connection, request.number),
            ExpiredStream::Body => {
                let reader = {
                    let Some(mut stream) = self.conns.stream(request) else {
                        return;
                    };
                    let exchange = &mut stream.slot().exchange;
                    (exchange.body_deadline_ms, exchange.final_poll) = (None, true);
                    exchange.reader.take()
                };
                return reader.into_iter().for_each(user::wake);
            }
            ExpiredStream::Total => TimeLimit::Total,
            ExpiredStream::Write => TimeLimit::Write,
        };
        self.counters.timed_out.count(limit);
        self.reset_stream(request, ErrorCode::CANCEL, CloseReason::TimedOut);
    }

    /// Ends a connection that has taken too long.
    fn fail_with(self: &Rc<Self>, id: ConnId, code: ErrorCode, reason: &'static str) {
        if let Some(mut conn) = self.conns.open(id)
            && let Some(http2) = conn.http2()
        {
            http2.machine.fail(Fatal { code, reason }, &mut http2.out);
        }
        self.fail_streams(id, Fatal { code, reason }, CloseReason::TimedOut);
    }

    /// Ends a connection on which nothing has happened for long.
    fn close_idle_streams(self: &Rc<Self>, id: ConnId) {
        if let Some(mut conn) = self.conns.open(id)
            && let Some(http2) = conn.http2()
        {
            http2.machine.end(&mut http2.out);
        }
        self.send_frames(id);
        self.close(id, CloseReason::Idle);
    }
}

impl OpenConn<'_> {
    /// Begins to end a connection. The client is told when no stream is open: many clients take a
    /// GOAWAY for a failure of what they wait for. One whose streams overlap without end is told
    /// after [`QUIET_MS`].
    pub(in crate::engine) fn begin_drain(&mut self, now_ms: u64) {
        let deadline_ms = now_ms + u64::from(DRAIN_IDLE_MS);
        let Some(http2) = self.http2() else { return };
        http2.drain = Drain::Quiet(now_ms + QUIET_MS);
        http2.drain_deadline_ms = Some(deadline_ms);
        self.note_deadline(deadline_ms);
    }

    /// Tells the client that the connection ends soon. What it sends until it has heard so is
    /// served (RFC 9113 §6.8).
    fn announce_drain(&mut self, now_ms: u64) {
        let deadline_ms = now_ms + u64::from(DRAIN_IDLE_MS);
        let Some(http2) = self.http2() else { return };
        http2.machine.announce_end(&mut http2.out);
        http2.drain = Drain::Announced;
        http2.drain_deadline_ms = Some(deadline_ms);
        self.note_deadline(deadline_ms);
    }

    /// Tells the client that the connection ends if no stream is open any more, so that it hears
    /// so with the end of its last response.
    pub(super) fn announce_drain_if_idle(&mut self, now_ms: u64) {
        if let Some(http2) = self.http2()
            && matches!(http2.drain, Drain::Quiet(_))
            && http2.slots.is_empty()
        {
            self.announce_drain(now_ms);
        }
    }

    /// Tells the client that the connection ends if it still begins requests long after the server
    /// has begun to drain.
    pub(super) fn announce_drain_if_busy(&mut self, now_ms: u64) {
        if let Some(http2) = self.http2()
            && matches!(http2.drain, Drain::Quiet(until_ms) if until_ms <= now_ms)
        {
            self.announce_drain(now_ms);
            self.note_due();
        }
    }

    /// Goes on with the end of a connection when its time has come.
    fn continue_drain(&mut self, now_ms: u64) {
        let Some(http2) = self.http2() else { return };
        http2.drain_deadline_ms = None;
        match http2.drain {
            Drain::Announced => self.end_drain(),
            _ if http2.slots.is_empty() => {
                self.announce_drain(now_ms);
                self.note_due();
            }
            _ => {} // The end of the last stream is next.
        }
    }

    /// Serves the streams that have begun, and no more.
    pub(in crate::engine) fn end_drain(&mut self) {
        let Some(http2) = self.http2() else { return };
        http2.machine.end(&mut http2.out);
        http2.ends = true;
        self.note_due();
    }

    /// When something is due next, in ms.
    fn next_deadline_ms(&mut self) -> Option<u64> {
        let of_output = self.active().exchange.write_deadline_ms;
        let of_streams = self.http2().and_then(|http2| http2.next_deadline_ms());
        of_output.into_iter().chain(of_streams).min()
    }

    /// What has expired of the connection, and of its streams.
    fn expired(&mut self, now_ms: u64) -> (Option<Expired>, Vec<(u32, ExpiredStream)>) {
        let is_over = |deadline_ms: Option<u64>| deadline_ms.is_some_and(|due_ms| due_ms <= now_ms);
        let write_over = is_over(self.active().exchange.write_deadline_ms);
        let write_ms = u64::from(self.write_timeout_ms());
        let has_unsent = self.unsent_len() > 0;
        let Some(http2) = self.http2() else {
            return (None, Vec::new());
        };
        let mut streams = Vec::new();
        for slot in &mut http2.slots {
            let exchange = &mut slot.exchange;
            if is_over(exchange.total_deadline_ms) {
                streams.push((slot.stream, ExpiredStream::Total));
            } else if is_over(slot.rest.map(|rest| rest.deadline_ms)) {
                streams.push((slot.stream, ExpiredStream::Rest));
            } else if is_over(exchange.body_deadline_ms) {
                streams.push((slot.stream, ExpiredStream::Body));
            } else if is_over(exchange.write_deadline_ms) {
                // One that waits for its turn, or for the window that all share, is not slow as
                // long as others go on.
                let is_slow = http2.machine.is_window_used_up(slot.stream)
                    || (http2.machine.room(slot.stream) == 0 && http2.sent_ms + write_ms <= now_ms);
                match is_slow {
                    true => streams.push((slot.stream, ExpiredStream::Write)),
                    false => exchange.write_deadline_ms = Some(now_ms + write_ms),
                }
            }
        }
        if is_over(http2.idle_deadline_ms) && !http2.is_idle() {
            http2.idle_deadline_ms = None; // It begins again when all was sent.
        }
        if is_over(http2.settings_deadline_ms) {
            // A client that has not taken them has the time limit for that.
            let awaits = http2.machine.awaits_settings();
            let later = (awaits && has_unsent).then_some(now_ms + write_ms.max(1_000));
            http2.settings_deadline_ms = http2.settings_deadline_ms.filter(|_| awaits);
            http2.settings_deadline_ms = later.or(http2.settings_deadline_ms);
        }
        let expired = match http2 {
            _ if write_over => Expired::Write,
            http2 if is_over(http2.input_deadline_ms) => Expired::Input,
            http2 if is_over(http2.settings_deadline_ms) => Expired::Settings,
            http2 if is_over(http2.drain_deadline_ms) => Expired::Drain,
            http2 if is_over(http2.idle_deadline_ms) => Expired::Idle,
            _ => return (None, streams),
        };
        (Some(expired), streams)
    }
}
