//! Handlers: the functions that a server calls for each request.
//!
//! The future of a handler is polled immediately, in a slot that requests share. Most futures are
//! ready after this poll and cost no allocation. A future that is pending becomes a task together
//! with its slot. This module does not depend on connections.

use crate::request::Request;
use crate::response::{IntoResponse, Response};
use crate::worker::WorkerHandle;
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Responds to requests.
///
/// Every `async fn(Request) -> impl IntoResponse` is a handler, and so is a closure of this form. A
/// type of its own may implement the trait, for example to be named in another type.
///
/// The future runs on the worker that received the request and need not be `Send`. It is dropped
/// when the client disconnects. It must not block the worker: use [`WorkerHandle::blocking`] for
/// file operations and [`offload()`](crate::offload()) for CPU-bound work.
///
/// # Examples
/// A function, and a closure with state:
///
/// ```
/// use onrush::{Request, Response, Router};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// async fn hello(_: Request) -> &'static str {
///     "Hello, World!"
/// }
///
/// let hits = Arc::new(AtomicU64::new(0));
/// let count = move |_: Request| {
///     let hit = hits.fetch_add(1, Ordering::Relaxed) + 1;
///     async move { Response::text(format!("hit {hit}")) }
/// };
/// let router = Router::new().get("/", hello).get("/count", count);
/// # let mut sim = onrush::sim::Simulation::new(1, &router, onrush::Limits::default());
/// # let client = sim.connect();
/// # for (path, end) in [("/", "World!"), ("/count", "hit 1"), ("/count", "hit 2")] {
/// #     let request = format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// #     sim.send(&client, request.as_bytes());
/// #     assert!(client.receive()?.ends_with(end.as_bytes()));
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A type:
///
/// ```
/// use onrush::{Handler, Limits, Request, Response, sim::Simulation};
///
/// #[derive(Clone)]
/// struct Redirect(String);
///
/// impl Handler for Redirect {
///     fn handle(&self, _: Request) -> impl Future<Output = Response> + use<> + 'static {
///         std::future::ready(Response::new(308).with_header("Location", &self.0))
///     }
/// }
///
/// let redirect = Redirect("https://example.com/".to_owned());
/// let mut sim = Simulation::new(1, &redirect, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// # assert!(client.receive()?.starts_with(b"HTTP/1.1 308 Permanent Redirect\r\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "a handler is an `async fn(Request)` whose result is `IntoResponse`",
    note = "a closure has the form `|request: Request| async move {{ … }}`",
    note = "its future owns what it captures"
)]
pub trait Handler: 'static {
    /// Starts to process `request`; the future yields the response. It is called on the worker of
    /// the request. A panic here or in the future is responded to with 500.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<Self> + 'static;
}

impl<F, Fut> Handler for F
where
    F: Fn(Request) -> Fut + 'static,
    Fut: HandlerFuture<Output: IntoResponse> + 'static,
{
    #[inline]
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<F, Fut> + 'static {
        IntoResponseFuture {
            future: self(request),
        }
    }
}

/// What a function that is a handler returns: every future.
///
/// It is a trait of its own, because the compiler would otherwise tell the author of a handler that
/// is not `async` only that its result is not a future.
#[diagnostic::on_unimplemented(
    message = "a handler is an `async fn`, but this function returns `{Self}`",
    label = "write `async fn`, or `async move {{ … }}` in a closure",
    note = "blocking code can be a handler with the feature `coroutine`"
)]
pub trait HandlerFuture: sealed::Sealed {
    /// The output of the future.
    type Output;

    /// [`Future::poll`].
    fn poll_output(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output>;
}

mod sealed {
    /// Futures are what handlers return, and nothing else.
    pub trait Sealed {}

    impl<Fut: Future> Sealed for Fut {}
}

// The message above is about this trait, not about `Future`.
#[diagnostic::do_not_recommend]
impl<Fut: Future> HandlerFuture for Fut {
    type Output = Fut::Output;

    #[inline]
    fn poll_output(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fut::Output> {
        self.poll(cx)
    }
}

pin_project! {
    /// A future whose output is converted to a response. It is not an `async` block, because that
    /// would move the future into itself at its first poll.
    struct IntoResponseFuture<Fut> {
        #[pin]
        future: Fut,
    }
}

impl<Fut: HandlerFuture<Output: IntoResponse>> Future for IntoResponseFuture<Fut> {
    type Output = Response;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        self.project()
            .future
            .poll_output(cx)
            .map(IntoResponse::into_response)
    }
}

/// What a server serves: a [`Handler`] that is cloned for each worker, a
/// [`Router`](crate::Router), or the result of [`per_worker`].
///
/// # Examples
/// A function that runs any of them:
///
/// ```
/// use onrush::{Application, Limits, Request, Router, per_worker, sim::Simulation};
///
/// fn status_of(application: impl Application) -> String {
///     let mut sim = Simulation::new(1, &application, Limits::default());
///     let client = sim.connect();
///     sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
///     let response = client.receive().unwrap_or_default();
///     String::from_utf8_lossy(&response[..12]).into_owned()
/// }
///
/// async fn hello(_: Request) -> &'static str {
///     "Hello, World!"
/// }
///
/// assert_eq!(status_of(hello), "HTTP/1.1 200");
/// assert_eq!(status_of(Router::new().get("/", hello)), "HTTP/1.1 200");
/// assert_eq!(status_of(Router::new()), "HTTP/1.1 404");
/// assert_eq!(status_of(per_worker(|_| hello)), "HTTP/1.1 200");
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that a server serves",
    label = "a handler that is `Clone`, or an `onrush::Router`",
    note = "an axum `Router`, or another tower service, is served by `onrush_tower::serve`"
)]
pub trait Application: Send + Sync + 'static {
    /// Creates the instance of one worker. It is called once on the thread of each worker. A panic
    /// here ends the server.
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Application for H {
    fn instantiate(&self, _: &WorkerHandle) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

/// Creates a handler on each worker by calling `make` there. The handler need be neither `Send` nor
/// `Clone`, so the requests of one worker can share state without locks.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, per_worker, sim::Simulation};
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// let application = per_worker(|worker| {
///     let (worker, count) = (worker.index(), Rc::new(Cell::new(0)));
///     move |_: Request| {
///         count.set(count.get() + 1);
///         let text = format!("request {} of worker {worker}", count.get());
///         async move { Response::text(text) }
///     }
/// });
/// # let mut sim = Simulation::new(1, &application, Limits::default());
/// # let client = sim.connect();
/// # for end in ["request 1 of worker 0", "request 2 of worker 0"] {
/// #     sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// #     assert!(client.receive()?.ends_with(end.as_bytes()));
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn per_worker<H, Make>(make: Make) -> impl Application
where
    H: Handler,
    Make: Fn(&WorkerHandle) -> H + Send + Sync + 'static,
{
    struct PerWorker<Make>(Make);
    impl<H, Make> Application for PerWorker<Make>
    where
        H: Handler,
        Make: Fn(&WorkerHandle) -> H + Send + Sync + 'static,
    {
        fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
            erase(self.0(worker))
        }
    }
    PerWorker(make)
}

/// The handler of one worker with its type erased. [`Application::instantiate`] returns it.
///
/// # Examples
/// An application without futures:
///
/// ```
/// use onrush::handler::{Pending, Service};
/// use onrush::{Application, Limits, Request, Response, WorkerHandle, sim::Simulation};
/// use std::rc::Rc;
/// use std::task::Context;
///
/// struct Maintenance;
///
/// impl Service for Maintenance {
///     fn start(
///         &self,
///         _: Request,
///         _: &mut Context<'_>,
///         response: &mut Option<Response>,
///     ) -> Option<Pending> {
///         *response = Some(Response::text("back soon\n").with_status(503));
///         None
///     }
/// }
///
/// impl Application for Maintenance {
///     fn instantiate(&self, _: &WorkerHandle) -> Rc<dyn Service> {
///         Rc::new(Maintenance)
///     }
/// }
/// # let mut sim = Simulation::new(1, &Maintenance, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// # assert!(client.receive()?.ends_with(b"back soon\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Service {
    /// Calls the handler and polls its future once. If the future is ready, writes the response to
    /// `response` and returns `None`. Otherwise returns the future, which is polled again when the
    /// waker of `cx` is called.
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending>;
}

/// The future of a handler that was pending at its first poll.
pub type Pending = Pin<Box<dyn Future<Output = Response>>>;

pub(crate) fn erase<H: Handler>(handler: H) -> Rc<dyn Service> {
    erase_fn(move |request| handler.handle(request))
}

fn erase_fn<F, Fut>(call: F) -> Rc<dyn Service>
where
    F: Fn(Request) -> Fut + 'static,
    Fut: Future<Output = Response> + 'static,
{
    Rc::new(Erased {
        call,
        slot: Cell::new(None),
    })
}

struct Erased<F, Fut> {
    call: F,
    /// The slot, unless a future is in it.
    slot: Cell<Option<Pin<Box<PollSlot<Fut>>>>>,
}

pin_project! {
    struct PollSlot<Fut> {
        #[pin]
        future: Option<Fut>,
    }
}

impl<Fut: Future<Output = Response>> Future for PollSlot<Fut> {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let response = self.project().future.as_pin_mut();
        response
            .expect("polled only while it holds a future")
            .poll(cx)
    }
}

impl<F, Fut> Service for Erased<F, Fut>
where
    F: Fn(Request) -> Fut + 'static,
    Fut: Future<Output = Response> + 'static,
{
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        ready: &mut Option<Response>,
    ) -> Option<Pending> {
        let mut slot = self
            .slot
            .take()
            .unwrap_or_else(|| Box::pin(PollSlot { future: None }));
        slot.as_mut()
            .project()
            .future
            .set(Some((self.call)(request)));
        match slot.as_mut().poll(cx) {
            Poll::Ready(response) => {
                *ready = Some(response);
                slot.as_mut().project().future.set(None);
                self.slot.set(Some(slot));
                None
            }
            Poll::Pending => Some(slot),
        }
    }
}
