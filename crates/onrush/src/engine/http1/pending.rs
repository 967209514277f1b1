//! Responses that are not ready at once. A task polls the pending handler, or sends a response as
//! fast as the client takes it; then the connection continues.

use crate::connections::ConnId;
use crate::engine::connection::Responding;
use crate::engine::connection::state::AfterFlush;
use crate::engine::http1::render::{Rendered, SendFuture};
use crate::engine::lifecycle::{Engine, guarded, panic_response};
use crate::engine::shared::socket_io::Sent;
use crate::handler::Pending;
use crate::metrics::CloseReason;
use crate::panic_guard::{self, PanicGuard};
use crate::response::Response;
use onrush_proto::connection::After;
use onrush_rt::buf::Buf;
use onrush_rt::user;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Counts a pending handler of the engine for as long as this exists.
pub(in crate::engine) struct PendingHandler(Rc<Engine>);

impl PendingHandler {
    pub(in crate::engine) fn new(engine: &Rc<Engine>) -> PendingHandler {
        engine.conns.memory.begin_pending();
        PendingHandler(engine.clone())
    }

    /// Waits for the response.
    pub(in crate::engine) async fn response(
        self,
        mut handler_future: PanicGuard<Pending>,
    ) -> Response {
        std::future::poll_fn(|cx| {
            let polled = guarded(&self.0.counters, || {
                handler_future.get_mut().as_mut().poll(cx)
            });
            polled.unwrap_or_else(|| Poll::Ready(panic_response()))
        })
        .await
    }

    async fn finish_handler(self, id: ConnId, handler_future: PanicGuard<Pending>) {
        let engine = self.0.clone();
        let mut response = self.response(handler_future).await;
        let mut out = Vec::new();
        match engine.render_response_cold(id, &mut response, &mut out) {
            Rendered::Gone => {}
            Rendered::Whole(after) => engine.finish_task_response(id, after, &out),
            Rendered::Sending(sending, responding) => {
                engine.conns.begin_to_send(id, responding);
                engine.finish_sending(id, sending).await;
            }
        }
    }
}

impl Drop for PendingHandler {
    fn drop(&mut self) {
        self.0.conns.memory.end_pending();
    }
}

impl Engine {
    /// Creates the task of a handler that was polled and is pending. Sends the responses rendered
    /// before it.
    #[inline(never)]
    pub(super) fn make_handler_task(
        self: &Rc<Self>,
        id: ConnId,
        data: Buf,
        out: &[u8],
        pending: Pending,
    ) {
        let waiting = PendingHandler::new(self);
        let pending = PanicGuard::new(pending);
        let Ok(sent) = self.conns.send_or_queue(id, out) else {
            return self.send_failed(id);
        };
        let write_ms = self.limits().write_timeout_ms;
        self.conns
            .set_write_timeout(id, if sent == Sent::All { 0 } else { write_ms });
        self.make_task(id, data, waiting.finish_handler(id, pending));
    }

    /// Creates a task from a future that was polled with the waker of [`Engine::task_slot`] and is
    /// pending. Queues `data`, the input that follows. The deadlines of waits for the client are
    /// set already.
    pub(super) fn make_task(
        self: &Rc<Self>,
        id: ConnId,
        data: Buf,
        work: impl Future<Output = ()> + 'static,
    ) {
        let data = self.conns.memory.copy_if_small(data);
        let task_slot = self.task_slot.replace(self.context.task_slot());
        let Some(mut conn) = self.conns.open(id) else {
            return drop(work);
        };
        conn.state.begin_task(id);
        let is_upgraded = conn.machine.is_upgraded();
        let active = conn.active();
        self.conns.io.measurements.suspend(&mut active.exchange);
        let waits_for_client = active.exchange.writer.is_some() || !active.wire.unsent().is_empty();
        active.wire.unpop_input(data);
        // Requests that are ready at once need no total time limit. The limit counts from the
        // event-loop iteration in which the head arrived.
        let total_ms = u64::from(self.limits().total_timeout_ms);
        active.exchange.total_deadline_ms =
            (total_ms > 0 && !is_upgraded).then(|| self.context.now_ms() + total_ms);
        active.exchange.task = Some(task_slot.start(self.guard_task(id, work)));
        conn.set_busy_deadline();
        conn.pause_if_short();
        // The future may have read before: `data` was not queued then.
        let reader = match is_upgraded {
            true => conn.take_reader(),
            false => None,
        };
        if waits_for_client {
            conn.list_unread();
        }
        drop(conn);
        if let Some(reader) = reader {
            user::wake(reader);
        }
        self.end_if_gone(id);
    }

    /// A task of a connection.
    pub(in crate::engine) fn guard_task(
        self: &Rc<Self>,
        id: ConnId,
        work: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        GuardedTask {
            engine: self.clone(),
            id,
            tag: self.context.poll_monitor().tag(),
            work,
        }
    }

    /// Ends a connection whose client has gone, if no client half-closes. Returns whether it did.
    /// Responses that are complete are sent first: the client may still read.
    pub(in crate::engine) fn end_if_gone(self: &Rc<Self>, id: ConnId) -> bool {
        if self.settings.half_close {
            return false;
        }
        let (responding, task) = {
            let Some(mut conn) = self.conns.open(id).filter(|conn| conn.client_has_gone()) else {
                return false;
            };
            let exchange = &mut conn.active().exchange;
            (exchange.responding, exchange.task.take())
        };
        match responding {
            Responding::UntilClose => self.abort(id, CloseReason::Client),
            _ if self.conns.has_unsent(id) => {
                self.send_then(id, &[], AfterFlush::Close);
            }
            _ => self.close(id, CloseReason::Client),
        }
        drop(task); // User code, perhaps that which runs now.
        true
    }

    /// Processes the input of a connection in a task, after the tasks that are already due. `input`
    /// is put in front of the queued input.
    pub(super) fn resume_in_task(self: &Rc<Self>, id: ConnId, input: Buf) {
        self.task_slot.borrow().waker().wake_by_ref();
        let engine = self.clone();
        let resume = async move {
            let task = {
                let Some(mut conn) = engine.conns.open(id) else {
                    return;
                };
                conn.burst = 0; // This poll has its own budget.
                conn.active().exchange.total_deadline_ms = None;
                conn.active().exchange.task.take()
            };
            if let Some(task) = task {
                task.detach(); // This is the present task; it ends by itself.
            }
            engine.resume_reading(id);
        };
        self.make_task(id, input, resume);
    }

    pub(super) async fn finish_sending(self: Rc<Self>, id: ConnId, mut sending: SendFuture) {
        let driven = std::future::poll_fn(|cx| self.poll_sending(id, &mut sending, cx));
        if let Some(after) = driven.await {
            self.finish_task_response(id, after, &[]);
        }
    }

    /// Polls the sending of a response. A panic of the user's stream in it resets the connection.
    pub(super) fn poll_sending(
        &self,
        id: ConnId,
        sending: &mut SendFuture,
        cx: &mut Context<'_>,
    ) -> Poll<Option<After>> {
        guarded(&self.counters, || sending.as_mut().poll(cx)).unwrap_or_else(|| {
            self.abort(id, CloseReason::Cut);
            Poll::Ready(None)
        })
    }

    /// Finishes the response of a task: sends the last rendered part, then continues with the
    /// connection.
    fn finish_task_response(self: &Rc<Self>, id: ConnId, after: After, out: &[u8]) {
        let (task, reader) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if after == After::DrainThenKeepAlive {
                conn.state.expect_rest_of_body();
            }
            let exchange = &mut conn.active().exchange;
            exchange.total_deadline_ms = None;
            exchange.final_poll = false;
            exchange.responding = Responding::NotYet;
            let reader = conn.take_reader();
            (conn.active().exchange.task.take(), reader)
        };
        if let Some(task) = task {
            task.detach(); // This is the present task; it ends by itself.
        }
        if let Some(reader) = reader {
            user::wake(reader); // Another task: its read fails, because the request is over.
        }
        if self.send_then(
            id,
            out,
            AfterFlush::following(after, self.conns.has_queued_input(id)),
        ) {
            return self.resume_reading(id);
        }
        self.reclaim_memory();
    }
}

pin_project! {
    /// A task of a connection. A panic that the task does not catch itself resets only this
    /// connection: a waker or a destructor of user code may panic within code of the engine.
    struct GuardedTask<Work> {
        engine: Rc<Engine>,
        id: ConnId,
        tag: u32,
        #[pin]
        work: Work,
    }
}

impl<Work: Future<Output = ()>> Future for GuardedTask<Work> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        this.engine.context.begin_poll(*this.tag);
        let polled = panic_guard::catch(|| this.work.poll(cx)).unwrap_or_else(|| {
            panic_guard::catch(|| this.engine.recover_from_panic(Some(*this.id)));
            Poll::Ready(())
        });
        // It may have read or dropped the body that its client had sent before it went.
        match polled.is_pending() && this.engine.end_if_gone(*this.id) {
            true => Poll::Ready(()),
            false => polled,
        }
    }
}
