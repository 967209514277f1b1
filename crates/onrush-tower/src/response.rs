//! Responses of a service as [`onrush::Response`].

use bytes::{Buf, Bytes};
use futures_core::Stream;
use http::header;
use http_body::Frame;
use onrush::{Response, Trailers};
use onrush_proto::token;
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
    pub(crate) fn of(request: &http::request::Parts) -> Wishes {
        let mut te = request.headers.get_all(header::TE).iter();
        Wishes {
            is_head: request.method == http::Method::HEAD,
            trailers: te.any(|value| token::list_contains(value.as_bytes(), "trailers")),
        }
    }
}

/// The response to a request whose service has failed. The log has the reason.
pub(crate) fn internal_error() -> Response {
    Response::text("internal server error\n").with_status(500)
}

fn head(parts: http::response::Parts) -> Response {
    let status = parts.status.as_u16();
    Response::try_from(parts).unwrap_or_else(|error| {
        tracing::error!(status, %error, "the head of a response cannot be sent");
        Response::new(500)
    })
}

/// Converts a response. Waits for nothing: content that is not there yet becomes a stream.
pub(crate) async fn convert<B>(response: http::Response<B>, wishes: Wishes) -> Response
where
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let (parts, content) = response.into_parts();
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok());
    let content_length = announced.and_then(|text| text.parse().ok());
    let response = head(parts);
    let exact = content.size_hint().exact();
    if wishes.is_head || response.status() == 304 {
        // It has the length of the content that it leaves out, if that is known (RFC 9110 §8.6).
        // The content may have been left out by the service already.
        let length = content_length.or(exact.filter(|&length| length > 0));
        return response.with_content(onrush::Body::stream(Nothing, length));
    }
    if content.is_end_stream() {
        return response;
    }
    let length = exact.or(content_length);
    // Most content is one piece that is there: it is sent with the head.
    let mut content = Box::pin(content);
    let first = poll_fn(|cx| Poll::Ready(content.as_mut().poll_frame(cx))).await;
    let trailers = wishes.trailers.then(Trailers::new);
    let first = match first {
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Ok(data) if length == Some(data.remaining() as u64) => {
                return response.with_content(bytes_of(data));
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
    content: Pin<Box<B>>,
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
            match ready!(this.content.as_mut().poll_frame(cx)) {
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
