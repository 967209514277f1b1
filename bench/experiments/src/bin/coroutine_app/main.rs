//! `experiment-coroutine-app MODE PORT [BACKEND]`: the same three responses from `async fn`s, from
//! plain functions that are coroutines, and from a library with one thread per connection, which
//! runs on threads or on coroutines.
//!
//! `/` sends a greeting. `/call` sends a request to the server at port BACKEND and responds with
//! its content. `/sleep` takes ten minutes. Each worker or thread keeps its connections to BACKEND.
//!
//! | mode | |
//! | --- | --- |
//! | `async`, `handler` | handlers of Onrush; `ONRUSH_WORKERS` and `ONRUSH_DRIVER` apply |
//! | `coroutines`, `threads` | the library; it has no `/metrics` |
//!
//! With `APP_METRICS=on` the first two have metrics at `/metrics`.

#![deny(unsafe_code)]
#![allow(clippy::duplicate_mod, reason = "one library with two sets of imports")]

mod backend;
mod coroutines;
mod handlers;
mod threads;

use onrush::coroutine::Contract;
use std::{io, net::SocketAddr, process::ExitCode};

#[allow(unsafe_code)]
fn contract() -> Contract {
    // SAFETY: the handlers and the library borrow thread-locals only to take or to put back an idle
    // connection, and wait outside these borrows. They use no scopes.
    unsafe { Contract::accept() }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("experiment-coroutine-app: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(arguments: &[String]) -> io::Result<()> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let (mode, port, backend) = match arguments {
        [mode, port] => (mode, port, "0"),
        [mode, port, backend] => (mode, port, backend.as_str()),
        _ => return Err(wrong("usage: MODE PORT [BACKEND]".to_owned())),
    };
    let address = |port: &str| {
        let number = port
            .parse()
            .map_err(|_| wrong(format!("not a port: {port}")));
        number.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    let (address, backend) = (address(port)?, address(backend)?);
    match mode.as_str() {
        "async" => handlers::serve_async(address, backend),
        "handler" => handlers::serve_coroutines(address, backend),
        "coroutines" => coroutines::serve(address, backend),
        "threads" => threads::serve(address, backend),
        other => Err(wrong(format!("no mode has the name '{other}'"))),
    }
}
