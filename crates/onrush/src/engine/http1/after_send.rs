//! What follows a send: the next request, a wait for the client, or the end of the connection.
//! `open` sends and queues.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Phase};
use crate::engine::lifecycle::Engine;
use crate::engine::open::deadlines::Wait;
use crate::engine::shared::socket_io::Sent;
use crate::metrics::CloseReason;
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
            AfterFlush::Close => self.conns.send_last_or_queue(id, out),
            AfterFlush::Continue | AfterFlush::Linger => self.conns.send_or_queue(id, out),
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
                if let Some(mut conn) = self.conns.open(id) {
                    conn.begin_flush(then);
                    conn.list_unread();
                }
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
    pub(in crate::engine) fn send_failed(self: &Rc<Self>, id: ConnId) {
        match self.conns.has_failed(id) {
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
        let lingers = match self.conns.open(id) {
            Some(conn) => then == AfterFlush::Linger || unread(&conn),
            None => return,
        };
        match lingers {
            true => self.linger(id),
            false => self.close(id, CloseReason::Complete),
        }
    }

    /// The socket has become writable.
    pub(in crate::engine) fn on_writable(self: &Rc<Self>, id: ConnId) {
        let (writer, then) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let sent = conn.send_queued();
            let then = match conn.state.phase() {
                Phase::Flushing(then) => Some(then),
                _ => None,
            };
            if conn.active.is_none() {
                return;
            }
            match sent {
                Ok(Sent::All) if conn.state.has_streams() => {
                    drop(conn);
                    return self.after_frames(id);
                }
                Ok(Sent::All) if then.is_some() => (None, then),
                Ok(Sent::All) => (conn.active().exchange.writer.take(), None),
                Ok(Sent::Queued) => return,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    drop(conn);
                    return self.abort(id, CloseReason::TimedOut);
                }
                Err(_) => {
                    drop(conn);
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
        let Some(mut conn) = self.conns.open(id) else {
            return true;
        };
        let unsent = |conn: &Conn| conn.active.as_ref().map_or(0, |it| it.wire.unsent().len());
        let before = unsent(&conn);
        if before > 0 {
            let sent = conn.send_queued();
            let left = unsent(&conn);
            drop(conn);
            match sent {
                Ok(Sent::All) => self.on_writable(id),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.abort(id, CloseReason::TimedOut); // Counted already.
                }
                _ => return left < before,
            }
            return true;
        }
        conn.set_wait_timeout(Wait::Write, 0);
        let active = conn.active();
        active.exchange.last_try = active.exchange.writer.is_some();
        let writer = active.exchange.writer.take();
        drop(conn);
        if let Some(writer) = writer {
            user::wake(writer);
        }
        true
    }

    /// Ends a connection so that its client can read the response.
    pub(in crate::engine) fn linger(self: &Rc<Self>, id: ConnId) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        conn.begin_linger();
        let has_ended = conn.state.has_ended();
        drop(conn);
        if has_ended {
            self.close(id, CloseReason::Complete);
        }
    }
}
