//! Sends rendered responses of a connection: tries at once, and queues what the socket does not
//! accept until it becomes writable.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Phase};
use crate::engine::open::deadlines::Wait;
use crate::engine::open::{OpenConn, Shared};
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::TimeLimit;
use onrush_proto::connection::After;
use std::io;

impl Shared {
    /// Sends `out` and queues what the kernel does not accept.
    pub(in crate::engine) fn send_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conn = self.open(id).ok_or_else(connection_gone)?;
        self.io.send_or_queue(&mut conn, out)
    }

    /// [`Shared::send_or_queue`] for the last bytes of a connection.
    pub(in crate::engine) fn send_last_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conn = self.open(id).ok_or_else(connection_gone)?;
        self.io.send_last_or_queue(&mut conn, out)
    }

    /// Sends the queued bytes. Fails with `TimedOut` if the client reads too slowly.
    pub(in crate::engine) fn send_queued(&self, id: ConnId) -> io::Result<Sent> {
        self.open(id).ok_or_else(connection_gone)?.send_queued()
    }

    /// Whether a response is the last one of its connection while the server drains: no request was
    /// pipelined behind it before the drain began.
    #[cold]
    pub(in crate::engine) fn is_last(&self, id: ConnId, conn: &Conn, behind: usize) -> bool {
        let received = (behind + conn.input_bytes()) as u64;
        let is_behind = match conn.machine.body_ended() {
            true => {
                received > 0
                    || conn.transport.is_delivering()
                    || conn.transport.received_len() > 0
                    || self.context.driver().has_unread(conn.stream)
            }
            // The rest of this request's body precedes the next request. Its length must be known,
            // and all of it received.
            false => (conn.machine.body_remaining()).is_some_and(|rest| received > rest),
        };
        !self.shutdown.count_request(id) || !is_behind
    }

    /// Ends the present request after its response; returns what follows. Its body can no longer be
    /// read.
    #[inline]
    pub(in crate::engine) fn finish_request(&self, conn: &mut Conn) -> After {
        if self.io.measurements.are_on() {
            self.io.measurements.end(conn);
        }
        conn.response_count = conn.response_count.wrapping_add(1);
        conn.machine.finish_response()
    }

    /// Counts a client that reads a response too slowly, and returns the error for it.
    pub(in crate::engine) fn record_slow_client(&self) -> io::Error {
        self.counters.timed_out.count(TimeLimit::Write);
        io::ErrorKind::TimedOut.into()
    }
}

impl OpenConn<'_> {
    /// Waits until the client has taken what is queued; `then` follows.
    pub(in crate::engine) fn begin_flush(&mut self, then: AfterFlush) {
        let id = self.id;
        self.state.begin_flush(id, then);
        self.pause_ahead(); // No request can start before this is sent.
        let response_count = self.response_count;
        let wire = &mut self.active().wire;
        wire.write_rate.continue_window(response_count);
        self.begin_measured_wait(Wait::Write);
        self.set_timeout(self.shared.limits.get().write_timeout_ms);
    }

    /// Sends the queued bytes. Fails with `TimedOut` if the client reads too slowly.
    pub(super) fn send_queued(&mut self) -> io::Result<Sent> {
        let (shared, stream) = (self.shared, self.stream);
        let Some(active) = self.active.as_mut() else {
            return Ok(Sent::All);
        };
        if active.wire.unsent().is_empty() {
            return Ok(Sent::All);
        }
        let sent_before = active.wire.out_sent;
        match (shared.context.driver()).send(stream, active.wire.unsent()) {
            Ok(sent) => {
                active.wire.out_sent += sent;
                active.wire.write_rate.record_bytes(sent);
                active.wire.write_rate.end_wait(shared.context.now_ms());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let done = active.wire.unsent().is_empty();
        let accepted = active.wire.out_sent - sent_before;
        let progress = accepted > 0;
        let limit_ms = if done {
            (active.wire.out, active.wire.out_sent) = (Vec::new(), 0);
            0
        } else {
            shared.context.driver().want_write(stream);
            shared.limits.get().write_timeout_ms
        };
        if matches!(self.state.phase(), Phase::Flushing(_)) {
            self.set_timeout(limit_ms);
        } else {
            self.set_wait_timeout(Wait::Write, limit_ms);
        }
        if progress && shared.io.log.is_on() {
            shared.io.log.accepted(self, accepted);
        }
        if !done && !self.begin_measured_wait(Wait::Write) {
            return Err(shared.record_slow_client());
        }
        if progress {
            self.list_unread_anew();
        }
        Ok(if done { Sent::All } else { Sent::Queued })
    }

    /// Shuts down the sending side (`SHUT_WR`) and discards further input, so that the client can
    /// read the response. Closing with unread input would reset the connection, and the reset
    /// may overtake the response.
    pub(in crate::engine) fn begin_linger(&mut self) {
        let (shared, id) = (self.shared, self.id);
        self.unlist();
        self.state.begin_linger(id);
        self.drop_input();
        if let Some(active) = self.active.as_mut() {
            active.exchange.total_deadline_ms = None;
        }
        shared.io.send_close_notify(self);
        shared.context.driver().shutdown_write(self.stream);
        self.resume_receiving();
        self.set_timeout(shared.limits.get().linger_timeout_ms.max(1));
    }
}
