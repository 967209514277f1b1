//! Frames that control a connection or a stream: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM and
//! priorities (RFC 9113 §6.3 to §6.9, RFC 9218 §7).

use crate::http2::connection::{Connection, Event, Fatal, frame_size_error, protocol_error};
use crate::http2::frame::{self, ErrorCode, FrameHead, WINDOW_MAX, flag, kind, setting};
use crate::http2::priority::Priority;
use crate::http2::streams::Tunnel;

impl Connection {
    pub(super) fn settings(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(flag::ACK) && !payload.is_empty()) {
            return Err(frame_size_error("SETTINGS of a wrong size"));
        }
        if head.has(flag::ACK) {
            if self.unacknowledged == 0 {
                self.spend_idle(1)?;
            }
            self.unacknowledged = self.unacknowledged.saturating_sub(1);
            return Ok(Event::Nothing);
        }
        self.spend_idle(1 + settings.len() as u32 / 16)?;
        let mut event = Event::Nothing;
        for [a, b, value @ ..] in settings {
            let (name, value) = (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value));
            match name {
                setting::HEADER_TABLE_SIZE => self.encoder.set_table_bytes_max(value as usize),
                setting::ENABLE_PUSH | setting::ENABLE_CONNECT_PROTOCOL if value > 1 => {
                    return Err(protocol_error("a setting that is neither 0 nor 1"));
                }
                setting::INITIAL_WINDOW_SIZE => {
                    self.set_peer_window(i64::from(value))?;
                    event = Event::Writable { stream: 0 };
                }
                setting::MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(protocol_error("a frame size that is not allowed"));
                }
                _ => {}
            }
        }
        self.leave_preface();
        frame::put(kind::SETTINGS, flag::ACK, 0, b"", out);
        Ok(event)
    }

    /// Changes the windows of all streams (§6.9.2).
    fn set_peer_window(&mut self, bytes: i64) -> Result<(), Fatal> {
        let too_large = Fatal {
            code: ErrorCode::FLOW_CONTROL_ERROR,
            reason: "a window that is too large",
        };
        if bytes > WINDOW_MAX {
            return Err(too_large);
        }
        let change = bytes - self.peer_window;
        self.peer_window = bytes;
        for stream in self.streams.iter_mut() {
            stream.send_window += change;
            if stream.send_window > WINDOW_MAX {
                return Err(too_large);
            }
        }
        Ok(())
    }

    pub(super) fn ping(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        if payload.len() != 8 {
            return Err(frame_size_error("a PING of a wrong size"));
        }
        self.spend_idle(1)?;
        if !head.has(flag::ACK) {
            frame::put(kind::PING, flag::ACK, 0, payload, out);
        }
        Ok(Event::Nothing)
    }

    pub(super) fn window_update(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        let Ok(bytes) = payload.try_into() else {
            return Err(frame_size_error("a WINDOW_UPDATE of a wrong size"));
        };
        self.spend_window_update()?;
        let id = head.stream;
        let room = i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff);
        let error = match room {
            0 => Some(ErrorCode::PROTOCOL_ERROR),
            _ => None,
        };
        if id == 0 {
            self.send_window += room;
            return match error {
                Some(code) => Err(Fatal {
                    code,
                    reason: "a WINDOW_UPDATE of nothing",
                }),
                None if self.send_window > WINDOW_MAX => Err(Fatal {
                    code: ErrorCode::FLOW_CONTROL_ERROR,
                    reason: "a window that is too large",
                }),
                None => Ok(Event::Writable { stream: 0 }),
            };
        }
        if self.is_idle(id) {
            return Err(protocol_error(
                "WINDOW_UPDATE on a stream that has not begun",
            ));
        }
        let Some(stream) = self.streams.get(id) else {
            return Ok(Event::Nothing); // It has ended meanwhile.
        };
        stream.send_window += room;
        match error {
            Some(code) => self.stream_error(id, code, out),
            None if stream.send_window > WINDOW_MAX => {
                self.stream_error(id, ErrorCode::FLOW_CONTROL_ERROR, out)
            }
            None => Ok(Event::Writable { stream: id }),
        }
    }

    pub(super) fn reset_received(
        &mut self,
        head: FrameHead,
        payload: &[u8],
    ) -> Result<Event, Fatal> {
        let id = head.stream;
        if payload.len() != 4 {
            return Err(frame_size_error("a RST_STREAM of a wrong size"));
        }
        if self.is_idle(id) {
            return Err(protocol_error("RST_STREAM on a stream that has not begun"));
        }
        match self.remove_stream(id) {
            // The response of another protocol was sent: nothing was cancelled.
            Some(stream) => {
                if stream.tunnel != Tunnel::Begun {
                    self.spend_cancelled()?;
                }
                self.note_cancelled(id);
                Ok(Event::Reset { stream: id })
            }
            None => {
                self.spend_idle(1)?;
                Ok(Event::Nothing)
            }
        }
    }

    /// Priorities of RFC 7540 have no effect.
    pub(super) fn priority_of_7540(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        if payload.len() == 5 {
            return Ok(Event::Nothing);
        }
        match self.streams.get(head.stream) {
            Some(_) => self.stream_error(head.stream, ErrorCode::FRAME_SIZE_ERROR, out),
            None => Err(frame_size_error("a PRIORITY of a wrong size")),
        }
    }

    pub(super) fn priority_update(&mut self, payload: &[u8]) -> Result<Event, Fatal> {
        self.spend_idle(1)?;
        let Some((id, value)) = payload.split_first_chunk() else {
            return Err(frame_size_error("a PRIORITY_UPDATE of a wrong size"));
        };
        let id = u32::from_be_bytes(*id) & 0x7fff_ffff;
        if id == 0 {
            return Err(protocol_error("PRIORITY_UPDATE of stream 0"));
        }
        // Before the request, it has no effect: the request says its priority itself.
        if let Some(stream) = self.streams.get(id) {
            stream.priority = Priority::parse(value);
        }
        Ok(Event::Nothing)
    }
}
