//! `experiment-coroutine-app MODE PORT [BACK]`: the same three answers, written as `async fn`, as
//! plain functions that are coroutines, and on a library that gives each connection a thread, which
//! runs on threads or on coroutines. Must not know who measures it.
//!
//! `/` greets, `/call` asks the server at port BACK and answers with what that said, `/sleep` takes
//! ten minutes. Connections to BACK are kept, by each worker or thread for itself.
//!
//! | mode | |
//! | --- | --- |
//! | `async`, `handler` | handlers of Onrush; `ONRUSH_WORKERS` and `ONRUSH_DRIVER` as always |
//! | `coroutines`, `threads` | the library; it has no `/metrics` |
//!
//! With `APP_METRICS=on` the first two count, and tell at `/metrics`.

#![forbid(unsafe_code)]
#![allow(clippy::duplicate_mod, reason = "one library, by two sets of names")]

mod back;
mod coroutines;
mod handlers;
mod threads;

use std::{io, net::SocketAddr, process::ExitCode, time::Duration};

/// Longer than anybody waits.
const SLEEP: Duration = Duration::from_secs(600);

const HELLO: &str = "Hello, World!";

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
    let (mode, port, back) = match arguments {
        [mode, port] => (mode, port, "0"),
        [mode, port, back] => (mode, port, back.as_str()),
        _ => return Err(wrong("usage: MODE PORT [BACK]".to_owned())),
    };
    let address = |port: &str| {
        let number = port
            .parse()
            .map_err(|_| wrong(format!("not a port: {port}")));
        number.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    let (address, back) = (address(port)?, address(back)?);
    match mode.as_str() {
        "async" => handlers::of_async(address, back),
        "handler" => handlers::of_coroutines(address, back),
        "coroutines" => coroutines::serve(address, back),
        "threads" => threads::serve(address, back),
        other => Err(wrong(format!("no mode is called '{other}'"))),
    }
}
