//! Onrush: an HTTP server engine for Linux whose cost per request is close to that of the kernel.
//!
//! There is one worker per core. Each has its own driver (io_uring or epoll), its own tasks and its
//! own connections. Handlers are `async fn`s that need not be `Send`.
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
//! Layers inside this crate, lowest first: `panic_guard` · `pooled_buffer` · `log` · [`body`] ·
//! [`response`] · `offload` · [`worker`] · `params` · `worker_set` · `watchdog` · `host` ·
//! [`request`] · [`handler`] · [`coroutine`] · `limited` · `route` · [`metrics`] · `engine` ·
//! [`server`] · `admin` · [`sim`].

#![forbid(unsafe_code)]

mod admin;
pub mod body;
pub mod coroutine;
mod engine;
pub mod handler;
mod host;
pub mod limited;
mod log;
pub mod metrics;
pub mod offload;
mod panic_guard;
mod params;
mod pooled_buffer;
pub mod request;
pub mod response;
mod route;
pub mod server;
pub mod sim;
mod watchdog;
pub mod worker;
mod worker_set;

pub use admin::Admin;
pub use body::{Body, BodySender, Part};
pub use bytes::Bytes;
pub use handler::{Application, Handler, per_worker};
pub use limited::limited;
pub use log::AccessLog;
pub use metrics::Metrics;
pub use offload::{offload, offload_with};
pub use onrush_proto::limits::Limits;
pub use onrush_proto::response::FieldError;
pub use onrush_rt::buf::Buf;
pub use onrush_rt::driver::Preference as DriverPreference;
pub use request::{Request, RequestBody};
pub use response::{IntoResponse, Response};
pub use route::Router;
pub use server::{Handle, Running, Server};
pub use worker::WorkerHandle;
pub use worker_set::Placement;
