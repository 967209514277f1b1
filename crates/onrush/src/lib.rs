//! Onrush is an engine for HTTP/1.1 and HTTP/2 servers on Linux. Its cost per request is close to
//! that of the kernel.
//!
//! A server has one worker per core by default. Each worker is a thread with its own driver
//! (io_uring or epoll), its own tasks and its own connections. Handlers are `async fn`s and need
//! not be `Send`.
//!
//! ```no_run
//! use onrush::{Request, Response, Server};
//!
//! async fn hello(_: Request) -> Response {
//!     Response::text("Hello, World!")
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     Server::bind("127.0.0.1:8080").serve(hello)
//! }
//! ```
//!
//! Time limits, size limits and strict framing are on by default; [`Limits`] lists the limits.
//! A panic in a handler affects only its request, which receives 500.
//!
//! # Where to start
//! - [`Server`] listens and starts the workers; [`Handle`] shuts them down.
//! - [`Router`] selects a [`Handler`] by method and path, and gives it a state.
//! - [`Request`] and [`Response`] are what a handler receives and returns; [`RequestBody`] and
//!   [`Body`] are their bodies.
//! - [`WorkerHandle`] gives a handler timers, tasks and thread pools. [`offload()`] runs CPU-bound
//!   work, [`limited()`] limits how many requests a handler processes at a time.
//! - [`Request::query_pairs`] and [`Request::form`] decode, [`Response::redirect`] sends elsewhere,
//!   and [`Sse`] sends events while there are some.
//! - [`ServedFile`] responds with a file, with conditions and ranges.
//! - [`Metrics`], [`Admin`] and [`AccessLog`] show what a server does.
//! - [`testing`] asks an application in a test, and [`sim`] runs one, without sockets and without
//!   waiting.
//! - The [`manual`] is about moving a service here, what may wait, attacks, drivers, and tests.
//!
//! # Logs
//! Events go to the crate `tracing`: mistakes of handlers and panics as errors, what a limit or a
//! signal has ended as warnings and information, the rest for diagnosis. Without a subscriber, such
//! as `tracing_subscriber::fmt::init()`, nothing is printed. [`AccessLog`] has a line for each
//! request.
//!
//! # Features
//! None is on by default.
//!
//! | feature | what it adds | with the crate |
//! | --- | --- | --- |
//! | `compression` | `compression::compress`, a layer that compresses responses | `flate2`, `zstd` |
//! | `cookies` | `Request::cookies`, and `cookies::Cookie` for `Set-Cookie` | `cookie` |
//! | `coroutine` | `coroutine`: handlers in blocking style, with `Read` and `Write` | `corosensei` |
//! | `forms` | `Request::query_as` and `form_as`: values of fields | `serde`, `serde_html_form` |
//! | `http` | types of the crate `http` convert and are accepted: `http_types` | `http` |
//! | `json` | `Request::json`, and `Json` as a result of handlers | `serde`, `serde_json` |
//! | `tls` | HTTPS by `Server::tls`, and client certificates by `Request::tls` | `rustls` |
//!
//! # Examples
//! A router and a test of it on the simulated network:
//!
//! ```
//! use onrush::{Limits, Request, Response, Router, sim::Simulation};
//!
//! async fn greet(request: Request) -> Response {
//!     let name = request.param("name").unwrap_or("World");
//!     Response::text(format!("Hello, {name}!"))
//! }
//!
//! let router = Router::new().get("/", greet).get("/{name}", greet);
//!
//! let mut sim = Simulation::new(1, &router, Limits::default());
//! let client = sim.connect();
//! sim.send(&client, b"GET /Ada HTTP/1.1\r\nHost: example.com\r\n\r\n");
//! assert!(client.receive()?.ends_with(b"\r\n\r\nHello, Ada!"));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Layers inside this crate, lowest first: `accepted` · `trusted_peers` · `panic_guard` ·
//! `pooled_buffer` · `drain` · `log` · `limits` · `running_settings` · [`body`] · `params` ·
//! [`response`] · `tls` · `offload` · [`worker`] · `worker_set` · `watchdog` · `connections` ·
//! [`request`] · `http_types` · [`content`] · `misfit` · `forms` · `json` · `cookies` ·
//! [`selection`] · `served_file` · [`sse`] · [`handler`] · `coroutine` · `limited` · `make` ·
//! `routes` · `route` · `compression` · [`metrics`] · `engine` · [`server`] · `admin` · [`sim`] ·
//! [`testing`] · [`manual`].

#![forbid(unsafe_code)]

mod accepted;
mod admin;
pub mod body;
#[cfg(feature = "compression")]
pub mod compression;
mod connections;
pub mod content;
#[cfg(feature = "cookies")]
pub mod cookies;
#[cfg(feature = "coroutine")]
pub mod coroutine;
mod drain;
mod engine;
#[cfg(feature = "forms")]
mod forms;
pub mod handler;
#[cfg(feature = "http")]
pub mod http_types;
#[cfg(feature = "json")]
pub mod json;
pub mod limited;
mod limits;
mod log;
mod make;
pub mod manual;
pub mod metrics;
#[cfg(any(feature = "forms", feature = "json"))]
mod misfit;
pub mod offload;
mod panic_guard;
mod params;
#[cfg(feature = "coroutine")]
mod pooled_buffer;
pub mod request;
pub mod response;
mod route;
mod routes;
mod running_settings;
pub mod selection;
mod served_file;
pub mod server;
pub mod sim;
pub mod sse;
pub mod testing;
#[cfg(feature = "tls")]
pub mod tls;
mod trusted_peers;
mod watchdog;
pub mod worker;
mod worker_set;

pub use accepted::{IntoMethod, IntoStatus};
pub use admin::Admin;
pub use body::{Body, BodySender, Part, Trailers};
pub use bytes::Bytes;
pub use drain::Draining;
pub use futures_core::Stream;
pub use handler::{Application, Handler, per_worker};
#[cfg(feature = "json")]
pub use json::Json;
pub use limited::limited;
pub use limits::Limits;
pub use log::AccessLog;
pub use make::Next;
pub use metrics::Metrics;
pub use offload::{offload, offload_with};
pub use onrush_proto::head::Version;
pub use onrush_proto::reject::Reject;
pub use onrush_proto::response::{FieldError, FieldLines};
pub use onrush_rt::blocking::BlockingPool;
pub use onrush_rt::buf::Buf;
pub use onrush_rt::descriptors::Descriptors;
pub use onrush_rt::driver::Preference as DriverPreference;
pub use onrush_rt::driver::{Choice as DriverChoice, Config as DriverConfig};
pub use onrush_rt::fs::File;
pub use onrush_rt::net::{Address, ListenMode, Peer};
pub use request::{InterimResponses, NotOffered, Request, RequestBody, Upgrade, Upgraded};
pub use response::{IntoResponse, Response};
pub use route::Router;
pub use served_file::ServedFile;
pub use server::{ConnectionFacts, Handle, ListeningSockets, Running, RunningSettings, Server};
pub use sse::Sse;
#[cfg(feature = "tls")]
pub use tls::{TlsConfig, TlsError, TlsInfo};
pub use trusted_peers::{PeerNetwork, TrustedPeers};
pub use worker::WorkerHandle;
pub use worker_set::Placement;
