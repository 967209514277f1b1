//! Plain functions as handlers.
//!
//! The future of such a handler polls a coroutine. If the head of the response must be sent before
//! the content is complete, the future yields a response whose content is a stream. The stream then
//! polls the same coroutine, so there is no second task.

use super::request::RequestReader;
use super::response::{End, Outgoing, ResponseWriter, take_end, take_outgoing};
use crate::body::Body;
use crate::handler::Handler;
use crate::panic_guard;
use crate::request::Request;
use crate::response::Response;
use bytes::Bytes;
use futures_core::Stream;
use onrush_coroutine::{Contract, Coroutine};
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A value that a function may return to [`handler`]: `()` or `io::Result<()>`.
///
/// # Examples
/// An error type of the application:
///
/// ```
/// use onrush::coroutine::{Contract, Outcome, RequestReader, ResponseWriter, handler, scope};
/// use onrush::{Limits, sim::Simulation};
/// use std::io;
///
/// struct Checked(Result<(), String>);
///
/// impl Outcome for Checked {
///     fn outcome(self) -> io::Result<()> {
///         self.0.map_err(io::Error::other)
///     }
/// }
///
/// fn fails(_: &mut RequestReader, _: &mut ResponseWriter) -> Checked {
///     Checked(Err("no data".to_owned()))
/// }
/// # scope(|| {
/// # // SAFETY: the handler passes no closure that waits to anything.
/// # let contract = unsafe { Contract::accept() };
/// # let mut sim = Simulation::new(1, &handler(contract, fails), Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// # assert!(client.receive()?.starts_with(b"HTTP/1.1 500 Internal Server Error\r\n"));
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
/// ```
pub trait Outcome: 'static {
    /// Converts the value. The error is logged at level DEBUG.
    fn outcome(self) -> io::Result<()>;
}

impl Outcome for () {
    #[inline]
    fn outcome(self) -> io::Result<()> {
        Ok(())
    }
}

/// The response to an error has status 500, or 400, 408 or 413 if reading the body failed. If the
/// head of the response has been sent, the error cuts the response off.
impl Outcome for io::Result<()> {
    #[inline]
    fn outcome(self) -> io::Result<()> {
        self
    }
}

/// A handler made by [`handler`].
pub struct Plain<F, R> {
    contract: Contract,
    function: F,
    gives: PhantomData<fn() -> R>,
}

impl<F: Clone, R> Clone for Plain<F, R> {
    fn clone(&self) -> Plain<F, R> {
        Plain {
            contract: self.contract,
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

/// Converts a function, which fulfils `contract`, to a handler that runs as a coroutine. See the
/// [module](super).
///
/// The function is cloned for each request. If its stack overflows, the process ends with a message
/// that contains the type of the function.
///
/// # Examples
/// ```
/// use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler, scope};
/// use onrush::{Limits, sim::Simulation};
/// use std::io::{self, BufRead, Write};
///
/// fn numbered(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
///     for (number, line) in request.lines().enumerate() {
///         writeln!(response, "{number}: {}", line?)?;
///     }
///     Ok(())
/// }
///
/// // SAFETY: the iterator over the lines relies on no thread-local, and there is no scope.
/// let contract = unsafe { Contract::accept() };
/// // A server enters a scope by itself; a test does it here.
/// scope(|| {
///     let mut sim = Simulation::new(1, &handler(contract, numbered), Limits::default());
///     let client = sim.connect();
///     sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\nb\n");
///     assert!(client.receive()?.ends_with(b"\r\n\r\n0: a\n1: b\n"));
///     Ok::<(), io::Error>(())
/// })
/// .unwrap();
/// ```
///
/// A handler needs a contract:
///
/// ```compile_fail,E0061
/// use onrush::coroutine::{RequestReader, ResponseWriter, handler};
///
/// fn nothing(_: &mut RequestReader, _: &mut ResponseWriter) {}
/// let handler = handler(nothing);
/// ```
///
/// Only `unsafe` code can make one:
///
/// ```compile_fail,E0133
/// use onrush::coroutine::Contract;
///
/// let contract = Contract::accept();
/// ```
pub fn handler<F, R>(contract: Contract, function: F) -> Plain<F, R>
where
    F: Fn(&mut RequestReader, &mut ResponseWriter) -> R + Clone + 'static,
    R: Outcome,
{
    Plain {
        contract,
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
            // Before the end is published: destructors of the user may end other handlers.
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
        let name = std::any::type_name::<F>();
        CallFuture(Some(Coroutine::named(self.contract, name, body)))
    }
}

/// The end of a handler that returned an error.
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

/// The future of the response of a handler.
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
    /// The response whose head can be sent while its content is made.
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

/// The content that a coroutine writes while it is sent.
struct ContentStream {
    /// `None` after it has returned.
    coroutine: Option<Coroutine<()>>,
    /// Sent before the coroutine is polled again.
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
