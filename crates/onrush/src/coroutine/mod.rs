//! Handlers that read and write as if they blocked, and the coroutines they are.
//!
//! [`handler`] makes a handler of a plain function. It runs on a stack of its own, on the worker
//! its request came to; where it waits (for the body, for a slow client, for whatever else it asks)
//! the worker does something else. Bodies are [`Read`](std::io::Read) and
//! [`Write`](std::io::Write), so what is written for those can be used.
//!
//! ```no_run
//! use onrush::coroutine::{RequestReader, ResponseWriter, handler};
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
//!     let router = Router::new().get("/", handler(hello)).post("/echo", handler(echo));
//!     Server::bind("127.0.0.1:8080").serve(router)
//! }
//! ```
//!
//! When the client goes, the handler's stack is unwound from where it waits, and what is on it is
//! dropped. A panic is answered 500, or cuts off an answer that has begun.
//!
//! The rest is [`onrush_rt::coroutine`], by whose documentation a handler must abide: what a
//! coroutine may not do, and what stands for `std::thread`, `std::net`, `std::sync`, `std::fs`.
//!
//! Modules, lowest first: `request` · `response` · `plain`. Must not know connections.

mod plain;
mod request;
mod response;

pub use onrush_rt::coroutine::{
    Config, Coroutine, File, JoinHandle, Mutex, StackCounters, StackOptions, TcpListener,
    TcpStream, Unwinding, channel, counters, fs, is_inside, is_unwinding, mpsc, net, run, scope,
    sleep, spawn, sync, thread, touched_bytes, try_wait, wait, yield_now,
};
pub use plain::{Outcome, Plain, handler};
pub use request::RequestReader;
pub use response::ResponseWriter;
