//! The request of a coroutine handler. Its body is read in blocking style.

use super::response::ResponseWriter;
use crate::request::Request as Inner;
use onrush_coroutine::try_wait;
use onrush_rt::buf::Buf;
use std::io::{self, BufRead, Read};
use std::ops::Deref;

/// The capacity that `read_to_end` adds at a time, in bytes.
const STEP_BYTES: usize = 64 * 1024;

/// A request whose body is read in blocking style, by [`Read`] or [`BufRead`].
///
/// It dereferences to [`onrush::Request`](crate::Request), which has the accessors of the head.
/// Reading fails with the errors of [`RequestBody`](crate::RequestBody). The rest of the body is
/// discarded after the response.
///
/// # Examples
/// ```
/// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
/// use onrush::{Limits, sim::Simulation};
/// use std::io::{self, Read, Write};
///
/// fn greet(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
///     let mut name = String::new();
///     request.read_to_string(&mut name)?;
///     write!(response, "{}: Hello, {name}!", request.path())
/// }
/// # scope(|| {
/// # // SAFETY: the handler passes no closure that waits to anything.
/// # let contract = unsafe { Contract::accept() };
/// # let mut sim = Simulation::new(1, &handler(contract, greet), Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"POST /hi HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nAda");
/// # assert!(client.receive()?.ends_with(b"/hi: Hello, Ada!"));
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct RequestReader {
    inner: Inner,
    /// Bytes that were received and not read yet.
    piece: Option<Buf>,
    /// The error of the last failed read.
    failed: Option<io::ErrorKind>,
}

impl Deref for RequestReader {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl RequestReader {
    pub(super) fn new(inner: Inner) -> RequestReader {
        RequestReader {
            inner,
            piece: None,
            failed: None,
        }
    }

    pub(super) fn failed(&self) -> Option<io::ErrorKind> {
        self.failed
    }

    /// The number of body bytes that have not been read. `None` for a chunked body before its end,
    /// because its length is unknown.
    pub fn remaining(&mut self) -> Option<u64> {
        let fill_piece = self.piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Some(self.inner.body().remaining()? + fill_piece)
    }

    /// Lowers the limit on the length of the body. Call it before the body is read. Fails as
    /// [`RequestBody::set_limit`](crate::RequestBody::set_limit) does.
    ///
    /// # Examples
    /// ```
    /// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
    /// use onrush::{Limits, sim::Simulation};
    /// use std::io;
    ///
    /// fn small(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    ///     assert_eq!(request.remaining(), Some(5));
    ///     if request.set_body_limit(4).is_err() {
    ///         response.set_status(413);
    ///         return Ok(());
    ///     }
    ///     io::copy(request, response)?;
    ///     Ok(())
    /// }
    /// # scope(|| {
    /// # // SAFETY: the handler passes no closure that waits to anything.
    /// # let contract = unsafe { Contract::accept() };
    /// # let mut sim = Simulation::new(1, &handler(contract, small), Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 413 Content Too Large\r\n"));
    /// # Ok::<(), io::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn set_body_limit(&mut self, bytes_max: u64) -> io::Result<()> {
        let result = self.inner.body().set_limit(bytes_max);
        self.record_error(result)
    }

    /// The trailer fields after the end of the body. See
    /// [`RequestBody::take_trailers`](crate::RequestBody::take_trailers).
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        self.inner.body().take_trailers()
    }

    /// If the client asks to continue with `protocol`, among others or alone, sends the response
    /// 101 with the fields that `response` has. From then on, this reads what the client sends, and
    /// `response` writes to it, without HTTP; the connection ends when the handler returns. Returns
    /// whether it does so. [`Request::upgrade`](crate::Request::upgrade) has the details.
    ///
    /// Fails as a write does.
    ///
    /// # Examples
    /// ```
    /// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
    /// use onrush::{Limits, sim::Simulation};
    /// use std::io::{self, BufRead, Write};
    ///
    /// fn lines(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    ///     if !request.upgrade(response, "lines")? {
    ///         response.set_status(426);
    ///         return Ok(());
    ///     }
    ///     for line in request.lines() {
    ///         writeln!(response, "{}", line?.to_uppercase())?;
    ///         response.flush()?;
    ///     }
    ///     Ok(())
    /// }
    /// # scope(|| {
    /// # // SAFETY: the handler passes no closure that waits to anything.
    /// # let contract = unsafe { Contract::accept() };
    /// # let mut sim = Simulation::new(1, &handler(contract, lines), Limits::default());
    /// # let client = sim.connect();
    /// # let asks = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: lines\r\n\r\n";
    /// # sim.send(&client, asks);
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 101 "));
    /// # sim.send(&client, b"hello\n");
    /// # assert_eq!(client.receive()?, b"HELLO\n");
    /// # Ok::<(), io::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Panics
    /// If the head of `response` has been sent.
    #[track_caller]
    pub fn upgrade(&mut self, response: &mut ResponseWriter, protocol: &str) -> io::Result<bool> {
        let Some(upgrade) = self.inner.upgrade() else {
            return Ok(false);
        };
        let Some(reader) = response.begin_upgrade(upgrade, protocol)? else {
            return Ok(false);
        };
        *self.inner.body() = reader;
        Ok(true)
    }

    fn record_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.failed = Some(error.kind());
        }
        result
    }

    /// Waits for at least one byte and returns the received bytes; none at the end.
    #[inline]
    fn fill_piece(&mut self) -> io::Result<&[u8]> {
        if self.piece.as_ref().is_none_or(|piece| piece.is_empty()) {
            let next = try_wait(self.inner.body().next())?.transpose();
            self.piece = self.record_error(next)?;
        }
        Ok(self.piece.as_deref().unwrap_or_default())
    }

    #[inline]
    fn used(&mut self, bytes: usize) {
        if let Some(piece) = &mut self.piece {
            piece.advance(bytes);
        }
    }
}

impl Read for RequestReader {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        let fill_piece = self.fill_piece()?;
        let bytes = fill_piece.len().min(into.len());
        into[..bytes].copy_from_slice(&fill_piece[..bytes]);
        self.used(bytes);
        Ok(bytes)
    }

    /// Receives large bodies directly into the memory of the vector.
    fn read_to_end(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let before = into.len();
        into.extend_from_slice(self.piece.take().as_deref().unwrap_or_default());
        let expected = self.inner.body().remaining().unwrap_or(0);
        into.reserve(usize::try_from(expected).unwrap_or(0).min(STEP_BYTES));
        loop {
            if into.len() == into.capacity() {
                into.reserve(STEP_BYTES);
            }
            let filled = try_wait(self.inner.body().fill(into))?;
            if self.record_error(filled)? == 0 {
                return Ok(into.len() - before);
            }
        }
    }
}

impl BufRead for RequestReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill_piece()
    }

    fn consume(&mut self, bytes: usize) {
        self.used(bytes);
    }
}
