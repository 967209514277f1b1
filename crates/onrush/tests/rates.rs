//! The minimum transfer rate (`Limits::rate_bytes_per_s_min`): a slow client is disconnected, in
//! both directions. A client that waits for the server is not.

use crate::common::app::{Endless, app};
use crate::common::{calm, drivers, get, plain, read_some, serve_with, statuses, text, watchdog};
use onrush::WorkerHandle;
use onrush::sim::Simulation;
use onrush::{Body, Bytes, Limits, Request, Response};
use std::future::Future;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn limits(rate_bytes_per_s_min: u32, rate_window_ms: u64) -> Limits {
    Limits::default()
        .rate_bytes_per_s_min(rate_bytes_per_s_min)
        .rate_window(Duration::from_millis(rate_window_ms))
        .body_timeout(Duration::from_secs(60))
        .write_timeout(Duration::from_secs(60))
        .idle_timeout(Duration::ZERO)
        .total_timeout(Duration::ZERO)
}

fn post(path: &str, bytes: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n")
}

/// A stream that yields a piece of ten bytes after each pause.
struct Rare {
    worker: WorkerHandle,
    pause: Duration,
    left: usize,
    sleep: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl futures_core::Stream for Rare {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.sleep.is_none() {
            let (worker, pause) = (self.worker.clone(), self.pause);
            self.sleep = Some(Box::pin(async move { worker.sleep(pause).await }));
        }
        if let Some(sleep) = &mut self.sleep {
            ready!(sleep.as_mut().poll(cx));
        }
        (self.sleep, self.left) = (None, self.left - 1);
        Poll::Ready(Some(Ok(Bytes::from_static(b"ten bytes\n"))))
    }
}

/// [`app`] and handlers that wait for `?MS` milliseconds.
async fn slow_app(mut request: Request) -> Response {
    let ms = request.query().and_then(|ms| ms.parse().ok()).unwrap_or(0);
    let (worker, pause) = (request.worker().clone(), Duration::from_millis(ms));
    match request.path() {
        "/endless" => Response::with_body(Body::stream(Endless { left: 1 << 40 }, None)),
        "/rare" => {
            let (left, sleep) = (8, None);
            let stream = Rare {
                worker,
                pause,
                left,
                sleep,
            };
            Response::with_body(Body::stream(stream, None))
        }
        "/slow-reader" => {
            let mut bytes = 0;
            let mut room = Vec::with_capacity(100);
            loop {
                worker.sleep(pause).await;
                room.clear();
                match request.body().fill(&mut room).await {
                    Ok(0) => return Response::text(format!("read {bytes}")),
                    Ok(n) => bytes += n,
                    Err(_) => return Response::text("read a part"),
                }
            }
        }
        _ => app(request).await,
    }
}

#[test]
fn slow_body_gives_408() {
    for path in ["/echo", "/fill", "/whole", "/discard", "/late-echo"] {
        for bytes in [1_000, 1_000_000] {
            let mut sim = calm(&slow_app, limits(100, 10_000));
            let client = sim.connect();
            sim.send(&client, post(path, bytes).as_bytes());
            for _ in 0..9 {
                sim.advance(Duration::from_secs(1));
                sim.send(&client, b"x");
            }
            assert_eq!(
                client.receive().unwrap(),
                b"",
                "{path}: the window has not ended"
            );
            // A reader that waits for many bytes gets fewer when the pause limit is over.
            for _ in 0..120 {
                sim.advance(Duration::from_secs(1));
                sim.send(&client, b"x");
            }
            let response = client.receive().unwrap();
            assert_eq!(statuses(&response), [408], "{path} {bytes}");
            assert_eq!(sim.counters().timed_out.get(), 1);
            sim.advance(Duration::from_secs(3));
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        }
    }
}

#[test]
fn body_at_the_minimum_rate_is_received() {
    for path in ["/echo", "/fill", "/whole", "/discard"] {
        let mut sim = calm(&slow_app, limits(100, 10_000));
        let client = sim.connect();
        sim.send(&client, post(path, 6_000).as_bytes());
        for _ in 0..60 {
            assert_eq!(client.receive().unwrap(), b"", "{path}");
            sim.advance(Duration::from_secs(1));
            sim.send(&client, &[b'x'; 100]);
        }
        assert_eq!(statuses(&client.receive().unwrap()), [200], "{path}");
    }
}

#[test]
fn slow_handler_does_not_count_as_a_slow_client() {
    let mut sim = calm(&slow_app, limits(100, 10_000));
    let client = sim.connect();
    sim.send(&client, post("/slow-reader?9000", 1_000).as_bytes());
    sim.send(&client, &[b'x'; 1_000]);
    sim.advance(Duration::from_secs(120));
    let response = client.receive().unwrap();
    assert_eq!(statuses(&response), [200]);
    assert!(response.ends_with(b"read 1000"), "{}", text(&response));
}

#[test]
fn each_request_has_its_own_rate() {
    let mut sim = calm(&slow_app, limits(100, 10_000));
    let client = sim.connect();
    for _ in 0..5 {
        sim.send(&client, post("/echo", 4).as_bytes());
        sim.advance(Duration::from_secs(9));
        sim.send(&client, b"late");
        sim.run();
        assert!(text(&client.receive().unwrap()).ends_with("late"));
    }
}

#[test]
fn rate_of_zero_means_no_limit() {
    let mut sim = calm(&slow_app, limits(0, 10_000));
    let client = sim.connect();
    sim.send(&client, post("/echo", 60).as_bytes());
    for _ in 0..60 {
        assert_eq!(client.receive().unwrap(), b"");
        sim.advance(Duration::from_secs(30));
        sim.send(&client, b"x");
    }
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
}

#[test]
fn rest_of_an_unread_body_needs_the_minimum_rate() {
    let mut sim = calm(&slow_app, limits(100, 10_000));
    let client = sim.connect();
    sim.send(&client, post("/early", 1_000).as_bytes());
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    for _ in 0..9 {
        sim.advance(Duration::from_secs(1));
        sim.send(&client, b"x");
    }
    assert!(!client.at_end());
    for _ in 0..5 {
        sim.advance(Duration::from_secs(1));
        sim.send(&client, b"x");
    }
    assert_eq!(sim.open_connections(), 0);
}

/// 4 KiB per second are too few, and five times as many are enough.
#[test]
fn client_that_reads_too_slowly_is_reset() {
    let many = get("/hello").repeat(1_000);
    for (requests, pipe_bytes, window_ms) in [
        (get("/big"), 4096, 5_000),
        (get("/late-big"), 4096, 5_000),
        (get("/endless"), 4096, 5_000),
        // As many requests as the network holds, whose responses slightly exceed what it holds.
        (many, 1024, 2_000),
    ] {
        for pause_ms in [1_000, 200] {
            let network = plain(pipe_bytes);
            let limits = limits(pipe_bytes as u32 * 2, window_ms);
            let mut sim = Simulation::builder(1)
                .limits(limits)
                .network(network)
                .start(&slow_app);
            let client = sim.connect();
            let mut sent = sim.send(&client, requests.as_bytes());
            let mut cut_ms = None;
            for now_ms in (0..12_000).step_by(pause_ms) {
                sim.advance(Duration::from_millis(pause_ms as u64));
                // A server that waits for its client does not read ahead.
                sent += client.send(&requests.as_bytes()[sent..]).unwrap_or(0);
                if client.receive().is_err() {
                    cut_ms = Some(now_ms);
                    break;
                }
                sim.run();
            }
            if pause_ms == 200 {
                assert_eq!(cut_ms, None);
                continue;
            }
            let cut_ms = cut_ms.unwrap_or_else(|| panic!("{pipe_bytes}: not reset"));
            assert!(
                cut_ms + 2_000 >= window_ms as usize,
                "reset after {cut_ms} ms"
            );
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
            assert_eq!(sim.counters().timed_out.get(), 1);
        }
    }
}

#[test]
fn stream_with_nothing_to_send_is_not_slow() {
    let mut sim = calm(&slow_app, limits(1_000_000, 5_000));
    let client = sim.connect();
    sim.send(&client, get("/rare?20000").as_bytes());
    sim.advance(Duration::from_secs(200));
    let response = text(&client.receive().unwrap());
    assert_eq!(response.matches("ten bytes").count(), 8, "{response}");
}

/// Reads until the connection ends, with a pause before each piece. Returns the number of bytes.
fn read_slowly(stream: &mut TcpStream, pause: Duration) -> (usize, io::Result<()>) {
    let (mut bytes, mut room) = (0, vec![0; 64 * 1024]);
    let end = Instant::now() + Duration::from_secs(50);
    while Instant::now() < end {
        sleep(pause);
        match read_some(stream, &mut room) {
            Ok(0) => return (bytes, Ok(())),
            Ok(n) => bytes += n,
            Err(error) => return (bytes, Err(error)),
        }
    }
    panic!("{bytes} bytes, and the response continues");
}

#[test]
fn both_drivers_end_slow_transfers() {
    let _watchdog = watchdog("both_drivers_end_slow_transfers");
    for driver in drivers() {
        // A loaded machine makes this client even slower, so it is reset in any case.
        let fast = serve_with(driver, slow_app, |server| {
            server.limits(limits(100_000_000, 500))
        });
        let mut stream = fast.connect();
        stream.write_all(post("/echo", 100_000).as_bytes()).unwrap();
        let mut trickle = stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(50);
            while Instant::now() < end && trickle.write_all(b"xx").is_ok() {
                sleep(Duration::from_millis(20));
            }
        });
        let mut response = vec![0; 1024];
        let n = read_some(&mut stream, &mut response).expect("a response");
        assert_eq!(statuses(&response[..n]), [408], "{driver:?}");
        stream.shutdown(Shutdown::Both).unwrap();
        sender.join().unwrap();
        let mut stream = fast.connect();
        stream.write_all(get("/endless").as_bytes()).unwrap();
        let (bytes, _) = read_slowly(&mut stream, Duration::from_millis(20));
        assert!(bytes > 0, "{driver:?}: a response arrived first");
    }
}

#[test]
fn both_drivers_wait_for_slow_handlers_and_streams() {
    let _watchdog = watchdog("both_drivers_wait_for_slow_handlers_and_streams");
    for driver in drivers() {
        let server = serve_with(driver, slow_app, |server| {
            server.limits(limits(1_000_000, 200))
        });
        let mut stream = server.connect();
        let request = post("/slow-reader?100", 1_000) + &"x".repeat(1_000);
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = vec![0; 1024];
        let n = read_some(&mut stream, &mut response).unwrap();
        assert_eq!(statuses(&response[..n]), [200], "{driver:?}");
        let response = server.get("/rare?100");
        assert_eq!(
            text(&response).matches("ten bytes").count(),
            8,
            "{driver:?}"
        );
    }
}
