//! Sends bytes: tries at once, keeps what the socket does not accept, and sends it when the socket
//! becomes writable.

use super::Engine;
use super::connection::{Conn, Phase, Then};
use super::deadline::Wait;
use crate::host::ConnId;
use crate::metrics::{CloseReason, TimeLimit};
use onrush_rt::coop;
use onrush_rt::driver::{Driver, StreamId};
use onrush_rt::fs::File;
use onrush_rt::user;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The limit on unsent bytes that the kernel holds for a new connection. Without it, a client that
/// requested a large file and read nothing made the worker send 3 MB of it.
pub(crate) const UNSENT_BYTES_MAX: u32 = 128 * 1024;
/// Once a connection has accepted this many bytes, its client evidently reads, and the limit above
/// is lifted.
const READS_FROM_BYTES: u32 = 1 << 20;

/// The error for a connection that is gone.
#[cold]
pub(super) fn connection_gone() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl Engine {
    /// Sends `out` behind the bytes that are already queued, and performs `then` when all of it has
    /// been sent. `true` when that happened at once.
    pub(super) fn flush(self: &Rc<Self>, id: ConnId, out: &[u8], then: Then) -> bool {
        let sent = match then {
            Then::Close => self.send_last_or_keep(id, out),
            Then::Continue | Then::Linger => self.send_or_keep(id, out),
        };
        self.sent(id, sent, then)
    }

    /// The part of [`Engine::flush`] that follows the send.
    #[inline(never)]
    pub(super) fn sent(self: &Rc<Self>, id: ConnId, sent: io::Result<bool>, then: Then) -> bool {
        match sent {
            Ok(true) => match then {
                Then::Continue => true,
                Then::Close | Then::Linger => {
                    self.finish_connection(id, then);
                    false
                }
            },
            Ok(false) => {
                let mut conns = self.conns.borrow_mut();
                if let Some(conn) = conns.get(id) {
                    self.set_phase(id, conn, Phase::Flushing);
                    conn.active().after_flush = Some(then);
                    self.pause_ahead(id, conn); // No request can start before this is sent.
                    let response_count = conn.response_count;
                    conn.active().write_rate.continue_window(response_count);
                    self.is_fast_enough(conn, Wait::Write); // Starts the measurement.
                    self.set_limit(id, conn, self.limits().write_timeout_ms);
                }
                conns.list_unread(id);
                false
            }
            Err(_) => {
                self.close(id, CloseReason::Broken);
                false
            }
        }
    }

    /// Ends a connection whose last response the kernel has accepted. Closing a socket with unread
    /// input resets the connection, and the response could be lost; such a connection lingers
    /// instead.
    fn finish_connection(self: &Rc<Self>, id: ConnId, then: Then) {
        let unread = |conn: &Conn| {
            let input = conn.active.as_ref().map_or(0, |active| active.input_bytes);
            input > 0 || self.context.driver().has_unread(conn.stream)
        };
        let lingers = match self.conns.borrow_mut().get(id) {
            Some(conn) => then == Then::Linger || unread(conn),
            None => return,
        };
        match lingers {
            true => self.linger(id),
            false => self.close(id, CloseReason::Complete),
        }
    }

    /// Sends `out` and queues what the kernel does not accept. `Ok(true)`: nothing was queued.
    pub(super) fn send_or_keep(&self, id: ConnId, out: &[u8]) -> io::Result<bool> {
        let mut conns = self.conns.borrow_mut();
        self.send_now_or_keep(conns.get(id).ok_or_else(connection_gone)?, out)
    }

    /// [`Engine::send_or_keep`] for the last bytes of a connection. They leave in one segment with
    /// the FIN, which saves the client a wake-up and both sides a packet.
    fn send_last_or_keep(&self, id: ConnId, out: &[u8]) -> io::Result<bool> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        self.send_by(conn, out, Driver::send_more)
    }

    /// [`Engine::send_or_keep`] for a borrowed connection.
    #[inline]
    pub(super) fn send_now_or_keep(&self, conn: &mut Conn, out: &[u8]) -> io::Result<bool> {
        self.send_by(conn, out, Driver::send)
    }

    #[inline(always)]
    fn send_by(
        &self,
        conn: &mut Conn,
        out: &[u8],
        send: impl FnOnce(&mut Driver, StreamId, &[u8]) -> io::Result<usize>,
    ) -> io::Result<bool> {
        if let Some(recorder) = &self.recorder {
            recorder.record(); // First, so that a client finds its last request in the metrics.
        }
        if conn
            .active
            .as_ref()
            .is_some_and(|active| !active.unsent().is_empty())
        {
            conn.active().out.extend_from_slice(out);
            return Ok(false);
        }
        if out.is_empty() {
            return Ok(true);
        }
        let sent = send(&mut self.context.driver(), conn.stream, out);
        match sent {
            Ok(sent) if sent == out.len() && self.log.is_none() => Ok(true),
            sent => self.keep(conn, out, sent),
        }
    }

    /// Queues what the kernel did not accept of `out`. `Ok(true)`: it has accepted all.
    #[inline(never)]
    fn keep(&self, conn: &mut Conn, out: &[u8], sent: io::Result<usize>) -> io::Result<bool> {
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        if self.log.is_some() {
            self.log_accepted(conn, sent);
        }
        if sent == out.len() {
            return Ok(true);
        }
        let active = conn.active();
        active.out.clear();
        active.out.extend_from_slice(&out[sent..]);
        active.out_sent = 0;
        self.context.driver().want_write(conn.stream);
        Ok(false)
    }

    /// Counts a client that reads a response too slowly, and returns the error for it.
    fn slow_peer_error(&self) -> io::Error {
        self.counters.timed_out.count(TimeLimit::Write);
        io::ErrorKind::TimedOut.into()
    }

    /// Sends the queued bytes. `Ok(true)`: nothing is left. An error of kind `TimedOut`: the client
    /// reads too slowly.
    fn send_kept(&self, id: ConnId) -> io::Result<bool> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        let stream = conn.stream;
        let Some(active) = conn.active.as_mut() else {
            return Ok(true);
        };
        if active.unsent().is_empty() {
            return Ok(true);
        }
        let sent_before = active.out_sent;
        match self
            .context
            .driver()
            .send(stream, &active.out[active.out_sent..])
        {
            Ok(sent) => {
                active.out_sent += sent;
                active.write_rate.record_bytes(sent);
                active.write_rate.end_wait(self.context.now_ms());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let done = active.unsent().is_empty();
        let accepted = active.out_sent - sent_before;
        let progress = accepted > 0;
        let limit_ms = if done {
            (active.out, active.out_sent) = (Vec::new(), 0);
            0
        } else {
            self.context.driver().want_write(stream);
            self.limits().write_timeout_ms
        };
        if conn.phase == Phase::Flushing {
            self.set_limit(id, conn, limit_ms);
        } else {
            self.set_wait(id, conn, Wait::Write, limit_ms);
        }
        if progress && self.log.is_some() {
            self.log_accepted(conn, accepted);
        }
        if !done && !self.is_fast_enough(conn, Wait::Write) {
            return Err(self.slow_peer_error());
        }
        if progress {
            conns.list_unread_anew(id);
        }
        Ok(done)
    }

    /// The socket has become writable.
    pub(super) fn writable(self: &Rc<Self>, id: ConnId) {
        let sent = self.send_kept(id);
        let (writer, then) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let flushing = conn.phase == Phase::Flushing;
            let Some(active) = conn.active.as_mut() else {
                return;
            };
            match sent {
                Ok(true) if flushing => (None, active.after_flush.take()),
                Ok(true) => (active.writer.take(), None),
                Ok(false) => return,
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
            Some(Then::Continue) => self.resume_reading(id),
            Some(then) => self.finish_connection(id, then),
            None => {}
        }
    }

    /// Handles an expired write time limit: sends once more, or wakes the task so that it does.
    /// `false` when the client has taken nothing. The kernel reports a socket as writable only when
    /// much room is free.
    pub(super) fn retry_send(self: &Rc<Self>, id: ConnId) -> bool {
        let unsent = || {
            let mut conns = self.conns.borrow_mut();
            let active = conns.get(id)?.active.as_ref()?;
            Some(active.unsent().len())
        };
        let before = unsent().unwrap_or(0);
        if before > 0 {
            match self.send_kept(id) {
                Ok(true) => {
                    self.writable(id);
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
            self.set_wait(id, conn, Wait::Write, 0);
            let active = conn.active();
            active.last_try = active.writer.is_some();
            active.writer.take()
        };
        if let Some(writer) = writer {
            user::wake(writer);
        }
        true
    }

    /// Performs a send for a task, after the queued bytes. `rendered_bytes`: memory for rendered
    /// responses that the task holds while it waits.
    fn poll_with(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        rendered_bytes: usize,
        send: impl FnOnce(&mut Driver, StreamId) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let kept = match self.send_kept(id) {
            Ok(done) => !done,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return Poll::Ready(Err(connection_gone()));
        };
        if !kept {
            let last_try = std::mem::take(&mut conn.active().last_try);
            // This statement ends the borrow of the driver; [`Engine::note_taken`] borrows it
            // again.
            let sent = send(&mut self.context.driver(), conn.stream);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if last_try {
                        return Poll::Ready(Err(self.slow_peer_error()));
                    }
                }
                result => {
                    let bytes = *result.as_ref().unwrap_or(&0);
                    coop::spend(bytes);
                    self.set_wait(id, conn, Wait::Write, 0);
                    conn.active().write_rate.record_bytes(bytes);
                    conn.active().rendered_bytes = 0;
                    self.note_taken(conn, bytes);
                    if self.log.is_some() {
                        self.log_accepted(conn, bytes);
                    }
                    if conn.is_listed() {
                        conns.unlist(id);
                    }
                    return Poll::Ready(result);
                }
            }
        }
        self.context.driver().want_write(conn.stream);
        conn.active().rendered_bytes = rendered_bytes;
        drop(conns);
        self.wait_for_room(id, cx)
    }

    /// Counts bytes of a task's response that the kernel accepted, and lifts [`UNSENT_BYTES_MAX`]
    /// at [`READS_FROM_BYTES`].
    fn note_taken(&self, conn: &mut Conn, bytes: usize) {
        let before = conn.active().taken_bytes;
        let after = before.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        conn.active().taken_bytes = after;
        if before < READS_FROM_BYTES && after >= READS_FROM_BYTES {
            self.context.driver().lift_unsent_max(conn.stream);
        }
    }

    /// Stores the task's waker until the socket is writable, which the driver was asked to report.
    /// Fails when the client reads too slowly.
    fn wait_for_room(&self, id: ConnId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let waker = user::clone_waker(cx.waker());
        let replaced; // Dropped after the borrow ends: it is user code.
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            return Poll::Ready(Err(connection_gone()));
        };
        replaced = conn.active().writer.replace(waker);
        let mut polled = Poll::Pending;
        if conn.active().write_deadline_ms.is_none() {
            self.set_wait(id, conn, Wait::Write, self.limits().write_timeout_ms);
            if !self.is_fast_enough(conn, Wait::Write) {
                polled = Poll::Ready(Err(self.slow_peer_error()));
            }
        }
        conns.list_unread(id);
        drop(conns);
        drop(replaced);
        polled
    }

    /// Sends from memory; returns the number of bytes accepted.
    pub(super) fn poll_send(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(coop::operation_bytes_max())];
        self.poll_with(id, cx, 0, |driver, stream| driver.send(stream, bytes))
    }

    /// Sends rendered responses, which count as memory of the engine; returns the number of bytes
    /// accepted.
    pub(super) fn poll_send_rendered(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(id, cx, bytes.len(), |driver, stream| {
            driver.send(stream, bytes)
        })
    }

    /// Sends rendered responses that a file follows at once; returns the number of bytes accepted.
    pub(super) fn poll_send_more(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(id, cx, bytes.len(), |driver, stream| {
            driver.send_more(stream, bytes)
        })
    }

    /// Sends rendered responses and content behind them; returns the number of bytes accepted of
    /// both.
    pub(super) fn poll_send_both(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        let second = &second[..second.len().min(coop::operation_bytes_max())];
        let parts = [io::IoSlice::new(first), io::IoSlice::new(second)];
        self.poll_with(id, cx, first.len(), |driver, stream| {
            driver.send_vectored(stream, &parts)
        })
    }

    /// Sends from a file; returns the number of bytes accepted, 0 at the end of the file.
    ///
    /// A call that accepts fewer bytes than requested has most likely filled the socket buffer. The
    /// next call then waits for room without a try: `sendfile(2)` looks up the pages before it
    /// finds that there is no room, which costs as much as sending them.
    pub(super) fn poll_send_file(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let mut conns = self.conns.borrow_mut();
        if let Some(conn) = conns.get(id)
            && std::mem::take(&mut conn.active().is_full)
        {
            self.context.driver().want_write_anew(conn.stream);
            drop(conns);
            return self.wait_for_room(id, cx);
        }
        drop(conns);
        let bytes = bytes.min(coop::operation_bytes_max());
        let sent = ready!(self.poll_with(id, cx, 0, |driver, stream| {
            driver.send_file(stream, file, offset, bytes)
        }));
        if let Ok(sent) = sent
            && (1..bytes).contains(&sent)
            && let Some(conn) = self.conns.borrow_mut().get(id)
        {
            conn.active().is_full = true;
        }
        Poll::Ready(sent)
    }

    /// Shuts down our direction and discards further input, so that the client can read the
    /// response. Closing with unread input would reset the connection, and the reset may overtake
    /// the response.
    pub(super) fn linger(self: &Rc<Self>, id: ConnId) {
        let (ended, input) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            self.set_phase(id, conn, Phase::Lingering);
            let ended = conn.ended;
            let input = conn
                .active
                .as_mut()
                .map(|active| std::mem::take(&mut active.input));
            if let Some(active) = conn.active.as_mut() {
                active.input_bytes = 0;
                active.total_deadline_ms = None;
            }
            self.context.driver().shutdown_write(conn.stream);
            self.resume(id, conn);
            self.set_limit(id, conn, self.limits().linger_timeout_ms.max(1));
            conns.unlist(id);
            (ended, input)
        };
        drop(input);
        if ended {
            self.close(id, CloseReason::Complete);
        }
    }
}
