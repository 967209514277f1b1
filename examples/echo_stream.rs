//! Sends each request's body back while it is still arriving. The body may have any length:
//! `echo_stream [PORT]`, then `curl -T - http://127.0.0.1:PORT/` and type.
//!
//! Memory is bounded. While 64 KiB wait to be sent, the sender waits and the request is not read.
//! This slows down a client that does not read its response.

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
                    // Aborting tells the client that the response is incomplete.
                    Err(error) => return sender.abort(error),
                };
                if sent.is_err() {
                    return; // The client has disconnected.
                }
            }
            sender.finish();
        })
        .detach();
    Response::with_body(response).content_type("application/octet-stream")
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let limits = onrush::Limits::default().body_bytes_max(u64::MAX);
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .limits(limits)
        .serve(echo)
}
