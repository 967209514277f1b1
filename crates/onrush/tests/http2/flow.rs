//! Bodies in both directions, windows, and turns.

use super::Peer;
use crate::common::app::{Endless, app};
use crate::common::{calm, pattern};
use onrush::{Body, Limits, Request, Response};
use std::time::Duration;
use testing::http2::{Client, kind};

/// The bytes of the bodies of these streams.
fn received(peer: &Peer, streams: &[u32]) -> Vec<usize> {
    let bytes = |stream: &u32| peer.client.answer(*stream).body.len();
    streams.iter().map(bytes).collect()
}

#[test]
fn no_more_is_sent_than_the_windows_allow() {
    let mut peer = Peer::new();
    peer.client.reads = false;
    let first = peer.client.get("/big");
    let second = peer.client.get("/big");
    peer.run();
    let both = received(&peer, &[first, second]);
    assert_eq!(
        both.iter().sum::<usize>(),
        65_535,
        "the window of the connection"
    );
    assert!(
        both.iter().all(|bytes| *bytes > 16_000),
        "both have a share: {both:?}"
    );
    // What fits at once does not need a window, if it is empty.
    assert_eq!(peer.get("/nothing").status, 204);
    peer.client.grant(0, 600_000);
    peer.run();
    assert_eq!(received(&peer, &[first, second]), [65_535, 65_535]);
    peer.client.grant(first, 1);
    peer.run();
    assert_eq!(received(&peer, &[first, second]), [65_536, 65_535]);
    peer.client.grant(first, 300_000);
    peer.client.grant(second, 300_000);
    peer.run();
    assert_eq!(peer.client.answer(second).body, pattern(300_000));
    assert!(peer.client.is_done());
}

#[test]
fn a_slow_reader_of_one_stream_does_not_hold_up_others() {
    let mut peer = Peer::new();
    peer.client.reads = false;
    peer.client.grant(0, 10_000_000);
    let slow = peer.client.get("/big");
    peer.run();
    assert_eq!(received(&peer, &[slow]), [65_535]);
    for _ in 0..3 {
        let stream = peer.client.get("/late-big");
        peer.client.grant(stream, 300_000);
        peer.advance(Duration::from_millis(5));
        assert_eq!(received(&peer, &[stream]), [300_000]);
    }
}

#[test]
fn urgent_responses_come_first_and_incremental_ones_share() {
    let settings = [(4, 10_000_000)];
    let order = |priorities: [&str; 3]| {
        let mut peer = Peer::new();
        peer.client = Client::with_settings(&settings);
        peer.client.grant(0, 10_000_000);
        let streams = priorities.map(|priority| {
            let fields = [("priority", priority)];
            peer.client.request("GET", "/big", &fields, true)
        });
        peer.run();
        assert!(peer.client.is_done());
        let data = peer
            .client
            .frames
            .iter()
            .filter(|frame| frame.0 == kind::DATA);
        let order: Vec<usize> = data
            .filter_map(|frame| streams.iter().position(|stream| *stream == frame.2))
            .collect();
        order
    };
    let first_half = |order: &[usize], of: usize| {
        let half = &order[..order.len() / 2];
        half.iter().filter(|at| **at == of).count() * 100 / half.len()
    };
    let by_urgency = order(["u=5", "u=5", "u=1"]);
    assert!(first_half(&by_urgency, 2) > 60, "{by_urgency:?}");
    let shared = order(["u=3, i", "u=3, i", "u=3, i"]);
    for of in 0..3 {
        assert!((20..50).contains(&first_half(&shared, of)), "{shared:?}");
    }
    let in_turn = order(["u=3", "u=3", "u=3"]);
    assert!(first_half(&in_turn, 0) > 50, "{in_turn:?}");
    assert_eq!(in_turn.last(), Some(&2));
}

/// niquests 3.21 takes its own window for that of a server that does not say its own.
#[test]
fn the_window_of_streams_is_said_though_it_is_the_default() {
    let mut peer = Peer::new();
    assert_eq!(peer.get("/hello").text(), "hello");
    assert!(
        peer.client.settings.contains(&(4, 65_535)),
        "{:?}",
        peer.client.settings
    );
}

#[test]
fn a_window_opens_only_for_what_is_read() {
    async fn waits(mut request: Request) -> Response {
        if request.path() == "/waits" {
            request.worker().sleep(Duration::from_secs(5)).await;
        }
        match request.body().discard().await {
            Ok(bytes) => Response::text(format!("{bytes}")),
            Err(error) => Response::text(error.to_string()).with_status(500),
        }
    }
    let mut peer = Peer::of(&waits, Limits::default());
    let held = peer.client.request("POST", "/waits", &[], false);
    peer.client.data(held, &[b'x'; 65_535], false);
    peer.run();
    assert_eq!(peer.client.room.get(&held), None, "nobody has read");
    // Another body goes on.
    let other = peer.client.request("POST", "/", &[], false);
    for _ in 0..20 {
        peer.client.data(other, &[b'x'; 30_000], false);
        peer.run();
    }
    assert!(peer.client.room[&other] > 600_000 - 65_535);
    peer.client.data(other, b"", true);
    peer.advance(Duration::from_secs(6));
    assert_eq!(peer.client.answer(other).text(), "600000");
    assert!(peer.client.room[&held] >= 65_535);
    peer.client.data(held, &[b'x'; 65_535], true);
    peer.run();
    assert_eq!(peer.client.answer(held).text(), "131070");
}

#[test]
fn an_early_response_is_followed_by_a_reset_without_error() {
    let mut peer = Peer::new();
    let stream = peer.client.request("POST", "/early", &[], false);
    peer.client.data(stream, &[b'x'; 20_000], false);
    peer.run();
    let answer = peer.client.answer(stream);
    assert_eq!((answer.text().as_str(), answer.reset), ("early", None));
    assert!(answer.is_complete);
    // What was on its way is taken, and given back.
    for _ in 0..10 {
        peer.client.data(stream, &[b'x'; 20_000], false);
        peer.run();
    }
    assert_eq!(peer.client.answer(stream).reset, None);
    assert!(peer.client.room[&stream] > 100_000);
    peer.advance(Duration::from_secs(30));
    assert_eq!(peer.client.answer(stream).reset, Some(0), "NO_ERROR");
    assert_eq!(peer.get("/hello").text(), "hello");
    // One that ends in time is not reset.
    let stream = peer.client.request("POST", "/early", &[], false);
    peer.run();
    peer.client.data(stream, b"rest", true);
    peer.advance(Duration::from_secs(30));
    assert_eq!(peer.client.answer(stream).reset, None);
}

#[test]
fn a_body_without_end_is_reset_after_an_early_response() {
    let mut peer = Peer::new();
    let stream = peer.client.request("POST", "/early", &[], false);
    let mut sent = 0;
    while peer.client.answer(stream).reset.is_none() {
        peer.client.data(stream, &[b'x'; 30_000], false);
        sent += 30_000;
        peer.run();
        assert!(sent < 100_000_000, "it ends");
    }
    assert_eq!(peer.client.answer(stream).reset, Some(0));
    assert!(sent > 40 << 20);
}

/// HAProxy sends several WINDOW_UPDATE for each frame that it reads.
#[test]
fn a_client_that_grants_often_gets_a_large_response() {
    async fn large(_: Request) -> Response {
        Response::with_body(vec![b'x'; 20_000_000])
    }
    let mut peer = Peer::of(&large, Limits::default());
    peer.client.reads = false;
    let stream = peer.client.get("/");
    peer.run();
    let mut granted = 65_535;
    while granted < 20_000_000 {
        assert!(
            !peer.is_closed(),
            "after {granted} bytes: {:?}",
            peer.codes()
        );
        // Four for each 16 KiB.
        for _ in 0..8 {
            peer.client.grant(0, 4096);
            peer.client.grant(stream, 4096);
        }
        granted += 8 * 4096;
        peer.run();
    }
    assert_eq!(peer.client.answer(stream).body.len(), 20_000_000);
}

/// httpx and java.net.http of Java 17 read a response only when they have sent all of their body.
#[test]
fn a_body_that_goes_on_after_an_early_response_is_taken() {
    let mut peer = Peer::new();
    let stream = peer.client.request("POST", "/early", &[], false);
    for _ in 0..60 {
        for _ in 0..2 {
            peer.client.data(stream, &[b'x'; 40_000], false);
            peer.run();
        }
        peer.advance(Duration::from_secs(1));
    }
    assert_eq!(peer.client.answer(stream).reset, None);
    peer.client.data(stream, b"end", true);
    peer.advance(Duration::from_secs(30));
    let answer = peer.client.answer(stream);
    assert_eq!((answer.text().as_str(), answer.reset), ("early", None));
}

#[test]
fn expect_is_answered_when_the_body_is_read() {
    let mut peer = Peer::new();
    let expects = [("expect", "100-Continue")];
    let stream = peer.client.request("POST", "/late-echo", &expects, false);
    peer.run();
    assert_eq!(peer.client.answer(stream).interim, [0u16; 0]);
    peer.advance(Duration::from_millis(5));
    assert_eq!(peer.client.answer(stream).interim, [100]);
    peer.client.data(stream, b"body", true);
    peer.run();
    assert_eq!(peer.client.answer(stream).text(), "body");
    // A response that does not need the body comes without one.
    let stream = peer.client.request("POST", "/early", &expects, false);
    peer.run();
    let answer = peer.client.answer(stream);
    assert_eq!(
        (answer.text().as_str(), &answer.interim[..]),
        ("early", &[][..])
    );
}

#[test]
fn limits_on_bodies_are_those_of_http_1() {
    let limits = Limits::default().body_bytes_max(100_000);
    let mut peer = Peer::of(&app, limits);
    let declared = peer
        .client
        .request("POST", "/echo", &[("content-length", "100001")], false);
    peer.run();
    assert_eq!(peer.client.answer(declared).status, 413);
    let body = pattern(50_000);
    let stream = peer.client.request("POST", "/discard", &[], false);
    for _ in 0..3 {
        peer.client.data(stream, &body, false);
        peer.run();
    }
    assert_eq!(
        peer.client.answer(stream).status,
        413,
        "not the 200 of the handler"
    );
    assert_eq!(peer.post("/limit", b"0123456789").text(), "0123456789");
    assert_eq!(peer.post("/limit", b"0123456789x").status, 413);
    assert_eq!(peer.get("/hello").status, 200);
}

#[test]
fn memory_for_a_client_that_does_not_read_is_bounded() {
    async fn endless(_: Request) -> Response {
        Response::with_body(Body::stream(Endless { left: 1 << 30 }, None))
    }
    let mut peer = Peer::on(calm(&endless, Limits::default()));
    peer.client = Client::with_settings(&[(4, 0x7fff_ffff)]);
    peer.client.grant(0, 0x7fff_0000);
    for _ in 0..50 {
        peer.client.get("/");
    }
    let out = peer.client.take_out();
    peer.sim.send(&peer.connection, &out);
    peer.sim.run();
    // The client reads nothing: what the network holds, and a little more.
    assert!(
        peer.sim.receive_bytes() < 1 << 20,
        "{}",
        peer.sim.receive_bytes()
    );
    let mut total = 0;
    for _ in 0..200 {
        peer.sim.run();
        total += peer.connection.receive().expect("no reset").len();
    }
    assert!(
        total > 5_000_000,
        "it goes on when the client reads: {total}"
    );
}
