//! The content of an answer: bytes, pieces of files, or a stream. Must not know how it is framed.

use crate::panic_guard::{self, PanicGuard};
use crate::pooled_buffer::PooledBuffer;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::coop;
use onrush_rt::fs::File;
use onrush_rt::user;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

/// The content of an answer. Its destructor does not panic, whatever the content's does
/// ([`Bytes::from_owner`] has user code in it).
#[derive(Default)]
pub struct Body(pub(crate) Content);

#[derive(Default)]
pub(crate) enum Content {
    #[default]
    Empty,
    Static(&'static [u8]),
    /// `Bytes` may be made of a value of the user's, with a destructor (`Bytes::from_owner`).
    Bytes(PanicGuard<Bytes>),
    /// Little, in memory that is used again.
    Pooled(PooledBuffer),
    /// Pieces known ahead, one after the other.
    Parts(PanicGuard<VecDeque<Part>>),
    Stream(Box<Streamed>),
}

/// Content made while it is sent.
pub(crate) struct Streamed {
    pub(crate) stream: PanicGuard<Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>>,
    pub(crate) length: Option<u64>,
}

/// A stream without anything.
struct EmptyStream;

impl Stream for EmptyStream {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

/// Content with something that is to be dropped when it is.
struct WithGuard<K> {
    stream: PanicGuard<Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>>,
    _kept: K,
}

impl<K: Unpin> Stream for WithGuard<K> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.get_mut().as_mut().poll_next(cx)
    }
}

/// A piece of a body that is known ahead.
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// `length` bytes of a file from `offset`, sent without copying where the kernel can.
    File {
        /// The file; it may be shared by many answers.
        file: Arc<File>,
        /// First byte.
        offset: u64,
        /// Number of bytes. A file that is shorter by then ends the connection, so that the client
        /// sees that the answer is not whole.
        length: u64,
    },
}

impl Part {
    fn length(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::File { length, .. } => *length,
        }
    }
}

impl Body {
    /// Whether there is nothing to drop.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.0, Content::Empty | Content::Static(_))
    }

    /// Has `kept` dropped only when all of this is made and sent, if it is made while it is sent;
    /// now otherwise.
    pub(crate) fn keep_until_sent(&mut self, kept: impl Unpin + 'static) {
        if let Content::Stream(streamed) = &mut self.0 {
            let empty: Pin<Box<dyn Stream<Item = _>>> = Box::pin(EmptyStream);
            let stream = std::mem::replace(&mut streamed.stream, PanicGuard::new(empty));
            let keeping = WithGuard {
                stream,
                _kept: kept,
            };
            streamed.stream = PanicGuard::new(Box::pin(keeping));
        }
    }

    /// No content.
    pub fn empty() -> Body {
        Body::default()
    }

    /// `length` bytes of a file from `offset`.
    pub fn file(file: Arc<File>, offset: u64, length: u64) -> Body {
        Body::parts([Part::File {
            file,
            offset,
            length,
        }])
    }

    /// Several pieces, one after the other: the parts of a multipart answer, say.
    pub fn parts(parts: impl IntoIterator<Item = Part>) -> Body {
        let parts = parts.into_iter().filter(|part| part.length() > 0);
        Body(Content::Parts(PanicGuard::new(parts.collect())))
    }

    /// Content made while it is sent, at the pace at which the client takes it. Without a `length`
    /// it is sent chunked. A stream's error, or a length that was not kept, ends the connection.
    pub fn stream<S>(stream: S, length: Option<u64>) -> Body
    where
        S: Stream<Item = io::Result<Bytes>> + 'static,
    {
        let stream: Pin<Box<dyn Stream<Item = io::Result<Bytes>>>> = Box::pin(stream);
        let stream = PanicGuard::new(stream);
        Body(Content::Stream(Box::new(Streamed { stream, length })))
    }

    /// A body and the sender that fills it, for writing an answer step by step from a task. The
    /// sender waits while more than `bytes_max` bytes wait to be sent.
    pub fn channel(bytes_max: usize) -> (BodySender, Body) {
        let shared = Rc::new(RefCell::new(Channel {
            bytes_max,
            ..Channel::default()
        }));
        (
            BodySender(shared.clone()),
            Body::stream(Receiver(shared), None),
        )
    }

    /// The length in bytes, where it is known ahead.
    #[inline]
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            Content::Static(bytes) => Some(bytes.len() as u64),
            _ => self.other_length(),
        }
    }

    #[inline(never)]
    fn other_length(&self) -> Option<u64> {
        match &self.0 {
            Content::Empty => Some(0),
            Content::Static(bytes) => Some(bytes.len() as u64),
            Content::Bytes(bytes) => Some(bytes.get().len() as u64),
            Content::Pooled(kept) => Some(kept.0.len() as u64),
            Content::Parts(parts) => {
                let lengths = parts.get().iter().map(Part::length);
                Some(lengths.fold(0, u64::saturating_add))
            }
            Content::Stream(streamed) => streamed.length,
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.length() {
            Some(length) => write!(f, "Body({length} bytes)"),
            None => f.write_str("Body(stream)"),
        }
    }
}

impl From<&'static str> for Body {
    #[inline]
    fn from(text: &'static str) -> Body {
        Body(Content::Static(text.as_bytes()))
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Body {
        Body(Content::Static(bytes))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Body::from(Bytes::from(text))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body::from(Bytes::from(bytes))
    }
}

impl From<PooledBuffer> for Body {
    fn from(kept: PooledBuffer) -> Body {
        Body(Content::Pooled(kept))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        Body(Content::Bytes(PanicGuard::new(bytes)))
    }
}

#[derive(Debug, Default)]
struct Channel {
    queue: VecDeque<io::Result<Bytes>>,
    queued_bytes: usize,
    bytes_max: usize,
    sender_gone: bool,
    receiver_gone: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

/// The writing end of [`Body::channel`]. Dropping it ends the body; as broken, when that is because
/// of a panic.
#[derive(Debug)]
pub struct BodySender(Rc<RefCell<Channel>>);

impl BodySender {
    /// Queues a piece, waiting for room. Fails with `BrokenPipe` when the client is gone.
    pub async fn send(&mut self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let mut bytes = Some(bytes.into());
        poll_fn(|cx| {
            ready!(coop::poll_operation(cx)); // Also for an error: some send on without a client.
            let _replaced; // A waker is user code: dropped after the borrow.
            let mut channel = self.0.borrow_mut();
            if channel.receiver_gone {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if channel.queued_bytes > 0 && channel.queued_bytes >= channel.bytes_max {
                _replaced = channel.sender.replace(cx.waker().clone());
                return Poll::Pending;
            }
            if let Some(bytes) = bytes.take().filter(|bytes| !bytes.is_empty()) {
                channel.queued_bytes += bytes.len();
                channel.queue.push_back(Ok(bytes));
            }
            let waker = channel.receiver.take();
            drop(channel);
            if let Some(waker) = waker {
                user::wake(waker);
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Ends the body as broken: the client sees that the answer is not whole.
    pub fn abort(self, error: io::Error) {
        self.0.borrow_mut().queue.push_back(Err(error));
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.sender_gone = true;
        if std::thread::panicking() {
            let error = io::Error::other("the sender of a body panicked");
            channel.queue.push_back(Err(error));
        }
        let waker = channel.receiver.take();
        drop(channel);
        panic_guard::wake(waker);
    }
}

struct Receiver(Rc<RefCell<Channel>>);

impl Stream for Receiver {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut channel = self.0.borrow_mut();
        match channel.queue.pop_front() {
            Some(item) => {
                if let Ok(bytes) = &item {
                    channel.queued_bytes -= bytes.len();
                }
                let waker = channel.sender.take();
                drop(channel);
                if let Some(waker) = waker {
                    user::wake(waker);
                }
                Poll::Ready(Some(item))
            }
            None if channel.sender_gone => Poll::Ready(None),
            None => {
                let before = channel.receiver.replace(cx.waker().clone());
                drop(channel);
                drop(before); // Outside the borrow: its destructor may do anything.
                Poll::Pending
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.receiver_gone = true;
        let waker = channel.sender.take();
        drop(channel);
        panic_guard::wake(waker);
    }
}
