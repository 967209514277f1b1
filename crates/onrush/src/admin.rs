//! Endpoints for operators and monitoring programs: metrics, health and readiness of a server. They
//! may be served on an address of their own or together with the application.

use crate::metrics::Metrics;
use crate::request::Request;
use crate::response::Response;
use crate::route::Router;
use crate::server::Handle;
use std::sync::{Arc, OnceLock};

/// The endpoints `/-/metrics`, `/-/health` and `/-/ready` of a server. Cheap to clone.
///
/// - `/-/metrics` returns the [`Metrics`].
/// - `/-/health` returns 200 if the worker that received the request still processes requests.
/// - `/-/ready` returns 200 while the watched server accepts connections. It returns 503 with
///   `Retry-After: 1` before [`Admin::watch`] and after a shutdown has begun.
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
#[derive(Clone, Debug)]
pub struct Admin {
    metrics: Metrics,
    watched: Arc<OnceLock<Handle>>,
}

impl Admin {
    /// Creates the endpoints of a server that counts in `metrics`. The server is not ready before
    /// [`Admin::watch`] is called.
    pub fn new(metrics: &Metrics) -> Admin {
        Admin {
            metrics: metrics.clone(),
            watched: Arc::default(),
        }
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

    /// Returns `router` with these endpoints added. They take all paths under `/-/`, so
    /// `router` should have no routes there.
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
        router
            .get("/-/metrics", metrics)
            .get("/-/health", async |_: Request| {
                plain_response(200, "alive\n")
            })
            .get("/-/ready", move |_: Request| {
                std::future::ready(ready.readiness())
            })
            .get("/-/{*rest}", async |_: Request| {
                plain_response(404, "not found; see /-/metrics, /-/health and /-/ready\n")
            })
    }

    /// The response to `/-/ready`: 200 only between the start and the shutdown of the server.
    fn readiness(&self) -> Response {
        match self.watched.get() {
            Some(server) if !server.is_ending() => plain_response(200, "ready\n"),
            Some(_) => plain_response(503, "ending\n").with_header("Retry-After", "1"),
            None => plain_response(503, "starting\n").with_header("Retry-After", "1"),
        }
    }
}

fn plain_response(status: u16, text: &'static str) -> Response {
    Response::text(text)
        .with_status(status)
        .with_header("Cache-Control", "no-store")
}
