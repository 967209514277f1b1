//! Sends the responses that do not fit into one buffer with others: large content, files, streams.

use crate::body::{BoxedStream, Content, Part, Streamed};
use crate::connections::ConnId;
use crate::engine::lifecycle::{Engine, guarded};
use crate::engine::open::OpenConns;
use crate::engine::shared::socket_io::connection_gone;
use crate::metrics::{CloseReason, Counters};
use crate::panic_guard::{self, PanicGuard};
use bytes::Bytes;
use onrush_proto::chunked;
use onrush_proto::connection::{After, SendAs};
use onrush_rt::coop;
use onrush_rt::fs::File;
use onrush_rt::worker::WorkerContext;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Content up to this size is sent in one buffer with its head.
pub(in crate::engine) const SMALL_BYTES: usize = 16 * 1024;
/// The end of a chunk, behind its data (RFC 9112, section 7.1).
const CHUNK_END: &[u8] = b"\r\n";
/// The most of a file that is sent by one call. The cooperative budget counts it afterwards.
const FILE_STEP_BYTES: u64 = 1 << 20;
/// File content that is not in the page cache is read in steps of this size by the blocking thread
/// pool.
const DISK_STEP_BYTES: u64 = 256 * 1024;

impl Engine {
    pub(super) async fn send_response(
        self: Rc<Self>,
        id: ConnId,
        mut head: Vec<u8>,
        content: Content,
        send_as: SendAs,
    ) -> Option<After> {
        self.begin_other_protocol(id);
        let sender = ResponseSender {
            conns: &self.conns,
            id,
        };
        let result = match content {
            Content::Empty => sender.send_rendered(&head).await,
            Content::Static(bytes) => sender.send_both(&mut head, bytes).await,
            Content::Bytes(bytes) => sender.send_both(&mut head, bytes.get()).await,
            #[cfg(feature = "coroutine")]
            Content::Pooled(kept) => sender.send_both(&mut head, &kept.0).await,
            Content::Parts(parts) => sender.send_parts(head, parts).await,
            Content::Stream(streamed) => sender.send_stream(head, *streamed, send_as).await,
        };
        if let Err(error) = result {
            panic_guard::log(|| tracing::debug!(%error, "a response was not sent completely"));
            let reason = match error.kind() {
                io::ErrorKind::TimedOut => CloseReason::TimedOut,
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => CloseReason::Broken,
                _ => CloseReason::Cut,
            };
            self.abort(id, reason);
            return None;
        }
        let mut conn = self.conns.open(id)?;
        if self.conns.io.log.is_on() {
            self.conns.io.log.sent(&mut conn);
        }
        Some(self.conns.finish_request(&mut conn))
    }

    /// After a 101 the client has no more time limits than the application gives it, and what it
    /// has sent already can be read.
    fn begin_other_protocol(&self, id: ConnId) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        if !conn.machine.is_upgraded() {
            return;
        }
        conn.active().exchange.total_deadline_ms = None;
        if conn.state.is_busy() {
            conn.set_busy_deadline();
        }
        drop(conn);
        self.conns.clear_body_reader(id);
    }
}

/// Sends the content of a response to one connection, as fast as its client takes it.
struct ResponseSender<'e> {
    conns: &'e OpenConns,
    id: ConnId,
}

impl ResponseSender<'_> {
    async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| self.conns.poll_send(self.id, cx, bytes)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends bytes that the engine rendered. They count as its memory while they wait.
    async fn send_rendered(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| self.conns.poll_send_rendered(self.id, cx, bytes)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends rendered bytes and content behind them. Frees the rendered bytes when the kernel has
    /// accepted them.
    async fn send_both(&self, first: &mut Vec<u8>, second: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < first.len() {
            sent += poll_fn(|cx| {
                self.conns
                    .poll_send_head_and_content(self.id, cx, &first[sent..], second)
            })
            .await?;
        }
        let of_second = sent - first.len();
        first.clear();
        if first.capacity() > SMALL_BYTES {
            *first = Vec::new();
        }
        self.send_all(&second[of_second..]).await
    }

    async fn send_parts(
        &self,
        mut head: Vec<u8>,
        mut parts: PanicGuard<VecDeque<Part>>,
    ) -> io::Result<()> {
        while let Some(part) = parts.get_mut().pop_front() {
            match part {
                Part::Bytes(bytes) => {
                    let bytes = PanicGuard::new(bytes);
                    self.send_both(&mut head, bytes.get()).await?;
                }
                Part::File {
                    file,
                    offset,
                    length,
                } => {
                    let mut left = &head[..];
                    while !left.is_empty() {
                        let sent =
                            poll_fn(|cx| self.conns.poll_send_more(self.id, cx, left)).await?;
                        left = &left[sent..];
                    }
                    head = Vec::new();
                    self.send_file(&file, offset, length).await?;
                }
            }
        }
        self.send_rendered(&head).await
    }

    async fn send_file(&self, file: &Arc<File>, mut offset: u64, length: u64) -> io::Result<()> {
        let end = offset.saturating_add(length);
        while offset < end {
            let step_end = offset + read_file_ahead(&self.conns.context, file, offset, end).await?;
            while offset < step_end {
                let left = (step_end - offset) as usize;
                let sent = poll_fn(|cx| self.conns.poll_send_file(self.id, cx, file, offset, left))
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

    async fn send_stream(
        &self,
        mut pending: Vec<u8>,
        streamed: Streamed,
        send_as: SendAs,
    ) -> io::Result<()> {
        let Streamed {
            mut stream,
            trailers,
            ..
        } = streamed;
        let mut left = match send_as {
            SendAs::Length(bytes) => bytes,
            _ => u64::MAX,
        };
        loop {
            // Pending bytes are sent before waiting for the producer. While the producer is ready,
            // they are sent with the next piece: a separate call for the two bytes behind each
            // chunk would wake the client twice. Small pieces are collected for one budget at most;
            // then they are sent before the producer continues.
            //
            // The response is complete with its last byte: a producer that goes on waiting behind
            // it does not keep the next response back. One that goes on at once breaks its promise.
            let is_complete = left == 0;
            let polled = poll_fn(|cx| {
                if coop::is_exhausted() && pending.len() > CHUNK_END.len() {
                    return Poll::Ready(None);
                }
                ready!(coop::poll_proceed(cx));
                match poll_item(&self.conns.counters, &mut stream, cx) {
                    Poll::Ready(item) => Poll::Ready(Some(item)),
                    Poll::Pending if is_complete => Poll::Ready(Some(None)),
                    Poll::Pending if pending.is_empty() => Poll::Pending,
                    Poll::Pending => Poll::Ready(None),
                }
            });
            let Some(item) = polled.await else {
                self.send_rendered(&pending).await?;
                pending.clear();
                continue;
            };
            coop::spend(0); // Counts an empty item, too.
            let Some(item) = item else { break };
            let piece = item.map(PanicGuard::new).and_then(|bytes| {
                let length = bytes.get().len() as u64;
                left = left.checked_sub(length).ok_or(io::ErrorKind::InvalidData)?;
                Ok(bytes)
            });
            let bytes = match piece {
                Ok(bytes) => bytes,
                Err(error) => {
                    // The client receives the bytes that precede the error.
                    self.send_rendered(&pending).await?;
                    return Err(error);
                }
            };
            self.send_piece(&mut pending, bytes.get(), send_as).await?;
        }
        if send_as == SendAs::Chunked {
            let trailers = trailers.map(|trailers| trailers.take()).unwrap_or_default();
            let mut conn = self.conns.open(self.id).ok_or_else(connection_gone)?;
            conn.machine.send_end(trailers.as_bytes(), &mut pending);
        }
        self.send_rendered(&pending).await?;
        match send_as {
            SendAs::Length(_) if left > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Appends one piece to the pending bytes, as a chunk if the response is chunked. Sends all but
    /// the end of the chunk when the piece is large or many small pieces have accumulated.
    async fn send_piece(
        &self,
        pending: &mut Vec<u8>,
        bytes: &Bytes,
        send_as: SendAs,
    ) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(()); // An empty chunk would end the body.
        }
        let chunked = send_as == SendAs::Chunked;
        if chunked {
            chunked::encode_chunk_header(bytes.len(), pending);
        }
        if pending.len() + bytes.len() <= SMALL_BYTES {
            pending.extend_from_slice(bytes);
        } else {
            self.send_both(pending, bytes).await?;
        }
        if chunked {
            pending.extend_from_slice(CHUNK_END);
        }
        Ok(())
    }
}

/// Makes the next part of a file resident, from `offset` up to `end`, without blocking the worker.
/// Returns its length in bytes.
///
/// What is not in the page cache is read by exactly this part: read-ahead by plain reads would
/// continue while the worker sends it. The kernel reads what follows meanwhile.
pub(in crate::engine) async fn read_file_ahead(
    context: &WorkerContext,
    file: &Arc<File>,
    offset: u64,
    end: u64,
) -> io::Result<u64> {
    let step = (end - offset).min(FILE_STEP_BYTES);
    if file.is_resident(offset, step) {
        return Ok(step);
    }
    let step = step.min(DISK_STEP_BYTES);
    let next = (end - offset - step).min(DISK_STEP_BYTES);
    let file = file.clone();
    let job = context.blocking().run(move || {
        file.advise_needed(offset, step);
        let mut scratch = vec![0; 64 * 1024];
        let (mut at, end) = (offset, offset + step);
        while at < end {
            match file.read_at(&mut scratch, at)? {
                0 => break,
                n => at += n as u64,
            }
        }
        if next > 0 {
            file.advise_needed(end, next);
        }
        Ok(step)
    });
    job.await
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// The next item of a stream, which is user code. A task whose budget is used up waits.
pub(in crate::engine) fn next_item(
    counters: &Counters,
    stream: &mut PanicGuard<BoxedStream>,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>> {
    ready!(coop::poll_proceed(cx));
    poll_item(counters, stream, cx)
}

fn poll_item(
    counters: &Counters,
    stream: &mut PanicGuard<BoxedStream>,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>> {
    let polled = guarded(counters, || stream.get_mut().as_mut().poll_next(cx));
    polled.unwrap_or_else(|| Poll::Ready(Some(Err(stream_panicked()))))
}

#[cold]
fn stream_panicked() -> io::Error {
    io::Error::other("the stream of a response panicked")
}
