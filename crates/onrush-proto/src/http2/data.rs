//! DATA frames (RFC 9113 §6.1).

use crate::http2::connection::{Connection, Event, Fatal, Phase, frame_size_error, protocol_error};
use crate::http2::frame::{ErrorCode, FRAME_HEAD_BYTES, FrameHead, flag};
use crate::http2::streams::Side;

impl Connection {
    /// Takes the head of a DATA frame, and the length of its padding. `payload`: what has arrived
    /// of it.
    pub(super) fn begin_data(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Event), Fatal> {
        let id = head.stream;
        let (mut taken, mut content_bytes, mut padding_bytes) =
            (FRAME_HEAD_BYTES, head.payload_bytes, 0);
        if head.has(flag::PADDED) {
            if content_bytes == 0 {
                return Err(frame_size_error("a DATA frame of a wrong size"));
            }
            let Some(&padding) = payload.first() else {
                return Ok((0, Event::NeedMore));
            };
            taken += 1;
            padding_bytes = usize::from(padding);
            content_bytes -= 1;
        }
        let Some(content_bytes) = content_bytes.checked_sub(padding_bytes) else {
            return Err(protocol_error("padding longer than its frame"));
        };
        if self.is_idle(id) {
            return Err(protocol_error("DATA on a stream that has not begun"));
        }
        let bytes = head.payload_bytes;
        if !self.window.receive(bytes) {
            return Err(Fatal {
                code: ErrorCode::FLOW_CONTROL_ERROR,
                reason: "more than the window of the connection",
            });
        }
        let ends = head.has(flag::END_STREAM);
        if content_bytes == 0 && !ends {
            self.spend_idle(1)?;
        }
        let error = self.count_data(id, bytes, content_bytes, ends)?;
        let is_taken = error.is_none() && self.streams.get(id).is_some();
        self.phase = Phase::Data {
            stream: id,
            content_bytes,
            padding_bytes,
            ends,
            is_taken,
        };
        let is_empty = content_bytes + padding_bytes == 0;
        let unused = match is_taken {
            true => bytes - content_bytes,
            false => bytes,
        };
        if let Some(code) = error {
            if is_empty {
                self.phase = Phase::Frame;
            }
            self.give_back(unused, out);
            return Ok((taken, self.stream_error(id, code, out)?));
        }
        if is_taken && unused > 0 {
            self.give_back_of(id, unused, false, out);
        }
        self.give_back(unused, out);
        if is_empty {
            return Ok((taken, self.end_of_frame()));
        }
        Ok((taken, Event::Nothing))
    }

    /// Counts a DATA frame of a stream. Returns the error of the stream, if it has one.
    fn count_data(
        &mut self,
        id: u32,
        bytes: usize,
        content_bytes: usize,
        ends: bool,
    ) -> Result<Option<ErrorCode>, Fatal> {
        let Some(stream) = self.streams.get(id) else {
            return match self.was_reset(id) {
                true => Ok(None),
                // Qt 6.12 sends more of a body that it has cancelled.
                false if self.was_cancelled(id) => Ok(Some(ErrorCode::STREAM_CLOSED)),
                false => Err(Fatal {
                    code: ErrorCode::STREAM_CLOSED,
                    reason: "DATA on a stream that has ended",
                }),
            };
        };
        if stream.remote == Side::Ended {
            return Ok(Some(ErrorCode::STREAM_CLOSED));
        }
        if !stream.window.receive(bytes) {
            return Ok(Some(ErrorCode::FLOW_CONTROL_ERROR));
        }
        if let Some(declared) = &mut stream.declared_bytes {
            match declared.checked_sub(content_bytes as u64) {
                Some(left) if left == 0 || !ends => *declared = left,
                _ => return Ok(Some(ErrorCode::PROTOCOL_ERROR)),
            }
        }
        Ok(None)
    }

    /// Takes a piece of a DATA frame.
    pub(super) fn data_piece(&mut self, input: &[u8]) -> (usize, Event) {
        let Phase::Data {
            stream,
            content_bytes,
            padding_bytes,
            is_taken,
            ..
        } = &mut self.phase
        else {
            return (0, Event::NeedMore);
        };
        if input.is_empty() {
            return (0, Event::NeedMore);
        }
        if *content_bytes == 0 {
            let taken = input.len().min(*padding_bytes);
            *padding_bytes -= taken;
            return match padding_bytes {
                0 => (taken, self.end_of_frame()),
                _ => (taken, Event::Nothing),
            };
        }
        let taken = input.len().min(*content_bytes);
        *content_bytes -= taken;
        let (stream, is_taken) = (*stream, *is_taken);
        let is_last = *content_bytes + *padding_bytes == 0;
        if is_taken {
            self.note_held(stream, taken);
        }
        if !is_last {
            let event = match is_taken {
                true => Event::Data {
                    stream,
                    data: 0..taken,
                    ends: false,
                },
                false => Event::Nothing,
            };
            return (taken, event);
        }
        match self.end_of_frame() {
            Event::Data { ends, .. } => (
                taken,
                Event::Data {
                    stream,
                    data: 0..taken,
                    ends,
                },
            ),
            _ if is_taken => (
                taken,
                Event::Data {
                    stream,
                    data: 0..taken,
                    ends: false,
                },
            ),
            event => (taken, event),
        }
    }

    /// Discards the rest of a DATA frame of a stream that was reset within it.
    pub(super) fn discard_data(&mut self, id: u32, out: &mut Vec<u8>) {
        if let Phase::Data {
            stream,
            content_bytes,
            is_taken: is_taken @ true,
            ..
        } = &mut self.phase
            && *stream == id
        {
            *is_taken = false;
            let unused = *content_bytes;
            self.give_back(unused, out);
        }
    }

    /// Ends a DATA frame. The event says so if the body ends with it.
    fn end_of_frame(&mut self) -> Event {
        let Phase::Data {
            stream,
            ends,
            is_taken,
            ..
        } = self.phase
        else {
            return Event::Nothing;
        };
        self.phase = Phase::Frame;
        if !(ends && is_taken) {
            return Event::Nothing;
        }
        self.end_body(stream);
        Event::Data {
            stream,
            data: 0..0,
            ends: true,
        }
    }

    /// The client has ended a stream. Returns whether its body is shorter than declared.
    pub(super) fn end_body(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get(id) else {
            return false;
        };
        stream.remote = Side::Ended;
        let is_short = stream.declared_bytes.is_some_and(|left| left > 0);
        if stream.local == Side::Ended {
            self.remove_stream(id);
        }
        is_short
    }
}
