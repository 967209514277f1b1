//! The content of a response: bytes, parts of files, or a stream. The engine frames and sends it.
//! Beneath: the stream that a task fills (`channel`).

mod channel;

use crate::panic_guard::PanicGuard;
#[cfg(feature = "coroutine")]
use crate::pooled_buffer::PooledBuffer;
use bytes::Bytes;
pub use channel::BodySender;
use futures_core::Stream;
use onrush_proto::response::{FieldError, FieldLines};
use onrush_rt::coop;
use onrush_rt::fs::File;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The content of a response.
///
/// A body is made from bytes or text by [`From`], from parts of files, or from a stream. If the
/// destructor of the content panics ([`Bytes::from_owner`] runs user code), the panic is logged and
/// ends there.
///
/// # Examples
/// ```
/// use onrush::{Body, Bytes};
///
/// assert_eq!(Body::from("hello").length(), Some(5));
/// assert_eq!(Body::from(vec![0; 100]).length(), Some(100));
/// assert_eq!(Body::from(Bytes::from_static(b"shared")).length(), Some(6));
/// assert_eq!(Body::empty().length(), Some(0));
/// ```
#[derive(Default)]
pub struct Body(pub(crate) Content);

#[derive(Default)]
pub(crate) enum Content {
    #[default]
    Empty,
    Static(&'static [u8]),
    /// `Bytes` may own a user value with a destructor (`Bytes::from_owner`).
    Bytes(PanicGuard<Bytes>),
    /// Small content in memory that is reused.
    #[cfg(feature = "coroutine")]
    Pooled(PooledBuffer),
    /// Parts that are known in advance, in order.
    Parts(PanicGuard<VecDeque<Part>>),
    Stream(Box<Streamed>),
}

pub(crate) type BoxedStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>>>>;

/// Content that is made while it is sent.
pub(crate) struct Streamed {
    pub(crate) stream: PanicGuard<BoxedStream>,
    pub(crate) length: Option<u64>,
    /// The fields behind it, which are complete when it has ended.
    pub(crate) trailers: Option<Trailers>,
}

/// Fields that are of no use behind the content: of routing, authentication, caching, other
/// protocols, and of what the content is. Those of framing are refused everywhere.
const BEFORE_CONTENT: [&str; 17] = [
    "Authorization",
    "Cache-Control",
    "Content-Encoding",
    "Content-Range",
    "Content-Type",
    "Cookie",
    "Expect",
    "Host",
    "Location",
    "Max-Forwards",
    "Proxy-Authenticate",
    "Set-Cookie",
    "TE",
    "Trailer",
    "Upgrade",
    "Vary",
    "WWW-Authenticate",
];

/// The fields that follow the content of a response (RFC 9110 §6.5), for values that are known only
/// when the content has been made. [`Body::with_trailers`] has an example.
#[derive(Clone, Debug, Default)]
pub struct Trailers(Rc<RefCell<FieldLines>>);

impl Trailers {
    /// No fields.
    pub fn new() -> Trailers {
        Trailers::default()
    }

    /// Adds a field line. Fails as [`Response::append_header`](crate::Response::append_header)
    /// does, and for a field that recipients need before the content (RFC 9110 §6.5.1). A line that
    /// is added after the end of the content is not sent.
    pub fn append(&self, name: &str, value: impl AsRef<[u8]>) -> Result<(), FieldError> {
        let value = value.as_ref();
        if BEFORE_CONTENT
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
        {
            return Err(FieldError::Reserved);
        }
        self.0.borrow_mut().append(name, value)
    }

    pub(crate) fn take(&self) -> FieldLines {
        self.0.take()
    }
}

impl Streamed {
    /// Replaces the stream by one that is made from it.
    pub(crate) fn wrap<S>(&mut self, wrap: impl FnOnce(PanicGuard<BoxedStream>) -> S)
    where
        S: Stream<Item = io::Result<Bytes>> + 'static,
    {
        let empty: BoxedStream = Box::pin(EmptyStream);
        let stream = std::mem::replace(&mut self.stream, PanicGuard::new(empty));
        self.stream = PanicGuard::new(Box::pin(wrap(stream)));
    }
}

/// A stream without items.
struct EmptyStream;

impl Stream for EmptyStream {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

/// A piece of a stream that has arrived, and the rest of the stream.
struct WithFirst {
    first: Option<Bytes>,
    stream: PanicGuard<BoxedStream>,
}

impl Stream for WithFirst {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.stream.get_mut().as_mut().poll_next(cx),
        }
    }
}

/// A stream, and a value that is dropped together with it.
struct WithGuard<K> {
    stream: PanicGuard<BoxedStream>,
    _kept: K,
}

impl<K: Unpin> Stream for WithGuard<K> {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream.get_mut().as_mut().poll_next(cx)
    }
}

/// A part of a body that is known in advance. See [`Body::parts`].
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// `length` bytes of a file from `offset`, sent without copying where the kernel can do that
    /// (`sendfile(2)`).
    File {
        /// The file. Many responses may share it.
        file: Arc<File>,
        /// Position of the first byte in the file.
        offset: u64,
        /// Number of bytes. If the file is shorter when it is sent, the connection is reset, so the
        /// client sees that the response is incomplete.
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
    /// Whether there is no value to drop.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.0, Content::Empty | Content::Static(_))
    }

    /// Drops `kept` after the stream, if the content is a stream. Otherwise drops it now.
    pub(crate) fn keep_until_sent(&mut self, kept: impl Unpin + 'static) {
        if let Content::Stream(streamed) = &mut self.0 {
            streamed.wrap(|stream| WithGuard {
                stream,
                _kept: kept,
            });
        }
    }

    /// Waits until a stream has yielded its first bytes, or has ended. Returns its error if it
    /// fails first. Other bodies are ready at once.
    pub(crate) async fn wait_ready(&mut self) -> io::Result<()> {
        let Content::Stream(streamed) = &mut self.0 else {
            return Ok(());
        };
        let first = poll_fn(|cx| {
            loop {
                // A stream may yield empty pieces without end.
                ready!(coop::poll_operation(cx));
                match ready!(streamed.stream.get_mut().as_mut().poll_next(cx)) {
                    Some(Ok(piece)) if piece.is_empty() => {}
                    first => return Poll::Ready(first),
                }
            }
        });
        match first.await {
            Some(first) => {
                let first = Some(first?);
                streamed.wrap(|stream| WithFirst { first, stream });
            }
            // It must not be polled again.
            None => streamed.wrap(|_| EmptyStream),
        }
        Ok(())
    }

    /// The parts of content that is not a stream. Only small content is copied.
    #[cfg(feature = "compression")]
    pub(crate) fn known_parts(&self) -> VecDeque<Part> {
        let bytes = match &self.0 {
            Content::Empty | Content::Stream(_) => return VecDeque::new(),
            Content::Parts(parts) => return parts.get().clone(),
            Content::Static(bytes) => Bytes::from_static(bytes),
            Content::Bytes(bytes) => bytes.get().clone(),
            #[cfg(feature = "coroutine")]
            Content::Pooled(kept) => Bytes::copy_from_slice(&kept.0),
        };
        VecDeque::from([Part::Bytes(bytes)])
    }

    /// The content, if it is in memory and in one piece.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Content::Empty => Some(b""),
            Content::Static(bytes) => Some(bytes),
            Content::Bytes(bytes) => Some(bytes.get()),
            #[cfg(feature = "coroutine")]
            Content::Pooled(kept) => Some(&kept.0),
            Content::Parts(_) | Content::Stream(_) => None,
        }
    }

    /// A body without content.
    pub fn empty() -> Body {
        Body::default()
    }

    /// `length` bytes of a file from `offset`: a body of one [`Part::File`].
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, File};
    /// use std::sync::Arc;
    ///
    /// # let path = std::env::temp_dir().join(format!("onrush-doc-body-{}", std::process::id()));
    /// # std::fs::write(&path, "0123456789")?;
    /// let file = std::fs::File::open(&path)?; // In a handler: `WorkerHandle::blocking`.
    /// let length = file.metadata()?.len();
    /// let file = Arc::new(File::from(file));
    /// assert_eq!(Body::file(file, 0, length).length(), Some(10));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn file(file: Arc<File>, offset: u64, length: u64) -> Body {
        Body::parts([Part::File {
            file,
            offset,
            length,
        }])
    }

    /// Several parts in order, for example those of a multipart response (RFC 9110 §14.6). Empty
    /// parts are left out.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Bytes, Part};
    ///
    /// let parts = ["first,", "second"].map(|text| Part::Bytes(Bytes::from(text)));
    /// assert_eq!(Body::parts(parts).length(), Some(12));
    /// ```
    pub fn parts(parts: impl IntoIterator<Item = Part>) -> Body {
        let parts = parts.into_iter().filter(|part| part.length() > 0);
        Body(Content::Parts(PanicGuard::new(parts.collect())))
    }

    /// Content that is made while it is sent. The stream is polled as fast as the client accepts
    /// its items.
    ///
    /// `length` is the number of bytes that the stream yields. Without it the content is sent
    /// chunked (RFC 9112 §7.1), or until close to a client of HTTP/1.0. If the stream yields an
    /// error, or another number of bytes, the connection is reset.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Bytes, Limits, Request, Response, Stream, sim::Simulation};
    /// use std::io;
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    ///
    /// struct Lines(std::ops::Range<u32>);
    ///
    /// impl Stream for Lines {
    ///     type Item = io::Result<Bytes>;
    ///
    ///     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context) -> Poll<Option<Self::Item>> {
    ///         let line = self.0.next().map(|number| format!("line {number}\n"));
    ///         Poll::Ready(line.map(|line| Ok(Bytes::from(line))))
    ///     }
    /// }
    ///
    /// async fn lines(_: Request) -> Response {
    ///     Response::text(Body::stream(Lines(0..3), Some(21)))
    /// }
    /// # let mut sim = Simulation::new(1, &lines, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"\r\n\r\nline 0\nline 1\nline 2\n"));
    /// # Ok::<(), io::Error>(())
    /// ```
    pub fn stream<S>(stream: S, length: Option<u64>) -> Body
    where
        S: Stream<Item = io::Result<Bytes>> + 'static,
    {
        let stream: BoxedStream = Box::pin(stream);
        let stream = PanicGuard::new(stream);
        Body(Content::Stream(Box::new(Streamed {
            stream,
            length,
            trailers: None,
        })))
    }

    /// The body with `trailers` behind it. They are sent only behind a stream without a length, to
    /// a client of HTTP/1.1. A client that cannot use them ignores them.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, body::Trailers, sim::Simulation};
    ///
    /// async fn numbers(request: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(1024);
    ///     let trailers = Trailers::new();
    ///     let body = body.with_trailers(trailers.clone());
    ///     let task = request.worker().spawn(async move {
    ///         let mut sum = 0;
    ///         for number in 0..3 {
    ///             sum += number;
    ///             let _ = sender.send(format!("{number}\n")).await;
    ///         }
    ///         let _ = trailers.append("X-Sum", sum.to_string());
    ///         sender.finish();
    ///     });
    ///     task.detach();
    ///     Response::text(body).with_header("Trailer", "X-Sum")
    /// }
    /// # let mut sim = Simulation::new(1, &numbers, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"2\n\r\n0\r\nX-Sum: 3\r\n\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_trailers(mut self, trailers: Trailers) -> Body {
        if let Content::Stream(streamed) = &mut self.0 {
            streamed.trailers = Some(trailers);
        }
        self
    }

    /// A body, and the sender that fills it. With it a task can write a response step by
    /// step. The sender waits while `bytes_max` or more bytes wait to be sent; each piece counts at
    /// least 64. [`BodySender::finish`] ends the body; without it, it is incomplete.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn count(request: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(16 * 1024);
    ///     let task = request.worker().spawn(async move {
    ///         for number in 0..3 {
    ///             if sender.send(format!("{number}\n")).await.is_err() {
    ///                 return; // The client has disconnected.
    ///             }
    ///         }
    ///         sender.finish();
    ///     });
    ///     task.detach();
    ///     Response::text(body)
    /// }
    /// # let mut sim = Simulation::new(1, &count, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"2\n\r\n0\r\n\r\n")); // The last chunk.
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn channel(bytes_max: usize) -> (BodySender, Body) {
        let (sender, receiver) = channel::channel(bytes_max);
        (sender, Body::stream(receiver, None))
    }

    /// The length in bytes. `None` for a stream whose length was not given.
    ///
    /// # Examples
    /// ```
    /// use onrush::Body;
    ///
    /// assert_eq!(Body::from("seven b").length(), Some(7));
    /// let (_sender, body) = Body::channel(1024);
    /// assert_eq!(body.length(), None);
    /// ```
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
            #[cfg(feature = "coroutine")]
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

#[cfg(feature = "coroutine")]
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
