//! A body of bytes and ranges of an object that is not a local file.
//!
//! Each range is one stream of the store. It is opened when the client has received what comes
//! before it.

use futures_core::Stream;
use onrush::selection::Piece;
use onrush::{Body, Bytes};
use onrush_store::{ByteStream, ReadAt};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A body of `pieces`, whose ranges `reader` reads.
pub(in crate::files) fn body(reader: &Arc<dyn ReadAt>, pieces: Vec<Piece>) -> Body {
    let length = pieces.iter().map(|piece| match piece {
        Piece::Bytes(bytes) => bytes.len() as u64,
        Piece::Range(range) => range.end - range.start,
    });
    let length = length.sum();
    let stream = Pieces {
        reader: reader.clone(),
        left: pieces.into(),
        current: None,
    };
    Body::stream(stream, Some(length))
}

/// A body of all `bytes` of an object, which `stream` reads.
pub(in crate::files) fn whole(stream: ByteStream, bytes: u64) -> Body {
    Body::stream(Range(stream), Some(bytes))
}

/// Bytes of an object.
struct Range(ByteStream);

impl Stream for Range {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.0.as_mut().poll_next(cx));
        Poll::Ready(next.map(|bytes| bytes.map_err(io::Error::other)))
    }
}

struct Pieces {
    reader: Arc<dyn ReadAt>,
    left: VecDeque<Piece>,
    /// The range that is being sent.
    current: Option<Range>,
}

impl Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(current) = &mut self.current {
                match ready!(Pin::new(current).poll_next(cx)) {
                    Some(bytes) => return Poll::Ready(Some(bytes)),
                    None => self.current = None,
                }
            }
            match self.left.pop_front() {
                None => return Poll::Ready(None),
                Some(Piece::Bytes(bytes)) => return Poll::Ready(Some(Ok(bytes))),
                Some(Piece::Range(range)) => self.current = Some(Range(self.reader.stream(range))),
            }
        }
    }
}
