//! Ends without losing a request: `graceful_shutdown [PORT]`, then `curl http://127.0.0.1:PORT/`,
//! and meanwhile Ctrl-C. The answer still comes, and only then the program ends.
//!
//! A second Ctrl-C ends it at once.

use onrush::{Request, Response, Server};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::time::Duration;

/// Takes its time, so that there is something to wait for.
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
