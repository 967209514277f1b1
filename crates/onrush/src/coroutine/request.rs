//! A request as a coroutine has it: its body is read as if that blocked.
//!
//! Must not know what answers it.

use crate::request::Request as Inner;
use onrush_rt::buf::Buf;
use onrush_rt::coroutine::try_wait;
use std::io::{self, BufRead, Read};
use std::ops::Deref;

/// Room made at a time for a body that is read whole, in bytes.
const STEP_BYTES: usize = 64 * 1024;

/// A request. Everything about its head is [`onrush::Request`](crate::Request)'s, which it can be
/// used as; its body is read from this, at the handler's pace.
///
/// Errors of reading are those of [`RequestBody`](crate::RequestBody). What is not read is thrown
/// away when the request is answered.
#[derive(Debug)]
pub struct RequestReader {
    inner: Inner,
    /// Received and not read yet.
    piece: Option<Buf>,
    /// How reading failed, if it has.
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

    /// Body bytes still to be read, where the framing says (`Content-Length`).
    pub fn remaining(&mut self) -> Option<u64> {
        let fill_piece = self.piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Some(self.inner.body().remaining()? + fill_piece)
    }

    /// Lowers the limit on the body's length, before any of it is read: see
    /// [`RequestBody::set_limit`](crate::RequestBody::set_limit).
    pub fn set_body_limit(&mut self, bytes_max: u64) -> io::Result<()> {
        self.inner.body().set_limit(bytes_max)
    }

    /// The trailer fields as rendered lines, after the body was read to its end.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        self.inner.body().take_trailers()
    }

    fn record_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.failed = Some(error.kind());
        }
        result
    }

    /// What is there, after waiting for at least one byte; empty at the end.
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

    /// Large bodies are received straight into the vector's memory.
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
