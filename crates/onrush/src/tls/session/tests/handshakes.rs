//! Handshakes: versions, suites, split and fragmented messages, resumption, certificates.

use super::peer::{
    CERTIFICATES, Pair, TLS12, TLS13, client, client_with, provider, provider_of, server,
    server_with, version_of,
};
use crate::tls::TlsConfig;
use crate::tls::session::{Received, Session, SessionError};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, CipherSuite, ProtocolVersion, SupportedCipherSuite};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
            for byte in pair.take_sent() {
                let delivered = pair.server.deliver(&[byte]);
                assert_eq!(delivered.error, None);
                is_handshaken |= delivered.is_handshaken;
            }
            pair.deliver_to_client().unwrap();
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
            let mut flight = pair.take_sent();
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
            pair.deliver_to_client().unwrap();
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
            let hello = pair.take_sent();
            let delivered = pair.server.deliver(&fragments(&hello, bytes));
            assert_eq!(delivered.error, None);
            pair.deliver_to_client().unwrap();
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
            std::slice::from_ref(&CERTIFICATES.client.0)
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
        let hello = pair.take_sent();
        assert_eq!(pair.server.deliver(&hello).error, None);
        pair.deliver_to_client().unwrap();
        let flight = pair.take_sent();
        let error = pair.server.deliver(&flight).error;
        let none = rustls::Error::NoCertificatesPresented;
        assert_eq!(error, Some(SessionError::Handshake(none)));
        assert_eq!(
            pair.deliver_to_client(),
            Err(rustls::Error::AlertReceived(alert))
        );
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
                let flight = pair.take_sent();
                assert_eq!(pair.server.deliver(&flight).error, None);
                pair.deliver_to_client().unwrap();
            }
            // The server of TLS 1.2 has the last word in a full handshake.
            let has_finished = versions[0].version == ProtocolVersion::TLSv1_3 || is_resumed;
            pair.client.writer().write_all(b"one").unwrap();
            let mut flight = pair.take_sent();
            pair.client.writer().write_all(b"two").unwrap();
            flight.extend(pair.take_sent());
            let delivered = pair.server.deliver(&flight);
            assert_eq!(delivered.is_handshaken, has_finished);
            assert_eq!(delivered.data, b"onetwo");
            assert_eq!(delivered.records_with_data, 2);
            assert_eq!(
                pair.server.session.take_parts().unwrap().is_resumed,
                is_resumed
            );
            pair.deliver_to_client().unwrap();
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
                std::slice::from_ref(&CERTIFICATES.client.0)
            );
        }
    }
}

/// A clock that the test sets.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

#[test]
fn an_expired_client_certificate_cannot_resume() {
    // The end of the certificates of rcgen.
    let not_after = rcgen::date_time_ymd(4096, 1, 1).unix_timestamp();
    let not_after = u64::try_from(not_after).unwrap();
    for versions in [TLS12, TLS13] {
        for has_ticketer in [false, true] {
            let clock = Arc::new(Clock::default());
            let config = Arc::new(client_with(provider(), versions, true));
            let mut server = server_with(provider(), false, true);
            server.time_provider = clock.clone();
            if has_ticketer {
                server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
            }
            clock.0.store(not_after, Ordering::Relaxed);
            for is_resumed in [false, true, true] {
                let mut pair = Pair::new(&config, server.clone());
                pair.handshake();
                assert_eq!(pair.parts().is_resumed, is_resumed);
            }
            clock.0.store(not_after + 1, Ordering::Relaxed);
            let mut pair = Pair::new(&config, server.clone());
            let hello = pair.take_sent();
            let error = pair.server.deliver(&hello).error.unwrap();
            assert!(error.is_about_client_certificate(), "{error}");
            assert!(error.to_string().contains(" expired at 4096-"), "{error}");
            let alert = AlertDescription::CertificateExpired;
            // No ticket.
            assert_eq!(pair.server.out, [21, 3, 3, 0, 2, 2, alert.into()]);
            assert_eq!(
                pair.deliver_to_client(),
                Err(rustls::Error::AlertReceived(alert))
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
        let hello = pair.take_sent();
        assert!(pair.server.deliver(&hello).error.is_some());
        let alert = AlertDescription::NoApplicationProtocol;
        assert_eq!(
            pair.deliver_to_client(),
            Err(rustls::Error::AlertReceived(alert))
        );
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

/// RFC 8446 §4.1.1: the server selects the suite. See `suites` for the order.
#[test]
fn the_server_selects_the_suite_unless_the_client_prefers_chacha20() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let config = TlsConfig::from_pem(&chain, &key).unwrap();
    // The order survives a replacement, which keeps the keys of tickets.
    config.replace(TlsConfig::from_pem(&chain, &key).unwrap());
    let selected = |versions, first: &str| {
        let mut provider = provider();
        let name = |suite: &SupportedCipherSuite| format!("{:?}", suite.suite());
        (provider.cipher_suites).sort_by_key(|suite| !name(suite).contains(first));
        let client = client_with(provider, versions, false);
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let (mut hello, mut out) = (Vec::new(), Vec::new());
        client.write_tls(&mut hello).unwrap();
        let mut session = Session::accept(&config).unwrap();
        let handled = session.receive(&mut hello, &mut out);
        assert!(matches!(handled, Received::Handled { .. }), "{handled:?}");
        client.read_tls(&mut &out[..]).unwrap();
        // It does not trust the certificate.
        let _ = client.process_new_packets();
        client.negotiated_cipher_suite().unwrap().suite()
    };
    for first in ["AES_256", "AES_128"] {
        assert_eq!(
            selected(TLS13, first),
            CipherSuite::TLS13_AES_128_GCM_SHA256
        );
        assert_eq!(
            selected(TLS12, first),
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        );
    }
    assert_eq!(
        selected(TLS13, "CHACHA20"),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
    );
    assert_eq!(
        selected(TLS12, "CHACHA20"),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
    );
}
