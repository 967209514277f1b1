//! Sends rendered responses of a connection: tries at once, and queues what the socket does not
//! accept until it becomes writable.

use crate::connections::ConnId;
use crate::engine::connection::state::{AfterFlush, Phase};
use crate::engine::open::deadlines::Wait;
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::TimeLimit;
use std::io;

impl OpenConns {
    /// Whether output of a connection is queued.
    pub(in crate::engine) fn has_unsent(&self, id: ConnId) -> bool {
        let has_unsent =
            |conn: OpenConn<'_>| conn.active.as_ref().is_some_and(|it| it.has_unsent());
        self.open(id).is_some_and(has_unsent)
    }

    /// Sends `out` and queues what the kernel does not accept.
    pub(in crate::engine) fn send_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conn = self.open(id).ok_or_else(connection_gone)?;
        self.io.send_or_queue(&mut conn, out)
    }

    /// [`OpenConns::send_or_queue`] for the last bytes of a connection.
    pub(in crate::engine) fn send_last_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conn = self.open(id).ok_or_else(connection_gone)?;
        self.io.send_last_or_queue(&mut conn, out)
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
        let exchange = &mut self.active().exchange;
        exchange.write_rate.continue_window(response_count);
        self.begin_measured_wait(Wait::Write);
        self.set_timeout(self.all.limits.get().write_timeout_ms);
    }

    /// Sends the queued bytes. Fails with `TimedOut` if the client reads too slowly.
    pub(in crate::engine) fn send_queued(&mut self) -> io::Result<Sent> {
        let (all, stream) = (self.all, self.stream);
        let Some(active) = self.active.as_mut() else {
            return Ok(Sent::All);
        };
        if active.wire.unsent().is_empty() {
            return Ok(Sent::All);
        }
        let sent_before = active.wire.out_sent;
        match (all.context.driver()).send(stream, active.wire.unsent()) {
            Ok(sent) => {
                active.wire.out_sent += sent;
                active.exchange.write_rate.record_bytes(sent);
                active.exchange.write_rate.end_wait(all.context.now_ms());
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
            all.context.driver().want_write(stream);
            all.limits.get().write_timeout_ms
        };
        if matches!(self.state.phase(), Phase::Flushing(_)) {
            self.set_timeout(limit_ms);
        } else {
            self.set_wait_timeout(Wait::Write, limit_ms);
        }
        if progress && all.io.log.is_on() {
            all.io.log.accepted(self, accepted);
        }
        if !done && !self.begin_measured_wait(Wait::Write) {
            return Err(all.record_slow_client());
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
        let (all, id) = (self.all, self.id);
        self.unlist();
        self.state.begin_linger(id);
        self.drop_input();
        if let Some(active) = self.active.as_mut() {
            active.exchange.total_deadline_ms = None;
        }
        all.io.send_close_notify(self);
        all.context.driver().shutdown_write(self.stream);
        self.resume_receiving();
        self.set_timeout(all.limits.get().linger_timeout_ms.max(1));
    }
}
