//! Shuts down without losing a request: run `graceful_shutdown [PORT]`, then
//! `curl http://127.0.0.1:PORT/`, and press Ctrl-C before the response arrives. The program sends
//! the response and then ends. A second Ctrl-C ends it at once.

use onrush::{Request, Response, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::time::Duration;

/// Takes 2 s, so that the shutdown has a request to wait for.
async fn slow(request: Request) -> Response {
    request.worker().sleep(Duration::from_secs(2)).await;
    Response::text("Done.\n")
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let running = Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .drain_timeout(Duration::from_secs(10))
        .start(slow)?;
    eprintln!("serving on http://{}", running.address());

    let handle = running.handle();
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if handle.is_ending() {
                handle.shutdown_now();
            } else {
                eprintln!("ending");
                handle.shutdown();
            }
        }
    });
    running.wait()
}
