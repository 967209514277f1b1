//! Limits the number of concurrent requests of a handler, so that one route cannot use up a
//! resource.

use crate::handler::Handler;
use crate::request::Request;
use crate::response::Response;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Limits `handler` to `requests_max` concurrent requests, of all workers together. Further
/// requests receive a 503 with `Retry-After` at once, and are counted as limit hits.
///
/// A request's slot is released when its handler returns the response, when the client disconnects,
/// or when the handler panics. A response that streams its content keeps the slot until the stream
/// ends. Sending other content does not occupy the slot.
///
/// ```
/// use onrush::{Request, Response, Router, limited};
/// async fn report(_: Request) -> Response {
///     Response::text("a large one")
/// }
/// let router = Router::new().get("/report", limited(4, report));
/// # let _ = router;
/// ```
///
/// Clones share one limit. To share a limit between several routes, clone the limited handler.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, limited, sim::Simulation};
/// use std::time::Duration;
///
/// async fn report(request: Request) -> Response {
///     request.worker().sleep(Duration::from_secs(1)).await;
///     Response::text("a large one")
/// }
///
/// let mut sim = Simulation::new(1, &limited(1, report), Limits::default());
/// let (first, second) = (sim.connect(), sim.connect());
/// for client in [&first, &second] {
///     sim.send(client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// }
/// assert!(second.receive()?.starts_with(b"HTTP/1.1 503 Service Unavailable\r\n"));
/// sim.advance(Duration::from_secs(2));
/// assert!(first.receive()?.ends_with(b"a large one"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn limited<H: Handler>(requests_max: usize, handler: H) -> Limited<H> {
    Limited {
        handler,
        limit: Semaphore {
            requests: Arc::default(),
            requests_max,
        },
    }
}

/// See [`limited`].
///
/// # Examples
/// ```
/// use onrush::limited::Limited;
/// use onrush::{Metrics, Router, limited};
///
/// // One limit for both routes.
/// let metrics: Limited<Metrics> = limited(2, Metrics::new());
/// let router = Router::new().get("/metrics", metrics.clone()).get("/-/metrics", metrics);
/// # let _ = router;
/// ```
#[derive(Clone, Debug)]
pub struct Limited<H> {
    handler: H,
    limit: Semaphore,
}

/// A counting semaphore.
#[derive(Clone, Debug)]
struct Semaphore {
    requests: Arc<AtomicUsize>,
    requests_max: usize,
}

impl Semaphore {
    fn try_acquire(&self) -> Option<Permit> {
        // The count is increased first, and dropping the permit decreases it in either case.
        let permit = Permit(self.requests.clone());
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        (before < self.requests_max).then_some(permit)
    }
}

/// An acquired slot.
#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<H: Handler> Handler for Limited<H> {
    #[inline]
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<H> + 'static {
        let permit = self.limit.try_acquire();
        let future = match &permit {
            Some(_) => Some(self.handler.handle(request)),
            None => {
                request.count_limit_hit();
                None
            }
        };
        WithPermit { future, permit }
    }
}

pin_project! {
    /// A handler's future and its permit, or neither.
    struct WithPermit<Fut> {
        #[pin]
        future: Option<Fut>,
        permit: Option<Permit>,
    }
}

impl<Fut: Future<Output = Response>> Future for WithPermit<Fut> {
    type Output = Response;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let this = self.project();
        match this.future.as_pin_mut() {
            Some(future) => future.poll(cx).map(|mut response| {
                // Producing streamed content is still work of the handler.
                if let Some(permit) = this.permit.take() {
                    response.body.keep_until_sent(permit);
                }
                response
            }),
            None => Poll::Ready(Response::busy()),
        }
    }
}
