//! Exhausted receive memory: partial heads are evicted, the oldest of the large ones first, and
//! complete requests get responses meanwhile. Input that has arrived is read before a time limit
//! ends the wait for it.
mod common;

use common::gate::until;
use common::{
    Served, ask, content, drivers, get, plain, read_some, resident_bytes, statuses, watchdog,
};
use onrush::metrics::Format;
use onrush::{Limits, Metrics, Request, Response, sim::Simulation};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Receive memory of the single worker. The attackers send several times as much.
const MEMORY: usize = 4 << 20;
const ATTACKERS: usize = 400;
const HEAD_BYTES: usize = 30_000;

async fn hello(_: Request) -> Response {
    Response::text("hello")
}

/// The first `bytes` bytes of a head.
fn partial_head(bytes: usize) -> Vec<u8> {
    let mut head = b"GET /x HTTP/1.1\r\nHost: t\r\n".to_vec();
    while head.len() < bytes {
        let field = bytes - head.len();
        head.extend_from_slice(b"X: ");
        head.resize(head.len() + field.clamp(5, 4000) - 5, b'x');
        head.extend_from_slice(b"\r\n");
    }
    head
}

/// Limits under which no head times out during a test.
fn limits() -> Limits {
    Limits {
        head_timeout_ms: 100_000,
        idle_timeout_ms: 100_000,
        ..Limits::default()
    }
}

fn serve(
    driver: onrush::DriverPreference,
    application: impl onrush::Application,
    metrics: &Metrics,
) -> Served {
    common::serve_with(driver, application, |server| {
        let config = onrush_rt::driver::Config {
            receive_bytes_max: MEMORY,
            ..onrush_rt::driver::Config::default()
        };
        server
            .driver_config(config)
            .limits(limits())
            .metrics(metrics)
    })
}

/// The status of the next response.
#[track_caller]
fn status(stream: &mut TcpStream) -> u16 {
    let mut response = [0; 4096];
    let n = read_some(stream, &mut response).expect("no reset");
    *statuses(&response[..n]).first().expect("a response")
}

/// The time limit of a response during an attack. The target is 1 s. Tests share their cores, so
/// `cargo xtask experiment attack` measures it instead.
const SOON: Duration = Duration::from_secs(5);

/// One request on a persistent connection, with a response in time.
fn assert_prompt(stream: &mut TcpStream) {
    let begun = Instant::now();
    stream.write_all(get("/hello").as_bytes()).unwrap();
    assert_eq!(status(stream), 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// The sum of a metric over all workers.
fn metric(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.render(Format::OpenMetrics);
    let lines = text
        .lines()
        .filter(|line| line.split('{').next() == Some(name));
    let value = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|value| value.parse::<u64>().ok())
    };
    lines.map(|line| value(line).expect("a number")).sum()
}

fn evicted(metrics: &Metrics) -> u64 {
    metric(metrics, "onrush_heads_evicted_total")
}

#[test]
fn partial_heads_do_not_stop_a_real_server() {
    let _dog = watchdog("partial_heads_do_not_stop_a_real_server");
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, hello, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let before = resident_bytes();
        // Slow clients with small heads: one began before all others, one between them.
        let slow = || {
            let mut stream = server.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n").unwrap();
            stream
        };
        let mut slow_clients = vec![slow()];
        assert_prompt(&mut established);
        let mut attackers = Vec::new();
        for number in 0..ATTACKERS {
            let mut stream = server.connect();
            stream.write_all(&partial_head(HEAD_BYTES)).unwrap();
            attackers.push(stream);
            if number == ATTACKERS / 2 {
                slow_clients.push(slow());
            }
            if number % 40 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        // A head may use twice its size in memory, and the reserve is not for heads.
        let all = (ATTACKERS * HEAD_BYTES) as u64;
        until(|| all - evicted(&metrics) * HEAD_BYTES as u64 <= MEMORY as u64);
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 2 * MEMORY + (16 << 20), "{grown}");
        // The newest, and those that hold little, get responses when their heads are complete.
        let youngest = attackers.pop().unwrap();
        for stream in slow_clients.iter_mut().chain([&mut { youngest }]) {
            stream.write_all(b"\r\n").unwrap();
            assert_eq!(status(stream), 200, "{driver:?}");
        }
        // The oldest have received a response with the reason of the eviction.
        let gone = evicted(&metrics) as usize;
        assert!((ATTACKERS / 2..ATTACKERS).contains(&gone), "{gone}");
        for stream in &mut attackers[..gone / 2] {
            assert_eq!(status(stream), 408, "{driver:?}");
        }
    }
}

#[test]
fn partial_heads_are_evicted_in_order_of_age_in_the_simulator() {
    for seed in 0..4 {
        let behaviour = Behaviour {
            split: true,
            delay: true,
            pipe_bytes: 64 << 10,
        };
        let (memory, limits) = (1 << 20, limits());
        let mut sim = Simulation::with_receive_memory(seed, &hello, limits, behaviour, memory);
        let established = sim.connect();
        assert!(ask(&mut sim, &established, &get("/")).ends_with("hello"));
        let slow = sim.connect();
        sim.send(&slow, b"GET / HTTP/1.1\r\nHost: t\r\n");
        let attackers: Vec<Client> = (0..100).map(|_| sim.connect()).collect();
        for attacker in &attackers {
            assert_eq!(sim.send(attacker, &partial_head(HEAD_BYTES)), HEAD_BYTES);
            sim.run();
            assert!(sim.receive_bytes() <= memory);
        }
        let gone = sim.counters().evicted.get() as usize;
        assert!((50..100).contains(&gone), "{gone}");
        assert!(ask(&mut sim, &established, &get("/")).ends_with("hello"));
        assert!(common::is_served(&mut sim));
        assert!(ask(&mut sim, &slow, "\r\n").ends_with("hello"));
        for (number, attacker) in attackers.iter().enumerate() {
            match number < gone {
                true => assert_eq!(statuses(&attacker.receive().unwrap()), [408], "{number}"),
                false => assert!(
                    ask(&mut sim, attacker, "\r\n").ends_with("hello"),
                    "{number}"
                ),
            }
        }
        // No memory is held for evicted or completed requests.
        assert!(sim.receive_bytes() < 16 << 10);
    }
}

/// Small heads are evicted, too, if nothing else is left.
#[test]
fn small_heads_are_evicted_last() {
    let (memory, limits) = (1 << 20, limits());
    let behaviour = plain(64 << 10);
    let mut sim = Simulation::with_receive_memory(1, &hello, limits, behaviour, memory);
    let clients: Vec<Client> = (0..1_000).map(|_| sim.connect()).collect();
    for client in &clients {
        sim.send(client, &partial_head(1_000));
        assert!(sim.receive_bytes() <= memory);
    }
    let gone = sim.counters().evicted.get() as usize;
    assert!((100..900).contains(&gone), "{gone}");
    assert_eq!(statuses(&clients[0].receive().unwrap()), [408]);
    assert!(ask(&mut sim, &clients[999], "\r\n").ends_with("hello"));
    assert!(common::is_served(&mut sim));
}

#[test]
fn bodies_ahead_of_slow_handlers_leave_memory_for_others() {
    let _dog = watchdog("bodies_ahead_of_slow_handlers_leave_memory_for_others");
    static MAY_READ: AtomicBool = AtomicBool::new(false);
    const BODY_BYTES: usize = 60_000;
    async fn patient(mut request: Request) -> Response {
        if request.path() == "/hello" {
            return Response::text("hello");
        }
        while !MAY_READ.load(Ordering::Acquire) {
            request.worker().sleep(Duration::from_millis(20)).await;
        }
        let mut bytes = 0;
        while let Some(piece) = request.body().next().await {
            bytes += piece.expect("a body").len();
        }
        Response::text(format!("{bytes}"))
    }
    for driver in drivers() {
        MAY_READ.store(false, Ordering::Release);
        let metrics = Metrics::new();
        let server = serve(driver, patient, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let head = format!("PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
        let clients = (0..200).map(|number| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&[b'x'; BODY_BYTES]).unwrap();
            if number % 20 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
            stream
        });
        let mut clients: Vec<TcpStream> = clients.collect();
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        MAY_READ.store(true, Ordering::Release);
        let mut whole = 0;
        for client in &mut clients {
            let mut response = [0; 4096];
            let n = read_some(client, &mut response).expect("no reset");
            match statuses(&response[..n])[0] {
                200 => assert_eq!(content(&response[..n]), b"60000", "{driver:?}"),
                status => assert_eq!(status, 503, "{driver:?}"),
            }
            whole += usize::from(response.starts_with(b"HTTP/1.1 200"));
        }
        // Bodies from before the shortage are complete. The others got 503.
        assert!((20..200).contains(&whole), "{driver:?}: {whole}");
        assert_eq!(evicted(&metrics), 0);
    }
}

/// Only handlers that keep received bytes can exhaust the receive memory. The disconnect of a
/// client that waits for memory then is noticed.
#[test]
fn disconnect_is_noticed_while_memory_is_exhausted() {
    let _dog = watchdog("disconnect_is_noticed_while_memory_is_exhausted");
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    async fn keeper(mut request: Request) -> Response {
        let mut kept = Vec::new();
        while let Some(Ok(piece)) = request.body().next().await {
            KEPT.fetch_add(piece.len(), Ordering::Relaxed);
            kept.push(piece);
        }
        Response::text("hello")
    }
    for driver in drivers() {
        KEPT.store(0, Ordering::Relaxed);
        let metrics = Metrics::new();
        let server = serve(driver, keeper, &metrics);
        let keeper = |_| {
            let mut stream = server.connect();
            let head = b"PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 9999999\r\n\r\n";
            stream.write_all(head).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut keepers: Vec<TcpStream> = (0..40).map(keeper).collect();
        let waiting = loop {
            for stream in &mut keepers {
                let _ = stream.write(&[b'x'; 60_000]); // The socket may be full.
            }
            let mut other = server.connect();
            other
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            other.write_all(get("/hello").as_bytes()).unwrap();
            let read = other.read(&mut [0; 4096]);
            if read
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            {
                break other; // The server does not receive from it, for lack of memory.
            }
        };
        assert!(KEPT.load(Ordering::Relaxed) > MEMORY / 2);
        let open = || metric(&metrics, "onrush_connections_open");
        until(|| open() == keepers.len() as u64 + 1);
        drop(waiting);
        let gone = Instant::now();
        until(|| open() == keepers.len() as u64);
        assert!(
            gone.elapsed() < Duration::from_secs(10),
            "before the body timeout"
        );
    }
}

/// The clock jumps while requests wait in the network, as for a process that was stopped.
#[test]
fn arrived_input_is_read_before_a_time_limit_applies() {
    for seed in 0..100 {
        let limits = Limits::default();
        let mut sim = Simulation::with_behaviour(seed, &hello, limits, Behaviour::default());
        let (idle, begun, fresh, silent) =
            (sim.connect(), sim.connect(), sim.connect(), sim.connect());
        assert!(ask(&mut sim, &idle, &get("/")).ends_with("hello"));
        assert!(ask(&mut sim, &silent, &get("/")).ends_with("hello"));
        let request = get("/");
        let (first, rest) = request.as_bytes().split_at(20);
        assert_eq!(sim.send(&begun, first), first.len());
        let waiting = [
            (&idle, request.as_bytes()),
            (&begun, rest),
            (&fresh, request.as_bytes()),
        ];
        for (client, bytes) in waiting {
            let mut sent = 0;
            while sent < bytes.len() {
                sent += client.send(&bytes[sent..]).unwrap(); // The network takes a part at a time.
            }
        }
        sim.net().advance(1_000_000);
        sim.run();
        for (client, _) in waiting {
            let response = client.receive().unwrap();
            assert_eq!(statuses(&response), [200], "seed {seed}");
        }
        assert!(silent.at_end(), "its time limit has passed");
    }
}

/// Clients that request much and read nothing, and pipelines whose responses are not read.
#[test]
fn clients_that_do_not_read_do_not_delay_others() {
    let _dog = watchdog("clients_that_do_not_read_do_not_delay_others");
    static LARGE: [u8; 4 << 20] = [b'x'; 4 << 20];
    async fn sized(request: Request) -> Response {
        match request.path() {
            "/hello" => Response::text("hello"),
            _ => Response::with_body(onrush::Body::from(&LARGE[..])),
        }
    }
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, sized, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let attacks = [get("/large"), get("/hello").repeat(1_000)];
        let mut attackers = Vec::new();
        for number in 0..200 {
            let mut stream = server.connect();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(attacks[number % 2].as_bytes()); // It may be a partial write.
            attackers.push(stream);
            if number % 20 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        assert!(
            metric(&metrics, "onrush_connections_open") > 200,
            "{driver:?}"
        );
    }
}

/// Clients that pipeline requests and do not read the responses hold receive memory without
/// progress. They are reset, the oldest first, when others need memory.
#[test]
fn unread_pipelines_leave_memory_for_others() {
    let _dog = watchdog("unread_pipelines_leave_memory_for_others");
    static PIECE: [u8; 12_000] = [b'x'; 12_000];
    async fn sized(request: Request) -> Response {
        match request.path() {
            "/hello" => Response::text("hello"),
            _ => Response::with_body(onrush::Body::from(&PIECE[..])),
        }
    }
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, sized, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let requests = get("/piece").repeat(4_000);
        let mut attackers = Vec::new();
        for number in 0..500 {
            let mut stream = server.connect();
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(requests.as_bytes()); // It may be a partial write.
            attackers.push(stream);
            if number % 50 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        for _ in 0..10 {
            // They continue to send as much as possible.
            for stream in &mut attackers {
                let _ = stream.write(requests.as_bytes());
            }
            assert_prompt(&mut established);
            assert_prompt(&mut server.connect());
        }
        assert!(
            metric(&metrics, "onrush_heads_evicted_total") > 0,
            "{driver:?}"
        );
    }
}

/// Complete requests that are sent together get responses, also from a worker with little memory:
/// input that is left for later must not use the memory that is missing.
#[test]
fn whole_pipelines_are_served_with_little_memory() {
    let _dog = watchdog("whole_pipelines_are_served_with_little_memory");
    const REQUESTS: usize = 300;
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, hello, &metrics);
        let mut clients: Vec<TcpStream> = (0..ATTACKERS).map(|_| server.connect()).collect();
        let requests = get("/hello").repeat(REQUESTS);
        for client in &mut clients {
            client.write_all(requests.as_bytes()).unwrap();
        }
        for client in &mut clients {
            let (mut responses, mut memory) = (0, [0; 16 * 1024]);
            let mut tail = Vec::new();
            while responses < REQUESTS {
                let n = read_some(client, &mut memory).expect("no reset");
                assert!(n > 0, "{driver:?}: closed after {responses} responses");
                tail.extend_from_slice(&memory[..n]);
                responses = tail.windows(9).filter(|w| *w == b"HTTP/1.1 ").count();
            }
            assert!(statuses(&tail).iter().all(|&status| status == 200));
        }
        assert_eq!(
            metric(&metrics, "onrush_heads_evicted_total"),
            0,
            "{driver:?}"
        );
    }
}

/// Clients request a large response and do not read it, or one that is not ready yet, and send a
/// few more bytes after the request. These bytes are kept until the response is sent. Neither they
/// nor the request may hold the whole block into which they were received. If there are too many of
/// them, clients that do not read are reset.
#[test]
fn input_behind_an_unread_response_leaves_memory_for_others() {
    let _dog = watchdog("input_behind_an_unread_response_leaves_memory_for_others");
    static LARGE: [u8; 4 << 20] = [b'x'; 4 << 20];
    // This many blocks exceed the memory.
    const CLIENTS: usize = 1_500;
    async fn sized(mut request: Request) -> Response {
        match request.path() {
            "/large" => Response::with_body(onrush::Body::from(&LARGE[..])),
            "/never" => loop {
                request.worker().sleep(Duration::from_secs(60)).await;
            },
            _ => {
                while let Some(piece) = request.body().next().await {
                    assert!(piece.is_ok(), "a whole body");
                }
                Response::text("hello")
            }
        }
    }
    /// A request with a body: it gets 503 if memory is short.
    fn upload(stream: &mut TcpStream) -> u16 {
        let head = "PUT /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
        stream.write_all(head.as_bytes()).unwrap();
        status(stream)
    }
    let surplus_of = |bytes: usize| {
        let head = b"GET / HTTP/1.1\r\nHost: t\r\nX: ";
        let mut surplus = head[..bytes.min(head.len())].to_vec();
        surplus.resize(bytes, b'x');
        surplus
    };
    for driver in drivers() {
        for (path, surplus_bytes, is_too_much) in [
            ("/large", 1, false),
            ("/never", 1, false),
            ("/large", 3_000, true),
        ] {
            let case = format!("{driver:?}, {path}, {surplus_bytes}");
            let metrics = Metrics::new();
            let server = serve(driver, sized, &metrics);
            let mut established = server.connect();
            assert_prompt(&mut established);
            let mut request = get(path).into_bytes();
            request.extend_from_slice(&surplus_of(surplus_bytes));
            let mut attackers = Vec::new();
            for number in 0..CLIENTS {
                let mut stream = server.connect();
                rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
                stream.write_all(&request).unwrap();
                attackers.push(stream);
                if number % 100 == 0 {
                    assert_prompt(&mut established);
                    assert_prompt(&mut server.connect());
                }
            }
            // All clients are served or were reset.
            let open = || metric(&metrics, "onrush_connections_open");
            until(|| {
                let active = metric(&metrics, "http_server_active_requests");
                active + evicted(&metrics) >= CLIENTS as u64
            });
            assert_prompt(&mut established);
            assert_prompt(&mut server.connect());
            match is_too_much {
                true => {
                    until(|| evicted(&metrics) > 0);
                    assert!(open() < CLIENTS as u64, "{case}");
                }
                false => {
                    // After the last handlers have ended, there is memory for bodies, too.
                    until(|| upload(&mut server.connect()) == 200);
                    assert_eq!(upload(&mut established), 200, "{case}");
                    assert_eq!(evicted(&metrics), 0, "{case}");
                    assert!(open() > CLIENTS as u64, "{case}");
                }
            }
        }
    }
}
