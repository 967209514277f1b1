//! The ends of directions and of streams, by both sides, by time and by a drain.

use super::{Peer, ended, ends, offering, parts, peer, router};
use crate::common::pattern;
use onrush::{Limits, Request, Response};
use std::time::Duration;

#[test]
fn a_server_that_ends_its_side_reads_on() {
    let mut peer = peer();
    let stream = peer.tunnel("/first");
    let answer = peer.client.answer(stream);
    assert_eq!(
        (answer.text(), answer.is_complete),
        ("mine".to_owned(), true)
    );
    peer.advance(Duration::from_secs(600));
    peer.client.data(stream, &pattern(50_000), false);
    peer.run();
    assert!(peer.client.room[&stream] > 0, "it was read");
    peer.client.data(stream, b"end", true);
    peer.run();
    assert_eq!(peer.client.answer(stream).reset, None);
    let said = ends();
    assert!(said[0].ends_with("end") && said.len() == 1, "{said:?}");
    // What arrived before its end is read as well.
    let stream = peer.client.connect("repeat", "/first", &[]);
    peer.client.data(stream, b"early", true);
    peer.run();
    assert_eq!(peer.said(stream), "mine");
    assert_eq!(ends(), ["early"]);
    assert_eq!(peer.get("/hello").text(), "hello");
    // A reset ends it, too.
    let stream = peer.tunnel("/first");
    peer.client.reset(stream, 8);
    peer.run();
    assert_eq!(ends(), ["read UnexpectedEof"]);
}

#[test]
fn a_reader_that_is_dropped_lets_the_client_end() {
    async fn deaf(mut request: Request) -> Response {
        let upgrade = request.upgrade().expect("one is asked for");
        let (response, from, mut to) = parts(upgrade.accept("repeat").expect("it is offered"));
        let worker = request.worker().clone();
        let mut from = Some(from);
        if request.path() == "/at-once" {
            from = None;
        }
        let sending = async move {
            to.send("mine").await.expect("a client");
            to.finish();
            worker.sleep(Duration::from_secs(5)).await;
            drop(from);
        };
        request.worker().spawn(sending).detach();
        response
    }
    for path in ["/at-once", "/"] {
        let mut peer = Peer::on(offering(&deaf, Limits::default(), None));
        let stream = peer.tunnel(path);
        assert_eq!(peer.said(stream), "mine");
        if path == "/" {
            // It is held up while somebody may read it.
            peer.client.data(stream, &[b'x'; 40_000], false);
            peer.advance(Duration::from_secs(4));
            assert_eq!(peer.client.room.get(&stream), None);
            peer.advance(Duration::from_secs(1));
        }
        // What it sends is discarded, not held up.
        for _ in 0..5 {
            peer.advance(Duration::from_secs(1));
            peer.client.data(stream, &[b'x'; 65_000], false);
            peer.run();
        }
        assert_eq!(peer.client.answer(stream).reset, None, "{path}");
        peer.advance(Limits::default().linger_timeout * 2);
        assert_eq!(
            peer.client.answer(stream).reset,
            Some(0),
            "{path}: NO_ERROR"
        );
        let ended = peer.tunnel(path);
        peer.client.data(ended, b"", true);
        peer.advance(Duration::from_secs(600));
        assert_eq!(peer.client.answer(ended).reset, None, "{path}");
        assert_eq!(peer.sim.worker().live_tasks(), 1, "{path}");
    }
}

#[test]
fn a_reset_by_the_client_is_an_error_in_both_directions() {
    for path in ["/repeat", "/late"] {
        let mut peer = peer();
        let stream = peer.tunnel(path);
        peer.client.data(stream, b"some", false);
        peer.run();
        peer.client.reset(stream, 8);
        peer.run();
        assert_eq!(
            ends(),
            ["read UnexpectedEof", "send Err(BrokenPipe)"],
            "{path}"
        );
        assert_eq!(peer.get("/hello").text(), "hello");
        assert_eq!(peer.sim.worker().live_tasks(), 1);
    }
    // As the end of the connection is.
    let mut peer = peer();
    peer.tunnel("/repeat");
    peer.connection.reset();
    peer.sim.advance(Duration::from_millis(10));
    assert_eq!(ends(), ["read UnexpectedEof", "send Err(BrokenPipe)"]);
    assert_eq!(peer.sim.open_connections(), 0);
}

#[test]
fn a_sender_without_an_end_resets_the_stream() {
    async fn breaks(mut request: Request) -> Response {
        let upgrade = request.upgrade().expect("one is asked for");
        let (response, mut from, mut to) = parts(upgrade.accept("repeat").expect("it is offered"));
        let breaking = async move {
            to.send("half").await.expect("a client");
            let _ = from.next().await;
            drop(to);
            let next = from.next().await;
            ended(format!(
                "{:?}",
                next.map(|next| next.map(drop).map_err(|error| error.kind()))
            ));
        };
        request.worker().spawn(breaking).detach();
        response
    }
    ends();
    let mut peer = Peer::on(offering(&breaks, Limits::default(), None));
    let stream = peer.tunnel("/");
    peer.client.data(stream, b"go", false);
    peer.run();
    let answer = peer.client.answer(stream);
    assert_eq!(
        (answer.text(), answer.reset),
        ("half".to_owned(), Some(8)),
        "CANCEL"
    );
    assert_eq!(ends(), ["Some(Err(UnexpectedEof))"]);
}

/// The time limits of requests end with the response; that of clients that do not read remains.
#[test]
fn time_limits_of_requests_end_with_the_response() {
    let limits = Limits::default()
        .body_timeout(Duration::from_secs(1))
        .idle_timeout(Duration::from_secs(1))
        .total_timeout(Duration::from_secs(2))
        .head_timeout(Duration::from_secs(1))
        .body_bytes_max(100)
        .rate_bytes_per_s_min(1000);
    for path in ["/repeat", "/late"] {
        let mut peer = Peer::on(offering(&router(), limits, None));
        let stream = peer.tunnel(path);
        for word in ["one", "two", &"three".repeat(100)] {
            peer.advance(Duration::from_secs(600));
            peer.client.data(stream, word.as_bytes(), false);
            peer.run();
            assert!(peer.said(stream).ends_with(word), "{path}");
        }
    }
}

#[test]
fn a_client_that_does_not_read_is_reset_and_others_go_on() {
    let limits = Limits::default().write_timeout(Duration::from_secs(10));
    ends();
    let mut peer = Peer::on(offering(&router(), limits, None));
    let slow = peer.tunnel("/repeat");
    let other = peer.tunnel("/repeat");
    peer.client.reads = false;
    peer.client.grant(0, 10_000_000);
    let mut sent = 0;
    // What the windows of both directions hold, and the queue between them.
    while peer.client.room.get(&slow).is_none_or(|room| *room >= sent) {
        peer.client.data(slow, &[b'x'; 16_384], false);
        sent += 16_384;
        peer.run();
        assert!(sent < 1 << 20, "the server takes no more than it can send");
    }
    assert_eq!(peer.client.answer(slow).body.len(), 65_535);
    for _ in 0..8 {
        peer.client.data(other, b"still", false);
        peer.advance(Duration::from_secs(2));
        assert_eq!(peer.get("/hello").text(), "hello");
    }
    assert_eq!(peer.client.answer(slow).reset, Some(8), "CANCEL");
    assert_eq!(peer.said(other), "still".repeat(8));
    assert_eq!(ends().len(), 1, "its task has ended");
}

#[test]
fn a_slow_reader_gets_all_of_it() {
    let mut peer = peer();
    let stream = peer.tunnel("/repeat");
    peer.client.reads = false;
    peer.client.grant(0, 10_000_000);
    let said = pattern(400_000);
    let (mut sent, mut read) = (0, 0);
    while read < said.len() {
        let room = 65_535
            + peer
                .client
                .room
                .get(&stream)
                .map_or(0, |room| *room as usize);
        let next = said.len().min(room);
        peer.client.data(stream, &said[sent..next], false);
        sent = next;
        peer.advance(Duration::from_secs(1));
        let received = peer.client.answer(stream).body.len();
        peer.client.grant(stream, (received - read) as u32);
        read = received;
    }
    assert!(peer.client.answer(stream).body == said);
}

/// A drain waits for the other protocol, as in HTTP/1, and nothing else of the connection.
#[test]
fn a_drain_waits_for_the_other_protocol() {
    let mut peer = peer();
    let stream = peer.tunnel("/repeat");
    peer.sim.drain();
    peer.advance(Duration::from_secs(20));
    peer.client.data(stream, b"still here", false);
    peer.run();
    assert_eq!(peer.said(stream), "still here");
    assert!(!peer.is_closed());
    peer.client.data(stream, b"", true);
    peer.advance(Duration::from_secs(3));
    assert_eq!(peer.said(stream), "still herebye");
    assert!(peer.is_closed());
    assert_eq!(peer.codes(), [0, 0], "announced, and then ended");
}
