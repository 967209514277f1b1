//! What streams of one connection share, and what none may do to another: heads, bodies that go on
//! after the end of a connection, turns, windows, memory.

use super::Peer;
use crate::common::app::app;
use crate::common::{calm, plain};
use onrush::sim::Simulation;
use onrush::{Limits, Request, Response};
use std::cell::RefCell;
use std::time::Duration;
use testing::http2::{Client, frame, kind};

/// Reads its body in a task that goes on after the end of the request, unless the path is `/hello`.
/// `/seen` tells what such tasks have read.
async fn reads_on(request: Request) -> Response {
    thread_local!(static SEEN: RefCell<String> = const { RefCell::new(String::new()) });
    match request.path() {
        "/hello" => return Response::text("hello"),
        "/seen" => return Response::text(SEEN.take()),
        _ => {}
    }
    let worker = request.worker().clone();
    let mut body = request.into_body();
    let work = worker.spawn(async move {
        let read = body.read_all(1 << 20).await;
        let text = match read {
            Ok(bytes) => format!("{} bytes", bytes.len()),
            Err(_) => "an error".to_owned(),
        };
        SEEN.with_borrow_mut(|seen| seen.push_str(&text));
    });
    work.detach();
    worker.sleep(Duration::from_secs(3600)).await;
    Response::text("never")
}

/// The number of a stream is no number of a response, however many there were before.
#[test]
fn a_body_that_was_cut_off_is_never_a_complete_one() {
    type End = fn(&mut Peer);
    let ends: [End; 5] = [
        |peer| peer.client.grant(0, 0),
        |peer| {
            peer.client.out.extend_from_slice(b"\0\0");
            peer.advance(Duration::from_secs(11));
        },
        |peer| peer.connection.shutdown_write(),
        |peer| peer.connection.reset(),
        |peer| peer.client.send(kind::GOAWAY, 0, 3, &[0; 8]),
    ];
    for (at, end) in ends.iter().enumerate() {
        for before in 0..4 {
            let limits = Limits::default().head_timeout(Duration::from_secs(10));
            let mut peer = Peer::of(&reads_on, limits);
            let upload = peer.client.request("PUT", "/", &[], false);
            peer.client.data(upload, b"a half", false);
            peer.run();
            for _ in 0..before {
                assert_eq!(peer.get("/hello").text(), "hello");
            }
            end(&mut peer);
            peer.sim.send(&peer.connection, &peer.client.take_out());
            peer.sim.advance(Duration::from_secs(1));
            let mut other = Peer::on(peer.sim);
            assert_eq!(
                other.get("/seen").text(),
                "an error",
                "end {at}, {before} before"
            );
        }
    }
}

#[test]
fn a_request_that_was_refused_is_itself_when_it_is_repeated() {
    async fn tells(request: Request) -> Response {
        if request.path() == "/held" {
            request.worker().sleep(Duration::from_secs(3600)).await;
        }
        Response::text(request.target().to_owned())
    }
    let sim = Simulation::builder(1)
        .receive_memory(1 << 20)
        .network(plain(64 * 1024))
        .start(&tells);
    let mut peer = Peer::on(sim);
    peer.client.get("/held");
    let ask = |peer: &mut Peer, path: &str| {
        let stream = peer.client.request("POST", path, &[], false);
        peer.client.data(stream, b"x", true);
        peer.run();
        let answer = peer.client.answer(stream);
        (answer.status, answer.text())
    };
    // Once to fill the table, once more to be kept as it is.
    for path in ["/bbbb", "/aaaa", "/aaaa"] {
        assert_eq!(ask(&mut peer, path), (200, path.to_owned()));
    }
    let mut others = Vec::new();
    while ask(&mut peer, "/bbbb").0 == 200 {
        ask(&mut peer, "/aaaa");
        let (connection, mut client) = (peer.sim.connect(), Client::new());
        client.send(kind::HEADERS, 0, 1, &[0x82; 16_000]);
        let out = client.take_out();
        peer.sim.send(&connection, &out);
        others.push(connection);
        assert!(others.len() < 200, "memory becomes short");
    }
    others.iter().for_each(|connection| connection.reset());
    peer.run();
    assert_eq!(ask(&mut peer, "/bbbb"), (200, "/bbbb".to_owned()));
}

/// A DATA frame whose head never arrives at once, as a record of TLS in packets of a network.
#[test]
fn an_upload_lasts_longer_than_the_limit_for_a_frame() {
    let limits = Limits::default().head_timeout(Duration::from_secs(4));
    let mut peer = Peer::of(&app, limits);
    let stream = peer.client.request("POST", "/whole", &[], false);
    peer.run();
    let piece = frame(kind::DATA, 0, stream, &[1; 1000]);
    peer.client.out.extend_from_slice(&piece[..5]);
    for _ in 0..20 {
        peer.client.out.extend_from_slice(&piece[5..]);
        peer.client.out.extend_from_slice(&piece[..5]);
        peer.advance(Duration::from_secs(1));
        assert!(peer.codes().is_empty());
    }
    peer.client.out.extend_from_slice(&piece[5..]);
    peer.client.data(stream, b"", true);
    peer.run();
    let answer = peer.client.answer(stream);
    assert_eq!(answer.text(), "21000 bytes, sum 21000");
    // One that stalls is over, whatever was complete before it.
    peer.client.out.extend_from_slice(&piece[..5]);
    peer.advance(Duration::from_secs(5));
    assert_eq!(peer.codes(), [11]);
}

#[test]
fn responses_of_every_mix_of_priorities_become_complete() {
    let kinds = [
        None,
        Some("u=3"),
        Some("u=3, i"),
        Some("u=1"),
        Some("u=5, i"),
    ];
    for mix in 0..kinds.len().pow(3) {
        let mut peer = Peer::new();
        peer.client = Client::with_settings(&[(4, 10_000_000)]);
        peer.client.grant(0, 10_000_000);
        let streams: Vec<u32> = (0..3)
            .map(|at| {
                let priority = kinds[mix / kinds.len().pow(at) % kinds.len()];
                let fields: Vec<_> = priority
                    .map(|value| ("priority", value))
                    .into_iter()
                    .collect();
                peer.client.request("GET", "/big", &fields, true)
            })
            .collect();
        peer.run();
        for stream in streams {
            assert_eq!(peer.client.answer(stream).body.len(), 300_000, "mix {mix}");
        }
    }
}

#[test]
fn requests_before_the_end_of_a_client_are_served() {
    let mut peer = Peer::new();
    let streams: Vec<u32> = (0..120).map(|_| peer.client.get("/hello")).collect();
    let upload = peer.client.request("POST", "/whole", &[], false);
    peer.client.data(upload, &[1; 60_000], true);
    let out = peer.client.take_out();
    let mut sent = 0;
    while sent < out.len() {
        sent += peer.sim.send(&peer.connection, &out[sent..]);
        if sent == out.len() {
            peer.connection.shutdown_write();
        }
        peer.sim.run();
        peer.client
            .receive(&peer.connection.receive().expect("no reset"));
    }
    peer.sim.run();
    peer.client
        .receive(&peer.connection.receive().expect("no reset"));
    for stream in streams {
        assert_eq!(peer.client.answer(stream).text(), "hello", "{stream}");
    }
    let text = peer.client.answer(upload).text();
    assert_eq!(text, "60000 bytes, sum 60000");
    assert!(peer.is_closed());
}

#[test]
fn a_rejected_head_request_gets_no_content() {
    let mut peer = Peer::new();
    let long = format!("/{}", "x".repeat(12_000));
    let rejected = peer.client.request("HEAD", &long, &[], true);
    peer.run();
    let answer = peer.client.answer(rejected);
    assert_eq!((answer.status, answer.body.len()), (414, 0));
    assert!(answer.is_complete);
    assert_ne!(peer.get(&long).body.len(), 0);
}

#[test]
fn pieces_of_a_cookie_are_one_field() {
    let mut peer = Peer::new();
    let pieces: Vec<String> = (0..400).map(|at| format!("c{at}=v")).collect();
    let fields: Vec<(&str, &str)> = pieces.iter().map(|piece| ("cookie", &piece[..])).collect();
    let stream = peer.client.request("GET", "/hello", &fields, true);
    peer.run();
    assert_eq!(peer.client.answer(stream).status, 200);
}

/// What is dropped unread of a body does not take up the window of the connection.
#[test]
fn bodies_that_are_dropped_unread_give_their_window_back() {
    async fn never_reads(request: Request) -> Response {
        if request.path() == "/hello" {
            return Response::text("hello");
        }
        request.worker().sleep(Duration::from_secs(3600)).await;
        Response::text("never")
    }
    let limits = Limits::default().total_timeout(Duration::from_secs(10));
    let mut peer = Peer::of(&never_reads, limits);
    for _ in 0..20 {
        let stream = peer.client.request("POST", "/", &[], false);
        peer.client.data(stream, &[1; 60_000], false);
        peer.run();
        peer.advance(Duration::from_secs(11));
        assert_eq!(peer.client.answer(stream).reset, Some(8));
    }
    let given = peer.client.room.get(&0).copied().unwrap_or(0);
    assert!(given + 65_535 >= 20 * 60_000, "{given} bytes of window");
    assert_eq!(peer.get("/hello").text(), "hello");
}

#[test]
fn requests_that_are_rejected_keep_a_connection_busy() {
    let limits = Limits::default().idle_timeout(Duration::from_secs(3));
    let mut peer = Peer::on(calm(&app, limits));
    let long = format!("/{}", "x".repeat(12_000));
    for _ in 0..10 {
        assert_eq!(peer.get(&long).status, 414);
        peer.advance(Duration::from_secs(1));
        assert!(peer.codes().is_empty());
    }
}

#[test]
fn responses_that_wait_for_their_clients_count_as_memory() {
    async fn large(_: Request) -> Response {
        Response::with_body(vec![b'x'; 50_000])
    }
    let sim = Simulation::builder(1)
        .receive_memory(4 << 20)
        .network(plain(64 * 1024))
        .start(&large);
    let mut peer = Peer::on(sim);
    let begin = |peer: &mut Peer| {
        let connection = peer.sim.connect();
        let mut client = Client::with_settings(&[(4, 0)]);
        (0..40).for_each(|_| _ = client.get("/"));
        let out = client.take_out();
        peer.sim.send(&connection, &out);
        connection
    };
    let mut all = vec![begin(&mut peer)];
    peer.sim.run();
    assert_eq!(peer.sim.counters().evicted.get(), 0, "2 of 4 MiB");
    all.extend((0..9).map(|_| begin(&mut peer)));
    peer.sim.run();
    // At most 3.5 MiB wait: 73 responses of 400.
    assert!(peer.sim.counters().evicted.get() >= 320);
    // Others may share the connections, so these stay.
    assert_eq!(peer.sim.open_connections(), 11);
    assert_eq!(peer.get("/").body.len(), 50_000);
}

/// Responses that are sent one after the other, longer than the time limit.
#[test]
fn a_stream_that_waits_for_its_turn_is_not_too_slow() {
    let limits = Limits::default()
        .write_timeout(Duration::from_secs(4))
        .rate_bytes_per_s_min(1_000)
        .rate_window(Duration::from_secs(5));
    let mut peer = Peer::of(&app, limits);
    peer.client.reads = false;
    let fields = [("priority", "u=3")];
    let streams = [(); 3].map(|()| peer.client.request("GET", "/big", &fields, true));
    for stream in streams {
        peer.client.grant(stream, 300_000);
    }
    peer.run();
    // The window of the connection opens by 20,000 bytes a second.
    for _ in 0..45 {
        peer.client.grant(0, 20_000);
        peer.advance(Duration::from_secs(1));
    }
    for stream in streams {
        let answer = peer.client.answer(stream);
        assert_eq!((answer.body.len(), answer.reset), (300_000, None));
    }
}

#[test]
fn a_client_that_opens_the_window_of_the_connection_by_single_bytes_is_too_slow() {
    let limits = Limits::default()
        .rate_bytes_per_s_min(100)
        .rate_window(Duration::from_secs(10));
    let mut peer = Peer::of(&app, limits);
    peer.client.reads = false;
    let streams = [(); 3].map(|()| peer.client.get("/big"));
    for stream in streams {
        peer.client.grant(stream, 300_000);
    }
    peer.run();
    let mut seconds = 0;
    let is_over = |peer: &Peer| (streams.iter()).all(|at| peer.client.answer(*at).reset.is_some());
    while !is_over(&peer) {
        peer.client.grant(0, 1);
        peer.advance(Duration::from_secs(1));
        seconds += 1;
        assert!(seconds < 200, "they are reset");
    }
    assert!(seconds >= 10);
}

/// A reader that pauses holds up nobody else, also when its window has grown.
#[test]
fn an_upload_that_is_not_read_does_not_hold_up_others() {
    async fn pauses(mut request: Request) -> Response {
        let bytes_max = match request.path() {
            "/pauses" => 5_000_000,
            _ => u64::MAX,
        };
        let mut bytes = 0;
        while let Some(piece) = request.body().next().await {
            bytes += piece.map_or(0, |piece| piece.len() as u64);
            if bytes >= bytes_max {
                request.worker().sleep(Duration::from_secs(3600)).await;
            }
        }
        Response::text(format!("{bytes}"))
    }
    let sim = Simulation::builder(1)
        .receive_memory(128 << 20)
        .network(plain(64 * 1024))
        .start(&pauses);
    let mut peer = Peer::on(sim);
    let room = |peer: &Peer, stream| 65_535 + peer.client.room.get(&stream).copied().unwrap_or(0);
    let pausing = peer.client.request("POST", "/pauses", &[], false);
    let (mut sent, mut sent_to_all) = (0, 0);
    while room(&peer, pausing).min(room(&peer, 0)) > sent + 30_000 {
        peer.client.data(pausing, &[1; 30_000], false);
        (sent, sent_to_all) = (sent + 30_000, sent_to_all + 30_000);
        peer.run();
        assert!(sent < 100_000_000, "its window ends");
    }
    assert!(sent > 5_000_000, "it has grown: {sent}");
    let other = peer.client.request("POST", "/", &[], false);
    let mut sent_other = 0;
    for _ in 0..200 {
        let left = room(&peer, other).min(room(&peer, 0) + sent_other - sent_to_all);
        assert!(left >= sent_other + 30_000, "{sent_other}");
        peer.client.data(other, &[1; 30_000], false);
        (sent_other, sent_to_all) = (sent_other + 30_000, sent_to_all + 30_000);
        peer.run();
    }
    peer.client.data(other, b"", true);
    peer.run();
    assert_eq!(peer.client.answer(other).text(), "6000000");
}

#[test]
fn a_frame_that_drips_is_over_in_time() {
    let limits = Limits::default().head_timeout(Duration::from_secs(4));
    let mut peer = Peer::of(&app, limits);
    peer.run();
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    for byte in &ping[..10] {
        peer.client.out.push(*byte);
        peer.advance(Duration::from_secs(1));
    }
    assert_eq!(peer.codes(), [11]);
}

#[test]
fn an_empty_body_that_does_not_end_takes_up_no_stream_for_ever() {
    let mut peer = Peer::new();
    for _ in 0..300 {
        let fields = [("content-length", "0")];
        let stream = peer.client.request("POST", "/hello", &fields, false);
        peer.run();
        assert_eq!(peer.client.answer(stream).status, 200);
        peer.advance(Duration::from_secs(60));
    }
    assert_eq!(peer.get("/hello").text(), "hello");
}
