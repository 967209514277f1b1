//! Sends the content of responses that does not fit at once, or is not there yet.

use crate::body::{Content, Part, Streamed};
use crate::connections::RequestId;
use crate::engine::http1::send_response::{next_item, read_file_ahead};
use crate::engine::lifecycle::Engine;
use crate::engine::open::streams::Piece;
use crate::engine::shared::socket_io::connection_gone;
use crate::metrics::CloseReason;
use crate::panic_guard::{self, PanicGuard};
use bytes::Bytes;
use onrush_proto::connection::SendAs;
use onrush_proto::http2::frame::ErrorCode;
use onrush_rt::coop;
use onrush_rt::fs::File;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

impl Engine {
    /// Sends the content of a response whose head was sent, and ends the stream.
    pub(super) async fn send_content(
        self: Rc<Self>,
        request: RequestId,
        content: Content,
        send_as: SendAs,
    ) {
        let sender = ContentSender {
            engine: &self,
            request,
        };
        let result = match content {
            Content::Empty => sender.send(&[], true).await,
            Content::Static(bytes) => sender.send(bytes, true).await,
            Content::Bytes(bytes) => sender.send_own(bytes.get(), true).await,
            #[cfg(feature = "coroutine")]
            Content::Pooled(kept) => sender.send(&kept.0, true).await,
            Content::Parts(mut parts) => sender.send_parts(parts.get_mut()).await,
            Content::Stream(streamed) => sender.send_stream(*streamed, send_as).await,
        };
        let Err(error) = result else {
            return self.finish_stream(request);
        };
        panic_guard::log(|| tracing::debug!(%error, "a response was not sent completely"));
        let (code, reason) = match error.kind() {
            io::ErrorKind::TimedOut => (ErrorCode::CANCEL, CloseReason::TimedOut),
            // RFC 8441 §5: as a reset of the connection.
            _ if self.is_upgraded(request) => (ErrorCode::CANCEL, CloseReason::Cut),
            _ => (ErrorCode::INTERNAL_ERROR, CloseReason::Cut),
        };
        self.detach_task(request);
        self.reset_stream(request, code, reason);
    }

    /// The present task of a stream ends by itself.
    pub(super) fn detach_task(&self, request: RequestId) {
        let stream = self.conns.stream(request);
        let task = stream.and_then(|mut stream| stream.slot().exchange.task.take());
        if let Some(task) = task {
            task.detach();
        }
    }
}

/// Sends the content of one response, as its client takes it.
struct ContentSender<'e> {
    engine: &'e Engine,
    request: RequestId,
}

impl ContentSender<'_> {
    /// Sends bytes. `ends`: the response is complete with them.
    async fn send(&self, bytes: &[u8], ends: bool) -> io::Result<()> {
        self.send_pieces(bytes, ends, Piece::Bytes).await
    }

    /// As [`ContentSender::send`], for bytes that nobody else may hold.
    async fn send_own(&self, bytes: &Bytes, ends: bool) -> io::Result<()> {
        let held = |piece| Piece::Own(piece, bytes.len());
        match bytes.is_unique() {
            true => self.send_pieces(bytes, ends, held).await,
            false => self.send(bytes, ends).await,
        }
    }

    async fn send_pieces<'a>(
        &self,
        mut bytes: &'a [u8],
        ends: bool,
        piece: impl Fn(&'a [u8]) -> Piece<'a>,
    ) -> io::Result<()> {
        let conns = &self.engine.conns;
        while !bytes.is_empty() || ends {
            let sent =
                poll_fn(|cx| conns.poll_send_content(self.request, cx, piece(bytes), ends)).await?;
            bytes = &bytes[sent..];
            if bytes.is_empty() {
                break;
            }
        }
        Ok(())
    }

    async fn send_parts(&self, parts: &mut std::collections::VecDeque<Part>) -> io::Result<()> {
        while let Some(part) = parts.pop_front() {
            let is_last = parts.is_empty();
            match part {
                Part::Bytes(bytes) => {
                    let bytes = PanicGuard::new(bytes);
                    self.send_own(bytes.get(), is_last).await?;
                }
                Part::File {
                    file,
                    offset,
                    length,
                } => self.send_file(&file, offset, length, is_last).await?,
            }
        }
        Ok(())
    }

    async fn send_file(
        &self,
        file: &Arc<File>,
        mut offset: u64,
        length: u64,
        ends: bool,
    ) -> io::Result<()> {
        let conns = &self.engine.conns;
        if length == 0 {
            return self.send(&[], ends).await;
        }
        let end = offset.saturating_add(length);
        while offset < end {
            let step_end = offset + read_file_ahead(&conns.context, file, offset, end).await?;
            while offset < step_end {
                let left = usize::try_from(end - offset).unwrap_or(usize::MAX);
                let within = left.min((step_end - offset) as usize);
                let ends = ends && within == left;
                let sent = poll_fn(|cx| {
                    let piece = Piece::File(file, offset, within);
                    conns.poll_send_content(self.request, cx, piece, ends)
                })
                .await?;
                if sent == 0 {
                    // The file was truncated meanwhile, so the announced length cannot be sent.
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                offset += sent as u64;
            }
        }
        Ok(())
    }

    async fn send_stream(&self, streamed: Streamed, send_as: SendAs) -> io::Result<()> {
        let Streamed {
            mut stream,
            trailers,
            ..
        } = streamed;
        let mut left = match send_as {
            SendAs::Length(bytes) => bytes,
            _ => u64::MAX,
        };
        let counters = &self.engine.conns.counters;
        while left > 0 {
            let item = poll_fn(|cx| next_item(counters, &mut stream, cx)).await;
            coop::spend(0); // Counts an empty item, too.
            let Some(item) = item else { break };
            let bytes: PanicGuard<Bytes> = PanicGuard::new(item?);
            left =
                (left.checked_sub(bytes.get().len() as u64)).ok_or(io::ErrorKind::InvalidData)?;
            self.send_own(bytes.get(), left == 0).await?;
        }
        match send_as {
            SendAs::Length(_) if left > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            SendAs::Length(_) => Ok(()),
            _ => {
                let lines = trailers.map(|trailers| trailers.take()).unwrap_or_default();
                self.send_end(lines.as_bytes())
            }
        }
    }

    /// Ends content whose length was not known, with trailers if there are lines.
    fn send_end(&self, lines: &[u8]) -> io::Result<()> {
        let stream = self.engine.conns.stream(self.request);
        let mut stream = stream.ok_or_else(connection_gone)?;
        let http2 = stream.http2();
        if !http2.machine.is_open(self.request.number) {
            return Err(connection_gone());
        }
        (http2.machine).send_trailers(self.request.number, lines, &mut http2.out);
        stream.conn.note_due();
        Ok(())
    }
}
