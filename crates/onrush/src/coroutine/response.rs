//! An answer as a coroutine makes it: its content is written as if that blocked.
//!
//! Little content waits until the handler has returned. More of it, or a flush, lets the head
//! leave; from then on each piece is put into this thread's outbox and the coroutine suspended, so
//! that whoever polls it finds the piece there, and polls it again when the piece is sent. Must not
//! know who that is.

use crate::body::Body;
use crate::pooled_buffer::PooledBuffer;
use crate::response::Response as Inner;
use bytes::Bytes;
use onrush_proto::response::FieldError;
use onrush_rt::coroutine::{is_unwinding, try_wait};
use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Write};
use std::task::Poll;

/// Content up to this size leaves in one piece with its head, and larger in pieces of this size.
const PIECE_BYTES: usize = 16 * 1024;
/// What is written at once leaves in pieces up to this size.
const LARGE_PIECE_BYTES: usize = 64 * 1024;

/// What a suspended coroutine has put out.
pub(super) struct Outgoing {
    /// The answer without its content, and the length that was declared, the first time.
    pub(super) head: Option<Box<(Inner, Option<u64>)>>,
    /// More of the content; may be empty.
    pub(super) piece: Bytes,
}

thread_local! {
    /// Filled in the moment before a coroutine is suspended, and looked at in the moment after.
    static OUTBOX: Cell<Option<Outgoing>> = const { Cell::new(None) };
    /// The same for its end. Given back from function to function it would be copied on the
    /// coroutine's stack, whose lines are cold. What one that is being unwound leaves here is
    /// nobody's, and the next end replaces it.
    static ENDED: Cell<Option<End>> = const { Cell::new(None) };
}

/// What the coroutine that was just suspended has put out.
pub(super) fn take_outgoing() -> Option<Outgoing> {
    OUTBOX.take()
}

/// How the answer of the coroutine ended that has just returned.
pub(super) fn take_end() -> End {
    ENDED.take().expect("left by each handler that returns")
}

/// How a handler's answer ended.
pub(super) enum End {
    /// All of it.
    Whole(Inner),
    /// The rest of what has begun to leave.
    Rest(Bytes),
    /// What has begun to leave is not to be taken for whole.
    Broken(io::Error),
}

impl End {
    /// Leaves it to [`take_end`].
    #[inline]
    pub(super) fn publish(self) {
        ENDED.with(|ended| ended.set(Some(self)));
    }
}

/// An answer in the making: 200 without content until something else is said.
///
/// Content is written to it. When it ends within 16 KiB and was not flushed, it leaves in one piece
/// with its head and its `Content-Length`. Otherwise the head leaves first, and the rest is sent
/// chunked, or as long as [`ResponseWriter::set_content_length`] said. A write waits while the
/// client is slow. An answer that must have no content, to `HEAD` for one, needs none: its handler
/// is unwound at the write that would have been sent.
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
        assert!(!self.has_left, "the head of the answer has left already");
        &mut self.inner
    }

    /// Sets the status code.
    ///
    /// # Panics
    /// When it is not a final status code, 200 to 599, or the head has left.
    #[track_caller]
    pub fn set_status(&mut self, status: u16) {
        self.head().set_status(status);
    }

    /// Sets `Content-Type` to a constant, which costs nothing per answer.
    ///
    /// # Panics
    /// When it holds control characters, or the head has left.
    #[track_caller]
    #[inline]
    pub fn set_content_type(&mut self, content_type: &'static str) {
        self.head().set_content_type(content_type);
    }

    /// The first value of a field, its name compared without case. Also after the head has left.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.inner.header(name)
    }

    /// All field lines, as (name, value). Also after the head has left.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.inner.headers()
    }

    /// The values of all field lines of one name. Also after the head has left.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.inner.header_values(name)
    }

    /// Sets a field, replacing earlier lines of that name.
    ///
    /// # Panics
    /// When the name is not a token, the value holds control characters, the field is one that only
    /// the server may set, or the head has left. For values that come from outside use
    /// [`ResponseWriter::try_set_header`].
    #[track_caller]
    pub fn set_header(&mut self, name: &str, value: impl AsRef<[u8]>) {
        if let Err(error) = self.try_set_header(name, value) {
            panic!("header {name:?} was refused: {error:?}");
        }
    }

    /// Sets a field, replacing earlier lines of that name; refuses what could split the answer.
    ///
    /// # Panics
    /// When the head has left.
    #[track_caller]
    pub fn try_set_header(
        &mut self,
        name: &str,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        self.head().try_set_header(name, value)
    }

    /// Adds a field line beside others of the same name (`Set-Cookie`, `Vary`, …).
    ///
    /// # Panics
    /// When the head has left.
    #[track_caller]
    pub fn append_header(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), FieldError> {
        self.head().append_header(name, value)
    }

    /// Says how long the content will be, so that it is sent under a `Content-Length` however long
    /// it is. Writing more fails; writing less cuts the connection, so that the client sees that
    /// the content is not whole.
    ///
    /// # Panics
    /// When the head has left.
    #[track_caller]
    pub fn set_content_length(&mut self, bytes: u64) {
        self.head();
        self.declared = Some(bytes);
    }

    /// Asks for the connection to be closed after this answer.
    ///
    /// # Panics
    /// When the head has left.
    #[track_caller]
    pub fn close(&mut self) {
        self.head().close = true;
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.inner.status()
    }

    /// Whether the head has left, so that only content can follow.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// Throws away what was written, if nothing of it has left; gives whether that is so. For an
    /// answer that turns out to be an error.
    pub fn clear(&mut self) -> bool {
        if !self.has_left {
            self.content.0.clear();
            (self.inner, self.declared, self.written) = (Inner::default(), None, 0);
        }
        !self.has_left
    }

    /// Lets `piece` leave, behind the head, and waits until the client has taken what was before.
    fn send_piece(&mut self, piece: Bytes) -> io::Result<()> {
        if is_unwinding() {
            return Err(io::ErrorKind::BrokenPipe.into()); // Nobody looks any more.
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

    /// The memory written so far, as a piece.
    fn take_content(&mut self) -> Bytes {
        Bytes::from(std::mem::take(&mut self.content.0))
    }

    /// Leaves what the handler has made of it to [`take_end`]; nothing else may follow.
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

    /// Lets the head leave, and what was written.
    fn flush(&mut self) -> io::Result<()> {
        if self.has_left && self.content.0.is_empty() {
            return Ok(());
        }
        let piece = self.take_content();
        self.send_piece(piece)
    }
}

/// One piece.
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
