//! Requests that must be refused, with their status: one row for each violation.

use crate::common::{refused, run};
use onrush_proto::{
    limits::Limits,
    trace::{Event, drive},
};

fn check(rows: &[(u16, &[u8])]) {
    for (status, raw) in rows {
        let (found, reason) = refused(raw, &Limits::default());
        assert_eq!(found, *status, "{reason}: {}", raw.escape_ascii());
    }
}

/// Checks rows of field lines after a request line and a Host.
fn check_fields(rows: &[(u16, &str)]) {
    for (status, lines) in rows {
        let raw = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        let (found, reason) = refused(raw.as_bytes(), &Limits::default());
        assert_eq!(found, *status, "{reason}: {lines:?}");
    }
}

/// RFC 9112 §6.1 to §6.3: framing, and request smuggling.
#[test]
fn framing() {
    check_fields(&[
        // Both framings: CL.TE and TE.CL, in either order.
        (400, "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        (400, "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        (400, "Content-Length: 0\r\nTransfer-Encoding: chunked"),
        (400, "Content-Length: x\r\nTransfer-Encoding: gzip"),
        // Lengths: two, different and equal, as lines and as lists.
        (400, "Content-Length: 5\r\nContent-Length: 6"),
        (400, "Content-Length: 5\r\nContent-Length: 5"),
        (400, "Content-Length: 5, 6"),
        (400, "Content-Length: 5, 5"),
        (400, "Content-Length: 5,"),
        // Lengths with other bytes than digits.
        (400, "Content-Length:"),
        (400, "Content-Length: \t"),
        (400, "Content-Length: +5"),
        (400, "Content-Length: -5"),
        (400, "Content-Length: 5 5"),
        (400, "Content-Length: 5;"),
        (400, "Content-Length: 0x5"),
        (400, "Content-Length: 5e0"),
        (400, "Content-Length: 5.0"),
        (400, "Content-Length: \"5\""),
        (400, "Content-Length: five"),
        // Leading zeros, which some readers interpret as octal.
        (400, "Content-Length: 010"),
        (400, "Content-Length: 05"),
        (400, "Content-Length: 00"),
        (400, "Content-Length: 0000000000000000000005"),
        (400, "Content-Length: 18446744073709551616"),
        (400, "Content-Length: 99999999999999999999999999"),
        // TE.TE: chunked not last, repeated, empty, with parameters, or not exactly a token.
        (400, "Transfer-Encoding: chunked, gzip"),
        (400, "Transfer-Encoding: chunked, chunked"),
        (
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        ),
        (
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        ),
        (400, "Transfer-Encoding: chunked,"),
        (400, "Transfer-Encoding: ,chunked"),
        (400, "Transfer-Encoding: gzip,,chunked"),
        (400, "Transfer-Encoding:"),
        (400, "Transfer-Encoding: chunked\r\nTransfer-Encoding:"),
        (400, "Transfer-Encoding: chunked;q=1"),
        (400, "Transfer-Encoding: chunked;"),
        (400, "Transfer-Encoding: \"chunked\""),
        (400, "Transfer-Encoding: chunked chunked"),
        (400, "Transfer-Encoding: \u{b}chunked"),
        (400, "Transfer-Encoding: chunk\u{e9}d"),
        // Unknown codings.
        (501, "Transfer-Encoding: gzip, chunked"),
        (501, "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked"),
        (501, "Transfer-Encoding: identity"),
        (501, "Transfer-Encoding: gzip"),
        (501, "Transfer-Encoding: xchunked"),
        (501, "Transfer-Encoding: deflate;level=9, chunked"),
        (501, "Transfer-Encoding: chunked-"),
    ]);
    check(&[
        (
            400,
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        (400, b"POST / HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n"),
    ]);
}

/// RFC 9112 §2.2, §5: line endings, control characters, folds, names.
#[test]
fn lines() {
    check(&[
        (400, b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX:\nY: z\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
        (400, b"GET / HTTP/1.1\nHost: a\n\n"),
        (400, b"GET / HTTP/1.0\r\n\n"),
        (400, b"GET / HTTP/1.0\n\r\n"),
        (400, b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"\rGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\rHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rz\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n\rX\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x0bb\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[31m\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX\0: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n"),
        (
            400,
            b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tfolded\r\n\r\n",
        ),
        (400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost : a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost\t: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nnocolon\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX[]: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nX\xe9: y\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\n\"X\": y\r\n\r\n"),
    ]);
}

/// RFC 9112 §3: request lines.
#[test]
fn request_lines() {
    check(&[
        (400, b" GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET /  HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n"),
        (400, b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET /\tHTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET /\r\n\r\n"),
        (400, b"GET\r\n\r\n"),
        (400, b"G\xc3\x89T / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"G(T / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1x\r\nHost: a\r\n\r\n"),
        (400, b"GET / http/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/11\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/a.b\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.a\r\nHost: a\r\n\r\n"),
        (400, b"GET / XTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/01.01\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.01\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/01.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.10\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/2.01\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/2.0 \r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/2.0\n\n"),
        (400, b"GET / HTTP/1,1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/+1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/-1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/ 1.1\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.\xb9\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/3\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP\r\nHost: a\r\n\r\n"),
        (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/0.9\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/1.9\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"),
        (505, b"GET / HTTP/9.9\r\nHost: a\r\n\r\n"),
        (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ]);
    for (length, status) in [(33, 501), (64, 501), (65, 400), (2000, 400)] {
        let method = "M".repeat(length);
        let raw = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
        check(&[(status, raw.as_bytes())]);
    }
}

/// A method without an end is refused long before the limit on heads (32 KiB), however it is split.
#[test]
fn a_method_without_an_end() {
    let limits = Limits::default();
    for piece in [1, 7, 128] {
        let cuts: Vec<usize> = (1..128).filter(|at| at % piece == 0).collect();
        let events = drive(&b"M".repeat(128), &cuts, &limits);
        assert!(
            matches!(events[0], Event::Rejected(reject) if reject.status == 400),
            "pieces of {piece}: {events:?}"
        );
    }
}

/// RFC 9112 §3.2: targets; RFC 9110 §4.2: what an http URI may be.
#[test]
fn targets() {
    let rows: [(u16, &str, &str); 23] = [
        (400, "GET", "/#f"),
        (400, "GET", "/1234567#"),
        (400, "GET", "/12345678#"),
        (400, "GET", "/#12345678"),
        (400, "GET", "/\u{e9}"),
        (400, "GET", "/1234567890\u{e9}"),
        (400, "GET", "/\u{e9}234567890"),
        (400, "GET", "/\0"),
        (400, "GET", "/\u{7f}"),
        (400, "GET", "*"),
        (400, "OPTIONS", "**"),
        (400, "GET", "a"),
        (400, "GET", "?a"),
        (400, "GET", "a:80"),
        (400, "GET", "http:"),
        (400, "GET", "http://"),
        (400, "GET", "http:///path"),
        (400, "GET", "http://u@b/"),
        (400, "GET", "http://b:x/"),
        (400, "GET", "ftp://b/"),
        (501, "CONNECT", "b:443"),
        (501, "CONNECT", "/"),
        (501, "CONNECT", "http://b/"),
    ];
    for (status, method, target) in rows {
        let raw = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (found, reason) = refused(raw.as_bytes(), &Limits::default());
        assert_eq!(found, status, "{reason}: {method} {target:?}");
    }
}

/// RFC 9112 §3.2: exactly one Host, with a valid value.
#[test]
fn hosts() {
    check(&[
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (400, b"GET http://b/ HTTP/1.1\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost:\r\nHost: a\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost:\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nHost: \t \r\n\r\n"),
        (400, b"GET http://b/ HTTP/1.1\r\nHost:\r\n\r\n"),
        (400, b"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n"),
        (400, b"GET / HTTP/1.0\r\nHost:\r\n\r\n"),
        (400, b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"),
        (400, b"GET http://b/ HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, b"GET / HTTP/1.0\r\nHost: a/b\r\n\r\n"),
    ]);
    let malformed = [
        "a b",
        "a, b",
        "a/",
        "u@a",
        "http://a",
        "a:b",
        "a:-1",
        "a:+1",
        "a:80:80",
        "a:65536",
        "a:99999999999999999999",
        ":80",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]:x",
        "[]",
        "[::g]",
        "[fe80::1%25eth0]",
        "[v1.a]",
        "a%",
        "a%4",
        "a%4x",
        "a%41/",
        "a%41:x",
        "a\"",
        "a#",
        "a?",
        "a\\",
        "a[",
        "a\u{e9}",
        "<a>",
        "a\t b",
        "%41%",
    ];
    for host in malformed {
        let raw = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (status, reason) = refused(raw.as_bytes(), &Limits::default());
        assert_eq!((status, reason), (400, "malformed Host"), "{host:?}");
    }
}

/// RFC 9110 §10.1.1: expectations.
#[test]
fn expectations() {
    check_fields(&[
        (417, "Expect: 200-ok"),
        (417, "Expect:"),
        (417, "Expect: 100-continue, x"),
        (417, "Expect: 100-continue\r\nExpect: y"),
        (417, "Expect: 100-continue;a=b"),
    ]);
}

#[test]
fn bounds() {
    let limits = Limits {
        head_bytes_max: 200,
        target_bytes_max: 20,
        field_count_max: 4,
        body_bytes_max: 10,
        ..Limits::default()
    };
    let repeated = |text: &str, count| text.repeat(count);
    let rows = [
        (
            414,
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", repeated("x", 20)),
        ),
        (414, format!("GET /{}", repeated("x", 300))),
        (
            431,
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                repeated("x", 200)
            ),
        ),
        (
            431,
            format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", repeated("x", 200)),
        ),
        (431, format!("GET / HTTP/1.1\r\n{}", repeated("x", 200))),
        (
            431,
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
                repeated("X: y\r\n", 4)
            ),
        ),
        (
            431,
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\n{}",
                repeated("X: y\r\n", 4) + "Z"
            ),
        ),
        (
            413,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n".to_owned(),
        ),
        (
            413,
            "POST / HTTP/1.0\r\nContent-Length: 18446744073709551615\r\n\r\n".to_owned(),
        ),
        (400, repeated("M", 300)),
    ];
    for (status, raw) in rows {
        let (found, reason) = refused(raw.as_bytes(), &limits);
        assert_eq!(found, status, "{reason}: {raw:?}");
    }
}

/// If the limit on targets exceeds the limit on heads, the head's limit is exceeded in the target.
#[test]
fn a_head_that_ends_nowhere_is_414_in_its_target() {
    let limits = Limits {
        head_bytes_max: 64,
        target_bytes_max: 1000,
        ..Limits::default()
    };
    assert_eq!(
        refused(format!("GET /{}", "x".repeat(100)).as_bytes(), &limits).0,
        414
    );
}

/// The number of fields has an upper limit, whatever `field_count_max` is.
#[test]
fn the_ceiling_of_fields_holds() {
    let limits = Limits {
        field_count_max: 1000,
        ..Limits::default()
    };
    for (count, refused) in [(255, false), (256, true), (300, true)] {
        let lines = "X: y\r\n".repeat(count);
        let raw = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let events = drive(raw.as_bytes(), &[], &limits);
        let status = match &events[0] {
            Event::Rejected(reject) => reject.status,
            _ => 200,
        };
        assert_eq!(status, if refused { 431 } else { 200 }, "{count}");
    }
}

/// The first violation is reported, however the bytes are split.
#[test]
fn the_first_violation_counts() {
    let rows: [(&[u8], &str); 5] = [
        (
            b"GET / HTTP/1.1\nHost : a\r\n\r\n",
            "malformed request line",
        ),
        (b"GET / HTTP/1.1\r\nA: b\nHost : a\r\n\r\n", "bare LF"),
        (b"GET /# HTTP/3.1\r\n\r\n", "fragment in the request target"),
        (
            b"GET / HTTP/1.1\r\nHost : a\nX: \0\r\n\r\n",
            "space before a colon",
        ),
        (b"GET / HTTP/1.1\r\nHost: a\nHost: b\r\n\r\n", "bare LF"),
    ];
    for (raw, reason) in rows {
        assert_eq!(
            refused(raw, &Limits::default()),
            (400, reason),
            "{}",
            raw.escape_ascii()
        );
    }
}

/// A violation is refused before the head is complete, at the latest at the end of its line.
#[test]
fn violations_do_not_wait_for_the_head_to_end() {
    let early: [&[u8]; 4] = [
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\nHost: a\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n",
    ];
    for raw in early {
        let events = run(raw, &Limits::default());
        assert!(
            matches!(events[0], Event::Rejected(_)),
            "{}",
            raw.escape_ascii()
        );
    }
}
