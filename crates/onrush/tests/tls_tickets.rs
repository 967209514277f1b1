//! Tickets that wait for a response: they leave with the next records, whatever these are.

use crate::common::sim_tls::{TlsClient, simulation};
use crate::common::{app::app, get, plain, statuses, watchdog};
use onrush::Limits;
use onrush::sim::Simulation;

/// A client whose last flight of the handshake and first bytes of a request are one segment.
fn with_its_handshake(sim: &mut Simulation, request: &[u8]) -> TlsClient {
    let mut client = TlsClient::connect(sim);
    for _ in 0..100 {
        if !client.tls.is_handshaking() {
            break;
        }
        client.exchange(sim);
    }
    client.write(request);
    client.exchange(sim);
    client
}

fn tickets(client: &TlsClient) -> u32 {
    client.tls.tls13_tickets_received()
}

#[test]
fn tickets_leave_with_the_response() {
    let _dog = watchdog("tickets_leave_with_the_response");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 16));
    let client = with_its_handshake(&mut sim, get("/hello").as_bytes());
    assert_eq!(statuses(&client.received), [200]);
    assert_eq!(tickets(&client), 1);
}

#[test]
fn without_a_request_tickets_do_not_wait() {
    let _dog = watchdog("without_a_request_tickets_do_not_wait");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 16));
    let client = TlsClient::established(&mut sim);
    assert_eq!(tickets(&client), 1);
}

#[test]
fn other_records_take_the_tickets_with_them() {
    let _dog = watchdog("other_records_take_the_tickets_with_them");
    let request = get("/hello");
    let (first, rest) = request.as_bytes().split_at(8);
    for migrates in [false, true] {
        let tls = crate::common::over_tls::CONFIGS.0.clone();
        let mut sim = Simulation::builder(1)
            .network(plain(1 << 16))
            .workers(2)
            .tls(tls)
            .start(&app);
        let mut client = with_its_handshake(&mut sim, first);
        assert_eq!(tickets(&client), 0, "they wait for the response");
        if migrates {
            sim.migrate(0, 1);
            sim.run();
        }
        // The response to a key update is encrypted after the tickets.
        client.tls.refresh_traffic_keys().unwrap();
        client.exchange(&mut sim);
        client.exchange(&mut sim);
        assert_eq!(tickets(&client), 1);
        client.write(rest);
        client.exchange(&mut sim);
        client.exchange(&mut sim);
        assert_eq!(statuses(&client.received), [200]);
        assert_eq!(tickets(&client), 1);
    }
}

#[test]
fn a_connection_that_ends_without_a_response_sends_its_tickets() {
    let _dog = watchdog("a_connection_that_ends_without_a_response_sends_its_tickets");
    let mut sim = simulation(&app, Limits::default(), plain(1 << 16));
    let mut client = with_its_handshake(&mut sim, b"GET /hello");
    client.tls.send_close_notify();
    client.exchange(&mut sim);
    client.exchange(&mut sim);
    assert!(client.received_close_notify);
    assert_eq!(tickets(&client), 1);
    assert_eq!(sim.open_connections(), 0);
}
