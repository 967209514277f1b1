//! Applications in the style of the examples of axum, written for these tests. Each is an unchanged
//! `Router`: `same` runs it on both servers.

use axum::body::{Body, Bytes};
use axum::extract::{
    ConnectInfo, DefaultBodyLimit, Form, MatchedPath, Multipart, OriginalUri, Path, Query, Request,
    State,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::services::ServeDir;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

/// What extractors see of a request.
async fn echo_head(
    method: Method,
    version: Version,
    uri: Uri,
    original: OriginalUri,
    matched: Option<MatchedPath>,
    headers: HeaderMap,
) -> String {
    let matched = matched.as_ref().map(MatchedPath::as_str);
    let mut text = format!("{method} {version:?} {uri} {} {matched:?}\n", original.0);
    // Of each name the values are in order; hyper and Onrush may order names differently.
    let mut lines: Vec<String> = Vec::new();
    for name in headers.keys() {
        let values: Vec<_> = headers.get_all(name).iter().collect();
        lines.push(format!("{name}: {values:?}\n"));
    }
    lines.sort();
    text.extend(lines);
    text
}

/// Paths, queries, headers, nested routers and fallbacks.
pub(crate) fn basics() -> Router {
    let nested = Router::new()
        .route(
            "/{id}",
            get(|Path(id): Path<u32>| async move { format!("user {id}") }),
        )
        .route("/{id}/head", any(echo_head))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such user") });
    Router::new()
        .route("/", get(|| async { "Hello, World!" }))
        .route("/html", get(|| async { Html("<p>hello</p>") }))
        .route("/head", any(echo_head))
        .route(
            "/files/{*path}",
            get(|Path(path): Path<String>| async move { path }),
        )
        .route(
            "/query",
            get(
                |Query(query): Query<BTreeMap<String, String>>| async move { format!("{query:?}") },
            ),
        )
        .route("/redirect", get(|| async { Redirect::to("/html?a=%20") }))
        .route(
            "/empty",
            get(|| async {}).post(|| async { StatusCode::NO_CONTENT }),
        )
        .route(
            "/status/{code}",
            any(|Path(code): Path<u16>| async move {
                StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST)
            }),
        )
        .route(
            "/headers",
            get(|| async {
                let mut headers = HeaderMap::new();
                headers.append(header::SET_COOKIE, HeaderValue::from_static("a=1"));
                headers.append(header::SET_COOKIE, HeaderValue::from_static("b=2"));
                headers.insert(
                    "x-latin",
                    HeaderValue::from_bytes(b"caf\xe9").expect("visible"),
                );
                headers.insert("x-empty", HeaderValue::from_static(""));
                (headers, "with headers")
            }),
        )
        .route("/bytes", post(|body: Bytes| async move { body }))
        .route(
            "/text",
            post(|body: String| async move { body.to_uppercase() }),
        )
        .nest("/users", nested)
}

#[derive(Debug, Deserialize)]
struct Input {
    name: String,
    #[serde(default)]
    age: u8,
}

/// Forms.
pub(crate) fn form() -> Router {
    let show = |Form(input): Form<Input>| async move { format!("{} is {}", input.name, input.age) };
    Router::new().route("/", get(show).post(show))
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Todo {
    text: String,
    #[serde(default)]
    done: bool,
}

#[derive(Clone, Default)]
struct Todos {
    all: Arc<RwLock<BTreeMap<u64, Todo>>>,
    next: Arc<AtomicU64>,
}

/// JSON, a shared state, and errors of handlers.
pub(crate) fn json() -> Router {
    async fn list(State(todos): State<Todos>) -> Json<Vec<(u64, Todo)>> {
        let all = todos.all.read().expect("not poisoned");
        Json(all.iter().map(|(id, todo)| (*id, todo.clone())).collect())
    }
    async fn create(
        State(todos): State<Todos>,
        Json(todo): Json<Todo>,
    ) -> (StatusCode, Json<Todo>) {
        let id = todos.next.fetch_add(1, Ordering::Relaxed);
        todos
            .all
            .write()
            .expect("not poisoned")
            .insert(id, todo.clone());
        (StatusCode::CREATED, Json(todo))
    }
    async fn read(
        State(todos): State<Todos>,
        Path(id): Path<u64>,
    ) -> Result<Json<Todo>, StatusCode> {
        let all = todos.all.read().expect("not poisoned");
        all.get(&id).cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
    }
    async fn remove(State(todos): State<Todos>, Path(id): Path<u64>) -> StatusCode {
        match todos.all.write().expect("not poisoned").remove(&id) {
            Some(_) => StatusCode::NO_CONTENT,
            None => StatusCode::NOT_FOUND,
        }
    }
    Router::new()
        .route("/todos", get(list).post(create))
        .route("/todos/{id}", get(read).delete(remove))
        .with_state(Todos::default())
}

/// Events of a server, made with timers of tokio.
pub(crate) fn events() -> Router {
    async fn three() -> impl IntoResponse {
        let events = stream::iter(1..=3).then(|number| async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok::<_, Infallible>(Event::default().id(number.to_string()).data("tick"))
        });
        Sse::new(events).keep_alive(KeepAlive::default())
    }
    Router::new().route("/", get(three))
}

/// Files in a form of several parts.
pub(crate) fn multipart() -> Router {
    async fn upload(mut form: Multipart) -> Result<String, Response> {
        let mut text = String::new();
        while let Some(field) = form
            .next_field()
            .await
            .map_err(IntoResponse::into_response)?
        {
            let (name, file) = (
                field.name().map(str::to_owned),
                field.file_name().map(str::to_owned),
            );
            let data = field.bytes().await.map_err(IntoResponse::into_response)?;
            text.push_str(&format!("{name:?} {file:?} {}\n", data.len()));
        }
        Ok(text)
    }
    Router::new()
        .route("/", post(upload))
        .layer(DefaultBodyLimit::max(256 * 1024))
}

/// Streams in both directions, with and without a length, trailers, and failures.
pub(crate) fn streams() -> Router {
    async fn echo(request: Request) -> Body {
        Body::from_stream(request.into_body().into_data_stream())
    }
    async fn trailers(request: Request) -> Response {
        use http_body_util::{BodyExt, StreamBody};
        let whole = request.into_body().collect().await;
        let whole = whole
            .map_err(|_| StatusCode::BAD_REQUEST)
            .expect("a whole body");
        let received = whole.trailers().cloned().unwrap_or_default();
        let mut fields = HeaderMap::new();
        fields.insert("x-received", HeaderValue::from(received.len()));
        let frames = [
            Ok::<_, Infallible>(http_body::Frame::data(whole.to_bytes())),
            Ok(http_body::Frame::trailers(fields)),
        ];
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        ([(header::TRAILER, "x-received")], body).into_response()
    }
    async fn count(Path(pieces): Path<usize>) -> Body {
        let pieces = stream::iter(0..pieces).then(|number| async move {
            if number % 7 == 3 {
                tokio::task::yield_now().await;
            }
            Ok::<_, io::Error>(Bytes::from(format!("{number}\n")))
        });
        Body::from_stream(pieces)
    }
    async fn sized() -> impl IntoResponse {
        let pieces = ["first ", "second"].map(|piece| Ok::<_, io::Error>(Bytes::from(piece)));
        (
            [(header::CONTENT_LENGTH, "12")],
            Body::from_stream(stream::iter(pieces)),
        )
    }
    Router::new()
        .route("/echo", post(echo))
        .route("/trailers", post(trailers))
        .route("/count/{pieces}", get(count))
        .route("/sized", get(sized))
}

/// A folder.
pub(crate) fn files(folder: PathBuf) -> Router {
    Router::new().fallback_service(ServeDir::new(folder))
}

/// Layers of tower-http, a middleware of its own, extensions, panics and slow handlers.
pub(crate) fn layers() -> Router {
    async fn stamp(mut request: Request, next: Next) -> Response {
        request.extensions_mut().insert("stamped");
        let mut response = next.run(request).await;
        response
            .headers_mut()
            .insert("x-stamp", HeaderValue::from_static("yes"));
        response
    }
    async fn panics() -> &'static str {
        panic!("as a test")
    }
    async fn slow() -> &'static str {
        tokio::time::sleep(Duration::from_secs(600)).await;
        "too late"
    }
    Router::new()
        .route(
            "/",
            get(|Extension(stamp): Extension<&'static str>| async move { stamp }),
        )
        .route("/long", get(|| async { "long text, ".repeat(1000) }))
        .route("/panic", get(panics))
        .route("/slow", get(slow))
        .route(
            "/upload",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .layer(middleware::from_fn(stamp))
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            Duration::from_millis(50),
        ))
        .layer(RequestBodyLimitLayer::new(10_000))
        .layer(CompressionLayer::new())
        .layer(CorsLayer::permissive())
        .layer(SetResponseHeaderLayer::overriding(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ))
        .layer(TraceLayer::new_for_http())
}

/// What applications do with tokio: tasks, blocking calls, channels, files.
pub(crate) fn runtime() -> Router {
    async fn spawned(body: Body) -> String {
        let task = tokio::spawn(async move {
            let body = axum::body::to_bytes(body, 1 << 20).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
            body.map(|body| body.len())
        });
        match task.await {
            Ok(Ok(length)) => format!("{length} bytes in a task"),
            other => format!("{other:?}"),
        }
    }
    async fn blocking() -> String {
        let sum = tokio::task::spawn_blocking(|| (0..1000_u64).sum::<u64>());
        sum.await.expect("no panic").to_string()
    }
    async fn timeout() -> &'static str {
        let pending = std::future::pending::<()>();
        match tokio::time::timeout(Duration::from_millis(5), pending).await {
            Ok(()) => "ended",
            Err(_) => "timed out",
        }
    }
    async fn together() -> String {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        for number in 0..5 {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(number).await });
        }
        drop(sender);
        let mut sum = 0;
        while let Some(number) = receiver.recv().await {
            sum += number;
        }
        tokio::task::yield_now().await;
        sum.to_string()
    }
    async fn file() -> Result<String, StatusCode> {
        let read = tokio::fs::read_to_string("Cargo.toml").await;
        let text = read.map_err(|_| StatusCode::NOT_FOUND)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }
    Router::new()
        .route("/spawned", post(spawned))
        .route("/blocking", get(blocking))
        .route("/timeout", get(timeout))
        .route("/together", get(together))
        .route("/file", get(file))
}

/// A proxy in front of `back`, with the client of hyper.
pub(crate) fn proxy(back: SocketAddr) -> Router {
    use hyper_util::client::legacy::{Client, connect::HttpConnector};
    use hyper_util::rt::TokioExecutor;
    type Proxy = Client<HttpConnector, Body>;

    async fn forward(
        State((client, back)): State<(Proxy, SocketAddr)>,
        mut request: Request,
    ) -> Result<Response, StatusCode> {
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let uri = format!("http://{back}{path}");
        *request.uri_mut() = Uri::try_from(uri).map_err(|_| StatusCode::BAD_REQUEST)?;
        *request.version_mut() = Version::HTTP_11;
        let response = client.request(request).await;
        response
            .map(IntoResponse::into_response)
            .map_err(|_| StatusCode::BAD_GATEWAY)
    }
    let client: Proxy = Client::builder(TokioExecutor::new()).build_http();
    Router::new().fallback(forward).with_state((client, back))
}

/// Who the client is.
pub(crate) fn client_address() -> Router {
    let show = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.ip().to_string() };
    Router::new().route("/", get(show))
}

/// A chat: each message reaches everybody who is connected. And plain upgrades.
pub(crate) fn chat() -> Router {
    use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
    use tokio::sync::broadcast;
    type Room = broadcast::Sender<String>;

    async fn join(socket: WebSocketUpgrade, State(room): State<Room>) -> Response {
        let socket = socket.protocols(["chat", "other"]);
        socket
            .max_message_size(1 << 20)
            .on_upgrade(|socket| talk(socket, room))
    }
    async fn talk(mut socket: WebSocket, room: Room) {
        let mut messages = room.subscribe();
        if socket.send(Message::from("welcome")).await.is_err() {
            return;
        }
        loop {
            tokio::select! {
                said = socket.recv() => match said {
                    Some(Ok(Message::Text(text))) if text.as_str() == "leave" => break,
                    Some(Ok(Message::Text(text))) => {
                        let _ = room.send(text.to_string());
                    }
                    Some(Ok(Message::Binary(bytes))) => {
                        let _ = socket.send(Message::Binary(bytes)).await;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return,
                },
                Ok(text) = messages.recv() => {
                    if socket.send(Message::from(text)).await.is_err() {
                        return;
                    }
                }
            }
        }
        let _ = socket.send(Message::Close(None)).await;
    }
    /// `hyper::upgrade::on`, without WebSocket.
    async fn repeat(mut request: Request) -> Response {
        use hyper_util::rt::TokioIo;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let on_upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = on_upgrade.await else {
                return;
            };
            let mut stream = TokioIo::new(upgraded);
            let mut piece = vec![0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut piece).await {
                if stream.write_all(&piece[..n]).await.is_err() {
                    return;
                }
            }
            let _ = stream.write_all(b"bye").await;
        });
        let upgrade = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "repeat")];
        (StatusCode::SWITCHING_PROTOCOLS, upgrade).into_response()
    }
    async fn refuse(mut request: Request) -> (StatusCode, &'static str) {
        let on_upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { assert!(on_upgrade.await.is_err()) });
        (StatusCode::FORBIDDEN, "not you")
    }
    Router::new()
        .route("/", any(join))
        .route("/repeat", get(repeat))
        .route("/refuse", get(refuse))
        .with_state(broadcast::channel(100).0)
}

/// Sends back each message of a WebSocket.
pub(crate) fn echo() -> Router {
    use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};

    async fn repeat(mut socket: WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            let is_content = matches!(message, Message::Text(_) | Message::Binary(_));
            if is_content && socket.send(message).await.is_err() {
                return;
            }
        }
    }
    let join = |socket: WebSocketUpgrade| async { socket.on_upgrade(repeat) };
    Router::new().route("/", any(join))
}
