//! What operators and their programs ask a server: its figures, whether it lives, whether it takes
//! requests. Must not know where it is asked: on an address of its own, or beside the application.

use crate::metrics::Metrics;
use crate::request::Request;
use crate::response::Response;
use crate::route::Router;
use crate::server::Handle;
use std::sync::{Arc, OnceLock};

/// `/-/metrics`, `/-/health` and `/-/ready` of a server. Cheap to clone.
///
/// ```no_run
/// use onrush::{Admin, Metrics, Request, Response, Server};
/// async fn hello(_: Request) -> Response {
///     Response::text("Hello, World!")
/// }
/// fn main() -> std::io::Result<()> {
///     let metrics = Metrics::new();
///     let admin = Admin::new(&metrics);
///     let aside = Server::bind("127.0.0.1:9090").workers(1).start(admin.router())?;
///     let server = Server::bind("127.0.0.1:8080").metrics(&metrics).start(hello)?;
///     admin.watch(server.handle());
///     server.wait()?;
///     aside.handle().shutdown_now();
///     aside.wait()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Admin {
    metrics: Metrics,
    watched: Arc<OnceLock<Handle>>,
}

impl Admin {
    /// For a server that is counted in `metrics`. It is not ready before it is watched.
    pub fn new(metrics: &Metrics) -> Admin {
        Admin {
            metrics: metrics.clone(),
            watched: Arc::default(),
        }
    }

    /// Tells from now on whether the server of `handle` is ready. One is watched, the first.
    pub fn watch(&self, handle: Handle) {
        let _ = self.watched.set(handle);
    }

    /// Nothing but what is asked here.
    pub fn router(&self) -> Router {
        self.beside(Router::new())
    }

    /// The same beside other routes. All paths under `/-/` belong to it.
    pub fn beside(&self, router: Router) -> Router {
        let (ready, metrics) = (self.clone(), self.metrics.clone());
        router
            .get("/-/metrics", metrics)
            .get("/-/health", async |_: Request| told(200, "alive\n"))
            .get("/-/ready", move |_: Request| {
                std::future::ready(ready.readiness())
            })
            .get("/-/{*rest}", async |_: Request| {
                told(404, "metrics, health and ready are here\n")
            })
    }

    /// Whether new connections are welcome: not before the start, and not once the end has begun.
    fn readiness(&self) -> Response {
        match self.watched.get() {
            Some(server) if !server.is_ending() => told(200, "ready\n"),
            Some(_) => told(503, "ending\n").with_header("Retry-After", "1"),
            None => told(503, "starting\n").with_header("Retry-After", "1"),
        }
    }
}

fn told(status: u16, what: &'static str) -> Response {
    Response::text(what)
        .with_status(status)
        .with_header("Cache-Control", "no-store")
}
