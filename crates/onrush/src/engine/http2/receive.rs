//! Received frames: requests start, bodies are passed on, and what waits for the client goes on.

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::BURST_MAX;
use crate::engine::connection::http2::{Drain, Slot};
use crate::engine::http1::pending::PendingHandler;
use crate::engine::http2::respond::{Responded, is_in_memory, rejection};
use crate::engine::lifecycle::{Engine, count, guarded, panic_response};
use crate::engine::open::OpenConn;
use crate::engine::open::frames::NextFrame;
use crate::engine::shared::exchange_log::Received;
use crate::engine::shared::receive_memory::AHEAD_BYTES_MAX;
use crate::handler::Pending;
use crate::log::{LogEntries, LogEntry, Outcome};
use crate::metrics::{CloseReason, Refusal};
use crate::panic_guard::PanicGuard;
use crate::params::UNROUTED;
use crate::request::RequestParts;
use onrush_proto::head::{Framing, Head};
use onrush_proto::http2::connection::Event;
use onrush_proto::http2::frame::ErrorCode;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use onrush_rt::{coop, diagnose, user};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::task::Context;

/// While receive memory is short, a stream whose body nobody reads holds at most this much of it.
const UNREAD_WHEN_SHORT_BYTES_MAX: usize = 16 * 1024;

impl Engine {
    /// Handles received `data`.
    #[inline(never)]
    pub(in crate::engine) fn receive_frames(self: &Rc<Self>, id: ConnId, data: Buf) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let Some(http2) = conn.http2() else { return };
            if http2.is_held_up || http2.has_input_task {
                let block_bytes = self.context.pool().block_bytes();
                let wire = &mut conn.active().wire;
                wire.gather_input(data, block_bytes);
                if wire.input_bytes >= AHEAD_BYTES_MAX && !conn.state.is_paused() {
                    conn.pause_receiving();
                }
                return;
            }
        }
        self.process_frames(id, data);
        self.send_frames(id);
        self.watch_input(id);
    }

    /// Goes on with received bytes that have waited.
    pub(super) fn resume_frames(self: &Rc<Self>, id: ConnId) {
        loop {
            let data = {
                let Some(mut conn) = self.conns.open(id) else {
                    return;
                };
                let Some(http2) = conn.http2() else { return };
                if http2.is_held_up || http2.has_input_task {
                    break;
                }
                let data = conn.active().wire.pop_input();
                if data.is_none() && conn.state.is_paused() {
                    conn.resume_receiving();
                }
                data
            };
            let Some(data) = data else { break };
            self.process_frames(id, data);
        }
        if (self.conns.open(id)).is_some_and(|conn| conn.state.has_ended()) {
            self.end_of_streams(id);
        }
        self.send_frames(id);
        self.watch_input(id);
    }

    /// Takes all frames of `input`, unless requests have to wait.
    fn process_frames(self: &Rc<Self>, id: ConnId, mut input: Buf) {
        loop {
            let mut parts = self.request_pool.take(self);
            let next = self.conns.next_frame(id, &mut input, &mut parts.head);
            if let NextFrame::Event(Event::Request { stream }, _) = next {
                self.start_stream(id, stream, parts);
                if self.must_defer_frames(id) {
                    return self.defer_frames(id, input);
                }
                continue;
            }
            self.request_pool.give(parts);
            let (event, bytes) = match next {
                NextFrame::Event(event, bytes) => (event, bytes),
                NextFrame::NeedMore | NextFrame::Gone => return,
                NextFrame::Full => return self.hold_up(id, input),
                NextFrame::Failed(fatal, reason) => return self.fail_streams(id, fatal, reason),
            };
            match event {
                Event::Data { stream, data, ends } => {
                    self.receive_content(id, stream, bytes.slice(data), ends);
                }
                Event::Trailers { stream, lines } => self.receive_trailers(id, stream, lines),
                Event::Rejected { stream, reject } => self.reject_stream(id, stream, reject),
                Event::Malformed { stream, reason } => self.note_malformed(id, stream, reason),
                Event::Reset { stream } => self.leave_stream(id, stream, CloseReason::Client),
                Event::Writable { .. } => {} // Turns are given when all of `input` was processed.
                Event::Request { .. } | Event::NeedMore | Event::Nothing | Event::Leaving => {}
            }
        }
    }

    /// Whether the connection has started as many requests as it may in this iteration of the event
    /// loop. So one connection does not delay the others.
    fn must_defer_frames(&self, id: ConnId) -> bool {
        let iteration = self.context.iteration();
        let Some(mut conn) = self.conns.open(id) else {
            return false;
        };
        let Some(http2) = conn.http2() else {
            return false;
        };
        let started = match http2.started {
            (of, started) if of == iteration => started + 1,
            _ => 1,
        };
        http2.started = (iteration, started);
        coop::spend_operation() || started >= u32::from(BURST_MAX)
    }

    /// Leaves `input` and what is received behind it to a task.
    fn defer_frames(self: &Rc<Self>, id: ConnId, input: Buf) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.active().wire.unpop_input(input);
            let Some(http2) = conn.http2() else { return };
            http2.has_input_task = true;
        }
        let engine = self.clone();
        let work = async move {
            if let Some(mut conn) = engine.conns.open(id)
                && let Some(http2) = conn.http2()
            {
                http2.has_input_task = false;
            }
            engine.resume_frames(id);
        };
        self.context.spawn(work).detach();
    }

    /// Processes no more input before the client has taken what was sent.
    fn hold_up(self: &Rc<Self>, id: ConnId, input: Buf) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        conn.active().wire.unpop_input(input);
        let Some(http2) = conn.http2() else { return };
        http2.is_held_up = true;
        if !conn.state.is_paused() && !conn.state.has_ended() {
            conn.pause_receiving();
        }
    }

    /// Passes a request to the application.
    fn start_stream(self: &Rc<Self>, id: ConnId, stream: u32, mut parts: Box<RequestParts>) {
        let request = RequestId::of_stream(id, stream);
        let has_body = parts.head.framing() != Framing::None;
        let is_short = has_body && self.conns.is_short_for_bodies();
        let Some((bytes, is_tls)) = self.take_stream_head(id, is_short) else {
            self.request_pool.give(parts);
            let reject = Reject::new(503, "server is low on memory");
            return self.reject_stream(id, stream, reject);
        };
        count(&self.counters.requests);
        // What follows an extended CONNECT is read by `Request::upgrade`.
        let asks = self.settings.extended_connect && parts.head.method(&bytes) == "CONNECT";
        // The end of an empty body may never come.
        let is_empty = parts.head.content_length() == Some(0);
        if has_body || is_empty || asks || self.conns.io.log.is_on() {
            self.add_slot(request, &parts.head, &bytes);
        }
        (self.conns.io.measurements).begin(&parts.head, &bytes, is_tls);
        parts.set_id(request);
        let call = parts.into_request(bytes, has_body);
        let mut reply = None;
        self.context.begin_poll(UNROUTED);
        let started = {
            let task_slot = self.task_slot.borrow();
            let mut cx = Context::from_waker(task_slot.waker());
            guarded(&self.counters, || {
                self.service.start(call, &mut cx, &mut reply)
            })
        };
        match started {
            Some(None) => {} // The response is in `reply`.
            Some(Some(pending)) => return self.make_handler_stream(request, pending),
            None => reply = None, // The handler has panicked.
        }
        let response = reply.unwrap_or_else(panic_response);
        self.send_stream_response(request, response);
    }

    /// The head of the request that was received last, in memory of its own, and whether it was
    /// received through TLS. `None` if `is_short`, or if there is no memory for it.
    fn take_stream_head(&self, id: ConnId, is_short: bool) -> Option<(Buf, bool)> {
        let mut conn = self.conns.open(id)?;
        let is_tls = conn.transport.is_tls();
        if conn.http2()?.drain != Drain::No {
            conn.announce_drain_if_busy(self.context.now_ms());
        }
        let http2 = conn.http2()?;
        http2.idle_deadline_ms = None;
        // What is refused is the last request too, and is not kept.
        let known = http2.last_head.take();
        if let Some(known) = known.filter(|_| http2.machine.is_repeated() && !is_short) {
            http2.last_head = Some(known.clone());
            return Some((known, is_tls));
        }
        let bytes = http2.machine.head_bytes();
        let block = self.context.pool().take_exact(bytes.len());
        let mut block = block.filter(|_| !is_short)?;
        block.extend(bytes);
        let bytes = block.into_buf();
        http2.last_head = Some(bytes.clone());
        Some((bytes, is_tls))
    }

    /// Adds the slot of a request that is going to start, or has started and is not complete.
    fn add_slot(&self, request: RequestId, head: &Head, bytes: &[u8]) {
        let Some(mut conn) = self.conns.open(request.connection) else {
            return;
        };
        let log = &self.conns.io.log;
        let entry = log.is_on().then(|| log.parsed_entry(&conn, head, bytes));
        let Some(http2) = conn.http2() else { return };
        let has_body = head.framing() != Framing::None;
        let mut slot = Slot::new(request.number, http2.machine.priority(request.number));
        slot.has_ended = !has_body && http2.machine.client_has_ended(request.number);
        slot.remaining = head.content_length();
        slot.allowed = self.limits().body_bytes_max;
        slot.expects = has_body && head.expects_continue();
        if let Some(entry) = entry {
            slot.exchange.log_entries.begin(entry);
        }
        http2.add_slot(slot);
    }

    /// Adds the slot of a request without a body that did not need one before, if it has none.
    fn need_slot(&self, request: RequestId) {
        let Some(mut conn) = self.conns.open(request.connection) else {
            return;
        };
        let Some(http2) = conn.http2() else { return };
        if http2.place(request.number).is_none() && http2.machine.is_open(request.number) {
            let mut slot = Slot::new(request.number, http2.machine.priority(request.number));
            slot.has_ended = true;
            http2.add_slot(slot);
        }
    }

    /// Sends a response that is there.
    fn send_stream_response(
        self: &Rc<Self>,
        request: RequestId,
        mut response: crate::response::Response,
    ) {
        match self.respond(request, &mut response) {
            Responded::Gone => self.conns.io.measurements.abort_present(),
            Responded::Whole => self.finish_stream(request),
            Responded::Content(content, send_as) => {
                self.need_slot(request);
                if is_in_memory(&content) {
                    self.expect_content(request);
                }
                self.task_slot.borrow().waker().wake_by_ref();
                let work = self.clone().send_content(request, content, send_as);
                self.make_stream_task(request, work);
            }
        }
    }

    /// Creates the task of a handler that was polled and is pending.
    fn make_handler_stream(self: &Rc<Self>, request: RequestId, pending: Pending) {
        self.need_slot(request);
        let waiting = PendingHandler::new(self);
        let (engine, pending) = (self.clone(), PanicGuard::new(pending));
        let work = async move {
            let mut response = waiting.response(pending).await;
            match engine.respond(request, &mut response) {
                Responded::Gone => {}
                Responded::Whole => engine.finish_stream(request),
                Responded::Content(content, send_as) => {
                    drop(response);
                    if is_in_memory(&content) {
                        engine.expect_content(request);
                    }
                    engine.send_content(request, content, send_as).await;
                }
            }
        };
        self.make_stream_task(request, work);
    }

    /// Creates the task of a stream, which begins when the waker of [`Engine::task_slot`] is
    /// called.
    fn make_stream_task(
        self: &Rc<Self>,
        request: RequestId,
        work: impl Future<Output = ()> + 'static,
    ) {
        let task_slot = self.task_slot.replace(self.context.task_slot());
        let total_ms = u64::from(self.limits().total_timeout_ms);
        let deadline_ms = self.context.now_ms() + total_ms;
        let Some(mut stream) = self.conns.stream(request) else {
            return drop(work);
        };
        let exchange = &mut stream.slot().exchange;
        self.conns.io.measurements.suspend(exchange);
        exchange.task = Some(task_slot.start(self.guard_task(request.connection, work)));
        let is_limited = total_ms > 0 && !stream.slot().is_upgraded;
        if is_limited {
            stream.slot().exchange.total_deadline_ms = Some(deadline_ms);
            stream.conn.note_deadline(deadline_ms);
        }
    }

    /// Responds to a request that breaks a rule or exceeds a limit, without a handler.
    fn reject_stream(self: &Rc<Self>, id: ConnId, stream: u32, reject: Reject) {
        self.counters.rejected.count(Refusal::of(reject.status));
        diagnose!(DEBUG, connection = id.token(), stream = stream, status = reject.status,
            reason = reject.reason; "request rejected");
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let entry = self.rejected_entry(&mut conn);
            let Some(http2) = conn.http2() else { return };
            http2.idle_deadline_ms = None;
            let mut slot = Slot::new(stream, http2.machine.priority(stream));
            if let Some(entry) = entry {
                slot.exchange.log_entries.begin(entry);
            }
            http2.add_slot(slot);
        }
        self.send_stream_response(RequestId::of_stream(id, stream), rejection(reject));
    }

    /// Records a request whose head is malformed. Its stream was reset: there is no response.
    #[cold]
    fn note_malformed(&self, id: ConnId, stream: u32, reason: &'static str) {
        const STATUS: u16 = 400; // What HTTP/1 responds.
        self.counters.rejected.count(Refusal::of(STATUS));
        diagnose!(DEBUG, connection = id.token(), stream = stream, status = STATUS,
            reason = reason; "request rejected");
        let entry = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            self.rejected_entry(&mut conn)
        };
        if let Some(entry) = entry {
            let mut entries = LogEntries::default();
            entries.begin(entry);
            entries.respond(STATUS, 0, 0, Some(0));
            self.conns.io.log.end_accepted(&mut entries);
        }
    }

    /// An entry for the last request, which is rejected, if there is an access log.
    fn rejected_entry(&self, conn: &mut OpenConn<'_>) -> Option<LogEntry> {
        let log = &self.conns.io.log;
        if !log.is_on() {
            return None;
        }
        let bytes = conn.http2()?.machine.head_bytes().to_vec();
        let (bytes, limits) = (&bytes[..], &self.limits());
        let entry = log.rejected_entry(conn, Received { bytes, limits });
        let outcome = Outcome::Rejected;
        Some(LogEntry { outcome, ..entry })
    }

    /// Passes on a piece of a body.
    fn receive_content(self: &Rc<Self>, id: ConnId, stream: u32, data: Buf, ends: bool) {
        let bytes = data.len();
        let (mut is_over, mut is_evicted) = (false, false);
        let reader = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let now_ms = self.context.now_ms();
            let linger_ms = u64::from(self.limits().linger_timeout_ms);
            let Some(http2) = conn.http2() else { return };
            match http2.slot(stream) {
                Some(slot) if !slot.is_discarded => {
                    slot.has_ended = ends;
                    slot.expects = false;
                    slot.exchange.body_rate.record_bytes(bytes);
                    slot.exchange.body_rate.end_wait(now_ms);
                    slot.exchange.body_deadline_ms = None;
                    let memory = &self.conns.memory;
                    memory.gather(&mut slot.input, data);
                    slot.input_bytes += bytes;
                    let is_short = memory.is_short();
                    is_evicted = slot.input_bytes > UNREAD_WHEN_SHORT_BYTES_MAX
                        && slot.exchange.reader.is_none()
                        && is_short;
                    let reader = slot.exchange.reader.take();
                    if !is_short && http2.may_receive_more() {
                        (http2.machine).release_held(stream, bytes, &mut http2.out);
                    }
                    reader
                }
                other => {
                    if let Some(slot) = other {
                        slot.has_ended = ends;
                        if let Some(rest) = &mut slot.rest {
                            rest.receive(bytes as u64, now_ms + linger_ms);
                            is_over = ends || rest.bytes == 0;
                        }
                    }
                    (http2.machine).consume(stream, bytes, false, &mut http2.out);
                    None
                }
            }
        };
        if is_over {
            self.end_rest(id, stream);
        }
        if is_evicted {
            self.evict_body(id, stream);
        }
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }

    /// Drops what was received of a body and is not read, because receive memory is short.
    #[cold]
    fn evict_body(&self, id: ConnId, stream: u32) {
        let request = RequestId::of_stream(id, stream);
        let Some(mut stream) = self.conns.stream(request) else {
            return;
        };
        self.counters.evicted.add(1);
        let reject = Reject::new(503, "server is low on memory");
        (stream.slot().exchange).fail_body(io::ErrorKind::OutOfMemory, reject);
        stream.discard(0);
    }

    /// Ends a stream whose response is complete and whose body was discarded.
    pub(super) fn end_rest(&self, id: ConnId, stream: u32) {
        let request = RequestId::of_stream(id, stream);
        let is_open = {
            let stream = self.conns.stream(request);
            stream.is_some_and(|mut stream| stream.http2().machine.is_half_closed(request.number))
        };
        match is_open {
            true => self.reset_stream(request, ErrorCode::NO_ERROR, CloseReason::Complete),
            false => self.leave_stream(id, stream, CloseReason::Complete),
        }
    }

    fn receive_trailers(self: &Rc<Self>, id: ConnId, stream: u32, lines: Box<[u8]>) {
        let mut is_over = false;
        let reader = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let Some(slot) = conn.http2().and_then(|http2| http2.slot(stream)) else {
                return;
            };
            (slot.has_ended, slot.trailers) = (true, Some(lines));
            is_over |= slot.rest.is_some();
            slot.exchange.body_deadline_ms = None;
            slot.exchange.reader.take()
        };
        if is_over {
            self.end_rest(id, stream);
        }
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }
}
