//! Endpoints for operators and monitoring programs: metrics, health and readiness of a server. They
//! may be served on an address of their own or together with the application.

use crate::body::Body;
use crate::metrics::Metrics;
use crate::request::Request;
use crate::response::Response;
use crate::route::Router;
use crate::server::Handle;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Says why the application is not ready; `None` if it is.
type ReadyCheck = Arc<dyn Fn() -> Option<&'static str> + Send + Sync>;

/// The endpoints `/-/metrics`, `/-/health` and `/-/ready` of a server. Cheap to clone.
///
/// - `/-/metrics` returns the [`Metrics`].
/// - `/-/health` returns 200 if the worker that received the request still processes requests.
/// - `/-/ready` returns 200 while the watched server accepts connections. It returns 503 with
///   `Retry-After: 1` before [`Admin::watch`], after a shutdown has begun, and while the check of
///   [`Admin::ready_if`] fails.
///
/// Each of these responses has `Cache-Control: no-store` (RFC 9111 §5.2.2.5).
///
/// # Examples
/// Metrics on an address of their own, which is served until the server of the application has
/// ended:
///
/// ```no_run
/// use onrush::{Admin, Metrics, Request, Response, Server};
///
/// async fn hello(_: Request) -> Response {
///     Response::text("Hello, World!")
/// }
///
/// fn main() -> std::io::Result<()> {
///     let metrics = Metrics::new();
///     let admin = Admin::new(&metrics);
///     let admin_server = Server::bind("127.0.0.1:9090").workers(1).start(admin.router())?;
///     let server = Server::bind("127.0.0.1:8080").metrics(&metrics).start(hello)?;
///     admin.watch(server.handle());
///     server.wait()?;
///     admin_server.handle().shutdown_now();
///     admin_server.wait()
/// }
/// ```
#[derive(Clone)]
pub struct Admin {
    metrics: Metrics,
    watched: Arc<OnceLock<Handle>>,
    ready_check: Option<ReadyCheck>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("metrics", &self.metrics)
            .field("watched", &self.watched)
            .finish_non_exhaustive()
    }
}

/// Paths that are none of the others.
const UNKNOWN: &str = "/-/{*rest}";

impl Admin {
    /// Creates the endpoints of a server that counts in `metrics`. The server is not ready before
    /// [`Admin::watch`] is called.
    pub fn new(metrics: &Metrics) -> Admin {
        Admin {
            metrics: metrics.clone(),
            watched: Arc::default(),
            ready_check: None,
        }
    }

    /// Adds a condition to readiness: `check` returns one line that says why the application cannot
    /// serve requests now, or `None` if it can. It runs on a worker for each request of
    /// `/-/ready`, so it must not block. Only the last check counts.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Admin, Metrics};
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// static CONNECTED: AtomicBool = AtomicBool::new(false);
    ///
    /// let admin = Admin::new(&Metrics::new())
    ///     .ready_if(|| (!CONNECTED.load(Ordering::Relaxed)).then_some("no database"));
    /// # drop(admin);
    /// ```
    #[must_use]
    pub fn ready_if(
        mut self,
        check: impl Fn() -> Option<&'static str> + Send + Sync + 'static,
    ) -> Admin {
        self.ready_check = Some(Arc::new(check));
        self
    }

    /// Sets the server whose readiness `/-/ready` reports. Only the first call has an effect.
    /// Clones of this value share it.
    pub fn watch(&self, handle: Handle) {
        let _ = self.watched.set(handle);
    }

    /// Returns a router with these endpoints only.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Admin, Limits, Metrics, sim::Simulation};
    ///
    /// let admin = Admin::new(&Metrics::new());
    /// let mut sim = Simulation::new(1, &admin.router(), Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET /-/ready HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// // No server is watched yet.
    /// assert!(client.receive()?.starts_with(b"HTTP/1.1 503 Service Unavailable\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn router(&self) -> Router {
        self.add_to(Router::new())
    }

    /// Returns `router` with these endpoints added. They take all paths under `/-/`, except for
    /// those of routes that `router` has there; if one is for `GET` of `/-/{*rest}`, it answers
    /// unknown paths.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Admin, Limits, Metrics, Request, Response, Router, sim::Simulation};
    ///
    /// async fn hello(_: Request) -> Response {
    ///     Response::text("Hello, World!")
    /// }
    ///
    /// let admin = Admin::new(&Metrics::new());
    /// let router = admin.add_to(Router::new().get("/", hello));
    /// let mut sim = Simulation::new(1, &router, Limits::default());
    /// let client = sim.connect();
    /// for path in ["/", "/-/health", "/-/metrics"] {
    ///     let request = format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n\r\n");
    ///     sim.send(&client, request.as_bytes());
    ///     assert!(client.receive()?.starts_with(b"HTTP/1.1 200 OK\r\n"));
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn add_to(&self, router: Router) -> Router {
        let (ready, metrics) = (self.clone(), self.metrics.clone());
        let router = router
            .get("/-/metrics", metrics)
            .get("/-/health", async |_: Request| {
                plain_response(200, "alive\n")
            })
            .get("/-/ready", move |_: Request| {
                std::future::ready(ready.readiness())
            });
        match router.has_route("GET", UNKNOWN) {
            true => router,
            false => router.get(UNKNOWN, async |_: Request| {
                plain_response(404, "not found; see /-/metrics, /-/health and /-/ready\n")
            }),
        }
    }

    /// The response to `/-/ready`: 200 only between the start and the shutdown of the server.
    fn readiness(&self) -> Response {
        let reason = match self.watched.get() {
            Some(server) if !server.is_ending() => {
                self.ready_check.as_ref().and_then(|check| check())
            }
            Some(_) => Some("ending"),
            None => Some("starting"),
        };
        match reason {
            None => plain_response(200, "ready\n"),
            Some(reason) => {
                plain_response(503, format!("{reason}\n")).with_header("Retry-After", "1")
            }
        }
    }
}

fn plain_response(status: u16, text: impl Into<Body>) -> Response {
    Response::text(text)
        .with_status(status)
        .with_header("Cache-Control", "no-store")
}
