//! The response of a coroutine handler. Its content is written in blocking style.
//!
//! Small content is kept until the handler has returned. More content, or a flush, sends the head.
//! From then on, a write puts a piece into the outbox of this thread and suspends the coroutine.
//! The caller that polls the coroutine takes the piece from the outbox, and polls again when the
//! piece has been sent.

use crate::body::Body;
use crate::pooled_buffer::PooledBuffer;
use crate::request::{RequestBody, Upgrade};
use crate::response::Response as Inner;
use bytes::Bytes;
use onrush_coroutine::{is_unwinding, try_wait};
use onrush_proto::response::FieldError;
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Write};
use std::task::Poll;

/// Content up to this size is sent together with its head; larger content in pieces of this size.
const PIECE_BYTES: usize = 16 * 1024;
/// The maximum size of a piece of content that is written by one call.
const LARGE_PIECE_BYTES: usize = 64 * 1024;

/// What a suspended coroutine has put into the outbox.
pub(super) struct Outgoing {
    /// The first time: the response without its content, and the declared length.
    pub(super) head: Option<Box<(Inner, Option<u64>)>>,
    /// A piece of the content; it may be empty.
    pub(super) piece: Bytes,
}

thread_local! {
    /// Filled just before a coroutine is suspended, and emptied just after.
    static OUTBOX: Cell<Option<Outgoing>> = const { Cell::new(None) };
    /// The same for the end of a coroutine. A return value would be copied on the stack of the
    /// coroutine, which is not in the cache. A coroutine that is unwound may leave an end here. The
    /// next end replaces it.
    static ENDED: Cell<Option<End>> = const { Cell::new(None) };
}

/// Takes what the coroutine that was just suspended has put into the outbox.
pub(super) fn take_outgoing() -> Option<Outgoing> {
    OUTBOX.take()
}

/// Takes the end of the response of the coroutine that has just returned.
pub(super) fn take_end() -> End {
    ENDED.take().expect("left by each handler that returns")
}

/// How the response of a handler ended.
pub(super) enum End {
    /// Nothing has been sent; this is the complete response.
    Whole(Inner),
    /// The rest of a response that has begun.
    Rest(Bytes),
    /// A response that has begun is incomplete.
    Broken(io::Error),
}

impl End {
    /// Stores the end for [`take_end`].
    #[inline]
    pub(super) fn publish(self) {
        ENDED.with(|ended| ended.set(Some(self)));
    }
}

/// A response under construction. Its status is 200 until another one is set. Its content is
/// written by [`Write`].
///
/// Content of up to 16 KiB that is not flushed is sent together with the head, with a
/// `Content-Length`, after the handler has returned. Otherwise the head is sent first. The content
/// follows as it is written: chunked, or with the length from
/// [`ResponseWriter::set_content_length`]. A write waits while the client is slow. If the response
/// must not have content, for example to `HEAD`, the handler is unwound at the first write that
/// would send something.
///
/// # Examples
/// ```
/// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
/// use onrush::{Limits, sim::Simulation};
/// use std::io::{self, Write};
///
/// fn created(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
///     response.set_status(201);
///     response.set_content_type("text/plain");
///     response.set_header("Location", "/things/7");
///     response.write_all(b"created\n")
/// }
/// # scope(|| {
/// # // SAFETY: the handler passes no closure that waits to anything.
/// # let contract = unsafe { Contract::accept() };
/// # let mut sim = Simulation::new(1, &handler(contract, created), Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
/// # let response = String::from_utf8_lossy(&client.receive()?).into_owned();
/// # assert!(response.starts_with("HTTP/1.1 201 Created\r\n"));
/// # assert!(response.contains("\r\nContent-Length: 8\r\n"));
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ResponseWriter {
    inner: Inner,
    content: PooledBuffer,
    has_left: bool,
    declared: Option<u64>,
    written: u64,
}

impl ResponseWriter {
    pub(super) fn new() -> ResponseWriter {
        ResponseWriter {
            inner: Inner::default(),
            content: PooledBuffer::default(),
            has_left: false,
            declared: None,
            written: 0,
        }
    }

    #[track_caller]
    fn head(&mut self) -> &mut Inner {
        assert!(!self.has_left, "the head of the response has been sent");
        &mut self.inner
    }

    /// Sets the status code.
    ///
    /// # Panics
    /// If it is not a final status code, 200 to 599 (RFC 9110 §15), or the head has been sent.
    #[track_caller]
    pub fn set_status(&mut self, status: u16) {
        self.head().set_status(status);
    }

    /// Sets `Content-Type` to a constant, which needs no memory. A value with control characters is
    /// not sent.
    ///
    /// # Panics
    /// If the head has been sent. With debug assertions, also if the value contains bytes other
    /// than printable ASCII.
    #[track_caller]
    #[inline]
    pub fn set_content_type(&mut self, content_type: &'static str) {
        self.head().set_content_type(content_type);
    }

    /// The first value of the field `name`, which is case-insensitive. `None` after the head has
    /// been sent, because the fields are moved into it.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.inner.header(name)
    }

    /// All field lines as (name, value). None of them after the head has been sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.inner.headers()
    }

    /// The values of all field lines with this name, which is case-insensitive. None of them after
    /// the head has been sent.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.inner.header_values(name)
    }

    /// Sets a field and replaces its earlier lines.
    ///
    /// # Panics
    /// If [`ResponseWriter::try_set_header`] fails or panics. Use that for values from outside the
    /// program.
    #[track_caller]
    pub fn set_header(&mut self, name: &str, value: impl AsRef<[u8]>) {
        if let Err(error) = self.try_set_header(name, value) {
            panic!("header {name:?} was refused: {error:?}");
        }
    }

    /// Sets a field and replaces its earlier lines. Fails as
    /// [`Response::try_set_header`](crate::Response::try_set_header) does.
    ///
    /// # Panics
    /// If the head has been sent.
    #[track_caller]
    pub fn try_set_header(
        &mut self,
        name: &str,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        self.head().try_set_header(name, value)
    }

    /// Adds a field line and keeps earlier lines of the same name, for example of `Set-Cookie`.
    /// Fails as [`Response::try_set_header`](crate::Response::try_set_header) does.
    ///
    /// # Panics
    /// If the head has been sent.
    #[track_caller]
    pub fn append_header(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), FieldError> {
        self.head().append_header(name, value)
    }

    /// Declares the length of the content in bytes. It is then sent with `Content-Length`, not
    /// chunked. Writing more fails with `InvalidInput`. If the handler writes less, the connection
    /// is reset, so the client sees that the content is incomplete.
    ///
    /// # Panics
    /// If the head has been sent.
    ///
    /// # Examples
    /// ```
    /// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
    /// use onrush::{Limits, sim::Simulation};
    /// use std::io::{self, Write};
    ///
    /// fn zeros(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    ///     response.set_content_length(30_000);
    ///     response.write_all(&[b'0'; 30_000])?;
    ///     assert!(response.has_left());
    ///     let error = response.write(b"1").unwrap_err();
    ///     assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    ///     Ok(())
    /// }
    /// # scope(|| {
    /// # // SAFETY: the handler passes no closure that waits to anything.
    /// # let contract = unsafe { Contract::accept() };
    /// # let mut sim = Simulation::new(1, &handler(contract, zeros), Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # let response = String::from_utf8_lossy(&client.receive()?).into_owned();
    /// # assert!(response.contains("\r\nContent-Length: 30000\r\n"));
    /// # assert!(response.ends_with(&"0".repeat(30_000)));
    /// # Ok::<(), io::Error>(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn set_content_length(&mut self, bytes: u64) {
        self.head();
        self.declared = Some(bytes);
    }

    /// Closes the connection after this response (RFC 9112 §9.6).
    ///
    /// # Panics
    /// If the head has been sent.
    #[track_caller]
    pub fn close(&mut self) {
        self.head().close = true;
    }

    /// Sends the head of the response 101. Returns where what follows it is read from; `None` if
    /// the client does not ask for this protocol.
    #[track_caller]
    pub(super) fn begin_upgrade(
        &mut self,
        upgrade: Upgrade,
        protocol: &str,
    ) -> io::Result<Option<RequestBody>> {
        let Ok(reader) = upgrade.begin(self.head(), protocol) else {
            return Ok(None);
        };
        (self.declared, self.written) = (None, 0);
        self.content.0.clear();
        self.flush()?;
        Ok(Some(reader))
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.inner.status()
    }

    /// Whether the head has been sent. Then only content can follow.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Resets the response to an empty one with status 200, unless its head has been sent. Returns
    /// whether it did. For a handler that finds an error after it has begun to write.
    ///
    /// # Examples
    /// ```
    /// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
    /// use onrush::{Limits, sim::Simulation};
    /// use std::io::{self, Write};
    ///
    /// fn report(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    ///     response.write_all(b"the first half, ")?;
    ///     assert!(response.clear());
    ///     response.set_status(503);
    ///     response.write_all(b"the database has failed\n")
    /// }
    /// # scope(|| {
    /// # // SAFETY: the handler passes no closure that waits to anything.
    /// # let contract = unsafe { Contract::accept() };
    /// # let mut sim = Simulation::new(1, &handler(contract, report), Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"\r\n\r\nthe database has failed\n"));
    /// # Ok::<(), io::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn clear(&mut self) -> bool {
        if !self.has_left {
            self.content.0.clear();
            (self.inner, self.declared, self.written) = (Inner::default(), None, 0);
        }
        !self.has_left
    }

    /// Puts `piece`, and the head before the first piece, into the outbox, and waits until the
    /// client has accepted the previous content.
    fn send_piece(&mut self, piece: Bytes) -> io::Result<()> {
        if is_unwinding() {
            return Err(io::ErrorKind::BrokenPipe.into()); // The outbox is not read any more.
        }
        let head = match self.has_left {
            true => None,
            false => {
                let inner = std::mem::take(&mut self.inner);
                self.inner.status = inner.status;
                Some(Box::new((inner, self.declared)))
            }
        };
        self.has_left = true;
        let mut outgoing = Some(Outgoing { head, piece });
        let send_piece = poll_fn(|_| match outgoing.take() {
            Some(outgoing) => {
                OUTBOX.set(Some(outgoing));
                Poll::Pending
            }
            None => Poll::Ready(()),
        });
        try_wait(send_piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Takes the content that was not sent, as a piece.
    fn take_content(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.content.0))
    }

    /// Stores the end of the response for [`take_end`]. Nothing may be written afterwards.
    pub(super) fn end(&mut self) {
        if self.has_left {
            return End::Rest(self.take_content()).publish();
        }
        let length = self.content.0.len() as u64;
        self.inner.body = match self.declared {
            Some(declared) if declared != length => {
                let piece = self.take_content();
                Body::stream(Once(Some(piece)), Some(declared))
            }
            _ if length == 0 => Body::empty(),
            _ => Body::from(std::mem::take(&mut self.content)),
        };
        End::Whole(std::mem::take(&mut self.inner)).publish();
    }
}

impl Write for ResponseWriter {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(declared) = self.declared
            && bytes.len() as u64 > declared - self.written.min(declared)
        {
            let what = "more content than was declared";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if self.content.0.len() == PIECE_BYTES && !bytes.is_empty() {
            self.flush()?;
        }
        let room = PIECE_BYTES - self.content.0.len();
        let taken = match self.content.0.is_empty() && bytes.len() > PIECE_BYTES {
            true => {
                let taken = bytes.len().min(LARGE_PIECE_BYTES);
                self.send_piece(Bytes::copy_from_slice(&bytes[..taken]))?;
                taken
            }
            false => {
                let taken = bytes.len().min(room);
                self.content.extend(&bytes[..taken]);
                taken
            }
        };
        self.written += taken as u64;
        Ok(taken)
    }

    /// Sends the head and the content that was written.
    fn flush(&mut self) -> io::Result<()> {
        if self.has_left && self.content.0.is_empty() {
            return Ok(());
        }
        let piece = self.take_content();
        self.send_piece(piece)
    }
}

/// A stream of one piece.
struct Once(Option<Bytes>);

impl futures_core::Stream for Once {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}
