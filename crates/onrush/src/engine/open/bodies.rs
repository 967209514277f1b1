//! Receives request bodies, either from the driver's buffers or directly into the reader's memory.
//!
//! While a handler reads small parts, the driver continues to receive into its buffers, up to a
//! limit. For a large body the engine pauses the driver. When the driver has stopped receiving, the
//! engine receives directly into the reader's memory. On io_uring, a pause cancels the multishot
//! receive and ends with its terminal completion; from then on the engine waits for readiness of
//! this connection. A reader that discards a body or fills a large buffer is woken once per large
//! part (`SO_RCVLOWAT`), unless the client is slow.

use crate::connections::RequestId;
use crate::engine::connection::state::Receiving;
use crate::engine::connection::transport::BodyTarget;
use crate::engine::open::deadlines::Wait;
use crate::engine::open::{OpenConn, OpenConns};
use crate::metrics::TimeLimit;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use onrush_rt::{coop, diagnose, user};
use std::io;
use std::task::{Context, Poll, Waker};

/// Shorter runs of body bytes are not worth pausing the driver for.
const DIRECT_BYTES_MIN: u64 = 32 * 1024;

/// The most body bytes that one call discards. The size of zeroed memory, whose pages are not
/// touched where the kernel drops the bytes itself.
const DISCARD_BYTES: usize = 4 << 20;
/// A reader that discards a body waits for this many bytes at a time, which needs half the CPU time
/// of waiting for any.
const DISCARD_LOW_WATER: u32 = 2 << 20;
/// If fewer bytes than this are outstanding, waiting for many bytes at a time does not pay for its
/// two system calls.
const LOW_WATER_MIN: u64 = 128 * 1024;

/// The result of a search for body bytes in the queued input.
pub(in crate::engine) enum NextPiece {
    Piece(Buf),
    End,
    Failed(io::Error),
    /// No input is queued.
    Empty,
}

/// The result of an attempt to receive body bytes directly.
pub(in crate::engine) enum Attempt {
    Done(io::Result<usize>),
    /// No bytes were available. `resume`: the driver has to receive into its buffers again.
    Wait {
        resume: bool,
    },
}

pub(in crate::engine) fn request_gone() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl OpenConns {
    /// The connection of HTTP/1, if this is its present request.
    pub(in crate::engine) fn present(&self, request: RequestId) -> Option<OpenConn<'_>> {
        let conn = self.open(request.connection)?;
        let is_present = RequestId::counted(conn.response_count) == request.number;
        is_present.then_some(conn)
    }

    /// The next piece of the body of a request, from up to `bytes_max` received bytes.
    pub(in crate::engine) fn next_piece(&self, request: RequestId, bytes_max: usize) -> NextPiece {
        let Some(mut conn) = self.present(request) else {
            let stream = self.stream(request);
            return stream.map_or_else(
                || NextPiece::Failed(request_gone()),
                |mut stream| stream.next_piece(bytes_max),
            );
        };
        let next = conn.next_piece(bytes_max);
        if let NextPiece::Piece(_) = next {
            conn.set_wait_timeout(Wait::Body, 0);
        }
        next
    }

    /// Discards body bytes directly, as [`OpenConn::try_direct`] receives them.
    pub(in crate::engine) fn try_discard(&self, request: RequestId) -> Attempt {
        let mut buffer = self.discard_buffer.borrow_mut();
        if buffer.is_empty() {
            *buffer = vec![0; DISCARD_BYTES];
        }
        let target = BodyTarget::Discard(&mut buffer);
        self.try_direct(request, DISCARD_LOW_WATER, target)
    }

    /// As [`OpenConn::try_direct`]. The bytes of a stream come in frames, with those of others.
    pub(in crate::engine) fn try_direct(
        &self,
        request: RequestId,
        low_water: u32,
        target: BodyTarget<'_>,
    ) -> Attempt {
        let conn = self.present(request);
        conn.map_or(Attempt::Wait { resume: false }, |mut conn| {
            conn.try_direct(low_water, target)
        })
    }

    /// Stores the reader's waker until more bytes arrive. Fails when no more bytes will arrive.
    pub(in crate::engine) fn wait_for_body(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        resume: bool,
    ) -> io::Result<()> {
        let waker = user::clone_waker(cx.waker());
        let _replaced: Option<Waker>; // Dropped after the borrow ends: it is user code.
        let Some(mut conn) = self.present(request) else {
            return self.wait_for_stream_body(request, waker);
        };
        // Before a 101, what has arrived may not be read yet.
        if conn.state.has_ended() && !conn.machine.may_upgrade() {
            let reject = Reject::new(400, "request body ended early");
            conn.machine.close_after_next();
            let kind = io::ErrorKind::UnexpectedEof;
            return Err(conn.active().exchange.fail_body(kind, reject));
        }
        if std::mem::take(&mut conn.active().exchange.final_poll) {
            return Err(conn.body_timeout_error());
        }
        if conn.machine.continue_due() {
            let mut out = Vec::new();
            conn.machine.send_continue(&mut out);
            self.io.send_or_queue(&mut conn, &out)?;
        }
        if resume && conn.state.is_paused() {
            conn.resume_receiving();
        }
        _replaced = conn.active().exchange.reader.replace(waker);
        // Another protocol has time limits of its own.
        let is_limited = !(conn.machine.may_upgrade() || conn.machine.is_upgraded());
        if is_limited && conn.active().exchange.body_deadline_ms.is_none() {
            conn.set_wait_timeout(Wait::Body, self.limits.get().body_timeout_ms);
            if !conn.begin_measured_wait(Wait::Body) {
                return Err(conn.body_timeout_error());
            }
        }
        if conn.transport.is_tls() {
            conn.list_awaited_record();
        }
        Ok(())
    }

    /// Stores the reader's waker after an attempt to receive body bytes directly that found none.
    pub(in crate::engine) fn finish_attempt(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        attempt: Attempt,
    ) -> Poll<io::Result<usize>> {
        match attempt {
            Attempt::Done(result) => Poll::Ready(result),
            Attempt::Wait { resume } => match self.wait_for_body(request, cx, resume) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }
}

impl OpenConn<'_> {
    /// The next piece of the body, from up to `bytes_max` received bytes.
    fn next_piece(&mut self, bytes_max: usize) -> NextPiece {
        let (limits, conn) = (self.all.limits.get(), &mut *self.conn);
        loop {
            if let Some(error) = conn.active().exchange.body_error() {
                return NextPiece::Failed(error);
            }
            if conn.machine.body_ended() {
                return NextPiece::End;
            }
            if conn.machine.may_upgrade() {
                // What is queued belongs to the other protocol, after the 101.
                return NextPiece::Empty;
            }
            let Some(mut data) = conn.active().wire.pop_input() else {
                return match conn.machine.is_upgraded() && conn.state.has_ended() {
                    true => NextPiece::End,
                    false => NextPiece::Empty,
                };
            };
            let within = &data[..data.len().min(bytes_max)];
            let piece = match conn.machine.receive_body(within, &limits) {
                Ok(piece) => piece,
                Err(reject) => {
                    return NextPiece::Failed(conn.active().exchange.reject_body(reject));
                }
            };
            let body = data.slice(piece.data);
            data.advance(piece.consumed);
            conn.active().exchange.log_entries.receive(piece.consumed);
            conn.active().wire.unpop_input(data);
            if !body.is_empty() {
                conn.count_body_bytes(body.len());
                return NextPiece::Piece(body);
            }
        }
    }

    /// Receives body bytes directly into the reader's memory, if enough of them are outstanding. A
    /// reader that does not need few bytes may wait until `low_water` have arrived.
    fn try_direct(&mut self, low_water: u32, target: BodyTarget<'_>) -> Attempt {
        let (all, id, conn) = (self.all, self.id, &mut *self.conn);
        let run = conn.machine.body_run();
        let already = conn.state.receiving() == Receiving::Off;
        let is_too_short = run < DIRECT_BYTES_MIN && !(already && run > 0);
        if is_too_short || conn.state.has_ended() || conn.transport.is_delivering() {
            return Attempt::Wait { resume: true };
        }
        if !conn.state.is_paused() {
            diagnose!(TRACE, connection = id.token(), bytes = run;
                "receiving paused, the body is read directly");
            conn.state
                .pause_receiving(all.context.driver().pause(conn.stream));
        }
        if conn.state.receiving() != Receiving::Off {
            // `ReceiveStopped`, or a completion that was in progress, wakes the reader.
            return Attempt::Wait { resume: false };
        }
        let bytes_max = usize::try_from(run).unwrap_or(usize::MAX);
        // After a short receive the socket was empty. What has arrived since is little, or the
        // driver reports it.
        let unprocessed = conn.transport.received_len();
        let received = match std::mem::take(&mut conn.active().wire.emptied) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => {
                let (result, emptied) = all.io.receive_body(conn, target, bytes_max);
                conn.active().wire.emptied = emptied;
                result
            }
        };
        match received {
            Ok(0) => conn.state.end(),
            Ok(n) => {
                if let Err(reject) = conn.machine.skip_body(n as u64) {
                    return Attempt::Done(Err(conn.active().exchange.reject_body(reject)));
                }
                coop::spend(n);
                self.set_wait_timeout(Wait::Body, 0);
                let conn = &mut *self.conn;
                conn.active().exchange.log_entries.receive(n);
                conn.count_body_bytes(n);
                return Attempt::Done(Ok(n));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if conn.transport.received_len() > unprocessed {
                    // A part of a record has arrived: the wait begins again.
                    self.set_wait_timeout(Wait::Body, 0);
                }
                if std::mem::take(&mut self.active().exchange.final_poll) {
                    return Attempt::Done(Err(self.body_timeout_error()));
                }
                let conn = &mut *self.conn;
                // Never more than the outstanding bytes: the kernel would not report the end of the
                // body. With TLS, not even that: an alert is short.
                let low_water = match run {
                    _ if conn.transport.is_tls() || conn.active().exchange.slow_sender => 1,
                    run if run < LOW_WATER_MIN && conn.active().wire.low_water <= 1 => 1,
                    run => low_water.min(u32::try_from(run).unwrap_or(u32::MAX)).max(1),
                };
                all.io.set_low_water(conn, low_water);
                all.context.driver().want_read(conn.stream);
            }
            Err(error) => {
                conn.machine.close_after_next();
                let (kind, reject) = match error.kind() {
                    kind @ io::ErrorKind::OutOfMemory => {
                        (kind, Reject::new(503, "server is low on memory"))
                    }
                    _ => (
                        io::ErrorKind::UnexpectedEof,
                        Reject::new(400, "request body ended early"),
                    ),
                };
                let error = conn.active().exchange.fail_body(kind, reject);
                return Attempt::Done(Err(error));
            }
        }
        Attempt::Wait { resume: false }
    }

    /// Records that the body did not arrive in time, and the response to send for it.
    pub(in crate::engine) fn body_timeout_error(&mut self) -> io::Error {
        self.machine.close_after_next();
        self.all.counters.timed_out.count(TimeLimit::Body);
        let reject = Reject::new(408, "request body took too long");
        self.active()
            .exchange
            .fail_body(io::ErrorKind::TimedOut, reject)
    }
}
