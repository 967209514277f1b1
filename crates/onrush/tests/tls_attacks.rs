//! Clients that use the rules of TLS against the server, or others that share it with them.

use crate::common::sim_tls::{TlsClient, hello, limited, simulation};
use crate::common::{app::app, get, plain, statuses, text, watchdog};
use onrush::Limits;
use onrush::metrics::{CloseReason, HandshakeOutcome};
use onrush::sim::Simulation;
use onrush_rt::driver::sim::Client;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn is_served(sim: &mut Simulation) -> bool {
    let mut client = TlsClient::established(sim);
    let response = client.ask(sim, get("/hello").as_bytes());
    text(&response).ends_with("\r\n\r\nhello")
}

/// A client that has sent its first flight and stops.
fn stalled(sim: &mut Simulation) -> Client {
    let client = sim.connect();
    sim.send(&client, &hello());
    client
}

#[test]
fn stalled_handshakes_do_not_take_all_memory() {
    let _dog = watchdog("stalled_handshakes_do_not_take_all_memory");
    let mut sim = limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX);
    let mut before = TlsClient::established(&mut sim);
    let storm: Vec<Client> = (0..300).map(|_| stalled(&mut sim)).collect();
    assert!(is_served(&mut sim), "a new connection");
    let request = "POST /fill HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nsome";
    let response = before.ask(&mut sim, request.as_bytes());
    assert_eq!(statuses(&response), [200], "{}", text(&response));
    assert!(sim.counters().evicted.get() > 0);
    drop((storm, before));
    sim.run();
    assert_eq!(sim.open_connections(), 0);
    let handshakes = &sim.counters().handshakes;
    let refused = handshakes.of(HandshakeOutcome::Refused);
    assert_eq!(handshakes.of(HandshakeOutcome::Failed) + refused, 300);
    assert_eq!(handshakes.get(), 302);
}

#[test]
fn idle_sessions_do_not_take_all_memory() {
    let _dog = watchdog("idle_sessions_do_not_take_all_memory");
    let mut sim = limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX);
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(TlsClient::established(&mut sim));
        sim.advance(Duration::from_millis(1));
    }
    let request = "POST /fill HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nsome";
    let mut newest = idle.pop().unwrap();
    let response = newest.ask(&mut sim, request.as_bytes());
    assert_eq!(statuses(&response), [200], "{}", text(&response));
    // The connections that were idle longest made room.
    assert!(sim.counters().done.of(CloseReason::Displaced) > 0);
    idle[0].receive();
    assert!(idle[0].client.at_end());
    assert!(idle[0].received_close_notify);
}

#[test]
fn stalled_handshakes_do_not_take_all_connections() {
    let _dog = watchdog("stalled_handshakes_do_not_take_all_connections");
    let mut sim = limited(&app, Limits::default(), plain(1 << 16), 64 * MIB, 20);
    let storm: Vec<Client> = (0..20).map(|_| stalled(&mut sim)).collect();
    assert_eq!(sim.open_connections(), 20);
    assert!(is_served(&mut sim));
    drop(storm);
}

/// Many handshakes begin in one event-loop iteration, so most of them wait.
fn storm(sim: &mut Simulation, connections: usize) -> Vec<Client> {
    let hello = hello();
    let connect = |_| {
        let client = sim.connect();
        assert_eq!(client.send(&hello).unwrap(), hello.len());
        client
    };
    (0..connections).map(connect).collect()
}

/// Runs the server until it has accepted this many connections, and has received their first bytes.
fn accept_all(sim: &mut Simulation, connections: usize) {
    while sim.open_connections() < connections {
        sim.poll();
    }
    sim.poll();
}

#[test]
fn a_handshake_that_waits_may_be_followed_by_much_data() {
    let _dog = watchdog("a_handshake_that_waits_may_be_followed_by_much_data");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let mut client = TlsClient::connect(&sim);
    client.exchange(&mut sim);
    assert!(!client.tls.is_handshaking());
    let others = storm(&mut sim, 300);
    accept_all(&mut sim, 301);
    let body = crate::common::pattern(300_000);
    let request = "POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: 300000\r\n\r\n";
    client.write(request.as_bytes());
    client.write(&body);
    // The Finished and the body arrive behind the handshakes of the others.
    let sent = client.client.send(&client.records).unwrap();
    assert_eq!(sent, client.records.len());
    client.records.clear();
    for _ in 0..5 {
        client.exchange(&mut sim);
    }
    assert_eq!(
        statuses(&client.received),
        [200],
        "{}",
        text(&client.received)
    );
    assert!(client.received.ends_with(b"300000 bytes"));
    drop(others);
}

#[test]
fn connections_that_have_closed_do_not_delay_the_handshakes_of_others() {
    let _dog = watchdog("connections_that_have_closed_do_not_delay_the_handshakes_of_others");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 16));
    let clients = storm(&mut sim, 2_000);
    accept_all(&mut sim, clients.len());
    for client in clients {
        client.reset();
    }
    for _ in 0..20 {
        sim.poll();
    }
    assert_eq!(sim.open_connections(), 0);
    // Few of them have begun; the others were waiting.
    let begun = sim.counters().handshakes.of(HandshakeOutcome::Failed);
    assert!((1..1_000).contains(&begun), "{begun}");
    let mut client = TlsClient::connect(&sim);
    client.take_records();
    assert_eq!(
        client.client.send(&client.records).unwrap(),
        client.records.len()
    );
    client.records.clear();
    for _ in 0..10 {
        sim.poll();
    }
    client.receive();
    assert!(!client.tls.is_handshaking());
}

#[test]
fn requests_in_small_records_are_answered_together() {
    let _dog = watchdog("requests_in_small_records_are_answered_together");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 18));
    let mut client = TlsClient::established(&mut sim);
    let before = client.received_records;
    for _ in 0..40 {
        client.write(get("/hello").as_bytes());
    }
    client.exchange(&mut sim);
    assert_eq!(statuses(&client.received), [200; 40]);
    let records = client.received_records - before;
    assert!(records < 10, "{records} records");
}

#[test]
fn single_byte_records_are_one_input() {
    let _dog = watchdog("single_byte_records_are_one_input");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let mut client = TlsClient::established(&mut sim);
    let post = "POST /late-echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2000\r\n\r\n";
    let requests = post.to_owned() + &"x".repeat(2_000) + &get("/fields?a=1") + &get("/close");
    for byte in requests.bytes() {
        client.write(&[byte]);
    }
    client.exchange(&mut sim);
    sim.advance(Duration::from_millis(10));
    client.exchange(&mut sim);
    assert_eq!(statuses(&client.received), [200; 3]);
    assert!(client.received.ends_with(b"bye"));
    assert!(client.received_close_notify);
}

#[test]
fn key_updates_do_not_queue_without_bound() {
    let _dog = watchdog("key_updates_do_not_queue_without_bound");
    let mut sim = simulation(&app, Limits::default(), plain(4096));
    let mut client = TlsClient::established(&mut sim);
    let request = "POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\n";
    client.write(request.as_bytes());
    client.take_records();
    // The client requests responses and reads none of them.
    for _ in 0..2_000 {
        client.tls.refresh_traffic_keys().unwrap();
        client.write(b"x");
        let sent = sim.send(&client.client, &client.records);
        client.records.drain(..sent);
        if !client.records.is_empty() {
            break;
        }
    }
    let pipe = client.client.receive().unwrap().len();
    assert!(pipe > 4000, "{pipe} bytes");
    let mut queued = 0;
    while sim.open_connections() > 0 {
        sim.advance(Duration::from_millis(100));
        queued += client.client.receive().unwrap_or_default().len();
    }
    assert!(queued < 4096, "{queued} bytes");
    assert!(is_served(&mut sim));
}

#[test]
fn a_key_update_in_pieces_leaves_the_idle_time() {
    let _dog = watchdog("a_key_update_in_pieces_leaves_the_idle_time");
    let limits = Limits::default()
        .head_timeout(Duration::from_secs(1))
        .idle_timeout(Duration::from_secs(60));
    let mut sim = simulation(&app, limits, plain(1 << 16));
    let mut client = TlsClient::established(&mut sim);
    client.ask(&mut sim, get("/hello").as_bytes());
    client.tls.refresh_traffic_keys().unwrap();
    client.take_records();
    let rest = client.records.split_off(7);
    client.exchange(&mut sim);
    client.records = rest;
    client.exchange(&mut sim);
    sim.advance(Duration::from_secs(5));
    let response = client.ask(&mut sim, get("/hello").as_bytes());
    assert_eq!(statuses(&response), [200]);
}

#[test]
fn a_partial_record_is_a_partial_head() {
    let _dog = watchdog("a_partial_record_is_a_partial_head");
    let limits = Limits::default().head_timeout(Duration::from_secs(5));
    for drains in [false, true] {
        let mut sim = simulation(&app, limits, plain(1 << 16));
        let mut client = TlsClient::established(&mut sim);
        client.write(get("/hello").as_bytes());
        let rest = client.records.split_off(10);
        client.exchange(&mut sim);
        if drains {
            sim.drain();
        }
        sim.advance(Duration::from_secs(1));
        assert_eq!(sim.open_connections(), 1, "drains: {drains}");
        client.records = rest;
        client.exchange(&mut sim);
        assert_eq!(statuses(&client.received), [200], "drains: {drains}");
        if !drains {
            client.received.clear();
            client.write(get("/hello").as_bytes());
            client.records.truncate(10);
            client.exchange(&mut sim);
            sim.advance(Duration::from_secs(6));
            client.exchange(&mut sim);
            assert_eq!(statuses(&client.received), [408]);
            assert!(client.received_close_notify);
        }
    }
}

/// A client whose response was sent after 16 KiB of its next record had arrived.
fn with_a_record_behind_a_request(sim: &mut Simulation, path: &str) -> TlsClient {
    let mut client = TlsClient::established(sim);
    client.write(get(path).as_bytes());
    let request_bytes = client.records.len();
    client.write(&[b'x'; 16 * 1024]);
    client.records.truncate(request_bytes + 16 * 1000);
    client
}

#[test]
fn a_partial_record_behind_a_request_is_a_partial_head() {
    let _dog = watchdog("a_partial_record_behind_a_request_is_a_partial_head");
    let limits = Limits::default()
        .head_timeout(Duration::from_secs(5))
        .idle_timeout(Duration::from_secs(60));
    for path in ["/hello", "/late", "/big", "/late-big"] {
        let mut sim = simulation(&app, limits, plain(1 << 16));
        let mut client = with_a_record_behind_a_request(&mut sim, path);
        client.exchange(&mut sim);
        sim.advance(Duration::from_millis(100));
        for _ in 0..20 {
            client.exchange(&mut sim);
        }
        assert_eq!(statuses(&client.received), [200], "{path}");
        client.received.clear();
        sim.advance(Duration::from_millis(5_500));
        client.exchange(&mut sim);
        assert_eq!(statuses(&client.received), [408], "{path}");
        assert!(client.received_close_notify, "{path}");
    }
}

/// Records that are never completed leave memory for the requests of others, whether the client
/// has read the response before them or not.
#[test]
fn partial_records_behind_requests_do_not_take_all_memory() {
    let _dog = watchdog("partial_records_behind_requests_do_not_take_all_memory");
    for reads in [true, false] {
        let mut sim = limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX);
        let mut clients = Vec::new();
        for _ in 0..80 {
            let mut client = with_a_record_behind_a_request(&mut sim, "/big");
            let records = std::mem::take(&mut client.records);
            sim.send(&client.client, &records);
            sim.run();
            for _ in 0..if reads { 20 } else { 0 } {
                client.exchange(&mut sim);
            }
            clients.push(client);
        }
        let mut client = TlsClient::established(&mut sim);
        let post = "POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n123456789";
        let response = client.ask(&mut sim, post.as_bytes());
        assert_eq!(statuses(&response), [200], "reads: {reads}");
        assert!(is_served(&mut sim), "reads: {reads}");
    }
}

#[test]
fn the_oldest_handshakes_end_when_too_many_are_in_progress() {
    let _dog = watchdog("the_oldest_handshakes_end_when_too_many_are_in_progress");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 16));
    let mut before = TlsClient::established(&mut sim);
    let first = stalled(&mut sim);
    let storm = storm(&mut sim, 2_000);
    sim.run();
    // The established one, and those in progress.
    assert_eq!(sim.open_connections(), 1 + 1024);
    let is_reset = |client: &Client| (0..3).any(|_| client.receive().is_err());
    assert!(is_reset(&first));
    let resets = storm.iter().filter(|client| is_reset(client)).count();
    assert_eq!(resets, 2_000 - 1024);
    assert_eq!(sim.counters().evicted.get(), 2_001 - 1024);
    assert_eq!(
        statuses(&before.ask(&mut sim, get("/hello").as_bytes())),
        [200]
    );
    assert!(is_served(&mut sim));
    sim.advance(Duration::from_secs(20));
    let handshakes = &sim.counters().handshakes;
    let timed_out = handshakes.of(HandshakeOutcome::TimedOut);
    let refused = handshakes.of(HandshakeOutcome::Refused);
    assert_eq!(refused, 2_001 - 1024 + 1); // One for the client that was served.
    assert_eq!(
        timed_out + refused + handshakes.of(HandshakeOutcome::Failed),
        2_001
    );
    // None is counted as in progress, so as many may begin again.
    let again = self::storm(&mut sim, 1_024);
    sim.run();
    assert_eq!(sim.counters().evicted.get(), 2_001 - 1024 + 1);
    drop((again, storm));
}

#[test]
fn queued_records_do_not_hide_a_slow_reader() {
    let _dog = watchdog("queued_records_do_not_hide_a_slow_reader");
    // 4 KiB per second are too few, and five times as many are enough.
    for pause_ms in [1_000, 200] {
        let limits = Limits::default()
            .rate_bytes_per_s_min(8192)
            .rate_window(Duration::from_secs(20));
        let mut sim = simulation(&app, limits, plain(4096));
        let mut client = TlsClient::established(&mut sim);
        client.write(get("/late-big").as_bytes());
        client.exchange(&mut sim);
        let mut is_cut = false;
        for _ in (0..30_000).step_by(pause_ms) {
            sim.advance(Duration::from_millis(pause_ms as u64));
            if client.client.receive().is_err() {
                is_cut = true;
                break;
            }
        }
        assert_eq!(is_cut, pause_ms == 1_000, "every {pause_ms} ms");
    }
}

const WORKERS: usize = 2;

#[test]
fn a_connection_with_queued_records_does_not_migrate() {
    let _dog = watchdog("a_connection_with_queued_records_does_not_migrate");
    let tls = crate::common::over_tls::CONFIGS.0.clone();
    let (limits, network) = (Limits::default(), plain(700));
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(network)
        .workers(WORKERS)
        .tls(tls)
        .start(&app);
    let mut client = TlsClient::established(&mut sim);
    let nothing = get("/nothing");
    client.write(nothing.as_bytes());
    let sent = sim.send(&client.client, &client.records);
    client.records.drain(..sent);
    // The responses to these fill the network, and the last ones are queued.
    for _ in 0..31 {
        client.tls.refresh_traffic_keys().unwrap();
        client.take_records();
    }
    let sent = sim.send(&client.client, &client.records);
    client.records.drain(..sent);
    assert!(client.records.is_empty());
    sim.migrate(0, 1);
    sim.run();
    for _ in 0..4 {
        client.exchange(&mut sim);
    }
    client.write(nothing.as_bytes());
    for _ in 0..4 {
        client.exchange(&mut sim);
    }
    assert_eq!(statuses(&client.received), [204; 2]);
    assert_eq!(sim.counters_of(0).handed_over.get(), 0);
}

fn rate_limits() -> Limits {
    Limits::default()
        .rate_bytes_per_s_min(100)
        .rate_window(Duration::from_secs(10))
        .body_timeout(Duration::from_secs(60))
        .idle_timeout(Duration::ZERO)
}

/// A client that has sent the head of a request, and the records of its body.
fn upload(sim: &mut Simulation, path: &str, bytes: usize) -> (TlsClient, Vec<u8>) {
    let mut client = TlsClient::established(sim);
    let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n");
    client.write(head.as_bytes());
    client.exchange(sim);
    client.write(&crate::common::pattern(bytes));
    let records = std::mem::take(&mut client.records);
    (client, records)
}

const UPLOADS: [&str; 5] = ["/echo", "/fill", "/whole", "/discard", "/late-echo"];

/// Single bytes of a record show nothing to the reader of the body. They do not renew its time
/// limit without end.
#[test]
fn slow_records_of_a_body_give_408() {
    let _dog = watchdog("slow_records_of_a_body_give_408");
    for path in UPLOADS {
        for bytes in [1_000, 1_000_000] {
            let mut sim = simulation(&app, rate_limits(), plain(1 << 20));
            let (mut client, records) = upload(&mut sim, path, bytes);
            for byte in &records[..9] {
                sim.advance(Duration::from_secs(1));
                sim.send(&client.client, &[*byte]);
            }
            client.receive();
            assert_eq!(client.received, b"", "{path}: the window has not ended");
            for byte in &records[9..130] {
                sim.advance(Duration::from_secs(1));
                if client.client.at_end() {
                    break;
                }
                sim.send(&client.client, &[*byte]);
                client.receive();
            }
            assert_eq!(statuses(&client.received), [408], "{path} {bytes}");
            sim.advance(Duration::from_secs(3));
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        }
    }
}

/// A record takes longer than the window in which the rate is measured.
#[test]
fn records_at_the_minimum_rate_are_received() {
    let _dog = watchdog("records_at_the_minimum_rate_are_received");
    for path in UPLOADS {
        for bytes in [6_000, 50_000] {
            let mut sim = simulation(&app, rate_limits(), plain(1 << 20));
            let (mut client, records) = upload(&mut sim, path, bytes);
            for piece in records.chunks(110) {
                client.receive();
                assert_eq!(text(&client.received), "", "{path} {bytes}");
                sim.advance(Duration::from_secs(1));
                sim.send(&client.client, piece);
            }
            sim.run();
            client.receive();
            assert_eq!(statuses(&client.received), [200], "{path} {bytes}");
        }
    }
}

/// Requests in records of their own arrive while the server drains, the second one in parts.
#[test]
fn a_drain_serves_a_request_in_the_next_record() {
    for part in [0, 1, 7, 3_000] {
        let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
        let mut client = TlsClient::established(&mut sim);
        let response = client.ask(&mut sim, get("/hello").as_bytes());
        assert_eq!(statuses(&response), [200]);
        sim.drain();
        client.write(get("/hello").as_bytes());
        let first_part = client.records.len() + part;
        let field = "x".repeat(5_000);
        let second = format!("GET /hello HTTP/1.1\r\nHost: t\r\nX: {field}\r\n\r\n");
        client.write(second.as_bytes());
        sim.send(&client.client, &client.records[..first_part]);
        client.records.drain(..first_part);
        client.exchange(&mut sim);
        client.exchange(&mut sim);
        // If no byte of the second one has arrived, the first is the last.
        let expected: &[u16] = if part == 0 { &[200] } else { &[200, 200] };
        assert_eq!(statuses(&client.received), expected, "{part}");
        let last = "Connection: close";
        assert_eq!(text(&client.received).matches(last).count(), 1, "{part}");
    }
}

/// The last flight of a handshake has a request and the end of the client, and waits for its turn
/// behind other handshakes.
#[test]
fn a_request_behind_a_waiting_handshake_is_served_if_its_client_has_half_closed() {
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let mut clients: Vec<TlsClient> = (0..30).map(|_| TlsClient::connect(&sim)).collect();
    for client in &mut clients {
        client.exchange(&mut sim);
        assert!(!client.tls.is_handshaking());
        client.write(get("/hello").as_bytes());
        client.tls.send_close_notify();
        client.take_records();
    }
    for client in &clients {
        let sent = client.client.send(&client.records);
        assert_eq!(sent.unwrap(), client.records.len());
        client.client.shutdown_write();
    }
    sim.run();
    for client in &mut clients {
        client.receive();
        assert_eq!(statuses(&client.received), [200]);
    }
    // One that ends inside its handshake is closed at once.
    let mut storm = storm(&mut sim, 30);
    storm.iter_mut().for_each(|client| client.shutdown_write());
    sim.run();
    assert_eq!(sim.open_connections(), 0);
}
