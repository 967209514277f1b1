//! Receives request bodies, either from the driver's buffers or directly into the reader's memory.
//!
//! While a handler reads small parts, the driver continues to receive into its buffers, up to a
//! limit. For a large body the engine pauses the driver. When the driver has stopped receiving, the
//! engine receives directly into the reader's memory. On io_uring, a pause cancels the multishot
//! receive and ends with its terminal completion; from then on the engine waits for readiness of
//! this connection. A reader that discards a body or fills a large buffer is woken once per large
//! part (`SO_RCVLOWAT`), unless the client is slow.

use crate::connections::{BodyId, ConnId};
use crate::engine::connection::Conn;
use crate::engine::connection::state::Receiving;
use crate::engine::connection::table::Conns;
use crate::engine::connection::transport::BodyTarget;
use crate::engine::shared::deadlines::{Deadlines, Wait};
use crate::engine::shared::socket_io::SocketIo;
use crate::metrics::{Counters, TimeLimit};
use onrush_proto::limits::Limits;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use onrush_rt::{coop, diagnose, user};
use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, Waker};

/// Shorter runs of body bytes are not worth pausing the driver for.
const DIRECT_BYTES_MIN: u64 = 32 * 1024;

/// The most body bytes that one call discards. The size of zeroed memory, whose pages are not
/// touched where the kernel drops the bytes itself.
pub(in crate::engine) const DISCARD_BYTES: usize = 4 << 20;
/// A reader that discards a body waits for this many bytes at a time, which needs half the CPU time
/// of waiting for any.
pub(in crate::engine) const DISCARD_LOW_WATER: u32 = 2 << 20;
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

/// The connection, if the body belongs to its present request.
pub(in crate::engine) fn present(conns: &mut Conns, body: BodyId) -> Option<&mut Conn> {
    conns
        .get(body.connection)
        .filter(|conn| conn.response_count == body.response_count)
}

pub(in crate::engine) fn request_gone() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// Records that reading the body failed, and the response to send for it.
pub(in crate::engine) fn reject_body(conn: &mut Conn, reject: Reject) -> io::Error {
    let kind = match reject.status {
        413 => io::ErrorKind::FileTooLarge,
        _ => io::ErrorKind::InvalidData,
    };
    conn.active().exchange.fail_body(kind, reject)
}

/// Returns the next piece of the body from up to `bytes_max` received bytes.
pub(in crate::engine) fn next_piece(
    conn: &mut Conn,
    limits: &Limits,
    bytes_max: usize,
) -> NextPiece {
    loop {
        if let Some(error) = conn.active().exchange.body_error() {
            return NextPiece::Failed(error);
        }
        if conn.machine.body_ended() {
            return NextPiece::End;
        }
        if conn.machine.may_upgrade() {
            return NextPiece::Empty; // What is queued belongs to the other protocol, after the 101.
        }
        let Some(mut data) = conn.active().wire.pop_input() else {
            return match conn.machine.is_upgraded() && conn.state.has_ended() {
                true => NextPiece::End,
                false => NextPiece::Empty,
            };
        };
        let within = &data[..data.len().min(bytes_max)];
        let piece = match conn.machine.receive_body(within, limits) {
            Ok(piece) => piece,
            Err(reject) => return NextPiece::Failed(reject_body(conn, reject)),
        };
        let body = data.slice(piece.data);
        data.advance(piece.consumed);
        conn.active().wire.log_entries.receive(piece.consumed);
        conn.active().wire.unpop_input(data);
        if !body.is_empty() {
            conn.count_body_bytes(body.len());
            return NextPiece::Piece(body);
        }
    }
}

/// Receives the bodies of the requests of one worker.
pub(in crate::engine) struct Bodies<'e> {
    pub(in crate::engine) deadlines: Deadlines<'e>,
    pub(in crate::engine) io: &'e SocketIo,
    pub(in crate::engine) counters: &'e Counters,
}

impl Bodies<'_> {
    /// Stores the reader's waker until more bytes arrive. Fails when no more bytes will arrive.
    pub(in crate::engine) fn wait_for_body(
        &self,
        conns: &RefCell<Conns>,
        body: BodyId,
        cx: &mut Context<'_>,
        resume: bool,
    ) -> io::Result<()> {
        let id = body.connection;
        let waker = user::clone_waker(cx.waker());
        let _replaced: Option<Waker>; // Dropped after the borrow ends: it is user code.
        let mut conns = conns.borrow_mut();
        let conn = present(&mut conns, body).ok_or_else(request_gone)?;
        // Before a 101, what has arrived may not be read yet.
        if conn.state.has_ended() && !conn.machine.may_upgrade() {
            let reject = Reject::new(400, "request body ended early");
            conn.machine.close_after_next();
            let kind = io::ErrorKind::UnexpectedEof;
            return Err(conn.active().exchange.fail_body(kind, reject));
        }
        if std::mem::take(&mut conn.active().exchange.final_poll) {
            return Err(self.body_timeout_error(conn));
        }
        if conn.machine.continue_due() {
            let mut out = Vec::new();
            conn.machine.send_continue(&mut out);
            self.io.send_or_queue(conn, &out)?;
        }
        if resume && conn.state.is_paused() {
            self.io.resume(id, conn);
        }
        _replaced = conn.active().exchange.reader.replace(waker);
        // Another protocol has time limits of its own.
        let is_limited = !(conn.machine.may_upgrade() || conn.machine.is_upgraded());
        if is_limited && conn.active().exchange.body_deadline_ms.is_none() {
            self.deadlines.set_wait_timeout(
                id,
                conn,
                Wait::Body,
                self.deadlines.limits.get().body_timeout_ms,
            );
            if !self.deadlines.begin_measured_wait(conn, Wait::Body) {
                return Err(self.body_timeout_error(conn));
            }
        }
        if conn.transport.is_tls() {
            conns.list_awaited_record(id);
        }
        Ok(())
    }

    /// Receives body bytes directly into the reader's memory, if enough of them are outstanding. A
    /// reader that does not need few bytes may wait until `low_water` have arrived.
    pub(in crate::engine) fn try_direct(
        &self,
        id: ConnId,
        conn: &mut Conn,
        low_water: u32,
        target: BodyTarget<'_>,
    ) -> Attempt {
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
                .pause_receiving(self.deadlines.context.driver().pause(conn.stream));
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
                let (result, emptied) = self.io.receive_body(conn, target, bytes_max);
                conn.active().wire.emptied = emptied;
                result
            }
        };
        match received {
            Ok(0) => conn.state.end(),
            Ok(n) => {
                if let Err(reject) = conn.machine.skip_body(n as u64) {
                    return Attempt::Done(Err(reject_body(conn, reject)));
                }
                coop::spend(n);
                self.deadlines.set_wait_timeout(id, conn, Wait::Body, 0);
                conn.active().wire.log_entries.receive(n);
                conn.count_body_bytes(n);
                return Attempt::Done(Ok(n));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if conn.transport.received_len() > unprocessed {
                    // A part of a record has arrived: the wait begins again.
                    self.deadlines.set_wait_timeout(id, conn, Wait::Body, 0);
                }
                if std::mem::take(&mut conn.active().exchange.final_poll) {
                    return Attempt::Done(Err(self.body_timeout_error(conn)));
                }
                // Never more than the outstanding bytes: the kernel would not report the end of the
                // body. With TLS, not even that: an alert is short.
                let low_water = match run {
                    _ if conn.transport.is_tls() || conn.active().exchange.slow_sender => 1,
                    run if run < LOW_WATER_MIN && conn.active().wire.low_water <= 1 => 1,
                    run => low_water.min(u32::try_from(run).unwrap_or(u32::MAX)).max(1),
                };
                self.io.set_low_water(conn, low_water);
                self.deadlines.context.driver().want_read(conn.stream);
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

    /// Stores the reader's waker after an attempt to receive body bytes directly that found none.
    pub(in crate::engine) fn finish_attempt(
        &self,
        conns: &RefCell<Conns>,
        body: BodyId,
        cx: &mut Context<'_>,
        attempt: Attempt,
    ) -> Poll<io::Result<usize>> {
        match attempt {
            Attempt::Done(result) => Poll::Ready(result),
            Attempt::Wait { resume } => match self.wait_for_body(conns, body, cx, resume) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    /// Records that the body did not arrive in time, and the response to send for it.
    pub(in crate::engine) fn body_timeout_error(&self, conn: &mut Conn) -> io::Error {
        conn.machine.close_after_next();
        self.counters.timed_out.count(TimeLimit::Body);
        let reject = Reject::new(408, "request body took too long");
        conn.active()
            .exchange
            .fail_body(io::ErrorKind::TimedOut, reject)
    }
}
