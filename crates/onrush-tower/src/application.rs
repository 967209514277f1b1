//! A tower service as an application of the engine.
//!
//! Two designs were built and measured (docs/decisions.md): polling the future of the service on
//! the worker, within the context of the tokio runtime, which is this one; and spawning it on the
//! runtime, with the response in a channel.

use crate::body::{Body, Worker};
use crate::request;
use crate::response::{self, Converter, Head, Wishes};
use onrush::handler::{Handler, per_worker};
use onrush::http_types::{HeadCopies, Unrepresentable};
use onrush::{Application, IntoResponse, Response};
use std::cell::RefCell;
use std::error::Error;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
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
            heads: RefCell::default(),
            converter: Converter::default(),
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

/// The service of one worker. `B` is the body of its responses.
struct Instance<S, B> {
    service: RefCell<S>,
    worker: Worker,
    heads: RefCell<HeadCopies>,
    converter: Converter<B>,
    #[cfg(feature = "axum")]
    handle: onrush::WorkerHandle,
    _runtime: Option<Entered>,
}

struct Tower<S, B>(Rc<Instance<S, B>>);

/// What is known of a request while the service handles it.
struct Called {
    wishes: Wishes,
    #[cfg(feature = "axum")]
    upgrade: Option<Box<crate::upgrade::Offer>>,
}

impl<S, B> Instance<S, B>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone,
{
    /// Calls the service when it is ready. `responds` gets its future. If the request is none for
    /// the service, the error is a response.
    ///
    /// A service that is ready at once is called in place. Another one is replaced by a clone,
    /// because it may hold the place of this request in a queue.
    async fn call(
        &self,
        request: onrush::Request,
        responds: Pin<&mut Option<S::Future>>,
    ) -> Result<Result<Called, Unrepresentable>, S::Error> {
        let polled = poll_fn(|cx| Poll::Ready(self.service.borrow_mut().poll_ready(cx)));
        if let Poll::Ready(ready) = polled.await {
            ready?;
            let mut service = self.service.borrow_mut();
            let called = self.call_ready(&mut service, request, responds);
            if called.is_err() {
                // It was not called, and may hold what it was ready with.
                let fresh = service.clone();
                *service = fresh;
            }
            return Ok(called);
        }
        let mut service = {
            let mut shared = self.service.borrow_mut();
            let fresh = shared.clone();
            std::mem::replace(&mut *shared, fresh)
        };
        poll_fn(|cx| service.poll_ready(cx)).await?;
        Ok(self.call_ready(&mut service, request, responds))
    }

    /// The request is made where the service takes it, and the future is stored where it is
    /// polled: both are large.
    #[cfg_attr(not(feature = "axum"), allow(unused_mut))]
    fn call_ready(
        &self,
        service: &mut S,
        mut request: onrush::Request,
        mut responds: Pin<&mut Option<S::Future>>,
    ) -> Result<Called, Unrepresentable> {
        let mut made = http::Request::new(Body::empty());
        self.heads.borrow_mut().copy(&request, &mut made)?;
        let wishes = Wishes::of(&made);
        #[cfg(feature = "tls")]
        request::add_tls(&request, &mut made);
        #[cfg(feature = "axum")]
        request::add_peer(&request, &mut made);
        #[cfg(feature = "axum")]
        let upgrade = crate::upgrade::offer(&mut request, &mut made);
        *made.body_mut() = request::body(request, &self.worker);
        responds.set(Some(service.call(made)));
        Ok(Called {
            wishes,
            #[cfg(feature = "axum")]
            upgrade,
        })
    }

    /// Converts a response, and keeps the memory of its fields for a request.
    async fn convert(&self, response: http::Response<B>, wishes: Wishes) -> Response
    where
        B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    {
        let (mut parts, content) = response.into_parts();
        let head = Head::of(&parts, &content, wishes);
        self.heads
            .borrow_mut()
            .reuse(std::mem::take(&mut parts.headers));
        self.converter.convert(head, content, wishes).await
    }
}

impl<S, B> Handler for Tower<S, B>
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
            let mut responds = pin!(None);
            let called = match instance.call(request, responds.as_mut()).await {
                Ok(Ok(called)) => called,
                Ok(Err(unrepresentable)) => return unrepresentable.into_response(),
                Err(error) => return failed(error.into()),
            };
            let future = responds.as_mut().as_pin_mut();
            let response = match future.expect("the service was called").await {
                Ok(response) => response,
                Err(error) => return failed(error.into()),
            };
            responds.set(None); // It may hold a place among those that are limited.
            #[cfg(feature = "axum")]
            if let Some(upgrade) = called.upgrade {
                let converter = &instance.converter;
                let finished = upgrade.finish(response, called.wishes, converter, &instance.handle);
                return finished.await;
            }
            instance.convert(response, called.wishes).await
        }
    }
}

#[cold]
fn failed(error: Box<dyn Error + Send + Sync>) -> Response {
    let error: Box<dyn Error> = error;
    tracing::error!(error, "a service has failed");
    response::internal_error()
}
