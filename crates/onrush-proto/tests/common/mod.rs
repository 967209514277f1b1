//! Runs every raw case whole, split at each byte, byte by byte, and pipelined.

use onrush_proto::{
    limits::Limits,
    trace::{Event, TracedRequest, drive},
};

/// A valid request.
pub(crate) const GOOD: &[u8] = b"GET /good?x=1 HTTP/1.1\r\nHost: good.example\r\n\r\n";

/// Drives `bytes` with all splits. Returns the events, which are the same for all splits.
pub(crate) fn run(bytes: &[u8], limits: &Limits) -> Vec<Event> {
    let whole = drive(bytes, &[], limits);
    for at in 1..bytes.len() {
        assert_eq!(
            drive(bytes, &[at], limits),
            whole,
            "split at {at}: {}",
            bytes.escape_ascii()
        );
    }
    let each: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(
        drive(bytes, &each, limits),
        whole,
        "byte by byte: {}",
        bytes.escape_ascii()
    );
    whole
}

/// The events of `bytes` without the one for the end of the stream.
pub(crate) fn run_open(bytes: &[u8], limits: &Limits) -> Vec<Event> {
    let mut events = run(bytes, limits);
    if let Some(Event::Eof(_)) = events.last() {
        events.pop();
    }
    events
}

/// As `run_open`; also checks the case after a valid request, and before one. The events of the
/// case alone determine whether a valid request after it gets a response.
pub(crate) fn run_pipelined(bytes: &[u8], limits: &Limits) -> Vec<Event> {
    let alone = run_open(bytes, limits);
    let good = run_open(GOOD, limits);

    let behind = [GOOD, bytes].concat();
    let expected = [&good[..], &alone[..]].concat();
    assert_eq!(
        run_open(&behind, limits),
        expected,
        "behind: {}",
        bytes.escape_ascii()
    );

    let before = [bytes, GOOD].concat();
    let goes_on = matches!(
        alone.last(),
        Some(Event::Responded(onrush_proto::connection::After::KeepAlive))
    );
    let follows = if goes_on { &good[..] } else { &[] };
    let expected = [&alone[..], follows].concat();
    assert_eq!(
        run_open(&before, limits),
        expected,
        "before: {}",
        bytes.escape_ascii()
    );
    alone
}

/// The request of a case that must be accepted, its body and its trailers.
pub(crate) fn accepted(bytes: &[u8]) -> (TracedRequest, Vec<u8>, Option<Box<[u8]>>) {
    let events = run_pipelined(bytes, &Limits::default());
    let mut events = events.into_iter();
    let Some(Event::Request(request)) = events.next() else {
        panic!("not accepted: {}", bytes.escape_ascii());
    };
    let (body, end) = match events.next() {
        Some(Event::Body(body)) => (body, events.next()),
        end => (Vec::new(), end),
    };
    let Some(Event::End(trailers)) = end else {
        panic!("no end: {end:?}: {}", bytes.escape_ascii());
    };
    assert!(matches!(events.next(), Some(Event::Responded(_))));
    assert_eq!(
        events.next(),
        None,
        "more than one request: {}",
        bytes.escape_ascii()
    );
    (request, body, trailers)
}

/// The status and reason of a case that must be refused, however it is split.
pub(crate) fn refused(bytes: &[u8], limits: &Limits) -> (u16, &'static str) {
    let events = run_pipelined(bytes, limits);
    let [.., Event::Rejected(reject), Event::Responded(after)] = &events[..] else {
        panic!("not refused: {}: {events:?}", bytes.escape_ascii());
    };
    assert_eq!(*after, onrush_proto::connection::After::LingeringClose);
    (reject.status, reject.reason)
}
