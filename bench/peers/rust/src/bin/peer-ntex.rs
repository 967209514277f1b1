//! `peer-ntex PORT`: the HTTP/1 service of ntex without its web framework, on the runtime of ntex
//! with one worker. It accepts on a separate thread.

#![forbid(unsafe_code)]

use ntex::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use ntex::http::{HttpService, HttpServiceConfig, KeepAlive, Method, Request, Response};
use ntex::{SharedCfg, time::Seconds, util::BytesMut};
use peers::{BYTES, ECHO_BYTES_MAX, HELLO, JSON, TEXT};
use std::io;

async fn route(request: Request) -> Result<Response, io::Error> {
    Ok(match (request.method(), request.path()) {
        (&Method::GET, "/") => Response::Ok()
            .header(CONTENT_TYPE, HeaderValue::from_static(TEXT))
            .body(HELLO),
        (&Method::GET, "/json") => Response::Ok()
            .header(CONTENT_TYPE, HeaderValue::from_static(JSON))
            .body(peers::json()),
        (&Method::POST, "/echo") => echo(request).await?,
        _ => Response::NotFound().finish(),
    })
}

async fn echo(mut request: Request) -> Result<Response, io::Error> {
    let kind = request.headers().get(CONTENT_TYPE).cloned();
    let mut body = BytesMut::with_capacity(announced(&request).min(ECHO_BYTES_MAX));
    while let Some(piece) = request.payload().recv().await {
        let piece = piece.map_err(io::Error::other)?;
        if piece.len() > ECHO_BYTES_MAX - body.len() {
            return Ok(Response::PayloadTooLarge().force_close().finish());
        }
        body.extend_from_slice(&piece);
    }
    Ok(Response::Ok()
        .header(
            CONTENT_TYPE,
            kind.unwrap_or(HeaderValue::from_static(BYTES)),
        )
        .body(body))
}

/// The length that the request states, or 0. The parser has checked it.
fn announced(request: &Request) -> usize {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[ntex::main]
async fn main() -> io::Result<()> {
    // The defaults of 5 s and 1 s would close idle connections during the measurement.
    let http = HttpServiceConfig::new()
        .set_keepalive(KeepAlive::Timeout(Seconds(75)))
        .set_client_timeout(Seconds(15));
    let settings = SharedCfg::new("peer").add(http);
    ntex::server::build()
        .workers(1)
        .listen("http", peers::listen(peers::address())?, async |_| {
            HttpService::h1(route)
        })?
        .config("http", settings)
        .run()
        .await
}
