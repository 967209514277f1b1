//! A small HTTP server library with one thread per connection, and a program that uses it:
//! `http_threads [PORT]` runs on threads, `http_coroutines [PORT]` on coroutines. Both have one
//! source, `ported/http.rs`. They differ only in their `use` lines and in the call that runs the
//! program.
//!
//! `curl http://127.0.0.1:PORT/`, `curl -T FILE http://127.0.0.1:PORT/echo`, `/count`, `/slow`.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

#[path = "ported/http.rs"]
mod http;

fn main() -> io::Result<()> {
    http::program()
}
