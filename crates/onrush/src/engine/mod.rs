//! The connections of one worker, from accept to close. The `server` module creates the workers.
//!
//! The engine handles driver events (`events`) and passes requests to the application. It holds no
//! borrow of its cells while user code runs, because user code calls back into the engine: it reads
//! a body or drops a request. Dropping a task runs user code as well.
//!
//! What the connections of a worker share is in types that know no engine and touch only what they
//! own (`shared`). An operation on one connection borrows it with what it uses of them (`open`).
//! The methods of [`Engine`], in the other modules, decide what happens to a connection: only they
//! close one, reach another one or start a request. So what `open` does to a connection, such as a
//! send, is followed up by a module of the engine, such as `http1/after_send`.
//!
//! Modules, lowest first: `connection` (one connection, and the table of all) · `shared` (what the
//! connections of a worker share) · `open` (one connection, borrowed with that) · `lifecycle` (the
//! engine, and the life of a connection) ·
//! `no_tls`, `tls` (handshakes and received records) · `timers` (expired time limits) · `pressure`
//! (shortage of receive memory) · `requests` (what they need of the engine) · `http1`, `http2`
//! (requests and responses) · `proxy_header` (the PROXY protocol) · `workers` (connections that
//! move, blocked workers) · `admission` (which new connections are served) · `events` (events of
//! the driver and the worker).

mod admission;
mod connection;
mod events;
mod http1;
mod http2;
mod lifecycle;
#[cfg(not(feature = "tls"))]
mod no_tls;
mod open;
mod pressure;
mod proxy_header;
mod requests;
mod shared;
mod timers;
#[cfg(feature = "tls")]
mod tls;
mod workers;

pub(crate) use connection::unsent_limit::UNSENT_BYTES_MAX;
pub(crate) use events::EngineHandler;
pub(crate) use lifecycle::{Engine, OVER_LIMIT_MAX, OVER_LIMIT_MIN, Settings};
pub(crate) use shared::handshakes::TlsSettings;
pub(crate) use shared::outbox::Outbox;
pub use shared::transfer::ConnectionFacts;
pub(crate) use shared::transfer::{EstablishedConn, Transfer};
