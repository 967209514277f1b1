//! Responses: bytes, framing, persistence (RFC 9112 §6, §9; RFC 9110 §6.4, §8.6, §10.1.1, §15).

use onrush_proto::{
    connection::{After, Connection, DRAIN_BYTES_MAX, Eof, SendAs, Step},
    head::Head,
    limits::Limits,
    reject::Reject,
    response::{ContentLength, FieldError, FieldLines, reason_phrase},
};

const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";
const COMMON: &str = "Server: onrush\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
const KNOWN: ContentLength = ContentLength::Known(5);
const EMPTY: ContentLength = ContentLength::Known(0);
const UNKNOWN: ContentLength = ContentLength::Unknown;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
const GET_CLOSE: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const OLD: &str = "GET / HTTP/1.0\r\n\r\n";
const OLD_KEPT: &str = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
const OLD_HEAD: &str = "HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";

/// A connection that has received the head of `request`; the rest is unread.
fn received(request: &str) -> Connection {
    let (mut connection, mut head) = (Connection::new(), Head::default());
    let step = connection.receive_head(request.as_bytes(), &mut head, &Limits::default());
    assert!(
        matches!(step, Ok(Step::Request { .. })),
        "{request:?}: {step:?}"
    );
    connection
}

fn post(lines: &str) -> Connection {
    received(&format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"))
}

/// Sends a response. Returns its bytes, how its content is sent, and the next action.
fn response(
    connection: &mut Connection,
    status: u16,
    length: ContentLength,
    close: bool,
) -> (String, SendAs, After) {
    let mut out = Vec::new();
    let send_as = connection.send_head(status, None, b"", length, DATE, close, &mut out);
    let head = String::from_utf8(out).unwrap();
    connection.send_end(b"", &mut Vec::new());
    (head, send_as, connection.finish_response())
}

#[test]
fn whole_head() {
    let mut fields = FieldLines::new();
    fields.append("ETag", b"\"x\"").unwrap();
    let mut out = b"before".to_vec();
    let send_as = received(GET).send_head(
        200,
        Some("text/plain"),
        fields.as_bytes(),
        ContentLength::Known(u64::MAX),
        DATE,
        true,
        &mut out,
    );
    assert_eq!(send_as, SendAs::Length(u64::MAX));
    let expected = format!(
        "beforeHTTP/1.1 200 OK\r\n{COMMON}Content-Type: text/plain\r\n\
         Content-Length: 18446744073709551615\r\nConnection: close\r\nETag: \"x\"\r\n\r\n"
    );
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

/// Request, status, length and `close`; the expected lines after `Date`, content and next action.
#[test]
fn framing_and_persistence() {
    use After::*;
    use SendAs::*;
    let rows: [(&str, u16, ContentLength, bool, &str, SendAs, After); 25] = [
        (
            GET,
            200,
            KNOWN,
            false,
            "Content-Length: 5\r\n",
            Length(5),
            KeepAlive,
        ),
        (
            GET,
            200,
            EMPTY,
            false,
            "Content-Length: 0\r\n",
            Nothing,
            KeepAlive,
        ),
        (
            GET,
            200,
            UNKNOWN,
            false,
            "Transfer-Encoding: chunked\r\n",
            Chunked,
            KeepAlive,
        ),
        (
            GET,
            200,
            KNOWN,
            true,
            "Content-Length: 5\r\nConnection: close\r\n",
            Length(5),
            LingeringClose,
        ),
        (
            GET_CLOSE,
            200,
            KNOWN,
            false,
            "Content-Length: 5\r\nConnection: close\r\n",
            Length(5),
            Close,
        ),
        (
            GET_CLOSE,
            200,
            UNKNOWN,
            false,
            "Transfer-Encoding: chunked\r\nConnection: close\r\n",
            Chunked,
            Close,
        ),
        // A response to HEAD has the length but no content; an unknown length is omitted.
        (
            HEAD,
            200,
            KNOWN,
            false,
            "Content-Length: 5\r\n",
            Nothing,
            KeepAlive,
        ),
        (
            HEAD,
            200,
            EMPTY,
            false,
            "Content-Length: 0\r\n",
            Nothing,
            KeepAlive,
        ),
        (HEAD, 200, UNKNOWN, false, "", Nothing, KeepAlive),
        (
            HEAD,
            404,
            KNOWN,
            false,
            "Content-Length: 5\r\n",
            Nothing,
            KeepAlive,
        ),
        // Statuses without content.
        (GET, 204, EMPTY, false, "", Nothing, KeepAlive),
        (GET, 204, KNOWN, false, "", Nothing, KeepAlive),
        (GET, 204, UNKNOWN, false, "", Nothing, KeepAlive),
        (
            GET,
            205,
            KNOWN,
            false,
            "Content-Length: 0\r\n",
            Nothing,
            KeepAlive,
        ),
        (
            GET,
            205,
            UNKNOWN,
            false,
            "Content-Length: 0\r\n",
            Nothing,
            KeepAlive,
        ),
        (GET, 304, EMPTY, false, "", Nothing, KeepAlive),
        (
            GET,
            304,
            KNOWN,
            false,
            "Content-Length: 5\r\n",
            Nothing,
            KeepAlive,
        ),
        (GET, 304, UNKNOWN, false, "", Nothing, KeepAlive),
        // HTTP/1.0 responses are never chunked, and say whether the connection persists.
        (
            OLD,
            200,
            KNOWN,
            false,
            "Content-Length: 5\r\nConnection: close\r\n",
            Length(5),
            Close,
        ),
        (
            OLD,
            200,
            UNKNOWN,
            false,
            "Connection: close\r\n",
            UntilClose,
            Close,
        ),
        (
            OLD_KEPT,
            200,
            KNOWN,
            false,
            "Content-Length: 5\r\nConnection: keep-alive\r\n",
            Length(5),
            KeepAlive,
        ),
        (
            OLD_KEPT,
            200,
            UNKNOWN,
            false,
            "Connection: close\r\n",
            UntilClose,
            LingeringClose,
        ),
        (
            OLD_KEPT,
            204,
            EMPTY,
            false,
            "Connection: keep-alive\r\n",
            Nothing,
            KeepAlive,
        ),
        (
            OLD_HEAD,
            200,
            UNKNOWN,
            false,
            "Connection: keep-alive\r\n",
            Nothing,
            KeepAlive,
        ),
        (
            OLD_KEPT,
            200,
            KNOWN,
            true,
            "Content-Length: 5\r\nConnection: close\r\n",
            Length(5),
            LingeringClose,
        ),
    ];
    for (request, status, length, close, lines, send_as, after) in rows {
        let found = response(&mut received(request), status, length, close);
        let phrase = reason_phrase(status);
        let head = format!("HTTP/1.1 {status} {phrase}\r\n{COMMON}{lines}\r\n");
        assert_eq!(
            found,
            (head, send_as, after),
            "{request:?} {status} {length:?}"
        );
    }
}

#[test]
fn unknown_statuses_have_an_empty_phrase() {
    let (head, _, _) = response(&mut received(GET), 599, EMPTY, false);
    assert_eq!(
        head,
        format!("HTTP/1.1 599 \r\n{COMMON}Content-Length: 0\r\n\r\n")
    );
    assert_eq!(reason_phrase(299), "");
}

#[test]
fn content_type_cannot_inject_a_header() {
    let mut out = Vec::new();
    let content_type = Some("a\r\nSet-Cookie: x");
    received(GET).send_head(200, content_type, b"", EMPTY, DATE, false, &mut out);
    let expected = format!("HTTP/1.1 200 OK\r\n{COMMON}Content-Length: 0\r\n\r\n");
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

/// The next action of a connection whose request body was not read to its end.
#[test]
fn unread_bodies() {
    let small = DRAIN_BYTES_MAX;
    let rows = [
        (
            format!("Content-Length: {small}"),
            "",
            After::DrainThenKeepAlive,
        ),
        (
            format!("Content-Length: {}", small + 1),
            "Connection: close\r\n",
            After::LingeringClose,
        ),
        (
            "Transfer-Encoding: chunked".into(),
            "",
            After::DrainThenKeepAlive,
        ),
        (
            "Content-Length: 5\r\nConnection: close".into(),
            "Connection: close\r\n",
            After::LingeringClose,
        ),
        (
            "Content-Length: 5\r\nExpect: 100-continue".into(),
            "Connection: close\r\n",
            After::LingeringClose,
        ),
        (
            "Transfer-Encoding: chunked\r\nExpect: 100-continue".into(),
            "Connection: close\r\n",
            After::LingeringClose,
        ),
        (
            "Content-Length: 0\r\nExpect: 100-continue".into(),
            "",
            After::KeepAlive,
        ),
    ];
    for (lines, persistence, after) in rows {
        let (head, _, found) = response(&mut post(&lines), 403, EMPTY, false);
        assert!(
            head.ends_with(&format!("Content-Length: 0\r\n{persistence}\r\n")),
            "{head:?}"
        );
        assert_eq!(found, after, "{lines}");
    }
}

#[test]
fn a_drained_body_leads_to_the_next_request() {
    let (limits, mut head) = (Limits::default(), Head::default());
    let mut connection = post("Content-Length: 5");
    connection.receive_body(b"he", &limits).unwrap();
    assert_eq!(
        response(&mut connection, 200, EMPTY, false).2,
        After::DrainThenKeepAlive
    );
    let step = connection.receive_head(b"llo", &mut head, &limits);
    assert_eq!(step, Ok(Step::NeedMore), "body bytes are not a head");
    assert_eq!(connection.receive_eof(), Eof::Clean);
    let piece = connection.receive_body(b"lloGET", &limits).unwrap();
    assert_eq!((piece.consumed, piece.end), (3, true));
    let step = connection.receive_head(GET.as_bytes(), &mut head, &limits);
    assert_eq!(
        step,
        Ok(Step::Request {
            head_bytes: GET.len()
        })
    );
}

/// A body may end while the response is being sent, and the connection persists.
#[test]
fn body_is_readable_while_responding() {
    let limits = Limits::default();
    let mut connection = post("Content-Length: 5");
    let mut out = Vec::new();
    connection.send_head(200, None, b"", UNKNOWN, DATE, false, &mut out);
    assert!(connection.receive_body(b"hello", &limits).unwrap().end);
    connection.send_end(b"", &mut out);
    assert_eq!(connection.finish_response(), After::KeepAlive);
}

#[test]
fn truncated_chunked_response_closes() {
    let mut connection = received(GET);
    connection.send_head(200, None, b"", UNKNOWN, DATE, false, &mut Vec::new());
    assert_eq!(connection.finish_response(), After::LingeringClose);
}

#[test]
fn ends_and_trailers() {
    let mut connection = received(GET);
    let mut out = Vec::new();
    connection.send_head(200, None, b"", UNKNOWN, DATE, false, &mut out);
    out.clear();
    connection.send_end(b"X: y\r\n", &mut out);
    connection.send_end(b"X: y\r\n", &mut out);
    assert_eq!(out, b"0\r\nX: y\r\n\r\n");
    let mut connection = received(GET);
    connection.send_head(200, None, b"", KNOWN, DATE, false, &mut out);
    out.clear();
    connection.send_end(b"", &mut out);
    assert_eq!(out, b"");
}

/// RFC 9110 §10.1.1: a 100 is due until a body byte is received, the 100 is sent, or the response
/// begins.
#[test]
fn sends_100_continue() {
    let limits = Limits::default();
    let expecting = || post("Content-Length: 5\r\nExpect: 100-continue");
    let mut out = Vec::new();

    let mut sent = expecting();
    assert!(sent.continue_due());
    sent.receive_body(b"", &limits).unwrap();
    assert!(sent.continue_due(), "no byte was received");
    sent.send_continue(&mut out);
    sent.send_continue(&mut out);
    assert_eq!(out, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(!sent.continue_due());
    assert_eq!(
        response(&mut sent, 200, EMPTY, false).2,
        After::DrainThenKeepAlive
    );

    let mut begun = expecting();
    begun.receive_body(b"h", &limits).unwrap();
    assert!(!begun.continue_due());
    let mut skipped = expecting();
    skipped.skip_body(1).unwrap();
    assert!(!skipped.continue_due());
    let mut answered = expecting();
    answered.send_head(200, None, b"", EMPTY, DATE, false, &mut out);
    assert!(!answered.continue_due());

    assert!(!post("Expect: 100-continue").continue_due(), "no body");
    assert!(!post("Content-Length: 1").continue_due());
    let old = "POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n";
    assert!(!received(old).continue_due());
}

#[test]
fn informational_responses() {
    let mut out = Vec::new();
    let mut connection = received(GET);
    connection.send_informational(103, b"Link: </a>; rel=preload\r\n", &mut out);
    assert_eq!(
        out,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
    );
    out.clear();
    connection.send_informational(101, b"", &mut out);
    connection.send_informational(200, b"", &mut out);
    received(OLD).send_informational(103, b"", &mut out);
    Connection::new().send_informational(103, b"", &mut out);
    assert_eq!(out, b"");
    connection.send_head(200, None, b"", EMPTY, DATE, false, &mut out);
    out.clear();
    connection.send_informational(103, b"", &mut out);
    assert_eq!(out, b"");
}

#[test]
fn rejections() {
    let limits = Limits::default();
    let reject = Reject::new(408, "too slow");
    let head = format!(
        "HTTP/1.1 408 Request Timeout\r\n{COMMON}Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: 9\r\nConnection: close\r\n\r\n"
    );
    for (mut connection, content) in [
        (Connection::new(), "too slow\n"),
        (received(GET), "too slow\n"),
        (received(GET_CLOSE), "too slow\n"),
        (received(HEAD), ""),
    ] {
        let mut out = Vec::new();
        connection.send_reject(reject, DATE, &mut out);
        assert_eq!(
            String::from_utf8(out.clone()).unwrap(),
            format!("{head}{content}")
        );
        connection.send_reject(reject, DATE, &mut out);
        assert_eq!(
            out.len(),
            head.len() + content.len(),
            "one response is enough"
        );
        assert_eq!(connection.finish_response(), After::LingeringClose);
        let step = connection.receive_head(GET.as_bytes(), &mut Head::default(), &limits);
        assert_eq!(step, Ok(Step::NeedMore), "nothing is read after a refusal");
    }
    // The refusal of a request after a HEAD has content.
    let mut connection = received(HEAD);
    response(&mut connection, 200, EMPTY, false);
    assert!(
        connection
            .receive_head(b"\0", &mut Head::default(), &limits)
            .is_err()
    );
    let mut out = Vec::new();
    connection.send_reject(Reject::new(400, "x"), DATE, &mut out);
    assert!(out.ends_with(b"\r\n\r\nx\n"));
    // That of a HEAD has none.
    for head in [
        "HEAD /#a HTTP/1.1\r\n\r\n",
        "\r\nHEAD / HTTP/1.1\r\n a\r\n\r\n",
    ] {
        let mut connection = Connection::new();
        let step = connection.receive_head(head.as_bytes(), &mut Head::default(), &limits);
        assert!(step.is_err());
        let mut out = Vec::new();
        connection.send_reject(Reject::new(400, "x"), DATE, &mut out);
        assert!(out.ends_with(b"\r\n\r\n"));
    }
}

#[test]
fn body_limits_of_handlers() {
    let mut connection = post("Content-Length: 10");
    assert_eq!(connection.set_body_limit(10), Ok(()));
    assert_eq!(connection.set_body_limit(9).unwrap_err().status, 413);
    let mut out = Vec::new();
    connection.send_reject(Reject::new(413, "x"), DATE, &mut out);
    assert_eq!(connection.finish_response(), After::LingeringClose);
    assert_eq!(received(GET).set_body_limit(0), Ok(()));
}

/// A drain: the current response is the last, or the next one is.
#[test]
fn draining_connections() {
    let limits = Limits::default();
    let mut before = received(GET);
    before.close_after_next();
    let (head, _, after) = response(&mut before, 200, EMPTY, false);
    assert!(head.contains("Connection: close\r\n"));
    assert_eq!(after, After::LingeringClose);

    let mut during = received(GET);
    during.send_head(200, None, b"", EMPTY, DATE, false, &mut Vec::new());
    during.close_after_next();
    assert_eq!(during.finish_response(), After::LingeringClose);
    let step = during.receive_head(GET.as_bytes(), &mut Head::default(), &limits);
    assert_eq!(step, Ok(Step::NeedMore));
}

#[test]
fn ends_of_stream() {
    let limits = Limits::default();
    assert_eq!(received(GET).receive_eof(), Eof::ResponseDue);
    let mut unread = post("Content-Length: 5");
    assert_eq!(unread.receive_eof(), Eof::Truncated);
    unread.receive_body(b"hello", &limits).unwrap();
    assert_eq!(unread.receive_eof(), Eof::ResponseDue);
    response(&mut unread, 200, EMPTY, false);
    assert_eq!(unread.receive_eof(), Eof::Clean);
}

#[test]
fn one_request_at_a_time() {
    let (limits, mut head) = (Limits::default(), Head::default());
    let mut connection = received(GET);
    for _ in 0..2 {
        let step = connection.receive_head(GET.as_bytes(), &mut head, &limits);
        assert_eq!(step, Ok(Step::NeedMore));
        connection.send_head(200, None, b"", EMPTY, DATE, false, &mut Vec::new());
        let step = connection.receive_head(GET.as_bytes(), &mut head, &limits);
        assert_eq!(step, Ok(Step::NeedMore));
        assert_eq!(connection.finish_response(), After::KeepAlive);
        let step = connection.receive_head(GET.as_bytes(), &mut head, &limits);
        assert_eq!(
            step,
            Ok(Step::Request {
                head_bytes: GET.len()
            })
        );
    }
}

/// Response splitting, and fields that a handler may not write.
#[test]
fn field_lines_that_are_refused() {
    let mut fields = FieldLines::new();
    let names = [
        "", "a b", "a:", "a\r\nb", "a\0", "\u{e9}", " a", "a\t", "(a)",
    ];
    for name in names {
        assert_eq!(fields.append(name, b"x"), Err(FieldError::Name), "{name:?}");
    }
    let values: [&[u8]; 9] = [
        b"\r\n",
        b"a\r\nSet-Cookie: b",
        b"a\rb",
        b"a\nb",
        b"\0",
        b"\x1b",
        b"\x7f",
        b" a",
        b"a\t",
    ];
    for value in values {
        let refused = fields.set("X", value);
        assert_eq!(
            refused,
            Err(FieldError::Value),
            "{:?}",
            value.escape_ascii().to_string()
        );
    }
    let reserved = [
        "Connection",
        "CONTENT-LENGTH",
        "transfer-encoding",
        "Keep-Alive",
        "Date",
        "Server",
        "Proxy-Connection",
    ];
    for name in reserved {
        assert_eq!(
            fields.append(name, b"x"),
            Err(FieldError::Reserved),
            "{name}"
        );
        assert_eq!(fields.set(name, b"x"), Err(FieldError::Reserved), "{name}");
    }
    assert!(fields.is_empty());
    assert_eq!(fields.as_bytes(), b"");
}

#[test]
fn field_lines_kept() {
    let mut fields = FieldLines::new();
    fields.append("Vary", b"accept").unwrap();
    fields.append("X-Empty", b"").unwrap();
    fields.append("vary", b"a: b\xff").unwrap();
    let lines: Vec<_> = fields.iter().collect();
    let expected: [(&str, &[u8]); 3] =
        [("Vary", b"accept"), ("X-Empty", b""), ("vary", b"a: b\xff")];
    assert_eq!(lines, expected);
    assert_eq!(fields.get("VARY"), Some(&b"accept"[..]));
    assert_eq!(fields.get("var"), None);
    assert_eq!(fields.set("VARY", b"\n"), Err(FieldError::Value));
    assert_eq!(fields.iter().count(), 3, "a failed set changes nothing");
    fields.set("VARY", b"x").unwrap();
    assert_eq!(fields.as_bytes(), b"X-Empty: \r\nVARY: x\r\n");
    fields.remove("x-empty");
    fields.remove("absent");
    assert_eq!(fields.as_bytes(), b"VARY: x\r\n");
    fields.clear();
    assert!(fields.is_empty());
}

/// These types are part of the slab entry of each idle connection.
#[test]
fn a_connection_is_small() {
    assert!(size_of::<Connection>() <= 64, "{}", size_of::<Connection>());
    assert!(size_of::<onrush_proto::chunked::Decoder>() <= 32);
}

/// A cached head is byte-identical to a rendered one, whatever the cache held before.
#[test]
fn a_cached_head_is_the_rendered_one() {
    use onrush_proto::response::HeadCache;
    let requests: [&str; 4] = [
        GET,
        "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ];
    let mut cache = HeadCache::default();
    for request in requests {
        for status in [200, 204, 304, 404, 599] {
            for content_type in [None, Some("text/plain"), Some("a/b")] {
                for (length, date) in [(0, DATE), (13, DATE), (13, OTHER_DATE)] {
                    let (mut plain, mut cached) = (Vec::new(), Vec::new());
                    let known = ContentLength::Known(length);
                    let first = received(request).send_head(
                        status,
                        content_type,
                        b"",
                        known,
                        date,
                        false,
                        &mut plain,
                    );
                    let second = received(request).send_plain_head(
                        status,
                        content_type,
                        length,
                        date,
                        &mut cache,
                        &mut cached,
                    );
                    assert_eq!((first, plain), (second, cached));
                }
            }
        }
    }
}

const OTHER_DATE: &[u8; 29] = b"Fri, 20 Nov 2026 10:11:13 GMT";
