//! The access log at the connection limit: entries of connections that receive 503.
#![forbid(unsafe_code)]

use crate::common::entries::{Entry, entries, expect, keep_entries, number};
use crate::common::{drivers, get, plain, serve_with, watchdog};
use onrush::sim::Simulation;
use onrush::{AccessLog, Limits, Request, Response};
use onrush_rt::driver::sim::Behaviour;
use std::future::pending;
use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

async fn application(request: Request) -> Response {
    match request.path() {
        "/never" => pending().await,
        _ => Response::text("hello"),
    }
}

/// The entries of connections over the limit, of simulated clients.
fn over_limit() -> Vec<Entry> {
    over_limit_of(None, 0)
}

/// The entries of connections over the limit of one peer, or of simulated clients, after the first
/// `skipped` ones of the log. A port may be used again, so an earlier peer may have had the same.
fn over_limit_of(peer: Option<&str>, skipped: usize) -> Vec<Entry> {
    let over_limit = |entry: &&Entry| {
        let known = ["method", "target", "version", "request"];
        entry.get("status").is_some_and(|status| status == "503")
            && entry.get("peer").map(String::as_str) == peer
            && !known.iter().any(|name| entry.contains_key(name))
    };
    let entries = entries();
    let later = entries.iter().skip(skipped);
    later.filter(over_limit).cloned().collect()
}

/// The maximum number of entries of connections over the limit per second.
const PER_S: usize = 10;

/// Connections over the limit: more than a small server keeps open at once.
const OVER_LIMIT_COUNT: usize = 8;

#[test]
fn connections_over_the_limit_are_logged() {
    let _dog = watchdog("connections_over_the_limit_are_logged");
    keep_entries();
    for driver in drivers() {
        let server = serve_with(driver, application, |server| {
            let server = server.access_log(AccessLog::On).workers(1);
            server.connections_max(1).defer_accept(false)
        });
        let mark = format!("over-limit-{driver:?}");
        let earlier = entries().len();
        let mut busy = server.connect();
        let requests = get(&format!("/hello?{mark}")) + &get(&format!("/never?{mark}"));
        busy.write_all(requests.as_bytes()).unwrap();
        busy.read_exact(&mut [0; 9])
            .expect("the request after it has begun");
        let mut clients: Vec<_> = (0..OVER_LIMIT_COUNT).map(|_| server.connect()).collect();
        for client in &mut clients {
            let mut response = Vec::new();
            client.read_to_end(&mut response).expect("a response");
            assert!(response.starts_with(b"HTTP/1.1 503 "), "{driver:?}");
            let peer = client.local_addr().expect("an address").to_string();
            let end = Instant::now() + Duration::from_secs(60);
            let found = loop {
                let found = over_limit_of(Some(&peer), earlier);
                if !found.is_empty() {
                    break found;
                }
                assert!(Instant::now() < end, "{peer}: {:#?}", entries());
                std::thread::sleep(Duration::from_millis(2));
            };
            assert_eq!(found.len(), 1, "{found:#?}");
            expect(
                &found[0],
                &[
                    ("end", "rejected"),
                    ("received_bytes", "0"),
                    ("sent_bytes", &response.len().to_string()),
                    ("body_bytes", "0"),
                ],
            );
            assert!(number(&found[0], "duration_us") < 60_000_000);
        }
        let target = format!("/never?{mark}");
        let ended = |entry: &Entry| entry.get("target") == Some(&target);
        assert!(!entries().iter().any(ended), "the handler is pending");
    }
}

/// Simulated clients have no address, so only one test at a time may cause their entries.
static SIMULATED: Mutex<()> = Mutex::new(());

#[test]
fn simulator_logs_connections_over_the_limit() {
    let _alone = SIMULATED.lock().unwrap_or_else(PoisonError::into_inner);
    keep_entries();
    const KEPT_OPEN: usize = 64;
    const CLIENTS: usize = KEPT_OPEN + 16;
    let networks = (0..20).map(|seed| Behaviour {
        pipe_bytes: [20, 1000][seed % 2],
        ..Behaviour::default()
    });
    for (seed, network) in (0..).zip(networks.chain([plain(20), plain(1000)])) {
        let (before, fits) = (over_limit().len(), network.pipe_bytes == 1000);
        let limits = Limits::default().linger_timeout(Duration::from_secs(60));
        let mut sim = Simulation::builder(seed)
            .limits(limits)
            .network(network)
            .connections_max(1)
            .access_log(AccessLog::On)
            .start(&application);
        let busy = sim.connect();
        sim.send(&busy, get("/never").as_bytes());
        let gone = sim.connect();
        gone.reset();
        sim.run();
        let entry = over_limit().remove(before);
        expect(&entry, &[("end", "client_gone"), ("sent_bytes", "0")]);

        let mut clients = Vec::new();
        while clients.len() < CLIENTS {
            sim.advance(Duration::from_secs(1)); // All of them get an entry.
            clients.extend((0..PER_S).map(|_| sim.connect()));
            sim.run();
        }
        let at_once = over_limit().len() - before - 1;
        match fits {
            true => assert_eq!(at_once, CLIENTS),
            // The others wait until their clients read.
            false => assert!(at_once >= CLIENTS - KEPT_OPEN, "{at_once}"),
        }
        // It takes the place of the oldest.
        sim.advance(Duration::from_secs(1));
        let late = sim.connect();
        late.reset();
        sim.run();
        let entry = over_limit().pop().expect("an entry");
        expect(&entry, &[("end", "client_gone"), ("sent_bytes", "0")]);

        let mut received = vec![0; CLIENTS];
        for _ in 0..1000 {
            for (client, received) in clients.iter().zip(&mut received) {
                *received += client.receive().unwrap_or_default().len();
            }
            sim.run();
        }
        let response_bytes = *received.iter().max().expect("some");
        let mut entries = over_limit().split_off(before);
        entries.retain(|entry| entry["end"] != "client_gone");
        let mut sent = Vec::new();
        for entry in &entries {
            let bytes = number(entry, "sent_bytes") as usize;
            sent.push(bytes);
            let end = match bytes == response_bytes {
                true => "rejected",
                false => "evicted",
            };
            let fields = [("end", end), ("received_bytes", "0"), ("body_bytes", "0")];
            expect(entry, &fields);
        }
        received.sort_unstable();
        sent.sort_unstable();
        assert_eq!(sent, received, "seed {seed}");
        let complete = sent.iter().filter(|&&bytes| bytes == response_bytes);
        assert!(complete.count() >= KEPT_OPEN - 1, "{sent:?}");
        assert_eq!(sent[0] == response_bytes, fits, "{sent:?}");
        assert_eq!(sim.open_connections(), KEPT_OPEN, "the others linger");
        drop(clients);
        sim.run();
        assert_eq!(sim.open_connections(), 1, "only the served one");
    }
}

#[test]
fn flood_over_the_limit_is_counted() {
    let _alone = SIMULATED.lock().unwrap_or_else(PoisonError::into_inner);
    keep_entries();
    const CLIENTS: usize = 300;
    let limits = Limits::default();
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(plain(1000))
        .connections_max(1)
        .access_log(AccessLog::On)
        .start(&application);
    let busy = sim.connect();
    sim.send(&busy, get("/never").as_bytes());
    let before = over_limit().len();
    let mut expected = Vec::new();
    for round in 0..3 {
        for _ in 0..CLIENTS {
            let client = sim.connect();
            sim.run();
            let response = client.receive().expect("a response");
            assert!(
                response.starts_with(b"HTTP/1.1 503 "),
                "with or without an entry"
            );
        }
        expected.push((round > 0).then(|| (CLIENTS - PER_S).to_string()));
        expected.extend((1..PER_S).map(|_| None));
        sim.advance(Duration::from_secs(1));
    }
    let entries = over_limit().split_off(before);
    let suppressed: Vec<_> = entries
        .iter()
        .map(|entry| entry.get("suppressed").cloned())
        .collect();
    assert_eq!(suppressed, expected);
}
