//! At the limit on connections or descriptors, a new connection replaces the one that has been idle
//! for the longest time. Connections with a request in progress stay.

use crate::common::{Served, drivers, get, read_some, serve_with, statuses, through_tls, watchdog};
use onrush::metrics::Format;
use onrush::{DriverPreference, Metrics, Request, Response, Router, Server};
use onrush_rt::descriptors::Descriptors;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testing::connect_from;

/// Counts requests for `/wait` that have begun, and blocks their end.
#[derive(Default)]
struct Gate {
    begun: AtomicUsize,
    open: AtomicBool,
}

impl Gate {
    fn await_begun(&self, requests: usize) {
        while self.begun.load(Ordering::SeqCst) < requests {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn router(gate: &Arc<Gate>) -> Router {
    let gate = gate.clone();
    Router::new()
        .get("/", async |_: Request| Response::text("hello"))
        .get("/wait", move |request: Request| {
            let gate = gate.clone();
            async move {
                gate.begun.fetch_add(1, Ordering::SeqCst);
                while !gate.open.load(Ordering::SeqCst) {
                    request.worker().sleep(Duration::from_millis(1)).await;
                }
                Response::text("hello")
            }
        })
}

/// Reads one response to the end of its content.
fn response(stream: &mut TcpStream) -> u16 {
    let (mut all, mut piece) = (Vec::new(), [0; 1024]);
    while !all.ends_with(b"hello") {
        let bytes = read_some(stream, &mut piece).expect("a response");
        if bytes == 0 {
            break;
        }
        all.extend_from_slice(&piece[..bytes]);
    }
    statuses(&all)[0]
}

fn ask(stream: &mut TcpStream, path: &str) -> u16 {
    stream.write_all(get(path).as_bytes()).unwrap();
    response(stream)
}

fn metric(metrics: &Metrics, name: &str) -> f64 {
    let samples = metrics.render(Format::Prometheus);
    let lines = samples.lines().filter(|line| line.starts_with(name));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum()
}

/// A new connection that the server has accepted. With TLS its handshake is complete: before that
/// it is not idle.
fn accepted(server: &Served, metrics: &Metrics) -> TcpStream {
    let name = match through_tls() {
        true => "onrush_tls_handshake_duration_seconds_count",
        false => "onrush_connections_accepted_total",
    };
    let count = || metric(metrics, name);
    let before = count();
    let stream = server.connect();
    while count() == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    stream
}

fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(testing::read_some(stream, &mut [0; 16]), Ok(0))
}

/// Whether a new connection gets a 503. With TLS it is closed, because a response would need a
/// handshake.
fn is_rejected(server: &Served) -> bool {
    let mut stream = server.connect();
    if stream.write_all(get("/").as_bytes()).is_err() {
        return through_tls(); // The handshake has ended with the connection.
    }
    let mut response = [0; 1024];
    match read_some(&mut stream, &mut response) {
        Ok(0) | Err(_) => through_tls(),
        Ok(bytes) => !through_tls() && statuses(&response[..bytes]) == [503],
    }
}

const CAP: usize = 4;
/// The address of another client.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn longest_idle_is_closed(driver: DriverPreference, bound: impl FnOnce(Server) -> Server) {
    let (gate, metrics) = (Arc::new(Gate::default()), Metrics::new());
    let configure = |server: Server| bound(server.defer_accept(false).metrics(&metrics));
    let server = serve_with(driver, router(&gate), configure);
    let mut at_work = server.connect();
    at_work.write_all(get("/wait").as_bytes()).unwrap();
    gate.await_begun(1);
    // A part of a head has arrived when the request before it is answered.
    let mut in_head = server.connect();
    in_head
        .write_all((get("/") + "GET / HT").as_bytes())
        .unwrap();
    assert_eq!(response(&mut in_head), 200, "{driver:?}");
    let mut silent = accepted(&server, &metrics);
    let mut kept = server.connect();
    assert_eq!(ask(&mut kept, "/"), 200);

    let mut first = server.connect();
    assert_eq!(ask(&mut first, "/"), 200, "{driver:?}");
    assert!(is_closed(&mut silent), "{driver:?}");
    assert_eq!(ask(&mut kept, "/"), 200, "{driver:?}");
    // Its request makes `kept` the connection with the shortest idle time.
    let mut second = server.connect();
    assert_eq!(ask(&mut second, "/"), 200, "{driver:?}");
    assert!(is_closed(&mut first), "{driver:?}");
    assert_eq!(ask(&mut kept, "/"), 200, "{driver:?}");

    // If all have requests in progress, a new one is rejected.
    kept.write_all(get("/wait").as_bytes()).unwrap();
    second.write_all(get("/wait").as_bytes()).unwrap();
    gate.await_begun(3);
    assert!(is_rejected(&server), "{driver:?}");

    gate.open.store(true, Ordering::SeqCst);
    for stream in [&mut at_work, &mut kept, &mut second] {
        assert_eq!(response(stream), 200, "{driver:?}");
    }
    in_head.write_all(b"TP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert_eq!(response(&mut in_head), 200, "{driver:?}");
    let closed = metric(
        &metrics,
        "onrush_connections_done_total{worker=\"0\",reason=\"displaced\"}",
    );
    assert_eq!(closed, 2.0, "{driver:?}");
}

#[test]
fn longest_idle_is_closed_at_the_connection_limit() {
    let _dog = watchdog("longest_idle_is_closed_at_the_connection_limit");
    for driver in drivers() {
        longest_idle_is_closed(driver, |server| server.connections_max(CAP));
    }
}

#[test]
fn longest_idle_is_closed_without_descriptors() {
    let _dog = watchdog("longest_idle_is_closed_without_descriptors");
    for driver in drivers() {
        // Minus 2 in reserve and 1 for files.
        let budget = Descriptors::new(CAP as u64 + 3);
        assert_eq!(budget.connections_max(), CAP);
        longest_idle_is_closed(driver, |server| server.descriptors(&budget));
    }
}

/// Without an idle timeout, idle times are unknown. Connections without any request are closed
/// first.
#[test]
fn silent_connections_are_closed_first_without_idle_timeout() {
    if through_tls() {
        return; // A client with a handshake is not silent.
    }
    let _dog = watchdog("silent_connections_are_closed_first_without_idle_timeout");
    for driver in drivers() {
        let limits = onrush::Limits::default()
            .idle_timeout(Duration::ZERO)
            .head_timeout(Duration::ZERO);
        let metrics = Metrics::new();
        let configure = |server: Server| {
            let server = server.limits(limits).connections_max(CAP);
            server.defer_accept(false).metrics(&metrics)
        };
        let server = serve_with(driver, router(&Arc::default()), configure);
        let mut kept = server.connect();
        assert_eq!(ask(&mut kept, "/"), 200);
        for _ in 0..20 {
            drop(accepted(&server, &metrics));
            let _silent: Vec<_> = (0..CAP).map(|_| accepted(&server, &metrics)).collect();
            assert_eq!(ask(&mut kept, "/"), 200, "{driver:?}");
        }
    }
}

#[test]
fn silent_clients_do_not_block_others() {
    let _dog = watchdog("silent_clients_do_not_block_others");
    for driver in drivers() {
        let metrics = Metrics::new();
        let configure = |server: Server| {
            let server = server.workers(2).connections_max(64);
            // No time limit ends a silent client before the others give up.
            let server = server.limits(crate::common::memory::limits());
            server.defer_accept(false).metrics(&metrics)
        };
        let server = serve_with(driver, router(&Arc::default()), configure);
        let mut silent: Vec<TcpStream> = Vec::new();
        let connect = || accepted(&server, &metrics);
        let mut attack = |clients| silent.extend((0..clients).map(|_| connect()));
        attack(200);
        for _ in 0..50 {
            assert_eq!(ask(&mut server.connect(), "/"), 200, "{driver:?}");
        }
        // Also when silent clients connect between a client's connection and its request.
        for _ in 0..50 {
            let mut stream = connect();
            attack(16);
            assert_eq!(ask(&mut stream, "/"), 200, "{driver:?}");
        }
    }
}

/// Who opens connections and leaves them at once does not displace the idle ones of others: its
/// own, which it has left, make room.
#[test]
fn connections_whose_clients_have_gone_make_room_first() {
    if through_tls() {
        return; // The tunnel has one address.
    }
    let _dog = watchdog("connections_whose_clients_have_gone_make_room_first");
    for driver in drivers() {
        const MANY: usize = 40;
        let server = serve_with(driver, router(&Arc::default()), |server| {
            server.connections_max(MANY).defer_accept(false)
        });
        let mut idle: Vec<TcpStream> = (0..4)
            .map(|_| connect_from(OTHER, server.address()))
            .collect();
        for _ in 0..50 {
            let storm: Vec<TcpStream> = (0..2 * MANY).map(|_| server.connect()).collect();
            for mut stream in storm {
                let _ = stream.write_all(b"no request\r\n\r\n");
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            }
            for stream in &mut idle {
                assert_eq!(ask(stream, "/"), 200, "{driver:?}");
            }
        }
    }
}

/// Who keeps most connections busy and opens more does not displace the idle ones of others.
#[test]
fn client_with_most_connections_displaces_only_its_own() {
    if through_tls() {
        return; // The tunnel has one address.
    }
    let _dog = watchdog("client_with_most_connections_displaces_only_its_own");
    for driver in drivers() {
        const MANY: usize = 40;
        let (gate, metrics) = (Arc::new(Gate::default()), Metrics::new());
        let configure = |server: Server| server.connections_max(MANY).metrics(&metrics);
        let server = serve_with(driver, router(&gate), configure);
        let mut idle: Vec<TcpStream> = (0..4)
            .map(|_| connect_from(OTHER, server.address()))
            .collect();
        let ask_all = |idle: &mut Vec<TcpStream>| {
            for stream in idle {
                assert_eq!(ask(stream, "/"), 200, "{driver:?}");
            }
        };
        ask_all(&mut idle);
        let mut busy: Vec<TcpStream> = Vec::new();
        for index in 0..MANY - 5 {
            let mut stream = server.connect();
            stream.write_all(get("/wait").as_bytes()).unwrap();
            busy.push(stream);
            gate.await_begun(index + 1);
        }
        let mut own = server.connect();
        assert_eq!(ask(&mut own, "/"), 200, "{driver:?}");
        // Its own idle connection makes room, then nothing does.
        let mut last = server.connect();
        assert_eq!(ask(&mut last, "/"), 200, "{driver:?}");
        assert!(is_closed(&mut own), "{driver:?}");
        last.write_all(get("/wait").as_bytes()).unwrap();
        gate.await_begun(MANY - 4);
        for _ in 0..10 {
            assert!(is_rejected(&server), "{driver:?}");
        }
        ask_all(&mut idle);
        gate.open.store(true, Ordering::SeqCst);
        for stream in busy.iter_mut().chain([&mut last]) {
            assert_eq!(response(stream), 200, "{driver:?}");
        }
    }
}

/// A client that keeps its connections busy with a few bytes loses one for each of another client,
/// until both have as many.
#[test]
fn client_with_the_most_connections_makes_room() {
    if through_tls() {
        return; // The tunnel has one address.
    }
    let _dog = watchdog("client_with_the_most_connections_makes_room");
    for driver in drivers() {
        let (gate, metrics) = (Arc::new(Gate::default()), Metrics::new());
        let begun = gate.clone();
        let router = router(&gate).post("/read", move |mut request: Request| {
            begun.begun.fetch_add(1, Ordering::SeqCst);
            async move {
                let _ = request.body().discard().await;
                Response::text("hello")
            }
        });
        let configure = |server: Server| {
            let server = server.connections_max(CAP).defer_accept(false);
            server.metrics(&metrics)
        };
        let server = serve_with(driver, router, configure);
        let halves = [
            ("GET / HT", "TP/1.1\r\nHost: t\r\n\r\n"),
            (
                "POST /read HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\nx",
                "y",
            ),
        ];
        let begin = |(index, mut stream): (usize, TcpStream)| {
            stream.write_all(halves[index % 2].0.as_bytes()).unwrap();
            stream
        };
        let crowd = (0..CAP).map(|index| (index, accepted(&server, &metrics)));
        let mut crowd: Vec<TcpStream> = crowd.map(begin).collect();
        gate.await_begun(CAP / 2);
        let mut others = Vec::new();
        for index in 0..CAP / 2 {
            let mut other = connect_from(OTHER, server.address());
            assert_eq!(ask(&mut other, "/"), 200, "{driver:?} {index}");
            others.push(begin((1, other)));
            gate.await_begun(CAP / 2 + index + 1);
        }
        // Both have as many now.
        assert_eq!(
            ask(&mut connect_from(OTHER, server.address()), "/"),
            503,
            "{driver:?}"
        );
        assert!(is_rejected(&server), "{driver:?}");
        let page = metrics.render(Format::Prometheus);
        let mut lines = page
            .lines()
            .filter(|line| line.contains("reason=\"displaced\""));
        let displaced = lines.next().and_then(|line| line.rsplit_once(' '));
        assert_eq!(displaced.map(|(_, count)| count), Some("2"), "{driver:?}");
        let served = crowd.iter_mut().enumerate().filter_map(|(index, stream)| {
            stream.write_all(halves[index % 2].1.as_bytes()).ok()?;
            let mut response = [0; 1024];
            let bytes = read_some(stream, &mut response)
                .ok()
                .filter(|&bytes| bytes > 0)?;
            Some(statuses(&response[..bytes])[0])
        });
        assert_eq!(served.collect::<Vec<_>>(), [200; CAP / 2], "{driver:?}");
        for other in &mut others {
            other.write_all(halves[1].1.as_bytes()).unwrap();
            assert_eq!(response(other), 200, "{driver:?}");
        }
    }
}

/// A request that has arrived and is not processed yet keeps its connection from being closed. When
/// no other connection is idle, the new one is rejected, and the worker continues.
#[test]
fn request_in_the_kernel_keeps_its_connection_open() {
    if through_tls() {
        return; // There is no handshake while the worker is blocked.
    }
    let _dog = watchdog("request_in_the_kernel_keeps_its_connection_open");
    for driver in drivers() {
        let (gate, unblocked) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        let blocking = (gate.clone(), unblocked.clone());
        let router = router(&gate).get("/block", move |request: Request| {
            let (gate, unblocked) = blocking.clone();
            async move {
                gate.begun.fetch_add(1, Ordering::SeqCst);
                while !unblocked.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1)); // The worker is blocked.
                }
                while !gate.open.load(Ordering::SeqCst) {
                    request.worker().sleep(Duration::from_millis(1)).await;
                }
                Response::text("hello")
            }
        });
        let configure = |server: Server| server.connections_max(2).defer_accept(false);
        let server = serve_with(driver, router, configure);
        let mut idle = server.connect();
        assert_eq!(ask(&mut idle, "/"), 200, "{driver:?}");
        let mut at_work = server.connect();
        at_work.write_all(get("/block").as_bytes()).unwrap();
        gate.await_begun(1);
        // The worker accepts the new connection before it reads the request.
        let mut new = server.connect();
        std::thread::sleep(Duration::from_millis(10));
        idle.write_all(get("/").as_bytes()).unwrap();
        unblocked.store(true, Ordering::SeqCst);
        let status = ask(&mut new, "/");
        assert!([200, 503].contains(&status), "{driver:?}: {status}");
        assert_eq!(response(&mut idle), 200, "{driver:?}");
        gate.open.store(true, Ordering::SeqCst);
        assert_eq!(response(&mut at_work), 200, "{driver:?}");
    }
}

/// All idle connections are at one worker. A new connection takes the place of one of them, also
/// if the other worker accepts it.
#[test]
fn idle_connections_of_other_workers_make_room() {
    const WORKERS: usize = 2;
    let _dog = watchdog("idle_connections_of_other_workers");
    for driver in drivers() {
        let (gate, metrics) = (Arc::new(Gate::default()), Metrics::new());
        let configure = |server: Server| {
            let server = server.workers(WORKERS).connections_max(CAP);
            server.rebalance(false).metrics(&metrics)
        };
        let server = serve_with(driver, router(&gate), configure);
        let placed = || metric(&metrics, "onrush_connections_placed_total{worker=\"0\"");
        let mut connections: Vec<Vec<TcpStream>> = (0..WORKERS).map(|_| Vec::new()).collect();
        for _ in 0..CAP {
            let (before, mut stream) = (placed(), server.connect());
            assert_eq!(ask(&mut stream, "/"), 200, "{driver:?}");
            let worker = usize::from(placed() == before);
            connections[worker].push(stream);
        }
        assert!(connections.iter().all(|own| own.len() == CAP / WORKERS));
        for stream in &mut connections[0] {
            stream.write_all(get("/wait").as_bytes()).unwrap();
        }
        gate.await_begun(CAP / WORKERS);
        // The kernel chooses the worker that accepts: each is chosen several times. Each connection
        // stays open, so that the next one needs a place.
        for _ in 0..32 {
            let mut stream = server.connect();
            assert_eq!(ask(&mut stream, "/"), 200, "{driver:?}");
            connections[1].push(stream);
        }
        gate.open.store(true, Ordering::SeqCst);
        for stream in &mut connections[0] {
            assert_eq!(response(stream), 200, "{driver:?}");
        }
    }
}
