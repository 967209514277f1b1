//! `peer-axum PORT`: axum's router and extractors, served by hyper.

#![forbid(unsafe_code)]

use axum::extract::DefaultBodyLimit;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::IntoResponse;
use axum::routing::{Router, get, post};
use axum::{Json, body::Bytes};
use hyper_util::service::TowerToHyperService;
use peers::{BYTES, ECHO_BYTES_MAX, HELLO, MESSAGE, Message};

async fn hello() -> &'static str {
    HELLO
}

async fn json() -> Json<Message> {
    Json(MESSAGE)
}

async fn echo(mut headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let kind = headers.remove(CONTENT_TYPE);
    let kind = kind.unwrap_or(HeaderValue::from_static(BYTES));
    ([(CONTENT_TYPE, kind)], body)
}

fn main() -> std::io::Result<()> {
    let echo = post(echo).layer(DefaultBodyLimit::max(ECHO_BYTES_MAX));
    let routes = Router::new()
        .route("/", get(hello))
        .route("/json", get(json))
        .route("/echo", echo);
    let arguments = peers::Arguments::of_program();
    peers::tokio_http1::serve(&arguments, TowerToHyperService::new(routes))
}
