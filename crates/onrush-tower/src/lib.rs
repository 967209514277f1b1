//! Serves [axum](https://docs.rs/axum) routers, and every other
//! [`tower_service::Service`] of HTTP requests, on the engine [`onrush`].
//!
//! An application changes one line. It keeps its runtime, its extractors and its layers:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(|| async { "Hello, World!" }));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//!     // Before: axum::serve(listener, app).await
//!     onrush_tower::serve(listener, app).await
//! }
//! ```
//!
//! An application that passes `app.into_make_service_with_connect_info::<SocketAddr>()` passes
//! `app` here: the address of the client is there without it.
//!
//! In place of the listener, [`serve`] takes an [`onrush::Server`] with all of its settings:
//! limits, time limits, workers, the driver, metrics, TLS.
//!
//! # How it works
//! The workers of the engine accept connections and call the service, one clone on each worker. The
//! future of a request runs on the worker that received it, within the context of the tokio runtime
//! of the caller of [`serve`]: timers, sockets, `tokio::spawn`, `spawn_blocking` and all that is
//! built on them work, on the threads of that runtime. A wake-up from there reaches the worker
//! through its mailbox. The body of a request crosses a thread only if the handler moves it to
//! another one.
//!
//! # What an application gains
//! - Limits on heads, bodies and time, on by default ([`onrush::Limits`]), and a limit on
//!   connections ([`onrush::Server::connections_max`]).
//! - A worker per core that accepts, on io_uring or epoll; connections are spread evenly.
//! - A panic of a handler is a response 500 instead of a closed connection.
//! - A drain with a deadline ([`onrush::Server::drain_timeout`]), metrics
//!   ([`onrush::Server::metrics`]), an access log, TLS without another crate.
//!
//! # What differs
//! - Requests that are ambiguous or too large are refused by the engine, before all layers, some of
//!   which hyper accepts: a missing, malformed or second `Host`, a target of more than 8 KiB (414),
//!   a head of more than 32 KiB or 100 fields (431), two lengths, a bare LF, `CONNECT`. The default
//!   limit on bodies is 64 MiB, whatever the limits of extractors are. [`onrush::Limits`] has all.
//! - A body that is too slow or too long while it is read is an error of the body, and the response
//!   is what the service makes of it: extractors of axum respond with 400.
//! - The engine writes `Server`, `Date` and the fields of framing itself. Those of the service are
//!   left out, but `Connection: close` and `Content-Length` have their effect. A status code
//!   outside 200 to 599 becomes 500.
//! - With the feature `axum`, `ConnectInfo<SocketAddr>` is an extension of each request over TCP:
//!   pass the router, not `into_make_service_with_connect_info`. Own types for `ConnectInfo` and
//!   own listeners are not supported. With the feature `tls`, `Arc<onrush::TlsInfo>` is an
//!   extension, too.
//! - A client that ends its sending side is gone, as for hyper. After an upgrade, the connection
//!   ends when the application ends its side.
//! - Handlers are no tasks of tokio: they have no task id, tokio's budget does not make a future
//!   yield that is always ready, and work is not stolen by another thread. Long computations belong
//!   into `tokio::spawn`, `spawn_blocking` or [`onrush::offload()`].
//! - WebSockets over HTTP/2 need [`onrush::Server::extended_connect`], which `axum::serve` has on
//!   always. Set it when all routes of WebSockets are ones of `any`, or of `get` and `connect`:
//!   browsers try nothing else then. Without it, they open WebSockets over HTTP/1.1.
//!
//! Layers inside this crate, lowest first: `body` · `request` · `response` · `upgrade` ·
//! `application` · `listen` · `serve`.

#![forbid(unsafe_code)]

mod application;
mod body;
mod listen;
mod request;
mod response;
mod serve;
#[cfg(feature = "axum")]
mod upgrade;

pub use application::application;
pub use body::Body;
pub use listen::IntoServer;
pub use serve::{Serve, WithGracefulShutdown, serve};
