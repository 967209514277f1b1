//! Header blocks: HEADERS and CONTINUATION (RFC 9113 §4.3, §6.2, §6.10).

use crate::head::Head;
use crate::http2::connection::{
    BLOCK_FACTOR, Connection, Event, Fatal, Phase, STREAMS_MAX, WINDOW_BYTES, frame_size_error,
    protocol_error,
};
use crate::http2::frame::{ErrorCode, FrameHead, flag};
use crate::http2::priority::Priority;
use crate::http2::request_head::{Role, Wrong};
use crate::http2::streams::{Side, Stream, Tunnel};
use crate::http2::window::Window;
use crate::limits::Limits;
use crate::reject::Reject;

/// What a header block concerns.
enum Concerns {
    NewStream,
    /// The end of a body.
    Trailers,
    /// It is decoded, and has no effect: the stream has this error, or none.
    Nothing(Option<ErrorCode>),
}

impl Connection {
    /// Takes what is in front of the fragment of a HEADERS frame, and the padding behind it.
    pub(super) fn begin_block<'b>(
        &mut self,
        head: FrameHead,
        payload: &'b [u8],
    ) -> Result<&'b [u8], Fatal> {
        const SHORT: Fatal = frame_size_error("a HEADERS frame of a wrong size");
        if head.stream.is_multiple_of(2) {
            return Err(protocol_error("a stream with an even number"));
        }
        let mut rest = payload;
        let mut padding = 0;
        if head.has(flag::PADDED) {
            let (&first, after) = rest.split_first().ok_or(SHORT)?;
            (padding, rest) = (usize::from(first), after);
        }
        if head.has(flag::PRIORITY) {
            // The stream that it depends on and its weight (RFC 7540 §5.3) have no effect.
            rest = rest.get(5..).ok_or(SHORT)?;
        }
        let Some(fragment_bytes) = rest.len().checked_sub(padding) else {
            return Err(protocol_error("padding longer than its frame"));
        };
        self.block_stream = head.stream;
        self.block_ends_stream = head.has(flag::END_STREAM);
        Ok(&rest[..fragment_bytes])
    }

    /// Takes a fragment of a header block.
    pub(super) fn block_fragment(
        &mut self,
        head: FrameHead,
        fragment: &[u8],
        limits: &Limits,
        request: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        let bytes_max = BLOCK_FACTOR * limits.head_bytes_max.max(limits.trailer_bytes_max);
        if self.block.len() + fragment.len() > bytes_max {
            return Err(Fatal {
                code: ErrorCode::ENHANCE_YOUR_CALM,
                reason: "a header block without end",
            });
        }
        if !head.has(flag::END_HEADERS) {
            self.block.extend_from_slice(fragment);
            self.phase = Phase::Block;
            return Ok(Event::Nothing);
        }
        self.phase = Phase::Frame;
        if self.block.is_empty() {
            return self.end_block(fragment, limits, request, out);
        }
        let mut block = std::mem::take(&mut self.block);
        block.extend_from_slice(fragment);
        self.end_block(&block, limits, request, out)
    }

    /// Takes a whole header block. It is decoded whatever it concerns, because it changes the
    /// table.
    fn end_block(
        &mut self,
        block: &[u8],
        limits: &Limits,
        request: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        let (stream, has_ended) = (self.block_stream, self.block_ends_stream);
        let concerns = self.concerns(stream, has_ended)?;
        let version = self.decoder.version();
        self.is_repeated = matches!(concerns, Concerns::NewStream)
            && (self.last_request).fill(block, version, has_ended, limits, request);
        if self.is_repeated {
            return self.begin_stream(stream, has_ended, limits, request, out);
        }
        self.last_request.forget();
        let role = match concerns {
            Concerns::Trailers => Role::Trailers,
            Concerns::NewStream | Concerns::Nothing(_) => Role::Request,
        };
        self.fields.begin(self.extended_connect);
        let fields = &mut self.fields;
        let decoded = (self.decoder).decode(block, |name, value| match concerns {
            Concerns::Nothing(_) => {}
            _ => fields.add(role, name, value, limits),
        });
        if let Err(malformed) = decoded {
            let (code, reason) = (ErrorCode::COMPRESSION_ERROR, malformed.0);
            return Err(Fatal { code, reason });
        }
        match concerns {
            Concerns::NewStream => {
                let event = self.begin_stream(stream, has_ended, limits, request, out)?;
                if matches!(event, Event::Request { .. }) && self.decoder.version() == version {
                    (self.last_request).keep(block, version, has_ended, limits, request);
                }
                Ok(event)
            }
            Concerns::Trailers => self.end_with_trailers(stream, out),
            Concerns::Nothing(None) => {
                self.spend_idle(1)?;
                Ok(Event::Nothing)
            }
            Concerns::Nothing(Some(ErrorCode::REFUSED_STREAM)) => {
                self.spend_idle(1)?;
                self.put_reset(stream, ErrorCode::REFUSED_STREAM, out);
                Ok(Event::Nothing)
            }
            Concerns::Nothing(Some(code)) => self.stream_error(stream, code, out),
        }
    }

    fn concerns(&mut self, id: u32, has_ended: bool) -> Result<Concerns, Fatal> {
        if id > self.last_stream {
            // Also if it is refused: the client may not know that yet, and go on.
            if id > self.last_stream + 2 {
                self.skipped = self.last_stream + 1..id;
            }
            self.last_stream = id;
            if self.last_served.is_some() || self.streams.len() >= STREAMS_MAX {
                return Ok(Concerns::Nothing(Some(ErrorCode::REFUSED_STREAM)));
            }
            return Ok(Concerns::NewStream);
        }
        let known = self.streams.get(id);
        match known.map(|stream| (stream.remote, stream.tunnel)) {
            Some((Side::Open, Tunnel::No)) if has_ended => Ok(Concerns::Trailers),
            // A second head, trailers that do not end the stream (§8.1), or trailers of another
            // protocol (§8.5).
            Some((Side::Open, _)) => Ok(Concerns::Nothing(Some(ErrorCode::PROTOCOL_ERROR))),
            Some((Side::Ended, _)) => Ok(Concerns::Nothing(Some(ErrorCode::STREAM_CLOSED))),
            None if self.was_reset(id) => Ok(Concerns::Nothing(None)),
            None if self.was_cancelled(id) => Ok(Concerns::Nothing(Some(ErrorCode::STREAM_CLOSED))),
            // §5.1.1
            None if self.skipped.contains(&id) => {
                Err(protocol_error("a stream below one that has begun"))
            }
            None => Err(Fatal {
                code: ErrorCode::STREAM_CLOSED,
                reason: "a head on a stream that has ended",
            }),
        }
    }

    fn begin_stream(
        &mut self,
        id: u32,
        has_ended: bool,
        limits: &Limits,
        request: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        let mut wrong = match self.is_repeated {
            true => None,
            false => self.fields.finish(has_ended, request).err(),
        };
        if let Some(Wrong::Malformed(reason)) = wrong {
            return self.malformed(id, reason, out);
        }
        let declared_bytes = request.content_length().filter(|_| wrong.is_none());
        if has_ended && declared_bytes.is_some_and(|bytes| bytes > 0) {
            return self.malformed(id, "`content-length` without content", out);
        }
        if declared_bytes.is_some_and(|bytes| bytes > limits.body_bytes_max) {
            wrong = Some(Wrong::Rejected(Reject::new(413, "request body too large")));
        }
        let priority = match wrong {
            None => request.header(&self.fields.bytes, "priority"),
            Some(_) => None,
        };
        self.streams.add(Stream {
            id,
            remote: if has_ended { Side::Ended } else { Side::Open },
            local: Side::Open,
            head_only: self.fields.is_head,
            tunnel: match wrong.is_none() && self.asks_for_protocol(request) {
                true => Tunnel::Asked,
                false => Tunnel::No,
            },
            has_responded: false,
            window: Window::new(WINDOW_BYTES),
            held_of_connection: 0,
            send_window: self.peer_window,
            declared_bytes,
            priority: priority.map_or(Priority::SHARED, Priority::parse),
        });
        Ok(match wrong {
            Some(Wrong::Rejected(reject)) => Event::Rejected { stream: id, reject },
            _ => Event::Request { stream: id },
        })
    }

    /// Resets a stream whose head is malformed.
    fn malformed(
        &mut self,
        stream: u32,
        reason: &'static str,
        out: &mut Vec<u8>,
    ) -> Result<Event, Fatal> {
        self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, out)?;
        Ok(Event::Malformed { stream, reason })
    }

    fn end_with_trailers(&mut self, id: u32, out: &mut Vec<u8>) -> Result<Event, Fatal> {
        let lines: Option<Box<[u8]>> = self.fields.finish_trailers().ok().map(Into::into);
        let is_short = self.end_body(id);
        match lines {
            Some(lines) if !is_short => Ok(Event::Trailers { stream: id, lines }),
            _ => self.stream_error(id, ErrorCode::PROTOCOL_ERROR, out),
        }
    }
}
