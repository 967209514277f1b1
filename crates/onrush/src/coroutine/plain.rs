//! Plain functions as handlers.
//!
//! The handler's future polls a coroutine. When the head of the answer is to leave before the rest
//! is made, the future is ready with an answer whose content is a stream, and the stream goes on
//! polling the same coroutine: there is no second task. Must not know how answers are sent.

use super::request::RequestReader;
use super::response::{End, Outgoing, ResponseWriter, take_end, take_outgoing};
use crate::body::Body;
use crate::handler::Handler;
use crate::panic_guard;
use crate::request::Request;
use crate::response::Response;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::coroutine::Coroutine;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a plain function may give back: nothing, or how it went.
pub trait Outcome: 'static {
    /// How it went.
    fn outcome(self) -> io::Result<()>;
}

impl Outcome for () {
    #[inline]
    fn outcome(self) -> io::Result<()> {
        Ok(())
    }
}

/// An error is answered 500, or as is due when the body could not be read (408, 413, 400); it cuts
/// off an answer that has begun to leave.
impl Outcome for io::Result<()> {
    #[inline]
    fn outcome(self) -> io::Result<()> {
        self
    }
}

/// A handler made by [`handler`].
pub struct Plain<F, R> {
    function: F,
    gives: PhantomData<fn() -> R>,
}

impl<F: Clone, R> Clone for Plain<F, R> {
    fn clone(&self) -> Plain<F, R> {
        Plain {
            function: self.function.clone(),
            gives: PhantomData,
        }
    }
}

impl<F, R> std::fmt::Debug for Plain<F, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

/// Makes a handler of a plain function, which runs as a coroutine: see the [module](super).
///
/// Should its stack overflow, the message names it by its type.
pub fn handler<F, R>(function: F) -> Plain<F, R>
where
    F: Fn(&mut RequestReader, &mut ResponseWriter) -> R + Clone + 'static,
    R: Outcome,
{
    Plain {
        function,
        gives: PhantomData,
    }
}

impl<F, R> Handler for Plain<F, R>
where
    F: Fn(&mut RequestReader, &mut ResponseWriter) -> R + Clone + 'static,
    R: Outcome,
{
    #[inline]
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<F, R> + 'static {
        let function = self.function.clone();
        let body = move || {
            let (mut request, mut response) = (RequestReader::new(request), ResponseWriter::new());
            let outcome = function(&mut request, &mut response).outcome();
            // Before the end is left: what the user's destructors do may end handlers, too.
            drop(function);
            match outcome {
                Ok(()) => {
                    drop(request);
                    response.end();
                }
                Err(error) => {
                    let end = failed(&request, &response, error);
                    drop(request);
                    end.publish();
                }
            }
        };
        CallFuture(Some(Coroutine::named(std::any::type_name::<F>(), body)))
    }
}

/// The end of a handler that gave an error.
#[cold]
fn failed(request: &RequestReader, response: &ResponseWriter, error: io::Error) -> End {
    if response.has_left() {
        return End::Broken(error);
    }
    panic_guard::log(|| tracing::debug!(%error, "a handler failed"));
    let (status, text) = match request.failed() {
        Some(io::ErrorKind::FileTooLarge) => (413, "request body too large\n"),
        Some(io::ErrorKind::TimedOut) => (408, "request body came too slowly\n"),
        Some(_) => (400, "request body could not be read\n"),
        None => (500, "internal server error\n"),
    };
    End::Whole(Response::text(text).with_status(status))
}

/// The future of a handler's answer.
struct CallFuture(Option<Coroutine<()>>);

impl Future for CallFuture {
    type Output = Response;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let coroutine = self.0.as_mut().expect("polled until it is ready");
        match Pin::new(coroutine).poll(cx) {
            Poll::Ready(()) => match take_end() {
                End::Whole(response) => Poll::Ready(response),
                End::Rest(_) | End::Broken(_) => unreachable!("the head has not left"),
            },
            Poll::Pending => match take_outgoing() {
                Some(outgoing) => Poll::Ready(self.stream(outgoing)),
                None => Poll::Pending,
            },
        }
    }
}

impl CallFuture {
    /// The answer whose head may leave, and whose content is still made.
    #[cold]
    fn stream(&mut self, outgoing: Outgoing) -> Response {
        let head = outgoing.head.expect("the head leaves first");
        let (mut response, length) = *head;
        let rest = ContentStream {
            coroutine: self.0.take(),
            piece: Some(outgoing.piece),
        };
        response.body = Body::stream(rest, length);
        response
    }
}

/// Content that a coroutine makes while it is sent.
struct ContentStream {
    /// `None` when it has returned.
    coroutine: Option<Coroutine<()>>,
    /// To be sent before it goes on.
    piece: Option<Bytes>,
}

impl Stream for ContentStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(piece) = self.piece.take().filter(|piece| !piece.is_empty()) {
            return Poll::Ready(Some(Ok(piece)));
        }
        let Some(coroutine) = &mut self.coroutine else {
            return Poll::Ready(None);
        };
        match Pin::new(coroutine).poll(cx) {
            Poll::Ready(()) => {
                self.coroutine = None;
                Poll::Ready(match take_end() {
                    End::Rest(rest) => Some(rest).filter(|rest| !rest.is_empty()).map(Ok),
                    End::Broken(error) => Some(Err(error)),
                    End::Whole(_) => unreachable!("its head has left"),
                })
            }
            Poll::Pending => match take_outgoing() {
                Some(outgoing) => Poll::Ready(Some(Ok(outgoing.piece))),
                None => Poll::Pending,
            },
        }
    }
}
