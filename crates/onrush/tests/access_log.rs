//! The access log: when an entry is written, its byte counts and its outcome.
#![forbid(unsafe_code)]

use crate::common::app::app;
use crate::common::entries::{Entry, entries, expect, keep_entries, number};
use crate::common::{
    Served, calm, content, drivers, get, plain, serve_with, through_tls, watchdog,
};
use onrush::sim::Simulation;
use onrush::{AccessLog, Bytes, Limits, Request, Response};
use onrush_rt::driver::sim::Behaviour;
use std::future::pending;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The entries whose target contains `mark`.
fn marked(mark: &str) -> Vec<Entry> {
    let names = |entry: &&Entry| {
        let line = entry.get("target").or(entry.get("request"));
        line.is_some_and(|line| line.contains(mark))
    };
    entries().iter().filter(names).cloned().collect()
}

/// Waits until there are `count` entries with `mark`.
fn wait_for(mark: &str, count: usize) -> Vec<Entry> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let found = marked(mark);
        if found.len() >= count {
            assert_eq!(found.len(), count, "{found:#?}");
            return found;
        }
        assert!(Instant::now() < end, "{mark}: {:#?}", entries());
        std::thread::sleep(Duration::from_millis(2));
    }
}

const LARGE_BYTES: usize = 50_000_000;
/// Receive memory of a simulated worker.
const RECEIVE_BYTES: usize = 64 << 20;

async fn application(request: Request) -> Response {
    match request.path() {
        "/large" => Response::with_body(Bytes::from(vec![b'x'; LARGE_BYTES])),
        "/never" => pending().await,
        _ => app(request).await,
    }
}

fn logged(driver: onrush::DriverPreference, limits: Limits) -> Served {
    keep_entries();
    serve_with(driver, application, |server| {
        server.access_log(AccessLog::On).limits(limits)
    })
}

/// Sends a request and reads until the server closes.
fn exchange(server: &Served, request: &str) -> Vec<u8> {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("a response");
    response
}

/// Ends a connection with a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("an option");
}

/// Every kind of response: short, streamed, chunked, large, without content, late, refused.
const PATHS: [&str; 12] = [
    "/hello",
    "/stream",
    "/sized",
    "/big",
    "/late",
    "/late-big",
    "/nothing",
    "/not-modified",
    "/close",
    "/panic",
    "/late-panic",
    "/missing",
];

#[test]
fn complete_responses_are_logged_with_the_bytes_sent() {
    let _dog = watchdog("complete_responses_are_logged_with_the_bytes_sent");
    for driver in drivers() {
        let server = logged(driver, Limits::default());
        for method in ["GET", "HEAD"] {
            for path in PATHS {
                let mark = format!("{path}?whole-{driver:?}-{method}");
                let request = format!(
                    "{method} {mark} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
                     User-Agent: test/1 (\"x\")\r\nReferer: http://t/a?b\r\n\r\n"
                );
                let response = exchange(&server, &request);
                let entry = wait_for(&mark, 1).remove(0);
                expect(
                    &entry,
                    &[
                        ("method", method),
                        ("target", &mark),
                        ("version", "HTTP/1.1"),
                        ("end", "complete"),
                        ("status", &String::from_utf8_lossy(&response[9..12])),
                        ("received_bytes", &request.len().to_string()),
                        ("sent_bytes", &response.len().to_string()),
                        ("body_bytes", &content(&response).len().to_string()),
                        ("user_agent", "test/1 (\"x\")"),
                        ("referer", "http://t/a?b"),
                    ],
                );
                assert!(entry["peer"].starts_with("127.0.0.1:"), "{entry:?}");
                assert!(number(&entry, "duration_us") < 60_000_000);
            }
        }
    }
}

/// `traceparent` of W3C Trace Context. A malformed or repeated one is ignored.
#[test]
fn the_trace_of_a_request_is_logged() {
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let valid = format!("Traceparent: 00-{trace}-{parent}-01\r\n");
    for driver in drivers() {
        let server = logged(driver, Limits::default());
        for (kind, fields, ids) in [
            ("valid", valid.clone(), true),
            ("twice", format!("{valid}{valid}"), false),
            ("malformed", valid.to_uppercase(), false),
            ("none", String::new(), false),
        ] {
            let mark = format!("/hello?trace-{driver:?}-{kind}");
            exchange(
                &server,
                &format!("GET {mark} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{fields}\r\n"),
            );
            let entry = wait_for(&mark, 1).remove(0);
            let field = |name| entry.get(name).map(String::as_str);
            let expected = ids.then_some((trace, parent));
            assert_eq!(
                field("trace_id").zip(field("parent_id")),
                expected,
                "{kind}"
            );
        }
    }
}

#[test]
fn pipelined_responses_have_separate_entries() {
    let _dog = watchdog("pipelined_responses_have_separate_entries");
    for driver in drivers() {
        let server = logged(driver, Limits::default());
        let mark = format!("pipelined-{driver:?}");
        let paths = ["/hello", "/late", "/big", "/hello", "/stream", "/late-big"];
        let mut requests = String::new();
        for path in paths {
            requests += &get(&format!("{path}?{mark}"));
        }
        requests += &format!("HEAD /big?{mark} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        let responses = exchange(&server, &requests);
        let entries = wait_for(&mark, 7);
        let sent: u64 = entries
            .iter()
            .map(|entry| number(entry, "sent_bytes"))
            .sum();
        assert_eq!(sent, responses.len() as u64, "{entries:#?}");
        for (entry, path) in entries.iter().zip(paths) {
            assert!(
                entry["target"].starts_with(path),
                "wrong order: {entries:#?}"
            );
            assert_eq!(entry["end"], "complete");
        }
        let bodies = entries.iter().map(|entry| number(entry, "body_bytes"));
        let bodies: Vec<u64> = bodies.collect();
        // 13 bytes in three chunks of one digit each, and the last chunk.
        let chunked = 13 + 3 * 5 + 5;
        assert_eq!(bodies, [5, 4, 300_000, 5, chunked, 300_000, 0]);
    }
}

#[test]
fn simulator_logs_the_same_for_any_split() {
    if through_tls() {
        return; // The simulator does the same.
    }
    keep_entries();
    for seed in 0..20 {
        let behaviour = Behaviour {
            pipe_bytes: 1 << 14,
            split: true,
            delay: true,
        };
        let mut sim = Simulation::builder(seed)
            .network(behaviour)
            .receive_memory(RECEIVE_BYTES)
            .access_log(AccessLog::On)
            .start(&application);
        let client = sim.connect();
        let mark = format!("simulated-{seed}-end");
        let mut requests = String::new();
        for path in ["/hello", "/big", "/stream", "/late", "/hello"] {
            requests += &get(&format!("{path}?{mark}"));
        }
        let body = "x".repeat(5000);
        let post =
            format!("POST /echo?{mark} HTTP/1.1\r\nHost: t\r\nContent-Length: 5000\r\n\r\n{body}");
        requests += &post;
        let mut responses = Vec::new();
        let mut rest = requests.as_bytes();
        for _ in 0..100_000 {
            rest = &rest[client.send(rest).unwrap_or(0)..];
            sim.advance(Duration::from_millis(1));
            responses.extend(client.receive().unwrap_or_default());
            if rest.is_empty() && responses.ends_with(body.as_bytes()) {
                break;
            }
        }
        sim.run();
        let entries = marked(&mark);
        assert_eq!(entries.len(), 6, "{entries:#?}");
        let sent: u64 = entries
            .iter()
            .map(|entry| number(entry, "sent_bytes"))
            .sum();
        assert_eq!(sent, responses.len() as u64, "{entries:#?}");
        assert!(entries.iter().all(|entry| entry["end"] == "complete"));
        assert_eq!(number(&entries[5], "received_bytes"), post.len() as u64);
        assert_eq!(number(&entries[5], "body_bytes"), 5000);
        assert_eq!(
            sim.worker().live_tasks(),
            1,
            "only the logging task remains"
        );
    }
}

#[test]
fn aborted_download_is_logged_with_the_bytes_sent() {
    let _dog = watchdog("aborted_download_is_logged_with_the_bytes_sent");
    for driver in drivers() {
        let server = logged(driver, Limits::default());
        let mark = format!("aborted-{driver:?}");
        let mut stream = server.connect();
        stream
            .write_all(get(&format!("/large?{mark}")).as_bytes())
            .unwrap();
        let mut received = vec![0; 1_000_000];
        stream.read_exact(&mut received).expect("a part");
        assert!(marked(&mark).is_empty(), "the exchange has not ended");
        reset(stream);
        let entry = wait_for(&mark, 1).remove(0);
        expect(&entry, &[("status", "200"), ("end", "client_gone")]);
        let sent = number(&entry, "sent_bytes");
        let range = received.len() as u64..LARGE_BYTES as u64;
        assert!(range.contains(&sent), "{entry:#?}");
        let head_bytes = received.len() - content(&received).len();
        assert_eq!(number(&entry, "body_bytes"), sent - head_bytes as u64);
    }
}

#[test]
fn simulator_logs_the_exact_number_of_accepted_bytes() {
    keep_entries();
    const PIPE_BYTES: usize = 10_000;
    let limits = Limits::default();
    let net = plain(PIPE_BYTES);
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(net)
        .receive_memory(RECEIVE_BYTES)
        .access_log(AccessLog::On)
        .start(&application);
    let client = sim.connect();
    for mark in ["/large?exact", "/big?exact", "/hello?exact"] {
        sim.send(&client, get(mark).as_bytes());
    }
    sim.run();
    let mut received = 0;
    for _ in 0..3 {
        received += client.receive().expect("a part").len();
        sim.run();
    }
    client.reset();
    sim.run();
    let entries = marked("?exact");
    assert_eq!(
        entries.len(),
        1,
        "the other responses had not begun: {entries:#?}"
    );
    expect(&entries[0], &[("status", "200"), ("end", "client_gone")]);
    // The pipe was full once more.
    let sent = number(&entries[0], "sent_bytes") as usize;
    assert_eq!(sent, received + PIPE_BYTES);
}

#[test]
fn rejected_heads_are_logged() {
    let _dog = watchdog("rejected_heads_are_logged");
    for driver in drivers() {
        let limits = Limits::default().head_timeout(Duration::from_millis(300));
        let server = logged(driver, limits);
        let mark = format!("rejected-{driver:?}");
        let long = "x".repeat(limits.head_bytes_max + 1);
        for (status, what, request) in [
            (
                "400",
                "bad",
                format!("GET /{mark}-bad HTTP/1.1\r\nno colon\r\n\r\n"),
            ),
            ("400", "line", format!("{mark}-line \u{1}\r\n\r\n")),
            (
                "414",
                "long",
                format!("GET /{mark}-long/{long} HTTP/1.1\r\n"),
            ),
            (
                "431",
                "field",
                format!("GET /{mark}-field HTTP/1.1\r\nHost: t\r\nX: {long}\r\n"),
            ),
            ("408", "late", format!("GET /{mark}-late HTTP/1.1\r\nHos")),
        ] {
            let mut stream = server.connect();
            // It may be reset before the server reads it.
            let _ = stream.write_all(request.as_bytes());
            let mut response = Vec::new();
            let _ = stream.read_to_end(&mut response);
            let entry = wait_for(&format!("{mark}-{what}"), 1).remove(0);
            let end = match what {
                "late" => "timed_out",
                _ => "rejected",
            };
            expect(&entry, &[("status", status), ("end", end)]);
            let line = request.lines().next().unwrap_or_default();
            assert!(line.starts_with(&entry["request"]), "{entry:?}");
            assert!(entry["request"].len() <= 2048 && !entry.contains_key("method"));
            assert!(number(&entry, "received_bytes") <= request.len() as u64);
            if !response.is_empty() {
                assert_eq!(number(&entry, "sent_bytes"), response.len() as u64);
                assert_eq!(
                    number(&entry, "body_bytes"),
                    content(&response).len() as u64
                );
            }
        }
    }
}

#[test]
fn refused_body_length_is_logged_with_its_request() {
    let _dog = watchdog("refused_body_length_is_logged_with_its_request");
    for driver in drivers() {
        let limits = Limits::default().body_bytes_max(4);
        let server = logged(driver, limits);
        let mark = format!("refused-{driver:?}");
        let head = format!(
            "\r\nPUT /{mark} HTTP/1.1\r\nHost: t\r\nUser-Agent: agent\r\nReferer: http://t/\r\n\
             Content-Length: 5\r\n\r\n"
        );
        let response = exchange(&server, &(head.clone() + "hello"));
        assert!(response.starts_with(b"HTTP/1.1 413 "), "{driver:?}");
        let entry = wait_for(&mark, 1).remove(0);
        expect(
            &entry,
            &[
                ("method", "PUT"),
                ("target", &format!("/{mark}")),
                ("version", "HTTP/1.1"),
                ("user_agent", "agent"),
                ("referer", "http://t/"),
                ("status", "413"),
                ("end", "rejected"),
                ("received_bytes", &head.len().to_string()),
                ("sent_bytes", &response.len().to_string()),
                ("body_bytes", &content(&response).len().to_string()),
            ],
        );
        assert!(!entry.contains_key("request"), "{entry:?}");
    }
}

#[test]
fn disconnect_during_the_handler_is_logged() {
    let _dog = watchdog("disconnect_during_the_handler_is_logged");
    for driver in drivers() {
        let server = logged(driver, Limits::default());
        let mark = format!("gone-{driver:?}");
        let mut stream = server.connect();
        let requests = get(&format!("/hello?{mark}")) + &get(&format!("/never?{mark}"));
        stream.write_all(requests.as_bytes()).unwrap();
        let mut response = vec![0; 5];
        while !response.ends_with(b"hello") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the first response");
            response.push(byte[0]);
        }
        wait_for(&mark, 1);
        reset(stream);
        let entry = wait_for(&mark, 2).remove(1);
        let expected = [
            ("end", "client_gone"),
            ("sent_bytes", "0"),
            ("body_bytes", "0"),
        ];
        expect(&entry, &expected);
        assert!(!entry.contains_key("status"), "{entry:?}");
    }
}

#[test]
fn exchanges_cut_by_a_limit_or_by_the_end_are_logged() {
    let _dog = watchdog("exchanges_cut_by_a_limit_or_by_the_end_are_logged");
    for driver in drivers() {
        let limits = Limits::default().total_timeout(Duration::from_millis(200));
        let mark = format!("/never?late-{driver:?}");
        let server = logged(driver, limits);
        let mut stream = server.connect();
        stream.write_all(get(&mark).as_bytes()).unwrap();
        let entry = wait_for(&mark, 1).remove(0);
        expect(&entry, &[("end", "timed_out"), ("sent_bytes", "0")]);

        let server = logged(driver, Limits::default());
        let (cut, stopped) = (
            format!("/broken?{driver:?}"),
            format!("/never?stop-{driver:?}"),
        );
        let mut stream = server.connect();
        stream.write_all(get(&cut).as_bytes()).unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        let entry = wait_for(&cut, 1).remove(0);
        expect(&entry, &[("status", "200"), ("end", "cut_off")]);

        let mut stream = server.connect();
        let requests = get("/hello") + &get(&stopped);
        stream.write_all(requests.as_bytes()).unwrap();
        stream
            .read_exact(&mut [0; 9])
            .expect("the request after it has begun");
        server.running().handle().shutdown_now();
        server.wait().expect("no worker failed");
        let entry = wait_for(&stopped, 1).remove(0);
        expect(&entry, &[("end", "stopped"), ("sent_bytes", "0")]);
    }
}

#[test]
fn evicted_heads_are_logged() {
    if through_tls() {
        return; // The simulator does the same.
    }
    // These entries have no request that tells them from those of other tests.
    if testing::child::elsewhere(module_path!(), "evicted_heads_are_logged") {
        return;
    }
    keep_entries();
    let limits = Limits::default();
    let net = plain(1 << 16);
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(net)
        .receive_memory(1 << 20)
        .access_log(AccessLog::On)
        .start(&application);
    // More incomplete heads than fit into memory.
    let head = format!(
        "GET /evicted HTTP/1.1\r\nHost: t\r\nX: {}",
        "x".repeat(6000)
    );
    let mut clients: Vec<_> = (0..400).map(|_| sim.connect()).collect();
    for client in &clients {
        sim.send(client, head.as_bytes());
    }
    sim.run();
    let mut evicted = entries().clone();
    evicted.retain(|entry| entry["end"] == "evicted");
    assert!((100..400).contains(&evicted.len()), "{}", evicted.len());
    for entry in &evicted {
        expect(entry, &[("status", "408")]);
        assert!(number(entry, "sent_bytes") > number(entry, "body_bytes"));
    }
    clients.clear();
    sim.run();
}

#[test]
fn access_log_is_disabled_by_default() {
    keep_entries();
    let mut sim = calm(&application, Limits::default());
    let client = sim.connect();
    assert!(crate::common::ask(&mut sim, &client, &get("/hello?off")).ends_with("hello"));
    assert!(marked("/hello?off").is_empty());
}
