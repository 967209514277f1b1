//! Connections that begin with a header of the PROXY protocol: on the simulated network, split at
//! each byte, and on both drivers, plain and with TLS.

use crate::common::gate::until;
use crate::common::{ask, drivers, get, plain, serve_with, statuses, text, watchdog};
use onrush::metrics::{CloseReason, Format, ProxyRefusal, TimeLimit};
use onrush::sim::Simulation;
use onrush::{Limits, Metrics, Peer, Request, Response, Server, TrustedPeers};
use onrush_rt::driver::sim::Behaviour;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MIB: usize = 1 << 20;
const TEXT: &[u8] = b"PROXY TCP6 2001:db8::1 2001:db8::2 50000 443\r\n";
const CLIENT: &str = "[2001:db8::1]:50000";

/// Says who the client is.
async fn who(request: Request) -> Response {
    let peer = request
        .peer()
        .map_or("unknown".to_owned(), |peer| peer.to_string());
    let socket = match request.socket_peer() {
        Peer::Tcp(address) => address.ip().to_string(),
        other => format!("{other:?}"),
    };
    Response::text(format!("{peer} by {socket}"))
}

/// A header of version 2 with the source 192.0.2.1:50000, and `extension` bytes behind it.
fn binary(extension: usize) -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 198, 51, 100, 1, 0xc3, 0x50, 0x01, 0xbb];
    let length = ((12 + extension) as u16).to_be_bytes();
    let start = b"\r\n\r\n\0\r\nQUIT\n\x21\x11";
    [&start[..], &length, &addresses, &vec![b'x'; extension]].concat()
}

fn headers() -> Vec<(Vec<u8>, &'static str)> {
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    vec![
        (TEXT.to_vec(), CLIENT),
        (b"PROXY UNKNOWN\r\n".to_vec(), "0.0.0.0:0"),
        (binary(0), "192.0.2.1:50000"),
        (binary(40), "192.0.2.1:50000"),
        (local.to_vec(), "unknown"),
    ]
}

fn limits() -> Limits {
    Limits::default()
        .head_timeout(Duration::from_secs(1))
        .idle_timeout(Duration::from_secs(5))
}

fn simulation(seed: u64, behaviour: Behaviour, workers: usize) -> Simulation {
    Simulation::builder(seed)
        .limits(limits())
        .network(behaviour)
        .workers(workers)
        .receive_memory(64 * MIB)
        .proxy_protocol(true)
        .start(&who)
}

fn calm() -> Simulation {
    simulation(1, plain(64 * 1024), 1)
}

#[test]
fn requests_have_the_client_of_the_header_wherever_it_is_split() {
    let _dog = watchdog("requests_have_the_client_of_the_header_wherever_it_is_split");
    for (header, client) in headers() {
        let stream = [&header[..], get("/1").as_bytes(), get("/2").as_bytes()].concat();
        let expected = format!("{client} by Local");
        for cut in 0..=header.len() + 3 {
            for (seed, behaviour) in [(1, plain(64 * 1024)), (cut as u64, Behaviour::default())] {
                let mut sim = simulation(seed, behaviour, 1);
                let connection = sim.connect();
                sim.send(&connection, &stream[..cut]);
                sim.send(&connection, &stream[cut..]);
                sim.run();
                let responses = connection.receive().unwrap();
                assert_eq!(statuses(&responses), [200, 200], "{cut}");
                assert_eq!(text(&responses).matches(&expected).count(), 2, "{cut}");
                assert!(ask(&mut sim, &connection, &get("/3")).ends_with(&expected));
            }
        }
    }
}

#[test]
fn a_connection_that_begins_otherwise_is_closed_without_a_response() {
    let mut sim = calm();
    let rows: [(&[u8], bool); 6] = [
        (b"G", false),
        (b"GET / HTTP/1.1\r\nHost: t\r\n\r\n", false),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 50000\r\n", false),
        (&binary(4085), false),
        (&TEXT[..20], true),
        (&binary(0)[..20], true),
    ];
    for (index, (bytes, ends)) in rows.into_iter().enumerate() {
        let client = sim.connect();
        sim.send(&client, bytes);
        if ends {
            drop(client); // The client closes.
            sim.run();
        } else {
            assert!(client.receive().unwrap_or_default().is_empty(), "{bytes:?}");
            assert!(client.at_end(), "{bytes:?}");
        }
        assert_eq!(sim.open_connections(), 0, "{bytes:?}");
        let counters = sim.counters();
        assert_eq!(
            counters.not_proxied.of(ProxyRefusal::Malformed),
            index as u64 + 1
        );
        assert_eq!(counters.done.of(CloseReason::NotProxied), index as u64 + 1);
    }
    assert_eq!(sim.counters().requests.get(), 0);
    // A load balancer that checks whether the port is open.
    drop(sim.connect());
    sim.run();
    assert_eq!(sim.counters().not_proxied.get(), rows.len() as u64);
    assert_eq!(sim.counters().done.of(CloseReason::Client), 1);
}

#[test]
fn a_header_has_the_time_limit_of_a_head_and_the_first_head_its_own() {
    let mut sim = calm();
    let (silent, slow, late_head) = (sim.connect(), sim.connect(), sim.connect());
    sim.send(&slow, &TEXT[..10]);
    sim.advance(Duration::from_millis(900));
    sim.send(&slow, &TEXT[10..20]);
    sim.send(&late_head, TEXT);
    assert_eq!(sim.open_connections(), 3);
    sim.advance(Duration::from_millis(200));
    assert!(silent.at_end() && slow.at_end());
    assert_eq!(sim.counters().not_proxied.of(ProxyRefusal::TimedOut), 2);
    sim.send(&late_head, b"GET / ");
    sim.advance(Duration::from_millis(700));
    assert!(!late_head.at_end());
    sim.advance(Duration::from_millis(200));
    assert_eq!(statuses(&late_head.receive().unwrap()), [408]);
    assert_eq!(sim.counters().timed_out.of(TimeLimit::Head), 1);
}

#[test]
fn incomplete_headers_are_evicted_when_memory_is_short() {
    let _dog = watchdog("incomplete_headers_are_evicted_when_memory_is_short");
    let network = plain(64 * 1024);
    let mut sim = Simulation::builder(1)
        .limits(limits())
        .network(network)
        .receive_memory(MIB)
        .proxy_protocol(true)
        .start(&who);
    let header = binary(4084);
    let mut clients = Vec::new();
    for _ in 0..600 {
        let client = sim.connect();
        sim.send(&client, &header[..header.len() - 1]);
        assert!(sim.receive_bytes() <= MIB);
        clients.push(client);
    }
    let evicted = sim.counters().evicted.get();
    assert!(evicted > 300, "{evicted}");
    assert!(clients[0].at_end(), "the oldest");
    let last = clients.last().unwrap();
    sim.send(last, b"x");
    assert!(ask(&mut sim, last, &get("/")).ends_with("192.0.2.1:50000 by Local"));
    assert_eq!(sim.counters().not_proxied.get(), 0);
    let client = sim.connect();
    sim.send(&client, TEXT);
    assert!(ask(&mut sim, &client, &get("/")).contains(CLIENT));
}

#[test]
fn the_client_moves_with_its_connection_but_not_inside_the_header() {
    let _dog = watchdog("the_client_moves_with_its_connection_but_not_inside_the_header");
    for cut in 0..=TEXT.len() {
        let mut sim = simulation(cut as u64, Behaviour::default(), 3);
        let client = sim.connect();
        sim.send(&client, &TEXT[..cut]);
        sim.migrate(0, 1);
        sim.run();
        let moved = u64::from(cut == TEXT.len());
        assert_eq!(sim.counters_of(1).taken_over.get(), moved, "{cut}");
        sim.send(&client, &TEXT[cut..]);
        for from in [0, 1, 2] {
            assert!(ask(&mut sim, &client, &get("/")).contains(CLIENT), "{cut}");
            sim.migrate(from, (from + 1) % 3);
            sim.run();
        }
        assert!(ask(&mut sim, &client, &get("/")).contains(CLIENT), "{cut}");
        assert_eq!(sim.counters_of(2).taken_over.get(), 1, "{cut}");
        // Its place in the table of clients is free again.
        drop(client);
        let client = sim.connect();
        sim.send(&client, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
        assert!(
            ask(&mut sim, &client, &get("/")).contains("unknown by"),
            "{cut}"
        );
    }
}

#[test]
fn a_drain_does_not_wait_for_headers() {
    let mut sim = calm();
    let (silent, slow, begun) = (sim.connect(), sim.connect(), sim.connect());
    sim.send(&slow, &TEXT[..10]);
    sim.send(&begun, TEXT);
    sim.send(&begun, b"GET / HTTP/1.1\r\nHo");
    sim.drain();
    sim.run();
    sim.send(&slow, &TEXT[10..]);
    let response = ask(&mut sim, &slow, &get("/"));
    assert!(
        response.contains("Connection: close") && response.contains(CLIENT),
        "{response}"
    );
    sim.send(&begun, b"st: t\r\n\r\n");
    assert!(text(&begun.receive().unwrap()).contains(CLIENT));
    sim.advance(Duration::from_secs(2));
    assert!(silent.at_end());
    sim.advance(Duration::from_secs(10)); // The others linger until their clients close.
    assert_eq!(sim.open_connections(), 0);
    assert_eq!(sim.counters().not_proxied.get(), 0);
}

/// What the server sends after `header` and one request, and its end.
fn exchange(mut stream: impl Read + Write) -> String {
    let request = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let mut response = Vec::new();
    let sent = stream.write_all(request.as_bytes());
    // A refused connection may be reset.
    let _ = sent.and_then(|()| stream.read_to_end(&mut response));
    text(&response)
}

fn connect(server: &crate::common::Served, header: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let _ = stream.write_all(header);
    stream
}

fn trusting(network: &str) -> TrustedPeers {
    TrustedPeers::new([network.parse().unwrap()])
}

#[test]
fn only_trusted_peers_are_served_on_both_drivers() {
    let _dog = watchdog("only_trusted_peers_are_served_on_both_drivers");
    for driver in drivers() {
        for defer in [true, false] {
            let metrics = Metrics::new();
            let configure = |server: Server| {
                let server = server.metrics(&metrics).defer_accept(defer).workers(2);
                server.proxy_protocol(trusting("127.0.0.0/8"))
            };
            let server = serve_with(driver, who, configure);
            for (header, client) in headers() {
                let response = exchange(connect(&server, &header));
                match client {
                    "unknown" => assert!(response.contains("\r\n\r\n127.0.0.1:"), "{response}"),
                    _ => assert!(response.ends_with(&format!("{client} by 127.0.0.1"))),
                }
            }
            assert_eq!(exchange(connect(&server, b"")), "", "no header");
            let refused = "onrush_proxy_protocol_refused_total{worker=\"";
            let count = |reason: &str| -> u64 {
                let text = metrics.render(Format::Prometheus);
                let lines = text.lines().filter(|line| {
                    line.starts_with(refused) && line.contains(&format!("reason=\"{reason}\""))
                });
                lines
                    .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
                    .sum()
            };
            until(|| count("malformed") == 1);
            assert_eq!(count("untrusted"), 0);
            drop(server);

            let configure = |server: Server| {
                let server = server.metrics(&metrics).defer_accept(defer);
                server.proxy_protocol(trusting("10.0.0.0/8"))
            };
            let server = serve_with(driver, who, configure);
            for (header, _) in headers() {
                assert_eq!(exchange(connect(&server, &header)), "");
            }
            until(|| count("untrusted") == headers().len() as u64);
        }
    }
}

#[cfg(feature = "tls")]
#[test]
fn the_header_precedes_the_handshake() {
    use onrush::tls::rustls::StreamOwned;
    let _dog = watchdog("the_header_precedes_the_handshake");
    for driver in drivers() {
        let configure = |server: Server| server.proxy_protocol(trusting("127.0.0.1"));
        let server = crate::common::serve_tls(driver, who, configure);
        for (header, client) in headers() {
            // The whole header with the handshake, and in two parts.
            for cut in [0, 1, header.len() - 1, header.len()] {
                let mut stream = connect(&server, &header[..cut]);
                if cut > 0 && cut < header.len() {
                    // Both parts may still arrive together; the simulator separates them.
                    stream.set_nodelay(true).unwrap();
                }
                stream.write_all(&header[cut..]).unwrap();
                let response =
                    exchange(StreamOwned::new(crate::common::over_tls::client(), stream));
                match client {
                    "unknown" => assert!(response.contains("\r\n\r\n127.0.0.1:"), "{response}"),
                    _ => assert!(response.ends_with(&format!("{client} by 127.0.0.1"))),
                }
            }
        }
        // A handshake without a header, and a plain request behind a header.
        let stream = connect(&server, b"");
        assert_eq!(
            exchange(StreamOwned::new(crate::common::over_tls::client(), stream)),
            ""
        );
        let plain = exchange(connect(&server, TEXT));
        assert!(plain.contains("this port requires TLS"), "{plain}");
    }
}
