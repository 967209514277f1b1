//! One worker with clients and handlers that never have to wait: other clients are served in
//! between. If not, the watchdog ends the test.

use crate::common::app::Endless;
use crate::common::contract::contract;
use crate::common::{Served, calm, drivers, get, read_some, serve, statuses, watchdog};
use onrush::coroutine::{self, handler, mpsc};
use onrush::{Body, Bytes, Limits, Request, Response, Router};
use std::cell::Cell;
use std::io::{self, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

/// A stream of empty items that are always ready, so that nothing is ever sent.
struct Empty;

impl futures_core::Stream for Empty {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Ok(Bytes::new())))
    }
}

async fn discard(mut request: Request) -> Response {
    let _ = request.body().discard().await;
    Response::new(200)
}

async fn fill(mut request: Request) -> Response {
    let mut memory = Vec::with_capacity(128 * 1024);
    while let Ok(1..) = request.body().fill(&mut memory).await {
        memory.clear();
    }
    Response::new(200)
}

async fn pieces(mut request: Request) -> Response {
    while let Some(Ok(_)) = request.body().next().await {}
    Response::new(200)
}

async fn endless(_: Request) -> Response {
    Response::with_body(Body::stream(Endless { left: u64::MAX }, None))
}

async fn empty(_: Request) -> Response {
    Response::with_body(Body::stream(Empty, None))
}

async fn channel(request: Request) -> Response {
    let (mut sender, body) = Body::channel(usize::MAX);
    let fill = async move { while sender.send(Bytes::new()).await.is_ok() {} };
    request.worker().spawn(fill).detach();
    Response::with_body(body)
}

fn echo(
    request: &mut coroutine::RequestReader,
    response: &mut coroutine::ResponseWriter,
) -> io::Result<()> {
    io::copy(request, response)?;
    Ok(())
}

/// Two coroutines that exchange values and never have to wait for each other.
fn ping_pong(_: &mut coroutine::RequestReader, response: &mut coroutine::ResponseWriter) {
    let (sender, receiver) = mpsc::channel();
    let back = sender.clone();
    sender.send(()).unwrap();
    response.flush().unwrap();
    coroutine::spawn(move || while receiver.recv().is_ok_and(|()| back.send(()).is_ok()) {});
}

/// A time limit around a future that never waits.
async fn limited_in_time(request: Request) -> Response {
    let worker = request.worker().clone();
    let spinning = async {
        while {
            worker.sleep(Duration::ZERO).await;
            true
        } {}
    };
    match worker.timeout(Duration::from_millis(50), spinning).await {
        Some(()) => Response::new(500),
        None => Response::text("hello"),
    }
}

/// A coroutine that exhausts its budget and then panics, with a destructor that waits for a ready
/// future.
fn waits_in_a_destructor(_: &mut coroutine::RequestReader, _: &mut coroutine::ResponseWriter) {
    struct Waits(onrush::WorkerHandle);
    impl Drop for Waits {
        fn drop(&mut self) {
            coroutine::wait(self.0.sleep(Duration::ZERO));
        }
    }
    let worker = onrush::WorkerHandle::current().unwrap();
    let _waits = Waits(worker.clone());
    for _ in 0..128 {
        coroutine::wait(worker.sleep(Duration::ZERO));
    }
    panic!("on purpose");
}

fn router() -> Router {
    Router::new()
        .get("/hello", async |_: Request| Response::text("hello"))
        .post("/discard", discard)
        .post("/fill", fill)
        .post("/pieces", pieces)
        .post("/echo", handler(contract(), echo))
        .get("/endless", endless)
        .get("/empty", empty)
        .get("/channel", channel)
        .get("/ping-pong", handler(contract(), ping_pong))
        .get("/limited-in-time", limited_in_time)
        .get("/destructor", handler(contract(), waits_in_a_destructor))
}

/// Sends until `stop` is set or the server is gone.
fn upload(mut stream: TcpStream, path: &str, stop: &AtomicBool) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n",
        60 << 30
    );
    let _ = stream.write_all(head.as_bytes());
    let piece = vec![b'x'; 1 << 20];
    while !stop.load(Ordering::Relaxed) && stream.write_all(&piece).is_ok() {}
}

/// Reads until `stop` is set or the server is gone.
fn download(mut stream: TcpStream, path: &str, stop: &AtomicBool) {
    let _ = stream.write_all(get(path).as_bytes());
    let mut memory = vec![0; 1 << 20];
    while !stop.load(Ordering::Relaxed)
        && testing::read_some(&mut stream, &mut memory).is_ok_and(|n| n > 0)
    {}
}

/// Sends requests without end and reads the responses as fast as possible.
fn pipeline(mut stream: TcpStream, _: &str, stop: &AtomicBool) {
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let requests = get("/hello").repeat(10_000);
            while !stop.load(Ordering::Relaxed) && writer.write_all(requests.as_bytes()).is_ok() {}
            let _ = writer.shutdown(std::net::Shutdown::Both);
        });
        let mut memory = vec![0; 1 << 20];
        while testing::read_some(&mut stream, &mut memory).is_ok_and(|n| n > 0) {}
    });
}

/// Sends an upload and reads its response at the same time.
fn echoed(stream: TcpStream, path: &str, stop: &AtomicBool) {
    let mut reader = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut memory = vec![0; 1 << 20];
            while testing::read_some(&mut reader, &mut memory).is_ok_and(|n| n > 0) {}
        });
        upload(stream.try_clone().unwrap(), path, stop);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
}

type Background = fn(TcpStream, &str, &AtomicBool);

/// Checks that an established and a new connection are served repeatedly, beside four clients that
/// keep the worker busy.
fn are_served_beside(server: &Served, background: Background, path: &'static str) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut established = server.connect();
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let (stream, stop) = (server.connect(), stop.clone());
            thread::spawn(move || background(stream, path, &stop))
        })
        .collect();
    for _ in 0..20 {
        established.write_all(get("/hello").as_bytes()).unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"hello") {
            let mut byte = [0; 256];
            let n = read_some(&mut established, &mut byte).expect("a response in time");
            assert!(n > 0, "{path}: closed");
            response.extend_from_slice(&byte[..n]);
        }
        assert_eq!(statuses(&server.get("/hello")), [200], "{path}");
    }
    stop.store(true, Ordering::Relaxed);
    established.shutdown(std::net::Shutdown::Both).unwrap();
    server.running().handle().shutdown_now();
    busy.into_iter().for_each(|busy| busy.join().unwrap());
}

fn on_each_driver(background: Background, path: &'static str) {
    for driver in drivers() {
        are_served_beside(&serve(driver, router()), background, path);
    }
}

#[test]
fn beside_discarded_uploads() {
    let _dog = watchdog("beside_discarded_uploads");
    on_each_driver(upload, "/discard");
}

#[test]
fn beside_uploads_read_into_memory() {
    let _dog = watchdog("beside_uploads_read_into_memory");
    on_each_driver(upload, "/fill");
}

#[test]
fn beside_uploads_read_in_pieces() {
    let _dog = watchdog("beside_uploads_read_in_pieces");
    on_each_driver(upload, "/pieces");
}

#[test]
fn beside_coroutines_that_echo() {
    let _dog = watchdog("beside_coroutines_that_echo");
    on_each_driver(echoed, "/echo");
}

#[test]
fn beside_streams_that_are_always_ready() {
    let _dog = watchdog("beside_streams_that_are_always_ready");
    on_each_driver(download, "/endless");
}

#[test]
fn beside_streams_of_empty_items() {
    let _dog = watchdog("beside_streams_of_empty_items");
    on_each_driver(download, "/empty");
    on_each_driver(download, "/channel");
}

#[test]
fn beside_coroutines_that_never_wait_for_each_other() {
    let _dog = watchdog("beside_coroutines_that_never_wait_for_each_other");
    on_each_driver(download, "/ping-pong");
}

#[test]
fn beside_clients_that_pipeline_without_end() {
    let _dog = watchdog("beside_clients_that_pipeline_without_end");
    on_each_driver(pipeline, "");
}

#[test]
fn timeout_ends_a_future_that_exhausts_its_budget() {
    let _dog = watchdog("timeout_ends_a_future_that_exhausts_its_budget");
    for driver in drivers() {
        let server = serve(driver, router());
        assert_eq!(statuses(&server.get("/limited-in-time")), [200]);
    }
}

#[test]
fn exhausted_budget_does_not_affect_a_destructor() {
    let _dog = watchdog("exhausted_budget_does_not_affect_a_destructor");
    for driver in drivers() {
        let server = serve(driver, router());
        assert_eq!(statuses(&server.get("/destructor")), [500]);
        assert_eq!(statuses(&server.get("/hello")), [200]);
    }
}

/// A burst of pipelined requests is served in bounded parts: each event-loop iteration starts a
/// limited number, and later iterations start the rest.
#[test]
fn pipeline_is_served_in_parts_on_the_simulator() {
    const REQUESTS: usize = 1_000;
    thread_local! {
        static STARTED: Cell<usize> = const { Cell::new(0) };
    }
    let app = async |_: Request| {
        STARTED.set(STARTED.get() + 1);
        Response::new(204)
    };
    let mut sim = calm(&app, Limits::default());
    let client = sim.connect();
    sim.run();
    let requests = get("/").repeat(REQUESTS);
    assert_eq!(client.send(requests.as_bytes()).unwrap(), requests.len());
    let (mut polls, mut responses) = (0, Vec::new());
    while STARTED.get() < REQUESTS {
        let before = STARTED.get();
        sim.poll();
        polls += 1;
        let part = STARTED.get() - before;
        assert!(part <= 128, "{part} requests in one iteration");
        responses.extend(client.receive().unwrap());
        assert!(polls < 10_000, "the server makes progress");
    }
    sim.run();
    responses.extend(client.receive().unwrap());
    assert_eq!(statuses(&responses), vec![204; REQUESTS]);
    assert!(is_idle_again(&mut sim, &client));
}

/// The limit holds for all connections together: of forty that pipeline, an iteration serves the
/// first ones and a small part of each of the others.
#[test]
fn many_pipelines_are_served_in_parts_on_the_simulator() {
    thread_local! {
        static STARTED: Cell<usize> = const { Cell::new(0) };
    }
    let app = async |_: Request| {
        STARTED.set(STARTED.get() + 1);
        Response::new(204)
    };
    let mut sim = calm(&app, Limits::default());
    let clients: Vec<_> = (0..40).map(|_| sim.connect()).collect();
    sim.run();
    let requests = get("/").repeat(500);
    for client in &clients {
        assert_eq!(client.send(requests.as_bytes()).unwrap(), requests.len());
    }
    let mut polls = 0;
    while STARTED.get() < 40 * 500 {
        let before = STARTED.get();
        sim.poll();
        let part = STARTED.get() - before;
        assert!(part <= 2_000, "{part} requests in one iteration");
        clients.iter().for_each(|client| drop(client.receive()));
        polls += 1;
        assert!(polls < 10_000, "the server makes progress");
    }
}

/// Checks that the connection continues as before.
fn is_idle_again(
    sim: &mut onrush::sim::Simulation,
    client: &onrush_rt::driver::sim::Client,
) -> bool {
    sim.send(client, get("/").as_bytes());
    sim.run();
    client
        .receive()
        .is_ok_and(|response| statuses(&response) == [204])
}

/// One poll of a stream that is always ready does a bounded amount of work, on any worker.
#[test]
fn always_ready_streams_yield_on_the_simulator() {
    let _dog = watchdog("always_ready_streams_yield_on_the_simulator");
    for path in ["/empty", "/endless", "/channel"] {
        let mut sim = calm(&router(), Limits::default());
        let (busy, other) = (sim.connect(), sim.connect());
        busy.send(get(path).as_bytes()).unwrap();
        for _ in 0..100 {
            sim.poll();
            let _ = busy.receive();
        }
        other.send(get("/hello").as_bytes()).unwrap();
        let mut response = Vec::new();
        for _ in 0..4 {
            sim.poll();
            response.extend(other.receive().unwrap_or_default());
        }
        assert_eq!(statuses(&response), [200], "beside {path}");
    }
}

/// A task that continues to send after its client has disconnected, and handlers that continue to
/// read after the end of a body: errors and ends spend the budget, too.
#[test]
fn beside_loops_over_errors_and_ends() {
    let _dog = watchdog("beside_loops_over_errors_and_ends");
    async fn sends_on(request: Request) -> Response {
        let (mut sender, body) = Body::channel(100);
        let send = async move {
            loop {
                let _ = sender.send("data: x\n\n").await;
            }
        };
        request.worker().spawn(send).detach();
        Response::with_body(body)
    }
    async fn reads_on(mut request: Request) -> Response {
        loop {
            let _ = request.body().next().await;
        }
    }
    async fn fills_on(mut request: Request) -> Response {
        let mut memory = Vec::with_capacity(10);
        loop {
            memory.clear();
            let _ = request.body().fill(&mut memory).await;
        }
    }
    fn locks_on(_: &mut coroutine::RequestReader, response: &mut coroutine::ResponseWriter) {
        response.flush().unwrap();
        let mutex = coroutine::Mutex::new(0);
        loop {
            *mutex.lock().unwrap() += 1;
        }
    }
    fn waits_on(_: &mut coroutine::RequestReader, _: &mut coroutine::ResponseWriter) {
        loop {
            coroutine::wait(std::future::ready(()));
        }
    }
    async fn times_out(request: Request) -> Response {
        loop {
            let _ = request
                .worker()
                .timeout(Duration::from_secs(1), async {})
                .await;
        }
    }
    let routes = || {
        router()
            .get("/sends-on", sends_on)
            .get("/reads-on", reads_on)
            .get("/fills-on", fills_on)
            .get("/locks-on", handler(contract(), locks_on))
            .get("/waits-on", handler(contract(), waits_on))
            .get("/times-out", times_out)
    };
    for driver in drivers() {
        for path in [
            "/sends-on",
            "/reads-on",
            "/fills-on",
            "/locks-on",
            "/waits-on",
            "/times-out",
        ] {
            let server = serve(driver, routes());
            for _ in 0..2 {
                // It disconnects at once. Its tasks must notice that or do no harm.
                let mut client = server.connect();
                client.write_all(get(path).as_bytes()).unwrap();
                let mut byte = [0];
                let _ = client.set_read_timeout(Some(Duration::from_millis(100)));
                let _ = testing::read_some(&mut client, &mut byte);
                drop(client);
                assert_eq!(statuses(&server.get("/hello")), [200], "beside {path}");
            }
        }
    }
}
