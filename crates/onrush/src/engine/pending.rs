//! Answers that are not there at once: the task of a handler that waits, or of what sends an
//! answer as its peer takes it, and what follows when it is done.
//!
//! Must not know how requests are read.

use super::connection::{Phase, Then};
use super::respond::{Rendered, SendFuture};
use super::{Engine, guarded, panic_response};
use crate::handler::Pending;
use crate::host::ConnId;
use crate::metrics::CloseReason;
use crate::panic_guard::{self, PanicGuard};
use onrush_proto::connection::After;
use onrush_rt::buf::Buf;
use onrush_rt::user;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// An engine that one more handler has not answered yet, for as long as this lives.
pub(super) struct PendingHandler(Rc<Engine>);

impl PendingHandler {
    pub(super) fn new(engine: &Rc<Engine>) -> PendingHandler {
        engine.waiting.set(engine.waiting.get() + 1);
        PendingHandler(engine.clone())
    }

    pub(super) async fn finish_handler(self, id: ConnId, mut handler_future: PanicGuard<Pending>) {
        let mut response = std::future::poll_fn(|cx| {
            let polled = guarded(&self.0, || handler_future.get_mut().as_mut().poll(cx));
            polled.unwrap_or_else(|| Poll::Ready(panic_response()))
        })
        .await;
        drop(handler_future);
        let engine = self.0.clone();
        drop(self);
        let mut out = Vec::new();
        match engine.render_response_cold(id, &mut response, &mut out) {
            Rendered::Gone => {}
            Rendered::Whole(after) => engine.finished(id, after, &out),
            Rendered::Sending(sending) => engine.finish_sending(id, sending).await,
        }
    }
}

impl Drop for PendingHandler {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Engine {
    /// Makes a task of a handler that was just polled and waits; sends what was answered before it.
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
        let Ok(all_sent) = self.send_or_keep(id, out) else {
            return self.close(id, CloseReason::Broken);
        };
        let write_ms = self.limits().write_timeout_ms;
        self.limit_write(id, if all_sent { 0 } else { write_ms });
        self.make_task(id, data, waiting.finish_handler(id, pending));
    }

    /// Makes a task of what was just polled with the waker of [`Engine::task_slot`] and is not
    /// ready, and keeps the input for after it. The times that it waits for its peer run already.
    pub(super) fn make_task(
        self: &Rc<Self>,
        id: ConnId,
        data: Buf,
        work: impl Future<Output = ()> + 'static,
    ) {
        let data = self.shrink_block(data);
        let task_slot = self.task_slot.replace(self.context.task_slot());
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else {
            drop(conns);
            return drop(work);
        };
        self.set_phase(id, conn, Phase::Busy);
        let active = conn.active();
        if self.recorder.is_some() {
            active.measured = self.measuring.take();
        }
        let waits_for_peer = active.writer.is_some() || !active.unsent().is_empty();
        active.unpop_input(data);
        // What is answered at once needs no total: it counts from the turn that the head came in.
        let total_ms = u64::from(self.limits().total_timeout_ms);
        active.total_deadline_ms = (total_ms > 0).then(|| self.context.now_ms() + total_ms);
        active.task = Some(task_slot.start(GuardedTask {
            engine: self.clone(),
            id,
            tag: self.context.poll_monitor().tag(),
            work,
        }));
        self.set_busy_deadline(id, conn);
        self.pause_if_short(id, conn);
        if waits_for_peer {
            conns.list_unread(id);
        }
    }

    /// Goes on with the input of a connection in a task, after the tasks that are due before it.
    /// `input` is put in front of what is queued.
    pub(super) fn resume_in_task(self: &Rc<Self>, id: ConnId, input: Buf) {
        self.task_slot.borrow().waker().wake_by_ref();
        let engine = self.clone();
        let resume = async move {
            let task = {
                let mut conns = engine.conns.borrow_mut();
                let Some(conn) = conns.get(id) else { return };
                conn.burst = 0; // This poll has a budget of its own.
                conn.active().total_deadline_ms = None;
                conn.active().task.take()
            };
            if let Some(task) = task {
                task.detach(); // It is this very task, which ends by itself.
            }
            engine.resume_reading(id);
        };
        self.make_task(id, input, resume);
    }

    pub(super) async fn finish_sending(self: Rc<Self>, id: ConnId, mut sending: SendFuture) {
        let driven = std::future::poll_fn(|cx| self.poll_sending(id, &mut sending, cx));
        if let Some(after) = driven.await {
            self.finished(id, after, &[]);
        }
    }

    /// Polls what sends an answer, and the user's stream in it, whose panic cuts the answer off.
    pub(super) fn poll_sending(
        &self,
        id: ConnId,
        sending: &mut SendFuture,
        cx: &mut Context<'_>,
    ) -> Poll<Option<After>> {
        guarded(self, || sending.as_mut().poll(cx)).unwrap_or_else(|| {
            self.abort(id, CloseReason::Cut);
            Poll::Ready(None)
        })
    }

    /// A task has answered: what it rendered last is sent, then the connection goes on.
    fn finished(self: &Rc<Self>, id: ConnId, after: After, out: &[u8]) {
        let (task, reader) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            conn.draining_body = after == After::DrainThenKeepAlive;
            conn.active().total_deadline_ms = None;
            conn.active().final_poll = false;
            let reader = self.take_reader(id, conn);
            (conn.active().task.take(), reader)
        };
        if let Some(task) = task {
            task.detach(); // It is this very task, which ends by itself.
        }
        if let Some(reader) = reader {
            user::wake(reader); // Another task, which will be told that it comes too late.
        }
        if self.flush(id, out, Then::following(after, self.has_input(id))) {
            return self.resume_reading(id);
        }
        self.reclaim_memory();
    }
}

pin_project! {
    /// A task of a connection. A panic beyond what it catches itself costs that connection: a waker
    /// or a destructor of user code may panic in the middle of what the engine does.
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
        panic_guard::catch(|| this.work.poll(cx)).unwrap_or_else(|| {
            panic_guard::catch(|| this.engine.recover_from_panic(Some(*this.id)));
            Poll::Ready(())
        })
    }
}
