//! `peer-hyper PORT`: hyper alone. `peer-hyper PORT FOLDER` serves the files of a folder instead.
//! `--tls-cert FILE --tls-key FILE` makes it an HTTPS server with tokio-rustls, `--http2` one that
//! speaks HTTP/2 only.

#![forbid(unsafe_code)]

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use peers::{BYTES, ECHO_BYTES_MAX, HELLO, JSON, TEXT};
use std::convert::Infallible;
use std::sync::Arc;

type FullResponse = Response<Full<Bytes>>;

async fn route(request: Request<Incoming>) -> Result<FullResponse, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => response(
            HeaderValue::from_static(TEXT),
            Bytes::from_static(HELLO.as_bytes()),
        ),
        (&Method::GET, "/json") => response(HeaderValue::from_static(JSON), peers::json().into()),
        (&Method::POST, "/echo") => echo(request).await,
        (&Method::PUT, _) => discard(request.into_body()).await,
        _ => refusal(StatusCode::NOT_FOUND),
    })
}

async fn echo(mut request: Request<Incoming>) -> FullResponse {
    if request.body().size_hint().lower() > ECHO_BYTES_MAX as u64 {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE);
    }
    let kind = request.headers_mut().remove(CONTENT_TYPE);
    match Limited::new(request.into_body(), ECHO_BYTES_MAX)
        .collect()
        .await
    {
        Ok(body) => response(
            kind.unwrap_or(HeaderValue::from_static(BYTES)),
            body.to_bytes(),
        ),
        Err(_) => refusal(StatusCode::PAYLOAD_TOO_LARGE),
    }
}

/// Receives a body and stores nothing.
async fn discard(mut body: Incoming) -> FullResponse {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            return refusal(StatusCode::BAD_REQUEST);
        }
    }
    refusal(StatusCode::NO_CONTENT)
}

fn response(kind: HeaderValue, body: Bytes) -> FullResponse {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A response without content.
fn refusal(status: StatusCode) -> FullResponse {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

fn main() -> std::io::Result<()> {
    let arguments = peers::Arguments::of_program();
    match arguments.folder.clone().map(Arc::new) {
        None => peers::tokio_http::serve(&arguments, service_fn(route)),
        Some(folder) => {
            let route = move |request| peers::hyper_files::route(folder.clone(), request);
            peers::tokio_http::serve(&arguments, service_fn(route))
        }
    }
}
