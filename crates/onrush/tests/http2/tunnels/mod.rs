//! Other protocols on streams: extended CONNECT (RFC 8441), by the same handlers as the upgrades of
//! HTTP/1.1.

// What ends: directions, streams, and waits.
mod ends;
// Both drivers, and coroutines.
mod sockets;

use super::Peer;
use crate::common::app::app;
use crate::common::{parts, pattern, plain, seeds};
use onrush::sim::Simulation;
use onrush::{Application, BodySender, Bytes, Limits, Request, RequestBody, Response, Router};
use std::cell::RefCell;
use std::time::Duration;
use testing::http2::Client;

thread_local! {
    /// How reading and sending have ended, in order.
    static ENDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn ended(what: String) {
    ENDS.with_borrow_mut(|ends| ends.push(what));
}

/// What has ended since the last call.
fn ends() -> Vec<String> {
    ENDS.take()
}

async fn pump(mut from: RequestBody, mut to: BodySender) {
    loop {
        match from.next().await {
            None => break,
            Some(Err(error)) => {
                ended(format!("read {:?}", error.kind()));
                let sent = to.send("late").await;
                return ended(format!("send {:?}", sent.map_err(|error| error.kind())));
            }
            Some(Ok(piece)) => {
                if let Err(error) = to.send(Bytes::copy_from_slice(&piece)).await {
                    return ended(format!("send {:?}", error.kind()));
                }
            }
        }
    }
    let _ = to.send("bye").await;
    to.finish();
    ended("end".to_owned());
}

/// Sends back what it receives, and `bye` at the end.
async fn repeat(mut request: Request) -> Response {
    let Some(upgrade) = request.upgrade() else {
        return Response::text("no upgrade").with_status(426);
    };
    assert!(!request.has_body());
    let Ok(upgraded) = upgrade.accept("repeat") else {
        return Response::new(400);
    };
    let (response, from, to) = parts(upgraded);
    request.worker().spawn(pump(from, to)).detach();
    if request.path() == "/late" {
        // It is read before the response is sent.
        request.worker().sleep(Duration::from_millis(20)).await;
    }
    response
}

/// Ends its side first, and reads on. Says what it has read.
async fn ends_first(mut request: Request) -> Response {
    let upgrade = request.upgrade().expect("one is asked for");
    let (response, mut from, mut to) = parts(upgrade.accept("repeat").expect("it is offered"));
    let reading = async move {
        to.send("mine").await.expect("a client");
        to.finish();
        let mut read = Vec::new();
        while let Some(piece) = from.next().await {
            match piece {
                Ok(piece) => read.extend_from_slice(&piece),
                Err(error) => return ended(format!("read {:?}", error.kind())),
            }
        }
        ended(String::from_utf8_lossy(&read).into_owned());
    };
    request.worker().spawn(reading).detach();
    response
}

fn router() -> Router {
    Router::new()
        .any("/repeat", repeat)
        .any("/late", repeat)
        .any("/first", ends_first)
        .fallback(app)
}

/// A server that offers extended CONNECT.
fn offering(application: &impl Application, limits: Limits, seed: Option<u64>) -> Simulation {
    let builder = Simulation::builder(seed.unwrap_or(1)).extended_connect(true);
    match seed {
        Some(_) => builder.limits(limits).start(application),
        None => builder
            .limits(limits)
            .network(plain(64 * 1024))
            .start(application),
    }
}

fn peer() -> Peer {
    ends();
    Peer::on(offering(&router(), Limits::default(), None))
}

impl Peer {
    /// A stream on which the protocol of `path` has begun.
    fn tunnel(&mut self, path: &str) -> u32 {
        let stream = self.client.connect("repeat", path, &[]);
        self.advance(Duration::from_millis(30));
        assert_eq!(self.client.answer(stream).status, 200);
        stream
    }

    fn said(&self, stream: u32) -> String {
        self.client.answer(stream).text()
    }
}

#[test]
fn the_setting_is_offered_only_if_the_server_says_so() {
    let mut peer = peer();
    peer.run();
    assert!(peer.client.settings.contains(&(8, 1)));
    let mut other = Peer::of(&router(), Limits::default());
    other.run();
    assert!(other.client.settings.iter().all(|(name, _)| *name != 8));
    let stream = other.client.connect("repeat", "/repeat", &[]);
    other.run();
    assert_eq!(other.client.answer(stream).reset, Some(1), "PROTOCOL_ERROR");
    assert_eq!(other.get("/hello").text(), "hello");
}

#[test]
fn the_handler_of_an_upgrade_serves_both_versions() {
    let mut peer = peer();
    let stream = peer.tunnel("/repeat");
    let answer = peer.client.answer(stream);
    assert!(!answer.is_complete);
    let names: Vec<&str> = answer.fields.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["server", "date"]);
    peer.client.data(stream, b"hello", false);
    peer.run();
    assert_eq!(peer.said(stream), "hello");
    let old = peer.sim.connect();
    let asks = "GET /repeat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: repeat\r\n\r\n";
    peer.sim.send(&old, asks.as_bytes());
    assert!(
        old.receive()
            .expect("a response")
            .starts_with(b"HTTP/1.1 101 ")
    );
    // Others on the same connection go on.
    assert_eq!(peer.get("/hello").text(), "hello");
    assert_eq!(peer.post("/echo", b"a body").text(), "a body");
    let second = peer.tunnel("/late");
    peer.client.data(second, b"two", false);
    peer.client.data(stream, b" again", true);
    peer.run();
    assert_eq!(peer.said(stream), "hello againbye");
    assert_eq!(peer.said(second), "two");
    assert!(peer.client.answer(stream).is_complete);
    assert_eq!(peer.client.answer(stream).reset, None);
    assert_eq!(ends(), ["end"]);
}

#[test]
fn the_kind_is_read_as_in_http_1() {
    async fn kinds(mut request: Request) -> Response {
        let seen = (request.method().to_owned(), request.path().to_owned());
        let field = request.header_str("upgrade").map(str::to_owned);
        let upgrade = request.upgrade().expect("one is asked for");
        let protocols: Vec<&str> = upgrade.protocols().collect();
        let text = format!(
            "{seen:?} {field:?} {protocols:?} {}",
            request.head_bytes().len()
        );
        Response::text(text).with_status(403)
    }
    let mut peer = Peer::on(offering(&kinds, Limits::default(), None));
    let stream = peer.client.connect("websocket", "/chat?a=b", &[]);
    peer.run();
    let answer = peer.client.answer(stream);
    assert_eq!(
        (answer.status, answer.text()),
        (
            403,
            "(\"CONNECT\", \"/chat\") Some(\"websocket\") [\"websocket\"] 60".to_owned()
        )
    );
}

/// The simulated network splits and delays as it likes.
#[test]
fn a_stream_and_requests_share_a_connection_however_bytes_are_split() {
    let said = pattern(60_000);
    for seed in 0..seeds(20) {
        let mut peer = Peer::on(offering(&router(), Limits::default(), Some(seed)));
        let path = ["/repeat", "/late"][seed as usize % 2];
        let stream = peer.client.connect("repeat", path, &[]);
        // The first bytes follow the head at once.
        peer.client.data(stream, &said[..1000], false);
        let gets = [peer.client.get("/late-big"), peer.client.get("/hello")];
        peer.client.data(stream, &said[1000..], true);
        let mut out = peer.client.take_out();
        for _ in 0..20_000 {
            out.extend(peer.client.take_out());
            let sent = peer.connection.send(&out).expect("no reset");
            out.drain(..sent);
            peer.sim.advance(Duration::from_millis(1));
            let received = peer.connection.receive().expect("no reset");
            peer.client.receive(&received);
            if peer.client.is_done() {
                break;
            }
        }
        let body = &peer.client.answer(stream).body;
        assert!(
            body[..] == [&said[..], b"bye"].concat(),
            "seed {seed}: {}",
            body.len()
        );
        let lengths = gets.map(|stream| peer.client.answer(stream).body.len());
        assert_eq!(lengths, [300_000, 5], "seed {seed}");
        peer.connection.shutdown_write();
        peer.sim.advance(Limits::default().linger_timeout * 2);
        assert_eq!(
            peer.sim.worker().live_tasks(),
            1,
            "the one that sends frames"
        );
    }
}

#[test]
fn a_split_at_each_byte_changes_nothing() {
    let mut script = Client::new();
    let stream = script.connect("repeat", "/repeat", &[]);
    script.data(stream, b"hello", false);
    script.data(stream, b"", true);
    let sent = script.take_out();
    for split in 1..sent.len() {
        let mut peer = peer();
        peer.client = Client::new();
        peer.client.connect("repeat", "/repeat", &[]);
        peer.client.take_out();
        peer.sim.send(&peer.connection, &sent[..split]);
        peer.sim.send(&peer.connection, &sent[split..]);
        peer.run();
        assert_eq!(peer.said(stream), "hellobye", "split at {split}");
        assert!(peer.client.is_done());
    }
}

#[test]
fn other_responses_refuse_the_protocol() {
    let refuses = |mut request: Request| async move {
        match request.path() {
            // It knows of no upgrades.
            "/plain" => Response::text("a page"),
            "/no-content" => Response::new(204),
            // It has the right, and does not use it.
            "/asked" => {
                assert!(request.upgrade().is_some());
                Response::text("a page")
            }
            "/denied" => {
                let upgrade = request.upgrade().expect("one is asked for");
                let upgraded = upgrade.accept("repeat").expect("it is offered");
                let (_, mut from, _) = parts(upgraded);
                let reading = async move {
                    assert!(
                        !matches!(from.next().await, Some(Ok(_))),
                        "it read a request"
                    );
                    ended("read".to_owned());
                };
                request.worker().spawn(reading).detach();
                request.worker().sleep(Duration::from_millis(5)).await;
                Response::text("denied").with_status(403)
            }
            _ => Response::new(101),
        }
    };
    ends();
    let mut peer = Peer::on(offering(&refuses, Limits::default(), None));
    let cases = [
        ("/plain", 501, "the protocol is not spoken here\n"),
        ("/no-content", 501, "the protocol is not spoken here\n"),
        ("/asked", 501, "the protocol is not spoken here\n"),
        ("/denied", 403, "denied"),
        ("/else", 500, "internal server error\n"),
    ];
    for (path, status, said) in cases {
        let stream = peer.client.connect("repeat", path, &[]);
        peer.client.data(stream, b"too early", false);
        peer.advance(Duration::from_millis(10));
        let answer = peer.client.answer(stream);
        assert_eq!(
            (answer.status, &answer.text()[..]),
            (status, said),
            "{path}"
        );
        assert!(answer.is_complete);
        peer.client.data(stream, b"", true);
        peer.run();
        assert_eq!(peer.client.answer(stream).reset, None);
    }
    assert_eq!(ends(), ["read"]);
    let stream = peer.client.request("GET", "/else", &[], true);
    peer.run();
    assert_eq!(
        peer.client.answer(stream).status,
        500,
        "no protocol was asked for"
    );
}

#[test]
fn only_an_extended_connect_of_the_right_protocol_is_accepted() {
    let mut peer = peer();
    let other = peer.client.connect("websocket", "/repeat", &[]);
    let with_length = [("content-length", "4")];
    let with_length = peer.client.connect("repeat", "/repeat", &with_length);
    peer.run();
    assert_eq!(peer.client.answer(other).status, 400);
    assert_eq!(peer.client.answer(with_length).status, 426);
    assert_eq!(peer.get("/repeat").status, 426);
    let plain = [(":method", "CONNECT"), (":authority", "test:443")];
    let plain = peer.client.request_with(&plain, false);
    peer.run();
    assert_eq!(peer.client.answer(plain).status, 501);
}
