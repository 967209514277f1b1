//! Connections migrate from worker to worker, at every point of a stream of requests, invisibly to
//! clients: no byte is lost, duplicated or reordered, and no deadline restarts.

use crate::common::app::app;
use crate::common::gate::until;
use crate::common::{
    drivers, get, mask_dates, plain, read_some, seeds, serve_with, statuses, text, through_tls,
    watchdog,
};
use onrush::metrics::Format;
use onrush::sim::Simulation;
use onrush::{Limits, Metrics, Placement, Request, Response, Server};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WORKERS: usize = 3;

fn simulation(seed: u64, behaviour: Behaviour, limits: Limits) -> Simulation {
    Simulation::builder(seed)
        .half_close(true)
        .limits(limits)
        .network(behaviour)
        .workers(WORKERS)
        .start(&app)
}

/// Requests of every kind, pipelined.
fn stream() -> Vec<u8> {
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let chunked = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n";
    let all = [
        get("/hello"),
        post("/echo", "some bytes"),
        get("/late"),
        chunked.to_owned(),
        post("/early", "bytes that are not read"),
        get("/fields?a=1"),
        post("/late-echo", "more bytes"),
        get("/hello"),
    ];
    all.concat().into_bytes()
}

/// Receives everything that the server sends until it is idle.
fn collect(sim: &mut Simulation, client: &Client, responses: &mut Vec<u8>) {
    sim.run();
    if let Ok(bytes) = client.receive() {
        responses.extend(bytes);
    }
}

/// Sends `stream`, and migrates all connections after each of `cuts`. Returns the responses and the
/// number of migrations.
fn responses(seed: u64, behaviour: Behaviour, stream: &[u8], cuts: &[usize]) -> (String, u64) {
    let mut sim = simulation(seed, behaviour, Limits::default());
    let client = sim.connect();
    let (mut sent, mut responses) = (0, Vec::new());
    for (index, &cut) in cuts.iter().chain([&stream.len()]).enumerate() {
        sent += sim.send(&client, &stream[sent..cut]);
        if index < cuts.len() {
            // Sometimes while work is in progress, sometimes when all workers are idle.
            if (seed + index as u64).is_multiple_of(2) {
                collect(&mut sim, &client, &mut responses);
            }
            for from in 0..WORKERS {
                sim.migrate(from, (from + 1) % WORKERS); // On whichever worker it is.
            }
        }
        for _ in 0..40 {
            sim.advance(Duration::from_millis(1));
            collect(&mut sim, &client, &mut responses);
        }
    }
    assert_eq!(sim.open_connections(), 1);
    let counters = (0..WORKERS).map(|worker| sim.counters_of(worker));
    let (mut gone, mut come) = (0, 0);
    for counters in counters {
        gone += counters.handed_over.get();
        come += counters.taken_over.get();
    }
    assert_eq!(gone, come);
    let placed: usize = (0..WORKERS).map(|worker| sim.assigned(worker)).sum();
    assert_eq!(placed, 1);
    drop(client);
    sim.advance(Duration::from_millis(1));
    assert!((0..WORKERS).all(|worker| sim.assigned(worker) == 0));
    (mask_dates(&responses), gone)
}

#[test]
fn migration_at_every_point_of_a_pipelined_stream() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let _dog = watchdog("migration_at_every_point_of_a_pipelined_stream");
    let stream = stream();
    let calm = || plain(64 * 1024);
    let (expected, none) = responses(1, calm(), &stream, &[]);
    assert_eq!(statuses(expected.as_bytes()), [200; 8]);
    assert_eq!(none, 0);
    for cut in 0..=stream.len() {
        let (seen, went) = responses(cut as u64, calm(), &stream, &[cut]);
        assert_eq!(seen, expected, "after {cut} bytes");
        assert_eq!(went, 1, "after {cut} bytes");
        let (seen, _) = responses(cut as u64 + 7, Behaviour::default(), &stream, &[cut]);
        assert_eq!(seen, expected, "after {cut} bytes, in pieces");
    }
}

#[test]
fn repeated_migration() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let _dog = watchdog("repeated_migration");
    let stream = stream();
    let (expected, _) = responses(1, plain(64 * 1024), &stream, &[]);
    for seed in 0..60 {
        let step = 5 + seed as usize * 3;
        let cuts: Vec<usize> = (0..stream.len()).step_by(step).collect();
        let (seen, went) = responses(seed, Behaviour::default(), &stream, &cuts);
        assert_eq!(seen, expected, "seed {seed}");
        assert!(went > 0, "seed {seed}");
    }
}

#[test]
fn unparsed_input_migrates_with_the_connection() {
    let _dog = watchdog("unparsed_input_migrates_with_the_connection");
    // The first response waits, so all other requests are unparsed when the connection migrates.
    let stream = get("/late") + &get("/hello").repeat(200) + "GET /fields?a=2 HT";
    let rest = "TP/1.1\r\nHost: t\r\n\r\n";
    let mut sim = simulation(3, plain(64 * 1024), Limits::default());
    let client = sim.connect();
    assert_eq!(sim.send(&client, stream.as_bytes()), stream.len());
    sim.migrate(0, 1);
    let mut seen = Vec::new();
    collect(&mut sim, &client, &mut seen);
    assert!(seen.is_empty());
    assert_eq!(sim.counters().handed_over.get(), 0);
    sim.advance(Duration::from_millis(10));
    collect(&mut sim, &client, &mut seen);
    assert_eq!(statuses(&seen), [200; 201]);
    assert_eq!(sim.counters().handed_over.get(), 1);
    assert_eq!(sim.counters_of(1).requests.get(), 200);
    sim.migrate(1, 2);
    assert_eq!(sim.send(&client, rest.as_bytes()), rest.len());
    collect(&mut sim, &client, &mut seen);
    assert!(text(&seen).contains("X-Query: a=2\r\n"));
    assert_eq!(sim.counters_of(2).requests.get(), 1);
}

#[test]
fn deadlines_do_not_restart() {
    let _dog = watchdog("deadlines_do_not_restart");
    let limits = || {
        Limits::default()
            .head_timeout(Duration::from_secs(1))
            .idle_timeout(Duration::from_secs(2))
    };
    // Within a head.
    let mut sim = simulation(1, plain(1024), limits());
    let client = sim.connect();
    assert_eq!(sim.send(&client, b"GET /hello HT"), 13);
    for to in [1, 2, 0, 1] {
        sim.advance(Duration::from_millis(200));
        sim.migrate((to + 2) % WORKERS, to);
    }
    sim.advance(Duration::from_millis(180));
    assert!(client.receive().unwrap_or_default().is_empty());
    sim.advance(Duration::from_millis(40));
    assert_eq!(statuses(&client.receive().expect("a response")), [408]);
    // Between two requests.
    let mut sim = simulation(1, plain(1024), limits());
    let client = sim.connect();
    assert!(crate::common::ask(&mut sim, &client, &get("/hello")).ends_with("hello"));
    for to in [1, 2, 0] {
        sim.advance(Duration::from_millis(500));
        sim.migrate((to + 2) % WORKERS, to);
    }
    sim.advance(Duration::from_millis(480));
    assert_eq!(sim.open_connections(), 1);
    sim.advance(Duration::from_millis(40));
    assert_eq!(sim.open_connections(), 0);
    assert!(client.at_end());
    // Migration during a request: after the response, the usual idle timeout applies.
    let mut sim = simulation(1, plain(1024), limits());
    let client = sim.connect();
    client.send(get("/late").as_bytes()).expect("room");
    sim.run();
    sim.migrate(0, 1);
    sim.advance(Duration::from_secs(1));
    assert_eq!(statuses(&client.receive().expect("a response")), [200]);
    assert_eq!(sim.counters_of(1).taken_over.get(), 1);
    sim.advance(Duration::from_millis(980));
    assert_eq!(sim.open_connections(), 1);
    sim.advance(Duration::from_millis(40));
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn clients_that_disconnect_during_migration_leave_nothing() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let _dog = watchdog("clients_that_disconnect_during_migration_leave_nothing");
    let stream = stream();
    for seed in 0..seeds(200) {
        let mut sim = simulation(seed, Behaviour::default(), Limits::default());
        let client = sim.connect();
        let cut = stream.len() * (seed as usize % 20) / 20;
        sim.send(&client, &stream[..cut]);
        sim.migrate(0, 1);
        match seed % 4 {
            0 => drop(client),
            1 => client.reset(),
            2 => {
                sim.poll();
                client.reset();
            }
            _ => {
                // A client that ends only its own direction still gets its responses.
                assert_eq!(sim.send(&client, &stream[cut..]), stream.len() - cut);
                client.shutdown_write();
                let mut seen = Vec::new();
                for _ in 0..100 {
                    sim.advance(Duration::from_millis(1));
                    collect(&mut sim, &client, &mut seen);
                }
                assert_eq!(statuses(&seen), [200; 8], "seed {seed}");
            }
        }
        sim.advance(Duration::from_secs(100));
        assert_eq!(sim.open_connections(), 0, "seed {seed}");
        assert!(
            (0..WORKERS).all(|worker| sim.assigned(worker) == 0),
            "seed {seed}"
        );
        assert_eq!(sim.worker().live_tasks(), 0, "seed {seed}");
    }
}

#[test]
fn drain_waits_for_connections_in_transfer() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let _dog = watchdog("drain_waits_for_connections_in_transfer");
    for seed in 0..50 {
        let late = Behaviour {
            delay: true,
            ..plain(64 * 1024)
        };
        let mut sim = simulation(seed, late, Limits::default());
        let clients: Vec<Client> = (0..5).map(|_| sim.connect()).collect();
        for client in &clients {
            assert!(crate::common::ask(&mut sim, client, &get("/hello")).ends_with("hello"));
            client.send(get("/late").as_bytes()).expect("room");
        }
        sim.migrate(0, 1);
        if seed % 2 == 0 {
            sim.poll();
        }
        sim.drain();
        let mut seen = vec![Vec::new(); clients.len()];
        for _ in 0..1000 {
            sim.advance(Duration::from_millis(1));
            for (client, seen) in clients.iter().zip(&mut seen) {
                seen.extend(client.receive().unwrap_or_default());
            }
        }
        for seen in seen {
            assert!(
                text(&seen).ends_with("late"),
                "seed {seed}: {}",
                text(&seen)
            );
        }
        drop(clients);
        sim.advance(Duration::from_millis(10));
        assert_eq!(sim.open_connections(), 0, "seed {seed}");
    }
}

/// Responds with the requested number, and uses some CPU time if requested. Reads a body directly
/// into its own buffer.
async fn number(mut request: Request) -> Response {
    let path = request.path().to_owned();
    let mut body = Vec::with_capacity(UPLOAD_BYTES);
    let read = request.body().fill_whole(&mut body).await;
    if path.starts_with("/upload/")
        && (read.is_err() || body != crate::common::pattern(UPLOAD_BYTES))
    {
        return Response::text("what came is not what was sent").with_status(500);
    }
    if !path.starts_with("/idle/") {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(300) {
            std::hint::spin_loop();
        }
    }
    let number = path.rsplit('/').next().unwrap_or_default();
    Response::text(number.to_owned())
}

fn sample(page: &str, name: &str) -> Vec<u64> {
    let lines = page.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect()
}

/// Large enough to be received directly, without the driver's buffers.
const UPLOAD_BYTES: usize = 200_000;

/// Requests numbers, several at a time, until `end` is set, but at least once. Fails if a response
/// is out of order.
fn ask_on(mut stream: TcpStream, path: &str, end: &AtomicBool) -> u64 {
    let (mut number, mut buffer) = (0_u64, [0; 4096]);
    loop {
        let batch = 1 + number % 3;
        let length = format!("Content-Length: {UPLOAD_BYTES}");
        for n in number..number + batch {
            let (head, body) = match path {
                "/upload/" => (
                    format!("PUT {path}{n:08} HTTP/1.1\r\nHost: t\r\n{length}\r\n\r\n"),
                    crate::common::pattern(UPLOAD_BYTES),
                ),
                _ => (get(&format!("{path}{n:08}")), Vec::new()),
            };
            stream
                .write_all(&[head.into_bytes(), body].concat())
                .expect("sent");
        }
        let mut seen = String::new();
        let has_response = |seen: &str, n| seen.contains(&format!("\r\n\r\n{n:08}"));
        while !(number..number + batch).all(|n| has_response(&seen, n)) {
            let n = read_some(&mut stream, &mut buffer).expect("a response");
            assert!(n > 0, "the connection ended after {number}");
            seen.push_str(&text(&buffer[..n]));
        }
        let order: Vec<usize> = (number..number + batch)
            .filter_map(|n| seen.find(&format!("\r\n\r\n{n:08}")))
            .collect();
        assert!(order.is_sorted(), "{seen}");
        assert_eq!(statuses(seen.as_bytes()).len(), batch as usize, "{seen}");
        number += batch;
        if end.load(Ordering::Relaxed) {
            return number;
        }
    }
}

/// All connections start on one worker, and a few cause most of the load. They are distributed.
#[test]
fn busy_connections_migrate_to_idle_workers() {
    let _dog = watchdog("busy_connections_migrate_to_idle_workers");
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve_with(driver, number, |server: Server| {
            server
                .workers(WORKERS)
                .placement(Placement::Single)
                .metrics(&metrics)
        });
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..12)
                .map(|client| {
                    let (stream, end) = (server.connect(), &end);
                    let path = ["/busy/", "/upload/", "/idle/"][client % 3];
                    scope.spawn(move || ask_on(stream, path, end))
                })
                .collect();
            let begun = Instant::now();
            let went = || {
                sample(
                    &metrics.render(Format::Prometheus),
                    "onrush_connections_taken",
                )
            };
            // Each of the other workers has got some.
            while went().iter().filter(|&&taken| taken > 0).count() < WORKERS - 1 {
                assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", went());
                std::thread::sleep(Duration::from_millis(20));
            }
            end.store(true, Ordering::Relaxed);
            for client in clients {
                assert!(client.join().expect("responses in order") > 0);
            }
        });
        let sum = |name| {
            let page = metrics.render(Format::Prometheus);
            sample(&page, name).into_iter().sum::<u64>()
        };
        // The last ones may still be on their way.
        let handed_over = sum("onrush_connections_handed_over_total");
        while sum("onrush_connections_taken_over_total") < handed_over {
            std::thread::sleep(Duration::from_millis(20)); // The watchdog ends it.
        }
        let accepted = sample(
            &metrics.render(Format::Prometheus),
            "onrush_connections_accepted_total",
        );
        assert_eq!(accepted, [12, 0, 0]);
    }
}

#[test]
fn connections_are_placed_evenly() {
    let _dog = watchdog("connections_are_placed_evenly");
    for driver in drivers() {
        for placement in Placement::ALL {
            let metrics = Metrics::new();
            let server = serve_with(driver, number, |server: Server| {
                server
                    .workers(WORKERS)
                    .placement(placement)
                    .rebalance(false)
                    .metrics(&metrics)
            });
            // A worker that is blocked gets no connections, also if the machine is busy. So each
            // client waits until all workers sleep.
            let name = "onrush_worker_iteration_seconds{";
            let are_asleep = || sample(&metrics.render(Format::Prometheus), name) == [0; WORKERS];
            let mut clients = Vec::new();
            for _ in 0..20 {
                until(are_asleep);
                let mut client = server.connect();
                client.write_all(get("/1").as_bytes()).expect("sent");
                let mut buffer = [0; 1024];
                let n = read_some(&mut client, &mut buffer).expect("a response");
                assert!(text(&buffer[..n]).ends_with("\r\n\r\n1"));
                clients.push(client);
            }
            let open = sample(
                &metrics.render(Format::Prometheus),
                "onrush_connections_open",
            );
            assert_eq!(open.iter().sum::<u64>(), 20, "{driver:?} {placement:?}");
            match placement {
                Placement::Single => assert_eq!(open, [20, 0, 0]),
                Placement::RoundRobin | Placement::LeastLoaded => {
                    let (min, max) = (open.iter().min(), open.iter().max());
                    let apart = max.zip(min).map(|(max, min)| max - min);
                    assert!(apart <= Some(1), "{driver:?} {placement:?}: {open:?}");
                }
                _ => {} // With `ReusePort`, the kernel decides.
            }
        }
    }
}
