//! One worker, and state that needs no lock: `hello_single_thread [PORT]`.
//!
//! Handlers and their futures stay on the worker that created them, so they can share state in an
//! `Rc`, such as this counter. With more workers, each worker would have its own counter.

use onrush::{Request, Response, Server, per_worker};
use std::cell::Cell;
use std::rc::Rc;

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let application = per_worker(|_| {
        let visits = Rc::new(Cell::new(0u64));
        move |_: Request| {
            let visits = visits.clone();
            async move {
                visits.set(visits.get() + 1);
                Response::text(format!("Hello, visitor {}!\n", visits.get()))
            }
        }
    });
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .workers(1)
        .serve(application)
}
