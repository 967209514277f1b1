//! Parts of TLS records and of handshake messages: the memory that they hold is not taken from
//! other clients, and what follows them is noticed.

use crate::common::sim_tls::{TlsClient, limited, simulation};
use crate::common::{app::app, get, pattern, plain, statuses, text, watchdog};
use onrush::Limits;
use onrush::sim::Simulation;
use onrush_rt::driver::sim::Client;

const MIB: usize = 1 << 20;

fn small_memory() -> Simulation {
    limited(&app, Limits::default(), plain(1 << 16), MIB, usize::MAX)
}

fn is_served(sim: &mut Simulation) -> bool {
    let mut client = TlsClient::established(sim);
    let response = client.ask(sim, get("/hello").as_bytes());
    text(&response).ends_with("\r\n\r\nhello")
}

fn upload_head(path: &str, bytes: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n")
}

/// Sends `request`, then a record without its last bytes.
fn send_part_of_record(sim: &mut Simulation, request: &str) -> TlsClient {
    let mut client = TlsClient::established(sim);
    client.write(request.as_bytes());
    client.write(&pattern(16_384));
    let part = client.records.len() - 100;
    sim.send(&client.client, &client.records[..part]);
    client.records.drain(..part);
    client
}

#[test]
fn parts_of_records_of_bodies_do_not_take_all_memory() {
    let _dog = watchdog("parts_of_records_of_bodies_do_not_take_all_memory");
    for path in ["/fill", "/discard", "/echo"] {
        for bytes in [20_000, 10_000_000] {
            let mut sim = small_memory();
            let mut before = TlsClient::established(&mut sim);
            let head = upload_head(path, bytes);
            let mut clients: Vec<TlsClient> = (0..100)
                .map(|_| send_part_of_record(&mut sim, &head))
                .collect();
            assert!(is_served(&mut sim), "{path} {bytes}: a new connection");
            let upload = upload_head("/fill", 4) + "some";
            let response = before.ask(&mut sim, upload.as_bytes());
            assert_eq!(statuses(&response), [200], "{path} {bytes}: an upload");
            // The oldest were notified.
            assert!(sim.counters().evicted.get() > 0);
            clients[0].receive();
            assert_eq!(statuses(&clients[0].received), [503], "{path} {bytes}");
            // The newest may continue.
            let newest = clients.last_mut().expect("a client");
            newest.write(&pattern(bytes.min(20_000) - 16_384));
            newest.exchange(&mut sim);
            let is_complete = bytes == 20_000;
            assert_eq!(!newest.received.is_empty(), is_complete, "{path} {bytes}");
        }
    }
}

#[test]
fn connections_that_end_hold_no_parts_of_records() {
    let _dog = watchdog("connections_that_end_hold_no_parts_of_records");
    let close = "GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let early = upload_head("/early", 900_000);
    for request in [close, "GET\r\n\r\n", &early] {
        let mut sim = small_memory();
        let clients: Vec<TlsClient> = (0..110)
            .map(|_| send_part_of_record(&mut sim, request))
            .collect();
        assert!(is_served(&mut sim), "{request}");
        let mut other = TlsClient::established(&mut sim);
        let upload = upload_head("/fill", 4) + "some";
        let response = other.ask(&mut sim, upload.as_bytes());
        assert_eq!(statuses(&response), [200], "{request}");
        drop(clients);
    }
}

/// The first 64 KB of a handshake message that is 65 KB long, in whole records.
fn long_hello() -> Vec<u8> {
    let mut message = vec![0; 64_000];
    message[..4].copy_from_slice(&[1, 0, 0xfd, 0xe8]); // client_hello, 65,000 bytes
    let record = |content: &[u8]| {
        let length = (content.len() as u16).to_be_bytes();
        [&[22, 3, 1][..], &length, content].concat()
    };
    message.chunks(16_000).flat_map(record).collect()
}

#[test]
fn long_handshake_messages_do_not_end_the_sessions_of_others() {
    let _dog = watchdog("long_handshake_messages_do_not_end_the_sessions_of_others");
    let memory = 8 * MIB;
    let mut sim = limited(&app, Limits::default(), plain(1 << 17), memory, usize::MAX);
    let mut idle: Vec<TlsClient> = (0..50).map(|_| TlsClient::established(&mut sim)).collect();
    let hello = long_hello();
    let clients: Vec<Client> = (0..200)
        .map(|_| {
            let client = sim.connect();
            sim.send(&client, &hello);
            client
        })
        .collect();
    assert!(sim.counters().evicted.get() > 0, "most had to end");
    assert!(sim.receive_bytes() <= memory * 3 / 4);
    assert!(is_served(&mut sim), "a new connection");
    for client in &mut idle {
        let upload = upload_head("/fill", 4) + "some";
        let response = client.ask(&mut sim, upload.as_bytes());
        assert_eq!(statuses(&response), [200]);
    }
    drop(clients);
}

/// A short record, such as an alert, behind a part of a large body, without the end of the stream.
#[test]
fn short_records_behind_large_bodies_are_noticed_at_once() {
    let _dog = watchdog("short_records_behind_large_bodies_are_noticed_at_once");
    for path in ["/discard", "/fill", "/whole", "/echo"] {
        let mut sim = simulation(&app, Limits::default(), plain(1 << 20));
        let mut client = TlsClient::established(&mut sim);
        client.write(upload_head(path, 5_000_000).as_bytes());
        client.exchange(&mut sim);
        client.write(&pattern(300_000));
        client.exchange(&mut sim);
        client.tls.send_close_notify();
        client.exchange(&mut sim);
        client.exchange(&mut sim);
        assert_eq!(statuses(&client.received), [400], "{path}");
    }
}
