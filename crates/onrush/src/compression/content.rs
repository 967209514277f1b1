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
    fn take(coding: Coding) -> Option<Lease> {
        let bytes = Encoder::memory_bytes(coding);
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
    let length = body.length();
    if !matches!(body.0, Content::Stream(_))
        && let Some(bytes) = length.filter(|bytes| *bytes <= PIECE_BYTES as u64)
    {
        // The encoder lives only as long as this takes.
        let mut compression = Compression::new(Source::parts(&body), coding, length, None);
        let encoded = compression.step().await.ok();
        let smaller = encoded.filter(|encoded| (encoded.len() as u64) < bytes);
        return smaller.map(Body::from).ok_or(body);
    }
    let lease = match for_head {
        true => None,
        false => match Lease::take(coding) {
            None => return Err(body),
            lease => lease,
        },
    };
    if let Content::Stream(streamed) = body.0 {
        return Ok(Body(Content::Stream(stream(*streamed, coding, lease))));
    }
    let mut compression = Compression::new(Source::parts(&body), coding, length, lease);
    if for_head {
        return Ok(Body::stream(compression.into_stream(Bytes::new()), None));
    }
    // An error of reading is found again when the content is sent as it is.
    let Ok(first) = compression.step().await else {
        return Err(body);
    };
    compression.has_begun = true;
    Ok(Body::stream(compression.into_stream(first.into()), None))
}

/// A stream in a coding. Trailers stay.
fn stream(mut streamed: Streamed, coding: Coding, lease: Option<Lease>) -> Box<Streamed> {
    let length = streamed.length.take();
    streamed.wrap(|stream| {
        let source = Source::Stream {
            stream,
            left: length,
        };
        let mut compression = Compression::new(source, coding, length, lease);
        compression.has_begun = true;
        compression.into_stream(Bytes::new())
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
    /// The response cannot be sent as it is any more.
    has_begun: bool,
    _lease: Option<Lease>,
}

impl Compression {
    fn new(
        source: Source,
        coding: Coding,
        length: Option<u64>,
        lease: Option<Lease>,
    ) -> Compression {
        Compression {
            source,
            end: None,
            encoder: OffloadEncoder::new(move || Encoder::new(coding, length)),
            input: VecDeque::new(),
            input_bytes: 0,
            has_ended: false,
            has_begun: false,
            _lease: lease,
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
            match &mut self.end {
                None => {}
                Some(Ok(())) => return Poll::Ready(Ok(Then::End)),
                // The client receives the bytes that precede the error.
                Some(Err(_)) if has_any => return Poll::Ready(Ok(Then::Flush)),
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
                Poll::Pending => {
                    let is_stream = matches!(self.source, Source::Stream { .. });
                    return match is_stream && has_any {
                        true => Poll::Ready(Ok(Then::Flush)),
                        false => Poll::Pending,
                    };
                }
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

    /// Compresses the next piece, and returns what is ready. Fails if the pool refuses the piece,
    /// unless the response has begun.
    async fn step(&mut self) -> io::Result<Vec<u8>> {
        let next = poll_fn(|cx| self.poll_collect(cx)).await?;
        let pieces = self.take_input();
        let then = match self.input_bytes {
            0 => next,
            _ => Then::Continue,
        };
        self.has_ended = then == Then::End;
        match self.has_begun {
            true => self.encoder.encode(&pieces, then).await,
            false => self.encoder.try_encode(&pieces, then).await,
        }
    }

    /// The compressed content: `first`, and what follows.
    fn into_stream(mut self, first: Bytes) -> Steps {
        let ready = Rc::new(Cell::new(Bytes::new()));
        let steps = ready.clone();
        let run = async move {
            let mut encoded = first;
            loop {
                if !encoded.is_empty() {
                    steps.set(encoded);
                    return_once().await;
                }
                if self.has_ended {
                    return Ok(());
                }
                encoded = self.step().await?.into();
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
