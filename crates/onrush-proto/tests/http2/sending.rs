//! Responses, windows, and the end of a connection.

use super::*;
use onrush_proto::http2::hpack::Decoder;

#[test]
fn responses_take_from_the_windows() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
    server.events.clear();
    server.respond(
        1,
        ContentLength::Unknown,
        b"X-Name: value\r\nConnection: close\r\n",
    );
    assert_eq!(server.sent(), ["1 HEADERS 4"]);
    let window = WINDOW_BYTES as usize;
    assert_eq!(server.connection.room(1), window);
    let (connection, out) = (&mut server.connection, &mut server.out);
    for bytes in [16_384, 16_384, 16_384, 16_383] {
        connection.send_data_head(1, bytes, false, out);
        out.extend(std::iter::repeat_n(b'x', bytes));
    }
    assert_eq!((connection.room(1), connection.room(3)), (0, 0));
    assert_eq!(server.sent().len(), 4);
    server.receive(&frame(WINDOW_UPDATE, 0, 0, &100u32.to_be_bytes()));
    assert_eq!(
        (server.connection.room(1), server.connection.room(3)),
        (0, 100)
    );
    server.receive(&frame(WINDOW_UPDATE, 0, 1, &50u32.to_be_bytes()));
    assert_eq!(server.connection.room(1), 50);
    assert_eq!(server.events, ["0 writable", "1 writable"]);
    // A setting changes the windows of streams that are open, also below zero (§6.9.2).
    let lower = [&4u16.to_be_bytes()[..], &10u32.to_be_bytes()].concat();
    server.receive(&frame(SETTINGS, 0, 0, &lower));
    assert_eq!(
        (server.connection.room(1), server.connection.room(3)),
        (0, 10)
    );
    let raise = [&4u16.to_be_bytes()[..], &WINDOW_BYTES.to_be_bytes()].concat();
    server.receive(&frame(SETTINGS, 0, 0, &raise));
    assert_eq!(
        (server.connection.room(1), server.connection.room(3)),
        (50, 100)
    );
    server.sent();
    server
        .connection
        .send_trailers(1, b"X-Sum: 7\r\n", &mut server.out);
    assert!(!server.connection.is_open(1));
    server.respond(3, ContentLength::Known(0), b"");
    assert_eq!(server.sent(), ["1 HEADERS 5", "3 HEADERS 5"]);
    assert_eq!(server.connection.open_streams(), 0);
}

#[test]
fn fields_of_responses() {
    let mut server = Server::begun();
    let mut decoder = Decoder::new();
    let mut decoded = |out: &mut Vec<u8>| {
        let block = out.split_off(9);
        out.clear();
        let mut lines = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let add = |name: &[u8], value: &[u8]| lines.push(text(name) + ": " + &text(value));
        decoder.decode(&block, add).expect("a block");
        (lines, block.len())
    };
    let mut lengths = Vec::new();
    for stream in [1, 3] {
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        server.respond(
            stream,
            ContentLength::Known(5),
            b"X-Name: value\r\nSet-Cookie: a=b\r\n",
        );
        let (lines, length) = decoded(&mut server.out);
        lengths.push(length);
        assert_eq!(
            lines,
            [
                ":status: 200",
                "server: onrush",
                "date: Sun, 29 Nov 2026 17:00:00 GMT",
                "content-type: text/plain",
                "x-name: value",
                "set-cookie: a=b",
                "content-length: 5",
            ]
        );
    }
    assert!(
        lengths[1] < 20 && lengths[0] > 60,
        "the second has numbers only: {lengths:?}"
    );
    let head = [(":method", "HEAD"), GET[1], GET[2], GET[3]];
    server.receive(&frame(HEADERS, ALL, 5, &block(&head)));
    server.respond(5, ContentLength::Known(5), b"");
    assert_eq!(
        decoded(&mut server.out).0.last().map(String::as_str),
        Some("content-length: 5")
    );
    assert!(
        !server.connection.is_open(5),
        "a response to HEAD has no content"
    );
}

#[test]
fn a_long_head_is_sent_in_several_frames() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    let lines: String = (0..4)
        .map(|_| format!("Location: {}\r\n", "~".repeat(9000)))
        .collect();
    server.respond(1, ContentLength::Known(1), lines.as_bytes());
    assert_eq!(
        server.sent(),
        ["1 HEADERS 0", "1 CONTINUATION 0", "1 CONTINUATION 4"]
    );
}

#[test]
fn consumed_bytes_are_announced_late_and_the_windows_grow() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    let data = frame(DATA, 0, 1, &[b'x'; 16_000]);
    let (mut updates, mut sent_bytes) = (Vec::new(), 0);
    for _ in 0..3 {
        server.receive(&data);
        sent_bytes += 16_000;
        server.connection.consume(1, 16_000, true, &mut server.out);
        updates.extend(server.sent());
    }
    assert_eq!(sent_bytes, 48_000);
    // 48,000 are consumed, and the window is four times as large.
    assert_eq!(
        updates,
        ["1 WINDOW_UPDATE 244605", "0 WINDOW_UPDATE 244605"]
    );
    // What nobody reads is not announced, and what exceeds the window ends the stream.
    while server.events.last().is_some_and(|last| last != "1 reset") {
        sent_bytes += 16_000;
        assert!(sent_bytes < 1_000_000, "no window holds");
        server.receive(&data);
        server.connection.release_held(1, 16_000, &mut server.out);
    }
    assert_eq!(sent_bytes, 320_000, "48,000 and four times 65,535 fit");
    assert_eq!(server.sent().last().expect("a frame"), "1 RST_STREAM 3");
}

#[test]
fn windows_grow_to_16_mebibytes() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    let (mut sent_bytes, mut announced) = (0, [CONNECTION_WINDOW_BYTES, WINDOW_BYTES]);
    for _ in 0..2_500 {
        server.receive(&frame(DATA, 0, 1, &[b'x'; 16_000]));
        sent_bytes += 16_000;
        server.connection.consume(1, 16_000, true, &mut server.out);
        for update in server.sent() {
            let (frame, room) = update.rsplit_once(' ').expect("words");
            let of_stream = usize::from(frame.starts_with('1'));
            announced[of_stream] += room.parse::<u32>().expect("a number");
        }
        for announced in announced {
            let window = announced - sent_bytes;
            assert!((32_000..=17 << 20).contains(&window), "{window}");
        }
    }
    assert!(
        announced
            .iter()
            .all(|announced| announced - sent_bytes >= 8 << 20)
    );
}

/// The windows that the server has announced, less what was sent.
struct Windows {
    connection: i64,
    streams: std::collections::BTreeMap<u32, i64>,
}

impl Windows {
    fn new() -> Windows {
        Windows {
            connection: i64::from(CONNECTION_WINDOW_BYTES),
            streams: std::collections::BTreeMap::new(),
        }
    }

    fn send(&mut self, server: &mut Server, stream: u32, bytes: usize) {
        server.receive(&frame(DATA, 0, stream, &vec![b'x'; bytes]));
        assert_eq!(server.fatal, None);
        self.connection -= bytes as i64;
        *self
            .streams
            .entry(stream)
            .or_insert(i64::from(WINDOW_BYTES)) -= bytes as i64;
        self.read(server);
    }

    fn read(&mut self, server: &mut Server) {
        for sent in server.sent() {
            let words: Vec<&str> = sent.split(' ').collect();
            if let [stream, "WINDOW_UPDATE", bytes] = words[..] {
                let bytes: i64 = bytes.parse().expect("a number");
                match stream.parse().expect("a number") {
                    0 => self.connection += bytes,
                    stream => *self.streams.get_mut(&stream).expect("known") += bytes,
                }
            }
        }
    }
}

#[test]
fn streams_whose_bytes_wait_do_not_use_up_the_window_of_the_connection() {
    let mut server = Server::begun();
    let mut windows = Windows::new();
    for stream in (1..).step_by(2).take(30) {
        server.receive(&frame(HEADERS, END_HEADERS, stream, &block(&POST)));
        for _ in 0..4 {
            windows.send(&mut server, stream, 16_000);
            (server.connection).release_held(stream, 16_000, &mut server.out);
            windows.read(&mut server);
        }
        assert_eq!(windows.streams[&stream], 65_535 - 64_000, "it is not read");
        assert!(windows.connection > 128 * 1024, "{}", windows.connection);
    }
}

#[test]
fn what_is_discarded_leaves_the_window_open_while_other_streams_wait() {
    let mut server = Server::begun();
    let mut windows = Windows::new();
    for stream in [1, 3, 5] {
        server.receive(&frame(HEADERS, END_HEADERS, stream, &block(&POST)));
        // They take up the window of the connection.
        (0..4).for_each(|_| windows.send(&mut server, stream, 16_000));
    }
    server.receive(&frame(HEADERS, END_HEADERS, 9, &block(&POST)));
    for _ in 0..100 {
        windows.send(&mut server, 9, 16_000);
        server.connection.consume(9, 16_000, false, &mut server.out);
        windows.read(&mut server);
        assert!(windows.connection >= 16_000 && windows.streams[&9] >= 16_000);
    }
}

/// Whatever becomes of bodies, and in which order.
#[test]
fn the_window_of_the_connection_is_given_back() {
    for order in 0..64u32 {
        let mut server = Server::begun();
        let mut windows = Windows::new();
        for step in 0..40u32 {
            let stream = 2 * step + 1;
            server.receive(&frame(HEADERS, END_HEADERS, stream, &block(&POST)));
            let what = (order + step * (order | 1)) % 6;
            for _ in 0..3 {
                windows.send(&mut server, stream, 16_000);
                let (connection, out) = (&mut server.connection, &mut server.out);
                match what {
                    0 => connection.consume(stream, 16_000, true, out),
                    1 => connection.release_held(stream, 16_000, out),
                    2 => connection.consume(stream, 5_000, false, out),
                    3 => {
                        connection.release_held(stream, 9_000, out);
                        connection.consume(stream, 16_000, false, out);
                    }
                    _ => {}
                }
                windows.read(&mut server);
            }
            match what {
                0 | 4 => server.receive(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())),
                1 => {
                    server.receive(&frame(DATA, END_STREAM, stream, b""));
                    server.respond(stream, ContentLength::Known(0), b"");
                }
                _ => {
                    let (connection, out) = (&mut server.connection, &mut server.out);
                    connection.reset(stream, ErrorCode::CANCEL, out);
                    connection.consume(stream, 1_000, false, out);
                }
            }
            windows.read(&mut server);
        }
        // All but what is not worth a frame yet.
        assert_eq!(server.connection.grown_bytes(), 0);
        assert!(
            windows.connection > 128 * 1024,
            "{order}: {}",
            windows.connection
        );
        assert!(
            windows.connection <= 256 * 1024 + 300_000,
            "{order}: {}",
            windows.connection
        );
    }
}

#[test]
fn a_stream_is_reset_once() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
    server.respond(3, ContentLength::Known(0), b"");
    server.sent();
    for stream in [1, 1, 3, 5] {
        let (connection, out) = (&mut server.connection, &mut server.out);
        connection.reset(stream, ErrorCode::CANCEL, out);
    }
    assert_eq!(server.sent(), ["1 RST_STREAM 8"]);
    // The number of the last one is not used.
    server.receive(&frame(HEADERS, ALL, 5, &block(&GET)));
    assert_eq!(
        server.events.last().map(String::as_str),
        Some("5 request None")
    );
}

const RESET: &str = "1 RST_STREAM 8";
const ALL_OF_IT: &str = "0 WINDOW_UPDATE 131072";

#[test]
fn nothing_of_a_frame_follows_the_reset_of_its_stream() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    let data = frame(DATA, END_STREAM, 1, &[b'x'; 16_000]);
    server.receive(&data[..109]);
    server.events.clear();
    let (connection, out) = (&mut server.connection, &mut server.out);
    connection.reset(1, ErrorCode::CANCEL, out);
    connection.consume(1, 100, false, out);
    server.receive(&data[109..]);
    assert!(server.events.is_empty(), "{:?}", server.events);
    // What nobody takes is announced on the connection, so its window is as before.
    server.receive(&frame(HEADERS, END_HEADERS, 3, &block(&POST)));
    let rest = CONNECTION_WINDOW_BYTES as usize / 2 - 16_000;
    for piece in vec![b'x'; rest].chunks(16_384) {
        server.receive(&frame(DATA, 0, 3, piece));
        server
            .connection
            .consume(3, piece.len(), false, &mut server.out);
    }
    let sent = server.sent();
    assert_eq!(
        (sent.first(), sent.last()),
        (Some(&RESET.to_owned()), Some(&ALL_OF_IT.to_owned()))
    );
    let is_of_connection = |sent: &&String| sent.starts_with('0');
    assert_eq!(sent.iter().filter(is_of_connection).count(), 1, "{sent:?}");
}

#[test]
fn padding_and_what_no_stream_takes_is_announced() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    server
        .connection
        .reset(1, ErrorCode::NO_ERROR, &mut server.out);
    server.sent();
    for _ in 0..40 {
        server.receive(&frame(DATA, 0, 1, &[b'x'; 16_000]));
    }
    assert_eq!(server.fatal, None);
    let updates = server.sent();
    assert_eq!(updates.len(), 4, "{updates:?}");
    assert!(
        updates
            .iter()
            .all(|update| update == "0 WINDOW_UPDATE 144000"),
        "{updates:?}"
    );

    let mut server = Server::begun();
    server.receive(&frame(HEADERS, END_HEADERS, 1, &block(&POST)));
    let padded = [&[255][..], &[b'x'; 10], &[0; 255]].concat();
    for _ in 0..200 {
        server.receive(&frame(DATA, PADDED, 1, &padded));
        server.connection.consume(1, 10, false, &mut server.out);
    }
    assert_eq!(server.fatal, None);
    assert_eq!(server.sent(), ["1 WINDOW_UPDATE 32974"]);
}

#[test]
fn the_end_is_announced_and_then_no_stream_begins() {
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.connection.announce_end(&mut server.out);
    server.receive(&frame(HEADERS, ALL, 3, &block(&GET)));
    server.connection.end(&mut server.out);
    server.connection.end(&mut server.out);
    server.receive(&frame(HEADERS, ALL, 5, &block(&GET)));
    assert_eq!(server.events, ["1 request None", "3 request None"]);
    assert_eq!(
        server.sent(),
        ["GOAWAY 2147483647 0", "GOAWAY 3 0", "5 RST_STREAM 7"]
    );
    server.respond(1, ContentLength::Known(0), b"");
    server.respond(3, ContentLength::Known(0), b"");
    assert_eq!(server.connection.open_streams(), 0);
}

#[test]
fn a_repeated_response_is_decoded_as_the_first_one() {
    use onrush_proto::http2::hpack::Decoder;
    let mut server = Server::begun();
    let mut decoder = Decoder::new();
    let mut texts = Vec::new();
    let cases = [
        (ContentLength::Known(5), &b"X-Tag: a\r\n"[..]),
        (ContentLength::Known(5), b"X-Tag: a\r\n"),
        (ContentLength::Known(5), b"X-Tag: a\r\n"),
        (ContentLength::Known(6), b"X-Tag: a\r\n"),
        (ContentLength::Known(6), b"X-Tag: b\r\n"),
        (ContentLength::Unknown, b"X-Tag: b\r\n"),
        (ContentLength::Known(5), b"X-Tag: a\r\n"),
        (ContentLength::Known(5), b"X-Tag: a\r\n"),
    ];
    for (at, (length, fields)) in cases.into_iter().enumerate() {
        let stream = 2 * at as u32 + 1;
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        if at == 6 {
            // The table is emptied, which the next block says.
            server.receive(&frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
            server.receive(&frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 16, 0]));
        }
        server.out.clear();
        server.respond(stream, length, fields);
        let mut text = String::new();
        let decoded = decoder.decode(&server.out[9..], |name, value| {
            let (name, value) = (
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value),
            );
            text.push_str(&format!("{name}={value} "));
        });
        decoded.expect("a valid block");
        texts.push((text, server.out.len()));
    }
    assert_eq!(texts[1], texts[2], "the same block");
    assert!(texts[1].1 < texts[0].1, "what is in the table is short");
    let of = |at: usize| &texts[at].0;
    assert!(of(0).contains("x-tag=a content-length=5"), "{}", of(0));
    assert_eq!((of(0), of(1), of(6), of(7)), (of(7), of(6), of(0), of(0)));
    assert!(of(3).contains("x-tag=a content-length=6"), "{}", of(3));
    assert!(of(4).contains("x-tag=b content-length=6"), "{}", of(4));
    assert!(
        of(5).contains("x-tag=b") && !of(5).contains("length"),
        "{}",
        of(5)
    );
}
