//! What ends: streams, connections, servers; by their clients, by time, by violations.

use super::Peer;
use crate::common::app::app;
use crate::common::calm;
use onrush::metrics::{CloseReason, TimeLimit};
use onrush::{Limits, Request, Response};
use std::cell::Cell;
use std::time::Duration;
use testing::http2::{Client, kind};

thread_local! {
    /// Requests that began, and those whose handlers exist.
    static BEGUN: Cell<u32> = const { Cell::new(0) };
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

struct Open;

impl Open {
    fn new() -> Open {
        BEGUN.set(BEGUN.get() + 1);
        OPEN.set(OPEN.get() + 1);
        Open
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.set(OPEN.get() - 1);
    }
}

/// Never ends, except for `/hello` and `/read`.
async fn waiting(mut request: Request) -> Response {
    let _open = Open::new();
    if request.path() == "/hello" {
        return Response::text("hello");
    }
    if request.path() == "/read" {
        return match request.body().discard().await {
            Ok(bytes) => Response::text(format!("{bytes}")),
            Err(error) => Response::text(error.to_string()),
        };
    }
    request.worker().sleep(Duration::from_secs(3600)).await;
    Response::text("never")
}

fn limits() -> Limits {
    Limits::default()
        .head_timeout(Duration::from_secs(10))
        .idle_timeout(Duration::from_secs(60))
        .body_timeout(Duration::from_secs(20))
        .write_timeout(Duration::from_secs(30))
        .total_timeout(Duration::from_secs(300))
}

fn peer() -> Peer {
    BEGUN.set(0);
    OPEN.set(0);
    Peer::of(&waiting, limits())
}

#[test]
fn a_client_that_cancels_ends_the_handler() {
    let mut peer = peer();
    let first = peer.client.get("/");
    let second = peer.client.get("/");
    peer.run();
    assert_eq!(OPEN.get(), 2);
    peer.client.reset(first, 8);
    peer.run();
    assert_eq!(OPEN.get(), 1);
    // Any code means the same.
    peer.client.reset(second, 0xdead_beef);
    peer.run();
    assert_eq!(OPEN.get(), 0);
    assert_eq!(peer.get("/hello").text(), "hello");
    drop(peer);
    assert_eq!(OPEN.get(), 0);
}

#[test]
fn a_connection_that_ends_ends_its_handlers() {
    let mut peer = peer();
    peer.client.get("/");
    peer.client.request("POST", "/read", &[], false);
    peer.run();
    assert_eq!(OPEN.get(), 2);
    peer.connection.shutdown_write();
    peer.sim.run();
    assert_eq!(OPEN.get(), 0);
    assert_eq!(peer.sim.open_connections(), 0);
}

#[test]
fn a_violation_ends_the_connection_after_its_last_frame() {
    let mut peer = peer();
    peer.client.get("/");
    peer.run();
    peer.client.send(kind::DATA, 0, 0, b"on stream 0");
    peer.client.get("/hello");
    peer.run();
    assert_eq!(peer.client.goaways, [(1, 1)]);
    assert!(peer.is_closed());
    assert_eq!(OPEN.get(), 0);
    peer.advance(Duration::from_secs(60));
    assert_eq!(peer.sim.open_connections(), 0);
}

#[test]
fn each_wait_has_its_time_limit() {
    // The preface, settings, a frame, a header block.
    let parts: [&[u8]; 4] = [b"PRI * HTTP/2.0\r\n\r\nSM", b"", b"\0\0", b""];
    for (at, part) in parts.iter().enumerate() {
        let mut peer = peer();
        peer.client.acknowledges = at > 1;
        if at > 0 {
            peer.run();
        }
        match at {
            0 => peer.client.out = part.to_vec(),
            1 => {}
            2 => peer.client.out.extend_from_slice(part),
            _ => peer.client.send(kind::HEADERS, 0, 1, &[0x82]),
        }
        peer.run();
        peer.advance(Duration::from_secs(9));
        assert!(!peer.is_closed(), "{at}");
        peer.advance(Duration::from_secs(2));
        assert!(peer.is_closed(), "{at}");
        let code = if at == 1 { 4 } else { 11 };
        assert_eq!(peer.codes(), [code], "{at}");
    }
    // A connection without streams.
    let mut peer = peer();
    assert_eq!(peer.get("/hello").status, 200);
    peer.advance(Duration::from_secs(59));
    assert!(!peer.is_closed());
    peer.advance(Duration::from_secs(2));
    assert!(peer.is_closed());
    assert_eq!(peer.codes(), [0]);
    assert_eq!(peer.sim.counters().done.of(CloseReason::Idle), 1);
}

#[test]
fn each_wait_of_a_stream_has_its_time_limit() {
    let mut peer = peer();
    let read = peer.client.request("POST", "/read", &[], false);
    peer.client.data(read, b"some", false);
    let never = peer.client.get("/");
    peer.run();
    peer.advance(Duration::from_secs(21));
    assert_eq!(peer.client.answer(read).status, 408);
    assert_eq!(peer.sim.counters().timed_out.of(TimeLimit::Body), 1);
    assert_eq!(peer.client.answer(never).reset, None);
    peer.advance(Duration::from_secs(280));
    assert_eq!(peer.client.answer(never).reset, Some(8));
    assert_eq!(peer.sim.counters().timed_out.of(TimeLimit::Total), 1);
    assert_eq!((OPEN.get(), peer.get("/hello").status), (0, 200));

    let mut peer = Peer::of(&app, limits());
    peer.client.reads = false;
    let unread = peer.client.get("/big");
    peer.run();
    peer.advance(Duration::from_secs(29));
    assert_eq!(peer.client.answer(unread).reset, None);
    peer.client.grant(unread, 10);
    peer.client.grant(0, 10);
    peer.run();
    peer.advance(Duration::from_secs(29));
    assert_eq!(peer.client.answer(unread).reset, None, "it has read");
    peer.advance(Duration::from_secs(2));
    assert_eq!(peer.client.answer(unread).reset, Some(8));
    assert_eq!(peer.sim.counters().timed_out.of(TimeLimit::Write), 1);
}

#[test]
fn a_client_that_grants_single_bytes_is_too_slow() {
    let limits = limits()
        .rate_bytes_per_s_min(100)
        .rate_window(Duration::from_secs(10));
    let mut peer = Peer::of(&app, limits);
    peer.client.reads = false;
    let stream = peer.client.get("/big");
    peer.run();
    let mut seconds = 0;
    while peer.client.answer(stream).reset.is_none() {
        peer.client.grant(0, 1);
        peer.client.grant(stream, 1);
        peer.advance(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 100, "it is reset");
    }
    assert!(seconds >= 10);
}

/// The GOAWAY that says that no stream is refused yet.
const ANNOUNCED: (u32, u32) = (0x7fff_ffff, 0);

#[test]
fn a_drain_ends_in_two_steps_and_cuts_nothing_off() {
    let mut peer = Peer::of(&app, limits());
    assert_eq!(peer.get("/hello").text(), "hello");
    peer.sim.drain();
    peer.advance(Duration::from_millis(150));
    assert_eq!(peer.client.goaways, [], "a request may be on its way");
    peer.advance(Duration::from_millis(100));
    assert_eq!(peer.client.goaways, [ANNOUNCED]);
    // What the client sends before it has read that is served.
    let crossing = peer.client.get("/late-big");
    peer.run();
    peer.advance(Duration::from_secs(1));
    assert_eq!(peer.client.goaways[1], (crossing, 0));
    assert_eq!(peer.client.answer(crossing).body.len(), 300_000);
    assert!(peer.is_closed());
    assert_eq!(peer.sim.open_connections(), 0, "the server waits for none");
}

/// httpx, undici and java.net.http of Java 17 take a GOAWAY for the failure of all open requests.
#[test]
fn a_drain_is_announced_when_no_stream_is_open() {
    let mut peer = Peer::of(&app, limits());
    let upload = peer.client.request("POST", "/whole", &[], false);
    let download = peer.client.get("/late-big");
    peer.client.data(upload, &[1; 30_000], false);
    peer.run();
    peer.sim.drain();
    peer.advance(Duration::from_secs(2));
    assert_eq!(peer.client.answer(download).body.len(), 300_000);
    assert_eq!(peer.get("/hello").text(), "hello");
    peer.advance(Duration::from_secs(8));
    assert_eq!(peer.client.goaways, []);
    finish_upload(&mut peer, upload);
    assert_eq!(peer.client.goaways, [ANNOUNCED], "with the last response");
    peer.advance(Duration::from_secs(1));
    assert!(peer.is_closed());
}

/// A client with half of an upload that began before a drain, and its stream.
fn draining_upload() -> (Peer, u32) {
    let mut peer = Peer::of(&app, limits());
    let upload = peer.client.request("POST", "/whole", &[], false);
    peer.client.data(upload, &[1; 30_000], false);
    peer.run();
    peer.sim.drain();
    (peer, upload)
}

/// Sends the other half, and checks the response.
fn finish_upload(peer: &mut Peer, upload: u32) {
    peer.client.data(upload, &[1; 30_000], true);
    peer.run();
    assert_eq!(peer.client.answer(upload).text(), "60000 bytes, sum 60000");
}

#[test]
fn a_drain_is_announced_to_a_client_whose_requests_never_pause() {
    let (mut peer, upload) = draining_upload();
    peer.advance(Duration::from_secs(6));
    assert_eq!(peer.client.goaways, []);
    assert_eq!(peer.get("/hello").text(), "hello");
    assert_eq!(peer.client.goaways, [ANNOUNCED]);
    peer.advance(Duration::from_secs(1));
    finish_upload(&mut peer, upload);
    assert!(peer.is_closed());
}

#[test]
fn an_upload_goes_on_while_the_server_drains() {
    let (mut peer, upload) = draining_upload();
    peer.advance(Duration::from_secs(2));
    finish_upload(&mut peer, upload);
    peer.advance(Duration::from_secs(1));
    assert!(peer.is_closed());
}

#[test]
fn goaway_of_a_client_changes_nothing() {
    let mut peer = Peer::of(&app, limits());
    peer.client.send(kind::GOAWAY, 0, 0, &[0; 8]);
    assert_eq!(peer.get("/late").status, 0);
    peer.advance(Duration::from_secs(1));
    assert!(peer.client.is_done());
    assert_eq!(peer.get("/hello").text(), "hello");
}

#[test]
fn a_response_that_cannot_be_completed_is_reset() {
    let mut peer = Peer::of(&app, limits());
    for path in ["/short", "/broken", "/long"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.reset), (200, Some(2)), "{path}");
        assert!(!answer.is_complete);
    }
    assert_eq!(peer.get("/hello").text(), "hello", "other streams go on");
}

#[test]
fn a_response_may_be_the_last_one() {
    let mut peer = Peer::of(&app, limits());
    let late = peer.client.get("/late");
    let last = peer.client.get("/close");
    peer.run();
    assert_eq!(peer.client.goaways, [(last, 0)]);
    let refused = peer.client.get("/hello");
    peer.advance(Duration::from_secs(1));
    assert_eq!(
        peer.client.answer(refused).reset,
        Some(7),
        "it may be sent again"
    );
    assert_eq!(peer.client.answer(late).text(), "late");
    assert!(peer.is_closed());
}

#[test]
fn rapid_resets_start_few_handlers() {
    let mut peer = peer();
    let mut requests = 0;
    while !peer.is_closed() && requests < 100_000 {
        for _ in 0..100 {
            let stream = peer.client.get("/");
            peer.client.reset(stream, 8);
            requests += 1;
        }
        peer.run();
    }
    assert!(BEGUN.get() < 500, "{} handlers began", BEGUN.get());
    assert_eq!(peer.codes(), [11]);
    assert_eq!(OPEN.get(), 0);
}

#[test]
fn floods_end_with_the_connection() {
    type Flood = fn(&mut Client);
    let floods: [(&str, Flood); 5] = [
        ("ping", |client| client.send(kind::PING, 0, 0, &[0; 8])),
        ("settings", |client| client.send(kind::SETTINGS, 0, 0, b"")),
        ("window", |client| client.grant(0, 1)),
        ("priority", |client| {
            client.send(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1");
        }),
        ("empty data", |client| client.send(kind::DATA, 0, 1, b"")),
    ];
    for (name, flood) in floods {
        let mut peer = peer();
        peer.client.request("POST", "/read", &[], false);
        let mut frames = 0;
        while !peer.is_closed() {
            (0..100).for_each(|_| flood(&mut peer.client));
            frames += 100;
            peer.run();
            assert!(frames < 10_000, "{name} has no end");
        }
        assert_eq!(peer.codes(), [11], "{name}");
        assert!(peer.sim.receive_bytes() < 100_000, "{name}");
    }
}

#[test]
fn a_header_block_without_end_is_bounded() {
    let mut peer = peer();
    peer.run();
    peer.client.send(kind::HEADERS, 0, 1, &[0x82; 1000]);
    let mut bytes = 0;
    while !peer.is_closed() {
        peer.client.send(kind::CONTINUATION, 0, 1, &[0x82; 1000]);
        bytes += 1000;
        peer.run();
        assert!(bytes < 1_000_000, "it ends");
        assert!(peer.sim.receive_bytes() < 300_000);
    }
    assert_eq!(peer.codes(), [11]);
}

#[test]
fn the_oldest_parts_of_heads_are_evicted_when_memory_is_short() {
    let sim = onrush::sim::Simulation::builder(1)
        .limits(limits())
        .receive_memory(1 << 20)
        .network(crate::common::plain(64 * 1024))
        .start(&app);
    let mut peer = Peer::on(sim);
    let begin = |peer: &mut Peer| {
        let (connection, mut client) = (peer.sim.connect(), Client::new());
        client.send(kind::HEADERS, 0, 1, &[0x82; 16_000]);
        client.send(kind::CONTINUATION, 0, 1, &[0x82; 16_000]);
        let out = client.take_out();
        peer.sim.send(&connection, &out);
        connection
    };
    let connections: Vec<_> = (0..100).map(|_| begin(&mut peer)).collect();
    assert!(
        peer.sim.receive_bytes() <= 1 << 20,
        "{}",
        peer.sim.receive_bytes()
    );
    assert!(peer.sim.counters().evicted.get() > 0);
    assert_eq!(peer.get("/hello").text(), "hello");
    drop(connections);
}

#[test]
fn nothing_is_left_when_connections_have_ended() {
    let mut sim = calm(&app, limits());
    let before = sim.receive_bytes();
    for _ in 0..3 {
        let mut peer = Peer::on(sim);
        let upload = peer.client.request("POST", "/whole", &[], false);
        peer.client.data(upload, &[1; 50_000], false);
        peer.client.get("/late-big");
        peer.run();
        let Peer {
            sim: same,
            connection,
            ..
        } = peer;
        connection.reset();
        sim = same;
        sim.run();
        assert_eq!(sim.open_connections(), 0);
        assert!(
            sim.receive_bytes() <= before + 64 * 1024,
            "{}",
            sim.receive_bytes()
        );
    }
}

#[test]
fn a_burst_of_uploads_beyond_the_limit_does_not_end_the_connection() {
    let mut peer = Peer::of(&app, limits());
    let streams: Vec<u32> = (0..300)
        .map(|_| {
            let stream = peer.client.request("POST", "/late-echo", &[], false);
            peer.client.data(stream, b"body", true);
            stream
        })
        .collect();
    peer.run();
    peer.advance(Duration::from_millis(10));
    let answers = streams.iter().map(|stream| peer.client.answer(*stream));
    let served = answers
        .clone()
        .filter(|answer| answer.text() == "body")
        .count();
    let refused = answers.filter(|answer| answer.reset == Some(7)).count();
    assert_eq!((served >= 128, served + refused), (true, 300), "{served}");
    assert!(peer.client.goaways.is_empty());
    assert_eq!(peer.get("/hello").text(), "hello");
}

#[test]
fn bodies_that_nobody_reads_are_dropped_when_memory_is_short() {
    async fn slow(mut request: Request) -> Response {
        if request.path() == "/hello" {
            return Response::text("hello");
        }
        request.worker().sleep(Duration::from_secs(1)).await;
        match request.body().discard().await {
            Ok(bytes) => Response::text(format!("{bytes}")),
            Err(_) => Response::text("not the error that the client should get"),
        }
    }
    let sim = onrush::sim::Simulation::builder(1)
        .limits(limits())
        .receive_memory(1 << 20)
        .network(crate::common::plain(64 * 1024))
        .start(&slow);
    let mut peer = Peer::on(sim);
    let begin = |peer: &mut Peer| {
        let (connection, mut client) = (peer.sim.connect(), Client::new());
        let stream = client.request("PUT", "/", &[], false);
        client.data(stream, &[b'x'; 65_000], false);
        let out = client.take_out();
        peer.sim.send(&connection, &out);
        (connection, client, stream)
    };
    let mut others: Vec<_> = (0..40).map(|_| begin(&mut peer)).collect();
    assert!(peer.sim.receive_bytes() <= 1 << 20);
    assert!(peer.sim.counters().evicted.get() > 0);
    assert_eq!(peer.get("/hello").text(), "hello");
    peer.advance(Duration::from_secs(2));
    let mut refused = 0;
    for (connection, client, stream) in &mut others {
        client.receive(&connection.receive().expect("no reset"));
        refused += u32::from(client.answer(*stream).status == 503);
    }
    assert!(refused > 20, "{refused} of 40");
}

#[test]
fn an_idle_deadline_that_passes_while_output_waits_fires_once() {
    let limits = limits().idle_timeout(Duration::from_secs(1));
    let sim = onrush::sim::Simulation::builder(1)
        .limits(limits)
        .network(crate::common::plain(1_000))
        .start(&app);
    let mut peer = Peer::on(sim);
    peer.client.get("/hello");
    let out = peer.client.take_out();
    peer.sim.send(&peer.connection, &out);
    // What follows waits for the client, which does not read for a while.
    peer.client.get("/big");
    let out = peer.client.take_out();
    peer.sim.send(&peer.connection, &out);
    peer.sim.advance(Duration::from_secs(10));
    assert!(!peer.is_closed());
    peer.run();
    assert!(peer.client.is_done());
    peer.advance(Duration::from_secs(2));
    assert!(peer.is_closed());
}
