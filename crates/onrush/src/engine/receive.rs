//! Receives requests and passes them to the application one after the other, in order.
//!
//! [`Engine::process_input`] is the loop of a connection: it parses a head, calls the handler and
//! renders the response. The responses to all requests of one receive are sent together. A handler
//! that is not ready at once becomes a task, and the loop continues after its response.

use super::connection::{Active, BURST_MAX, Conn, Phase, Then};
use super::deadline::{DRAIN_IDLE_MS, Wait};
use super::render::{Rendered, SendFuture};
use super::request_body::AHEAD_BYTES_MAX;
use super::send::connection_gone;
use super::{Engine, count, guarded, panic_response};
use crate::host::{BodyId, ConnId};
use crate::log::Outcome;
use crate::metrics::{CloseReason, Refusal};
use crate::params::UNROUTED;
use crate::request::RequestParts;
use onrush_proto::connection::{After, Step};
use onrush_proto::head::{Framing, Head};
use onrush_proto::reject::Reject;
use onrush_rt::buf::{Block, Buf};
use onrush_rt::{coop, diagnose, user};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Rendered responses are sent at this size, even if more input can be parsed.
const OUT_BYTES_MAX: usize = 128 * 1024;
/// The response buffer is freed after a call that made it larger than this.
const OUT_KEPT_BYTES: usize = 256 * 1024;

/// How the loop continues after one step.
enum Next {
    /// With this input, or with the queued input when it is empty.
    Again(Buf),
    /// When more input has been received.
    NeedMore,
    /// Not at all: the connection is gone, or a task continues.
    Stop,
    /// Not at all: the rendered response is the last one.
    Last(Then),
}

/// The receive memory of the worker is exhausted.
struct NoMemory;

impl Engine {
    /// Handles received `data`.
    #[inline(always)]
    pub(super) fn received(self: &Rc<Self>, id: ConnId, data: Buf) {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        if conn.phase != Phase::Ready {
            drop(conns);
            return self.receive_while_busy(id, data);
        }
        // Nothing is queued, so `data` is parsed first and joined with nothing.
        let is_next = conn.active.is_none() && !data.is_empty();
        drop(conns);
        match is_next {
            true => self.process_input(id, Some(data), None),
            false => self.process_input(id, None, Some(data)),
        }
    }

    /// Handles `data` that was received on a connection that does not wait for a request.
    #[inline(never)]
    fn receive_while_busy(self: &Rc<Self>, id: ConnId, data: Buf) {
        let waker = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            match conn.phase {
                Phase::Busy | Phase::Flushing | Phase::Leaving => self.queue_input(id, conn, data),
                Phase::Ready | Phase::Lingering => return,
            }
        };
        if let Some(waker) = waker {
            user::wake(waker);
        }
        self.reclaim_memory();
    }

    /// Continues with the next request of a connection after its last response was sent.
    pub(super) fn resume_reading(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            self.set_phase(id, conn, Phase::Ready);
            if conn.is_listed() {
                conns.unlist(id);
            }
            let Some(conn) = conns.get(id) else { return };
            // Queued input is parsed first. While much is queued, the kernel buffers what follows.
            let queued = conn.active.as_ref().map_or(0, |active| active.input_bytes);
            if conn.paused && queued < AHEAD_BYTES_MAX / 2 {
                self.resume(id, conn);
            }
            if conn.leaving.is_some() && !conn.ended {
                self.set_idle_deadline(id, conn);
                drop(conns);
                return self.begin_migration(id);
            }
        }
        self.process_input(id, None, None);
    }

    /// Parses `next`, then queued input, then `data`, as far as possible, and sends the responses.
    fn process_input(self: &Rc<Self>, id: ConnId, next: Option<Buf>, data: Option<Buf>) {
        let mut out = self.out.take();
        out.clear();
        let mut started = 0;
        let then = self.process_input_into(id, next, data, &mut out, &mut started);
        if started > 1 {
            self.note_started(id, started);
        }
        match then {
            Some(Then::Continue) => self.flush_and_idle(id, &out),
            Some(then) => {
                if !self.flush(id, &out, then) {
                    self.reclaim_memory();
                }
            }
            None => self.abort_current_request(),
        }
        if out.capacity() <= OUT_KEPT_BYTES {
            self.out.set(out);
        }
    }

    /// Nothing is sent now. Records finished requests, and discards the measurement of a request
    /// whose connection closed before its response.
    #[inline(never)]
    fn abort_current_request(self: &Rc<Self>) {
        self.reclaim_memory();
        let Some(recorder) = &self.recorder else {
            return;
        };
        recorder.record();
        if let Some(measured) = self.measuring.take() {
            recorder.abort(&measured);
        }
    }

    /// Returns what follows when `out` has been sent; `None` when nothing is left to do here.
    /// Counts the requests that it starts in `started`, at most [`BURST_MAX`]; a task starts the
    /// others.
    fn process_input_into(
        self: &Rc<Self>,
        id: ConnId,
        next: Option<Buf>,
        mut data: Option<Buf>,
        out: &mut Vec<u8>,
        started: &mut usize,
    ) -> Option<Then> {
        let mut responses = 0;
        let mut remaining = next;
        let mut started_max = 1;
        loop {
            let input = match remaining.take() {
                Some(remaining) => remaining, // No partial head precedes it.
                None if data.is_none() && !self.has_queue(id)? => return Some(Then::Continue),
                None => match self.next_input(id, data.take())? {
                    Some(input) => input,
                    None => return Some(Then::Continue),
                },
            };
            // The budget of the event or task already covers the first request.
            if *started > 0
                && (coop::spend_operation() || *started >= started_max)
                && self.is_budget_exhausted(id, *started, &mut started_max)
            {
                self.defer_input(id, input, out);
                return None;
            }
            *started += 1;
            match self.step(id, input, out) {
                Next::Again(behind) => remaining = Some(behind).filter(|data| !data.is_empty()),
                Next::NeedMore => {
                    // Queued input behind a partial head continues it.
                    let mut conns = self.conns.borrow_mut();
                    let conn = conns.get(id)?;
                    if conn
                        .active
                        .as_ref()
                        .is_none_or(|active| active.input.len() < 2)
                    {
                        return Some(Then::Continue);
                    }
                }
                Next::Stop => return None,
                Next::Last(then) => return Some(then),
            }
            responses += 1;
            if responses >= self.limits().pipelined_requests_max || out.len() > OUT_BYTES_MAX {
                responses = 0;
                if let Some(remaining) = remaining.take() {
                    let mut conns = self.conns.borrow_mut();
                    conns.get(id)?.active().unpop_input(remaining);
                }
                coop::spend(out.len());
                let sent = self.flush(id, out, Then::Continue);
                out.clear();
                if !sent {
                    return None; // `resume_reading` follows after the send.
                }
            }
        }
    }

    /// Whether to leave further requests for a later iteration, after `started` requests. That is
    /// so when the budget is exhausted, or when the connection has started as many requests as it
    /// may in this event-loop iteration. Sets `started_max` to that number if it is 1, its initial
    /// value.
    ///
    /// A partial head is never deferred, because its time limit is running. Nothing is deferred
    /// while receive memory is short: parsing frees memory, and deferring holds it.
    #[inline(never)]
    fn is_budget_exhausted(&self, id: ConnId, started: usize, started_max: &mut usize) -> bool {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id);
        if *started_max == 1 {
            let iteration = self.context.iteration();
            let left = conn.as_ref().map(|conn| conn.may_start(iteration));
            *started_max = usize::from(left.unwrap_or(BURST_MAX)).max(1);
        }
        (started >= *started_max || coop::is_exhausted())
            && conn.is_some_and(|conn| !conn.in_head)
            && !self.is_short()
    }

    #[inline(never)]
    fn note_started(&self, id: ConnId, requests: usize) {
        if let Some(conn) = self.conns.borrow_mut().get(id) {
            let requests = u8::try_from(requests).unwrap_or(u8::MAX);
            conn.note_started(self.context.iteration(), requests);
        }
    }

    /// Sends the rendered responses, and leaves `input` and the queued input behind it to a task,
    /// because the connection may start no more requests in this iteration.
    #[inline(never)]
    fn defer_input(self: &Rc<Self>, id: ConnId, input: Buf, out: &mut Vec<u8>) {
        let nothing = input.slice(0..0);
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.active().unpop_input(input);
        }
        coop::spend(out.len());
        diagnose!(TRACE, connection = id.token(), exhausted = coop::is_exhausted();
            "pipelined requests are left to a task");
        let sent = self.flush(id, out, Then::Continue);
        out.clear();
        if sent {
            self.resume_in_task(id, nothing);
        }
    }

    /// Whether there may be queued input; `None` when the connection is gone.
    #[inline]
    fn has_queue(&self, id: ConnId) -> Option<bool> {
        Some(self.conns.borrow_mut().get(id)?.active.is_some())
    }

    /// Returns the input to parse next: queued input first, then `data`, joined if a head spans
    /// them. `None` when the connection is gone.
    #[inline(never)]
    fn next_input(self: &Rc<Self>, id: ConnId, data: Option<Buf>) -> Option<Option<Buf>> {
        let data = data.filter(|data| !data.is_empty());
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id)?;
        let Some(active) = conn.active.as_mut() else {
            return Some(data);
        };
        if conn.in_head {
            if let Some(data) = data {
                active.push_input(data);
            }
            if let Ok(joined) = self.join_head(active) {
                return Some(joined);
            }
            drop(conns);
            return self.join_head_after_reclaim(id);
        }
        match data {
            Some(data) => Some(Some(data)),
            None => Some(active.pop_input()),
        }
    }

    /// Calls [`Engine::join_head`] again after older heads have been evicted. The eviction may
    /// close this connection, too.
    #[cold]
    fn join_head_after_reclaim(self: &Rc<Self>, id: ConnId) -> Option<Option<Buf>> {
        self.reclaim_memory();
        let joined = {
            let mut conns = self.conns.borrow_mut();
            let conn = conns.get(id).filter(|conn| conn.phase == Phase::Ready)?;
            self.join_head(conn.active())
        };
        if joined.is_err() {
            let reject = Reject::new(503, "server is low on memory");
            self.reject_request(id, reject, Outcome::Evicted);
        }
        joined.ok()
    }

    /// Joins the first two queued buffers, because a head begins in the first and continues in the
    /// second. Fails when there is no memory for that, and leaves both queued.
    fn join_head(&self, active: &mut Active) -> Result<Option<Buf>, NoMemory> {
        let Some(first) = active.pop_input() else {
            return Ok(None);
        };
        let Some(second) = active.pop_input() else {
            return Ok(Some(first));
        };
        let bytes = first.len() + second.len();
        let mut block = match first.try_into_block() {
            Ok(block) if block.capacity() >= bytes => block,
            // Twice the size, so that a head in many pieces is not copied for each of them.
            kept => {
                let room = (bytes * 2).max(512);
                let Some(mut block) = self.context.pool().take_exact(room) else {
                    active.unpop_input(second);
                    active.unpop_input(kept.map_or_else(|shared| shared, Block::into_buf));
                    return Err(NoMemory);
                };
                match kept {
                    Ok(old) => block.extend(old.filled()),
                    Err(old) => block.extend(&old),
                };
                block
            }
        };
        block.extend(&second);
        Ok(Some(block.into_buf()))
    }

    fn step(self: &Rc<Self>, id: ConnId, data: Buf, out: &mut Vec<u8>) -> Next {
        let mut parts = self.request_pool.take(self);
        let parsed = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else {
                return Next::Stop;
            };
            if conn.draining_body {
                self.request_pool.give(parts);
                return self.drain_body(conn, data);
            }
            match conn
                .machine
                .receive_head(&data, &mut parts.head, self.limits())
            {
                Ok(Step::Request { head_bytes }) => {
                    if std::mem::take(&mut conn.in_head) {
                        conns.unlist(id);
                    }
                    Ok(head_bytes)
                }
                Ok(Step::NeedMore) => {
                    self.keep_partial(id, conn, data);
                    conns.list_head(id);
                    drop(conns);
                    self.request_pool.give(parts);
                    return Next::NeedMore;
                }
                Err(reject) => {
                    let after = self.reject_head(conn, reject, &data, out);
                    conns.unlist(id);
                    Err((reject, after))
                }
            }
        };
        match parsed {
            Ok(head_bytes) => self.start_request(id, data, parts, head_bytes, out),
            Err((reject, after)) => {
                self.request_pool.give(parts);
                self.counters.rejected.count(Refusal::of(reject.status));
                diagnose!(DEBUG, connection = id.token(), status = reject.status,
                    reason = reject.reason; "request rejected");
                Next::Last(Then::following(after, false))
            }
        }
    }

    /// Discards body bytes that a finished request left unread.
    fn drain_body(&self, conn: &mut Conn, mut data: Buf) -> Next {
        match conn.machine.receive_body(&data, self.limits()) {
            Ok(piece) => {
                conn.draining_body = !piece.end;
                data.advance(piece.consumed);
                conn.active().exchanges.receive(piece.consumed);
                let rate_meter = &mut conn.active().body_rate;
                rate_meter.end_wait(self.context.now_ms());
                rate_meter.record_bytes(piece.consumed);
                Next::Again(data)
            }
            Err(_) => Next::Last(Then::Linger), // The response was already sent.
        }
    }

    /// Stores a partial head until more of it arrives.
    fn keep_partial(&self, id: ConnId, conn: &mut Conn, data: Buf) {
        if !conn.in_head {
            conn.in_head = true;
            self.set_limit(id, conn, self.limits().head_timeout_ms);
        }
        let kept = self.shrink_block(data);
        conn.active().unpop_input(kept);
    }

    /// Returns the same bytes. Copies few bytes to a small block, so that slow clients do not hold
    /// large blocks.
    pub(super) fn shrink_block(&self, data: Buf) -> Buf {
        let is_small = data.len() * 4 < self.context.pool().block_bytes();
        match is_small && !data.is_empty() {
            true => self.copy_to_own_block((data.len() * 2).max(512), data),
            false => data,
        }
    }

    /// Passes a request to the application, and renders its response if it is ready at once.
    #[inline(always)]
    fn start_request(
        self: &Rc<Self>,
        id: ConnId,
        mut data: Buf,
        parts: Box<RequestParts>,
        head_bytes: usize,
        out: &mut Vec<u8>,
    ) -> Next {
        if parts.head.framing() != Framing::None && self.is_short_for_bodies() {
            let then = self.shed_body(id, parts, &data[..head_bytes], out);
            return then.map_or(Next::Stop, Next::Last);
        }
        count(&self.counters.requests);
        let bytes = self.take_head(&mut data, head_bytes);
        let mut body = None;
        if parts.head.framing() != Framing::None {
            // Reading the body may send a 100 (Continue), which has to follow earlier responses.
            if self.send_or_keep(id, out).is_err() {
                self.close(id, CloseReason::Broken);
                return Next::Stop;
            }
            out.clear();
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else {
                return Next::Stop;
            };
            conn.active()
                .unpop_input(std::mem::replace(&mut data, bytes.slice(0..0)));
            let response_count = conn.response_count;
            body = Some(BodyId {
                connection: id,
                response_count,
            });
        }
        if self.log.is_some() {
            self.log_request(id, &parts.head, &bytes);
        }
        if self.recorder.is_some() {
            self.measure(&parts.head, &bytes);
        }
        let has_body = body.is_some();
        let request = parts.into_request(bytes, id, body);
        let mut reply = None;
        self.context.begin_poll(UNROUTED);
        let started = {
            let task_slot = self.task_slot.borrow();
            let mut cx = Context::from_waker(task_slot.waker());
            guarded(self, || self.service.start(request, &mut cx, &mut reply))
        };
        match started {
            Some(None) => {}
            Some(Some(pending)) => {
                self.make_handler_task(id, data, out, pending);
                return Next::Stop;
            }
            None => reply = None,
        }
        if has_body {
            self.clear_body_reader(id); // The handler has responded and needs no more of the body.
        }
        let response = match &mut reply {
            Some(response) => response,
            none => none.insert(panic_response()),
        };
        match self.render_response(id, response, out, data.len()) {
            Rendered::Whole(After::KeepAlive) => {
                // Most responses have nothing to drop, but calling their destructor has a cost.
                if response.is_plain() {
                    std::mem::forget(reply);
                }
                Next::Again(data)
            }
            other => self.after_handler(id, other, data),
        }
    }

    /// Splits the head off `data`.
    #[inline]
    fn take_head(&self, data: &mut Buf, head_bytes: usize) -> Buf {
        let bytes = data.slice(0..head_bytes);
        data.advance(head_bytes);
        if self.waiting.get() >= self.waiting_with_blocks_max {
            return self.compact_both(bytes, data);
        }
        bytes
    }

    /// Copies the head and the input behind it out of their block. Does nothing if there is much
    /// input behind the head, because that needs the block in any case.
    #[inline(never)]
    fn compact_both(&self, bytes: Buf, data: &mut Buf) -> Buf {
        if data.len() * 4 >= self.context.pool().block_bytes() {
            return bytes;
        }
        let bytes = self.compact(bytes);
        *data = match data.is_empty() {
            true => bytes.slice(0..0),
            false => self.shrink_block(std::mem::replace(data, bytes.slice(0..0))),
        };
        bytes
    }

    /// Copies a small head out of its block. With many pending handlers, this one may become
    /// pending as well, and would hold a whole block for its head.
    fn compact(&self, bytes: Buf) -> Buf {
        let small = bytes.len() * 2 <= self.context.pool().block_bytes();
        match small {
            true => self.copy_to_own_block(bytes.len(), bytes),
            false => bytes,
        }
    }

    /// Copies the bytes to a new block with room for `room` bytes; returns them unchanged if there
    /// is no memory for that.
    fn copy_to_own_block(&self, room: usize, bytes: Buf) -> Buf {
        match self.context.pool().take_exact(room) {
            Some(mut block) => {
                block.extend(&bytes);
                block.into_buf()
            }
            None => bytes,
        }
    }

    /// Starts to measure a request.
    #[inline(never)]
    fn measure(&self, head: &Head, bytes: &Buf) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let body_bytes = head.content_length().unwrap_or(0);
        let measured = recorder.begin(head.method(bytes), head.version(), body_bytes);
        self.measuring.replace(Some(measured));
    }

    /// Returns what follows a response.
    #[inline(never)]
    fn after_handler(self: &Rc<Self>, id: ConnId, response: Rendered, data: Buf) -> Next {
        match response {
            Rendered::Gone => Next::Stop,
            Rendered::Whole(after) => self.next_step(id, after, data),
            Rendered::Sending(sending) => self.poll_send_now(id, sending, data),
        }
    }

    /// Polls the sending of a response once before it creates a task, because the response may fit
    /// into the socket buffer.
    #[inline(never)]
    fn poll_send_now(self: &Rc<Self>, id: ConnId, mut sending: SendFuture, data: Buf) -> Next {
        self.limit_write(id, 0);
        let driven = {
            let task_slot = self.task_slot.borrow();
            let mut cx = Context::from_waker(task_slot.waker());
            self.poll_sending(id, &mut sending, &mut cx)
        };
        match driven {
            Poll::Ready(Some(after)) => self.next_step(id, after, data),
            Poll::Ready(None) => Next::Stop,
            Poll::Pending => {
                let work = self.clone().finish_sending(id, sending);
                self.make_task(id, data, work);
                Next::Stop
            }
        }
    }

    pub(super) fn has_input(&self, id: ConnId) -> bool {
        let mut conns = self.conns.borrow_mut();
        let active = conns.get(id).and_then(|conn| conn.active.as_ref());
        active.is_some_and(|active| active.input_bytes > 0)
    }

    /// Returns what follows a complete response.
    fn next_step(&self, id: ConnId, after: After, data: Buf) -> Next {
        match after {
            After::KeepAlive => {}
            After::DrainThenKeepAlive => {
                if let Some(conn) = self.conns.borrow_mut().get(id) {
                    conn.draining_body = true;
                }
            }
            last => {
                return Next::Last(Then::following(
                    last,
                    !data.is_empty() || self.has_input(id),
                ));
            }
        }
        Next::Again(data)
    }

    /// Sends `out`, and makes the connection idle when all of it was sent at once.
    #[inline]
    fn flush_and_idle(self: &Rc<Self>, id: ConnId, out: &[u8]) {
        let sent = {
            let mut conns = self.conns.borrow_mut();
            match conns.get(id) {
                Some(conn) => match self.send_now_or_keep(conn, out) {
                    Ok(true) if conn.needs_no_work() && !self.draining.get() => {
                        conn.release_active();
                        return self.set_limit(id, conn, self.limits().idle_timeout_ms);
                    }
                    sent => sent,
                },
                None => Err(connection_gone()),
            }
        };
        if self.sent(id, sent, Then::Continue) {
            self.enter_idle(id);
        } else {
            self.reclaim_memory();
        }
    }

    /// Makes a connection wait for its next request.
    #[inline(never)]
    fn enter_idle(self: &Rc<Self>, id: ConnId) {
        let (ended, in_head) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            if conn.paused {
                self.resume(id, conn); // A body was read directly.
            }
            if !conn.in_head {
                if !conn.draining_body {
                    conn.release_active();
                }
                self.set_idle_deadline(id, conn);
            }
            (conn.ended, conn.in_head)
        };
        if ended {
            self.close(id, CloseReason::Client); // A partial head cannot become complete.
        } else if in_head {
            self.reclaim_memory();
        }
    }

    /// Sets the deadline of a connection that waits for its next request or for the rest of a body.
    fn set_idle_deadline(&self, id: ConnId, conn: &mut Conn) {
        let limit_ms = match (self.draining.get(), conn.draining_body) {
            (false, false) => self.limits().idle_timeout_ms,
            (true, _) => DRAIN_IDLE_MS,
            (false, true) => match self.is_fast_enough(conn, Wait::Body) {
                true => self.limits().body_timeout_ms,
                false => 1, // The response was sent, so the connection can be closed.
            },
        };
        self.set_limit(id, conn, limit_ms);
    }
}
