//! Received frames of HTTP/2. What has arrived of a frame that is not complete is joined to the
//! rest; everything else is processed where it was received.

use crate::connections::ConnId;
use crate::engine::connection::http2::OUT_BYTES_MAX;
use crate::engine::open::{OpenConn, OpenConns};
use crate::metrics::CloseReason;
use onrush_proto::head::Head;
use onrush_proto::http2::connection::{Event, Fatal};
use onrush_proto::http2::frame::ErrorCode;
use onrush_rt::buf::Buf;

/// The result of [`OpenConns::next_frame`].
pub(in crate::engine) enum NextFrame {
    /// What has happened, and the bytes that it refers to.
    Event(Event, Buf),
    /// All input was taken.
    NeedMore,
    /// Too much waits for the client.
    Full,
    /// The connection ends when its output is sent.
    Failed(Fatal, CloseReason),
    Gone,
}

/// What frames that need no turn add to the frames that wait for the client, in bytes. No frame is
/// taken while there are more.
const REPLIES_BYTES_MAX: usize = 64 * 1024;

const NO_MEMORY: Fatal = Fatal {
    code: ErrorCode::ENHANCE_YOUR_CALM,
    reason: "the server is low on memory",
};

impl OpenConns {
    /// Takes the next frame, or a piece of one, from `input`. Fills `head` for a request.
    pub(in crate::engine) fn next_frame(
        &self,
        id: ConnId,
        input: &mut Buf,
        head: &mut Head,
    ) -> NextFrame {
        let (limits, now_s) = (self.limits.get(), (self.context.now_ms() / 1000) as u32);
        let Some(mut conn) = self.open(id) else {
            return NextFrame::Gone;
        };
        let unsent = conn.unsent_len();
        let Some(http2) = conn.http2() else {
            return NextFrame::Gone;
        };
        if http2.out.len() + unsent >= OUT_BYTES_MAX + REPLIES_BYTES_MAX {
            return NextFrame::Full;
        }
        self.rendering.provide_frames(&mut http2.out);
        loop {
            let partial = http2.partial.take();
            let is_joined = partial.is_some();
            let mut frame = match partial {
                None if input.is_empty() => return NextFrame::NeedMore,
                None => std::mem::replace(input, input.slice(0..0)),
                Some(partial) => {
                    let needed = http2.machine.needed_bytes(&partial);
                    let taken = needed.saturating_sub(partial.len()).min(input.len());
                    let Some(joined) = self.memory.join(partial, &input[..taken], needed) else {
                        http2.machine.fail(NO_MEMORY, &mut http2.out);
                        return NextFrame::Failed(NO_MEMORY, CloseReason::Exhausted);
                    };
                    input.advance(taken);
                    joined
                }
            };
            let received = (http2.machine).receive(&frame, now_s, &limits, head, &mut http2.out);
            let (taken, event) = match received {
                Ok(received) => received,
                Err(fatal) => return NextFrame::Failed(fatal, CloseReason::Violation),
            };
            let held_bytes = http2.machine.block_bytes();
            if http2.block.as_ref().map_or(0, |block| block.bytes()) != held_bytes {
                http2.block = self.context.pool().reserve(held_bytes);
                if http2.block.is_none() {
                    http2.machine.fail(NO_MEMORY, &mut http2.out);
                    return NextFrame::Failed(NO_MEMORY, CloseReason::Exhausted);
                }
            }
            if taken > 0 && http2.machine.is_at_frame() {
                // The time limit is for one frame, or for the head of one: it begins anew.
                http2.input_deadline_ms = None;
            }
            let chunk = frame.slice(0..taken);
            frame.advance(taken);
            if event == Event::NeedMore {
                let is_new = !is_joined;
                if !frame.is_empty() {
                    http2.partial = Some(match is_new {
                        true => self.memory.copy_if_small(frame),
                        false => frame,
                    });
                }
                // More is needed than was known before the head of the frame was complete.
                match input.is_empty() {
                    true => return NextFrame::NeedMore,
                    false => continue,
                }
            }
            if !is_joined {
                *input = frame;
            }
            return NextFrame::Event(event, chunk);
        }
    }
}

impl OpenConn<'_> {
    /// Starts or ends the time limit for what is incomplete, and lists the connection as one that
    /// may be evicted while it holds memory for that.
    pub(in crate::engine) fn watch_input(&mut self) {
        let limits = self.all.limits.get();
        let deadline_ms = self.all.context.now_ms() + u64::from(limits.head_timeout_ms);
        let received_bytes = self.transport.received_bytes();
        let Some(http2) = self.http2() else { return };
        let holds = http2.partial.is_some() || http2.block.is_some() || received_bytes > 0;
        if !holds && !http2.machine.is_within_block() {
            http2.input_deadline_ms = None;
            if self.is_listed() && self.unsent_len() == 0 {
                self.list_waiting();
            }
            return;
        }
        if http2.input_deadline_ms.is_none() && limits.head_timeout_ms > 0 {
            http2.input_deadline_ms = Some(deadline_ms);
            self.note_deadline(deadline_ms);
        }
        if holds && self.unsent_len() == 0 {
            self.list_head();
        }
    }
}
