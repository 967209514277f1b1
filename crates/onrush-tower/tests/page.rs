//! A page in Chromium: a chat over WebSocket, what was said as events of the server, and requests.
//! The same page works on both servers.

use crate::same::{drivers, serve};
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, Method, Version};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use testing::programs::{is_installed, output_within, tool};
use tokio::sync::broadcast;

/// What was said, and those who listen.
#[derive(Debug)]
struct Room {
    said: Mutex<Vec<String>>,
    /// The methods and versions of the requests that have joined.
    joined: Mutex<Vec<(Method, Version)>>,
    live: broadcast::Sender<String>,
}

impl Room {
    /// Tells everybody. Returns the number of the message, from 1 on.
    fn say(&self, text: &str) -> usize {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.push(text.to_owned());
        let _ = self.live.send(text.to_owned()); // Nobody may listen.
        said.len()
    }

    /// The message with this number, counted from 0.
    fn at(&self, number: usize) -> Option<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.get(number).cloned()
    }
}

/// Events from the one on that the browser asks for. They end behind the message `end`.
async fn events(
    State(room): State<Arc<Room>>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let last = headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok()?.parse().ok());
    let live = room.live.subscribe();
    let first = (room, live, last.unwrap_or(0), false);
    let events = stream::unfold(first, |(room, mut live, number, has_ended)| async move {
        if has_ended {
            return None;
        }
        let text = loop {
            if let Some(text) = room.at(number) {
                break text;
            }
            // What it brings is in the room as well.
            let _ = live.recv().await;
        };
        let number = number + 1;
        let event = Event::default().event("said").id(number.to_string());
        let event = event.retry(Duration::from_millis(20)).data(&text);
        Some((Ok(event), (room, live, number, text == "end")))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

async fn join(
    State(room): State<Arc<Room>>,
    method: Method,
    version: Version,
    upgrade: WebSocketUpgrade,
) -> Response {
    let mut joined = room.joined.lock().unwrap_or_else(PoisonError::into_inner);
    joined.push((method, version));
    drop(joined);
    let upgrade = upgrade.protocols(["chat"]);
    upgrade.on_upgrade(|socket| talk(socket, room))
}

async fn talk(mut socket: WebSocket, room: Arc<Room>) {
    let mut live = room.live.subscribe();
    loop {
        let sent = tokio::select! {
            received = socket.recv() => match received {
                Some(Ok(Message::Text(text))) if text.as_str() == "out" => {
                    let reason = "as you wish".into();
                    socket.send(Message::Close(Some(CloseFrame { code: 4002, reason }))).await
                }
                Some(Ok(Message::Text(text))) => {
                    room.say(text.as_str());
                    Ok(())
                }
                Some(Ok(Message::Binary(bytes))) => socket.send(Message::Binary(bytes)).await,
                Some(Ok(_)) => Ok(()),
                Some(Err(_)) | None => break,
            },
            Ok(text) = live.recv() => socket.send(Message::from(text)).await,
        };
        if sent.is_err() {
            break;
        }
    }
    room.say("one has left");
}

#[derive(Deserialize)]
struct Said {
    text: String,
}

async fn say(State(room): State<Arc<Room>>, Json(said): Json<Said>) -> Json<Value> {
    Json(json!({ "number": room.say(&said.text) }))
}

impl Default for Room {
    fn default() -> Room {
        Room {
            said: Mutex::default(),
            joined: Mutex::default(),
            live: broadcast::channel(1000).0,
        }
    }
}

fn chat(room: Arc<Room>) -> Router {
    Router::new()
        .route(
            "/",
            get(async || Html(include_str!("page.html")).into_response()),
        )
        .route("/events", get(events))
        .route("/socket", any(join))
        .route("/say", post(say))
        .with_state(room)
}

/// What runs the script of the page in a browser, if both are there.
fn browser() -> Option<PathBuf> {
    let python = tool("python/browser/bin/python", "cargo xtask setup");
    python.filter(|_| is_installed("chromium"))
}

/// Uses the page at `url`.
fn uses_the_page(python: &Path, server: &str, url: &str) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    command.arg(own.join("tests/page.py")).arg(url);
    // It starts the browser as the scripts of the page of folders do.
    command.env("PYTHONPATH", own.join("../onrush-server/tests/browser"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = output_within(&mut command, Duration::from_secs(200));
    let (out, err) = (&output.stdout, &output.stderr);
    let said = String::from_utf8_lossy(&[out.as_slice(), err].concat()).into_owned();
    let is_done = output.status.success() && out.trim_ascii().ends_with(b"done");
    assert!(is_done, "{server}: {said}");
}

#[test]
fn a_page_with_events_and_a_chat_works_in_chromium() {
    let _dog = testing::watchdog("a_page_with_events_and_a_chat_works_in_chromium");
    let Some(python) = browser() else { return };
    let both = serve(|| chat(Arc::default()));
    let others = both.onrush.iter().map(|(driver, at)| (&**driver, *at));
    for (server, address) in [("axum", both.axum)].into_iter().chain(others) {
        uses_the_page(&python, server, &format!("http://{address}/"));
    }
}

/// The browser has a connection of HTTP/2 when it opens the socket. Only the setting of the server
/// decides whether it opens it there.
#[test]
fn chromium_opens_its_websockets_over_http_2_where_that_is_offered() {
    let _dog = testing::watchdog("chromium_opens_its_websockets_over_http_2_where_that_is_offered");
    let Some(python) = browser() else { return };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _context = runtime.enter();
    for driver in drivers() {
        for offers in [true, false] {
            let tls = onrush::TlsConfig::from_pem(&certificate, &key).expect("valid");
            let server = onrush::Server::bind("127.0.0.1:0")
                .workers(2)
                .driver(driver)
                .tls(tls)
                .extended_connect(offers);
            let room = Arc::<Room>::default();
            let running = onrush_tower::serve(server, chat(room.clone()));
            let running = running.start().expect("started");
            let what = format!("{driver:?}, offered: {offers}");
            uses_the_page(&python, &what, &format!("https://{}/", running.address()));
            let joined = room.joined.lock().unwrap_or_else(PoisonError::into_inner);
            let expected = match offers {
                true => (Method::CONNECT, Version::HTTP_2),
                false => (Method::GET, Version::HTTP_11),
            };
            assert_eq!(*joined, vec![expected; 3], "{what}");
            running.handle().shutdown_now();
            running.wait().expect("no worker failed");
        }
    }
}
