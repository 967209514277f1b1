//! Sends rendered responses: tries at once, queues what the socket does not accept, and sends the
//! rest when the socket becomes writable. `poll_send` has the sends of tasks.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Phase};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::deadlines::Wait;
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::{CloseReason, TimeLimit};
use onrush_rt::user;
use std::io;
use std::rc::Rc;

impl Engine {
    /// Sends `out` behind the bytes that are already queued, and performs `then` when all of it has
    /// been sent. Returns `true` only if everything was sent and the connection continues. With
    /// `AfterFlush::Close` and `AfterFlush::Linger` it always returns `false`.
    pub(in crate::engine) fn send_then(
        self: &Rc<Self>,
        id: ConnId,
        out: &[u8],
        then: AfterFlush,
    ) -> bool {
        let sent = match then {
            AfterFlush::Close => self.send_last_or_queue(id, out),
            AfterFlush::Continue | AfterFlush::Linger => self.send_or_queue(id, out),
        };
        self.after_send(id, sent, then)
    }

    /// The part of [`Engine::send_then`] that follows the send.
    #[inline(never)]
    pub(in crate::engine) fn after_send(
        self: &Rc<Self>,
        id: ConnId,
        sent: io::Result<Sent>,
        then: AfterFlush,
    ) -> bool {
        match sent {
            Ok(Sent::All) => match then {
                AfterFlush::Continue => true,
                AfterFlush::Close | AfterFlush::Linger => {
                    self.finish_connection(id, then);
                    false
                }
            },
            Ok(Sent::Queued) => {
                let mut conns = self.conns.borrow_mut();
                if let Some(conn) = conns.get(id) {
                    conn.state.begin_flush(id, then);
                    self.memory.pause_ahead(id, conn); // No request can start before this is sent.
                    let response_count = conn.response_count;
                    conn.active()
                        .wire
                        .write_rate
                        .continue_window(response_count);
                    self.deadlines().begin_measured_wait(conn, Wait::Write);
                    self.deadlines()
                        .set_timeout(id, conn, self.limits().write_timeout_ms);
                }
                conns.list_unread(id);
                false
            }
            Err(_) => {
                self.send_failed(id);
                false
            }
        }
    }

    /// Ends a connection after a send has failed. If the TLS session has failed, its alert is on
    /// its way to the client.
    pub(super) fn send_failed(self: &Rc<Self>, id: ConnId) {
        match self.has_failed(id) {
            true => self.fail_tls(id),
            false => self.close(id, CloseReason::Broken),
        }
    }

    /// Ends a connection whose last response the kernel has accepted. Closing a socket with unread
    /// input resets the connection, and the response could be lost; such a connection lingers
    /// instead.
    fn finish_connection(self: &Rc<Self>, id: ConnId, then: AfterFlush) {
        let unread = |conn: &Conn| {
            conn.unprocessed_bytes() > 0 || self.context.driver().has_unread(conn.stream)
        };
        let lingers = match self.conns.borrow_mut().get(id) {
            Some(conn) => then == AfterFlush::Linger || unread(conn),
            None => return,
        };
        match lingers {
            true => self.linger(id),
            false => self.close(id, CloseReason::Complete),
        }
    }

    /// Sends `out` and queues what the kernel does not accept.
    pub(in crate::engine) fn send_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conns = self.conns.borrow_mut();
        self.io
            .send_or_queue(conns.get(id).ok_or_else(connection_gone)?, out)
    }

    fn send_last_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conns = self.conns.borrow_mut();
        self.io
            .send_last_or_queue(conns.get(id).ok_or_else(connection_gone)?, out)
    }

    /// Counts a client that reads a response too slowly, and returns the error for it.
    pub(super) fn record_slow_client(&self) -> io::Error {
        self.counters.timed_out.count(TimeLimit::Write);
        io::ErrorKind::TimedOut.into()
    }

    /// Sends the queued bytes. Fails with `TimedOut` if the client reads too slowly.
    pub(super) fn send_queued(&self, id: ConnId) -> io::Result<Sent> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        let stream = conn.stream;
        let Some(active) = conn.active.as_mut() else {
            return Ok(Sent::All);
        };
        if active.wire.unsent().is_empty() {
            return Ok(Sent::All);
        }
        let sent_before = active.wire.out_sent;
        match self
            .context
            .driver()
            .send(stream, &active.wire.out[active.wire.out_sent..])
        {
            Ok(sent) => {
                active.wire.out_sent += sent;
                active.wire.write_rate.record_bytes(sent);
                active.wire.write_rate.end_wait(self.context.now_ms());
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
            self.context.driver().want_write(stream);
            self.limits().write_timeout_ms
        };
        if matches!(conn.state.phase(), Phase::Flushing(_)) {
            self.deadlines().set_timeout(id, conn, limit_ms);
        } else {
            self.deadlines()
                .set_wait_timeout(id, conn, Wait::Write, limit_ms);
        }
        if progress && self.io.log.is_on() {
            self.io.log.accepted(conn, accepted);
        }
        if !done && !self.deadlines().begin_measured_wait(conn, Wait::Write) {
            return Err(self.record_slow_client());
        }
        if progress {
            conns.list_unread_anew(id);
        }
        Ok(if done { Sent::All } else { Sent::Queued })
    }

    /// The socket has become writable.
    pub(in crate::engine) fn on_writable(self: &Rc<Self>, id: ConnId) {
        let sent = self.send_queued(id);
        let (writer, then) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let then = match conn.state.phase() {
                Phase::Flushing(then) => Some(then),
                _ => None,
            };
            let Some(active) = conn.active.as_mut() else {
                return;
            };
            match sent {
                Ok(Sent::All) if then.is_some() => (None, then),
                Ok(Sent::All) => (active.exchange.writer.take(), None),
                Ok(Sent::Queued) => return,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    drop(conns);
                    return self.abort(id, CloseReason::TimedOut);
                }
                Err(_) => {
                    drop(conns);
                    return self.close(id, CloseReason::Broken);
                }
            }
        };
        if let Some(writer) = writer {
            return user::wake(writer);
        }
        match then {
            Some(AfterFlush::Continue) => self.resume_reading(id),
            Some(then) => self.finish_connection(id, then),
            None => {}
        }
    }

    /// Called when the write time limit expires. Tries once more to send: the kernel reports
    /// `POLLOUT` only when much of the buffer is free, so a slow client may have read without an
    /// event. Returns `false` if queued bytes were tried and none was accepted. Without queued
    /// bytes, wakes the task that sends, which decides (`last_try`), and returns `true`.
    pub(in crate::engine) fn retry_send(self: &Rc<Self>, id: ConnId) -> bool {
        let unsent = || {
            let mut conns = self.conns.borrow_mut();
            let active = conns.get(id)?.active.as_ref()?;
            Some(active.wire.unsent().len())
        };
        let before = unsent().unwrap_or(0);
        if before > 0 {
            match self.send_queued(id) {
                Ok(Sent::All) => {
                    self.on_writable(id);
                    return true;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.abort(id, CloseReason::TimedOut); // Counted already.
                    return true;
                }
                _ => return unsent().is_some_and(|left| left < before),
            }
        }
        let writer = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else {
                return true;
            };
            self.deadlines().set_wait_timeout(id, conn, Wait::Write, 0);
            let active = conn.active();
            active.wire.last_try = active.exchange.writer.is_some();
            active.exchange.writer.take()
        };
        if let Some(writer) = writer {
            user::wake(writer);
        }
        true
    }

    /// Shuts down the sending side (`SHUT_WR`) and discards further input, so that the client can
    /// read the response. Closing with unread input would reset the connection, and the reset
    /// may overtake the response.
    pub(in crate::engine) fn linger(self: &Rc<Self>, id: ConnId) {
        let (ended, input) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.state.begin_linger(id);
            let ended = conn.state.has_ended();
            let input = conn
                .active
                .as_mut()
                .map(|active| std::mem::take(&mut active.wire.input));
            if let Some(active) = conn.active.as_mut() {
                active.wire.input_bytes = 0;
                active.exchange.total_deadline_ms = None;
            }
            conn.transport.drop_received();
            self.io.send_close_notify(conn);
            self.context.driver().shutdown_write(conn.stream);
            self.io.resume(id, conn);
            self.deadlines()
                .set_timeout(id, conn, self.limits().linger_timeout_ms.max(1));
            conns.unlist(id);
            (ended, input)
        };
        drop(input);
        if ended {
            self.close(id, CloseReason::Complete);
        }
    }
}
