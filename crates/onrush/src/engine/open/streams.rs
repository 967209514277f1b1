//! One stream of HTTP/2, borrowed with its connection: its body, and what is sent on it.
//!
//! As for HTTP/1, these operations need no other connection and call no user code. Frames are
//! appended to [`Http2::out`]; [`DueList`] tells the engine to send them, with those of all streams
//! that have some by then.

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::http2::{Http2, Slot};
use crate::engine::open::bodies::{NextPiece, request_gone};
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::socket_io::connection_gone;
use crate::metrics::TimeLimit;
use onrush_proto::http2::frame::FRAME_HEAD_BYTES;
use onrush_proto::reject::Reject;
use onrush_rt::fs::File;
use onrush_rt::{coop, user};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};

/// The connections with frames to send.
#[derive(Debug, Default)]
pub(in crate::engine) struct DueList {
    ids: RefCell<Vec<ConnId>>,
    /// That of the task which sends them.
    waker: RefCell<Option<Waker>>,
    pub(in crate::engine) has_task: Cell<bool>,
}

impl DueList {
    fn add(&self, id: ConnId) {
        let mut ids = self.ids.borrow_mut();
        ids.push(id);
        if let Some(waker) = self.waker.borrow().as_ref().filter(|_| ids.len() == 1) {
            waker.wake_by_ref();
        }
    }

    /// Waits until there are some, and takes them.
    pub(in crate::engine) async fn next(&self) -> Vec<ConnId> {
        poll_fn(|cx| {
            let ids = self.ids.take();
            if !ids.is_empty() {
                return Poll::Ready(ids);
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// A stream whose request or response has not ended.
pub(in crate::engine) struct OpenStream<'s> {
    pub(in crate::engine) conn: OpenConn<'s>,
    stream: u32,
}

/// What a piece of content is taken from.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum Piece<'a> {
    /// Memory that is used anyway.
    Bytes(&'a [u8]),
    /// Memory that is freed when it was sent, and how many bytes of that there are.
    Own(&'a [u8], usize),
    /// A part of a file: the offset and the number of bytes.
    File(&'a File, u64, usize),
}

impl OpenConns {
    /// Whether a connection speaks HTTP/2.
    #[inline]
    pub(in crate::engine) fn has_streams(&self, id: ConnId) -> bool {
        self.open(id).is_some_and(|conn| conn.state.has_streams())
    }

    /// The stream of a request.
    pub(in crate::engine) fn stream(&self, request: RequestId) -> Option<OpenStream<'_>> {
        let mut conn = self.open(request.connection)?;
        conn.http2()?.place(request.number)?;
        Some(OpenStream {
            conn,
            stream: request.number,
        })
    }

    /// Stores the reader's waker until more of the body of a stream arrives. Fails when no more
    /// will.
    pub(super) fn wait_for_stream_body(&self, request: RequestId, waker: Waker) -> io::Result<()> {
        let _replaced: Option<Waker>; // Dropped after the borrow ends: it is user code.
        let (now_ms, limits) = (self.context.now_ms(), self.limits.get());
        let mut stream = self.stream(request).ok_or_else(request_gone)?;
        let has_ended = stream.conn.state.has_ended() && !stream.conn.has_queued_input();
        let slot = stream.slot();
        if has_ended {
            let reject = Reject::new(400, "request body ended early");
            return Err(slot
                .exchange
                .fail_body(io::ErrorKind::UnexpectedEof, reject));
        }
        // Another protocol has time limits of its own.
        let is_limited = slot.tunnel_readers == 0;
        let is_slow = is_limited
            && slot.exchange.body_deadline_ms.is_none()
            && !slot.exchange.body_rate.start_wait(0, now_ms, &limits);
        if is_slow || std::mem::take(&mut slot.exchange.final_poll) {
            return Err(stream.body_timeout_error());
        }
        _replaced = slot.exchange.reader.replace(waker);
        if is_limited && limits.body_timeout_ms > 0 {
            let deadline_ms = now_ms + u64::from(limits.body_timeout_ms);
            let deadline_ms = *slot.exchange.body_deadline_ms.get_or_insert(deadline_ms);
            stream.conn.note_deadline(deadline_ms);
        }
        stream.send_continue();
        Ok(())
    }

    /// Sends content of a stream from `piece`; returns the number of bytes taken, which is 0 at the
    /// end of a file. `ends`: the response is complete when all of it is taken. Waits while the
    /// windows of the client are used up, while much waits for it, and while others have their turn
    /// first.
    pub(in crate::engine) fn poll_send_content(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        piece: Piece<'_>,
        ends: bool,
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        let Some(mut stream) = self.stream(request) else {
            return Poll::Ready(Err(connection_gone()));
        };
        let id = request.number;
        let bytes = match piece {
            Piece::Bytes(bytes) | Piece::Own(bytes, _) => bytes.len(),
            Piece::File(_, _, bytes) => bytes,
        };
        let unsent = stream.conn.unsent_len();
        let http2 = stream.http2();
        if !http2.machine.is_open(id) {
            return Poll::Ready(Err(connection_gone()));
        }
        self.rendering.provide_frames(&mut http2.out);
        let room = http2.room(id, unsent);
        if room == 0 && bytes > 0 {
            let waiting_bytes = match piece {
                Piece::Own(_, held_bytes) => held_bytes,
                _ => 0,
            };
            drop(stream);
            return self.wait_for_turn(request, cx, waiting_bytes);
        }
        let bytes = bytes.min(room);
        let taken = match piece {
            Piece::Bytes(all) | Piece::Own(all, _) => {
                let ends = ends && bytes == all.len();
                http2
                    .machine
                    .send_data_head(id, bytes, ends, &mut http2.out);
                http2.out.extend_from_slice(&all[..bytes]);
                Ok(bytes)
            }
            Piece::File(file, offset, all) => {
                read_frame(http2, id, (file, offset, bytes), |read| ends && read == all)
            }
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => return Poll::Ready(Err(error)),
        };
        http2.note_turn(id, taken);
        stream.note_sent(taken);
        coop::spend(taken);
        Poll::Ready(Ok(taken))
    }

    /// Stores the task's waker until its stream may send. Fails when the client reads too slowly.
    /// `waiting_bytes`: the memory that the task holds until then.
    fn wait_for_turn(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        waiting_bytes: usize,
    ) -> Poll<io::Result<usize>> {
        let waker = user::clone_waker(cx.waker());
        let replaced; // Dropped after the borrow ends: it is user code.
        let (now_ms, limits) = (self.context.now_ms(), self.limits.get());
        let Some(mut stream) = self.stream(request) else {
            return Poll::Ready(Err(connection_gone()));
        };
        // Otherwise the client need not do anything.
        let http2 = stream.http2();
        let is_own = http2.machine.is_window_used_up(request.number);
        let is_of_all = !is_own && http2.machine.room(request.number) == 0;
        let is_slow = is_of_all && !http2.window_rate.start_wait(0, now_ms, &limits);
        let exchange = &mut stream.slot().exchange;
        replaced = exchange.writer.replace(waker);
        let begins = is_own && exchange.write_deadline_ms.is_none();
        if is_slow || (begins && !exchange.write_rate.start_wait(0, now_ms, &limits)) {
            drop(stream);
            return Poll::Ready(Err(self.record_slow_client()));
        }
        if limits.write_timeout_ms > 0 {
            let deadline_ms = now_ms + u64::from(limits.write_timeout_ms);
            let deadline_ms = *exchange.write_deadline_ms.get_or_insert(deadline_ms);
            stream.conn.note_deadline(deadline_ms);
        }
        stream.http2().note_waiting(request.number, waiting_bytes);
        if waiting_bytes > 0 {
            stream.conn.list_unread();
        }
        stream.conn.note_due();
        drop(stream);
        drop(replaced);
        Poll::Pending
    }
}

/// Appends a DATA frame with a part of a file, whose offset and number of bytes are given. Returns
/// the number of bytes that were there.
fn read_frame(
    http2: &mut Http2,
    stream: u32,
    (file, offset, bytes): (&File, u64, usize),
    ends: impl FnOnce(usize) -> bool,
) -> io::Result<usize> {
    let start = http2.out.len();
    http2.out.reserve(FRAME_HEAD_BYTES + bytes);
    http2.out.extend_from_slice(&[0; FRAME_HEAD_BYTES]);
    let read = file.read_to_vec(&mut http2.out, bytes, offset);
    let read = read.inspect_err(|_| http2.out.truncate(start))?;
    if read == 0 {
        http2.out.truncate(start);
        return Ok(0);
    }
    let head = http2.machine.data_head(stream, read, ends(read));
    http2.out[start..start + FRAME_HEAD_BYTES].copy_from_slice(&head);
    Ok(read)
}

impl OpenConn<'_> {
    /// The bytes of frames that wait behind the socket.
    pub(in crate::engine) fn unsent_len(&self) -> usize {
        (self.active.as_ref()).map_or(0, |active| active.wire.unsent().len())
    }

    /// Whether received bytes wait to be processed. What the client has done is behind them.
    pub(in crate::engine) fn has_queued_input(&mut self) -> bool {
        let has_bytes = self.input_bytes() > 0;
        let waits = |http2: &mut Http2| http2.has_input_task || http2.is_held_up;
        has_bytes || self.http2().is_some_and(waits)
    }

    /// Removes the slot of a stream, as [`Http2::take_slot`]. What was not read of its body is
    /// processed.
    pub(in crate::engine) fn take_slot(&mut self, stream: u32) -> Option<Slot> {
        let all = self.all;
        let http2 = self.http2()?;
        let mut slot = http2.take_slot(stream)?;
        let bytes = slot.drop_input();
        if bytes > 0 {
            (http2.machine).consume(stream, bytes, false, &mut http2.out);
        }
        http2.promise(&all.memory.promises);
        self.note_due();
        Some(slot)
    }

    /// The connection has frames to send, or may have a turn to give.
    pub(in crate::engine) fn note_due(&mut self) {
        let (all, id) = (self.all, self.id);
        if let Some(http2) = self.http2()
            && !std::mem::replace(&mut http2.is_due, true)
        {
            all.due.add(id);
        }
    }

    /// Sends an interim response, unless the client has not read what was sent before. Returns
    /// whether it was sent.
    pub(in crate::engine) fn send_interim(
        &mut self,
        stream: u32,
        status: u16,
        fields: &[u8],
    ) -> bool {
        let may_send = self.unsent_len() == 0;
        let Some(http2) = self.http2().filter(|_| may_send) else {
            return false;
        };
        let is_sent = (http2.machine).send_interim(stream, status, fields, &mut http2.out);
        self.note_due();
        is_sent
    }

    /// Something is due at this time, in ms. The timer fires then, or before.
    pub(in crate::engine) fn note_deadline(&mut self, deadline_ms: u64) {
        if deadline_ms < self.deadline_ms {
            self.set_deadline(deadline_ms);
        }
    }
}

impl OpenStream<'_> {
    /// The number of the stream.
    pub(in crate::engine) fn number(&self) -> u32 {
        self.stream
    }

    pub(in crate::engine) fn http2(&mut self) -> &mut Http2 {
        self.conn.http2().expect("a stream has it")
    }

    pub(in crate::engine) fn slot(&mut self) -> &mut Slot {
        let stream = self.stream;
        self.http2().slot(stream).expect("it was there")
    }

    /// The next piece of the body, of at most `bytes_max` bytes.
    pub(super) fn next_piece(&mut self, bytes_max: usize) -> NextPiece {
        let slot = self.slot();
        if let Some(error) = slot.exchange.body_error() {
            return NextPiece::Failed(error);
        }
        if slot.rest.is_some() {
            return NextPiece::Failed(request_gone()); // The response is complete.
        }
        if slot.may_upgrade() {
            return NextPiece::Empty;
        }
        let Some(mut data) = slot.input.pop_front() else {
            return match slot.has_ended {
                true => NextPiece::End,
                false => NextPiece::Empty,
            };
        };
        let piece = data.slice(0..data.len().min(bytes_max));
        data.advance(piece.len());
        if !data.is_empty() {
            slot.input.push_front(data);
        }
        slot.input_bytes -= piece.len();
        let Some(allowed) = slot.allowed.checked_sub(piece.len() as u64) else {
            let error = slot.exchange.reject_body(TOO_LARGE);
            self.discard(piece.len());
            return NextPiece::Failed(error);
        };
        slot.allowed = allowed;
        if let Some(remaining) = &mut slot.remaining {
            *remaining = remaining.saturating_sub(piece.len() as u64);
        }
        slot.exchange.log_entries.receive(piece.len());
        self.consume(piece.len());
        NextPiece::Piece(piece)
    }

    /// Lets the client send as much as was processed.
    fn consume(&mut self, bytes: usize) {
        let (stream, all) = (self.stream, self.conn.all);
        let http2 = self.http2();
        let may_grow = all.memory.may_promise(http2.machine.growth(stream));
        let before = http2.out.len();
        http2
            .machine
            .consume(stream, bytes, may_grow, &mut http2.out);
        if http2.out.len() > before {
            http2.promise(&all.memory.promises);
            self.conn.note_due();
        }
    }

    /// Nobody reads the body any more. `processed`: bytes that were taken out of it already.
    pub(in crate::engine) fn discard(&mut self, processed: usize) {
        let slot = self.slot();
        slot.is_discarded = true;
        let bytes = slot.drop_input() + processed;
        self.consume(bytes);
    }

    /// The bytes that follow of the body, if that is known.
    pub(in crate::engine) fn body_remaining(&mut self) -> Option<u64> {
        let slot = self.slot();
        match slot.has_ended {
            true => Some(slot.input_bytes as u64),
            false => slot.remaining,
        }
    }

    /// Limits the length of the body.
    pub(in crate::engine) fn limit_body(&mut self, bytes_max: u64) -> io::Result<()> {
        let slot = self.slot();
        slot.allowed = slot.allowed.min(bytes_max);
        match slot.remaining.is_some_and(|bytes| bytes > bytes_max) {
            true => Err(slot.exchange.reject_body(TOO_LARGE)),
            false => Ok(()),
        }
    }

    /// The trailers, when all before them was read.
    pub(in crate::engine) fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        let slot = self.slot();
        let is_at_end = slot.has_ended && slot.input.is_empty();
        slot.trailers.take_if(|_| is_at_end)
    }

    /// Sends a 100 if the client waits for one.
    fn send_continue(&mut self) {
        if std::mem::take(&mut self.slot().expects) {
            let stream = self.stream;
            let http2 = self.http2();
            (http2.machine).send_interim(stream, 100, b"", &mut http2.out);
            self.conn.note_due();
        }
    }

    /// Records that the body did not arrive in time, and the response to send for it.
    pub(in crate::engine) fn body_timeout_error(&mut self) -> io::Error {
        self.conn.all.counters.timed_out.count(TimeLimit::Body);
        let reject = Reject::new(408, "request body took too long");
        (self.slot().exchange).fail_body(io::ErrorKind::TimedOut, reject)
    }

    /// Counts content that was passed on, and ends the wait for that.
    fn note_sent(&mut self, bytes: usize) {
        let now_ms = self.conn.all.context.now_ms();
        let http2 = self.http2();
        http2.sent_ms = now_ms;
        http2.window_rate.end_wait(now_ms);
        http2.window_rate.record_bytes(bytes);
        let exchange = &mut self.slot().exchange;
        exchange.write_rate.end_wait(now_ms);
        exchange.write_rate.record_bytes(bytes);
        exchange.write_deadline_ms = None;
        exchange.log_entries.accept(bytes);
        self.conn.note_due();
    }
}

const TOO_LARGE: Reject = Reject::new(413, "request body too large");
