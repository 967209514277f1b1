//! A tower service as an application of the engine.
//!
//! Two designs were built and measured (docs/decisions.md): polling the future of the service on
//! the worker, within the context of the tokio runtime, which is this one; and spawning it on the
//! runtime, with the response in a channel.

use crate::body::{Body, Worker};
use crate::request;
use crate::response::{self, Wishes};
use onrush::handler::{Handler, per_worker};
use onrush::{Application, IntoResponse, Response};
use std::cell::RefCell;
use std::error::Error;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use tokio::runtime;
use tower_service::Service;

/// An application that calls `service`, for [`onrush::Server::start`] and for
/// [`onrush::sim::Simulation`]. [`serve`](crate::serve()) is shorter.
///
/// Each worker has a clone of the service. If the caller is within a tokio runtime, the service is
/// called within its context.
///
/// If the service fails, the client gets 500, and the error is logged. Its error need not be
/// `Infallible`.
///
/// # Examples
/// A test of a router without a socket:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::get};
/// use onrush::{Limits, sim::Simulation};
///
/// let router = Router::new().route("/", get(|| async { "Hello, World!" }));
/// let mut sim = Simulation::new(1, &onrush_tower::application(router), Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(client.receive()?.ends_with(b"\r\n\r\nHello, World!"));
/// # }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn application<S, B>(service: S) -> impl Application
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let service = Mutex::new(service);
    let runtime = runtime::Handle::try_current().ok();
    per_worker(move |worker| {
        let service = service
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        Tower(Rc::new(Instance {
            service: RefCell::new(service.clone()),
            worker: Worker::new(worker),
            #[cfg(feature = "axum")]
            handle: worker.clone(),
            _runtime: runtime.clone().and_then(Entered::new),
        }))
    })
}

/// A runtime whose context the thread has while this exists.
struct Entered(#[allow(dead_code, reason = "it is dropped")] Pin<Box<dyn Future<Output = ()>>>);

impl Entered {
    /// `None` if the thread has this context already.
    fn new(runtime: runtime::Handle) -> Option<Entered> {
        let present = runtime::Handle::try_current();
        if present.is_ok_and(|present| present.id() == runtime.id()) {
            return None;
        }
        // The guard borrows the handle, so a future that does not end keeps both.
        let mut keeper: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            let _guard = runtime.enter();
            pending().await
        });
        let _ = keeper
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        Some(Entered(keeper))
    }
}

/// The service of one worker.
struct Instance<S> {
    service: RefCell<S>,
    worker: Worker,
    #[cfg(feature = "axum")]
    handle: onrush::WorkerHandle,
    _runtime: Option<Entered>,
}

struct Tower<S>(Rc<Instance<S>>);

impl<S> Instance<S> {
    /// Calls the service when it is ready.
    ///
    /// A service that is ready at once is called in place. Another one is replaced by a clone,
    /// because it may hold the place of this request in a queue.
    async fn call<B>(&self, request: http::Request<Body>) -> Result<S::Response, S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone,
    {
        let mut request = Some(request);
        let started = poll_fn(|cx| {
            let mut service = self.service.borrow_mut();
            Poll::Ready(match service.poll_ready(cx) {
                Poll::Ready(Ok(())) => request.take().map(|request| Ok(service.call(request))),
                Poll::Ready(Err(error)) => Some(Err(error)),
                Poll::Pending => None,
            })
        });
        if let Some(started) = started.await {
            return started?.await;
        }
        let mut service = {
            let mut shared = self.service.borrow_mut();
            let fresh = shared.clone();
            std::mem::replace(&mut *shared, fresh)
        };
        poll_fn(|cx| service.poll_ready(cx)).await?;
        let request = request.take().expect("not passed on");
        service.call(request).await
    }
}

impl<S, B> Handler for Tower<S>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    fn handle(
        &self,
        request: onrush::Request,
    ) -> impl Future<Output = Response> + use<S, B> + 'static {
        let instance = self.0.clone();
        async move {
            let parts = match http::request::Parts::try_from(&request) {
                Ok(parts) => parts,
                Err(error) => return error.into_response(),
            };
            let wishes = Wishes::of(&parts);
            #[cfg(feature = "tls")]
            let parts = request::add_tls(&request, parts);
            #[cfg(feature = "axum")]
            let parts = request::add_peer(&request, parts);
            #[cfg(feature = "axum")]
            let (request, parts, upgrade) = crate::upgrade::offer(request, parts);
            let body = request::body(request, &instance.worker);
            let responded = instance.call(http::Request::from_parts(parts, body)).await;
            let response = match responded {
                Ok(response) => response,
                Err(error) => return failed(error.into()),
            };
            #[cfg(feature = "axum")]
            if let Some(upgrade) = upgrade {
                return upgrade.finish(response, wishes, &instance.handle).await;
            }
            response::convert(response, wishes).await
        }
    }
}

#[cold]
fn failed(error: Box<dyn Error + Send + Sync>) -> Response {
    let error: Box<dyn Error> = error;
    tracing::error!(error, "a service has failed");
    response::internal_error()
}
