//! The limits of TLS connections: memory, handshakes, and time.

use crate::common::sim_tls::{TlsClient, hello, limited, simulation};
use crate::common::{app::app, get, plain, statuses, text, watchdog};
use onrush::Limits;
use onrush::metrics::{HandshakeOutcome, TimeLimit};
use onrush::sim::Simulation;
use onrush::tls::rustls::{AlertDescription, Error};
use onrush_rt::driver::sim::Client;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn is_served(sim: &mut Simulation) -> bool {
    let mut client = TlsClient::established(sim);
    let response = client.ask(sim, get("/hello").as_bytes());
    text(&response).ends_with("\r\n\r\nhello")
}

/// Sessions that can neither be closed as idle nor as handshakes hold more than their share.
#[test]
fn handshakes_beside_busy_sessions_are_counted_once() {
    let _dog = watchdog("handshakes_beside_busy_sessions_are_counted_once");
    let mut sim = limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX);
    let begun = "POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n1";
    let busy: Vec<TlsClient> = (0..180)
        .map(|_| {
            let mut client = TlsClient::established(&mut sim);
            client.write(begun.as_bytes());
            client.exchange(&mut sim);
            client
        })
        .collect();
    // More than may be in progress at a time.
    for _ in 0..1_100 {
        let client = sim.connect();
        sim.send(&client, &hello());
        sim.run();
    }
    assert!(is_served(&mut sim));
    drop(busy);
    sim.run();
    assert!(is_served(&mut sim));
}

/// Sessions with requests in progress leave memory for receiving: a session too many is refused.
#[test]
fn busy_sessions_leave_memory_for_their_requests() {
    let _dog = watchdog("busy_sessions_leave_memory_for_their_requests");
    let mut sim = limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX);
    let begun = "POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\n1";
    let mut busy = Vec::new();
    let mut refused = 0;
    for _ in 0..400 {
        let mut client = TlsClient::connect(&sim);
        for _ in 0..4 {
            client.exchange(&mut sim);
        }
        if client.tls.is_handshaking() {
            refused += 1;
            continue;
        }
        client.write(begun.as_bytes());
        client.exchange(&mut sim);
        busy.push(client);
    }
    assert!(refused > 100, "{refused} of 400");
    assert_eq!(
        sim.counters().handshakes.of(HandshakeOutcome::Refused),
        refused
    );
    assert!(sim.receive_bytes() < MIB * 3 / 4, "{}", sim.receive_bytes());
    for client in &mut busy {
        let response = client.ask(&mut sim, b"23456789");
        assert_eq!(statuses(&response), [200]);
    }
    // They are idle now, so the oldest make room, after the pause between two searches.
    sim.advance(Duration::from_secs(1));
    assert!(is_served(&mut sim));
}

/// A message of 64 KiB in records of 16 KiB, without its last byte.
fn unfinished_hello() -> Vec<u8> {
    let mut message = vec![1, 0, 0xff, 0xff];
    message.resize(4 + 0xffff - 1, 0);
    let mut bytes = Vec::new();
    for fragment in message.chunks(16 * 1024) {
        bytes.extend([22, 3, 1]);
        bytes.extend((fragment.len() as u16).to_be_bytes());
        bytes.extend(fragment);
    }
    bytes
}

#[test]
fn unfinished_messages_count_in_the_receive_memory() {
    let _dog = watchdog("unfinished_messages_count_in_the_receive_memory");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let before = sim.receive_bytes();
    let client = sim.connect();
    sim.send(&client, &unfinished_hello());
    sim.run();
    let held = sim.receive_bytes() - before;
    assert!(held > 2 * 64 * 1024, "{held} bytes");
    drop(client);
    sim.run();
    assert_eq!(sim.receive_bytes(), before);

    let mut sim = limited(&app, Limits::default(), plain(1 << 20), MIB, usize::MAX);
    let hello = unfinished_hello();
    let clients: Vec<Client> = (0..20)
        .map(|_| {
            let client = sim.connect();
            sim.send(&client, &hello);
            sim.run();
            client
        })
        .collect();
    assert!(sim.open_connections() < 10, "{}", sim.open_connections());
    assert!(is_served(&mut sim));
    drop(clients);
}

/// Much data behind the first message does not make a handshake jump the queue.
#[test]
fn long_first_flights_wait_like_short_ones() {
    let _dog = watchdog("long_first_flights_wait_like_short_ones");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let mut flight = hello();
    for _ in 0..3 {
        flight.extend([23, 3, 3, 64, 0]);
        flight.extend([0; 16 * 1024]);
    }
    let clients: Vec<Client> = (0..800)
        .map(|_| {
            let client = sim.connect();
            assert_eq!(client.send(&flight).unwrap(), flight.len());
            client
        })
        .collect();
    while sim.open_connections() < clients.len() {
        sim.poll();
    }
    for _ in 0..20 {
        sim.poll();
    }
    let responded = |client: &&Client| client.receive().map_or(true, |bytes| !bytes.is_empty());
    let early = clients.iter().filter(responded).count();
    assert!(early < 400, "{early} handshakes in few iterations");
    sim.run();
    // All violate the protocol. None is forgotten.
    sim.advance(Duration::from_secs(20));
    assert_eq!(sim.open_connections(), 0);
    assert_eq!(sim.counters().handshakes.of(HandshakeOutcome::Failed), 800);
}

/// Changes the last byte of the last record.
fn break_record(client: &mut TlsClient) {
    *client.records.last_mut().unwrap() ^= 1;
}

/// Receives until the error of the client's TLS.
fn alert_of(client: &mut TlsClient, sim: &mut Simulation) -> Option<AlertDescription> {
    let sent = sim.send(&client.client, &client.records);
    assert_eq!(sent, client.records.len());
    sim.run();
    let bytes = client.client.receive().expect("no reset");
    let mut bytes = &bytes[..];
    while !bytes.is_empty() {
        client.tls.read_tls(&mut bytes).unwrap();
        match client.tls.process_new_packets() {
            Ok(_) => {}
            Err(Error::AlertReceived(alert)) => return Some(alert),
            Err(error) => panic!("{error}"),
        }
    }
    None
}

#[test]
fn the_client_of_a_broken_body_receives_the_alert() {
    let _dog = watchdog("the_client_of_a_broken_body_receives_the_alert");
    // The second is received directly.
    for (path, length, bytes) in [("/fill", 20_001, 20_000), ("/whole", 1_000_000, 600_000)] {
        let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
        let mut client = TlsClient::established(&mut sim);
        let head = format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n");
        client.write(head.as_bytes());
        client.exchange(&mut sim);
        client.write(&vec![b'x'; bytes]);
        break_record(&mut client);
        let alert = alert_of(&mut client, &mut sim);
        assert_eq!(alert, Some(AlertDescription::BadRecordMac), "{bytes}");
        // The connection lingers, so that a reset does not overtake the alert.
        assert_eq!(sim.open_connections(), 1);
        drop(client);
        sim.run();
        assert_eq!(sim.open_connections(), 0);
    }
}

#[test]
fn requests_in_front_of_a_violation_are_not_handled() {
    let _dog = watchdog("requests_in_front_of_a_violation_are_not_handled");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let mut client = TlsClient::established(&mut sim);
    client.write(get("/hello").as_bytes());
    client.write(b"GET");
    break_record(&mut client);
    let alert = alert_of(&mut client, &mut sim);
    assert_eq!(alert, Some(AlertDescription::BadRecordMac));
    assert_eq!(sim.counters().requests.get(), 0);
    assert_eq!(sim.open_connections(), 1);
}

/// Without TLS each of the bytes would end the wait.
#[test]
fn parts_of_a_record_are_progress() {
    let _dog = watchdog("parts_of_a_record_are_progress");
    for bytes in [16_000, 200_000] {
        let limits = Limits::default().body_timeout(Duration::from_secs(1));
        let mut sim = simulation(&app, limits, plain(1 << 20));
        let mut client = TlsClient::established(&mut sim);
        let head = format!("POST /discard HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n");
        client.write(head.as_bytes());
        client.exchange(&mut sim);
        client.write(&vec![b'x'; bytes]);
        let mut records = std::mem::take(&mut client.records);
        let last = records.split_off(records.len() - 10_000);
        client.records = records;
        client.exchange(&mut sim);
        for piece in last.chunks(2_000) {
            sim.advance(Duration::from_millis(800));
            client.records = piece.to_vec();
            client.exchange(&mut sim);
        }
        assert_eq!(statuses(&client.received), [200], "{bytes}");
        assert_eq!(sim.counters().timed_out.of(TimeLimit::Body), 0);
    }
}

#[test]
fn a_handshake_that_a_drain_ends_is_no_request() {
    let _dog = watchdog("a_handshake_that_a_drain_ends_is_no_request");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
    let client = sim.connect();
    let hello = hello();
    sim.send(&client, &hello[..hello.len() / 2]);
    sim.run();
    sim.drain();
    sim.advance(Duration::from_secs(60));
    assert_eq!(sim.open_connections(), 0);
    let counters = sim.counters();
    assert_eq!(counters.timed_out.get(), 0);
    assert_eq!(counters.rejected.get(), 0);
    assert_eq!(counters.handshakes.of(HandshakeOutcome::TimedOut), 1);
}
