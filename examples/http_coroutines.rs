//! A small HTTP server library with one thread per connection, and a program that uses it:
//! `http_threads [PORT]` runs on threads, `http_coroutines [PORT]` on coroutines. Both have one
//! source, `ported/http.rs`. They differ only in their `use` lines and in the call that runs the
//! program.
//!
//! `curl http://127.0.0.1:PORT/`, `curl -T FILE http://127.0.0.1:PORT/echo`, `/count`, `/slow`.

use onrush::coroutine::net::{Shutdown, TcpListener, TcpStream};
use onrush::coroutine::{self, Config, Contract, thread};
use std::io;

#[path = "ported/http.rs"]
mod http;

fn main() -> io::Result<()> {
    // SAFETY: the program passes no closure that waits to a thread-local, a scope or a library.
    #[allow(unsafe_code)]
    let contract = unsafe { Contract::accept() };
    coroutine::run(contract, Config::from_env()?, http::program)
}
