//! Responses produced while they are sent: in both directions at the same time, from channels, and
//! what a client sees when they break off.

use crate::common::app::Pieces;
use crate::common::{
    calm, content, dechunk, drivers, get, pattern, read_some, serve, text, through_tls, watchdog,
};
use onrush::{
    Body, BodySender, Bytes, Limits, Request, Response, Router, Trailers, sim::Simulation,
};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Sends each piece back as it arrives, from a task of its own.
async fn echo(request: Request) -> Response {
    let (mut sender, body) = Body::channel(16 * 1024);
    let worker = request.worker().clone();
    let mut from = request.into_body();
    let pump = async move {
        while let Some(piece) = from.next().await {
            match piece {
                Ok(piece) => {
                    if sender.send(Bytes::copy_from_slice(&piece)).await.is_err() {
                        return;
                    }
                }
                Err(error) => return sender.abort(error),
            }
        }
        sender.finish();
    };
    worker.spawn(pump).detach();
    Response::with_body(body)
}

fn chunked_echo(body: &[u8]) -> Vec<u8> {
    let mut sent = b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(70_001) {
        write!(sent, "{:x}\r\n", chunk.len()).unwrap();
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\n\r\n");
    sent
}

#[test]
fn echo_both_ways_on_the_simulator() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let body = pattern(300_000);
    let sent = chunked_echo(&body);
    for seed in 0..40 {
        let mut sim = Simulation::new(seed, &echo, Limits::default());
        let client = sim.connect();
        let (mut rest, mut response) = (&sent[..], Vec::new());
        for _ in 0..100_000 {
            rest = &rest[client.send(&rest[..rest.len().min(9_000)]).unwrap()..];
            sim.run();
            response.extend(client.receive().unwrap());
            if rest.is_empty() && response.ends_with(b"\r\n0\r\n\r\n") {
                break;
            }
        }
        assert_eq!(dechunk(content(&response)), body, "seed {seed}");
        // The connection continues after it.
        sim.send(&client, &chunked_echo(b"again"));
        sim.advance(Duration::from_millis(1));
        assert_eq!(dechunk(content(&client.receive().unwrap())), b"again");
        assert_eq!(sim.worker().live_tasks(), 0);
    }
}

#[test]
fn echo_both_ways_on_both_drivers() {
    let _dog = watchdog("echo_both_ways_on_both_drivers");
    let body = pattern(8 << 20);
    let sent = chunked_echo(&body);
    for driver in drivers() {
        let server = serve(driver, echo);
        let mut stream = server.connect();
        let mut writer = stream.try_clone().unwrap();
        let sent = sent.clone();
        let sending = std::thread::spawn(move || writer.write_all(&sent));
        let (mut response, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        while !response.ends_with(b"\r\n0\r\n\r\n") {
            let n = read_some(&mut stream, &mut piece).unwrap();
            assert!(n > 0);
            response.extend_from_slice(&piece[..n]);
        }
        sending.join().unwrap().unwrap();
        assert!(dechunk(content(&response)) == body, "{driver:?}");
    }
}

/// A user task that reads the body gets an error when its connection is gone.
#[test]
fn echo_task_ends_when_its_client_disconnects() {
    let sent = chunked_echo(&pattern(100_000));
    for seed in 0..60 {
        let mut sim = Simulation::new(seed, &echo, Limits::default());
        let client = sim.connect();
        let mut rest = &sent[..sent.len() - 10 * seed as usize - 1];
        for _ in 0..=seed {
            rest = &rest[client.send(rest).unwrap()..];
            sim.run();
            if seed % 3 > 0 {
                client.receive().unwrap();
            }
        }
        client.reset();
        sim.run();
        let left = (sim.open_connections(), sim.worker().live_tasks());
        assert_eq!(left, (0, 0), "seed {seed}");
    }
}

/// A body that outlives its response must not read bytes of the next request.
#[test]
fn body_kept_too_long_does_not_read_the_next_request() {
    async fn keeper(mut request: Request) -> Response {
        if request.path() == "/keep" {
            let worker = request.worker().clone();
            let mut body = request.into_body();
            let reads = async move { while let Some(Ok(_)) = body.next().await {} };
            worker.spawn(reads).detach();
            return Response::text("kept");
        }
        let all = request.body().read_all(100).await.unwrap();
        Response::with_body(all)
    }
    for seed in 0..100 {
        let mut sim = Simulation::new(seed, &keeper, Limits::default());
        let client = sim.connect();
        let post = |path, body| {
            format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n{body}")
        };
        let sent = post("/keep", "stale") + &post("/read", "fresh");
        sim.send(&client, sent.as_bytes());
        sim.advance(Duration::from_millis(1));
        assert!(client.receive().unwrap().ends_with(b"fresh"), "seed {seed}");
        assert_eq!(sim.worker().live_tasks(), 0, "seed {seed}");
    }
}

/// Streams that break off in every possible way.
fn breaking() -> Router {
    struct Panics(Pieces, u32);
    impl futures_core::Stream for Panics {
        type Item = io::Result<Bytes>;
        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            assert!(self.1 > 0, "on purpose: in a stream");
            self.1 -= 1;
            std::pin::Pin::new(&mut self.0).poll_next(cx)
        }
    }
    async fn panics_at_once(_: Request) -> Response {
        Response::with_body(Body::stream(Panics(Pieces::new([]), 0), None))
    }
    async fn panics_later(_: Request) -> Response {
        let pieces = Pieces::new([&b"some"[..], b"more"]);
        Response::with_body(Body::stream(Panics(pieces, 4), None))
    }
    async fn fails(_: Request) -> Response {
        let pieces = Pieces::new([&b"some"[..], b"more"]);
        Response::with_body(Body::stream(pieces.then_fail(), None))
    }
    async fn aborts(request: Request) -> Response {
        let (mut sender, body) = Body::channel(100);
        let task = async move {
            sender.send("some").await.unwrap();
            sender.abort(io::Error::other("on purpose"));
        };
        request.worker().spawn(task).detach();
        Response::with_body(body)
    }
    async fn sender_panics(request: Request) -> Response {
        let (mut sender, body) = Body::channel(100);
        let task = async move {
            sender.send("some").await.unwrap();
            panic!("on purpose: with a sender");
        };
        request.worker().spawn(task).detach();
        Response::with_body(body)
    }
    /// The task ends early, as by `?`, or is cancelled.
    async fn sender_dropped(request: Request) -> Response {
        let (mut sender, body) = Body::channel(100);
        let task = async move { sender.send("some").await };
        drop(request.worker().spawn(task));
        Response::with_body(body)
    }
    async fn sender_dropped_later(request: Request) -> Response {
        let (mut sender, body) = Body::channel(100);
        let task = async move { sender.send("some").await };
        request
            .worker()
            .spawn(async move { drop(task.await) })
            .detach();
        Response::with_body(body)
    }
    /// No `async` block: what it owns is dropped after the panic.
    async fn own_future_panics(request: Request) -> Response {
        struct Panics(#[expect(dead_code, reason = "it is dropped")] BodySender);
        impl Future for Panics {
            type Output = ();
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                panic!("on purpose: in a future with a sender");
            }
        }
        let (mut sender, body) = Body::channel(100);
        sender.send("some").await.unwrap();
        request.worker().spawn(Panics(sender)).detach();
        Response::with_body(body)
    }
    async fn too_short(_: Request) -> Response {
        Response::with_body(Body::stream(Pieces::new([&b"some"[..]]), Some(5)))
    }
    async fn too_long(_: Request) -> Response {
        Response::with_body(Body::stream(Pieces::new([&b"some"[..]]), Some(3)))
    }
    async fn hello(_: Request) -> Response {
        Response::text("hello")
    }
    Router::new()
        .get("/panics-at-once", panics_at_once)
        .get("/panics-later", panics_later)
        .get("/fails", fails)
        .get("/aborts", aborts)
        .get("/sender-panics", sender_panics)
        .get("/sender-dropped", sender_dropped)
        .get("/sender-dropped-later", sender_dropped_later)
        .get("/own-future-panics", own_future_panics)
        .get("/too-short", too_short)
        .get("/too-long", too_long)
        .get("/hello", hello)
}

const BREAKING: [&str; 10] = [
    "/panics-at-once",
    "/panics-later",
    "/fails",
    "/aborts",
    "/sender-panics",
    "/sender-dropped",
    "/sender-dropped-later",
    "/own-future-panics",
    "/too-short",
    "/too-long",
];

#[test]
fn response_that_breaks_off_does_not_look_complete() {
    let _dog = watchdog("response_that_breaks_off_does_not_look_complete");
    for path in BREAKING {
        let mut sim = calm(&breaking(), Limits::default());
        let client = sim.connect();
        sim.send(&client, get(path).as_bytes());
        sim.advance(Duration::from_millis(10));
        assert!(client.receive().is_err(), "{path}");
        assert_eq!(
            (sim.open_connections(), sim.worker().live_tasks()),
            (0, 0),
            "{path}"
        );
        assert!(crate::common::is_served(&mut sim));
    }
    for driver in drivers() {
        let server = serve(driver, breaking());
        for path in BREAKING {
            let mut stream = server.connect();
            stream.write_all(get(path).as_bytes()).unwrap();
            let mut response = Vec::new();
            let ended = stream.read_to_end(&mut response);
            let kind = ended.expect_err(path).kind();
            assert_eq!(kind, io::ErrorKind::ConnectionReset, "{driver:?} {path}");
            assert!(!response.ends_with(b"0\r\n\r\n"), "{}", text(&response));
            assert!(server.get("/hello").ends_with(b"hello"));
        }
    }
}

/// A stream that is always ready: `item` makes one piece after the other.
struct Unpaused<F>(F, usize);

impl<F: FnMut(usize) -> Option<io::Result<Bytes>> + Unpin> futures_core::Stream for Unpaused<F> {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let index = self.1;
        self.1 += 1;
        std::task::Poll::Ready((self.0)(index))
    }
}

/// Small pieces of a producer that is always ready are sent after one cooperative budget (128).
#[test]
fn small_pieces_do_not_wait_for_a_full_buffer() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};
    let _dog = watchdog("small_pieces_do_not_wait_for_a_full_buffer");
    for driver in drivers() {
        let has_come = Arc::new(AtomicBool::new(false));
        let too_late = Arc::new(Mutex::new(false));
        let (seen, late) = (has_come.clone(), too_late.clone());
        let server = serve(driver, move |_: Request| {
            let (seen, late) = (seen.clone(), late.clone());
            let item = move |index: usize| {
                if index == 300 {
                    // All 300 pieces are less than a buffer. The first one must arrive before the
                    // last is made.
                    let until = Instant::now() + Duration::from_secs(10);
                    while !seen.load(Ordering::SeqCst) && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    *late.lock().unwrap() = !seen.load(Ordering::SeqCst);
                }
                (index < 400).then(|| Ok(Bytes::from_static(b"x")))
            };
            std::future::ready(Response::with_body(Body::stream(Unpaused(item, 0), None)))
        });
        let mut stream = server.connect();
        stream.write_all(get("/").as_bytes()).unwrap();
        let (mut response, mut piece) = (Vec::new(), [0; 4096]);
        while !response.ends_with(b"\r\n0\r\n\r\n") {
            let bytes = read_some(&mut stream, &mut piece).unwrap();
            assert!(bytes > 0, "{driver:?}");
            response.extend_from_slice(&piece[..bytes]);
            has_come.store(true, Ordering::SeqCst);
        }
        assert_eq!(dechunk(content(&response)), [b'x'; 400], "{driver:?}");
        assert!(!*too_late.lock().unwrap(), "{driver:?}");
    }
}

/// Pieces that precede any kind of failure reach the client, even if the producer never paused.
#[test]
fn pieces_before_an_error_arrive() {
    type Item = fn(usize) -> Option<io::Result<Bytes>>;
    let _dog = watchdog("pieces_before_an_error_arrive");
    let some = || Some(Ok(Bytes::from_static(b"some")));
    let cases: [(&str, Option<u64>, Item); 5] = [
        ("an error", None, |_| Some(Err(io::Error::other("test")))),
        ("an error, length declared", Some(8), |_| {
            Some(Err(io::Error::other("test")))
        }),
        ("a panic", None, |_| panic!("test")),
        ("more than declared", Some(7), |_| {
            Some(Ok(Bytes::from_static(b"more")))
        }),
        ("less than declared", Some(5), |_| None),
    ];
    for driver in drivers() {
        for (name, declared, second) in cases {
            let server = serve(driver, move |_: Request| async move {
                let item = move |index| match index {
                    0 => some(),
                    _ => second(index),
                };
                Response::with_body(Body::stream(Unpaused(item, 0), declared))
            });
            let mut stream = server.connect();
            stream.write_all(get("/").as_bytes()).unwrap();
            let mut response = Vec::new();
            let ended = stream.read_to_end(&mut response);
            let error = ended.expect_err(name).kind();
            assert_eq!(error, io::ErrorKind::ConnectionReset, "{driver:?} {name}");
            let end: &[u8] = match declared {
                None => b"\r\n\r\n4\r\nsome\r\n",
                Some(_) => b"\r\n\r\nsome",
            };
            assert!(
                response.ends_with(end),
                "{driver:?} {name}: {}",
                text(&response)
            );
        }
    }
}

/// An endless stream of empty pieces.
struct Empty;

impl futures_core::Stream for Empty {
    type Item = io::Result<Bytes>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(Some(Ok(Bytes::new())))
    }
}

/// Sends the head when the first bytes of the body are there.
async fn careful(request: Request) -> Response {
    let stream = match request.path() {
        "/whole" => Pieces::new([&b""[..], b"some", b"more"]),
        "/empty" => Pieces::new([]),
        "/fails" => Pieces::new([&b""[..]]).then_fail(),
        "/fails-later" => Pieces::new([&b"some"[..]]).then_fail(),
        "/endless" => {
            let mut response = Response::with_body(Body::stream(Empty, None));
            response.wait_for_body().await.expect("never");
            return response;
        }
        _ => return Response::text("in memory"),
    };
    let mut response = Response::with_body(Body::stream(stream, None));
    match response.wait_for_body().await {
        Ok(()) => response,
        Err(error) => Response::text(error.to_string()).with_status(502),
    }
}

#[test]
fn a_handler_waits_for_the_first_bytes_of_a_stream() {
    let _dog = watchdog("a_handler_waits_for_the_first_bytes_of_a_stream");
    let answered = |path: &str, response: &[u8]| match path {
        "/whole" => dechunk(content(response)) == b"somemore",
        "/empty" => dechunk(content(response)).is_empty(),
        "/fails" => {
            text(response).starts_with("HTTP/1.1 502 ") && content(response) == b"on purpose"
        }
        _ => text(response).starts_with("HTTP/1.1 200 ") && !response.ends_with(b"\r\n0\r\n\r\n"),
    };
    let paths = ["/whole", "/empty", "/fails", "/fails-later", "/memory"];
    for path in paths {
        for seed in 0..20 {
            let mut sim = Simulation::new(seed, &careful, Limits::default());
            let client = sim.connect();
            sim.send(&client, get(path).as_bytes());
            sim.advance(Duration::from_millis(1));
            let response = client.receive().unwrap_or_default();
            assert!(
                response.is_empty() || answered(path, &response),
                "{path} {seed}"
            );
            assert!(
                !response.is_empty() || path == "/fails-later",
                "{path} {seed}"
            );
        }
    }
    for driver in drivers() {
        let server = serve(driver, careful);
        let mut endless = server.connect();
        endless.write_all(get("/endless").as_bytes()).unwrap();
        for path in paths {
            let mut stream = server.connect();
            let closing = get(path).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
            stream.write_all(closing.as_bytes()).unwrap();
            let mut response = Vec::new();
            let received = stream.read_to_end(&mut response);
            if path == "/fails-later" {
                // A reset may discard what has arrived. What is left has no end.
                assert!(!response.ends_with(b"\r\n0\r\n\r\n"), "{driver:?}");
                continue;
            }
            assert!(received.is_ok(), "{driver:?} {path}: {received:?}");
            assert!(answered(path, &response), "{driver:?} {path}");
        }
    }
}

/// Trailers follow a stream without a length, and nothing else.
#[test]
fn trailers_follow_the_content_of_chunked_responses() {
    async fn stream(request: Request) -> Response {
        let (mut sender, body) = Body::channel(1024);
        let trailers = Trailers::new();
        let body = body.with_trailers(trailers.clone());
        let task = request.worker().spawn(async move {
            let _ = sender.send("content").await;
            trailers.append("X-Sum", "7").unwrap();
            trailers.append("x-sum", "8").unwrap();
            for name in [
                "Content-Length",
                "host",
                "Set-Cookie",
                "Content-Encoding",
                "Trailer",
            ] {
                assert!(trailers.append(name, "1").is_err(), "{name}");
            }
            assert!(trailers.append("X", "a\r\nb").is_err());
            sender.finish();
        });
        task.detach();
        Response::with_body(body)
    }
    async fn bytes(_: Request) -> Response {
        let trailers = Trailers::new();
        trailers.append("X-Sum", "7").unwrap();
        Response::with_body(Body::from("content").with_trailers(trailers))
    }
    let router = Router::new().get("/stream", stream).get("/bytes", bytes);
    let rows = [
        (
            "GET /stream HTTP/1.1",
            "7\r\ncontent\r\n0\r\nX-Sum: 7\r\nx-sum: 8\r\n\r\n",
        ),
        ("GET /stream HTTP/1.0", "\r\n\r\ncontent"),
        ("HEAD /stream HTTP/1.1", "\r\n\r\n"),
        ("GET /bytes HTTP/1.1", "\r\n\r\ncontent"),
    ];
    for (line, end) in rows {
        for seed in 0..20 {
            let mut sim = Simulation::new(seed, &router, Limits::default());
            let client = sim.connect();
            sim.send(
                &client,
                format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
            );
            sim.advance(Duration::from_millis(10));
            let received = text(&client.receive().unwrap());
            assert!(received.ends_with(end), "{line}: {received}");
        }
    }
}

/// A stream that has yielded all that its length announces may go on waiting.
#[test]
fn a_response_is_complete_with_its_last_byte() {
    struct Waits(Option<Bytes>);
    impl futures_core::Stream for Waits {
        type Item = io::Result<Bytes>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            match self.0.take() {
                Some(piece) => Poll::Ready(Some(Ok(piece))),
                None => Poll::Pending,
            }
        }
    }
    async fn waits(_: Request) -> Response {
        Response::with_body(Body::stream(Waits(Some("some".into())), Some(4)))
    }
    let mut sim = calm(&waits, Limits::default());
    let client = sim.connect();
    sim.send(&client, get("/").repeat(3).as_bytes());
    sim.run();
    let received = text(&client.receive().unwrap());
    assert_eq!(received.matches("some").count(), 3, "{received}");
}

/// Pieces of one byte take memory, too.
#[test]
fn a_channel_of_small_pieces_is_bounded() {
    let (mut sender, _body) = Body::channel(64 * 1024);
    let sent = (0..).take_while(|_| sender.try_send("x").is_ok()).count();
    assert_eq!(sent, 1024);
}
