//! Each framing violation gets its status and a closed connection, on every driver, and a request
//! hidden in it gets no response.

use crate::common::script::{End, Script, script};
use crate::common::{servers, watchdog};

/// A complete request after the violation. A response to it means that it was smuggled.
const HIDDEN: &str = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n";

fn run(rows: &[(u16, String)]) {
    let scripts: Vec<Script> = rows
        .iter()
        .map(|(status, bytes)| script(format!("{bytes}{HIDDEN}"), &[*status], End::Server))
        .collect();
    let expected: Vec<String> = scripts.iter().map(|s| s.on_sim(0, false)).collect();
    for (script, expected) in scripts.iter().zip(&expected) {
        assert!(expected.contains("\r\nConnection: close\r\n"), "{expected}");
        for seed in 1..10 {
            assert_eq!(&script.on_sim(seed, true), expected, "{}", script.name);
        }
    }
    for (driver, server) in servers() {
        for (script, expected) in scripts.iter().zip(&expected) {
            for cuts in [&[][..], &[7, 40]] {
                let responses = script.on_server(&server, cuts);
                assert_eq!(&responses, expected, "{driver:?}: {}", script.name);
            }
        }
        // After a valid request, too.
        for (script, expected) in scripts.iter().zip(&expected) {
            let mut behind = script.clone();
            let crate::common::script::Step::Send(bytes) = &mut behind.steps[0] else {
                panic!("expected one send");
            };
            bytes.splice(0..0, HIDDEN.bytes());
            behind.statuses.insert(0, 200);
            let responses = behind.on_server(&server, &[]);
            assert!(
                responses.ends_with(expected),
                "{driver:?}: {}: {responses}",
                script.name
            );
        }
    }
}

fn with_fields(rows: &[(u16, &str)]) -> Vec<(u16, String)> {
    let whole = |&(status, fields): &(u16, &str)| {
        let request = format!("POST /echo HTTP/1.1\r\nHost: t\r\n{fields}\r\n\r\n");
        (status, request)
    };
    rows.iter().map(whole).collect()
}

fn with_chunks(rows: &[(u16, &str)]) -> Vec<(u16, String)> {
    let head = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    rows.iter()
        .map(|(status, body)| (*status, format!("{head}{body}")))
        .collect()
}

fn raw(rows: &[(u16, &str)]) -> Vec<(u16, String)> {
    rows.iter()
        .map(|(status, bytes)| (*status, (*bytes).to_owned()))
        .collect()
}

#[test]
fn invalid_body_lengths() {
    let _dog = watchdog("invalid_body_lengths");
    run(&with_fields(&[
        (400, "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        (400, "Transfer-Encoding: chunked\r\nContent-Length: 5"),
        (400, "Content-Length: 5\r\nContent-Length: 6"),
        (400, "Content-Length: 5, 6"),
        (400, "Content-Length: +5"),
        (400, "Content-Length: 010"),
        (400, "Content-Length: -1"),
        (400, "Content-Length: 0x10"),
        (400, "Content-Length: 1 0"),
        (400, "Content-Length: "),
        (400, "Content-Length: 18446744073709551616"),
        (400, "Transfer-Encoding: chunked, gzip"),
        (400, "Transfer-Encoding: chunked, chunked"),
        (
            400,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        ),
        (400, "Transfer-Encoding: , chunked"),
        (400, "Transfer-Encoding: "),
        (501, "Transfer-Encoding: gzip, chunked"),
        (501, "Transfer-Encoding: gzip"),
        (501, "Transfer-Encoding: identity"),
        (413, "Content-Length: 999999999999"),
    ]));
    run(&raw(&[(
        400,
        "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    )]));
}

#[test]
fn invalid_lines_and_fields() {
    let _dog = watchdog("invalid_lines_and_fields");
    run(&with_fields(&[
        (400, "X: a\nY: b"),
        (400, "X: a\rY: b"),
        (400, "X: a\0b"),
        (400, "X: a\u{1}b"),
        (400, "X: a\u{7f}b"),
        (400, " X: folded"),
        (400, "X: a\r\n folded"),
        (400, "X : a"),
        (400, "X\t: a"),
        (400, ": a"),
        (400, "X"),
        (400, "X(: a"),
        (400, "Host: twice"),
    ]));
    run(&raw(&[
        (400, "GET /hello HTTP/1.1\r\n\r\n"),
        (400, "GET /hello HTTP/1.1\r\nHost: a b\r\n\r\n"),
        (400, "GET /hello HTTP/1.1\r\nHost: a/b\r\n\r\n"),
        (400, "GET /hello HTTP/1.1\nHost: t\n\n"),
        (400, "GET  /hello HTTP/1.1\r\nHost: t\r\n\r\n"),
        (400, "GET /hello\r\nHost: t\r\n\r\n"),
        (400, "GET /hel\u{1}lo HTTP/1.1\r\nHost: t\r\n\r\n"),
        (400, "G(T /hello HTTP/1.1\r\nHost: t\r\n\r\n"),
        (
            400,
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n",
        ),
        (400, "GET /hello HTTP/1.1\r\nHost:\r\n\r\n"),
        (400, "GET /hello HTTP/1.0\r\nHost: \r\n\r\n"),
        (400, "GET /hello HTTP/01.01\r\nHost: t\r\n\r\n"),
        (400, "GET /hello HTTP/2\r\nHost: t\r\n\r\n"),
        (505, "GET /hello HTTP/2.0\r\nHost: t\r\n\r\n"),
        (505, "GET /hello HTTP/3.1\r\nHost: t\r\n\r\n"),
    ]));
}

#[test]
fn invalid_chunks() {
    let _dog = watchdog("invalid_chunks");
    run(&with_chunks(&[
        (400, "5\r\nhello5\r\n"),
        (400, "5\nhello\r\n0\r\n\r\n"),
        (400, "+5\r\nhello\r\n0\r\n\r\n"),
        (400, "-5\r\nhello\r\n0\r\n\r\n"),
        (400, "0x5\r\nhello\r\n0\r\n\r\n"),
        (400, " 5\r\nhello\r\n0\r\n\r\n"),
        (400, "5 \r\nhello\r\n0\r\n\r\n"),
        (400, "\r\nhello\r\n0\r\n\r\n"),
        (400, "5;\r\nhello\r\n0\r\n\r\n"),
        (400, "5;a=\"b\r\nhello\r\n0\r\n\r\n"),
        (400, "5;a\nhello\r\n0\r\n\r\n"),
        (400, "10000000000000000\r\nhello\r\n0\r\n\r\n"),
        (413, "ffffffffffffffff\r\nhello\r\n0\r\n\r\n"),
        (400, "0\r\nX y\r\n\r\n"),
        (400, "0\r\nX: a\n\r\n"),
        (400, "0\r\n X: a\r\n\r\n"),
        (400, "0\r\nX : a\r\n\r\n"),
        (400, "0\r\nContent-Length: 5\r\n\r\n"),
        (400, "0\r\nHost: other\r\n\r\n"),
        (400, "0\r\n\n\r\n"),
    ]));
}

#[test]
fn exceeded_limits() {
    let _dog = watchdog("exceeded_limits");
    let long_method = format!("{} /hello HTTP/1.1\r\nHost: t\r\n\r\n", "A".repeat(9_000));
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "a".repeat(9_000));
    let long_field = format!("X: {}", "a".repeat(40_000));
    let many_fields = "X: y\r\n".repeat(101) + "X: z";
    let extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(5_000));
    let trailer = format!("0\r\nX: {}\r\n\r\n", "a".repeat(9_000));
    run(&raw(&[(414, &long_target), (400, &long_method)]));
    run(&with_fields(&[(431, &long_field), (431, &many_fields)]));
    run(&with_chunks(&[(400, &extension), (431, &trailer)]));
}
