//! Key updates, and limits of what a client may repeat.

use super::peer::{Pair, Server, TLS12, TLS13};
use super::raw::RawClient;
use crate::tls::session::SessionError;
use rustls::AlertDescription;

#[test]
fn the_client_updates_its_keys() {
    let mut pair = Pair::connected(TLS13);
    for _ in 0..3 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.round(b"with the next key", b"with the next key as well");
    }
    // The client asked for an update of ours, which preceded the response.
    pair.client.refresh_traffic_keys().unwrap();
    let bytes = pair.take_sent();
    let delivered = pair.server.deliver(&bytes);
    assert!(delivered.error.is_none() && delivered.data.is_empty());
    assert_eq!(
        pair.server.out.len(),
        5 + 5 + 1 + 16,
        "one key update in return"
    );
    assert_eq!(pair.deliver_to_client().unwrap(), b"");
    assert_eq!(pair.take_sent(), b"", "which asks for nothing");
    pair.round(b"request", b"response");
}

#[test]
fn an_update_that_asks_for_nothing_causes_none() {
    let mut raw = RawClient::connected(TLS13);
    let record = raw.record_13(&[24, 0, 0, 1, 0, 22]);
    assert_eq!(raw.server.deliver(&record).error, None);
    assert!(raw.server.out.is_empty());
    // The old key is not valid any more. The alert has our key, which is still the first.
    let record = raw.record_13(b"x\x17");
    raw.expect_alert(&record, AlertDescription::BadRecordMac);
}

#[test]
fn a_key_update_may_span_records() {
    for at in 1..5 {
        let mut raw = RawClient::connected(TLS13);
        let message = [24, 0, 0, 1, 1];
        let first = raw.record(22, &message[..at]);
        let second = raw.record(22, &message[at..]);
        assert_eq!(raw.server.deliver(&first).error, None);
        assert!(raw.server.out.is_empty());
        assert_eq!(raw.server.deliver(&second).error, None);
        assert_eq!(raw.next_sent(), Some((22, vec![24, 0, 0, 1, 0])));
    }
}

/// After `close_notify`, a key update causes none of ours, but takes effect.
#[test]
fn after_the_end_our_key_is_not_updated() {
    let mut pair = Pair::connected(TLS13);
    pair.server.session.close_notify(&mut pair.server.out);
    pair.deliver_to_client().unwrap();
    pair.client.refresh_traffic_keys().unwrap();
    let bytes = pair.client_sends(b"with the next key");
    assert_eq!(pair.server.deliver(&bytes).data, b"with the next key");
    assert!(pair.server.out.is_empty());
}

#[test]
fn key_updates_without_data_are_limited() {
    let mut pair = Pair::connected(TLS13);
    for _ in 0..2 {
        for _ in 0..32 {
            pair.client.refresh_traffic_keys().unwrap();
        }
        let bytes = pair.client_sends(b"data");
        assert_eq!(pair.server.deliver(&bytes).data, b"data");
        pair.server.send(b"data");
        assert_eq!(pair.deliver_to_client().unwrap(), b"data");
    }
    for _ in 0..33 {
        pair.client.refresh_traffic_keys().unwrap();
    }
    let bytes = pair.take_sent();
    let alert = AlertDescription::UnexpectedMessage;
    let reason = "too many key updates";
    let error = pair.server.deliver(&bytes).error;
    assert_eq!(error, Some(SessionError::Protocol { alert, reason }));
    assert_eq!(
        pair.deliver_to_client(),
        Err(rustls::Error::AlertReceived(alert))
    );
}

/// With at most 8 records per key, the client accepts hundreds of them, and updates its key each
/// time as well.
#[test]
fn our_key_is_updated_before_its_limit() {
    let mut pair = Pair::connected(TLS13);
    pair.server.session.set_key_limit(8);
    for n in 0..100_u8 {
        let (request, response) = (vec![n; 20], vec![n; 5000]);
        let Server { session, out, .. } = &mut pair.server;
        match n % 2 {
            0 => session.send(&response, 0, out).unwrap(),
            _ => {
                let mut sent = 0;
                while sent < response.len() {
                    let fill = |out: &mut Vec<u8>, room| {
                        out.resize(out.len() + room, n);
                        Ok(room)
                    };
                    sent += session
                        .send_with(response.len() - sent, 0, out, fill)
                        .unwrap();
                }
            }
        }
        assert_eq!(pair.deliver_to_client().unwrap(), response);
        let bytes = pair.client_sends(&request);
        let delivered = pair.server.deliver(&bytes);
        assert_eq!((delivered.data, delivered.error), (request, None));
    }
}

#[test]
fn the_update_is_a_request_and_comes_first() {
    let mut raw = RawClient::connected(TLS13);
    // All 4 records of a key are reserved, so even the first data need another key.
    raw.server.session.set_key_limit(4);
    raw.server.send(b"data");
    assert_eq!(raw.next_sent(), Some((22, vec![24, 0, 0, 1, 1])));
    assert!(!raw.server.out.is_empty(), "the data follow");
}

#[test]
fn tls_1_2_ends_before_the_limit() {
    let mut pair = Pair::connected(TLS12);
    assert!(!pair.server.session.is_worn());
    pair.server.session.set_key_limit(8);
    assert!(pair.server.session.is_worn());
    let mut sent = Vec::<u8>::new();
    let error = loop {
        let Server { session, out, .. } = &mut pair.server;
        match session.send(b"data", 0, out) {
            Ok(()) => sent.extend(b"data"),
            Err(error) => break error,
        }
        assert!(sent.len() < 100, "there is no limit");
    };
    assert_eq!(error.kind(), std::io::ErrorKind::Other);
    // The Finished message was the first of 4 records; 4 are reserved.
    assert_eq!(sent.len(), 3 * 4);
    assert_eq!(pair.deliver_to_client().unwrap(), sent);
    // What the client has received may be a part of a response.
    let state = pair.client.process_new_packets().unwrap();
    assert!(!state.peer_has_closed());
    // TLS 1.3 replaces its key instead.
    let mut pair = Pair::connected(TLS13);
    pair.server.session.set_key_limit(8);
    assert!(!pair.server.session.is_worn());
}

#[test]
fn empty_records_are_limited() {
    for versions in [TLS12, TLS13] {
        let mut raw = RawClient::connected(versions);
        for _ in 0..2 {
            let mut records: Vec<u8> = (0..32).flat_map(|_| raw.record(23, &[])).collect();
            records.extend(raw.record(23, b"x"));
            let delivered = raw.server.deliver(&records);
            assert_eq!((delivered.data, delivered.error), (b"x".to_vec(), None));
        }
        let records: Vec<u8> = (0..33).flat_map(|_| raw.record(23, &[])).collect();
        raw.expect_alert(&records, AlertDescription::UnexpectedMessage);
    }
}

/// TLS 1.3 has one warning, `user_canceled`. TLS 1.2 may have any.
#[test]
fn warnings_are_limited() {
    for (versions, warning) in [
        (TLS12, [1, 90]),
        (TLS12, [1, 112]),
        (TLS13, [1, 90]),
        (TLS13, [2, 90]),
    ] {
        let mut raw = RawClient::connected(versions);
        for _ in 0..4 {
            let record = raw.record(21, &warning);
            assert_eq!(raw.server.deliver(&record).error, None);
        }
        let record = raw.record(23, b"x");
        assert_eq!(raw.server.deliver(&record).data, b"x");
        assert!(raw.server.out.is_empty());
        let record = raw.record(21, &warning);
        raw.expect_alert(&record, AlertDescription::UnexpectedMessage);
    }
}

/// The first attempt has a warning in return, the second ends the connection.
#[test]
fn renegotiation_is_refused() {
    let mut raw = RawClient::connected(TLS12);
    let mut hello = vec![1, 0, 1, 0];
    hello.extend([0; 256]);
    // In two records, so that the message is longer than what is kept of it.
    let first = raw.record(22, &hello[..100]);
    let second = raw.record(22, &hello[100..]);
    assert_eq!(raw.server.deliver(&first).error, None);
    assert!(raw.server.out.is_empty());
    assert_eq!(raw.server.deliver(&second).error, None);
    let warning = AlertDescription::NoRenegotiation.into();
    assert_eq!(raw.next_sent(), Some((21, vec![1, warning])));
    let record = raw.record(23, b"x");
    assert_eq!(raw.server.deliver(&record).data, b"x");
    let record = raw.record(22, &hello);
    raw.expect_alert(&record, AlertDescription::UnexpectedMessage);
}
