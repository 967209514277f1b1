//! TLS connections in the engine: their ends, their time limits, and what they share with others.
//! The scripts of `both_drivers` and `framing` run through TLS as well.

use crate::common::over_tls::{CONFIGS, client};
use crate::common::{
    Served, app::app, content, drivers, get, mask_dates, pattern, plain, serve_tls, serve_with,
    statuses, watchdog,
};
use onrush::metrics::{Format, HandshakeOutcome, TimeLimit};
use onrush::sim::Simulation;
use onrush::tls::rustls::server::{ClientHello, ResolvesServerCert};
use onrush::tls::rustls::sign::CertifiedKey;
use onrush::tls::rustls::{ClientConnection, ServerConfig};
use onrush::{Limits, Metrics, Request, Response, TlsConfig};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn tcp(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.address()).unwrap();
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The first bytes of a handshake.
fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    client().write_tls(&mut bytes).unwrap();
    bytes
}

/// A client after its handshake.
fn established(served: &Served) -> (TcpStream, ClientConnection) {
    let (mut stream, mut client) = (tcp(served), client());
    while client.is_handshaking() {
        client.complete_io(&mut stream).unwrap();
    }
    (stream, client)
}

/// Reads until the end; returns what was read, and whether it ended without a reset.
fn read_all(stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => (bytes, true),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (bytes, false),
        Err(error) => panic!("{error}"),
    }
}

fn serves(served: &Served) -> bool {
    statuses(&served.get("/hello")) == [200]
}

#[test]
fn plain_http_is_told_to_use_https() {
    let _dog = watchdog("plain_http_is_told_to_use_https");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        let mut stream = tcp(&served);
        stream.write_all(get("/hello").as_bytes()).unwrap();
        let (response, _) = read_all(&mut stream);
        assert_eq!(statuses(&response), [400]);
        assert_eq!(content(&response), b"this port requires TLS, use https\n");
        assert!(serves(&served));
    }
}

#[test]
fn bad_handshakes_end_with_an_alert() {
    let _dog = watchdog("bad_handshakes_end_with_an_alert");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        for bytes in [
            &b"\x80\x2e\x01\x00\x02 SSL 2"[..],
            &[0x16, 3, 1, 0xff, 0xff],
            &[0; 64],
        ] {
            let mut stream = tcp(&served);
            stream.write_all(bytes).unwrap();
            let (alert, _) = read_all(&mut stream);
            assert_eq!(alert[..2], [0x15, 3], "{bytes:?}: {alert:?}");
        }
        assert!(serves(&served));
    }
}

#[test]
fn plain_and_tls_listeners() {
    let _dog = watchdog("plain_and_tls_listeners");
    async fn is_secure(request: Request) -> Response {
        Response::text(request.tls().is_some().to_string())
    }
    for driver in drivers() {
        let served = serve_tls(driver, is_secure, |server| {
            server.also_bind_plain("127.0.0.1:0")
        });
        assert_eq!(content(&served.get("/")), b"true");
        let onrush::Address::Tcp(address) = served.running().addresses()[1] else {
            panic!("a TCP address");
        };
        let mut stream = TcpStream::connect(address).unwrap();
        let last = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        stream.write_all(last.as_bytes()).unwrap();
        assert_eq!(content(&read_all(&mut stream).0), b"false");
    }
}

#[test]
fn every_inherited_socket_uses_tls() {
    let _dog = watchdog("every_inherited_socket_uses_tls");
    for driver in drivers() {
        let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = sockets.each_ref().map(|own| own.local_addr().unwrap());
        let served = serve_tls(driver, app, |server| {
            // The addresses are not bound, so what they use has no effect.
            let server = server.also_bind_plain("127.0.0.1:0");
            server.inherit(sockets.map(Into::into).into())
        });
        for address in addresses {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(get("/hello").as_bytes()).unwrap();
            assert_eq!(statuses(&read_all(&mut stream).0), [400], "{driver:?}");
        }
        drop(served);
    }
}

/// The worker finds many records in one receive, because it was busy. The handler of the first one
/// runs before the others are passed on, and must not receive from the socket what follows them.
#[test]
fn records_that_arrive_together_keep_their_order() {
    let _dog = watchdog("records_that_arrive_together_keep_their_order");
    async fn blocks(mut request: Request) -> Response {
        if request.path() == "/block" {
            std::thread::sleep(Duration::from_millis(200));
            return Response::text("blocked");
        }
        let (mut all, mut part) = (Vec::new(), Vec::with_capacity(100_000));
        while request.body().fill(&mut part).await.is_ok_and(|n| n > 0) {
            all.append(&mut part);
        }
        Response::with_body(all)
    }
    let body = pattern(600_000);
    let head = "POST /echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
        Content-Length: 600000\r\n\r\n";
    for driver in drivers() {
        let served = serve_tls(driver, blocks, |server| server);
        for first in [1, 1_000, 3_000] {
            let (mut stream, mut client) = established(&served);
            let mut blocker = served.connect();
            blocker.write_all(get("/block").as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            client.set_buffer_limit(None);
            // The head and the beginning of the body are a record of their own.
            let begin = [head.as_bytes(), &body[..first]].concat();
            // The second record fits into the same receive.
            let second = first + 10_000;
            for part in [&begin, &body[first..second], &body[second..]] {
                client.writer().write_all(part).unwrap();
                while client.wants_write() {
                    client.write_tls(&mut stream).unwrap();
                }
            }
            let mut received = Vec::new();
            loop {
                match client.read_tls(&mut stream) {
                    Ok(0) => break,
                    // Other tests of this process send signals.
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    read => drop(read.unwrap()),
                }
                client.process_new_packets().unwrap();
                let _ = client.reader().read_to_end(&mut received);
            }
            assert_eq!(statuses(&received), [200], "{driver:?}");
            assert!(
                received.ends_with(&body),
                "{driver:?}, first record {first}"
            );
        }
    }
}

#[test]
fn complete_handshakes_are_measured_by_what_they_negotiated() {
    let _dog = watchdog("complete_handshakes_are_measured_by_what_they_negotiated");
    for driver in drivers() {
        let metrics = Metrics::new();
        let served = serve_tls(driver, app, |server| server.metrics(&metrics));
        for _ in 0..3 {
            assert!(serves(&served));
        }
        let text = metrics.render(Format::Prometheus);
        let name = "onrush_tls_handshake_duration_seconds_count{";
        let lines = text.lines().filter(|line| line.starts_with(name));
        let mut count = 0;
        for line in lines {
            assert!(line.contains("tls_protocol_version=\"1.3\""), "{line}");
            assert!(line.contains("tls_cipher=\"TLS_AES_"), "{line}");
            assert!(line.contains("tls_resumed=\""), "{line}");
            let (_, value) = line.rsplit_once(' ').unwrap();
            count += value.parse::<u64>().unwrap();
        }
        assert_eq!(count, 3, "{text}");
        let requests = "http_server_request_duration_seconds_count{http_request_method=\"GET\",";
        let mut lines = text.lines().filter(|line| line.starts_with(requests));
        assert!(
            lines.all(|line| line.contains("url_scheme=\"https\"")),
            "{text}"
        );
    }
}

/// The connections that wait at a listener are accepted when it closes, and keep its protocol.
#[test]
fn plain_connections_that_wait_at_a_stop_stay_plain() {
    let _dog = watchdog("plain_connections_that_wait_at_a_stop_stay_plain");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| {
            let server = server.defer_accept(true);
            server.also_bind_plain("127.0.0.1:0")
        });
        let onrush::Address::Tcp(address) = served.running().addresses()[1] else {
            panic!("a TCP address");
        };
        // Not accepted before it sends.
        let mut waiting = TcpStream::connect(address).unwrap();
        let busy = established(&served);
        served.running().handle().shutdown();
        std::thread::sleep(Duration::from_millis(100));
        waiting.write_all(get("/hello").as_bytes()).unwrap();
        let (response, _) = read_all(&mut waiting);
        assert_eq!(content(&response), b"hello", "{driver:?}");
        drop(busy);
    }
}

#[test]
fn handshakes_have_a_time_limit() {
    let _dog = watchdog("handshakes_have_a_time_limit");
    for driver in drivers() {
        let metrics = Metrics::new();
        let limits = Limits::default().handshake_timeout(Duration::from_millis(200));
        let served = serve_tls(driver, app, |server| {
            let server = server.limits(limits).metrics(&metrics);
            server.defer_accept(false)
        });
        for bytes in [&[][..], &hello()[..20], &hello()] {
            let mut stream = tcp(&served);
            stream.write_all(bytes).unwrap();
            let (response, _) = read_all(&mut stream);
            assert_eq!(response.is_empty(), bytes.len() < 100);
        }
        let text = metrics.render(Format::Prometheus);
        assert!(
            text.contains("onrush_timeouts_total{worker=\"0\",limit=\"handshake\"} 3"),
            "{text}"
        );
        assert!(serves(&served));
    }
}

#[test]
fn close_notify_is_half_a_close() {
    let _dog = watchdog("close_notify_is_half_a_close");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server.half_close(true));
        let (mut stream, mut client) = established(&served);
        client.writer().write_all(get("/late").as_bytes()).unwrap();
        client.send_close_notify();
        while client.wants_write() {
            client.write_tls(&mut stream).unwrap();
        }
        let mut response = Vec::new();
        // An error would mean that the server has not sent `close_notify`.
        onrush::tls::rustls::Stream::new(&mut client, &mut stream)
            .read_to_end(&mut response)
            .unwrap();
        assert_eq!(statuses(&response), [200]);
        assert!(response.ends_with(b"late"));
    }
}

#[test]
fn a_truncated_body_is_an_error() {
    let _dog = watchdog("a_truncated_body_is_an_error");
    static SEEN: AtomicBool = AtomicBool::new(false);
    async fn read(mut request: Request) -> Response {
        let result = request.body().read_all(1 << 20).await;
        SEEN.store(result.is_err(), Ordering::SeqCst);
        Response::new(200)
    }
    for driver in drivers() {
        for shutdown in [false, true] {
            SEEN.store(false, Ordering::SeqCst);
            let served = serve_tls(driver, read, |server| server);
            let (mut stream, mut client) = established(&served);
            let request = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\nsome";
            client.writer().write_all(request.as_bytes()).unwrap();
            if shutdown {
                client.send_close_notify();
            }
            client.write_tls(&mut stream).unwrap();
            while client.wants_write() {
                client.write_tls(&mut stream).unwrap();
            }
            stream.shutdown(Shutdown::Write).unwrap();
            read_all(&mut stream);
            crate::common::gate::until(|| SEEN.load(Ordering::SeqCst));
        }
    }
}

#[test]
fn a_handshake_storm_delays_others_little() {
    let _dog = watchdog("a_handshake_storm_delays_others_little");
    for driver in drivers() {
        let metrics = Metrics::new();
        // A new handshake waits behind those of the storm, on a busy machine for a long time.
        let limits = Limits::default().handshake_timeout(Duration::from_secs(60));
        let served = serve_tls(driver, app, |server| {
            server.metrics(&metrics).limits(limits)
        });
        let mut established = served.connect();
        crate::common::memory::assert_prompt(&mut established);
        let hello = hello();
        // More than a worker keeps; the oldest ones end.
        let storm: Vec<TcpStream> = (0..1200)
            .map(|_| {
                let mut stream = tcp(&served);
                stream.write_all(&hello).unwrap();
                stream
            })
            .collect();
        established.write_all(get("/hello").as_bytes()).unwrap();
        let mut byte = [0];
        established.read_exact(&mut byte).unwrap();
        assert!(serves(&served));
        drop(storm);
        assert!(serves(&served));
        // A fast worker ends the oldest ones while the storm arrives. A slow one finds all of them
        // closed by their clients.
        crate::common::gate::until(|| {
            let text = metrics.render(Format::Prometheus);
            let count = |outcome: &str| -> u64 {
                let name =
                    format!("onrush_tls_handshakes_total{{worker=\"0\",outcome=\"{outcome}\"}} ");
                let line = text.lines().find_map(|line| line.strip_prefix(&name));
                line.unwrap().parse().unwrap()
            };
            count("failed") + count("refused") == 1200
        });
    }
}

#[derive(Debug)]
struct Panics;

impl ResolvesServerCert for Panics {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        panic!("on purpose: {:?}", hello.server_name());
    }
}

#[test]
fn a_configuration_that_no_session_can_use_is_an_error_at_start() {
    let provider = Arc::new(onrush::tls::rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Panics));
    config.max_fragment_size = Some(1);
    let server = onrush::Server::bind("127.0.0.1:0").tls(Arc::new(config));
    let error = server.start(app).expect_err("no session can be created");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().starts_with("TLS: "), "{error}");
}

#[test]
fn a_resolver_that_panics_costs_one_connection() {
    let _dog = watchdog("a_resolver_that_panics_costs_one_connection");
    let provider = Arc::new(onrush::tls::rustls::crypto::aws_lc_rs::default_provider());
    for driver in drivers() {
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Panics));
        let served = serve_with(driver, app, |server| {
            server.tls(Arc::new(config)).also_bind_plain("127.0.0.1:0")
        });
        for _ in 0..20 {
            let mut stream = tcp(&served);
            stream.write_all(&hello()).unwrap();
            read_all(&mut stream);
        }
        let onrush::Address::Tcp(address) = served.running().addresses()[1] else {
            panic!("a TCP address");
        };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(get("/close").as_bytes()).unwrap();
        assert_eq!(statuses(&read_all(&mut stream).0), [200]);
    }
}

#[test]
fn large_bodies_both_ways() {
    let _dog = watchdog("large_bodies_both_ways");
    let body = pattern(5_000_000);
    let sum: u64 = body.iter().map(|&byte| u64::from(byte)).sum();
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| {
            server.limits(Limits::default().body_bytes_max(1 << 30))
        });
        for path in ["/fill", "/whole", "/discard", "/echo", "/early"] {
            let mut stream = served.connect();
            let length = body.len();
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n");
            let mut writer = stream.try_clone().unwrap();
            let sent = body.clone();
            let sender = std::thread::spawn(move || {
                let _ = writer.write_all(head.as_bytes());
                let _ = writer.write_all(&sent);
                let _ = writer.write_all(get("/close").as_bytes());
            });
            let (responses, _) = read_all(&mut stream);
            sender.join().unwrap();
            let expected = match path {
                "/fill" | "/whole" => format!("{length} bytes, sum {sum}").into_bytes(),
                "/discard" => format!("{length} bytes").into_bytes(),
                "/echo" => body.clone(),
                _ => b"early".to_vec(),
            };
            assert!(
                content(&responses).starts_with(&expected),
                "{driver:?} {path}"
            );
            assert!(
                responses.ends_with(b"bye") || path == "/early",
                "{driver:?} {path}"
            );
        }
    }
}

#[test]
fn a_drain_ends_idle_connections_and_finishes_requests() {
    let _dog = watchdog("a_drain_ends_idle_connections_and_finishes_requests");
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        let mut idle = served.connect();
        let mut busy = served.connect();
        busy.write_all((get("/late") + &get("/hello")).as_bytes())
            .unwrap();
        let handle = served.running().handle();
        handle.shutdown();
        let (responses, is_orderly) = read_all(&mut busy);
        assert_eq!(statuses(&responses), [200, 200]);
        assert!(is_orderly);
        assert_eq!(read_all(&mut idle), (Vec::new(), true)); // With `close_notify`.
        served.wait().unwrap();
    }
}

/// A TLS client on the simulated network.
struct SimClient {
    client: Client,
    tls: ClientConnection,
    records: Vec<u8>,
    received: Vec<u8>,
}

impl SimClient {
    fn new(sim: &mut Simulation) -> SimClient {
        let mut client = SimClient {
            client: sim.connect(),
            tls: client(),
            records: Vec::new(),
            received: Vec::new(),
        };
        while client.tls.is_handshaking() {
            client.exchange(sim, usize::MAX);
        }
        client.exchange(sim, usize::MAX); // The client's last flight.
        client
    }

    /// Sends up to `bytes_max` bytes of records, and receives what the server has sent.
    fn exchange(&mut self, sim: &mut Simulation, bytes_max: usize) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.records).unwrap();
        }
        let bytes = self.records.len().min(bytes_max);
        let sent = sim.send(&self.client, &self.records[..bytes]);
        self.records.drain(..sent);
        sim.advance(Duration::from_millis(1));
        let received = self.client.receive().unwrap_or_default();
        let mut records = &received[..];
        while !records.is_empty() {
            self.tls.read_tls(&mut records).unwrap();
            self.tls.process_new_packets().unwrap();
        }
        let _ = self.tls.reader().read_to_end(&mut self.received);
    }
}

const WORKERS: usize = 3;

/// The responses to `requests`, whose records are cut at `cut`, where the connection migrates.
fn migrated(seed: u64, behaviour: Behaviour, requests: &[u8], cut: usize) -> (String, u64) {
    let limits = Limits::default();
    let tls = CONFIGS.0.clone();
    let mut sim = Simulation::builder(seed)
        .limits(limits)
        .network(behaviour)
        .workers(WORKERS)
        .tls(tls)
        .start(&app);
    let mut client = SimClient::new(&mut sim);
    // Two records, so that one may be complete when the other is cut.
    let (first, second) = requests.split_at(requests.len() / 2);
    client.tls.writer().write_all(first).unwrap();
    client.tls.writer().write_all(second).unwrap();
    client.exchange(&mut sim, cut);
    for from in 0..WORKERS {
        sim.migrate(from, (from + 1) % WORKERS);
    }
    for _ in 0..60 {
        client.exchange(&mut sim, usize::MAX);
    }
    let moved = (0..WORKERS)
        .map(|worker| sim.counters_of(worker).taken_over.get())
        .sum();
    (mask_dates(&client.received), moved)
}

#[test]
fn connections_migrate_at_every_byte_of_their_records() {
    let _dog = watchdog("connections_migrate_at_every_byte_of_their_records");
    let post = "POST /late-echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nsome bytes";
    let requests = get("/hello") + &get("/late") + post + &get("/fields?a=1");
    let calm = || plain(64 * 1024);
    let (expected, _) = migrated(1, calm(), requests.as_bytes(), 0);
    assert_eq!(statuses(expected.as_bytes()), [200; 4]);
    let mut moved = 0;
    for cut in 0..requests.len() + 60 {
        let (seen, once) = migrated(cut as u64, calm(), requests.as_bytes(), cut);
        assert_eq!(seen, expected, "after {cut} bytes");
        let (seen, again) = migrated(cut as u64, Behaviour::default(), requests.as_bytes(), cut);
        assert_eq!(seen, expected, "after {cut} bytes, in pieces");
        moved += once + again;
    }
    assert!(moved > requests.len() as u64, "{moved} migrations");
}

#[test]
fn handshakes_are_counted_once() {
    let _dog = watchdog("handshakes_are_counted_once");
    let tls = CONFIGS.0.clone();
    let limits = Limits::default();
    let mut sim = Simulation::builder(1)
        .limits(limits)
        .network(plain(1 << 16))
        .tls(tls)
        .start(&app);
    let established = SimClient::new(&mut sim);
    let count = |sim: &Simulation, outcome| sim.counters().handshakes.of(outcome);
    // Tests that run at the same time share the tickets of the client.
    let complete = |sim: &Simulation| {
        count(sim, HandshakeOutcome::Tls13) + count(sim, HandshakeOutcome::Tls13Resumed)
    };
    assert_eq!(complete(&sim), 1);
    drop(established);
    sim.run();
    let gone = sim.connect();
    sim.send(&gone, &hello());
    drop(gone);
    sim.run();
    assert_eq!(count(&sim, HandshakeOutcome::Failed), 1);
    let broken = sim.connect();
    sim.send(&broken, &[0x16, 3, 1, 0xff, 0xff, 1]);
    drop(broken);
    sim.advance(Duration::from_secs(10));
    assert_eq!(count(&sim, HandshakeOutcome::Failed), 2);
    let plain = sim.connect();
    sim.send(&plain, get("/").as_bytes());
    drop(plain);
    sim.advance(Duration::from_secs(10));
    assert_eq!(count(&sim, HandshakeOutcome::PlainHttp), 1);
    let silent = sim.connect();
    sim.send(&silent, &hello());
    sim.advance(Duration::from_secs(20));
    assert_eq!(count(&sim, HandshakeOutcome::TimedOut), 1);
    assert_eq!(sim.counters().timed_out.of(TimeLimit::Handshake), 1);
    let again = SimClient::new(&mut sim);
    assert_eq!(complete(&sim), 2);
    drop(again);
    sim.run();
    assert_eq!(sim.counters().handshakes.get(), 6);
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn a_configuration_is_replaced_under_load() {
    let _dog = watchdog("a_configuration_is_replaced_under_load");
    let (config, _) = &*CONFIGS;
    let shared = TlsConfig::clone(config);
    for driver in drivers() {
        let served = serve_tls(driver, app, |server| server);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| (0..100).all(|_| serves(&served)));
            for _ in 0..1000 {
                shared.replace(TlsConfig::from(shared.current()));
            }
            assert!(clients.join().unwrap());
        });
    }
}
