//! A limit on how many requests a handler works on at a time, so that one route cannot take all
//! there is of what it needs. Must not know what that is, or how requests arrive.

use crate::handler::Handler;
use crate::request::Request;
use crate::response::Response;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// `handler` for at most `requests_max` requests at a time, those of all workers together; what
/// comes beyond is answered 503 with `Retry-After` at once, and counted as a limit hit.
///
/// A request's place is free again when its answer is there or the client is gone, or the handler
/// has panicked. What is still sent of the answer then does not count.
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
/// Clones share one limit; handlers that share one, on several routes, are one handler cloned.
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
/// sim.advance(2000);
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

/// Places, and how many are taken.
#[derive(Clone, Debug)]
struct Semaphore {
    requests: Arc<AtomicUsize>,
    requests_max: usize,
}

impl Semaphore {
    fn try_acquire(&self) -> Option<Permit> {
        // Counted before it is looked at: dropping the place takes it back in any case.
        let permit = Permit(self.requests.clone());
        let before = self.requests.fetch_add(1, Ordering::Relaxed);
        (before < self.requests_max).then_some(permit)
    }
}

/// A place that was taken.
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
    /// A handler's future and its place, or neither.
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
                // A content that is made while it is sent is still the handler's work.
                if let Some(permit) = this.permit.take() {
                    response.body.keep_until_sent(permit);
                }
                response
            }),
            None => Poll::Ready(Response::busy()),
        }
    }
}
