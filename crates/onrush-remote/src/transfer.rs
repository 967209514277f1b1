//! Sends an object of known length by one request, while its bytes arrive.
//!
//! `object_store` needs the whole payload of a request in memory. Here the request is a signed URL,
//! and its body is a stream: an upload takes the memory of a few pieces, whatever its length. The
//! service sees the condition with the first bytes and evaluates it when the last one has arrived.
//! The caller withholds the last byte until the commit: an incomplete request changes nothing.

use crate::error::{Failure, refusal, uncertain};
use crate::fields::headers;
use crate::metrics::RemoteMetrics;
use crate::service::Service;
use crate::signed;
use crate::tasks::Task;
use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_LENGTH, ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http_body::{Body, Frame, SizeHint};
use object_store::Attributes;
use object_store::path::Path;
use onrush_store::{Result, StoreError};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The most bytes of one request (a limit of S3).
pub(crate) const BYTES_MAX: u64 = 5 << 30;
/// Pieces between the client and the service. More would not be faster, since the kernel buffers.
const PIECES: usize = 2;

/// The condition of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    None,
    Absent,
    /// This entity tag, without quotes.
    Tag(String),
}

/// A request whose body is being sent. Dropping it aborts the request.
pub(crate) struct Transfer {
    service: Arc<Service>,
    /// Dropped first: a body that ends early would look like a failure of the service.
    response: Task<Option<String>>,
    pieces: Option<Sender<Bytes>>,
    /// Ends the request when the service takes too long.
    end: Option<oneshot::Sender<()>>,
}

impl Transfer {
    /// Begins to send an object of `size` bytes.
    pub(crate) fn begin(
        service: &Arc<Service>,
        path: Path,
        pinned: Pinned,
        attributes: Attributes,
        size: u64,
    ) -> Transfer {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let body = Pieces {
            receiver,
            left: size,
            metrics: service.recorder.metrics.clone(),
        };
        let (end, ended) = oneshot::channel();
        let request = put(service.clone(), path, pinned, attributes, body, ended);
        Transfer {
            service: service.clone(),
            pieces: Some(pieces),
            response: service.spawn(request),
            end: Some(end),
        }
    }

    /// Sends the next bytes. If the service does not take them, fails with its response; with
    /// [`StoreError::Timeout`] if it has not taken them at `until`.
    pub(crate) async fn send(&mut self, piece: Bytes, until: Instant) -> Result<()> {
        let Some(pieces) = &self.pieces else {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        let piece = match pieces.try_send(piece) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(self.failure(until).await),
            Err(mpsc::error::TrySendError::Full(piece)) => piece,
        };
        let pieces = pieces.clone();
        let wait = async move { Ok(pieces.send(piece).await.is_ok()) };
        match self.service.spawn_until(until, wait).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.failure(until).await),
            Err(error) => Err(self.end_late().await.err().unwrap_or(error)),
        }
    }

    /// Sends the last bytes and waits for the response. Returns the entity tag, if there is one.
    pub(crate) async fn finish(mut self, last: Bytes, until: Instant) -> Result<Option<String>> {
        let taken = self.service.silence().min(until);
        self.send(last, taken).await?;
        self.pieces = None;
        self.response(until).await
    }

    /// Why the service did not take all bytes.
    async fn failure(&mut self, until: Instant) -> StoreError {
        match self.response(until).await {
            Err(error) => error,
            Ok(_) => StoreError::Io(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    async fn response(&mut self, until: Instant) -> Result<Option<String>> {
        let mut limit = self.service.spawn(async move {
            tokio::time::sleep_until(until).await;
            Ok(())
        });
        let response = poll_fn(|cx| match Pin::new(&mut self.response).poll(cx) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => Pin::new(&mut limit).poll(cx).map(|_| None),
        });
        match response.await {
            Some(response) => response,
            None => self.end_late().await,
        }
    }

    /// Ends a request that takes too long, so that it counts as one that has failed.
    async fn end_late(&mut self) -> Result<Option<String>> {
        let _ = self.end.take().map(|end| end.send(()));
        (&mut self.response).await
    }
}

/// Makes the request.
async fn put(
    service: Arc<Service>,
    path: Path,
    pinned: Pinned,
    attributes: Attributes,
    body: Pieces,
    ended: oneshot::Receiver<()>,
) -> Result<Option<String>> {
    let mut headers = headers(&attributes)?;
    let url = signed::url(&service, Method::PUT, &path, &[], headers.clone()).await?;
    headers.insert(CONTENT_LENGTH, body.left.into());
    let has_tag = matches!(pinned, Pinned::Tag(_));
    match pinned {
        Pinned::None => {}
        Pinned::Absent => drop(headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"))),
        Pinned::Tag(tag) => {
            let tag = HeaderValue::try_from(tag).map_err(|_| StoreError::Unsupported)?;
            headers.insert(IF_MATCH, tag);
        }
    }
    let request = service.streams.put(url).headers(headers);
    let request = request.body(reqwest::Body::wrap(body));
    let end = async move { drop(ended.await) };
    let mut response = match signed::send(&service, Method::PUT, request, end).await {
        Ok(response) => response,
        Err(unanswered) if unanswered.is_sent => return Err(uncertain(unanswered.into())),
        Err(unanswered) => return Err(unanswered.into()),
    };
    let status = response.status().as_u16();
    if response.status().is_success() {
        let tag = response.headers().get(ETAG);
        return Ok(tag.and_then(|tag| Some(tag.to_str().ok()?.to_owned())));
    }
    // 409: another conditional request for the key is in progress. 404: there is no object.
    if matches!(status, 409 | 412) || (status == 404 && has_tag) {
        return Err(StoreError::PreconditionFailed);
    }
    let failure = Failure::of_response(response.status(), response.headers());
    let body = match status {
        401 | 403 | 503 => response.chunk().await.ok().flatten().unwrap_or_default(),
        _ => Bytes::new(),
    };
    Err(match status {
        401 | 403 => refusal(&String::from_utf8_lossy(&body)),
        _ if failure.is_uncertain(&body) => uncertain(failure.to_store_error()),
        _ => failure.to_store_error(),
    })
}

/// The body of a request: pieces that arrive, and the number of bytes that must.
struct Pieces {
    receiver: Receiver<Bytes>,
    left: u64,
    metrics: Arc<RemoteMetrics>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = ready!(self.receiver.poll_recv(cx));
        Poll::Ready(Some(match piece {
            Some(piece) if piece.len() as u64 <= self.left => {
                self.left -= piece.len() as u64;
                self.metrics.sent(piece.len() as u64);
                Ok(Frame::data(piece))
            }
            // Dropped, or more bytes than announced. The request ends incomplete.
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
