//! What breaks a rule, and what the limits refuse.

use super::*;

#[test]
fn a_connection_without_its_preface_is_refused() {
    for wrong in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r ",
    ] {
        let mut server = Server::new(Limits::default());
        server.receive(wrong);
        assert_eq!(
            server.fatal.map(|fatal| fatal.code),
            Some(ErrorCode::PROTOCOL_ERROR)
        );
    }
    for first in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, ACK, 0, b"")] {
        let mut server = Server::new(Limits::default());
        server.receive(&[&PREFACE[..], &first].concat());
        assert_eq!(
            server.fatal.map(|fatal| fatal.code),
            Some(ErrorCode::PROTOCOL_ERROR)
        );
    }
}

/// Qt 6.12 sends more of a body whose stream it has reset.
#[test]
fn what_follows_the_reset_of_a_client_concerns_its_stream_alone() {
    for follows in [
        frame(DATA, 0, 1, &[b'x'; 100]),
        frame(HEADERS, ALL, 1, &block(&GET)),
    ] {
        let mut server = Server::begun();
        server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
        server.receive(&frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()));
        server.receive(&follows);
        assert_eq!(server.sent(), ["1 RST_STREAM 5"]);
        server.receive(&follows);
        assert!(server.sent().is_empty(), "once");
        server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
        assert_eq!(
            (server.fatal, server.events.last()),
            (None, Some(&"3 request None".to_owned()))
        );
    }
}

#[test]
fn violations_of_the_connection_end_it() {
    const PROTOCOL: ErrorCode = ErrorCode::PROTOCOL_ERROR;
    const SIZE: ErrorCode = ErrorCode::FRAME_SIZE_ERROR;
    const FLOW: ErrorCode = ErrorCode::FLOW_CONTROL_ERROR;
    let get = |stream| frame(HEADERS, ALL, stream, &block(&GET));
    let setting = |name: u16, value: u32| {
        frame(
            SETTINGS,
            0,
            0,
            &[&name.to_be_bytes()[..], &value.to_be_bytes()].concat(),
        )
    };
    let one = 1u32.to_be_bytes();
    let most = (WINDOW_BYTES - 1) + (1 << 31) - 2 * (WINDOW_BYTES - 1);
    let cases: [(Vec<Vec<u8>>, ErrorCode, u32); 36] = [
        // Stream 0, or another one than it.
        (vec![frame(DATA, 0, 0, b"x")], PROTOCOL, 0),
        (vec![frame(HEADERS, ALL, 0, &block(&GET))], PROTOCOL, 0),
        (vec![frame(PRIORITY, 0, 0, &[0; 5])], PROTOCOL, 0),
        (vec![frame(RST_STREAM, 0, 0, &one)], PROTOCOL, 0),
        (vec![frame(SETTINGS, 0, 1, b"")], PROTOCOL, 0),
        (vec![frame(PING, 0, 1, &[0; 8])], PROTOCOL, 0),
        (vec![frame(GOAWAY, 0, 1, &[0; 8])], PROTOCOL, 0),
        (vec![frame(PRIORITY_UPDATE, 0, 1, &one)], PROTOCOL, 0),
        (vec![frame(PRIORITY_UPDATE, 0, 0, &[0; 4])], PROTOCOL, 0),
        // Sizes.
        (vec![vec![0, 0x40, 1, DATA, 0, 0, 0, 0, 1]], SIZE, 0),
        (vec![frame(PING, 0, 0, &[0; 7])], SIZE, 0),
        (vec![frame(SETTINGS, 0, 0, &[0; 5])], SIZE, 0),
        (vec![frame(SETTINGS, ACK, 0, &[0; 6])], SIZE, 0),
        (vec![frame(GOAWAY, 0, 0, &[0; 7])], SIZE, 0),
        (vec![get(1), frame(RST_STREAM, 0, 1, &[0; 3])], SIZE, 1),
        (vec![get(1), frame(WINDOW_UPDATE, 0, 1, &[0; 5])], SIZE, 1),
        (
            vec![frame(HEADERS, ALL | WITH_PRIORITY, 1, &[0; 4])],
            SIZE,
            0,
        ),
        (vec![frame(PRIORITY, 0, 1, &[0; 4])], SIZE, 0),
        (vec![get(1), frame(DATA, PADDED, 1, b"")], SIZE, 1),
        // Streams that have not begun.
        (vec![frame(DATA, 0, 1, b"x")], PROTOCOL, 0),
        (vec![frame(RST_STREAM, 0, 1, &one)], PROTOCOL, 0),
        (vec![frame(WINDOW_UPDATE, 0, 1, &one)], PROTOCOL, 0),
        (vec![get(1), frame(DATA, 0, 3, b"x")], PROTOCOL, 1),
        (vec![frame(HEADERS, ALL, 2, &block(&GET))], PROTOCOL, 0),
        // The order of blocks.
        (vec![frame(CONTINUATION, END_HEADERS, 1, b"")], PROTOCOL, 0),
        (
            vec![
                frame(HEADERS, END_STREAM, 1, b""),
                frame(PING, 0, 0, &[0; 8]),
            ],
            PROTOCOL,
            0,
        ),
        (
            vec![frame(HEADERS, END_STREAM, 1, b""), get(3)],
            PROTOCOL,
            0,
        ),
        // Padding.
        (vec![frame(HEADERS, ALL | PADDED, 1, &[9, 0])], PROTOCOL, 0),
        (vec![get(1), frame(DATA, PADDED, 1, &[9, 0])], PROTOCOL, 1),
        // Settings.
        (vec![setting(2, 2)], PROTOCOL, 0),
        (vec![setting(5, 16_383)], PROTOCOL, 0),
        (vec![setting(5, 1 << 24)], PROTOCOL, 0),
        (vec![setting(4, 1 << 31)], FLOW, 0),
        // Windows.
        (vec![frame(WINDOW_UPDATE, 0, 0, &[0; 4])], PROTOCOL, 0),
        (
            vec![frame(WINDOW_UPDATE, 0, 0, &most.to_be_bytes())],
            FLOW,
            0,
        ),
        (
            vec![frame(PUSH_PROMISE, END_HEADERS, 1, &[0; 4])],
            PROTOCOL,
            0,
        ),
    ];
    for (script, code, last) in cases {
        check_fatal(&script, code, last);
    }
    check_fatal(
        &[frame(HEADERS, ALL, 1, b"\x80")],
        ErrorCode::COMPRESSION_ERROR,
        1,
    );
    check_fatal(&[get(3), get(1)], ErrorCode::PROTOCOL_ERROR, 3);
}

#[test]
fn violations_of_a_stream_reset_it() {
    let request = |lines: &[(&str, &str)]| vec![frame(HEADERS, ALL, 1, &block(lines))];
    let malformed: [&[(&str, &str)]; 15] = [
        &GET[1..],
        &[GET[0], GET[2], GET[3]],
        &[GET[0], GET[1], GET[3]],
        &[GET[0], GET[1], (":path", ""), GET[3]],
        &[GET[0], GET[1], (":path", "no-slash"), GET[3]],
        &[GET[0], GET[1], (":path", "/a b"), GET[3]],
        &[GET[0], GET[0], GET[1], GET[2], GET[3]],
        &[GET[0], GET[1], GET[2], GET[3], (":status", "200")],
        &[GET[0], GET[1], GET[2], ("accept", "*/*"), GET[3]],
        &[GET[0], GET[1], GET[2], GET[3], ("Accept", "*/*")],
        &[GET[0], GET[1], GET[2], GET[3], ("a b", "")],
        &[GET[0], GET[1], GET[2], GET[3], ("a", " b")],
        &[GET[0], GET[1], GET[2], GET[3], ("a", "b\r\nc: d")],
        &[GET[0], GET[1], GET[2], GET[3], ("host", "other.example")],
        &[GET[0], GET[1], GET[2], GET[3], ("content-length", "1")],
    ];
    for lines in malformed {
        check_reset(&request(lines), ErrorCode::PROTOCOL_ERROR);
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ] {
        let lines = [&GET[..], &[(name, "close")]].concat();
        check_reset(&request(&lines), ErrorCode::PROTOCOL_ERROR);
    }
    check_reset(
        &request(&[&GET[..], &[("te", "gzip")]].concat()),
        ErrorCode::PROTOCOL_ERROR,
    );

    let post = |more: &[(&str, &str)]| frame(HEADERS, END_HEADERS, 1, &with(&POST, more));
    let data = |flags, text: &str| frame(DATA, flags, 1, text.as_bytes());
    let four = [("content-length", "4")];
    let protocol = [
        vec![post(&four), data(0, "fives")],
        vec![post(&four), data(END_STREAM, "two")],
        vec![post(&four), data(END_STREAM, "")],
        vec![post(&four), frame(HEADERS, ALL, 1, &block(&[("a", "b")]))],
        vec![
            post(&[]),
            frame(HEADERS, END_HEADERS, 1, &block(&[("a", "b")])),
        ],
        vec![
            post(&[]),
            frame(HEADERS, ALL, 1, &block(&[(":method", "GET")])),
        ],
        vec![
            post(&[]),
            frame(HEADERS, ALL, 1, &block(&[("content-length", "4")])),
        ],
        vec![post(&[]), frame(WINDOW_UPDATE, 0, 1, &[0; 4])],
    ];
    for script in protocol {
        check_reset(&script, ErrorCode::PROTOCOL_ERROR);
    }
    let get = frame(HEADERS, ALL, 1, &block(&GET));
    check_reset(&[get.clone(), data(0, "x")], ErrorCode::STREAM_CLOSED);
    check_reset(&[get.clone(), get.clone()], ErrorCode::STREAM_CLOSED);
    let most = (u32::MAX >> 1).to_be_bytes();
    check_reset(
        &[get, frame(WINDOW_UPDATE, 0, 1, &most)],
        ErrorCode::FLOW_CONTROL_ERROR,
    );
}

#[test]
fn what_is_on_its_way_after_a_reset_is_ignored() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    server
        .connection
        .reset(1, ErrorCode::NO_ERROR, &mut server.out);
    server.receive(&frame(DATA, 0, 1, &[b'x'; 9]));
    server.receive(&frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()));
    server.receive(&frame(HEADERS, ALL, 1, &block(&[("a", "b")])));
    server.receive(&frame(RST_STREAM, 0, 1, &[0; 4]));
    assert_eq!(server.fatal, None);
    assert_eq!(server.events, ["1 request Chunked"]);
}

#[test]
fn what_is_on_its_way_is_ignored_however_many_streams_are_reset() {
    let mut server = Server::begun();
    let streams = || (0..100).map(|number| 2 * number + 1);
    for stream in streams() {
        server.receive(&frame(HEADERS, END_HEADERS, stream, &block(&POST)));
    }
    for stream in streams() {
        let (connection, out) = (&mut server.connection, &mut server.out);
        connection.reset(stream, ErrorCode::NO_ERROR, out);
    }
    server.events.clear();
    server.sent();
    for stream in streams() {
        server.receive(&frame(DATA, 0, stream, b"more"));
        server.receive(&frame(HEADERS, ALL, stream, &block(&[("a", "b")])));
    }
    assert_eq!(server.fatal, None);
    assert!(server.events.is_empty() && server.sent().is_empty());
}

/// For logs, as far as it was read.
#[test]
fn a_malformed_head_is_reported_with_its_first_line() {
    let line = "GET / HTTP/2";
    for (lines, first) in [
        (with(&GET, &[("connection", "close")]), line),
        (with(&GET, &[("Accept", "*/*")]), line),
        (with(&GET, &[(":status", "200")]), line),
        (with(&GET, &[("content-length", "1")]), line),
        (block(&GET[1..]), ""),
        (block(&[GET[0], GET[1], (":path", "/a b"), GET[3]]), ""),
    ] {
        let mut server = Server::begun();
        server.receive(&frame(HEADERS, ALL, 1, &lines));
        assert_eq!(server.sent(), ["1 RST_STREAM 1"]);
        server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
        assert_eq!(server.events, ["1 malformed", "3 request None"]);
        let known = server.malformed_heads[0].lines().next();
        assert_eq!(known.unwrap_or_default(), first);
    }
}

#[test]
fn what_follows_a_refused_request_is_ignored() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.connection.end(&mut server.out);
    assert_eq!(server.sent(), ["GOAWAY 1 0"]);
    // Its client has not read the GOAWAY.
    server.receive(&frame(HEADERS, END_HEADERS, 3, &block(&POST)));
    assert_eq!(server.sent(), ["3 RST_STREAM 7"]);
    server.receive(&frame(DATA, 0, 3, b"text"));
    server.receive(&frame(WINDOW_UPDATE, 0, 3, &1u32.to_be_bytes()));
    server.receive(&frame(HEADERS, ALL, 3, &block(&[("a", "b")])));
    server.receive(&frame(RST_STREAM, 0, 3, &8u32.to_be_bytes()));
    assert_eq!((server.fatal, server.sent().len()), (None, 0));
    server.respond(1, ContentLength::Known(0), b"");
    assert_eq!(server.sent(), ["1 HEADERS 5"]);
    // No later GOAWAY names a later stream (§6.8).
    let (connection, out) = (&mut server.connection, &mut server.out);
    let (code, reason) = (ErrorCode::INTERNAL_ERROR, "the server cannot go on");
    connection.fail(Fatal { code, reason }, out);
    assert_eq!(server.sent(), ["GOAWAY 1 2"]);
}

/// RFC 9113 §8.5: it has an authority, and neither scheme nor path.
#[test]
fn a_connect_that_names_no_authority_alone_is_malformed() {
    let authority = (":authority", "a.example:443");
    for wrong in [
        &[authority, (":scheme", "https")][..],
        &[authority, (":path", "/")],
        &[],
    ] {
        let lines = with(&[(":method", "CONNECT")], wrong);
        check_reset(&[frame(HEADERS, ALL, 1, &lines)], ErrorCode::PROTOCOL_ERROR);
    }
}

#[test]
fn limits_get_a_response() {
    let limits = Limits {
        body_bytes_max: 10,
        ..Limits::default()
    };
    let long = "x".repeat(9000);
    let many: Vec<_> = (0..100).map(|_| ("x-many", "1")).collect();
    let large = "y".repeat(33_000);
    type Lines<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Lines<'_>, Lines<'_>, &str); 9] = [
        (&GET, &[("x-large", &large)], "1 rejected 431"),
        (&GET, &many, "1 rejected 431"),
        (
            &[GET[0], GET[1], (":path", &long), GET[3]],
            &[],
            "1 rejected 414",
        ),
        (&GET[..3], &[], "1 rejected 400"),
        (
            &[GET[0], GET[1], GET[2], (":authority", "user@host")],
            &[],
            "1 rejected 400",
        ),
        (
            &[GET[0], GET[1], (":path", "/#"), GET[3]],
            &[],
            "1 rejected 400",
        ),
        (&GET, &[("expect", "coffee")], "1 rejected 417"),
        (&GET[..3], &[("host", "a"), ("host", "a")], "1 rejected 400"),
        (
            &[(":method", "CONNECT"), (":authority", "a.example:443")],
            &[],
            "1 rejected 501",
        ),
    ];
    for (lines, more, event) in cases {
        let mut server = Server::new(limits);
        server.receive(&opening());
        let (mut rest, mut kind) = (&with(lines, more)[..], HEADERS);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(16_384));
            let flags = if after.is_empty() { END_HEADERS } else { 0 };
            let end_stream = if kind == HEADERS { END_STREAM } else { 0 };
            server.receive(&frame(kind, flags | end_stream, 1, piece));
            (rest, kind) = (after, CONTINUATION);
        }
        assert_eq!(server.events, [event]);
        server.respond(1, ContentLength::Known(0), b"");
        assert_eq!(server.sent(), ["SETTINGS ack", "1 HEADERS 5"]);
        // The table is still the same on both sides.
        server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
        assert_eq!(
            server.events.last().map(String::as_str),
            Some("3 request None")
        );
    }
    let mut server = Server::new(limits);
    server.receive(&opening());
    let eleven = with(&POST, &[("content-length", "11")]);
    server.receive(&frame(HEADERS, END_HEADERS, 1, &eleven));
    assert_eq!(server.events, ["1 rejected 413"]);
}
