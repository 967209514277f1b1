//! Shuts down without losing a request: run `graceful_shutdown [PORT]`, then
//! `curl http://127.0.0.1:PORT/`, and press Ctrl-C before the response arrives. The program sends
//! the response and then ends. A second Ctrl-C ends it at once.

use onrush::{Request, Response, Server};
use std::time::Duration;

/// Takes 2 s, so that the shutdown has a request to wait for.
async fn slow(request: Request) -> Response {
    request.worker().sleep(Duration::from_secs(2)).await;
    Response::text("Done.\n")
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let address = format!("127.0.0.1:{port}");
    eprintln!("serving on http://{address}");
    Server::bind(address)
        .from_env()?
        .graceful(Duration::from_secs(10))
        .serve(slow)
}
