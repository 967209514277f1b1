//! What an operator sees of requests and connections of HTTP/2 that break a rule.

use super::Peer;
use crate::common::app::app;
use crate::common::entries::{Entry, entries, expect, keep_entries};
use crate::common::plain;
use crate::diagnosis::events_of;
use onrush::metrics::{CloseReason, Kind};
use onrush::sim::Simulation;
use onrush::{AccessLog, Limits};
use std::time::Duration;
use testing::http2::kind;

/// Fields behind those of a request that is well.
type Fields<'f> = [(&'f str, &'f str)];

fn logging(limits: Limits) -> Peer {
    keep_entries();
    let builder = Simulation::builder(1).limits(limits);
    let builder = builder.network(plain(64 * 1024)).access_log(AccessLog::On);
    Peer::on(builder.start(&app))
}

/// The entries whose request contains `mark`.
fn marked(mark: &str) -> Vec<Entry> {
    let names = |entry: &&Entry| {
        let line = entry.get("target").or(entry.get("request"));
        line.is_some_and(|line| line.contains(mark))
    };
    entries().iter().filter(names).cloned().collect()
}

fn refused_400(peer: &Peer) -> u64 {
    let refusals = peer.sim.counters().rejected.each();
    let of_400 = refusals.filter(|(refusal, _)| refusal.name() == "400");
    of_400.map(|(_, count)| count).sum()
}

/// HTTP/1 logs them with its response, 400.
#[test]
fn a_malformed_request_is_logged_and_counted_as_one_of_http1_is() {
    let bad: [&Fields<'_>; 5] = [
        &[("connection", "close")],
        &[("X-Upper", "1")],
        &[(":status", "200")],
        &[("host", "other")],
        &[("content-length", "5")],
    ];
    for (at, more) in bad.iter().enumerate() {
        let mut peer = logging(Limits::default());
        let mark = format!("/hello?malformed-{at}-end");
        let stream = peer.client.request("GET", &mark, more, true);
        peer.run();
        assert_eq!(peer.client.answer(stream).reset, Some(1), "{more:?}");
        let found = marked(&mark);
        assert_eq!(found.len(), 1, "{more:?}: {found:#?}");
        let line = format!("GET {mark} HTTP/2");
        let fields = [
            ("request", &line[..]),
            ("status", "400"),
            ("end", "rejected"),
            ("sent_bytes", "0"),
            ("body_bytes", "0"),
        ];
        expect(&found[0], &fields);
        assert_eq!(refused_400(&peer), 1, "{more:?}");
        // The connection goes on, and a request that is not malformed has one entry as before.
        let next = format!("/hello?next-{at}-end");
        assert_eq!(peer.get(&next).text(), "hello");
        let found = marked(&next);
        assert_eq!(found.len(), 1, "{found:#?}");
        expect(&found[0], &[("status", "200"), ("end", "complete")]);
        assert_eq!(refused_400(&peer), 1);
        assert!(peer.codes().is_empty());
    }
}

/// A request line that cannot be written is not in the entry, but there is one.
#[test]
fn a_malformed_request_without_a_path_is_logged() {
    keep_entries();
    let mut peer = logging(Limits::default());
    let unknown = || {
        let all = entries();
        let is_of_400 = |entry: &&Entry| {
            entry.get("status").is_some_and(|status| status == "400")
                && !entry.contains_key("target")
                && !entry.contains_key("request")
        };
        all.iter().filter(is_of_400).count()
    };
    let before = unknown();
    let fields = [(":method", "GET"), (":scheme", "http"), (":authority", "t")];
    let stream = peer.client.request_with(&fields, true);
    peer.run();
    assert_eq!(peer.client.answer(stream).reset, Some(1));
    assert!(unknown() > before);
    assert_eq!(refused_400(&peer), 1);
}

/// What is wrong, the code of the GOAWAY, its text, the reason why the connection is closed.
type Failure = (fn(&mut Peer), u32, &'static str, CloseReason);

#[test]
fn a_connection_that_fails_says_why_to_its_client_and_to_its_operator() {
    let limits = || Limits::default().head_timeout(Duration::from_secs(4));
    let failures: [Failure; 4] = [
        (
            |peer| peer.client.grant(0, 0),
            1,
            "a WINDOW_UPDATE of nothing",
            CloseReason::Violation,
        ),
        (
            |peer| peer.client.send(kind::PING, 0, 0, b"short"),
            6,
            "a PING of a wrong size",
            CloseReason::Violation,
        ),
        (
            |peer| {
                peer.client.out.extend_from_slice(b"\0\0");
                peer.advance(Duration::from_secs(5));
            },
            11,
            "a frame took too long",
            CloseReason::TimedOut,
        ),
        (
            |peer| {
                peer.client.acknowledges = false;
                peer.advance(Duration::from_secs(5));
            },
            4,
            "the settings were not acknowledged",
            CloseReason::TimedOut,
        ),
    ];
    for (fail, code, text, reason) in failures {
        let mut peer = logging(limits());
        if code != 4 {
            assert_eq!(peer.get("/hello").text(), "hello");
        }
        let events = events_of(|| {
            fail(&mut peer);
            peer.run();
        });
        assert_eq!(peer.codes(), [code], "{text}");
        assert_eq!(peer.client.reasons, [text]);
        let told = events.iter().filter(|event| event.contains(text)).count();
        assert_eq!(told, 1, "{events:#?}");
        // Whatever the client does then.
        peer.connection.reset();
        peer.sim.advance(Duration::from_secs(60));
        assert_eq!(peer.sim.open_connections(), 0);
        let done = &peer.sim.counters().done;
        assert_eq!((done.get(), done.of(reason)), (1, 1), "{text}");
    }
}
