//! Requests that must be accepted, and the values parsed from them.

use crate::common::{GOOD, accepted, run};
use onrush_proto::{
    connection::{After, Eof},
    head::{Framing, Version},
    limits::Limits,
    trace::{Event, drive},
};

/// RFC 9112 §3.2: target and method; then the expected path, query and host.
#[test]
fn targets() {
    let cases: [(&str, &str, &str, Option<&str>, &str); 14] = [
        ("/", "GET", "/", None, "a"),
        ("/?", "GET", "/", Some(""), "a"),
        ("/a/b?c=d?e/f", "GET", "/a/b", Some("c=d?e/f"), "a"),
        (
            "/12345678901234567890?q",
            "GET",
            "/12345678901234567890",
            Some("q"),
            "a",
        ),
        ("//double//slash", "GET", "//double//slash", None, "a"),
        ("/%2e%2E/%00", "GET", "/%2e%2E/%00", None, "a"),
        ("/\"<>\\^`{|}~", "GET", "/\"<>\\^`{|}~", None, "a"),
        ("http://b/x?y", "GET", "/x", Some("y"), "b"),
        ("HTTP://b:81/", "GET", "/", None, "b:81"),
        ("https://[::1]:8443", "GET", "/", None, "[::1]:8443"),
        ("http://b?y=/z", "GET", "/", Some("y=/z"), "b"),
        ("http://b/x/y//", "OPTIONS", "/x/y//", None, "b"),
        ("*", "OPTIONS", "*", None, "a"),
        ("/", "OPTIONS", "/", None, "a"),
    ];
    for (target, method, path, query, host) in cases {
        let raw = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (request, _, _) = accepted(raw.as_bytes());
        assert_eq!(request.target, target.as_bytes());
        assert_eq!(request.method, method);
        assert_eq!(request.path, path.as_bytes(), "{target}");
        assert_eq!(
            request.query.as_deref(),
            query.map(str::as_bytes),
            "{target}"
        );
        assert_eq!(request.host.as_deref(), Some(host.as_bytes()), "{target}");
    }
}

/// RFC 9110 §9.1: any token is a method.
#[test]
fn methods() {
    for method in [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "get",
        "X",
        "!#$%&'*+-.^_`|~09",
    ] {
        let (request, _, _) =
            accepted(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(request.method, method);
    }
    let longest = "M".repeat(32);
    accepted(format!("{longest} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
}

/// RFC 9110 §7.2, RFC 3986 §3.2.2: hosts.
#[test]
fn hosts() {
    let hosts = [
        "a",
        "example.com",
        "example.com:80",
        "example.com:",
        "127.0.0.1:8080",
        "a:65535",
        "[::1]",
        "[2001:db8::ff00:42:8329]:80",
        "[::ffff:192.0.2.1]",
        "x%41.example",
        "%41:80",
        "under_score~!$&'()*+,;=",
    ];
    for host in hosts {
        let raw = format!("GET / HTTP/1.1\r\nhOST: \t{host} \t\r\n\r\n");
        let (request, _, _) = accepted(raw.as_bytes());
        assert_eq!(request.host.as_deref(), Some(host.as_bytes()));
    }
}

/// RFC 9112 §9.3: version and `Connection` fields, and whether the connection persists.
#[test]
fn persistence() {
    let cases = [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: CLOSE\r\n", false),
        ("1.1", "connection: keep-alive , Close\r\n", false),
        (
            "1.1",
            "Connection: keep-alive\r\nConnection: close\r\n",
            false,
        ),
        ("1.1", "Connection: keep-alive\r\n", true),
        ("1.1", "Connection: closed\r\n", true),
        ("1.1", "Connection: te, ,x\r\n", true),
        ("1.1", "Keep-Alive: close\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: x,Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Connection: keep-alive-not\r\n", false),
    ];
    for (version, lines, alive) in cases {
        let raw = format!("GET / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        let (request, _, _) = accepted(raw.as_bytes());
        assert_eq!(request.keep_alive, alive, "{version} {lines}");
        let after = drive(raw.as_bytes(), &[], &Limits::default());
        let expected = if alive {
            After::KeepAlive
        } else {
            After::Close
        };
        assert!(
            after.contains(&Event::Responded(expected)),
            "{version} {lines}"
        );
    }
}

#[test]
fn http_1_0_needs_no_host() {
    let (request, _, _) = accepted(b"GET / HTTP/1.0\r\n\r\n");
    assert_eq!(request.version, Version::Http10);
    assert_eq!(request.host, None);
    assert!(request.fields.is_empty());
}

/// RFC 9112 §6.3: how a body is framed.
#[test]
fn bodies() {
    let cases: [(&str, &str, Framing, Option<u64>, &str); 9] = [
        ("", "", Framing::None, None, ""),
        ("Content-Length: 0\r\n", "", Framing::None, Some(0), ""),
        (
            "Content-Length: 5\r\n",
            "hello",
            Framing::Length(5),
            Some(5),
            "hello",
        ),
        (
            "content-length:\t 5 \r\n",
            "he\r\n\0",
            Framing::Length(5),
            Some(5),
            "he\r\n\0",
        ),
        (
            "Transfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
            Framing::Chunked,
            None,
            "",
        ),
        (
            "transfer-encoding:CHUNKED\r\n",
            "1\r\na\r\n0\r\n\r\n",
            Framing::Chunked,
            None,
            "a",
        ),
        ("Transfer-Encoding-X: gzip\r\n", "", Framing::None, None, ""),
        ("Content-LengthX: 7\r\n", "", Framing::None, None, ""),
        (
            "Expect: 100-Continue\r\nContent-Length: 1\r\n",
            "x",
            Framing::Length(1),
            Some(1),
            "x",
        ),
    ];
    for (lines, wire, framing, length, content) in cases {
        let raw = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{wire}");
        let (request, body, _) = accepted(raw.as_bytes());
        assert_eq!(request.framing, framing, "{lines}");
        assert_eq!(request.content_length, length, "{lines}");
        assert_eq!(body, content.as_bytes(), "{lines}");
        assert_eq!(
            request.expects_continue,
            lines.starts_with("Expect"),
            "{lines}"
        );
    }
}

/// RFC 9110 §10.1.1: a server ignores the expectations of HTTP/1.0 clients.
#[test]
fn expectations_of_http_1_0_are_ignored() {
    for value in ["100-continue", "a miracle"] {
        let raw = format!("GET / HTTP/1.0\r\nExpect: {value}\r\n\r\n");
        assert!(!accepted(raw.as_bytes()).0.expects_continue);
    }
}

/// RFC 9112 §5: order, case and bytes of field lines are kept.
#[test]
fn field_lines() {
    let raw = b"GET / HTTP/1.1\r\nB: 1\r\nhost: a\r\nEmpty:\r\nEmpty2: \t \r\nb:  two  words\t\r\n\
        !#$%&'*+-.^_`|~: \"q\\\" ,;\r\nObs: \x80\xff\ttab\r\n\r\n";
    let (request, _, _) = accepted(raw);
    let expected: [(&str, &[u8]); 7] = [
        ("B", b"1"),
        ("host", b"a"),
        ("Empty", b""),
        ("Empty2", b""),
        ("b", b"two  words"),
        ("!#$%&'*+-.^_`|~", b"\"q\\\" ,;"),
        ("Obs", b"\x80\xff\ttab"),
    ];
    let found: Vec<_> = request
        .fields
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_slice()))
        .collect();
    assert_eq!(found, expected);
}

/// RFC 9112 §2.2: empty lines before a request line.
#[test]
fn two_empty_lines_are_forgiven() {
    for lines in ["\r\n", "\r\n\r\n"] {
        let (request, _, _) = accepted(&[lines.as_bytes(), GOOD].concat());
        assert_eq!(request.path, b"/good");
    }
}

#[test]
fn bounds_are_inclusive() {
    let line = "GET /123 HTTP/1.1\r\n";
    let raw = format!("{line}Host: a\r\nX: y\r\n\r\n");
    let limits = Limits {
        head_bytes_max: raw.len(),
        target_bytes_max: 4,
        field_count_max: 2,
        ..Limits::default()
    };
    let events = run(raw.as_bytes(), &limits);
    assert!(matches!(events[0], Event::Request(_)), "{events:?}");
}

/// More fields than the small table of the parser holds.
#[test]
fn many_fields() {
    for count in [31, 32, 33, 99] {
        let lines: String = (0..count).map(|i| format!("X-{i}: {i}\r\n")).collect();
        let (request, _, _) =
            accepted(format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n").as_bytes());
        assert_eq!(request.fields.len(), count + 1);
        assert_eq!(request.fields[count].0, format!("X-{}", count - 1));
    }
}

/// The meaning of the end of the stream after each number of bytes.
#[test]
fn end_of_stream() {
    let limits = Limits::default();
    let raw = b"\r\n\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxy";
    for end in 0..=raw.len() {
        let eof = match end {
            0..=4 => Eof::Clean,
            _ if end == raw.len() => Eof::Clean,
            _ => Eof::Truncated,
        };
        let events = drive(&raw[..end], &[], &limits);
        assert_eq!(events.last(), Some(&Event::Eof(eof)), "after {end} bytes");
    }
}

/// Random splits of a long exchange. The seed is fixed, so failures are reproducible.
#[test]
fn random_splits_give_the_same_events() {
    let post = b"POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        5;x=\"y\"\r\nhello\r\nA\r\n0123456789\r\n0\r\nT: v\r\n\r\n";
    let put = b"PUT /p HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world";
    let bytes = [&post[..], GOOD, put, b"\r\n", post, GOOD, put].concat();
    let limits = Limits::default();
    let whole = drive(&bytes, &[], &limits);
    assert_eq!(
        whole
            .iter()
            .filter(|event| matches!(event, Event::Request(_)))
            .count(),
        6
    );
    let mut seed: u64 = 0x5eed;
    for _ in 0..2_000 {
        let mut splits = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            at += 1 + (seed >> 58) as usize;
            splits.push(at);
        }
        assert_eq!(drive(&bytes, &splits, &limits), whole, "splits {splits:?}");
    }
}

/// Parses heads into a table that held the same or other bytes before.
#[test]
fn a_reused_table_gives_what_a_fresh_one_gives() {
    use onrush_proto::{head::Head, limits::Limits};
    let heads: [&[u8]; 5] = [
        b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n",
        b"HEAD /a?q HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
        b"POST /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ];
    let show = |head: &Head, bytes: &[u8]| {
        let fields: Vec<_> = head
            .headers(bytes)
            .map(|(n, v)| (n.to_owned(), v.to_vec()))
            .collect();
        let line = (
            head.method(bytes).to_owned(),
            head.path(bytes).to_vec(),
            head.version(),
        );
        let rest = (head.framing(), head.keep_alive(), head.expects_continue());
        (
            line,
            rest,
            head.is_head_method(),
            head.query(bytes).map(<[u8]>::to_vec),
            fields,
        )
    };
    let limits = Limits::default();
    let mut reused = Head::default();
    for first in heads {
        for second in heads {
            for bytes in [first, second, second] {
                let followed = [bytes, b"GET"].concat();
                let mut fresh = Head::default();
                assert_eq!(
                    reused.parse(&followed, &limits),
                    fresh.parse(&followed, &limits)
                );
                assert_eq!(show(&reused, &followed), show(&fresh, &followed));
            }
        }
    }
    // Other limits invalidate the remembered head.
    let tight = Limits {
        target_bytes_max: 1,
        ..Limits::default()
    };
    assert!(reused.parse(heads[4], &limits).is_ok());
    assert_eq!(reused.parse(heads[4], &tight).unwrap_err().status, 414);
}
