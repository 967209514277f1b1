//! What an application gains: limits, time limits, a drain with a deadline, metrics, even load,
//! both drivers.

use crate::client::{Reply, ask, connect, exchange, get, receive_until, replies};
use crate::same::{drivers, request};
use axum::Router;
use axum::body::Bytes;
use axum::routing::{get as route, post};
use onrush::{DriverPreference, Limits, Metrics, Running, Server};
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;

/// An application on Onrush, with the runtime that its handlers use.
struct Served {
    running: Option<Running>,
    address: SocketAddr,
    _runtime: Runtime,
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

fn start(server: Server, app: Router) -> Served {
    let runtime = runtime();
    let _context = runtime.enter();
    let running = onrush_tower::serve(server, app).start().expect("started");
    let address = running.address().to_string().parse().expect("an address");
    let running = Some(running);
    Served {
        running,
        address,
        _runtime: runtime,
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.handle().shutdown_now();
        }
    }
}

fn server(driver: DriverPreference) -> Server {
    Server::bind("127.0.0.1:0").workers(2).driver(driver)
}

fn hello() -> Router {
    Router::new().route("/", route(|| async { "hello" }))
}

fn status(received: &[u8]) -> u16 {
    replies(received, &[])
        .first()
        .map_or(0, |reply: &Reply| reply.status)
}

#[test]
fn limits_apply_to_heads_bodies_and_time() {
    let _dog = testing::watchdog("limits_apply_to_heads_bodies_and_time");
    let limits = Limits::default()
        .body_bytes_max(1000)
        .head_bytes_max(4096)
        .head_timeout(Duration::from_millis(300))
        .body_timeout(Duration::from_millis(300));
    for driver in drivers() {
        let app = hello().route("/", post(|body: Bytes| async move { body }));
        let served = start(server(driver).limits(limits), app);
        assert_eq!(
            ask(served.address, &request("POST /", "", &[b'x'; 1000])).status,
            200
        );
        assert_eq!(
            ask(served.address, &request("POST /", "", &[b'x'; 1001])).status,
            413
        );
        let long = format!("X-Long: {}\r\n", "l".repeat(5000));
        assert_eq!(
            ask(served.address, &request("GET /", &long, b"")).status,
            431
        );
        assert_eq!(
            status(&exchange(served.address, b"GET / HTTP/1.1\r\nHost:")),
            408
        );
        let slow = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabc";
        // The extractor has read a part of it, so the response is its own.
        assert_eq!(status(&exchange(served.address, slow)), 400);
        assert_eq!(get(served.address, "/").text(), "hello");
    }
}

#[test]
fn connections_are_limited_and_idle_ones_make_room() {
    let _dog = testing::watchdog("connections_are_limited_and_idle_ones_make_room");
    for driver in drivers() {
        let served = start(server(driver).workers(1).connections_max(5), hello());
        let mut idle: Vec<_> = (0..5).map(|_| connect(served.address)).collect();
        for stream in &mut idle {
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .expect("sent");
            receive_until(stream, &mut Vec::new(), b"hello");
        }
        assert_eq!(get(served.address, "/").text(), "hello");
    }
}

#[test]
fn a_drain_finishes_requests_and_has_a_deadline() {
    let _dog = testing::watchdog("a_drain_finishes_requests_and_has_a_deadline");
    for driver in drivers() {
        let app = hello()
            .route(
                "/slow",
                route(|| async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    "finished"
                }),
            )
            .route("/endless", route(std::future::pending::<()>));
        let mut served = start(
            server(driver).drain_timeout(Duration::from_millis(900)),
            app,
        );
        let begin = |path: &str| {
            let mut stream = connect(served.address);
            stream
                .write_all(&request(&format!("GET {path}"), "", b""))
                .expect("sent");
            stream
        };
        let (mut slow, mut endless) = (begin("/slow"), begin("/endless"));
        // Both requests have been received when this one is answered on each worker.
        for _ in 0..4 {
            get(served.address, "/");
        }
        let running = served.running.take().expect("it runs");
        running.handle().shutdown();
        receive_until(&mut slow, &mut Vec::new(), b"finished");
        running.wait().expect("no worker failed");
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut endless, &mut rest);
        assert!(rest.is_empty());
    }
}

/// `serve(…).with_graceful_shutdown(…).await`, on the caller's listener.
#[test]
fn serving_ends_with_its_signal_or_its_future() {
    let _dog = testing::watchdog("serving_ends_with_its_signal_or_its_future");
    let runtime = runtime();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bound");
        let address = listener.local_addr().expect("an address");
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let serving = onrush_tower::serve(listener, hello())
            .with_graceful_shutdown(async { ended.await.expect("a signal") });
        let serving = tokio::spawn(serving.into_future());
        let ask = move || get(address, "/").text();
        assert_eq!(
            tokio::task::spawn_blocking(ask).await.expect("no panic"),
            "hello"
        );
        end.send(()).expect("it waits");
        serving.await.expect("no panic").expect("no worker failed");
        let refused = tokio::net::TcpStream::connect(address).await;
        assert!(refused.is_err(), "nobody listens any more");

        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(onrush_tower::serve(listener, hello()).into_future());
        while tokio::net::TcpStream::connect(address).await.is_err() {}
        serving.abort();
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    // Without a runtime there is no context, and an address that cannot be bound is an error.
    let failed = onrush_tower::serve(Server::bind("no address"), hello()).start();
    assert_eq!(
        failed.expect_err("an error").kind(),
        std::io::ErrorKind::InvalidInput
    );
}

/// A worker per core accepts, and connections are spread evenly.
#[test]
fn connections_are_spread_and_counted() {
    let _dog = testing::watchdog("connections_are_spread_and_counted");
    for driver in drivers() {
        let metrics = Metrics::new();
        let app = Router::new().route(
            "/",
            route(|| async { format!("{:?}", std::thread::current().name()) }),
        );
        let served = start(server(driver).metrics(&metrics), app);
        let mut names = std::collections::BTreeMap::<String, u32>::new();
        let mut open = Vec::new();
        for _ in 0..20 {
            let mut stream = connect(served.address);
            stream
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .expect("sent");
            let mut received = Vec::new();
            receive_until(&mut stream, &mut received, b"\")");
            let text = String::from_utf8_lossy(&received).into_owned();
            let name = text.rsplit("\r\n").next().unwrap_or_default().to_owned();
            *names.entry(name).or_default() += 1;
            open.push(stream);
        }
        assert_eq!(
            names.values().copied().collect::<Vec<_>>(),
            [10, 10],
            "{names:?}"
        );
        let text = metrics.render(onrush::metrics::Format::OpenMetrics);
        assert!(
            text.contains("onrush_connections_placed_total{worker=\"1\"} 10"),
            "{text}"
        );
    }
}

/// A panic of a handler is a response, and the connection goes on.
#[test]
fn a_panic_is_a_response() {
    let _dog = testing::watchdog("a_panic_is_a_response");
    async fn panics() -> &'static str {
        panic!("on purpose")
    }
    for driver in drivers() {
        let served = start(server(driver), hello().route("/panics", route(panics)));
        let sent = [
            b"GET /panics HTTP/1.1\r\nHost: a\r\n\r\n".as_slice(),
            &request("GET /", "", b""),
        ];
        let replies = replies(&exchange(served.address, &sent.concat()), &[]);
        let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
        assert_eq!(statuses, [500, 200]);
    }
}
