//! Sends an object of known length by one request, while its bytes arrive.
//!
//! `object_store` needs the whole payload of a request in memory. Here the request is a signed URL,
//! and its body is a stream: an upload takes the memory of a few pieces, whatever its length. The
//! service sees the condition with the first bytes and evaluates it when the last one has arrived.
//! The caller withholds the last byte until the commit: an incomplete request changes nothing.

use crate::error::{Failure, refusal, store_error, uncertain};
use crate::fields::headers;
use crate::service::{Service, Task};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, Method};
use http_body::{Body, Frame, SizeHint};
use object_store::Attributes;
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use onrush_store::{Result, StoreError};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// The most bytes of one request (a limit of S3).
pub(crate) const BYTES_MAX: u64 = 5 << 30;
/// Pieces between the client and the service. More would not be faster, since the kernel buffers.
const PIECES: usize = 2;
/// A signed URL is valid for so long. It is checked when the request begins.
const VALID: Duration = Duration::from_secs(900);

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
        };
        let request = put(service.clone(), path, pinned, attributes, body);
        Transfer {
            service: service.clone(),
            pieces: Some(pieces),
            response: service.spawn(request),
        }
    }

    /// Sends the next bytes. If the service does not take them, fails with its response.
    pub(crate) async fn send(&mut self, piece: Bytes) -> Result<()> {
        let Some(pieces) = &self.pieces else {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        let piece = match pieces.try_send(piece) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(self.failure().await),
            Err(mpsc::error::TrySendError::Full(piece)) => piece,
        };
        let pieces = pieces.clone();
        let wait = async move { Ok(pieces.send(piece).await.is_ok()) };
        match self.service.spawn_within_limit(wait).await? {
            true => Ok(()),
            false => Err(self.failure().await),
        }
    }

    /// Sends the last bytes and waits for the response. Returns the entity tag, if there is one.
    pub(crate) async fn finish(mut self, last: Bytes) -> Result<Option<String>> {
        self.send(last).await?;
        self.pieces = None;
        self.response().await
    }

    /// Why the service did not take all bytes.
    async fn failure(&mut self) -> StoreError {
        match self.response().await {
            Err(error) => error,
            Ok(_) => StoreError::Io(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    async fn response(&mut self) -> Result<Option<String>> {
        let mut limit = self.service.spawn_limit();
        std::future::poll_fn(|cx| {
            if let Poll::Ready(response) = Pin::new(&mut self.response).poll(cx) {
                return Poll::Ready(response);
            }
            Pin::new(&mut limit)
                .poll(cx)
                .map(|_| Err(StoreError::Timeout))
        })
        .await
    }
}

/// Makes the request.
async fn put(
    service: Arc<Service>,
    path: Path,
    pinned: Pinned,
    attributes: Attributes,
    body: Pieces,
) -> Result<Option<String>> {
    if service.breaker.is_open() {
        return Err(StoreError::Unavailable);
    }
    let (url, mut headers) = sign(&service, &path, &attributes).await?;
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
    let size = body.left;
    let request = service.streams.put(url).headers(headers);
    let begun = Instant::now();
    let response = request.body(reqwest::Body::wrap(body)).send().await;
    let status = response
        .as_ref()
        .ok()
        .map(|response| response.status().as_u16());
    service.metrics.record("PUT", status, begun.elapsed());
    service.metrics.sent(size);
    let is_sent = !matches!(&response, Err(error) if error.is_connect());
    let failure = match &response {
        Ok(response) if response.status().is_success() => None,
        Ok(response) => Some(Failure::of_response(response.status(), response.headers())),
        Err(error) if error.is_timeout() => Some(Failure::Timeout),
        Err(_) => Some(Failure::Connection),
    };
    let error = response.as_ref().err();
    let error = error.map(|error| error as &(dyn std::error::Error + 'static));
    service.breaker.record(failure, error, Instant::now());
    match failure {
        None => Ok(response.ok().and_then(|response| {
            let tag = response.headers().get(ETAG)?;
            Some(tag.to_str().ok()?.to_owned())
        })),
        // 409: another conditional request for the key is in progress. 404: there is no object.
        Some(Failure::Status { status, .. })
            if matches!(status, 409 | 412) || (status == 404 && has_tag) =>
        {
            Err(StoreError::PreconditionFailed)
        }
        Some(failure) => {
            let body = match response {
                Ok(mut response) if matches!(response.status().as_u16(), 401 | 403 | 503) => {
                    response.chunk().await.ok().flatten()
                }
                _ => None,
            };
            let body = body.unwrap_or_default();
            Err(match failure {
                Failure::Status {
                    status: 401 | 403, ..
                } => refusal(&String::from_utf8_lossy(&body)),
                _ if is_sent && failure.is_uncertain(&body) => uncertain(failure.to_store_error()),
                _ => failure.to_store_error(),
            })
        }
    }
}

/// The URL of a request with its signature, and the fields that the signature covers.
async fn sign(
    service: &Service,
    path: &Path,
    attributes: &Attributes,
) -> Result<(String, HeaderMap)> {
    let mut options = SignedUrlOptions::new();
    options.signed_headers = headers(attributes)?;
    let url = service
        .client
        .signed_url_opts(Method::PUT, path, VALID, &options);
    let url = url.await.map_err(|error| store_error(&error, None))?;
    Ok((url.into(), options.signed_headers))
}

/// The body of a request: pieces that arrive, and the number of bytes that must.
struct Pieces {
    receiver: Receiver<Bytes>,
    left: u64,
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
