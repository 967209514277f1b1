//! Peers that cause work without end.

use super::*;

/// How many times a frame is received before the connection ends.
fn endured(mut flood: impl FnMut(&mut Server, u32)) -> u32 {
    const TRIES: u32 = 5000;
    let mut server = Server::begun();
    for number in 0..TRIES {
        flood(&mut server, number);
        if let Some(fatal) = server.fatal {
            assert_eq!(fatal.code, ErrorCode::ENHANCE_YOUR_CALM);
            return number;
        }
    }
    TRIES
}

#[test]
fn floods_end_the_connection() {
    let send = |bytes: Vec<u8>| move |server: &mut Server, _: u32| server.receive(&bytes);
    let open = frame(HEADERS, END_HEADERS, 1, &block(&POST));
    let on_stream = |bytes: Vec<u8>| {
        let open = open.clone();
        move |server: &mut Server, number: u32| {
            if number == 0 {
                server.receive(&open);
            }
            server.receive(&bytes);
        }
    };
    let idle = [
        endured(send(frame(PING, 0, 0, &[0; 8]))),
        endured(send(frame(SETTINGS, 0, 0, b""))),
        endured(send(frame(200, 0, 0, b""))),
        endured(send(frame(PRIORITY, 0, 1, &[0; 5]))),
        endured(send(frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1"))),
        endured(send(frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        endured(send(frame(GOAWAY, 0, 0, &[0; 8]))),
        endured(on_stream(frame(DATA, 0, 1, b""))),
        endured(on_stream(frame(DATA, PADDED, 1, &[1, 0]))),
    ];
    for endured in idle {
        assert!((900..=1_000).contains(&endured), "{endured}");
    }
    let continuation = endured(|server, number| match number {
        0 => server.receive(&frame(HEADERS, END_STREAM, 1, &block(&GET)[..1])),
        _ => server.receive(&frame(CONTINUATION, 0, 1, b"")),
    });
    assert!(continuation <= 101, "{continuation}");
    let endless = endured(|server, number| match number {
        0 => server.receive(&frame(HEADERS, END_STREAM, 1, &block(&GET)[..1])),
        _ => server.receive(&frame(CONTINUATION, 0, 1, &[b'x'; 1000])),
    });
    assert!(endless <= 66, "{endless}");
}

#[test]
fn requests_that_are_cancelled_are_counted() {
    // By the client (CVE-2023-44487).
    let rapid_reset = endured(|server, number| {
        let stream = 2 * number + 1;
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        server.receive(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    });
    assert_eq!(rapid_reset, 200);
    // By the server, because of the client (CVE-2025-8671).
    let made_reset = endured(|server, number| {
        let stream = 2 * number + 1;
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        server.receive(&frame(WINDOW_UPDATE, 0, stream, &[0; 4]));
    });
    assert_eq!(made_reset, 200);
    // Each second request is cancelled, as by a person who leaves pages early.
    let half = endured(|server, number| {
        let stream = 2 * number + 1;
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        match number % 2 {
            0 => server.receive(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())),
            _ => server.respond(stream, ContentLength::Known(0), b""),
        }
    });
    assert_eq!(half, 5000);
    // A ping for each call, and one every ten seconds for hours.
    let pings = endured(|server, number| {
        let stream = 2 * number + 1;
        server.receive(&frame(PING, 0, 0, &[0; 8]));
        server.receive(&frame(HEADERS, ALL, stream, &block(&GET)));
        server.respond(stream, ContentLength::Known(0), b"");
    });
    assert_eq!(pings, 5000);
    let keepalive = endured(|server, number| {
        server.now_s = 10 * number;
        server.receive(&frame(PING, 0, 0, &[0; 8]));
    });
    assert_eq!(keepalive, 5000);
}

/// How many frames of content are sent before the connection ends. A frame has at most `bytes`
/// bytes, and less if the windows have no room for more. For each one, the client opens both
/// windows by that much, in `steps`.
fn content_frames(bytes: usize, steps: usize, window_bytes: u32) -> u32 {
    let mut server = Server::begun();
    let setting = [&4u16.to_be_bytes()[..], &window_bytes.to_be_bytes()].concat();
    server.receive(&frame(SETTINGS, 0, 0, &setting));
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.respond(1, ContentLength::Unknown, b"");
    for number in 0..5_000 {
        let bytes = bytes.min(server.connection.room(1));
        server
            .connection
            .send_data_head(1, bytes, false, &mut server.out);
        server.out.clear();
        let step = ((bytes / steps) as u32).to_be_bytes();
        for _ in 0..steps {
            server.receive(&frame(WINDOW_UPDATE, 0, 0, &step));
            server.receive(&frame(WINDOW_UPDATE, 0, 1, &step));
        }
        if let Some(fatal) = server.fatal {
            assert_eq!(fatal.code, ErrorCode::ENHANCE_YOUR_CALM);
            return number;
        }
    }
    5_000
}

#[test]
fn opening_windows_for_content_is_no_flood() {
    assert_eq!(content_frames(16_384, 1, WINDOW_BYTES), 5_000);
    // As Go's client for a program that reads 4,096 bytes at a time.
    assert_eq!(content_frames(16_384, 4, WINDOW_BYTES), 5_000);
    // The server has no more, as for events, or the entries of an archive.
    assert_eq!(content_frames(100, 1, WINDOW_BYTES), 5_000);
    assert_eq!(content_frames(1, 1, WINDOW_BYTES), 5_000);
    // All of them before the client says anything.
    let mut server = Server::begun();
    server.receive(&frame(HEADERS, ALL, 1, &block(&GET)));
    server.respond(1, ContentLength::Unknown, b"");
    for _ in 0..5_000 {
        server
            .connection
            .send_data_head(1, 10, false, &mut server.out);
    }
    for _ in 0..5_000 {
        server.receive(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 10]));
        server.receive(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 10]));
    }
    assert_eq!(server.fatal, None);
    // The client asks for so little.
    for window_bytes in [1, 100] {
        let sent = content_frames(16_384, 1, window_bytes);
        assert!((400..=500).contains(&sent), "{sent}");
    }
}

#[test]
fn a_head_that_decodes_to_much_takes_little_memory() {
    // A field of 4,000 bytes in the table, and 30,000 indices of one byte.
    let mut server = Server::begun();
    let mut block_bytes = block(&GET);
    let (mut encoder, mut added) = (Encoder::new(), Vec::new());
    encoder.field(
        b"x-large",
        "v".repeat(4000).as_bytes(),
        Indexing::Added,
        &mut added,
    );
    block_bytes.extend_from_slice(&added);
    server.receive(&frame(HEADERS, ALL, 1, &block_bytes));
    let mut bomb = block(&GET);
    bomb.resize(16_384, 0xbe);
    server.receive(&frame(HEADERS, END_STREAM, 3, &bomb));
    server.receive(&frame(CONTINUATION, END_HEADERS, 3, &[0xbe; 16_384]));
    assert_eq!(server.events, ["1 request None", "3 rejected 431"]);
    assert!(server.connection.head_bytes().len() <= 32 * 1024);
}
