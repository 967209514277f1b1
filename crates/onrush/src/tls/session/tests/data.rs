//! Data, sizes of records, the end of a connection, and memory use.

use super::peer::{Pair, Server, TLS12, TLS13, client, server};
use super::raw::RawClient;
use crate::tls::session::Session;
use std::io;
use std::sync::Arc;

/// The bytes behind the header of each record.
fn lengths(mut records: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = records {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        lengths.push(length);
        records = &rest[length..];
    }
    lengths
}

#[test]
fn many_records_may_arrive_at_once() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for n in 0..200_u8 {
            let request = vec![n; usize::from(n) + 1];
            bytes.extend(pair.client_sends(&request));
            expected.extend(request);
        }
        // The last record is incomplete.
        let last = bytes.split_off(bytes.len() - 7);
        let delivered = pair.server.deliver(&bytes);
        assert_eq!(delivered.records_with_data, 199);
        let rest = pair.server.deliver(&last);
        assert_eq!([delivered.data, rest.data].concat(), expected);
    }
}

/// The overhead behind the header: the type and the tag in TLS 1.3, the explicit part of the nonce
/// and the tag in TLS 1.2 with AES-GCM.
#[test]
fn records_are_small_at_the_beginning_and_after_a_pause() {
    for (versions, overhead) in [(TLS12, 24), (TLS13, 17)] {
        let mut pair = Pair::connected(versions);
        let Server { session, out, .. } = &mut pair.server;
        let data = vec![1; 100_000];
        // 12 records of 1,370 bytes are the first 16 KiB.
        let (small, large) = ([1370 + overhead; 12], [16_384 + overhead; 5]);
        let first = [&small[..], &large, &[1640 + overhead]].concat();
        session.send(&data, 5000, out).unwrap();
        assert_eq!(lengths(out), first);
        assert_eq!(pair.deliver_to_client().unwrap(), data);

        let Server { session, out, .. } = &mut pair.server;
        session.send(&data[..20_000], 5999, out).unwrap();
        assert_eq!(lengths(out), [16_384 + overhead, 3616 + overhead]);
        assert_eq!(pair.deliver_to_client().unwrap(), data[..20_000]);

        let Server { session, out, .. } = &mut pair.server;
        session.send(&data, 6999, out).unwrap();
        assert_eq!(lengths(out), first, "after a second");
        assert_eq!(pair.deliver_to_client().unwrap(), data);
    }
}

#[test]
fn the_configuration_may_limit_records() {
    for versions in [TLS12, TLS13] {
        for (max, content) in [(64, 59), (2000, 1995), (16_389, 16_384)] {
            let mut config = server();
            config.max_fragment_size = Some(max);
            let mut pair = Pair::new(&Arc::new(client(versions)), config);
            pair.handshake();
            pair.server.send(&[1; 50_000]);
            let longest = lengths(&pair.server.out).into_iter().max().unwrap();
            let overhead = longest - content;
            assert!(overhead == 17 || overhead == 24, "{overhead}");
            assert_eq!(pair.deliver_to_client().unwrap(), vec![1; 50_000]);
        }
    }
}

#[test]
fn a_head_and_its_content_share_records() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let Server { session, out, .. } = &mut pair.server;
        session
            .send_both(b"HTTP/1.1 200 OK\r\n\r\n", b"Hello", 0, out)
            .unwrap();
        assert_eq!(lengths(out).len(), 1);
        assert_eq!(
            pair.deliver_to_client().unwrap(),
            b"HTTP/1.1 200 OK\r\n\r\nHello"
        );
        for (first, second) in [
            (0, 0),
            (0, 9),
            (9, 0),
            (1370, 1),
            (1369, 3),
            (20_000, 40_000),
        ] {
            let (first, second) = (vec![1; first], vec![2; second]);
            let Server { session, out, .. } = &mut pair.server;
            session.send_both(&first, &second, 0, out).unwrap();
            assert_eq!(pair.deliver_to_client().unwrap(), [first, second].concat());
        }
    }
}

#[test]
fn a_record_is_filled_in_place() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let file: Vec<u8> = (0..60_000_u32).map(|n| n as u8).collect();
        let (mut at, mut expected_room) = (0, 1370);
        while at < file.len() {
            let Server { session, out, .. } = &mut pair.server;
            let left = &file[at..];
            let sent = session.send_with(left.len(), 0, out, |out, room| {
                assert_eq!(room, left.len().min(expected_room));
                assert!(out.capacity() - out.len() >= room);
                out.extend_from_slice(&left[..room]);
                Ok(room)
            });
            at += sent.unwrap();
            if at >= 16_384 {
                expected_room = 16_384;
            }
        }
        assert_eq!(pair.deliver_to_client().unwrap(), file);
    }
}

/// A function that appends `bytes` and reports `reported`.
fn fill(bytes: &[u8], reported: usize) -> impl FnOnce(&mut Vec<u8>, usize) -> io::Result<usize> {
    move |out, room| {
        assert_eq!(room, 10);
        out.extend_from_slice(bytes);
        Ok(reported)
    }
}

#[test]
fn a_record_that_is_not_filled_leaves_no_trace() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let Server { session, out, .. } = &mut pair.server;
        assert_eq!(session.send_with(10, 0, out, fill(b"abc", 3)).unwrap(), 3);
        let nothing = session.send_with(0, 0, out, |_, _| panic!("there is no room"));
        assert_eq!(nothing.unwrap(), 0);
        let before = out.clone();
        assert_eq!(session.send_with(10, 0, out, fill(b"", 0)).unwrap(), 0);
        let failed = session.send_with(10, 0, out, |out, _| {
            out.push(1);
            Err(io::ErrorKind::NotFound.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        for (bytes, reported) in [(&b"01234567890"[..], 11), (b"0", 2), (b"0", 0), (b"", 1)] {
            let wrong = session.send_with(10, 0, out, fill(bytes, reported));
            assert_eq!(wrong.unwrap_err().kind(), io::ErrorKind::Other);
        }
        assert_eq!(*out, before);
        let full = session.send_with(10, 0, out, fill(b"0123456789", 10));
        assert_eq!(full.unwrap(), 10);
        assert_eq!(pair.deliver_to_client().unwrap(), b"abc0123456789");
        pair.round(b"request", b"response");

        // Records that were not its own are gone, so nothing more can be sent.
        let Server { session, out, .. } = &mut pair.server;
        session.send(b"last", 0, out).unwrap();
        let cut = session.send_with(10, 0, out, |out, _| {
            out.clear();
            Ok(0)
        });
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::Other);
        let error = session.send(b"more", 0, out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn the_server_closes() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let Server { session, out, .. } = &mut pair.server;
        session.send(b"last", 0, out).unwrap();
        session.close_notify(out);
        let sent = out.clone();
        session.close_notify(out);
        let error = session.send(b"more", 0, out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let error = session.send_with(9, 0, out, |_, _| Ok(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(*out, sent, "nothing follows close_notify");
        assert_eq!(pair.deliver_to_client().unwrap(), b"last");
        let mut rest = Vec::new();
        let read = io::Read::read_to_end(&mut pair.client.reader(), &mut rest);
        assert_eq!(read.unwrap(), 0, "the client knows that it has everything");
        // The other direction is still open.
        let bytes = pair.client_sends(b"still here");
        assert_eq!(pair.server.deliver(&bytes).data, b"still here");
    }
}

#[test]
fn the_client_closes() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let mut bytes = pair.client_sends(b"last");
        pair.client.send_close_notify();
        bytes.extend(pair.take_sent());
        let delivered = pair.server.deliver(&bytes);
        assert_eq!(delivered.data, b"last");
        assert!(delivered.is_closed);
        // What follows is ignored, even if it is not TLS.
        let after = pair.server.deliver(b"anything");
        assert!(after.is_closed && after.data.is_empty() && after.error.is_none());
        pair.server.send(b"response");
        pair.server.session.close_notify(&mut pair.server.out);
        assert_eq!(pair.deliver_to_client().unwrap(), b"response");
    }
}

/// The caller knows that a connection was truncated, because `Closed` is missing.
#[test]
fn a_truncated_connection_is_not_closed() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        let bytes = pair.client_sends(b"half of a request");
        let delivered = pair.server.deliver(&bytes[..bytes.len() - 1]);
        assert!(!delivered.is_closed && delivered.data.is_empty() && delivered.error.is_none());
        assert_eq!(pair.server.input.len(), bytes.len() - 1);
    }
}

#[test]
fn empty_and_padded_records_are_accepted() {
    let mut raw = RawClient::connected(TLS13);
    for (content, padding) in [(1, 0), (1, 100), (1, 16_383), (0, 0), (0, 1), (0, 16_384)] {
        let mut inner = vec![7; content];
        inner.push(23);
        inner.resize(content + 1 + padding, 0);
        let record = raw.record_13(&inner);
        let delivered = raw.server.deliver(&record);
        assert_eq!((delivered.data, delivered.error), (vec![7; content], None));
    }
    let record = raw.record_13(&[&[5; 16_384][..], &[23]].concat());
    assert_eq!(raw.server.deliver(&record).data, [5; 16_384]);
    let mut raw = RawClient::connected(TLS12);
    let record = raw.record_12(23, &[5; 16_384]);
    assert_eq!(raw.server.deliver(&record).data, [5; 16_384]);
    let record = raw.record_12(23, &[]);
    let delivered = raw.server.deliver(&record);
    assert!(delivered.error.is_none() && delivered.data.is_empty());
}

/// No allocation counter is possible here, because it needs unsafe code. The buffer of the caller
/// keeps its memory, and decryption has no other output than the input.
#[test]
fn a_warm_session_does_not_grow_its_buffers() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::connected(versions);
        pair.round(&[1; 200], &[2; 150]);
        let mut out = Vec::new();
        pair.server.session.send(&[2; 150], 0, &mut out).unwrap();
        let (address, capacity) = (out.as_ptr(), out.capacity());
        pair.server.out.append(&mut out);
        pair.deliver_to_client().unwrap();
        for _ in 0..100 {
            let mut bytes = pair.client_sends(&[1; 200]);
            let received = pair.server.session.receive(&mut bytes, &mut out);
            assert!(matches!(
                received,
                crate::tls::session::Received::Data { .. }
            ));
            pair.server.session.send(&[2; 150], 0, &mut out).unwrap();
            assert_eq!((out.as_ptr(), out.capacity()), (address, capacity));
            pair.server.out.extend_from_slice(&out);
            out.clear();
            assert_eq!(pair.deliver_to_client().unwrap(), [2; 150]);
        }
    }
}

#[test]
fn a_session_moves_between_threads_and_shows_no_keys() {
    fn is_send<T: Send>(_: &T) {}
    let pair = Pair::connected(TLS13);
    is_send(&pair.server.session);
    let text = format!("{:?}", pair.server.session);
    // Keys and nonces would be lists of numbers.
    assert!(text.contains("Tls13") && !text.contains('['), "{text}");
    let new = Session::new(Arc::new(server())).unwrap();
    assert!(format!("{new:?}").contains("Handshake"));
}
