//! Handlers in blocking style, which run as coroutines.
//!
//! [`handler`] converts a plain function to a handler. The function runs on its own stack, on the
//! worker of its request. While it waits (for the body, a slow client, a timer or another server),
//! the worker does something else. Bodies implement [`Read`](std::io::Read) and
//! [`Write`](std::io::Write), so code for these traits works with them.
//!
//! # Examples
//! ```no_run
//! use onrush::coroutine::{Contract, RequestReader, ResponseWriter, handler};
//! use onrush::{Router, Server};
//! use std::io::{self, Write};
//!
//! fn hello(_: &mut RequestReader, response: &mut ResponseWriter) {
//!     response.set_content_type("text/plain");
//!     response.write_all(b"Hello, World!").expect("it fits");
//! }
//!
//! fn echo(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
//!     io::copy(request, response)?;
//!     Ok(())
//! }
//!
//! fn main() -> io::Result<()> {
//!     // SAFETY: both handlers wait outside borrows of thread-locals and outside scopes.
//!     let contract = unsafe { Contract::accept() };
//!     let router = Router::new()
//!         .get("/", handler(contract, hello))
//!         .post("/echo", handler(contract, echo));
//!     Server::bind("127.0.0.1:8080").serve(router)
//! }
//! ```
//!
//! A handler needs a [`Contract`], which only `unsafe` code can accept: the handler does not wait
//! within a borrow of a thread-local, nor within a call of a library that relies on returning
//! before its thread does something else. Almost all handlers fulfil it. [`Contract::accept`] lists
//! the cases.
//!
//! If the client disconnects, the stack of the handler is unwound from where it waits, and the
//! values on it are dropped. A handler that panics before its response has begun receives 500 as
//! its response; otherwise the response is cut off.
//!
//! The other items are those of [`onrush_coroutine`]. Its documentation says what a coroutine
//! must not do, and which modules replace `std::thread`, `std::net`, `std::sync` and `std::fs`.
//!
//! Modules, lowest first: `response` · `request` · `plain`. They do not depend on connections.

mod plain;
mod request;
mod response;

pub use onrush_coroutine::{
    Config, Contract, Coroutine, File, JoinHandle, Mutex, StackCounters, StackOptions, TcpListener,
    TcpStream, Unwinding, channel, counters, fs, is_inside, is_unwinding, mpsc, net, run, scope,
    sleep, spawn, sync, thread, touched_bytes, try_wait, wait, yield_now,
};
pub use plain::{Outcome, Plain, handler};
pub use request::RequestReader;
pub use response::ResponseWriter;
