//! Handshakes that fail, and connections that are not TLS.

use super::peer::{Pair, Server, TLS12, TLS13, client, server};
use crate::tls::session::{Received, Session, SessionError};
use rustls::AlertDescription;
use std::sync::Arc;

#[test]
fn plain_http_is_recognised() {
    for request in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"POST ",
        b"OPTIONS * HTTP/1.1",
        b"PRI * HTTP",
    ] {
        let mut session = Session::new(Arc::new(server())).unwrap();
        let mut out = Vec::new();
        let method = request.iter().position(|&byte| byte == b' ').unwrap();
        for end in 0..=method {
            let received = session.receive(&mut request[..end].to_vec(), &mut out);
            assert!(matches!(received, Received::NeedMore { record_bytes } if record_bytes > end));
        }
        let received = session.receive(&mut request.to_vec(), &mut out);
        assert!(matches!(received, Received::PlainHttp));
        assert!(out.is_empty());
    }
}

/// What is not TLS ends with the alert of the RFC, in plaintext.
#[test]
fn bad_first_records_are_refused() {
    let hello = |header: [u8; 5]| [&header[..], &[0; 64]].concat();
    let cases = [
        // SSL 2, and other protocols.
        (
            vec![0x80, 0x2e, 1, 3, 1, 0, 0x15],
            AlertDescription::UnexpectedMessage,
        ),
        (
            b"SSH-2.0-client\r\n".to_vec(),
            AlertDescription::UnexpectedMessage,
        ),
        (vec![0; 16], AlertDescription::UnexpectedMessage),
        (hello([24, 3, 3, 0, 8]), AlertDescription::UnexpectedMessage),
        (hello([22, 2, 0, 0, 8]), AlertDescription::ProtocolVersion),
        (hello([22, 3, 1, 0x40, 1]), AlertDescription::RecordOverflow),
        (hello([22, 3, 1, 0, 0]), AlertDescription::UnexpectedMessage),
        (
            hello([22, 3, 1, 0, 64]),
            AlertDescription::UnexpectedMessage,
        ),
        (
            hello([23, 3, 3, 0, 64]),
            AlertDescription::UnexpectedMessage,
        ),
        // An alert that interrupts a message, and an empty one.
        (
            vec![22, 3, 1, 0, 4, 1, 0, 0, 9, 21, 3, 3, 0, 2, 1, 0],
            AlertDescription::UnexpectedMessage,
        ),
        (vec![21, 3, 3, 0, 1, 1], AlertDescription::DecodeError),
        // A message of 16 MB.
        (
            vec![22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff],
            AlertDescription::DecodeError,
        ),
    ];
    for (bytes, alert) in cases {
        let mut server = Server::new(server());
        let delivered = server.deliver(&bytes);
        assert!(delivered.error.is_some(), "{bytes:?}");
        let expected = [21, 3, 3, 0, 2, 2, alert.into()];
        assert_eq!(server.out, expected, "{bytes:?}: {:?}", delivered.error);
        // Nothing follows the alert.
        assert_eq!(server.deliver(&bytes).error, delivered.error);
        server.session.close_notify(&mut server.out);
        assert_eq!(server.out, expected);
    }
}

/// In TLS 1.2 the first messages of the server are not encrypted, and neither are alerts behind
/// them. In TLS 1.3 they are, and rustls sends them.
#[test]
fn alerts_are_encrypted_as_soon_as_our_records_are() {
    let cases = [
        (&[0x80, 0, 0, 0, 0][..], AlertDescription::UnexpectedMessage),
        (&[22, 3, 3, 0x40, 1], AlertDescription::RecordOverflow),
        (
            &[22, 3, 3, 0, 1, 16, 21, 3, 3, 0, 2, 1, 0],
            AlertDescription::UnexpectedMessage,
        ),
    ];
    for (bytes, alert) in cases {
        let mut pair = Pair::new(&Arc::new(client(TLS12)), server());
        let hello = pair.take_sent();
        assert_eq!(pair.server.deliver(&hello).error, None);
        pair.deliver_to_client().unwrap();
        assert!(pair.server.deliver(bytes).error.is_some());
        assert_eq!(pair.server.out, [21, 3, 3, 0, 2, 2, alert.into()]);
        let received = pair.deliver_to_client();
        assert_eq!(received, Err(rustls::Error::AlertReceived(alert)));
    }
    let mut pair = Pair::new(&Arc::new(client(TLS13)), server());
    let hello = pair.take_sent();
    assert_eq!(pair.server.deliver(&hello).error, None);
    pair.deliver_to_client().unwrap();
    assert!(pair.server.deliver(&[0x80, 0, 0, 0, 0]).error.is_some());
    let alert = AlertDescription::DecodeError;
    assert_eq!(
        pair.deliver_to_client(),
        Err(rustls::Error::AlertReceived(alert))
    );
}

/// A message in many small records does not use memory without end.
#[test]
fn held_records_are_limited() {
    let mut server = Server::new(server());
    let mut hello = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xf0];
    for _ in 0..16_384 {
        hello.extend([22, 3, 1, 0, 1, 0]);
    }
    let error = server.deliver(&hello).error;
    let expected = rustls::InvalidMessage::HandshakePayloadTooLarge;
    assert_eq!(error, Some(SessionError::Handshake(expected.into())));
    assert_eq!(
        server.out,
        [21, 3, 3, 0, 2, 2, AlertDescription::DecodeError.into()]
    );
}

/// An alert of the client ends a handshake, without an alert in return.
#[test]
fn an_alert_ends_a_handshake() {
    let mut server = Server::new(server());
    let error = server.deliver(&[21, 3, 3, 0, 2, 2, 40]).error;
    let alert = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
    assert_eq!(error, Some(SessionError::Handshake(alert)));
    assert!(server.out.is_empty());
}

/// After the server's first messages, alerts are encrypted, and the client can read them.
#[test]
fn a_bad_finished_is_refused() {
    for (versions, alert) in [
        (TLS12, AlertDescription::BadRecordMac),
        (TLS13, AlertDescription::BadRecordMac),
    ] {
        let mut pair = Pair::new(&Arc::new(client(versions)), server());
        let hello = pair.take_sent();
        pair.server.deliver(&hello);
        pair.deliver_to_client().unwrap();
        let mut flight = pair.take_sent();
        *flight.last_mut().unwrap() ^= 1;
        assert!(pair.server.deliver(&flight).error.is_some());
        assert_eq!(
            pair.deliver_to_client(),
            Err(rustls::Error::AlertReceived(alert))
        );
    }
}
