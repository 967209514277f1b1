//! Back-pressure: a side that does not read makes the other side wait, and memory stays bounded.

use crate::common::app::{Endless, app};
use crate::common::{
    calm, content, drivers, get, plain, read_some, resident_bytes, serve, watchdog,
};
use onrush::{Body, Bytes, Limits, Request, Response, sim::Simulation};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

const PUT: &str = "PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 50000000\r\n\r\n";

/// Waits before it reads the body.
async fn late_reader(mut request: Request) -> Response {
    request.worker().sleep(Duration::from_secs(10)).await;
    let mut bytes = 0;
    while let Some(Ok(piece)) = request.body().next().await {
        bytes += piece.len();
    }
    Response::text(format!("{bytes}"))
}

#[test]
fn handler_that_does_not_read_blocks_its_client() {
    for seed in 0..20 {
        let limits = Limits::default();
        let behaviour = onrush_rt::driver::sim::Behaviour::default();
        let mut sim = Simulation::builder(seed)
            .limits(limits)
            .network(behaviour)
            .start(&late_reader);
        let client = sim.connect();
        sim.send(&client, PUT.replace("50000000", "2000000").as_bytes());
        let mut sent = 0;
        for _ in 0..1_000 {
            sent += client.send(&[b'x'; 8192]).unwrap();
            sim.run();
        }
        // A pipe, the bytes received ahead, and the bytes in flight.
        assert!((64_000..256_000).contains(&sent), "{sent}");
        assert!(sim.receive_bytes() < 512 << 10);
        // It continues when the handler reads.
        sim.advance(Duration::from_millis(10_100));
        while sent < 2_000_000 {
            let rest = 2_000_000 - sent;
            let n = sim.send(&client, &[b'x'; 65_536][..rest.min(65_536)]);
            assert!(n > 0);
            sent += n;
        }
        sim.run();
        assert_eq!(content(&client.receive().unwrap()), b"2000000");
    }
}

/// Bytes that arrive one at a time must not each hold a whole block.
#[test]
fn single_bytes_are_gathered() {
    let mut sim = calm(&late_reader, Limits::default());
    let client = sim.connect();
    sim.send(&client, PUT.replace("50000000", "30000").as_bytes());
    for _ in 0..30_000 {
        client.send(b"x").unwrap();
        sim.poll();
    }
    let held = sim.receive_bytes();
    assert!(held < 512 << 10, "{held}");
    sim.advance(Duration::from_millis(10_100));
    assert_eq!(content(&client.receive().unwrap()), b"30000");
}

/// If many handlers wait, a request holds memory only for its head, and the moved head is equal to
/// the one sent.
#[test]
fn many_waiting_handlers_hold_little_memory_each() {
    async fn sleeper(request: Request) -> Response {
        let number = request.header_str("X-Number");
        request.worker().sleep(Duration::from_secs(10)).await;
        Response::text(format!("{} {:?}", request.path(), number))
    }
    let mut sim = calm(&sleeper, Limits::default());
    let send = |sim: &mut Simulation, number: usize, behind: &str| {
        let client = sim.connect();
        let head = format!("GET /{number} HTTP/1.1\r\nHost: t\r\nX-Number: {number}\r\n\r\n");
        sim.send(&client, (head + behind).as_bytes());
        client
    };
    let mut clients: Vec<_> = (0..100).map(|number| send(&mut sim, number, "")).collect();
    let before = sim.receive_bytes();
    clients.extend((100..1_100).map(|number| send(&mut sim, number, "")));
    let held = sim.receive_bytes() - before;
    assert!(held < 1_000 * 200, "{held}");
    // Bytes pipelined after a head are not moved.
    let last = send(&mut sim, 1_100, &get("/last"));
    sim.advance(Duration::from_millis(10_100));
    for (number, client) in clients.iter().enumerate() {
        let response = client.receive().unwrap();
        let due = format!("/{number} Some(\"{number}\")");
        assert_eq!(content(&response), due.as_bytes());
    }
    sim.advance(Duration::from_millis(10_100));
    let responses = last.receive().unwrap();
    let responses = String::from_utf8_lossy(&responses);
    assert!(
        responses.contains("/1100 Some") && responses.contains("/last None"),
        "{responses}"
    );
    // No handler waits any more: the next request is served from its receive buffer.
    drop((clients, last));
    sim.run();
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}

/// Requests behind one in progress wait, too.
#[test]
fn pipelined_requests_wait_for_the_first() {
    let mut sim = calm(&late_reader, Limits::default());
    let client = sim.connect();
    let mut sent = 0;
    for _ in 0..100_000 {
        sent += client.send(get("/").as_bytes()).unwrap();
        sim.poll();
    }
    assert!(sent < 256_000, "{sent}");
    assert_eq!(sim.counters().requests.get(), 1);
    assert!(sim.receive_bytes() < 512 << 10);
}

/// Counts the bytes that it made.
struct Counted(Endless, &'static AtomicU64);

impl futures_core::Stream for Counted {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &next {
            self.1.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        next
    }
}

#[test]
fn stream_is_produced_at_the_pace_of_its_client() {
    static MADE: AtomicU64 = AtomicU64::new(0);
    async fn gibibyte(_: Request) -> Response {
        let stream = Counted(Endless { left: 1 << 30 }, &MADE);
        Response::with_body(Body::stream(stream, Some(1 << 30)))
    }
    let mut sim = Simulation::builder(1)
        .network(plain(64 << 10))
        .start(&gibibyte);
    let client = sim.connect();
    sim.send(&client, get("/").as_bytes());
    sim.advance(Duration::from_secs(1));
    let mut taken = 0;
    for _ in 0..50 {
        let made = MADE.load(Ordering::Relaxed);
        assert!(made <= taken + (192 << 10), "{made} made, {taken} taken");
        taken += client.receive().unwrap().len() as u64;
        sim.run();
    }
    assert!(taken > 1 << 20);
    client.reset();
    sim.run();
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}

#[test]
fn client_that_does_not_read_costs_a_real_server_little() {
    let _dog = watchdog("client_that_does_not_read_costs_a_real_server_little");
    // It measures the memory of the process.
    if testing::child::elsewhere(
        module_path!(),
        "client_that_does_not_read_costs_a_real_server_little",
    ) {
        return;
    }
    static MADE: AtomicU64 = AtomicU64::new(0);
    const BYTES: u64 = 256 << 20;
    async fn big(request: Request) -> Response {
        if request.path() == "/hello" {
            return Response::text("hello");
        }
        let stream = Counted(Endless { left: BYTES }, &MADE);
        Response::with_body(Body::stream(stream, Some(BYTES)))
    }
    for driver in drivers() {
        MADE.store(0, Ordering::Relaxed);
        let server = serve(driver, big);
        let before = resident_bytes();
        let mut client = server.connect();
        client.write_all(get("/").as_bytes()).unwrap();
        // It stops when the kernel's buffers are full. Others are served meanwhile.
        let mut last = u64::MAX;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            assert!(server.get("/hello").ends_with(b"hello"));
            let made = MADE.load(Ordering::Relaxed);
            if made > 0 && made == last {
                break;
            }
            last = made;
        }
        assert!(last < 64 << 20, "{last}");
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 32 << 20, "{grown}");
        // A client that reads gets all of it.
        let (mut piece, mut taken) = (vec![0; 1 << 18], 0);
        while taken < BYTES {
            let n = read_some(&mut client, &mut piece).unwrap();
            assert!(n > 0);
            taken += n as u64;
        }
    }
}

#[test]
fn handler_that_does_not_read_blocks_a_real_client() {
    let _dog = watchdog("handler_that_does_not_read_blocks_a_real_client");
    // It measures the memory of the process.
    if testing::child::elsewhere(
        module_path!(),
        "handler_that_does_not_read_blocks_a_real_client",
    ) {
        return;
    }
    static MAY_READ: AtomicBool = AtomicBool::new(false);
    async fn patient(mut request: Request) -> Response {
        if request.path() == "/hello" {
            return app(request).await;
        }
        while !MAY_READ.load(Ordering::Acquire) {
            request.worker().sleep(Duration::from_millis(5)).await;
        }
        let bytes = if request.path() == "/fill" {
            let (mut bytes, mut room) = (0, Vec::with_capacity(1 << 18));
            loop {
                room.clear();
                match request.body().fill(&mut room).await.unwrap() {
                    0 => break bytes,
                    n => bytes += n as u64,
                }
            }
        } else {
            request.body().discard().await.unwrap()
        };
        Response::text(format!("{bytes}"))
    }
    const BYTES: usize = 100 << 20;
    for (driver, path) in drivers()
        .into_iter()
        .flat_map(|d| [(d, "/fill"), (d, "/discard")])
    {
        MAY_READ.store(false, Ordering::Release);
        let limits = Limits::default().body_bytes_max(BYTES as u64);
        let server = crate::common::serve_with(driver, patient, |server| server.limits(limits));
        let mut client = server.connect();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {BYTES}\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let before = resident_bytes();
        client.set_nonblocking(true).unwrap();
        let piece = vec![b'x'; 1 << 18];
        let (mut sent, mut refused) = (0, 0);
        while refused < 10 {
            match client.write(&piece) {
                Ok(n) => (sent, refused) = (sent + n, 0),
                Err(_) => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(10));
                    assert!(server.get("/hello").ends_with(b"hello"));
                }
            }
            assert!(sent < 64 << 20, "the server receives everything");
        }
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown}");
        MAY_READ.store(true, Ordering::Release);
        client.set_nonblocking(false).unwrap();
        while sent < BYTES {
            let rest = piece.len().min(BYTES - sent);
            sent += client.write(&piece[..rest]).unwrap();
        }
        let mut response = [0; 4096];
        let n = read_some(&mut client, &mut response).unwrap();
        assert_eq!(
            content(&response[..n]),
            BYTES.to_string().as_bytes(),
            "{driver:?} {path}"
        );
    }
}

/// The kernel reports room only when a third of a large buffer is free. A slow client that reads
/// must not be mistaken for one that does not.
#[test]
fn slow_reader_is_not_disconnected_on_both_drivers() {
    let _dog = watchdog("slow_reader_is_not_disconnected_on_both_drivers");
    async fn endless(_: Request) -> Response {
        Response::with_body(Body::stream(Endless { left: 1 << 30 }, Some(1 << 30)))
    }
    let limits = Limits::default().write_timeout(Duration::from_secs(1));
    let clients = drivers().into_iter().map(|driver| {
        let server = crate::common::serve_with(driver, endless, |server| server.limits(limits));
        std::thread::spawn(move || {
            let mut client = server.connect();
            client.write_all(get("/").as_bytes()).unwrap();
            let mut piece = vec![0; 80_000];
            for _ in 0..30 {
                std::thread::sleep(Duration::from_millis(100));
                client.read_exact(&mut piece).unwrap();
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
}

/// A client sends more than is received ahead of its handler, and resets the connection. The
/// handler, which does not read, is dropped long before its end.
#[test]
fn reset_is_noticed_while_receiving_is_paused() {
    let _dog = watchdog("reset_is_noticed_while_receiving_is_paused");
    static WORKING: AtomicU64 = AtomicU64::new(0);
    struct Working;
    impl Drop for Working {
        fn drop(&mut self) {
            WORKING.fetch_sub(1, Ordering::AcqRel);
        }
    }
    async fn busy(request: Request) -> Response {
        WORKING.fetch_add(1, Ordering::AcqRel);
        let _working = Working;
        request.worker().sleep(Duration::from_secs(100)).await;
        Response::text("late")
    }
    let wait_for = |count| {
        while WORKING.load(Ordering::Acquire) != count {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for driver in drivers() {
        let server = serve(driver, busy);
        let mut stream = server.connect();
        stream.write_all(PUT.as_bytes()).unwrap();
        wait_for(1);
        stream.set_nonblocking(true).unwrap();
        let mut silent = 0;
        while silent < 50 {
            match stream.write(&[b'x'; 65_536]) {
                Ok(_) => silent = 0,
                Err(_) => silent += 1,
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        wait_for(0);
    }
    // The same in the simulator, where the clock does not move meanwhile.
    for seed in 0..20 {
        let mut sim = Simulation::new(seed, &busy, Limits::default());
        let client = sim.connect();
        sim.send(&client, PUT.as_bytes());
        for _ in 0..200 {
            client.send(&[b'x'; 8192]).unwrap();
            sim.run();
        }
        assert_eq!(WORKING.load(Ordering::Acquire), 1);
        client.reset();
        sim.run();
        assert_eq!(WORKING.load(Ordering::Acquire), 0, "seed {seed}");
    }
}
