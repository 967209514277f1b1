//! Frames to the socket, and turns for those that wait to add some.

use crate::connections::ConnId;
use crate::engine::connection::http2::Drain;
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::Engine;
use crate::engine::open::OpenConn;
use crate::engine::open::deadlines::Wait;
use crate::engine::shared::socket_io::Sent;
use crate::metrics::CloseReason;
use crate::panic_guard;
use onrush_rt::{coop, user};
use std::future::poll_fn;
use std::rc::Rc;

impl Engine {
    /// Starts the task that sends frames, for the first connection that has some.
    pub(super) fn start_output(self: &Rc<Self>) {
        if self.conns.due.has_task.replace(true) {
            return;
        }
        let (engine, due) = (Rc::downgrade(self), self.conns.due.clone());
        let work = async move {
            loop {
                let ids = due.next().await;
                let Some(engine) = engine.upgrade() else {
                    return;
                };
                for id in ids {
                    // Many connections with much to send do not delay the others.
                    poll_fn(coop::poll_proceed).await;
                    // A panic must not end this task, which all connections need.
                    if panic_guard::catch(|| engine.send_frames(id)).is_none() {
                        panic_guard::catch(|| engine.recover_from_panic(Some(id)));
                    }
                }
            }
        };
        self.context.spawn(work).detach();
    }

    /// Sends the frames of a connection, and gives turns to those that wait. Ends the connection if
    /// that is all.
    pub(super) fn send_frames(self: &Rc<Self>, id: ConnId) {
        let sent = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let Some(http2) = conn.http2() else { return };
            http2.is_due = false;
            if http2.drain != Drain::No {
                conn.announce_drain_if_idle(self.context.now_ms());
            }
            let Some(http2) = conn.http2() else { return };
            let out = std::mem::take(&mut http2.out);
            if out.is_empty() && conn.unsent_len() > 0 {
                self.conns.rendering.keep_frames(out);
                return; // The socket becomes writable.
            }
            let sent = self.conns.io.send_or_queue(&mut conn, &out);
            coop::spend(out.len());
            self.conns.rendering.keep_frames(out);
            if let Ok(Sent::Queued) = sent {
                conn.wait_for_output(self.limits().write_timeout_ms);
            }
            sent
        };
        match sent {
            Ok(Sent::All) => self.after_frames(id),
            Ok(Sent::Queued) => self.reclaim_memory(),
            Err(_) => self.send_failed(id),
        }
    }

    /// All frames were sent: others may follow.
    pub(in crate::engine) fn after_frames(self: &Rc<Self>, id: ConnId) {
        let (wakers, is_held_up, has_ended) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.list_waiting();
            let has_queued_input = conn.has_queued_input();
            let Some(http2) = conn.http2() else { return };
            http2.promise(&self.conns.memory.promises);
            let wakers = http2.take_turns();
            let is_held_up = std::mem::take(&mut http2.is_held_up);
            let has_ended = http2.ends && http2.is_idle() && !has_queued_input;
            let idle_ms = u64::from(self.limits().idle_timeout_ms);
            if http2.is_idle() {
                http2.last_head = None;
                http2.machine.release();
            }
            if http2.is_idle() && http2.idle_deadline_ms.is_none() && idle_ms > 0 {
                let deadline_ms = self.context.now_ms() + idle_ms;
                http2.idle_deadline_ms = Some(deadline_ms);
                conn.note_deadline(deadline_ms);
            }
            if !wakers.is_empty() {
                // Whoever does not use its turn must not keep the others waiting.
                conn.note_due();
            }
            (wakers, is_held_up, has_ended)
        };
        wakers.into_iter().for_each(user::wake);
        if has_ended {
            return self.end_streams(id);
        }
        if is_held_up {
            self.resume_frames(id);
        }
        self.watch_input(id);
    }

    /// Ends a connection whose streams have ended and whose frames were sent.
    fn end_streams(self: &Rc<Self>, id: ConnId) {
        let (client_ended, was_announced) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let ended = conn.state.has_ended();
            let drain = conn.http2().map(|http2| http2.drain);
            (ended, drain == Some(Drain::Announced))
        };
        // It lingers, because a reset for unread bytes could overtake the last frames. A server
        // that drains does not wait for that: the client was told of the end before.
        let then = match was_announced {
            true => AfterFlush::Close,
            false => AfterFlush::Linger,
        };
        match client_ended {
            true => self.close(id, CloseReason::Client),
            false => drop(self.send_then(id, &[], then)),
        }
    }
}

impl OpenConn<'_> {
    /// Waits until the client has taken what is queued.
    fn wait_for_output(&mut self, write_ms: u32) {
        let exchange = &mut self.active().exchange;
        if exchange.write_deadline_ms.is_none() {
            self.set_wait_timeout(Wait::Write, write_ms);
            self.begin_measured_wait(Wait::Write);
        }
        self.list_unread();
    }
}
