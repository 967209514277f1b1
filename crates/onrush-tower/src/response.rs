//! Responses of a service as [`onrush::Response`].

use bytes::{Buf, Bytes};
use futures_core::Stream;
use http::{StatusCode, header};
use http_body::Frame;
use onrush::{Response, Trailers};
use onrush_proto::token;
use std::cell::Cell;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// What the request says about its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// The method is HEAD.
    pub(crate) is_head: bool,
    /// The client accepts trailers (`TE: trailers`, RFC 9110 §10.1.4).
    pub(crate) trailers: bool,
}

impl Wishes {
    pub(crate) fn of<B>(request: &http::Request<B>) -> Wishes {
        let mut te = request.headers().get_all(header::TE).iter();
        Wishes {
            is_head: *request.method() == http::Method::HEAD,
            trailers: te.any(|value| token::list_contains(value.as_bytes(), "trailers")),
        }
    }
}

/// The response to a request whose service has failed. The log has the reason.
pub(crate) fn internal_error() -> Response {
    Response::text("internal server error\n").with_status(500)
}

/// The head of a response.
pub(crate) struct Head {
    response: Response,
    /// The length of the content, as the field says that is left out of `response`. Not looked for
    /// where the content itself says it.
    announced: Option<u64>,
    /// The length, as the content says.
    exact: Option<u64>,
}

impl Head {
    pub(crate) fn of<B: http_body::Body>(
        parts: &http::response::Parts,
        content: &B,
        wishes: Wishes,
    ) -> Head {
        let exact = content.size_hint().exact();
        let announced = || {
            let announced = parts.headers.get(header::CONTENT_LENGTH)?;
            announced.to_str().ok()?.parse().ok()
        };
        let is_left_out = wishes.is_head || parts.status == StatusCode::NOT_MODIFIED;
        let response = Response::try_from(parts).unwrap_or_else(|error| {
            let status = parts.status.as_u16();
            tracing::error!(status, %error, "the head of a response cannot be sent");
            Response::new(500)
        });
        let is_needed = is_left_out || exact.is_none();
        Head {
            response,
            announced: is_needed.then(announced).flatten(),
            exact,
        }
    }
}

/// Converts the responses of one worker.
pub(crate) struct Converter<B> {
    /// Memory for the content of a response.
    spare: Cell<Option<Pin<Box<Option<B>>>>>,
}

impl<B> Default for Converter<B> {
    fn default() -> Converter<B> {
        Converter {
            spare: Cell::new(None),
        }
    }
}

impl<B> Converter<B>
where
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    /// Waits for nothing: content that is not there yet becomes a stream.
    pub(crate) async fn convert(&self, head: Head, content: B, wishes: Wishes) -> Response {
        let Head {
            response,
            announced,
            exact,
        } = head;
        if wishes.is_head || response.status() == 304 {
            // It has the length of the content that it leaves out, if that is known (RFC 9110
            // §8.6). The content may have been left out by the service already.
            let length = announced.or(exact.filter(|&length| length > 0));
            return response.with_content(onrush::Body::stream(Nothing, length));
        }
        if content.is_end_stream() {
            return response;
        }
        let length = exact.or(announced);
        // Most content is one piece that is there: it is sent with the head.
        let mut content = self.pinned(content);
        let first = poll_fn(|cx| Poll::Ready(in_it(&mut content).poll_frame(cx))).await;
        let trailers = wishes.trailers.then(Trailers::new);
        let first = match first {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if length == Some(data.remaining() as u64) => {
                    let response = response.with_content(bytes_of(data));
                    content.set(None);
                    self.spare.set(Some(content));
                    return response;
                }
                Ok(data) => Some(Ok(bytes_of(data))),
                Err(frame) => {
                    keep_trailers(frame, trailers.as_ref());
                    None
                }
            },
            Poll::Ready(Some(Err(error))) => Some(Err(io::Error::other(error))),
            // If it is shorter than announced, the connection ends.
            Poll::Ready(None) => {
                return response.with_content(onrush::Body::stream(Nothing, length));
            }
            Poll::Pending => None,
        };
        let stream = Content {
            first,
            content,
            trailers: trailers.clone(),
        };
        let body = onrush::Body::stream(stream, length);
        response.with_content(match trailers {
            Some(trailers) => body.with_trailers(trailers),
            None => body,
        })
    }

    fn pinned(&self, content: B) -> Pin<Box<Option<B>>> {
        match self.spare.take() {
            Some(mut spare) => {
                spare.set(Some(content));
                spare
            }
            None => Box::pin(Some(content)),
        }
    }
}

/// The content in the memory of a worker.
fn in_it<B>(memory: &mut Pin<Box<Option<B>>>) -> Pin<&mut B> {
    let content = memory.as_mut().as_pin_mut();
    content.expect("content is only removed when it is not needed any more")
}

fn bytes_of(mut data: impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining()) // Of `Bytes`, without copying.
}

/// Keeps the trailers of a frame without data for the end of the content.
fn keep_trailers<D>(frame: Frame<D>, trailers: Option<&Trailers>) {
    let Some((fields, trailers)) = frame.into_trailers().ok().zip(trailers) else {
        return;
    };
    for (name, value) in &fields {
        if let Err(error) = trailers.append(name.as_str(), value.as_bytes()) {
            tracing::error!(field = name.as_str(), ?error, "a trailer was left out");
        }
    }
}

/// The content of a response to HEAD, which is not sent.
struct Nothing;

impl Stream for Nothing {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

/// Content that is made while it is sent.
struct Content<B> {
    /// What was read of it before.
    first: Option<io::Result<Bytes>>,
    content: Pin<Box<Option<B>>>,
    trailers: Option<Trailers>,
}

impl<B> Stream for Content<B>
where
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(first));
        }
        loop {
            match ready!(in_it(&mut this.content).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => return Poll::Ready(Some(Ok(bytes_of(data)))),
                    Err(frame) => keep_trailers(frame, this.trailers.as_ref()),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                None => return Poll::Ready(None),
            }
        }
    }
}
