//! Content that is compressed while it is sent.
//!
//! Content is collected in pieces of at most [`PIECE_BYTES`]. When a stream has nothing more ready,
//! what it has yielded is compressed and flushed, so a slow stream is not held back.
//! [`OffloadEncoder`] decides where a piece is compressed.

use crate::body::{Body, BoxedStream, Content, Part, Streamed};
use crate::compression::offload_encoder::current_worker;
use crate::compression::{Coding, Encoder, OffloadEncoder, Then};
use crate::panic_guard::PanicGuard;
use crate::worker::Blocking;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::coop;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The maximum number of bytes that are compressed at once.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// The maximum memory of the encoders of one worker.
const ENCODERS_BYTES_MAX: usize = 64 << 20;

thread_local! {
    /// What is left of [`ENCODERS_BYTES_MAX`]. A response stays on its worker, so no other thread
    /// counts here.
    static MEMORY_LEFT: Cell<usize> = const { Cell::new(ENCODERS_BYTES_MAX) };
}

/// The memory of an encoder, until it is dropped.
struct Lease(usize);

impl Lease {
    fn take(bytes: usize) -> Option<Lease> {
        let left = MEMORY_LEFT.get().checked_sub(bytes)?;
        MEMORY_LEFT.set(left);
        Some(Lease(bytes))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // There is no budget any more while the thread ends.
        let _ = MEMORY_LEFT.try_with(|left| left.set(left.get() + self.0));
    }
}

/// The body in a coding. `Err`: it is to be sent as it is, because it did not become smaller, or
/// because memory or CPU time is short. `for_head`: there is no content to send.
pub(super) async fn compressed(body: Body, coding: Coding, for_head: bool) -> Result<Body, Body> {
    let take = |need| match need {
        Need::Memory => Lease::take(Encoder::memory_bytes(coding)).map(Some),
        Need::Job => Some(None),
    };
    let streamed = match body.0 {
        Content::Stream(streamed) => streamed,
        content => {
            let body = Body(content);
            let bytes = body.length().unwrap_or_default();
            let encoded = known(Source::parts(&body), bytes, coding, for_head, take).await;
            return encoded.ok_or(body);
        }
    };
    let lease = match for_head {
        true => None,
        false => match take(Need::Memory) {
            None => return Err(Body(Content::Stream(streamed))),
            Some(lease) => lease,
        },
    };
    Ok(Body(Content::Stream(stream(*streamed, coding, lease))))
}

/// As [`compress`](super::compress) sends content whose length is known, for handlers with budgets
/// and fields of their own: `body` in a coding, or `None` if it is to be sent as it is. A stream is
/// not flushed while it has nothing more ready, and it is lost with `None`, so it must be possible
/// to start it again.
///
/// Content of up to 64 KiB is compressed before this returns, and keeps a length. Of more, the
/// first piece is compressed, and the rest while it is sent. `None` says that the content does not
/// become smaller, has no known length or cannot be read, that the offload pool refuses the first
/// piece, or that `take` returns `None`. What `take` returns is dropped when it is not needed any
/// more. `for_head`: there is no content to send.
pub async fn compress_known<T: 'static>(
    body: Body,
    coding: Coding,
    for_head: bool,
    take: impl Fn(Need) -> Option<T>,
) -> Option<Body> {
    let bytes = body.length()?;
    let source = match body.0 {
        Content::Stream(streamed) => Source::Stream {
            stream: streamed.stream,
            left: Some(bytes),
        },
        content => Source::parts(&Body(content)),
    };
    known(source, bytes, coding, for_head, take).await
}

/// What compression asks for before it uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The memory of an encoder ([`Encoder::memory_bytes`]), until the response has ended.
    Memory,
    /// A job of the offload pool, on which it depends whether the response is compressed.
    Job,
}

/// The content of a known length in a coding. `None`: it is to be sent as it is. `take` gives what
/// is needed, and takes it back when it is dropped.
async fn known<T: 'static>(
    source: Source,
    bytes: u64,
    coding: Coding,
    for_head: bool,
    take: impl Fn(Need) -> Option<T>,
) -> Option<Body> {
    let is_whole = bytes <= PIECE_BYTES as u64;
    let mut compression = Compression::new(source, coding, Some(bytes));
    if for_head && !is_whole {
        return Some(Body::stream(
            compression.into_stream(Bytes::new(), ()),
            None,
        ));
    }
    let memory = match is_whole {
        true => None, // The encoder lives only as long as this takes.
        false => Some(take(Need::Memory)?),
    };
    // An error of reading is found again when the content is sent as it is.
    let (mut pieces, then) = compression.collect().await.ok()?;
    if is_whole && pieces.len() > 1 {
        // The length must not depend on how it was read: that of HEAD is the same.
        pieces = vec![pieces.concat().into()];
    }
    let first = {
        let _job = match compression.encoder.needs_job(&pieces) {
            true => Some(take(Need::Job)?),
            false => None,
        };
        compression.encoder.try_encode(&pieces, then).await.ok()?
    };
    if is_whole {
        return ((first.len() as u64) < bytes).then(|| Body::from(first));
    }
    Some(Body::stream(
        compression.into_stream(first.into(), memory),
        None,
    ))
}

/// A stream in a coding. Trailers stay.
fn stream(mut streamed: Streamed, coding: Coding, lease: Option<Lease>) -> Box<Streamed> {
    let length = streamed.length.take();
    streamed.wrap(|stream| {
        let source = Source::Stream {
            stream,
            left: length,
        };
        let mut compression = Compression::new(source, coding, length);
        compression.flushes = true;
        compression.into_stream(Bytes::new(), lease)
    });
    Box::new(streamed)
}

/// Where the content comes from.
enum Source {
    Parts {
        parts: VecDeque<Part>,
        /// The block of a file that is being read.
        reading: Option<Blocking<io::Result<Bytes>>>,
    },
    Stream {
        stream: PanicGuard<BoxedStream>,
        /// The bytes that must follow, if the length is known.
        left: Option<u64>,
    },
}

impl Source {
    fn parts(body: &Body) -> Source {
        Source::Parts {
            parts: body.known_parts(),
            reading: None,
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self {
            Source::Parts { parts, reading } => poll_part(parts, reading, cx),
            Source::Stream { stream, left } => {
                let next = ready!(stream.get_mut().as_mut().poll_next(cx));
                let Some(left) = left else {
                    return Poll::Ready(next);
                };
                Poll::Ready(match next {
                    Some(Ok(bytes)) => match left.checked_sub(bytes.len() as u64) {
                        Some(rest) => {
                            *left = rest;
                            Some(Ok(bytes))
                        }
                        None => Some(Err(io::ErrorKind::InvalidData.into())),
                    },
                    None if *left > 0 => Some(Err(io::ErrorKind::UnexpectedEof.into())),
                    other => other,
                })
            }
        }
    }
}

/// The next bytes of parts that are known in advance. Files are read by the pool for calls that may
/// block.
fn poll_part(
    parts: &mut VecDeque<Part>,
    reading: &mut Option<Blocking<io::Result<Bytes>>>,
    cx: &mut Context<'_>,
) -> Poll<Option<io::Result<Bytes>>> {
    if reading.is_none() {
        match parts.pop_front() {
            None => return Poll::Ready(None),
            Some(Part::Bytes(bytes)) => return Poll::Ready(Some(Ok(bytes))),
            Some(Part::File {
                file,
                offset,
                length,
            }) => {
                let wanted = length.min(PIECE_BYTES as u64);
                if wanted < length {
                    let (offset, length) = (offset + wanted, length - wanted);
                    let file = file.clone();
                    parts.push_front(Part::File {
                        file,
                        offset,
                        length,
                    });
                }
                let worker = match current_worker() {
                    Ok(worker) => worker,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                };
                let read = move || {
                    let mut block = vec![0; wanted as usize];
                    let mut filled = 0;
                    while filled < block.len() {
                        match file.read_at(&mut block[filled..], offset + filled as u64)? {
                            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                            read => filled += read,
                        }
                    }
                    Ok(Bytes::from(block))
                };
                *reading = Some(worker.blocking(read));
            }
        }
    }
    let Some(job) = reading else {
        return Poll::Ready(None);
    };
    let read = ready!(Pin::new(job).poll(cx));
    *reading = None;
    Poll::Ready(Some(
        read.unwrap_or_else(|error| Err(io::Error::other(error))),
    ))
}

/// A response that is being compressed.
struct Compression {
    source: Source,
    /// How the source has ended.
    end: Option<io::Result<()>>,
    encoder: OffloadEncoder,
    /// What the source has yielded and is not compressed yet.
    input: VecDeque<Bytes>,
    input_bytes: usize,
    /// Whether the encoder has ended the content.
    has_ended: bool,
    /// The client gets what the source has yielded when it has nothing more ready, or fails.
    flushes: bool,
}

impl Compression {
    fn new(source: Source, coding: Coding, length: Option<u64>) -> Compression {
        Compression {
            source,
            end: None,
            encoder: OffloadEncoder::new(move || Encoder::new(coding, length)),
            input: VecDeque::new(),
            input_bytes: 0,
            has_ended: false,
            flushes: false,
        }
    }

    /// Takes content from the source until there is enough, or until it has nothing more ready.
    /// Returns what follows.
    fn poll_collect(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Then>> {
        loop {
            if self.input_bytes > PIECE_BYTES && self.end.is_none() {
                return Poll::Ready(Ok(Then::Continue));
            }
            let has_any = self.input_bytes > 0 || self.encoder.unflushed_bytes() > 0;
            let flushes = self.flushes && has_any;
            match &mut self.end {
                None => {}
                Some(Ok(())) => return Poll::Ready(Ok(Then::End)),
                Some(Err(_)) if flushes => return Poll::Ready(Ok(Then::Flush)),
                Some(end) => {
                    return Poll::Ready(std::mem::replace(end, Ok(())).map(|()| Then::End));
                }
            }
            ready!(coop::poll_operation(cx));
            match self.source.poll_next(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    self.input_bytes += bytes.len();
                    self.input.extend(Some(bytes).filter(|it| !it.is_empty()));
                }
                Poll::Ready(Some(Err(error))) => self.end = Some(Err(error)),
                Poll::Ready(None) => self.end = Some(Ok(())),
                Poll::Pending if flushes => return Poll::Ready(Ok(Then::Flush)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// At most [`PIECE_BYTES`] of the input.
    fn take_input(&mut self) -> Vec<Bytes> {
        let (mut taken, mut room) = (Vec::new(), PIECE_BYTES);
        while let Some(bytes) = self.input.front_mut().filter(|_| room > 0) {
            let piece = bytes.split_to(bytes.len().min(room));
            room -= piece.len();
            self.input_bytes -= piece.len();
            if bytes.is_empty() {
                self.input.pop_front();
            }
            taken.push(piece);
        }
        taken
    }

    /// The next piece, and what follows it.
    async fn collect(&mut self) -> io::Result<(Vec<Bytes>, Then)> {
        let next = poll_fn(|cx| self.poll_collect(cx)).await?;
        let pieces = self.take_input();
        let then = match self.input_bytes {
            0 => next,
            _ => Then::Continue,
        };
        self.has_ended = then == Then::End;
        Ok((pieces, then))
    }

    /// The compressed content: `first`, and what follows. `kept` is dropped behind it.
    fn into_stream(self, first: Bytes, kept: impl Sized + 'static) -> Steps {
        let ready = Rc::new(Cell::new(Bytes::new()));
        let steps = ready.clone();
        let run = async move {
            let _kept = kept;
            let mut this = self;
            let mut encoded = first;
            loop {
                if !encoded.is_empty() {
                    steps.set(encoded);
                    return_once().await;
                }
                if this.has_ended {
                    return Ok(());
                }
                let (pieces, then) = this.collect().await?;
                encoded = this.encoder.encode(&pieces, then).await?.into();
            }
        };
        Steps {
            run: Box::pin(run),
            ready,
        }
    }
}

/// Returns to the caller of the poll once, without a wake-up: it polls again.
async fn return_once() {
    let mut has_returned = false;
    poll_fn(|_| match std::mem::replace(&mut has_returned, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// The stream of the pieces that `run` leaves in `ready`, one each time that it returns.
struct Steps {
    run: Pin<Box<dyn Future<Output = io::Result<()>>>>,
    ready: Rc<Cell<Bytes>>,
}

impl Stream for Steps {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.run.as_mut().poll(cx);
        let piece = self.ready.take();
        if !piece.is_empty() {
            return Poll::Ready(Some(Ok(piece)));
        }
        polled.map(|end| end.err().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// A piece, an error, and nothing that may be asked for.
    struct Failing(u8);

    impl Stream for Failing {
        type Item = io::Result<Bytes>;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0 += 1;
            Poll::Ready(Some(match self.0 {
                1 => Ok(Bytes::from_static(b"before the error")),
                2 => Err(io::Error::other("on purpose")),
                _ => panic!("polled after its error"),
            }))
        }
    }

    #[test]
    fn what_precedes_an_error_is_flushed() {
        let body = Body::stream(Failing(0), None);
        let mut cx = Context::from_waker(Waker::noop());
        let mut future = Box::pin(compressed(body, Coding::Gzip, false));
        let Poll::Ready(Ok(Body(Content::Stream(mut streamed)))) = future.as_mut().poll(&mut cx)
        else {
            panic!("a stream");
        };
        let mut next = || streamed.stream.get_mut().as_mut().poll_next(&mut cx);
        let Poll::Ready(Some(Ok(encoded))) = next() else {
            panic!("content");
        };
        let mut decoded = [0; 16];
        let mut decoder = flate2::read::GzDecoder::new(&encoded[..]);
        io::Read::read_exact(&mut decoder, &mut decoded).expect("what was flushed");
        assert_eq!(&decoded, b"before the error");
        let Poll::Ready(Some(Err(error))) = next() else {
            panic!("an error");
        };
        assert_eq!(error.to_string(), "on purpose");
    }
}
