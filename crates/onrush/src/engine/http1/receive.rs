//! Receives requests and passes them to the application one after the other, in order.
//!
//! [`Engine::process_input`] is the loop of a connection: it parses a head, calls the handler and
//! renders the response. The responses to all requests of one receive are sent together. A handler
//! that is not ready at once becomes a task, and the loop continues after its response.
//!
//! The steps that each request takes look the connection up in the table: an
//! [`OpenConn`](crate::engine::open::OpenConn) has four words, and costs a small request about ten
//! instructions (`cargo xtask bench --gate`).

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::http2::is_preface;
use crate::engine::connection::state::{AfterFlush, Expects, Phase};
use crate::engine::connection::{BURST_MAX, Conn, Responding};
use crate::engine::http1::input::NextInput;
use crate::engine::http1::render::{Rendered, SendFuture};
use crate::engine::lifecycle::{Engine, count, guarded, panic_response};
use crate::engine::shared::receive_memory::AHEAD_BYTES_MAX;
use crate::log::Outcome;
use crate::metrics::Refusal;
use crate::params::UNROUTED;
use crate::request::RequestParts;
use onrush_proto::connection::{After, Step};
use onrush_proto::head::Framing;
use onrush_rt::buf::Buf;
use onrush_rt::{coop, diagnose, user};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Rendered responses are sent at this size, even if more input can be parsed.
const OUT_FLUSH_BYTES: usize = 128 * 1024;

/// How the loop continues after one step.
enum LoopStep {
    /// Parse this input, or the queued input when it is empty.
    Parse(Buf),
    /// Wait until more input is received.
    NeedInput,
    /// Leave the loop: the connection is gone, or a task continues.
    Yield,
    /// Leave the loop: the rendered response is the last one.
    End(AfterFlush),
}

/// Whether `data`, which is not HTTP/1, begins a connection of HTTP/2 whose client knows that the
/// server speaks it (RFC 9113 §3.3). With TLS, it says so in the handshake.
#[cold]
fn begins_http2(conn: &Conn, data: &[u8]) -> bool {
    conn.response_count == 0 && !conn.transport.is_tls() && is_preface(data)
}

impl Engine {
    /// Handles received `data`.
    #[inline(always)]
    pub(in crate::engine) fn on_data(self: &Rc<Self>, id: ConnId, data: Buf) {
        let mut conns = self.conns.all();
        let Some(conn) = conns.get(id) else { return };
        if conn.state.phase() != Phase::Ready || conn.transport.is_tls() {
            let is_tls = conn.transport.is_tls();
            let in_proxy_header = conn.state.is_in_proxy_header();
            drop(conns);
            return match (in_proxy_header, is_tls) {
                (true, _) => self.receive_proxy_header(id, data),
                (false, true) => self.on_records(id, data),
                (false, false) => self.receive_while_busy(id, data),
            };
        }
        // Without queued input there is no partial head that `data` continues.
        let parse_in_place = conn.active.is_none() && !data.is_empty();
        drop(conns);
        match parse_in_place {
            true => self.process_input(id, Some(data), None),
            false => self.process_input(id, None, Some(data)),
        }
    }

    /// Handles bytes of HTTP that were received before, or decrypted.
    pub(in crate::engine) fn on_plaintext(self: &Rc<Self>, id: ConnId, data: Buf) {
        match self.conns.open(id).map(|conn| conn.state.phase()) {
            Some(Phase::Ready) => self.process_queued_input(id, Some(data)),
            Some(_) => self.receive_while_busy(id, data),
            None => {}
        }
    }

    /// Handles `data` that was received on a connection that does not wait for a request.
    #[inline(never)]
    fn receive_while_busy(self: &Rc<Self>, id: ConnId, data: Buf) {
        let waker = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            match conn.state.phase() {
                Phase::Busy | Phase::Flushing(_) | Phase::Leaving => conn.queue_input(data),
                Phase::Streams => {
                    drop(conn);
                    return self.receive_frames(id, data);
                }
                Phase::ProxyHeader | Phase::Ready | Phase::Lingering => return,
            }
        };
        if let Some(waker) = waker {
            user::wake(waker);
        }
        self.reclaim_memory();
    }

    /// Continues with the next request of a connection after the previous response was sent.
    pub(in crate::engine) fn resume_reading(self: &Rc<Self>, id: ConnId) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.state.become_ready(id);
            conn.unlist();
            // Queued input is parsed first. While much is queued, the kernel buffers what follows.
            if conn.state.is_paused() && conn.input_bytes() < AHEAD_BYTES_MAX / 2 {
                conn.resume_receiving();
            }
            if conn.state.leaving().is_some() && !conn.state.has_ended() {
                conn.set_idle_deadline();
                drop(conn);
                return self.begin_migration(id);
            }
        }
        self.process_queued_input(id, None);
    }

    /// [`Engine::process_input`] for queued input and `data` behind it.
    #[inline(never)]
    fn process_queued_input(self: &Rc<Self>, id: ConnId, data: Option<Buf>) {
        self.process_input(id, None, data);
    }

    /// Parses input as far as possible, and sends the responses. `in_place`: input with no queued
    /// input before it, which is parsed without a copy. `data`: input that may continue a partial
    /// head; see [`Engine::next_input`].
    fn process_input(self: &Rc<Self>, id: ConnId, in_place: Option<Buf>, data: Option<Buf>) {
        let mut out = self.conns.rendering.take_buffer();
        let mut steps = 0;
        let then = self.process_input_into(id, in_place, data, &mut out, &mut steps);
        if steps > 1 {
            // Only bursts are limited, so a single request is not counted.
            self.conns.note_started(id, steps);
        }
        match then {
            Some(AfterFlush::Continue) => self.flush_and_idle(id, &out),
            Some(then) => {
                if !self.send_then(id, &out, then) {
                    self.reclaim_memory();
                }
            }
            None => self.record_without_send(),
        }
        self.conns.rendering.keep_buffer(out);
    }

    /// The loop of [`Engine::process_input`]. Renders responses into `out`, and returns what
    /// follows when the caller has sent them; `None` when the caller has nothing to send. Counts
    /// parse steps in `steps`. After [`BURST_MAX`] requests in an iteration, or when the budget is
    /// used up, a task continues, unless a head is incomplete or memory is short.
    fn process_input_into(
        self: &Rc<Self>,
        id: ConnId,
        in_place: Option<Buf>,
        mut data: Option<Buf>,
        out: &mut Vec<u8>,
        steps: &mut usize,
    ) -> Option<AfterFlush> {
        let mut responses = 0;
        let mut remaining = in_place;
        let mut steps_max = 1; // `must_defer` sets the limit when a second step follows.
        loop {
            let input = match remaining.take() {
                Some(remaining) => remaining, // No partial head precedes it.
                None => {
                    let is_empty = data.is_none() && self.conns.all().get(id)?.active.is_none();
                    if is_empty {
                        return Some(AfterFlush::Continue);
                    }
                    match self.next_input(id, data.take()) {
                        NextInput::Data(input) => input,
                        NextInput::Empty => return Some(AfterFlush::Continue),
                        NextInput::Gone => return None,
                    }
                }
            };
            // The budget of the event or task already covers the first request.
            if *steps > 0
                && (coop::spend_operation() || *steps >= steps_max)
                && self.must_defer(id, *steps, &mut steps_max)
            {
                self.defer_input(id, input, out);
                return None;
            }
            *steps += 1;
            match self.process_once(id, input, out) {
                LoopStep::Parse(behind) => remaining = Some(behind).filter(|data| !data.is_empty()),
                LoopStep::NeedInput => {
                    // More input is queued behind the partial head: join them in the next pass.
                    let conn = self.conns.open(id)?;
                    let active = conn.active.as_ref();
                    if active.is_none_or(|active| active.wire.input.len() < 2) {
                        return Some(AfterFlush::Continue);
                    }
                }
                LoopStep::Yield => return None,
                LoopStep::End(then) => return Some(then),
            }
            responses += 1;
            if responses >= self.limits().pipelined_requests_max || out.len() > OUT_FLUSH_BYTES {
                responses = 0;
                if let Some(remaining) = remaining.take() {
                    self.conns.open(id)?.active().wire.unpop_input(remaining);
                }
                coop::spend(out.len());
                let sent = self.send_then(id, out, AfterFlush::Continue);
                out.clear();
                if !sent {
                    return None; // `resume_reading` follows after the send.
                }
            }
        }
    }

    /// Whether a task has to process the rest of the input, after `steps` parse steps: the budget
    /// is exhausted, or the connection has started as many requests as it may in this event-loop
    /// iteration. If `steps_max` has its initial value 1, sets it to the number of requests that
    /// the connection may start.
    ///
    /// A partial head is never deferred, because its time limit is running. Nothing is deferred
    /// while receive memory is short: parsing frees memory, and deferring holds it.
    #[inline(never)]
    fn must_defer(&self, id: ConnId, steps: usize, steps_max: &mut usize) -> bool {
        let conn = self.conns.open(id);
        if *steps_max == 1 {
            let iteration = self.context.iteration();
            let left = conn.as_ref().map(|conn| conn.may_start(iteration));
            *steps_max = usize::from(left.unwrap_or(BURST_MAX)).max(1);
        }
        (steps >= *steps_max || coop::is_exhausted())
            && conn.is_some_and(|conn| conn.state.expects() != Expects::Head)
            && !self.conns.memory.is_short()
    }

    /// Sends the rendered responses, and leaves `input` and the queued input behind it to a task.
    /// Called when [`Engine::must_defer`] returned `true`.
    #[inline(never)]
    fn defer_input(self: &Rc<Self>, id: ConnId, input: Buf, out: &mut Vec<u8>) {
        let nothing = input.slice(0..0);
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.active().wire.unpop_input(input);
        }
        coop::spend(out.len());
        diagnose!(TRACE, connection = id.token(), exhausted = coop::is_exhausted();
            "pipelined requests are left to a task");
        let sent = self.send_then(id, out, AfterFlush::Continue);
        out.clear();
        if sent {
            self.resume_in_task(id, nothing);
        }
    }

    /// Discards body bytes, or parses one head and starts its request. A partial head is queued.
    fn process_once(self: &Rc<Self>, id: ConnId, data: Buf, out: &mut Vec<u8>) -> LoopStep {
        let mut parts = self.request_pool.take(self);
        let parsed = {
            let mut conns = self.conns.all();
            let Some(conn) = conns.get(id) else {
                return LoopStep::Yield;
            };
            if conn.state.expects() == Expects::RestOfBody {
                drop(conns);
                self.request_pool.give(parts);
                return match self.conns.discard_rest_of_body(id, data) {
                    Ok(behind) => LoopStep::Parse(behind),
                    Err(_) => LoopStep::End(AfterFlush::Linger), // The response was already sent.
                };
            }
            let step = (conn.machine).receive_head(&data, &mut parts.head, &self.limits());
            match step {
                Ok(Step::Request { head_bytes }) => {
                    if conn.state.expects() == Expects::Head {
                        conn.state.expect_request();
                        self.conns.unlist(conn);
                    }
                    parts.set_id(RequestId {
                        connection: id,
                        number: RequestId::counted(conn.response_count),
                    });
                    Ok(head_bytes)
                }
                Ok(Step::NeedMore) => {
                    drop(conns);
                    self.conns.wait_for_rest_of_head(id, data);
                    self.request_pool.give(parts);
                    return LoopStep::NeedInput;
                }
                Err(_) if self.settings.http2 && begins_http2(conn, &data) => {
                    drop(conns);
                    self.request_pool.give(parts);
                    self.begin_streams(id);
                    self.receive_frames(id, data);
                    return LoopStep::Yield;
                }
                Err(reject) => {
                    drop(conns);
                    let outcome = Outcome::Rejected;
                    let after = self.conns.reject_head(id, reject, outcome, &data, out);
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
                LoopStep::End(AfterFlush::following(after, false))
            }
        }
    }

    /// Passes a request to the application, and renders its response if it is ready at once.
    /// `data`: the head, `head_bytes` long, and the input behind it.
    #[inline(always)]
    fn start_request(
        self: &Rc<Self>,
        id: ConnId,
        mut data: Buf,
        parts: Box<RequestParts>,
        head_bytes: usize,
        out: &mut Vec<u8>,
    ) -> LoopStep {
        let has_body = parts.head.framing() != Framing::None;
        if has_body && self.conns.is_short_for_bodies() {
            let then = self.shed_body(id, parts, &data[..head_bytes], out);
            return then.map_or(LoopStep::Yield, LoopStep::End);
        }
        count(&self.counters.requests);
        let head = self.conns.memory.take_head(&mut data, head_bytes);
        if has_body {
            // Reading the body may send a 100 (Continue), which has to follow earlier responses.
            if self.conns.send_or_queue(id, out).is_err() {
                self.send_failed(id);
                return LoopStep::Yield;
            }
            out.clear();
            let Some(mut conn) = self.conns.open(id) else {
                return LoopStep::Yield;
            };
            conn.active()
                .wire
                .unpop_input(std::mem::replace(&mut data, head.slice(0..0)));
        }
        if self.conns.io.log.is_on() {
            self.conns.log_request(id, &parts.head, &head);
        }
        if self.conns.io.measurements.are_on() {
            let may_be_tls = cfg!(feature = "tls") && self.settings.tls.is_some();
            self.conns.measure(id, may_be_tls, &parts.head, &head);
        }
        let request = parts.into_request(head, has_body);
        let mut reply = None;
        // `http2::receive` calls it likewise: one function for both costs a small request 3 % more.
        self.context.begin_poll(UNROUTED);
        let started = {
            let task_slot = self.task_slot.borrow();
            let mut cx = Context::from_waker(task_slot.waker());
            guarded(&self.counters, || {
                self.service.start(request, &mut cx, &mut reply)
            })
        };
        match started {
            Some(None) => {} // The response is in `reply`.
            Some(Some(pending)) => {
                self.make_handler_task(id, data, out, pending);
                return LoopStep::Yield;
            }
            None => reply = None, // The handler has panicked.
        }
        if has_body {
            // The handler has responded and needs no more of the body.
            self.conns.clear_body_reader(id);
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
                LoopStep::Parse(data)
            }
            other => self.finish_response(id, other, data),
        }
    }

    /// Returns what follows a response that was ready at once. Sends large content first.
    #[inline(never)]
    fn finish_response(self: &Rc<Self>, id: ConnId, response: Rendered, data: Buf) -> LoopStep {
        match response {
            Rendered::Gone => LoopStep::Yield,
            Rendered::Whole(after) => self.after_response(id, after, data),
            Rendered::Sending(sending, responding) => {
                self.poll_send_now(id, sending, responding, data)
            }
        }
    }

    /// Polls the sending of a response once before it creates a task, because the response may fit
    /// into the socket buffer.
    #[inline(never)]
    fn poll_send_now(
        self: &Rc<Self>,
        id: ConnId,
        mut sending: SendFuture,
        responding: Responding,
        data: Buf,
    ) -> LoopStep {
        self.conns.set_write_timeout(id, 0);
        let polled = {
            let task_slot = self.task_slot.borrow();
            let mut cx = Context::from_waker(task_slot.waker());
            self.poll_sending(id, &mut sending, &mut cx)
        };
        match polled {
            Poll::Ready(Some(after)) => self.after_response(id, after, data),
            Poll::Ready(None) => LoopStep::Yield,
            Poll::Pending => {
                self.conns.begin_to_send(id, responding);
                let work = self.clone().finish_sending(id, sending);
                self.make_task(id, data, work);
                LoopStep::Yield
            }
        }
    }

    /// Returns what follows a complete response.
    fn after_response(&self, id: ConnId, after: After, data: Buf) -> LoopStep {
        match after {
            After::KeepAlive => {}
            After::DrainThenKeepAlive => {
                if let Some(mut conn) = self.conns.open(id) {
                    conn.state.expect_rest_of_body();
                }
            }
            last => {
                return LoopStep::End(AfterFlush::following(
                    last,
                    !data.is_empty() || self.conns.has_queued_input(id),
                ));
            }
        }
        LoopStep::Parse(data)
    }

    /// Called instead of a send, when nothing is left to send. Evicts connections if memory is
    /// short, records finished requests, and drops the measurement of a request whose connection
    /// was closed.
    #[inline(never)]
    fn record_without_send(self: &Rc<Self>) {
        self.reclaim_memory();
        self.conns.io.measurements.record();
        self.conns.io.measurements.abort_present();
    }
}
