//! The same handlers give the same responses in HTTP/2 as in HTTP/1, however bytes are split.

use super::Peer;
use crate::common::app::app;
use crate::common::{dechunk, drivers, pattern, read_some, seeds, serve_plain, statuses, text};
use onrush::Limits;
use onrush::sim::Simulation;
use std::io::Write;
use testing::http2::Client;

const PATHS: [&str; 17] = [
    "/hello",
    "/early",
    "/late",
    "/big",
    "/late-big",
    "/stream",
    "/sized",
    "/nothing",
    "/no-content",
    "/not-modified",
    "/reset-content",
    "/streamed-204",
    "/fields?a=b",
    "/panic",
    "/late-panic",
    "/missing",
    "/interim",
];

#[test]
fn responses_are_those_of_http_1() {
    let mut peer = Peer::new();
    for path in PATHS {
        let old = peer.sim.connect();
        let head = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
        peer.sim.send(&old, head.as_bytes());
        peer.sim.advance(std::time::Duration::from_millis(10));
        let mut received = Vec::new();
        loop {
            let more = old.receive().expect("no reset");
            if more.is_empty() {
                break;
            }
            received.extend(more);
            peer.sim.run();
        }
        let status = *statuses(&received).last().expect("a response");
        let at = received.windows(4).rposition(|four| four == b"\r\n\r\n");
        let at = at.expect("a head") + 4;
        let (head, mut body) = (text(&received[..at]), received[at..].to_vec());
        if head.contains("Transfer-Encoding") {
            body = dechunk(&received[head.find("\r\n\r\n").expect("a head") + 4..]);
        }
        let stream = peer.client.get(path);
        peer.run();
        peer.advance(std::time::Duration::from_millis(10));
        let answer = peer.client.answer(stream);
        assert!(answer.is_complete, "{path}: {answer:?}");
        assert_eq!(
            (answer.status, answer.text()),
            (status, text(&body)),
            "{path}"
        );
        assert_eq!(answer.field("server"), Some("onrush"));
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        assert_eq!(answer.field("content-length"), length, "{path}");
        if path == "/fields?a=b" {
            let field = |name| answer.field(name).expect("a field");
            assert_eq!((field("x-method"), field("x-query")), ("GET", "a=b"));
            assert_eq!((field("x-target"), field("x-version")), (path, "Http2"));
        }
    }
    let head = peer.client.request("HEAD", "/big", &[], true);
    peer.run();
    let head = peer.client.answer(head);
    assert_eq!(
        (head.field("content-length"), head.body.len()),
        (Some("300000"), 0)
    );
    assert!(head.is_complete);
}

/// Requests of each kind, as bytes.
fn script() -> (Client, [u32; 4]) {
    let mut client = Client::new();
    let get = client.get("/hello");
    let echo = client.request("POST", "/echo", &[], false);
    client.data(echo, b"some bytes", false);
    client.data(echo, b", and more", true);
    let trailers = client.request("POST", "/echo", &[("content-length", "2")], false);
    client.data(trailers, b"ab", false);
    client.trailers(trailers, &[("x-sum", "7")]);
    let late = client.get("/late");
    (client, [get, echo, trailers, late])
}

fn check(client: &Client, streams: [u32; 4]) {
    let texts = streams.map(|stream| client.answer(stream).text());
    assert_eq!(texts[..2], ["hello", "some bytes, and more"]);
    assert_eq!(texts[2..], ["ab|x-sum: 7\r\n", "late"]);
}

#[test]
fn requests_may_be_split_at_each_byte() {
    let length = script().0.out.len();
    for at in 1..length {
        let mut peer = Peer::new();
        let (client, streams) = script();
        peer.client = client;
        // Nothing of its own is between the two parts.
        (peer.client.reads, peer.client.acknowledges) = (false, false);
        let rest = peer.client.out.split_off(at);
        peer.run();
        peer.client.out.extend(rest);
        peer.run();
        peer.advance(std::time::Duration::from_millis(10));
        check(&peer.client, streams);
    }
}

#[test]
fn the_network_may_split_and_delay_as_it_likes() {
    for seed in 0..seeds(100) {
        let mut peer = Peer::on(Simulation::new(seed, &app, Limits::default()));
        let (client, streams) = script();
        peer.client = client;
        let big = peer.client.get("/big");
        let sent = pattern(200_000);
        let upload = peer.client.request("POST", "/whole", &[], false);
        let mut from = 0;
        for _ in 0..200 {
            // As much as the window allows.
            let room = peer.client.room.get(&upload).copied().unwrap_or_default();
            let to = sent.len().min(65_535 + room as usize);
            if to > from {
                let ends = to == sent.len();
                peer.client.data(upload, &sent[from..to], ends);
                from = to;
            }
            peer.advance(std::time::Duration::from_millis(1));
            if peer.client.is_done() {
                break;
            }
        }
        check(&peer.client, streams);
        assert_eq!(
            peer.client.answer(big).body,
            pattern(300_000),
            "seed {seed}"
        );
        let sum: u64 = sent.iter().map(|&byte| u64::from(byte)).sum();
        let text = peer.client.answer(upload).text();
        assert_eq!(text, format!("200000 bytes, sum {sum}"), "seed {seed}");
    }
}

#[test]
fn both_drivers_serve_it() {
    for driver in drivers() {
        let server = serve_plain(driver, app);
        let mut stream = server.connect();
        let (mut client, streams) = script();
        let mut buffer = vec![0; 64 * 1024];
        client.get("/big");
        while !client.is_done() {
            stream.write_all(&client.take_out()).expect("sent");
            let n = read_some(&mut stream, &mut buffer).expect("received");
            assert!(n > 0, "the server has closed the connection: {client:?}");
            client.receive(&buffer[..n]);
        }
        check(&client, streams);
    }
}

#[test]
fn many_requests_are_answered_in_any_order() {
    let mut peer = Peer::new();
    let streams: Vec<u32> = (0..100)
        .map(|n| peer.client.get(if n % 2 == 0 { "/late" } else { "/hello" }))
        .collect();
    peer.run();
    let is_complete = |peer: &Peer, stream| peer.client.answer(stream).is_complete;
    assert!(
        streams
            .iter()
            .skip(1)
            .step_by(2)
            .all(|s| is_complete(&peer, *s))
    );
    assert!(!streams.iter().step_by(2).any(|s| is_complete(&peer, *s)));
    peer.advance(std::time::Duration::from_millis(10));
    assert!(peer.client.is_done());
    // All of the second half, in one pass, left together.
    assert_eq!(peer.sim.counters().requests.get(), 100);
}

#[test]
fn without_it_the_preface_is_a_bad_request() {
    let mut peer = Peer::on(Simulation::builder(1).http2(false).start(&app));
    peer.client.get("/hello");
    let out = peer.client.take_out();
    peer.sim.send(&peer.connection, &out);
    let received = peer.connection.receive().expect("a response");
    assert!(
        text(&received).starts_with("HTTP/1.1 "),
        "{}",
        text(&received)
    );
    assert!([400, 505].contains(&statuses(&received)[0]));
}
