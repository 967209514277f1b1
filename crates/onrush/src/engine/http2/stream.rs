//! The end of a stream: its response is complete, its client has left it, or it has failed.

use crate::connections::{ConnId, RequestId};
use crate::engine::connection::http2::{Rest, Slot};
use crate::engine::lifecycle::Engine;
use crate::engine::open::streams::OpenStream;
use crate::metrics::CloseReason;
use onrush_proto::http2::frame::ErrorCode;
use onrush_rt::user;
use std::rc::Rc;

/// How much of a body is discarded whose response is complete, in bytes. Some clients (httpx,
/// java.net.http of Java 17) read no response before they have sent the whole body, and wait for
/// ever after a reset. Others end the body as soon as they read the response.
const REST_BYTES_MAX: u64 = 64 << 20;

impl Engine {
    /// Ends a stream whose response is complete. What its client still sends is discarded for a
    /// while: some clients read a response only when their request was taken.
    pub(super) fn finish_stream(self: &Rc<Self>, request: RequestId) {
        let (slot, task, reader) = {
            let Some(mut stream) = self.conns.stream(request) else {
                // It was complete before it needed a slot.
                self.conns.io.measurements.end_of(None);
                if let Some(mut conn) = self.conns.open(request.connection) {
                    conn.response_count = conn.response_count.wrapping_add(1);
                }
                return;
            };
            let exchange = &mut stream.slot().exchange;
            self.conns.io.measurements.end_of(Some(exchange));
            if self.conns.io.log.is_on() {
                exchange.log_entries.complete_last();
                self.conns.io.log.end_accepted(&mut exchange.log_entries);
            }
            let task = exchange.task.take();
            (exchange.total_deadline_ms, exchange.body_deadline_ms) = (None, None);
            stream.conn.response_count = stream.conn.response_count.wrapping_add(1);
            stream.conn.note_due();
            // Of another protocol, this side alone has ended: the other one may still be read.
            match stream.slot().is_upgraded && stream.slot().tunnel_readers > 0 {
                true => (None, task, None),
                false => {
                    let reader = stream.slot().exchange.reader.take();
                    (self.end_or_discard(&mut stream), task, reader)
                }
            }
        };
        if let Some(task) = task {
            task.detach(); // This is the present task; it ends by itself.
        }
        drop(slot);
        if let Some(reader) = reader {
            user::wake(reader); // Another task: its read fails, because the request is over.
        }
    }

    /// Ends a stream whose response is complete and whose body nobody reads any more: returns its
    /// slot, which is dropped outside of the borrow, or begins to discard what its client still
    /// sends.
    pub(super) fn end_or_discard(&self, stream: &mut OpenStream<'_>) -> Option<Slot> {
        let number = stream.number();
        if !stream.http2().machine.is_half_closed(number) {
            return stream.conn.take_slot(number);
        }
        stream.discard(0);
        let deadline_ms = self.context.now_ms() + u64::from(self.limits().linger_timeout_ms);
        stream.slot().rest = Some(Rest {
            deadline_ms,
            bytes: REST_BYTES_MAX,
        });
        stream.conn.note_deadline(deadline_ms);
        None
    }

    /// Resets a stream whose response cannot become complete, and cancels its task.
    pub(in crate::engine) fn reset_stream(
        &self,
        request: RequestId,
        code: ErrorCode,
        reason: CloseReason,
    ) {
        let slot = {
            let Some(mut conn) = self.conns.open(request.connection) else {
                return;
            };
            let slot = conn.take_slot(request.number);
            if slot.is_some()
                && let Some(http2) = conn.http2()
            {
                http2.machine.reset(request.number, code, &mut http2.out);
            }
            slot
        };
        if let Some(slot) = slot {
            self.drop_slot(slot, reason);
        }
    }

    /// Ends a stream that has ended by itself, or whose client has gone.
    pub(super) fn leave_stream(&self, id: ConnId, stream: u32, reason: CloseReason) {
        let slot = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let slot = conn.take_slot(stream);
            conn.note_due();
            slot
        };
        if let Some(slot) = slot {
            self.drop_slot(slot, reason);
        }
    }

    /// Cancels the task of a stream that has left its connection, and records its end.
    pub(in crate::engine) fn drop_slot(&self, mut slot: Slot, reason: CloseReason) {
        if let Some(measured) = slot.exchange.measured.take() {
            self.conns.io.measurements.abort(&measured);
        }
        (self.conns.io.log).end_aborted(&mut slot.exchange.log_entries, reason);
        let reader = slot.exchange.reader.take();
        drop(slot); // User code.
        if let Some(reader) = reader {
            user::wake(reader); // Another task may read the body.
        }
    }
}
