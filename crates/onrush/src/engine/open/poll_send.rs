//! Sends of tasks. A task sends a response that is large or was not ready at once, and waits while
//! the socket has no room.

use crate::connections::ConnId;
use crate::engine::connection::transport::Output;
use crate::engine::open::OpenConns;
use crate::engine::open::deadlines::Wait;
use crate::engine::shared::socket_io::{Sent, connection_gone};
use onrush_rt::coop;
use onrush_rt::fs::File;
use onrush_rt::user;
use std::io;
use std::task::{Context, Poll, ready};

/// A byte of a file costs this many bytes of the cooperative budget: on loopback, `sendfile(2)`
/// does most of the receiver's work as well.
const FILE_COST: usize = 2;

impl OpenConns {
    /// Sends from memory; returns the number of bytes accepted.
    pub(in crate::engine) fn poll_send(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = &bytes[..bytes.len().min(coop::operation_bytes_max())];
        self.poll_send_output(id, cx, 0, Output::Bytes(bytes))
    }

    /// Sends rendered responses, which count as memory of the engine; returns the number of bytes
    /// accepted.
    pub(in crate::engine) fn poll_send_rendered(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_output(id, cx, bytes.len(), Output::Bytes(bytes))
    }

    /// Sends rendered responses with `MSG_MORE`, because a file follows; returns the number of
    /// bytes accepted.
    pub(in crate::engine) fn poll_send_more(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_output(id, cx, bytes.len(), Output::BytesAndMore(bytes))
    }

    /// Sends rendered responses and content behind them; returns the number of bytes accepted of
    /// both.
    pub(in crate::engine) fn poll_send_head_and_content(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        first: &[u8],
        second: &[u8],
    ) -> Poll<io::Result<usize>> {
        let second = &second[..second.len().min(coop::operation_bytes_max())];
        self.poll_send_output(id, cx, first.len(), Output::Both(first, second))
    }

    /// Sends from a file; returns the number of bytes accepted, 0 at the end of the file.
    ///
    /// A call that accepts fewer bytes than requested has most likely filled the socket buffer. The
    /// next call then waits for room without a try: `sendfile(2)` looks up the pages before it
    /// finds that there is no room, which costs as much as sending them.
    ///
    /// A plain file leaves in one call, also if that exceeds the budget: the kernel only passes
    /// pages on, and a response in many calls costs up to twice as much. So an event whose budget
    /// is reduced does not begin it.
    pub(in crate::engine) fn poll_send_file(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let Some(mut conn) = self.open(id) else {
            return Poll::Ready(Err(connection_gone()));
        };
        if std::mem::take(&mut conn.active().wire.socket_full) {
            self.context.driver().want_write_anew(conn.stream);
            drop(conn);
            return self.wait_for_room(id, cx);
        }
        let is_tls = conn.transport.is_tls();
        drop(conn);
        let of_budget = coop::operation_bytes_max() / FILE_COST;
        let bytes = match is_tls {
            true => bytes.min(of_budget), // They are read and encrypted.
            false if bytes > of_budget && coop::is_reduced() => {
                user::wake(user::clone_waker(cx.waker()));
                return Poll::Pending;
            }
            false => bytes,
        };
        let output = Output::File(file, offset, bytes);
        let sent = ready!(self.poll_send_output(id, cx, 0, output));
        coop::spend(*sent.as_ref().unwrap_or(&0) * (FILE_COST - 1));
        if let Ok(sent) = sent
            && (1..bytes).contains(&sent)
            && let Some(mut conn) = self.open(id)
            && !is_tls
        {
            conn.active().wire.socket_full = true;
        }
        Poll::Ready(sent)
    }

    /// Performs a send for a task, after the queued bytes. `rendered_bytes`: memory for rendered
    /// responses that the task holds while it waits.
    fn poll_send_output(
        &self,
        id: ConnId,
        cx: &mut Context<'_>,
        rendered_bytes: usize,
        output: Output<'_>,
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let Some(mut conn) = self.open(id) else {
            return Poll::Ready(Err(connection_gone()));
        };
        let is_queued = match conn.send_queued() {
            Ok(sent) => sent == Sent::Queued,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if !is_queued {
            let last_try = std::mem::take(&mut conn.active().exchange.last_try);
            match self.io.send_output(&mut conn, output) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if last_try {
                        return Poll::Ready(Err(self.record_slow_client()));
                    }
                }
                result => {
                    let bytes = *result.as_ref().unwrap_or(&0);
                    coop::spend(bytes);
                    let now_ms = self.context.now_ms();
                    let waited_ms = (conn.active().exchange.write_rate).present_wait_ms(now_ms);
                    conn.set_wait_timeout(Wait::Write, 0);
                    // Queued records count when the kernel accepts them.
                    let unsent = conn.active().wire.unsent().len();
                    let accepted = bytes.saturating_sub(unsent);
                    conn.active().exchange.write_rate.record_bytes(accepted);
                    conn.active().exchange.rendered_bytes = 0;
                    if self.io.log.is_on() && !conn.transport.is_tls() {
                        self.io.log.accepted(&mut conn, bytes); // With TLS it is logged already.
                    }
                    conn.unlist();
                    if let Some(limit) = self.unsent_limits().accepted(id, bytes, waited_ms) {
                        self.context.driver().set_unsent_max(conn.stream, limit);
                    }
                    return Poll::Ready(result);
                }
            }
        }
        self.context.driver().want_write(conn.stream);
        conn.active().exchange.rendered_bytes = rendered_bytes;
        drop(conn);
        self.wait_for_room(id, cx)
    }

    /// Stores the task's waker. The caller has already requested a `Writable` event. Fails when the
    /// client reads too slowly.
    fn wait_for_room(&self, id: ConnId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let waker = user::clone_waker(cx.waker());
        let replaced; // Dropped after the borrow ends: it is user code.
        let Some(mut conn) = self.open(id) else {
            return Poll::Ready(Err(connection_gone()));
        };
        replaced = conn.active().exchange.writer.replace(waker);
        let mut polled = Poll::Pending;
        if conn.active().exchange.write_deadline_ms.is_none() {
            conn.set_wait_timeout(Wait::Write, self.limits.get().write_timeout_ms);
            if !conn.begin_measured_wait(Wait::Write) {
                polled = Poll::Ready(Err(self.record_slow_client()));
            }
        }
        conn.list_unread();
        drop(conn);
        drop(replaced);
        polled
    }
}
