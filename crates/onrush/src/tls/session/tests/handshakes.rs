//! Handshakes: versions, suites, split and fragmented messages, resumption, certificates, refusals.

use super::peer::{
    CERTIFICATES, Pair, Server, TLS12, TLS13, client, client_with, provider, provider_of, server,
    server_with, version_of,
};
use crate::tls::session::{Received, Session, SessionError};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::{AlertDescription, CipherSuite, ProtocolVersion, ServerConfig, SupportedCipherSuite};
use std::io::Write;
use std::sync::Arc;

/// Whether a suite of TLS 1.2 needs a certificate with an RSA key.
fn needs_rsa(suite: SupportedCipherSuite) -> bool {
    format!("{:?}", suite.suite()).contains("_RSA_")
}

#[test]
fn every_suite_carries_data_both_ways() {
    for &suite in aws_lc_rs::ALL_CIPHER_SUITES {
        let versions = match suite.tls13() {
            Some(_) => TLS13,
            None => TLS12,
        };
        let client = client_with(provider_of(suite), versions, false);
        let server = server_with(provider(), needs_rsa(suite), false);
        let mut pair = Pair::new(&Arc::new(client), server);
        pair.handshake();
        assert_eq!(pair.parts().cipher_suite, suite.suite());
        assert_eq!(pair.parts().version, version_of(versions));
        for bytes in [1, 100, 1370, 1371, 16_384, 16_385, 40_000] {
            let data: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
            pair.round(&data, &data);
        }
    }
}

#[test]
fn records_arrive_byte_by_byte() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::new(&Arc::new(client(versions)), server());
        let mut is_handshaken = false;
        while pair.client.is_handshaking() || pair.client.wants_write() {
            for byte in pair.from_client() {
                let delivered = pair.server.deliver(&[byte]);
                assert_eq!(delivered.error, None);
                is_handshaken |= delivered.is_handshaken;
            }
            pair.to_client().unwrap();
        }
        assert!(is_handshaken);
        let mut data = Vec::new();
        for byte in pair.client_sends(b"GET / HTTP/1.1\r\n\r\n") {
            data.extend(pair.server.deliver(&[byte]).data);
        }
        assert_eq!(data, b"GET / HTTP/1.1\r\n\r\n");
    }
}

/// Each flight is split at each byte. The session may not change an incomplete record, so one
/// handshake tests all places; [`Server::deliver`] checks that.
#[test]
fn an_incomplete_record_has_its_size() {
    for versions in [TLS12, TLS13] {
        let mut pair = Pair::new(&Arc::new(client(versions)), server());
        while pair.client.is_handshaking() || pair.client.wants_write() {
            let mut flight = pair.from_client();
            if pair.server.session.is_handshaking() && !flight.is_empty() {
                let whole = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
                for end in 0..whole {
                    let before = flight[..end].to_vec();
                    let mut out = Vec::new();
                    match pair.server.session.receive(&mut flight[..end], &mut out) {
                        Received::NeedMore { record_bytes } => {
                            let expected = match end {
                                0 => 1..=5,
                                1..5 => 5..=5,
                                _ => whole..=whole,
                            };
                            assert!(expected.contains(&record_bytes), "{record_bytes} at {end}");
                        }
                        other => panic!("{other:?} at {end}"),
                    }
                    assert_eq!((&flight[..end], &out[..]), (&before[..], &[][..]));
                }
            }
            assert_eq!(pair.server.deliver(&flight).error, None);
            pair.to_client().unwrap();
        }
        pair.round(b"request", b"response");
    }
}

/// Divides the content of a plaintext record among several.
fn fragments(record: &[u8], bytes: usize) -> Vec<u8> {
    let mut records = Vec::new();
    for fragment in record[5..].chunks(bytes) {
        records.extend_from_slice(&record[..3]);
        records.extend((fragment.len() as u16).to_be_bytes());
        records.extend_from_slice(fragment);
    }
    records
}

#[test]
fn a_client_hello_may_span_records() {
    for versions in [TLS12, TLS13] {
        for bytes in [1, 2, 3, 5, 64, 100] {
            let mut pair = Pair::new(&Arc::new(client(versions)), server());
            let hello = pair.from_client();
            let delivered = pair.server.deliver(&fragments(&hello, bytes));
            assert_eq!(delivered.error, None);
            pair.to_client().unwrap();
            pair.handshake();
            assert_eq!(pair.parts().server_name.as_deref(), Some("localhost"));
            pair.round(b"request", b"response");
        }
    }
}

/// The client's Certificate message is in many records, protected ones in TLS 1.3.
#[test]
fn a_client_certificate_may_span_records() {
    for versions in [TLS12, TLS13] {
        let mut config = client_with(provider(), versions, true);
        config.max_fragment_size = Some(64);
        let mut pair = Pair::new(&Arc::new(config), server_with(provider(), false, true));
        pair.handshake();
        assert_eq!(
            pair.parts().peer_certificates,
            [CERTIFICATES.client.0.clone()]
        );
        pair.round(&[7; 1000], b"response");
    }
}

#[test]
fn a_missing_client_certificate_is_refused() {
    for (versions, alert) in [
        (TLS12, AlertDescription::CertificateRequired),
        (TLS13, AlertDescription::CertificateRequired),
    ] {
        let mut pair = Pair::new(
            &Arc::new(client(versions)),
            server_with(provider(), false, true),
        );
        let hello = pair.from_client();
        assert_eq!(pair.server.deliver(&hello).error, None);
        pair.to_client().unwrap();
        let flight = pair.from_client();
        let error = pair.server.deliver(&flight).error;
        let none = rustls::Error::NoCertificatesPresented;
        assert_eq!(error, Some(SessionError::Handshake(none)));
        assert_eq!(pair.to_client(), Err(rustls::Error::AlertReceived(alert)));
    }
}

/// Data follows the client's Finished in the same bytes.
#[test]
fn data_may_follow_the_last_message_at_once() {
    for versions in [TLS12, TLS13] {
        for is_resumed in [false, true] {
            let (config, server) = (Arc::new(client(versions)), server());
            if is_resumed {
                Pair::new(&config, server.clone()).handshake();
            }
            let mut pair = Pair::new(&config, server);
            while pair.client.is_handshaking() {
                let flight = pair.from_client();
                assert_eq!(pair.server.deliver(&flight).error, None);
                pair.to_client().unwrap();
            }
            // The server of TLS 1.2 has the last word in a full handshake.
            let has_finished = versions[0].version == ProtocolVersion::TLSv1_3 || is_resumed;
            pair.client.writer().write_all(b"one").unwrap();
            let mut flight = pair.from_client();
            pair.client.writer().write_all(b"two").unwrap();
            flight.extend(pair.from_client());
            let delivered = pair.server.deliver(&flight);
            assert_eq!(delivered.is_handshaken, has_finished);
            assert_eq!(delivered.data, b"onetwo");
            assert_eq!(delivered.records_with_data, 2);
            assert_eq!(
                pair.server.session.take_parts().unwrap().is_resumed,
                is_resumed
            );
            pair.to_client().unwrap();
            pair.round(b"request", b"response");
        }
    }
}

#[test]
fn sessions_are_resumed() {
    for versions in [TLS12, TLS13] {
        for has_ticketer in [false, true] {
            let config = Arc::new(client(versions));
            let mut server = server();
            if has_ticketer {
                server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
            }
            for is_resumed in [false, true, true] {
                let mut pair = Pair::new(&config, server.clone());
                pair.handshake();
                assert_eq!(pair.parts().is_resumed, is_resumed);
                assert_eq!(pair.parts().server_name.as_deref(), Some("localhost"));
                pair.round(b"request", b"response");
            }
        }
    }
}

#[test]
fn a_resumed_session_has_the_client_certificate() {
    for versions in [TLS12, TLS13] {
        let config = Arc::new(client_with(provider(), versions, true));
        let server = server_with(provider(), false, true);
        for is_resumed in [false, true] {
            let mut pair = Pair::new(&config, server.clone());
            pair.handshake();
            assert_eq!(pair.parts().is_resumed, is_resumed);
            assert_eq!(
                pair.parts().peer_certificates,
                [CERTIFICATES.client.0.clone()]
            );
        }
    }
}

#[test]
fn a_hello_retry_request_is_answered() {
    let mut of_client = provider();
    of_client.kx_groups = vec![kx_group::SECP384R1, kx_group::X25519];
    let mut of_server = provider();
    of_server.kx_groups = vec![kx_group::X25519];
    let client = client_with(of_client, TLS13, false);
    let mut pair = Pair::new(&Arc::new(client), server_with(of_server, false, false));
    pair.handshake();
    let retry = rustls::HandshakeKind::FullWithHelloRetryRequest;
    assert_eq!(pair.client.handshake_kind(), Some(retry));
    assert_eq!(pair.parts().server_name.as_deref(), Some("localhost"));
    pair.round(b"request", b"response");
}

#[test]
fn the_protocol_is_negotiated() {
    for versions in [TLS12, TLS13] {
        let mut config = client(versions);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut pair = Pair::new(&Arc::new(config), server());
        pair.handshake();
        assert_eq!(pair.parts().alpn.as_deref(), Some(&b"http/1.1"[..]));
        assert_eq!(pair.client.alpn_protocol(), Some(&b"http/1.1"[..]));

        let mut config = client(versions);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let mut pair = Pair::new(&Arc::new(config), server());
        let hello = pair.from_client();
        assert!(pair.server.deliver(&hello).error.is_some());
        let alert = AlertDescription::NoApplicationProtocol;
        assert_eq!(pair.to_client(), Err(rustls::Error::AlertReceived(alert)));
    }
}

/// A configuration that accepts early data, and a client with a ticket for it.
fn early_data() -> (Pair, ServerConfig) {
    let mut server = server();
    server.max_early_data_size = 1024;
    let mut config = client(TLS13);
    config.enable_early_data = true;
    let config = Arc::new(config);
    Pair::new(&config, server.clone()).handshake();
    let mut pair = Pair::new(&config, server.clone());
    pair.client
        .early_data()
        .unwrap()
        .write_all(b"GET /early")
        .unwrap();
    pair.client
        .early_data()
        .unwrap()
        .write_all(b" HTTP/1.1")
        .unwrap();
    (pair, server)
}

#[test]
fn early_data_is_marked() {
    let (mut pair, _) = early_data();
    let first = pair.from_client();
    let delivered = pair.server.deliver(&first);
    assert_eq!(delivered.early_data, b"GET /early HTTP/1.1");
    assert_eq!(delivered.data, b"");
    assert!(pair.server.session.is_handshaking());
    // Before the handshake is complete there is no key to send with.
    let Server { session, out, .. } = &mut pair.server;
    let sent = out.clone();
    assert_eq!(
        session.send(b"x", 0, out).unwrap_err().kind(),
        std::io::ErrorKind::BrokenPipe
    );
    session.close_notify(out);
    assert_eq!(*out, sent);
    let rest = pair.handshake();
    assert_eq!(rest.early_data, b"");
    assert!(pair.client.is_early_data_accepted() && pair.parts().is_resumed);
    pair.round(b"request", b"response");
}

#[test]
fn too_much_early_data_is_refused() {
    let (mut pair, _) = early_data();
    // The session of another configuration with the same tickets accepts less than the client
    // believes.
    let mut smaller = early_data().1;
    smaller.max_early_data_size = 4;
    let (mut again, server) = early_data();
    smaller.session_storage = server.session_storage;
    again.server = Server::new(smaller);
    let first = again.from_client();
    assert!(again.server.deliver(&first).error.is_some());
    let alert = AlertDescription::UnexpectedMessage;
    assert_eq!(again.to_client(), Err(rustls::Error::AlertReceived(alert)));
    pair.handshake();
}

/// A server without the ticket skips what it cannot decrypt (RFC 8446 §4.2.10).
#[test]
fn rejected_early_data_is_skipped() {
    for max_early_data_size in [0, 1024] {
        let (mut pair, _) = early_data();
        let mut other = server();
        other.max_early_data_size = max_early_data_size;
        pair.server = Server::new(other);
        let delivered = pair.handshake();
        assert_eq!((delivered.early_data, delivered.data), (vec![], vec![]));
        assert!(!pair.client.is_early_data_accepted());
        pair.round(b"request", b"response");
    }
}

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
        assert_eq!(out, []);
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
    assert_eq!(server.out, []);
}

/// After the server's first messages, alerts are encrypted, and the client can read them.
#[test]
fn a_bad_finished_is_refused() {
    for (versions, alert) in [
        (TLS12, AlertDescription::BadRecordMac),
        (TLS13, AlertDescription::BadRecordMac),
    ] {
        let mut pair = Pair::new(&Arc::new(client(versions)), server());
        let hello = pair.from_client();
        pair.server.deliver(&hello);
        pair.to_client().unwrap();
        let mut flight = pair.from_client();
        *flight.last_mut().unwrap() ^= 1;
        assert!(pair.server.deliver(&flight).error.is_some());
        assert_eq!(pair.to_client(), Err(rustls::Error::AlertReceived(alert)));
    }
}

#[test]
fn secret_extraction_is_required() {
    let mut config = server();
    config.enable_secret_extraction = false;
    let error = Session::new(Arc::new(config)).unwrap_err();
    assert!(error.to_string().contains("enable_secret_extraction"));
    let mut config = server();
    config.max_fragment_size = Some(3);
    let error = Session::new(Arc::new(config)).unwrap_err();
    assert_eq!(error, rustls::Error::BadMaxFragmentSize);
}

#[test]
fn the_preferred_suite_and_version_are_known() {
    let mut pair = Pair::new(&Arc::new(client(rustls::ALL_VERSIONS)), server());
    pair.handshake();
    assert_eq!(pair.parts().version, ProtocolVersion::TLSv1_3);
    assert_eq!(
        pair.parts().cipher_suite,
        CipherSuite::TLS13_AES_256_GCM_SHA384
    );
    assert_eq!(pair.parts().alpn, None);
    assert!(pair.parts().peer_certificates.is_empty());
    assert!(pair.server.session.take_parts().is_none());
}
