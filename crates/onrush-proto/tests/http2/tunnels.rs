//! Streams of other protocols: extended CONNECT (RFC 8441).

use super::*;
use onrush_proto::connection::SendAs;
use onrush_proto::http2::tunnel::Tunnel;

const CONNECT: [(&str, &str); 5] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "https"),
    (":path", "/chat?room=1"),
    (":authority", "a.example"),
];

fn connect(flags: u8, stream: u32) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(&CONNECT))
}

/// A server on which stream 1 has asked for another protocol.
fn asked(flags: u8) -> Server {
    let mut server = Server::with_tunnels();
    server.receive(&connect(flags, 1));
    assert_eq!(server.connection.client_has_ended(1), flags == ALL);
    server
}

impl Server {
    /// Sends a head with this status. Returns how the content follows.
    fn answer(&mut self, stream: u32, status: u16, length: ContentLength) -> SendAs {
        let head = ResponseHead {
            status,
            content_type: None,
            fields: b"Upgrade: websocket\r\n",
            length,
            date: DATE,
        };
        self.connection.send_head(stream, &head, &mut self.out)
    }

    /// A server whose stream 1 is one of another protocol.
    fn tunnelled() -> Server {
        let mut server = asked(END_HEADERS);
        assert!(server.connection.begin_upgrade(1));
        server.answer(1, 101, ContentLength::Unknown);
        server.sent();
        server.events.clear();
        server
    }
}

#[test]
fn the_setting_is_said_only_where_it_is_allowed() {
    for allows in [false, true] {
        let (mut connection, mut out) = (Connection::new(), Vec::new());
        if allows {
            connection.allow_extended_connect();
        }
        connection.begin(&Limits::default(), &mut out);
        let length = usize::from(out[2]);
        let settings: Vec<&[u8]> = out[9..9 + length].chunks(6).collect();
        assert_eq!(settings.contains(&&[0, 8, 0, 0, 0, 1][..]), allows);
        assert_eq!(settings.len(), 4 + usize::from(allows));
    }
}

#[test]
fn an_extended_connect_is_a_request_whose_field_upgrade_names_the_protocol() {
    let mut server = Server::with_tunnels();
    let more = [("sec-websocket-version", "13"), ("cookie", "a=1")];
    server.receive(&frame(HEADERS, END_HEADERS, 1, &with(&CONNECT, &more)));
    assert_eq!(
        server.heads,
        [
            "CONNECT /chat?room=1 HTTP/2\r\nhost: a.example\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\ncookie: a=1\r\n\r\n"
        ]
    );
    let (head, bytes) = (&server.head, server.connection.head_bytes());
    assert_eq!(
        (head.method(bytes), head.path(bytes)),
        ("CONNECT", &b"/chat"[..])
    );
    assert_eq!(head.query(bytes), Some(&b"room=1"[..]));
    assert_eq!(head.host(bytes), Some(&b"a.example"[..]));
    assert_eq!(head.header(bytes, "Upgrade"), Some(&b"websocket"[..]));
    // The same block again is the same request.
    for stream in [3, 5] {
        server.receive(&connect(END_HEADERS, stream));
        assert_eq!(server.connection.tunnel(stream), Tunnel::Asked);
    }
    assert!(server.connection.is_repeated());
    assert_eq!(server.heads[1], server.heads[2]);
    // An ordinary request on the same connection asks for nothing.
    server.receive(&frame(HEADERS, ALL, 7, &block(&GET)));
    assert_eq!(server.connection.tunnel(7), Tunnel::No);
    assert!(!server.connection.begin_upgrade(7));
    assert_eq!(
        server.answer(7, 101, ContentLength::Known(0)),
        SendAs::Nothing
    );
    // A protocol may have a version, and no host but the authority.
    let versioned = [
        CONNECT[0],
        (":protocol", "a/2.1"),
        CONNECT[2],
        CONNECT[3],
        CONNECT[4],
    ];
    server.receive(&frame(HEADERS, END_HEADERS, 9, &block(&versioned)));
    let bytes = server.connection.head_bytes();
    assert_eq!(server.head.header(bytes, "upgrade"), Some(&b"a/2.1"[..]));
}

#[test]
fn its_frames_are_the_same_whole_and_split() {
    let data = |flags, text: &str| frame(DATA, flags, 1, text.as_bytes());
    check_on(
        Server::with_tunnels,
        &[
            connect(END_HEADERS, 1),
            data(0, "some "),
            frame(HEADERS, ALL, 3, &block(&GET)),
            data(0, "bytes"),
            data(END_STREAM, ""),
        ],
        &[
            "1 request None",
            "1 data some ",
            "3 request None",
            "1 data bytes",
            "1 end",
        ],
        &[],
    );
    check_on(
        Server::with_tunnels,
        &[
            connect(ALL, 1),
            connect(END_HEADERS, 3),
            frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]),
        ],
        &["1 request None", "3 request None", "3 reset"],
        &[],
    );
}

#[test]
fn a_101_that_is_permitted_is_sent_as_a_200_without_a_length() {
    for length in [
        ContentLength::Unknown,
        ContentLength::Known(0),
        ContentLength::Known(9),
    ] {
        let mut server = asked(END_HEADERS);
        assert!(server.connection.begin_upgrade(1) && server.connection.begin_upgrade(1));
        assert_eq!(server.connection.tunnel(1), Tunnel::Permitted);
        assert_eq!(server.answer(1, 101, length), SendAs::Chunked);
        assert_eq!(server.connection.tunnel(1), Tunnel::Begun);
        assert!(!server.connection.begin_upgrade(1), "it has begun");
        let mut client = fields_of(&server.out);
        client.sort();
        assert_eq!(client, [":status: 200", "date", "server"]);
        assert_eq!(server.sent(), ["1 HEADERS 4"]);
    }
    // A client that has ended its side may ask as well, and reads what it gets.
    let mut server = asked(ALL);
    assert!(server.connection.begin_upgrade(1));
    assert_eq!(
        server.answer(1, 101, ContentLength::Unknown),
        SendAs::Chunked
    );
    (server.connection).send_data_head(1, 0, true, &mut server.out);
    assert_eq!(server.sent(), ["1 HEADERS 4", "1 DATA 0 1"]);
    assert_eq!(server.connection.open_streams(), 0);
}

/// The fields of the head in `out`: the names, and the value of the status.
fn fields_of(out: &[u8]) -> Vec<String> {
    let length = usize::from(out[1]) << 8 | usize::from(out[2]);
    let mut fields = Vec::new();
    let mut decoder = onrush_proto::http2::hpack::Decoder::new();
    let each = |name: &[u8], value: &[u8]| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        fields.push(match name {
            b":status" => format!(":status: {}", text(value)),
            _ => text(name),
        });
    };
    decoder
        .decode(&out[9..9 + length], each)
        .expect("a valid block");
    fields
}

#[test]
fn any_other_response_ends_the_request() {
    for (permits, status) in [(true, 403), (false, 404), (true, 200)] {
        let mut server = asked(END_HEADERS);
        if permits {
            assert!(server.connection.begin_upgrade(1));
        }
        let send_as = server.answer(1, status, ContentLength::Known(4));
        assert_eq!(send_as, SendAs::Length(4));
        assert_ne!(server.connection.tunnel(1), Tunnel::Begun);
        assert!(!permits || server.connection.tunnel(1) == Tunnel::Permitted);
        assert!(
            !server.connection.begin_upgrade(1),
            "the response has begun"
        );
        (server.connection).send_data_head(1, 4, true, &mut server.out);
        assert!(server.connection.is_half_closed(1));
    }
}

#[test]
fn each_side_ends_alone() {
    // The client first.
    let mut server = Server::tunnelled();
    server.receive(&frame(DATA, END_STREAM, 1, b"last"));
    assert_eq!(server.events, ["1 data last", "1 end"]);
    assert!(server.connection.is_open(1));
    (server.connection).send_data_head(1, 3, false, &mut server.out);
    server.out.extend_from_slice(b"end");
    (server.connection).send_trailers(1, b"", &mut server.out);
    assert_eq!(server.sent(), ["1 DATA 3 0", "1 DATA 0 1"]);
    assert_eq!(server.connection.open_streams(), 0);
    // The server first.
    let mut server = Server::tunnelled();
    (server.connection).send_trailers(1, b"", &mut server.out);
    server.receive(&frame(DATA, 0, 1, b"more"));
    assert_eq!(server.events, ["1 data more"]);
    assert!(server.connection.is_half_closed(1));
    server.receive(&frame(DATA, END_STREAM, 1, b""));
    assert_eq!(server.connection.open_streams(), 0);
    assert_eq!(server.fatal, None);
}

/// As bodies do; see `violations`.
#[test]
fn what_a_client_sends_after_its_own_reset_ends_only_the_stream() {
    let mut server = Server::tunnelled();
    server.receive(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    server.receive(&frame(DATA, 0, 1, b"more"));
    assert_eq!(
        (server.sent(), server.fatal),
        (vec!["1 RST_STREAM 5".to_owned()], None)
    );
    server.receive(&frame(DATA, 0, 1, b"more"));
    assert_eq!((server.sent(), server.fatal), (Vec::new(), None));
}

#[test]
fn the_other_protocol_has_no_trailers() {
    let mut server = Server::tunnelled();
    (server.connection).send_trailers(1, b"X-Sum: 7\r\n", &mut server.out);
    assert_eq!(server.sent(), ["1 DATA 0 1"]);
    // A response that refuses it may have some.
    let mut server = asked(END_HEADERS);
    assert!(server.connection.begin_upgrade(1));
    server.answer(1, 200, ContentLength::Unknown);
    (server.connection).send_trailers(1, b"X-Sum: 7\r\n", &mut server.out);
    assert_eq!(server.sent(), ["1 HEADERS 4", "1 HEADERS 5"]);
}

/// Clients end WebSockets by a reset. That cancels no request.
#[test]
fn resets_of_the_other_protocol_are_no_flood() {
    let mut server = Server::with_tunnels();
    for number in 0..2_000 {
        let stream = 2 * number + 1;
        server.receive(&connect(END_HEADERS, stream));
        assert!(server.connection.begin_upgrade(stream));
        server.answer(stream, 101, ContentLength::Unknown);
        server.receive(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    assert_eq!(server.fatal, None);
    assert_eq!(server.events.last().map(String::as_str), Some("3999 reset"));
    // Those without a response are.
    for number in 2_000..4_000 {
        let stream = 2 * number + 1;
        server.receive(&connect(END_HEADERS, stream));
        server.receive(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    let code = server.fatal.map(|fatal| fatal.code);
    assert_eq!(code, Some(ErrorCode::ENHANCE_YOUR_CALM));
}

#[test]
fn what_breaks_a_rule_resets_the_stream() {
    let request = |lines: &[(&str, &str)]| frame(HEADERS, END_HEADERS, 1, &block(lines));
    let [method, protocol, scheme, path, authority] = CONNECT;
    let malformed: [&[(&str, &str)]; 12] = [
        // Of another method.
        &[(":method", "GET"), protocol, scheme, path, authority],
        &[(":method", "connect"), protocol, scheme, path, authority],
        // Twice, empty, no token, or a list.
        &[method, protocol, protocol, scheme, path, authority],
        &[method, (":protocol", ""), scheme, path, authority],
        &[method, (":protocol", "a b"), scheme, path, authority],
        &[method, (":protocol", "a,b"), scheme, path, authority],
        &[method, (":protocol", "a/"), scheme, path, authority],
        &[method, (":protocol", "a/b/c"), scheme, path, authority],
        // Without what an extended one must have.
        &[method, protocol, path, authority],
        &[method, protocol, scheme, authority],
        &[method, protocol, scheme, (":path", "*"), authority],
        // The field is not one of clients.
        &[
            method,
            protocol,
            scheme,
            path,
            authority,
            ("upgrade", "websocket"),
        ],
    ];
    for lines in malformed {
        let mut server = Server::with_tunnels();
        server.receive(&request(lines));
        assert_eq!(server.sent(), ["1 RST_STREAM 1"], "{lines:?}");
        assert_eq!((server.fatal, server.heads.len()), (None, 0));
    }
    // A request that a limit refuses gets a response.
    let mut server = Server::with_tunnels();
    server.receive(&request(&[method, protocol, scheme, path]));
    assert_eq!(server.events, ["1 rejected 400"], "no host");
    // Trailers, before and after the response.
    let trailers = frame(HEADERS, ALL, 1, &block(&[("x-sum", "7")]));
    for mut server in [asked(END_HEADERS), Server::tunnelled()] {
        server.receive(&trailers);
        assert_eq!(server.sent(), ["1 RST_STREAM 1"]);
    }
    // A length is the length of a body.
    let mut server = Server::with_tunnels();
    let sized = with(&CONNECT, &[("content-length", "4")]);
    server.receive(&frame(HEADERS, END_HEADERS, 1, &sized));
    assert!(!server.connection.begin_upgrade(1));
}

#[test]
fn a_protocol_without_the_setting_is_malformed() {
    check_reset(&[connect(END_HEADERS, 1)], ErrorCode::PROTOCOL_ERROR);
    check(&[connect(ALL, 1)], &["1 malformed"], &["1 RST_STREAM 1"]);
}

#[test]
fn a_plain_connect_is_refused_with_and_without_the_setting() {
    let plain = block(&[(":method", "CONNECT"), (":authority", "a.example:443")]);
    for begun in [Server::begun, Server::with_tunnels] {
        let script = [frame(HEADERS, END_HEADERS, 1, &plain)];
        check_on(begun, &script, &["1 rejected 501"], &[]);
    }
}

#[test]
fn windows_hold_for_the_other_protocol() {
    let mut server = Server::tunnelled();
    assert_eq!(server.connection.room(1), WINDOW_BYTES as usize);
    for _ in 0..3 {
        server.receive(&frame(DATA, 0, 1, &[b'x'; 16_000]));
    }
    assert_eq!(server.sent(), [""; 0], "nothing was read");
    server.connection.consume(1, 48_000, false, &mut server.out);
    assert_eq!(server.sent(), ["1 WINDOW_UPDATE 48000"]);
    for _ in 0..5 {
        server.receive(&frame(DATA, 0, 1, &[b'x'; 16_000]));
    }
    assert_eq!(server.sent(), ["1 RST_STREAM 3"], "more than the window");
}
