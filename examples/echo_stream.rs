//! Sends each request's body back while it is still arriving, however long it is:
//! `echo_stream [PORT]`, then `curl -T - http://127.0.0.1:PORT/` and type.
//!
//! Nothing piles up: the sender waits while 64 KiB wait to be sent, meanwhile nobody reads the
//! request, and so a client that does not take its answer is slowed down.

use onrush::{Body, Bytes, Request, Response, Server};

const WAITING_BYTES_MAX: usize = 64 * 1024;

async fn echo(request: Request) -> Response {
    let worker = request.worker().clone();
    let (mut sender, response) = Body::channel(WAITING_BYTES_MAX);
    let mut body = request.into_body();
    worker
        .spawn(async move {
            while let Some(piece) = body.next().await {
                let sent = match piece {
                    Ok(piece) => sender.send(Bytes::copy_from_slice(&piece)).await,
                    // So that nobody takes what was sent so far for all of it.
                    Err(error) => return sender.abort(error),
                };
                if sent.is_err() {
                    return; // The client is gone.
                }
            }
        })
        .detach();
    Response::with_body(response).content_type("application/octet-stream")
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let limits = onrush::Limits {
        body_bytes_max: u64::MAX,
        ..Default::default()
    };
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .limits(limits)
        .serve(echo)
}
