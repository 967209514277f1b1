//! The end of a server: requests in flight get responses, and no client is left waiting.

use crate::common::gate::until;
use crate::common::{drivers, get, read_some, serve, serve_with, text, watchdog};
use onrush::{Limits, Request, Response, Server, sim::Simulation};
use onrush_rt::net::ListenMode;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn shutdown_now_ends_at_once() {
    let _dog = watchdog("shutdown_now_ends_at_once");
    async fn forever(_: Request) -> Response {
        std::future::pending().await
    }
    for driver in drivers() {
        let server = serve_with(driver, forever, |server| server.workers(2));
        let mut streams: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
        for stream in &mut streams {
            stream.write_all(get("/").as_bytes()).unwrap();
        }
        let handle = server.running().handle();
        assert!(!handle.is_ending());
        handle.shutdown_now();
        assert!(handle.is_ending());
        server.wait().unwrap();
        for mut stream in streams {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert_eq!(rest, b"");
        }
    }
}

#[test]
fn drain_timeout_ends_remaining_requests() {
    let _dog = watchdog("drain_timeout_ends_remaining_requests");
    async fn forever(_: Request) -> Response {
        std::future::pending().await
    }
    for driver in drivers() {
        let limit = Duration::from_millis(50);
        let server = serve_with(driver, forever, |server| server.drain_timeout(limit));
        let mut stream = server.connect();
        stream.write_all(get("/").as_bytes()).unwrap();
        server.running().handle().shutdown();
        server.wait().unwrap();
    }
}

/// Clients send requests repeatedly while the server shuts down. Every request that was sent gets a
/// response, and every new connection is served or refused.
#[test]
fn drain_loses_no_request() {
    let _dog = watchdog("drain_loses_no_request");
    async fn sometimes_slow(request: Request) -> Response {
        if request.path() == "/slow" {
            request.worker().sleep(Duration::from_millis(30)).await;
        }
        Response::text("hello")
    }
    for (driver, listen_mode) in drivers()
        .into_iter()
        .flat_map(|d| [(d, ListenMode::PerWorker), (d, ListenMode::Shared)])
    {
        let configure = |server: Server| server.workers(2).listen_mode(listen_mode);
        let server = serve_with(driver, sometimes_slow, configure);
        let shutting_down = Arc::new(AtomicBool::new(false));
        let lost = Arc::new(Mutex::new(Vec::new()));
        let completed = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..16)
            .map(|index| {
                let (mut stream, shutting_down) = (server.connect(), shutting_down.clone());
                let (lost, completed) = (lost.clone(), completed.clone());
                std::thread::spawn(move || {
                    let path = ["/", "/slow"][index % 2];
                    for served in 0.. {
                        // A request sent before the shutdown is in flight.
                        let before = !shutting_down.load(Ordering::SeqCst);
                        let sent = stream.write_all(get(path).as_bytes());
                        let mut response = [0; 1024];
                        let read = read_some(&mut stream, &mut response);
                        let n = read.as_ref().map_or(0, |&n| n);
                        if !response[..n].ends_with(b"hello") {
                            if before {
                                lost.lock().unwrap().push((served, sent, read));
                            }
                            return;
                        }
                        completed.fetch_add(1, Ordering::Relaxed);
                        if text(&response[..n]).contains("Connection: close") {
                            return;
                        }
                    }
                    unreachable!()
                })
            })
            .collect();
        until(|| completed.load(Ordering::Relaxed) > 64);
        shutting_down.store(true, Ordering::SeqCst);
        server.running().handle().shutdown();
        clients.into_iter().for_each(|c| c.join().unwrap());
        let lost = lost.lock().unwrap();
        assert!(lost.is_empty(), "{driver:?} {listen_mode:?}: {lost:?}");
        server.wait().unwrap();
    }
}

/// Clients that reconnect after each response must not keep a busy server from ending.
#[test]
fn reconnecting_clients_do_not_delay_a_drain() {
    let _dog = watchdog("reconnecting_clients_do_not_delay_a_drain");
    async fn busy(_: Request) -> Response {
        std::thread::sleep(Duration::from_millis(2));
        Response::text("hello")
    }
    for driver in drivers() {
        let limit = Duration::from_millis(200);
        let server = serve_with(driver, busy, |server| {
            server.workers(1).drain_timeout(limit)
        });
        let address = server.address();
        let completed = Arc::new(AtomicUsize::new(0));
        let counter = completed.clone();
        let client = move || {
            while let Ok(mut stream) = TcpStream::connect(address) {
                let last = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
                let mut response = Vec::new();
                let asked = stream.write_all(last);
                let read = asked.and_then(|()| stream.read_to_end(&mut response));
                if read.is_err() || response.is_empty() {
                    break;
                }
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        let threads = (0..8).map(|_| std::thread::spawn(client.clone()));
        let clients: Vec<_> = threads.collect();
        until(|| completed.load(Ordering::Relaxed) > 8);
        server.running().handle().shutdown();
        server.wait().unwrap();
        clients.into_iter().for_each(|c| c.join().unwrap());
    }
}

/// Connections that the kernel has accepted and the server has not, at the start of the shutdown.
#[test]
fn drain_serves_connections_in_the_accept_queue() {
    let _dog = watchdog("drain_serves_connections_in_the_accept_queue");
    static BLOCK: AtomicBool = AtomicBool::new(false);
    async fn blocking(request: Request) -> Response {
        // A handler must not block. This one does, so that connections arrive meanwhile.
        while request.path() == "/block" && BLOCK.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Response::text("hello")
    }
    for driver in drivers() {
        BLOCK.store(true, Ordering::Release);
        let server = serve(driver, blocking);
        let mut first = server.connect();
        first.write_all(get("/block").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let mut queued: Vec<TcpStream> = (0..50).map(|_| server.connect()).collect();
        for stream in &mut queued {
            stream.write_all(get("/").as_bytes()).unwrap();
        }
        let address = server.address();
        server.running().handle().shutdown();
        BLOCK.store(false, Ordering::Release);
        for mut stream in queued.into_iter().chain([first]) {
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            assert!(
                response.ends_with(b"hello"),
                "{driver:?}: {}",
                text(&response)
            );
        }
        server.wait().unwrap();
        assert!(TcpStream::connect(address).is_err());
    }
}

/// While the last requests are in progress, new connections are refused at once.
#[test]
fn draining_server_refuses_new_connections() {
    let _dog = watchdog("draining_server_refuses_new_connections");
    static MAY_END: AtomicBool = AtomicBool::new(false);
    async fn waits(request: Request) -> Response {
        while request.path() == "/" && !MAY_END.load(Ordering::Acquire) {
            request.worker().sleep(Duration::from_millis(1)).await;
        }
        Response::text("hello")
    }
    for driver in drivers() {
        MAY_END.store(false, Ordering::Release);
        let server = serve_with(driver, waits, |server| server.workers(2));
        let mut last = server.connect();
        last.write_all(get("/").as_bytes()).unwrap();
        let mut idle = server.connect();
        idle.write_all(get("/now").as_bytes()).unwrap();
        assert!(read_some(&mut idle, &mut [0; 1000]).unwrap() > 0);
        let address = server.address();
        std::thread::sleep(Duration::from_millis(20));
        server.running().handle().shutdown();
        while TcpStream::connect(address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // An idle connection is closed without a response.
        assert_eq!(read_some(&mut idle, &mut [0; 10]).unwrap(), 0);
        MAY_END.store(true, Ordering::Release);
        let mut response = Vec::new();
        last.read_to_end(&mut response).unwrap();
        assert!(response.ends_with(b"hello"));
        drop((last, idle)); // The server lingers only while they are open.
        server.wait().unwrap();
    }
}

/// Requests sent before the drain, behind one that is in progress. `large`: they exceed what is
/// received ahead, so a part stays in the kernel's buffers.
fn pipeline(large: bool) -> Vec<u8> {
    let field = match large {
        true => format!("X-Filling: {}\r\n", "x".repeat(4000)),
        false => String::new(),
    };
    let request = |i| match i % 3 {
        0 => format!("GET /first HTTP/1.1\r\nHost: t\r\n{field}\r\n"),
        1 => format!("GET /now HTTP/1.1\r\nHost: t\r\n{field}\r\n"),
        _ => format!("PUT /now HTTP/1.1\r\nHost: t\r\n{field}Content-Length: 4\r\n\r\nbody"),
    };
    (0..40).map(request).collect::<String>().into_bytes()
}

fn check_pipeline(responses: &[u8], what: &str) {
    let responses = text(responses);
    assert_eq!(
        responses.matches("HTTP/1.1 200 ").count(),
        40,
        "{what}: {responses}"
    );
    assert_eq!(
        responses.matches("Connection: close\r\n").count(),
        1,
        "{what}"
    );
    let last = responses.rfind("HTTP/1.1 200 ").unwrap();
    assert!(
        responses[last..].contains("Connection: close\r\n"),
        "{what}"
    );
}

/// Requests pipelined before a drain get responses, and the last one announces the close.
#[test]
fn drain_serves_earlier_pipelined_requests() {
    let _dog = watchdog("drain_serves_earlier_pipelined_requests");
    static MAY_END: AtomicBool = AtomicBool::new(false);
    static BEGUN: AtomicBool = AtomicBool::new(false);
    async fn waits(request: Request) -> Response {
        BEGUN.store(true, Ordering::Release);
        while request.path() == "/first" && !MAY_END.load(Ordering::Acquire) {
            request.worker().sleep(Duration::from_millis(1)).await;
        }
        Response::text("hello")
    }
    for (driver, large) in drivers().into_iter().flat_map(|d| [(d, false), (d, true)]) {
        MAY_END.store(false, Ordering::Release);
        BEGUN.store(false, Ordering::Release);
        let server = serve(driver, waits);
        let mut stream = server.connect();
        stream.write_all(&pipeline(large)).unwrap();
        while !BEGUN.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let address = server.address();
        server.running().handle().shutdown();
        while TcpStream::connect(address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        MAY_END.store(true, Ordering::Release);
        let mut responses = Vec::new();
        stream.read_to_end(&mut responses).unwrap();
        check_pipeline(&responses, &format!("{driver:?} {large}"));
        drop(stream);
        server.wait().unwrap();
    }
}

#[test]
fn drain_serves_earlier_pipelined_requests_on_the_simulator() {
    async fn slow(request: Request) -> Response {
        let first = request.path() == "/first";
        let wait = if first {
            Duration::from_secs(1)
        } else {
            Duration::ZERO
        };
        request.worker().sleep(wait).await;
        Response::text("hello")
    }
    for seed in 0..30 {
        let mut sim = Simulation::new(seed, &slow, Limits::default());
        let client = sim.connect();
        sim.send(&client, &pipeline(false));
        sim.run();
        sim.drain();
        sim.advance(Duration::from_secs(20));
        check_pipeline(&client.receive().unwrap(), &format!("seed {seed}"));
        client.shutdown_write();
        sim.advance(Duration::from_secs(3));
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
}

/// A client that sends request after request does not keep its connection through a drain.
#[test]
fn continued_pipelining_does_not_delay_a_drain() {
    let _dog = watchdog("continued_pipelining_does_not_delay_a_drain");
    async fn hello(_: Request) -> Response {
        Response::text("hello")
    }
    for driver in drivers() {
        let server = serve_with(driver, hello, |server| {
            server.drain_timeout(Duration::from_secs(100))
        });
        let mut stream = server.connect();
        let mut reader = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let requests = get("/").repeat(100);
            while stream.write_all(requests.as_bytes()).is_ok() {}
        });
        let mut responses = [0; 4096];
        assert!(read_some(&mut reader, &mut responses).unwrap() > 0);
        server.running().handle().shutdown();
        while read_some(&mut reader, &mut responses).is_ok_and(|bytes| bytes > 0) {}
        drop(reader);
        writer.join().unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn drain_on_the_simulator() {
    async fn slow(request: Request) -> Response {
        if request.path() != "/now" {
            request.worker().sleep(Duration::from_secs(5)).await;
        }
        Response::text("hello")
    }
    for seed in 0..30 {
        let mut sim = Simulation::new(seed, &slow, Limits::default());
        let (busy, half, idle) = (sim.connect(), sim.connect(), sim.connect());
        let (late, later, kept) = (sim.connect(), sim.connect(), sim.connect());
        sim.send(&kept, get("/now").as_bytes());
        sim.send(&busy, get("/").as_bytes());
        sim.send(&half, b"GET / HT");
        sim.run();
        assert!(text(&kept.receive().unwrap()).ends_with("hello"));
        let queued = sim.connect();
        let request = get("/");
        let mut rest = request.as_bytes();
        while !rest.is_empty() {
            rest = &rest[queued.send(rest).unwrap()..];
        }
        sim.drain();
        sim.advance(Duration::from_millis(100));
        sim.send(&late, b"GET / HT"); // It was already in flight.
        sim.advance(Duration::from_millis(1_100));
        // A first packet that was lost is sent again after a second.
        assert!(kept.at_end() && !later.at_end(), "seed {seed}");
        sim.send(&later, b"GET / HT");
        sim.advance(Duration::from_millis(900));
        assert!(idle.at_end(), "seed {seed}");
        for client in [&half, &late, &later] {
            sim.send(client, b"TP/1.1\r\nHost: t\r\n\r\n");
        }
        sim.advance(Duration::from_secs(8));
        for (name, client) in [
            ("busy", &busy),
            ("half", &half),
            ("queued", &queued),
            ("late", &late),
            ("later", &later),
        ] {
            let response = text(&client.receive().unwrap());
            let closes = response.contains("Connection: close\r\n");
            assert!(
                closes && response.ends_with("hello"),
                "seed {seed}, {name}: {response}"
            );
            client.shutdown_write();
        }
        sim.advance(Duration::from_secs(3));
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
}
