//! Handlers: what the server calls with each request.
//!
//! A handler's future is polled once, at once, in a slot that is reused from request to request.
//! Most are ready then, and cost no allocation; one that is not moves out, slot and all, to become
//! a task. Must not know about connections.

use crate::request::Request;
use crate::response::{IntoResponse, Response};
use crate::worker::WorkerHandle;
use pin_project_lite::pin_project;
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Answers requests. Implemented by `async fn(Request) -> impl IntoResponse` and such closures, and
/// by types that want a name.
///
/// The future runs on the worker the request came to and need not be `Send`. It is dropped when the
/// client goes away. It must not block: file work belongs to [`WorkerHandle::blocking`], and what
/// keeps a core busy to [`offload()`](crate::offload()).
pub trait Handler: 'static {
    /// Answers one request.
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<Self> + 'static;
}

impl<F, Fut> Handler for F
where
    F: Fn(Request) -> Fut + 'static,
    Fut: Future<Output: IntoResponse> + 'static,
{
    #[inline]
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<F, Fut> + 'static {
        IntoResponseFuture {
            future: self(request),
        }
    }
}

pin_project! {
    /// A future whose output becomes a response. Not an `async` block, which would move the future
    /// into itself at its first poll.
    struct IntoResponseFuture<Fut> {
        #[pin]
        future: Fut,
    }
}

impl<Fut: Future<Output: IntoResponse>> Future for IntoResponseFuture<Fut> {
    type Output = Response;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        self.project()
            .future
            .poll(cx)
            .map(IntoResponse::into_response)
    }
}

/// What a server serves: a [`Handler`] that each worker gets a clone of, or a
/// [`Router`](crate::Router).
pub trait Application: Send + Sync + 'static {
    /// Makes one worker's instance. Called on that worker's thread.
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Application for H {
    fn instantiate(&self, _: &WorkerHandle) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

/// Makes a handler on each worker, for handlers that are neither `Send` nor `Clone`: state in an
/// `Rc`, say, that one worker's requests share.
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

/// A handler with its type erased, on one worker.
pub trait Service {
    /// Calls the handler and polls its future once. The answer, when it is ready, is written to
    /// `response`, and the future otherwise given back, to be polled when `cx`'s waker is called.
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending>;
}

/// A handler's future that was not ready at once.
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
    /// The slot, while no request is being polled in it.
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
