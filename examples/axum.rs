//! An axum application on Onrush: state, JSON, events, WebSocket, a layer, and the end by Ctrl-C.
//! It differs from one on `axum::serve` where it serves. `axum [PORT]`, then
//! `curl -X POST http://127.0.0.1:PORT/counts/apples`.

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::stream::{Stream, StreamExt, unfold};
use onrush::Server;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower_http::timeout::TimeoutLayer;

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

async fn list(State(counts): State<Counts>) -> Json<BTreeMap<String, u64>> {
    Json(counts.lock().expect("no panic").clone())
}

async fn count(State(counts): State<Counts>, Path(name): Path<String>) -> String {
    let mut counts = counts.lock().expect("no panic");
    let count = counts.entry(name).or_default();
    *count += 1;
    format!("{count}\n")
}

async fn watch(State(counts): State<Counts>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let totals = unfold(counts, |counts| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let total: u64 = counts.lock().expect("no panic").values().sum();
        Some((total, counts))
    });
    Sse::new(totals.map(|total| Ok(Event::default().data(total.to_string()))))
}

async fn chat(upgrade: WebSocketUpgrade) -> Response {
    async fn repeat(mut socket: WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            if socket.send(message).await.is_err() {
                return; // The client has disconnected.
            }
        }
    }
    upgrade.on_upgrade(repeat).into_response()
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let limited = Router::new()
        .route("/counts", get(list))
        .route("/counts/{name}", post(count))
        .layer(TimeoutLayer::with_status_code(
            axum::http::StatusCode::REQUEST_TIMEOUT,
            Duration::from_secs(10),
        ));
    let app = limited
        .route("/watch", get(watch))
        .route("/chat", any(chat))
        .with_state(Counts::default());

    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let server = Server::bind(format!("127.0.0.1:{port}")).from_env()?;
    onrush_tower::serve(server, app)
        .with_graceful_shutdown(async { tokio::signal::ctrl_c().await.expect("a handler") })
        .await
}
