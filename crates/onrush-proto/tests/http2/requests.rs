//! Requests, and frames that control a connection.

use super::*;
use onrush_proto::http2::priority::Priority;

#[test]
fn a_request_is_a_head_of_http_1() {
    let mut server = Server::begun();
    let fields = [
        ("accept", "*/*"),
        ("cookie", "a=1"),
        ("x-empty", ""),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ];
    server.receive(&frame(HEADERS, ALL, 1, &with(&GET, &fields)));
    assert_eq!(
        server.heads,
        [
            "GET / HTTP/2\r\nhost: a.example\r\naccept: */*\r\nx-empty: \r\nte: trailers\r\n\
          cookie: a=1; b=2\r\n\r\n"
        ]
    );
    let bytes = server.connection.head_bytes();
    assert_eq!(server.head.host(bytes), Some(&b"a.example"[..]));
    assert_eq!(server.head.header(bytes, "Cookie"), Some(&b"a=1; b=2"[..]));
    assert_eq!(
        (server.head.method(bytes), server.head.path(bytes)),
        ("GET", &b"/"[..])
    );
}

#[test]
fn an_empty_piece_of_cookies_leaves_no_trace() {
    let mut server = Server::begun();
    for (place, pieces) in [["a=1", ""], ["", "a=1"], ["", ""]].iter().enumerate() {
        let fields = pieces.map(|piece| ("cookie", piece));
        server.receive(&frame(
            HEADERS,
            ALL,
            2 * place as u32 + 1,
            &with(&GET, &fields),
        ));
    }
    let start = "GET / HTTP/2\r\nhost: a.example\r\n";
    let expected = ["cookie: a=1\r\n\r\n", "cookie: a=1\r\n\r\n", "\r\n"];
    assert_eq!(server.heads, expected.map(|end| start.to_owned() + end));
}

#[test]
fn the_forms_of_requests() {
    let get = frame(HEADERS, ALL, 1, &block(&GET));
    check(&[get], &["1 request None"], &[]);
    // Without END_STREAM, a body follows, of a length that is known or not.
    let post = |more: &[(&str, &str)]| frame(HEADERS, END_HEADERS, 1, &with(&POST, more));
    let data = |flags, text: &str| frame(DATA, flags, 1, text.as_bytes());
    check(
        &[
            post(&[]),
            data(0, "some "),
            data(0, "bytes"),
            data(END_STREAM, ""),
        ],
        &["1 request Chunked", "1 data some bytes", "1 end"],
        &[],
    );
    check(
        &[post(&[("content-length", "4")]), data(END_STREAM, "four")],
        &["1 request Length(4)", "1 data four", "1 end"],
        &[],
    );
    let trailers = frame(HEADERS, ALL, 1, &block(&[("x-sum", "7")]));
    check(
        &[post(&[]), data(0, "x"), trailers],
        &["1 request Chunked", "1 data x", "1 trailers x-sum: 7|"],
        &[],
    );
    // Padding is not a part of the content.
    let padded = [&[3][..], b"text", &[0; 3]].concat();
    check(
        &[post(&[]), frame(DATA, PADDED | END_STREAM, 1, &padded)],
        &["1 request Chunked", "1 data text", "1 end"],
        &[],
    );
    let all_padding = [&[3][..], &[0; 3]].concat();
    check(
        &[post(&[]), frame(DATA, PADDED | END_STREAM, 1, &all_padding)],
        &["1 request Chunked", "1 data ", "1 end"],
        &[],
    );
    // A block in pieces, padded, with a priority of RFC 7540.
    let lines = block(&GET);
    let (first, rest) = lines.split_at(5);
    let start = [&[2][..], &[0, 0, 0, 0, 16], first, &[0; 2]].concat();
    check(
        &[
            frame(HEADERS, END_STREAM | PADDED | WITH_PRIORITY, 1, &start),
            frame(CONTINUATION, 0, 1, &rest[..1]),
            frame(CONTINUATION, END_HEADERS, 1, &rest[1..]),
        ],
        &["1 request None"],
        &[],
    );
}

#[test]
fn frames_that_control_are_answered() {
    let settings = |name: u16, value: u32| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    check(
        &[
            frame(PING, 0, 0, b"12345678"),
            frame(PING, ACK, 0, b"12345678"),
            frame(
                SETTINGS,
                0,
                0,
                &[settings(2, 0), settings(0xff, 7)].concat(),
            ),
            frame(200, 7, 5, b"unknown"),
            frame(PRIORITY, 0, 9, &[0; 5]),
            frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x05u=1"),
            frame(WINDOW_UPDATE, 0, 0, &1u32.to_be_bytes()),
            frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0why"),
            frame(HEADERS, ALL, 1, &block(&GET)),
        ],
        &["0 writable", "leaving", "1 request None"],
        &["PING 1 12345678", "SETTINGS ack"],
    );
}

#[test]
fn priorities_are_those_of_rfc_9218() {
    let mut server = Server::begun();
    let urgent = with(&GET, &[("priority", "u=1, i")]);
    server.receive(&frame(HEADERS, ALL, 1, &urgent));
    let priority = |urgency, is_incremental| Priority {
        urgency,
        is_incremental,
    };
    assert_eq!(server.connection.priority(1), priority(1, true));
    server.receive(&frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=6"));
    assert_eq!(server.connection.priority(1), priority(6, false));
    server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
    assert_eq!(server.connection.priority(3), Priority::SHARED);
    server.receive(&frame(HEADERS, ALL, 5, &with(&GET, &[("priority", "")])));
    assert_eq!(server.connection.priority(5), Priority::default());
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut server = Server::begun();
    for number in 0..STREAMS_MAX as u32 + 1 {
        server.receive(&frame(HEADERS, ALL, 2 * number + 1, &block(&GET)));
    }
    assert_eq!(server.events.len(), STREAMS_MAX);
    assert_eq!(server.sent(), ["257 RST_STREAM 7"]);
    assert_eq!(server.connection.open_streams(), STREAMS_MAX);
}

#[test]
fn a_repeated_block_means_the_same_as_long_as_the_table_is_the_same() {
    let mut server = Server::begun();
    let get = block(&GET);
    let mut stream = 1;
    let mut send = |server: &mut Server, flags: u8, block: &[u8]| {
        server.receive(&frame(HEADERS, flags, stream, block));
        stream += 2;
        server.connection.is_repeated()
    };
    assert!(!send(&mut server, ALL, &get));
    assert!(send(&mut server, ALL, &get));
    assert!(send(&mut server, ALL, &get));
    // A body may follow this time.
    assert!(!send(&mut server, END_HEADERS, &get));
    assert!(send(&mut server, END_HEADERS, &get));
    assert_eq!(
        server.events[3..],
        ["7 request Chunked", "9 request Chunked"]
    );
    assert!(!send(&mut server, ALL, &get));
    // The first index of the table is `x: 1`, then `x: 2`.
    let add = |value: u8| [&get[..], &[0x40, 1, b'x', 1, value]].concat();
    let indexed = [&get[..], &[0xbe]].concat();
    assert!(!send(&mut server, ALL, &add(b'1')));
    assert!(!send(&mut server, ALL, &indexed));
    assert!(send(&mut server, ALL, &indexed));
    assert!(!send(&mut server, ALL, &add(b'2')));
    assert!(!send(&mut server, ALL, &indexed));
    let last: Vec<&str> = server.heads[7..]
        .iter()
        .map(|head| &head[head.len() - 8..])
        .collect();
    assert_eq!(
        last,
        [
            "x: 1\r\n\r\n",
            "x: 1\r\n\r\n",
            "x: 2\r\n\r\n",
            "x: 2\r\n\r\n"
        ]
    );
    assert_eq!(server.heads[1], server.heads[0]);
}
