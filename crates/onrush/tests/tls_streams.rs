//! Bodies, responses and ends of connections over TLS.

use crate::common::app::{Endless, app};
use crate::common::entries::{Entry, entries, keep_entries};
use crate::common::gate::until;
use crate::common::over_tls::Raw;
use crate::common::sim_tls::{TlsClient, hello, simulation};
use crate::common::{
    content, dechunk, drivers, get, pattern, plain, serve_tls, serve_with, statuses, text, watchdog,
};
use onrush::metrics::HandshakeOutcome;
use onrush::tls::rustls::{AlertDescription, Error};
use onrush::{AccessLog, Body, Limits, Request, Response};
use onrush_rt::fs::{Dir, File, OpenHow};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use testing::TempDir;

fn large_bodies() -> Limits {
    Limits::default().body_bytes_max(1 << 30)
}

fn post(path: &str, bytes: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n")
}

#[test]
fn a_response_that_is_cut_has_no_close_notify() {
    let _dog = watchdog("a_response_that_is_cut_has_no_close_notify");
    async fn handler(request: Request) -> Response {
        match request.path() {
            "/waits" => {
                let (mut sender, body) = Body::channel(1024);
                let task = request.worker().spawn(async move {
                    sender.send("a part").await.unwrap();
                    std::future::pending::<()>().await;
                    drop(sender);
                });
                task.detach();
                Response::with_body(body)
            }
            _ => app(request).await,
        }
    }
    for driver in drivers() {
        let served = serve_tls(driver, handler, |server| server);
        // The end of the connection is the end of these responses.
        let mut complete = Raw::connect(&served);
        complete.send(b"GET /stream HTTP/1.0\r\n\r\n");
        complete.read_to_end().unwrap();
        assert_eq!(content(&complete.plaintext), b"one two three");
        assert!(complete.received_close_notify);
        let mut cut = Raw::connect(&served);
        cut.send(b"GET /broken HTTP/1.0\r\n\r\n");
        cut.read_to_end().unwrap();
        assert!(!cut.received_close_notify, "{driver:?}");
        let mut waits = Raw::connect(&served);
        waits.send(b"GET /waits HTTP/1.0\r\n\r\n");
        while !waits.plaintext.ends_with(b"a part") {
            assert!(waits.read().unwrap());
        }
        served.running().handle().shutdown_now();
        waits.read_to_end().unwrap();
        assert!(!waits.received_close_notify, "{driver:?}");
    }
}

#[test]
fn a_broken_record_in_a_body_causes_an_alert() {
    let _dog = watchdog("a_broken_record_in_a_body_causes_an_alert");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        for path in ["/echo", "/fill", "/whole", "/discard", "/late-echo"] {
            let mut client = Raw::connect(&served);
            let head = post(path, 600_000);
            let mut records = client.encrypt(head.as_bytes());
            records.extend(client.encrypt(&pattern(600_000)));
            let end = records.len();
            records[end - 20_000] ^= 1;
            client.stream.write_all(&records).unwrap();
            let alert = client.read_to_end().unwrap_err();
            let expected = Error::AlertReceived(AlertDescription::BadRecordMac);
            assert_eq!(alert, expected, "{driver:?} {path}");
        }
        assert_eq!(statuses(&served.get("/hello")), [200]);
    }
}

#[test]
fn a_body_may_arrive_in_any_two_pieces() {
    let _dog = watchdog("a_body_may_arrive_in_any_two_pieces");
    let body = pattern(400_000);
    let limits = Limits::default().body_timeout(Duration::ZERO);
    for path in ["/fill", "/whole", "/discard", "/echo"] {
        for cut in (150_000..400_000).step_by(4_999) {
            let mut sim = simulation(&app, limits, plain(1 << 20));
            let mut client = TlsClient::established(&mut sim);
            client.write(post(path, body.len()).as_bytes());
            client.write(&body);
            let rest = client.records.split_off(cut);
            client.exchange(&mut sim);
            client.records = rest;
            client.exchange(&mut sim);
            // No time passes, so a reader that waits for too many bytes would wait for ever.
            client.exchange(&mut sim);
            assert_eq!(
                statuses(&client.received),
                [200],
                "{path}, after {cut} bytes"
            );
        }
    }
}

#[test]
fn large_uploads() {
    let _dog = watchdog("large_uploads");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server.limits(large_bodies()));
        for (path, mib) in [
            ("/fill", 1),
            ("/discard", 64),
            ("/whole", 1),
            ("/early", 64),
        ] {
            let mut client = Raw::connect(&served);
            let piece = pattern(1 << 20);
            client.send(post(path, mib << 20).as_bytes());
            for _ in 0..mib {
                let records = client.encrypt(&piece);
                if client.stream.write_all(&records).is_err() {
                    break; // The server has ended the connection after an early response.
                }
            }
            let last = client.encrypt(get("/close").as_bytes());
            let _ = client.stream.write_all(&last);
            client.read_to_end().unwrap();
            let responses = text(&client.plaintext);
            assert!(client.received_close_notify);
            if path == "/early" {
                // Most of the body is not received; the connection ends.
                assert_eq!(statuses(&client.plaintext), [200], "{driver:?}");
                continue;
            }
            assert_eq!(statuses(&client.plaintext), [200, 200], "{driver:?} {path}");
            assert!(responses.ends_with("bye"), "{driver:?} {path}");
            if path == "/discard" {
                assert!(responses.contains("67108864 bytes"), "{responses}");
            }
        }
    }
}

/// Responses of a size in each way that a handler may make them.
async fn sized(request: Request, file: Arc<File>) -> Response {
    let bytes: usize = request.query().unwrap().parse().unwrap();
    Response::with_body(match request.path() {
        "/memory" => Body::from(pattern(bytes)),
        "/file" => Body::file(file, 0, bytes as u64),
        "/stream" => {
            let left = bytes as u64;
            Body::stream(Endless { left }, Some(left))
        }
        _ => Body::stream(Endless { left: bytes as u64 }, None),
    })
}

#[test]
fn responses_of_every_size() {
    let _dog = watchdog("responses_of_every_size");
    let scratch = TempDir::new();
    let all = pattern(8 << 20);
    std::fs::write(scratch.path().join("file"), &all).unwrap();
    let dir = Dir::open_root(scratch.path()).unwrap();
    let file = Arc::new(dir.open(b"file", OpenHow::READ).unwrap());
    for driver in drivers() {
        let file = file.clone();
        let handler = move |request: Request| sized(request, file.clone());
        let served = serve_tls(driver, handler, |server| server);
        for path in ["/memory", "/file", "/stream", "/chunked"] {
            let mut client = Raw::connect(&served);
            for bytes in [0, 1, 1370, 1371, 16_384, 16_385, 49_152, 300_000, 8 << 20] {
                for is_slow in [false, true] {
                    client.plaintext.clear();
                    client.send(get(&format!("{path}?{bytes}")).as_bytes());
                    if is_slow {
                        // The server's socket buffer fills meanwhile.
                        thread::sleep(Duration::from_millis(5));
                    }
                    let expected = match path {
                        "/memory" | "/file" => all[..bytes].to_vec(),
                        _ => vec![b'x'; bytes],
                    };
                    let is_chunked = path == "/chunked";
                    let is_complete = |received: &[u8]| match is_chunked {
                        true => received.ends_with(b"\r\n0\r\n\r\n"),
                        false => {
                            let head = received.windows(4).position(|part| part == b"\r\n\r\n");
                            head.is_some_and(|at| received.len() - at - 4 >= bytes)
                        }
                    };
                    while !is_complete(&client.plaintext) {
                        assert!(client.read().unwrap(), "{driver:?} {path} {bytes}");
                    }
                    let received = content(&client.plaintext);
                    let is_equal = match is_chunked {
                        true => dechunk(received) == expected,
                        false => received == expected,
                    };
                    assert!(is_equal, "{driver:?} {path} {bytes}");
                }
            }
            client.send(format!("HEAD {path}?70000 HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes());
            client.plaintext.clear();
            client.tls.send_close_notify();
            client.send(b"");
            client.read_to_end().unwrap();
            assert_eq!(content(&client.plaintext), b"", "{driver:?} {path}");
            assert!(client.received_close_notify);
        }
    }
}

/// Where a client ends its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SentSoFar {
    Connected,
    PartOfHello,
    WholeHello,
    Established,
    PartOfHead,
    PartOfRecord,
    WithinBody,
    PartOfBodyRecord,
    WithinResponse,
}

#[test]
fn connections_that_are_truncated_leave_nothing() {
    use SentSoFar::{
        Connected, Established, PartOfBodyRecord, PartOfHead, PartOfHello, PartOfRecord,
    };
    let _dog = watchdog("connections_that_are_truncated_leave_nothing");
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    async fn handler(mut request: Request) -> Response {
        if request.path() == "/endless" {
            return Response::with_body(Body::stream(Endless { left: 1 << 40 }, None));
        }
        let failed = request.body().read_all(1 << 20).await.is_err();
        FAILED.fetch_add(usize::from(failed), Ordering::SeqCst);
        Response::new(200)
    }
    let points = [
        Connected,
        PartOfHello,
        SentSoFar::WholeHello,
        Established,
        PartOfHead,
        PartOfRecord,
        SentSoFar::WithinBody,
        PartOfBodyRecord,
        SentSoFar::WithinResponse,
    ];
    for point in points {
        for resets in [false, true] {
            let mut sim = simulation(&handler, Limits::default(), plain(1 << 16));
            let before = FAILED.load(Ordering::SeqCst);
            let mut client = TlsClient::connect(&sim);
            if point == PartOfHello || point == SentSoFar::WholeHello {
                let bytes = hello();
                let bytes = match point {
                    SentSoFar::WholeHello => &bytes[..],
                    _ => &bytes[..50],
                };
                sim.send(&client.client, bytes);
            } else if point != Connected {
                drop(client);
                client = TlsClient::established(&mut sim);
            }
            match point {
                PartOfHead => client.write(b"GET / HTTP/1.1\r\nHos"),
                PartOfRecord => {
                    client.write(get("/").as_bytes());
                    client.records.truncate(20);
                }
                SentSoFar::WithinBody | PartOfBodyRecord => {
                    client.write(post("/", 100_000).as_bytes());
                    client.write(&pattern(50_000));
                    if point == PartOfBodyRecord {
                        let bytes = client.records.len();
                        client.records.truncate(bytes - 5_000);
                    }
                }
                SentSoFar::WithinResponse => client.write(get("/endless").as_bytes()),
                _ => {}
            }
            let sent = sim.send(&client.client, &client.records);
            assert_eq!(sent, client.records.len());
            match resets {
                true => client.client.reset(),
                false => client.client.shutdown_write(),
            }
            sim.run();
            if !resets {
                drop(client);
            }
            sim.advance(Duration::from_secs(3));
            assert_eq!(sim.open_connections(), 0, "{point:?}, resets: {resets}");
            assert_eq!(sim.worker().live_tasks(), 0, "{point:?}, resets: {resets}");
            let is_body = matches!(point, SentSoFar::WithinBody | PartOfBodyRecord);
            let failed = FAILED.load(Ordering::SeqCst) - before;
            // A reset ends the handler instead.
            assert_eq!(
                failed == 1,
                is_body && !resets,
                "{point:?}, resets: {resets}"
            );
            // A handshake begins with the first bytes.
            let has_begun = matches!(point, SentSoFar::WholeHello | PartOfHello);
            let failed = sim.counters().handshakes.of(HandshakeOutcome::Failed);
            assert_eq!(failed, u64::from(has_begun), "{point:?}, resets: {resets}");
        }
    }
}

#[test]
fn a_reset_client_does_not_stop_others() {
    let _dog = watchdog("a_reset_client_does_not_stop_others");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        for bytes in [0, 30, 500_000] {
            let mut client = Raw::connect(&served);
            let mut records = client.encrypt(post("/fill", 1_000_000).as_bytes());
            records.extend(client.encrypt(&pattern(600_000)));
            client.stream.write_all(&records[..bytes]).unwrap();
            client.reset();
            drop(client);
            assert_eq!(statuses(&served.get("/big")), [200], "{driver:?}");
        }
    }
}

#[test]
fn a_slow_reader_that_reads_is_not_disconnected() {
    let _dog = watchdog("a_slow_reader_that_reads_is_not_disconnected");
    async fn endless(_: Request) -> Response {
        Response::with_body(Body::stream(Endless { left: 1 << 30 }, Some(1 << 30)))
    }
    let limits = Limits::default().write_timeout(Duration::from_secs(1));
    for driver in drivers() {
        let served = serve_tls(driver, endless, |server| server.limits(limits));
        let mut client = Raw::connect(&served);
        client.send(get("/").as_bytes());
        let mut piece = vec![0; 80_000];
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(100));
            client.stream.read_exact(&mut piece).unwrap();
        }
    }
}

#[test]
fn data_behind_close_notify_is_ignored() {
    let _dog = watchdog("data_behind_close_notify_is_ignored");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server.half_close(true));
        let mut client = Raw::connect(&served);
        let mut records = client.encrypt(get("/late").as_bytes());
        client.tls.send_close_notify();
        records.extend(client.encrypt(b""));
        records.extend_from_slice(&[0x17, 3, 3, 0, 30]);
        records.extend_from_slice(&[7; 30]);
        records.extend_from_slice(get("/close").as_bytes());
        client.stream.write_all(&records).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
        client.read_to_end().unwrap();
        assert_eq!(statuses(&client.plaintext), [200], "{driver:?}");
        assert!(client.plaintext.ends_with(b"late"));
        assert!(client.received_close_notify);
    }
}

#[test]
fn requests_in_single_bytes() {
    let _dog = watchdog("requests_in_single_bytes");
    let post = post("/echo", 10) + "some bytes";
    let requests = get("/hello") + &post + &get("/close");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        let mut client = Raw::connect(&served);
        let records = client.encrypt(requests.as_bytes());
        for byte in &records {
            client.stream.write_all(&[*byte]).unwrap();
        }
        client.read_to_end().unwrap();
        assert_eq!(statuses(&client.plaintext), [200; 3], "{driver:?}");
        let mut client = Raw::connect(&served);
        for byte in requests.bytes() {
            client.send(&[byte]);
        }
        client.read_to_end().unwrap();
        assert_eq!(statuses(&client.plaintext), [200; 3], "{driver:?}");
        assert!(client.plaintext.ends_with(b"bye"));
    }
}

#[test]
fn a_body_is_requested_by_100_continue() {
    let _dog = watchdog("a_body_is_requested_by_100_continue");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        let mut client = Raw::connect(&served);
        let head = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\
            Expect: 100-continue\r\n\r\n";
        client.send(head.as_bytes());
        while client.plaintext.is_empty() {
            assert!(client.read().unwrap());
        }
        assert_eq!(statuses(&client.plaintext), [100], "{driver:?}");
        client.send(b"some");
        client.send(get("/close").as_bytes());
        client.read_to_end().unwrap();
        assert_eq!(statuses(&client.plaintext), [100, 200, 200], "{driver:?}");
    }
}

/// The entries with `mark`, without what differs between any two connections.
fn logged(mark: &str) -> Vec<Entry> {
    let names = |entry: &&Entry| {
        let line = entry.get("target").or(entry.get("request"));
        line.is_some_and(|line| line.contains(mark))
    };
    entries().iter().filter(names).cloned().collect()
}

#[test]
fn the_access_log_counts_bytes_as_without_tls() {
    let _dog = watchdog("the_access_log_counts_bytes_as_without_tls");
    keep_entries();
    for driver in drivers() {
        let plain = serve_with(driver, app, |server| server.access_log(AccessLog::On));
        let tls = serve_tls(driver, app, |server| server.access_log(AccessLog::On));
        for path in [
            "/hello",
            "/big",
            "/stream",
            "/sized",
            "/late-big",
            "/nothing",
            "/echo",
        ] {
            let mut counts = Vec::new();
            for (name, server) in [("plain", &plain), ("tls", &tls)] {
                let mark = format!("{path}?{driver:?}-{name}");
                let mut stream = server.connect();
                let request = format!(
                    "POST {mark} HTTP/1.1\r\nHost: t\r\nContent-Length: 300\r\n\
                     Connection: close\r\n\r\n{}",
                    "x".repeat(300)
                );
                stream.write_all(request.as_bytes()).unwrap();
                let mut response = Vec::new();
                stream.read_to_end(&mut response).unwrap();
                until(|| !logged(&mark).is_empty());
                let entry = logged(&mark).remove(0);
                let number = |field| crate::common::entries::number(&entry, field);
                let received = number("received_bytes") as usize - mark.len();
                counts.push((received, number("sent_bytes"), entry.get("end").cloned()));
                assert_eq!(number("sent_bytes"), response.len() as u64, "{mark}");
            }
            assert_eq!(counts[0], counts[1], "{driver:?} {path}");
        }
    }
}
