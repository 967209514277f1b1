//! Sends rendered responses: tries at once, queues what the socket does not accept, and sends the
//! rest when the socket becomes writable. `poll_send` has the sends of tasks.

use super::Engine;
use super::connection::Conn;
use super::deadline::Wait;
use super::state::{AfterFlush, Phase};
use super::transport::Output;
use crate::host::ConnId;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_rt::user;
use std::io::{self, IoSlice};
use std::rc::Rc;

/// The result of a send that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel has accepted all of them.
    All,
    /// Bytes are queued until the socket is writable.
    Queued,
}

/// The error for a connection that is gone.
#[cold]
pub(super) fn connection_gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl Engine {
    /// Sends `out` behind the bytes that are already queued, and performs `then` when all of it has
    /// been sent. Returns `true` only if everything was sent and the connection continues. With
    /// `AfterFlush::Close` and `AfterFlush::Linger` it always returns `false`.
    pub(super) fn send_then(self: &Rc<Self>, id: ConnId, out: &[u8], then: AfterFlush) -> bool {
        let sent = match then {
            AfterFlush::Close => self.send_last_or_queue(id, out),
            AfterFlush::Continue | AfterFlush::Linger => self.send_or_queue(id, out),
        };
        self.after_send(id, sent, then)
    }

    /// The part of [`Engine::send_then`] that follows the send.
    #[inline(never)]
    pub(super) fn after_send(
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
                    self.deadlines.begin_measured_wait(conn, Wait::Write);
                    self.deadlines
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

    /// Sends without waiting; returns the number of bytes taken. `WouldBlock`: none, because the
    /// socket buffer is full. Nothing else may be queued in the connection.
    ///
    /// With TLS, the records of the bytes taken may be queued. The engine requests a `Writable`
    /// event for them.
    #[inline]
    pub(super) fn send_output(&self, conn: &mut Conn, output: Output<'_>) -> io::Result<usize> {
        if conn.transport.is_tls() {
            return self.send_encrypted(conn, output);
        }
        let (mut driver, stream) = (self.context.driver(), conn.stream);
        match output {
            Output::Bytes(bytes) => driver.send(stream, bytes),
            Output::BytesAndMore(bytes) => driver.send_more(stream, bytes),
            Output::Both(first, second) => {
                driver.send_vectored(stream, &[IoSlice::new(first), IoSlice::new(second)])
            }
            Output::File(file, offset, bytes) => driver.send_file(stream, file, offset, bytes),
        }
    }

    /// Sends `out` and queues what the kernel does not accept.
    pub(super) fn send_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conns = self.conns.borrow_mut();
        self.send_or_queue_conn(conns.get(id).ok_or_else(connection_gone)?, out)
    }

    /// [`Engine::send_or_queue`] for the last bytes of a connection. They leave in one segment with
    /// the FIN, which saves the client a wake-up and both sides a packet.
    fn send_last_or_queue(&self, id: ConnId, out: &[u8]) -> io::Result<Sent> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        self.send_with::<true>(conn, out)
    }

    /// [`Engine::send_or_queue`] for a borrowed connection.
    #[inline]
    pub(super) fn send_or_queue_conn(&self, conn: &mut Conn, out: &[u8]) -> io::Result<Sent> {
        self.send_with::<false>(conn, out)
    }

    #[inline(always)]
    fn send_with<const IS_LAST: bool>(&self, conn: &mut Conn, out: &[u8]) -> io::Result<Sent> {
        self.measurements.record(); // First, so that a client finds its last request there.
        if conn.transport.is_tls() {
            return self.encrypt_or_queue(conn, out, IS_LAST);
        }
        if conn
            .active
            .as_ref()
            .is_some_and(|active| !active.wire.unsent().is_empty())
        {
            conn.active().wire.out.extend_from_slice(out);
            return Ok(Sent::Queued);
        }
        if out.is_empty() {
            return Ok(Sent::All);
        }
        let sent = match IS_LAST {
            true => self.context.driver().send_more(conn.stream, out),
            false => self.context.driver().send(conn.stream, out),
        };
        match sent {
            Ok(sent) if sent == out.len() && !self.log.is_on() => Ok(Sent::All),
            sent => self.queue_rest(conn, out, sent),
        }
    }

    /// Queues what the kernel did not accept of `out`.
    #[inline(never)]
    pub(super) fn queue_rest(
        &self,
        conn: &mut Conn,
        out: &[u8],
        sent: io::Result<usize>,
    ) -> io::Result<Sent> {
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if self.log.is_on() {
            self.log.accepted(conn, sent);
        }
        if sent == out.len() {
            return Ok(Sent::All);
        }
        let active = conn.active();
        active.wire.out.clear();
        active.wire.out.extend_from_slice(&out[sent..]);
        active.wire.out_sent = 0;
        self.context.driver().want_write(conn.stream);
        Ok(Sent::Queued)
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
            self.deadlines.set_timeout(id, conn, limit_ms);
        } else {
            self.deadlines
                .set_wait_timeout(id, conn, Wait::Write, limit_ms);
        }
        if progress && self.log.is_on() {
            self.log.accepted(conn, accepted);
        }
        if !done && !self.deadlines.begin_measured_wait(conn, Wait::Write) {
            return Err(self.record_slow_client());
        }
        if progress {
            conns.list_unread_anew(id);
        }
        Ok(if done { Sent::All } else { Sent::Queued })
    }

    /// The socket has become writable.
    pub(super) fn on_writable(self: &Rc<Self>, id: ConnId) {
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
    pub(super) fn retry_send(self: &Rc<Self>, id: ConnId) -> bool {
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
            self.deadlines.set_wait_timeout(id, conn, Wait::Write, 0);
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
    pub(super) fn linger(self: &Rc<Self>, id: ConnId) {
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
            self.send_close_notify(conn);
            self.context.driver().shutdown_write(conn.stream);
            self.resume(id, conn);
            self.deadlines
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
