//! RFC 9112 §7.1: decoding and encoding of chunked bodies.

use crate::common::{accepted, refused};
use onrush_proto::{
    chunked::{Decoder, encode_chunk_header, encode_end},
    connection::{After, Connection, Step},
    head::Head,
    limits::Limits,
    response::ContentLength,
};

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn bodies_that_are_read() {
    let rows: [(&str, &str, Option<&str>); 14] = [
        ("0\r\n\r\n", "", None),
        ("000\r\n\r\n", "", None),
        ("5\r\nhello\r\n0\r\n\r\n", "hello", None),
        ("0000000000000005\r\nhello\r\n0\r\n\r\n", "hello", None),
        (
            "a\r\n0123456789\r\nB\r\n0123456789a\r\n0\r\n\r\n",
            "01234567890123456789a",
            None,
        ),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n", None),
        ("1;a\r\nx\r\n0;b\r\n\r\n", "x", None),
        ("1;a=b;c=\"d;\\\" \t\\\\\"\r\nx\r\n0\r\n\r\n", "x", None),
        ("1; a = b ; c\t=\t\"d\" ;e\r\nx\r\n0\r\n\r\n", "x", None),
        ("1;a=\"\"\r\nx\r\n0\r\n\r\n", "x", None),
        ("0\r\nX: y\r\n\r\n", "", Some("X: y\r\n")),
        ("0\r\nX:\r\nY:\t \r\n\r\n", "", Some("X:\r\nY:\t \r\n")),
        (
            "1\r\nx\r\n0;e\r\nContent-Digest: sha-256=:x:\r\n\r\n",
            "x",
            Some(DIGEST),
        ),
        (
            "1\r\nx\r\n0\r\nA: b\r\nA: c\r\n\r\n",
            "x",
            Some("A: b\r\nA: c\r\n"),
        ),
    ];
    for (wire, content, trailers) in rows {
        let (_, body, found) = accepted(format!("{HEAD}{wire}").as_bytes());
        assert_eq!(body, content.as_bytes(), "{wire:?}");
        assert_eq!(found.as_deref(), trailers.map(str::as_bytes), "{wire:?}");
    }
}

const DIGEST: &str = "Content-Digest: sha-256=:x:\r\n";

#[test]
fn bodies_that_are_refused() {
    let rows = [
        // Sizes: empty, signed, prefixed, spaced, too large, not hexadecimal.
        "\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t\r\nhello\r\n0\r\n\r\n",
        "5 ;a\r\nhello\r\n0\r\n\r\n",
        "5,\r\nhello\r\n0\r\n\r\n",
        "5h\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "10000000000000000\r\nx",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        ";a\r\n",
        "\u{ff15}\r\nhello\r\n0\r\n\r\n",
        // Line endings of size lines.
        "5\nhello\r\n0\r\n\r\n",
        "5\r\rhello",
        "5\rhello\r\n0\r\n\r\n",
        "5;a\nhello\r\n0\r\n\r\n",
        "5;a\rb\r\nhello\r\n0\r\n\r\n",
        "0\n\r\n",
        // Data that does not end with CRLF.
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\rX0\r\n\r\n",
        "4\r\nhello\r\n0\r\n\r\n",
        "6\r\nhello\r\n0\r\n\r\n",
        // Extensions.
        "5;\r\nhello\r\n0\r\n\r\n",
        "5;;a\r\nhello\r\n0\r\n\r\n",
        "5;=b\r\nhello\r\n0\r\n\r\n",
        "5;a=\r\nhello\r\n0\r\n\r\n",
        "5;a= \r\nhello\r\n0\r\n\r\n",
        "5;a \r\nhello\r\n0\r\n\r\n",
        "5;a=b \r\nhello\r\n0\r\n\r\n",
        "5;a=b c\r\nhello\r\n0\r\n\r\n",
        "5;a b\r\nhello\r\n0\r\n\r\n",
        "5;a=b=c\r\nhello\r\n0\r\n\r\n",
        "5;a=\"b\r\nhello\r\n0\r\n\r\n",
        "5;a=\"b\"c\r\nhello\r\n0\r\n\r\n",
        "5;a=\"\\\r\n\"\r\nhello\r\n0\r\n\r\n",
        "5;a=\"\0\"\r\nhello\r\n0\r\n\r\n",
        "5;a\0\r\nhello\r\n0\r\n\r\n",
        "5;a=\u{e9}\r\nhello\r\n0\r\n\r\n",
        // Trailers.
        "0\r\nX\r\n\r\n",
        "0\r\n: y\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\n X: y\r\n\r\n",
        "0\r\nX: y\r\n z\r\n\r\n",
        "0\r\nX: y\n\r\n",
        "0\r\nX: y\rz\r\n\r\n",
        "0\r\nX: \0\r\n\r\n",
        "0\r\nX: y\r\n\n",
        "0\r\n\rX",
        "0\r\n\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0\r\ntransfer-encoding: chunked\r\n\r\n",
        "0\r\nX: y\r\nHOST: b\r\n\r\n",
        "0\r\nGET / HTTP/1.1\r\n\r\n",
    ];
    for wire in rows {
        let (status, reason) = refused(format!("{HEAD}{wire}").as_bytes(), &Limits::default());
        assert_eq!(status, 400, "{reason}: {wire:?}");
    }
}

#[test]
fn bounds() {
    let limits = Limits {
        body_bytes_max: 10,
        chunk_extension_bytes_max: 6,
        trailer_bytes_max: 12,
        field_count_max: 2,
        ..Limits::default()
    };
    let rows = [
        (413, "b\r\n0123456789a\r\n0\r\n\r\n"),
        (413, "5\r\nhello\r\n6\r\nworld!\r\n0\r\n\r\n"),
        (413, "a\r\n0123456789\r\n1\r\n"),
        (413, "ffffffffffffffff\r\n"),
        (400, "1;abcdef\r\nx\r\n0\r\n\r\n"),
        (400, "1;ab\r\nx\r\n1;ab\r\nx\r\n0;a\r\n\r\n"),
        (431, "0\r\nX: 123456789\r\n\r\n"),
        (431, "0\r\na:\r\nb:\r\nc:\r\n\r\n"),
    ];
    for (status, wire) in rows {
        let (found, reason) = refused(format!("{HEAD}{wire}").as_bytes(), &limits);
        assert_eq!(found, status, "{reason}: {wire:?}");
    }
    let fits = "5;abcde\r\nhello\r\n5\r\nworld\r\n0\r\na: 345678\r\n\r\n";
    let events = crate::common::run_pipelined(format!("{HEAD}{fits}").as_bytes(), &limits);
    assert_eq!(
        events[1],
        onrush_proto::trace::Event::Body(b"helloworld".to_vec())
    );
}

/// Data may bypass the decoder, chunk by chunk.
#[test]
fn runs_of_data_may_be_skipped() {
    let limits = Limits::default();
    let mut decoder = Decoder::new();
    assert_eq!(decoder.chunk_remaining(), 0);
    let piece = decoder.decode(b"1000\r\n", &limits).unwrap();
    assert_eq!((piece.consumed, piece.data.len(), piece.end), (6, 0, false));
    assert_eq!(decoder.chunk_remaining(), 0x1000);
    decoder.skip(0xfff);
    let piece = decoder.decode(b"x\r\n0\r\n\r\n", &limits).unwrap();
    assert_eq!((piece.consumed, piece.data, piece.end), (1, 0..1, false));
    let piece = decoder.decode(b"\r\n0\r\n\r\nGET", &limits).unwrap();
    assert_eq!((piece.consumed, piece.data.len(), piece.end), (7, 0, true));
    assert_eq!(decoder.take_trailers(), None);
    let again = decoder.decode(b"GET", &limits).unwrap();
    assert_eq!((again.consumed, again.end), (0, true));
}

#[test]
#[should_panic(expected = "skipped past the chunk")]
fn skipping_past_a_chunk_is_a_mistake() {
    let mut decoder = Decoder::new();
    decoder.decode(b"5\r\n", &Limits::default()).unwrap();
    decoder.skip(6);
}

#[test]
fn a_broken_decoder_stays_broken() {
    let limits = Limits::default();
    let mut decoder = Decoder::new();
    assert!(decoder.decode(b"x", &limits).is_err());
    assert!(decoder.decode(b"0\r\n\r\n", &limits).is_err());
}

/// The limit applies to skipped bytes, and a body over the limit keeps failing.
#[test]
fn the_body_bound_holds_for_skipped_runs() {
    let limits = Limits::default();
    let (mut connection, mut head) = (Connection::new(), Head::default());
    let step = connection.receive_head(HEAD.as_bytes(), &mut head, &limits);
    assert_eq!(
        step,
        Ok(Step::Request {
            head_bytes: HEAD.len()
        })
    );
    connection.set_body_limit(8).unwrap();
    let piece = connection.receive_body(b"6\r\n", &limits).unwrap();
    assert_eq!((piece.consumed, connection.body_run()), (3, 6));
    connection.skip_body(6).unwrap();
    assert!(!connection.body_ended());
    for _ in 0..2 {
        assert!(
            connection
                .receive_body(b"\r\n3\r\nabc\r\n0\r\n\r\n", &limits)
                .is_err()
        );
    }
    let mut out = Vec::new();
    let reject = onrush_proto::reject::Reject::new(413, "request body too large");
    connection.send_reject(reject, b"Sun, 06 Nov 1994 08:49:37 GMT", &mut out);
    assert!(out.starts_with(b"HTTP/1.1 413 "));
    assert_eq!(connection.finish_response(), After::LingeringClose);
}

/// A body over the limit keeps failing even if its chunk was received in one piece.
#[test]
fn a_body_over_its_bound_cannot_end_well() {
    let limits = Limits {
        body_bytes_max: 5,
        ..Limits::default()
    };
    let (mut connection, mut head) = (Connection::new(), Head::default());
    connection
        .receive_head(HEAD.as_bytes(), &mut head, &limits)
        .unwrap();
    assert_eq!(
        connection
            .receive_body(b"6\r\nabcdef", &limits)
            .unwrap_err()
            .status,
        413
    );
    assert!(connection.receive_body(b"\r\n0\r\n\r\n", &limits).is_err());
    assert!(!connection.body_ended());
}

#[test]
fn encoding_reads_back() {
    let limits = Limits::default();
    for len in [1, 9, 10, 15, 16, 255, 256, 4095, 65_536, 1_000_000] {
        let mut wire = Vec::new();
        encode_chunk_header(len, &mut wire);
        assert_eq!(wire, format!("{len:x}\r\n").as_bytes());
        wire.resize(wire.len() + len, b'x');
        wire.extend_from_slice(b"\r\n");
        encode_chunk_header(0, &mut wire);
        encode_end(b"T: v\r\n", &mut wire);
        let mut decoder = Decoder::new();
        let first = decoder.decode(&wire, &limits).unwrap();
        assert_eq!(first.data.len(), len);
        let last = decoder.decode(&wire[first.consumed..], &limits).unwrap();
        assert!(last.end);
        assert_eq!(first.consumed + last.consumed, wire.len());
        assert_eq!(decoder.take_trailers().as_deref(), Some(&b"T: v\r\n"[..]));
    }
    let mut largest = Vec::new();
    encode_chunk_header(usize::MAX, &mut largest);
    assert_eq!(largest, b"ffffffffffffffff\r\n");
}

/// An unread chunked body is discarded up to a limit, and the connection stays open.
#[test]
fn unread_chunks_are_drained() {
    let limits = Limits::default();
    for (wire, survives) in [("5\r\nhello\r\n0\r\n\r\n", true), ("10001\r\nxxx", false)] {
        let (mut connection, mut head) = (Connection::new(), Head::default());
        connection
            .receive_head(HEAD.as_bytes(), &mut head, &limits)
            .unwrap();
        let (mut out, date) = (Vec::new(), onrush_proto::date::format(0));
        connection.send_head(
            200,
            None,
            b"",
            ContentLength::Known(0),
            &date,
            false,
            &mut out,
        );
        assert_eq!(connection.finish_response(), After::DrainThenKeepAlive);
        let mut rest = wire.as_bytes();
        let outcome = loop {
            match connection.receive_body(rest, &limits) {
                Ok(piece) if piece.end => break true,
                Ok(piece) if piece.consumed == 0 => panic!("neither ended nor refused"),
                Ok(piece) => rest = &rest[piece.consumed..],
                Err(_) => break false,
            }
        };
        assert_eq!(outcome, survives);
        let step = connection
            .receive_head(crate::common::GOOD, &mut head, &limits)
            .unwrap();
        assert_eq!(step != Step::NeedMore, survives);
    }
}
