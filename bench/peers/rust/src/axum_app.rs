//! The router of the programs on axum: the same on each server.

use crate::{BYTES, ECHO_BYTES_MAX, HELLO, MESSAGE, Message};
use axum::Json;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::IntoResponse;
use axum::response::sse::{Event, Sse};
use axum::routing::{Router, get, post};
use futures_core::Stream;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, interval};

/// How often an event is sent to a client of `/events`.
const EVENT_INTERVAL: Duration = Duration::from_millis(100);

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

/// An object with any members, sent back as it was understood.
async fn json_echo(Json(value): Json<serde_json::Value>) -> Json<serde_json::Value> {
    Json(value)
}

/// Events without end.
struct Ticks(Interval);

impl Stream for Ticks {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        ready!(self.0.poll_tick(cx));
        Poll::Ready(Some(Ok(Event::default().data("tick"))))
    }
}

async fn events() -> Sse<Ticks> {
    Sse::new(Ticks(interval(EVENT_INTERVAL)))
}

/// `GET /`, `/json` and `/events`, `POST /echo` and `/json`.
pub fn router() -> Router {
    let echo = post(echo).layer(DefaultBodyLimit::max(ECHO_BYTES_MAX));
    Router::new()
        .route("/", get(hello))
        .route("/json", get(json).post(json_echo))
        .route("/echo", echo)
        .route("/events", get(events))
}
