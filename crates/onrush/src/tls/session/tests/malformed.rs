//! Records that break a rule, and the alert that each rule requires.

use super::peer::{TLS12, TLS13};
use super::raw::RawClient;
use crate::tls::session::SessionError;
use rustls::AlertDescription::{
    self, BadRecordMac, DecodeError, IllegalParameter, ProtocolVersion, RecordOverflow,
    UnexpectedMessage,
};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A header and a body that is not encrypted.
fn plain(kind: u8, version: [u8; 2], body: &[u8]) -> Vec<u8> {
    let mut record = vec![kind, version[0], version[1]];
    record.extend((body.len() as u16).to_be_bytes());
    record.extend(body);
    record
}

#[test]
fn bad_headers_are_refused() {
    for (versions, length_max) in [(TLS12, 16_384 + 2048), (TLS13, 16_384 + 256)] {
        let cases = [
            (plain(20, [3, 3], &[1]), UnexpectedMessage),
            (plain(24, [3, 3], &[1; 32]), UnexpectedMessage),
            (plain(0, [3, 3], &[1; 32]), UnexpectedMessage),
            (plain(255, [3, 3], &[1; 32]), UnexpectedMessage),
            (plain(DATA, [3, 1], &[1; 32]), ProtocolVersion),
            (plain(DATA, [3, 4], &[1; 32]), ProtocolVersion),
            (plain(DATA, [2, 3], &[1; 32]), ProtocolVersion),
            (
                plain(DATA, [3, 3], &vec![1; length_max + 1]),
                RecordOverflow,
            ),
            (plain(DATA, [3, 3], &vec![1; length_max]), BadRecordMac),
            (plain(DATA, [3, 3], &[]), BadRecordMac),
            (plain(DATA, [3, 3], &[1; 15]), BadRecordMac),
            (plain(DATA, [3, 3], &[1; 64]), BadRecordMac),
        ];
        for (record, alert) in cases {
            let mut raw = RawClient::connected(versions);
            raw.expect_alert(&record, alert);
        }
        // The header is enough.
        let mut raw = RawClient::connected(versions);
        raw.expect_alert(&[DATA, 3, 3, 0xff, 0xff], RecordOverflow);
    }
}

/// RFC 8446 §5.2: records that are not protected end a connection of TLS 1.3.
#[test]
fn unprotected_records_are_refused() {
    for kind in [ALERT, HANDSHAKE] {
        let mut raw = RawClient::connected(TLS13);
        raw.expect_alert(&plain(kind, [3, 3], &[1, 0]), UnexpectedMessage);
        let mut raw = RawClient::connected(TLS12);
        raw.expect_alert(&plain(kind, [3, 3], &[1, 0]), BadRecordMac);
    }
}

#[test]
fn changed_records_are_refused() {
    for versions in [TLS12, TLS13] {
        // Each byte behind the header, and in TLS 1.2 the type, too.
        let length = RawClient::connected(versions).record(DATA, b"data").len();
        for at in 5..length {
            let mut raw = RawClient::connected(versions);
            let mut record = raw.record(DATA, b"data");
            record[at] ^= 0x10;
            raw.expect_alert(&record, BadRecordMac);
        }
        // A record twice, and one that is missing.
        let mut raw = RawClient::connected(versions);
        let record = raw.record(DATA, b"data");
        assert_eq!(raw.server.deliver(&record).data, b"data");
        raw.expect_alert(&record, BadRecordMac);
        let mut raw = RawClient::connected(versions);
        raw.record(DATA, b"lost");
        let record = raw.record(DATA, b"data");
        raw.expect_alert(&record, BadRecordMac);
    }
    let mut raw = RawClient::connected(TLS12);
    let mut record = raw.record(DATA, b"data");
    record[0] = HANDSHAKE;
    raw.expect_alert(&record, BadRecordMac);
}

#[test]
fn content_that_is_too_long_is_refused() {
    let inner = |content: usize, padding: usize| {
        let mut inner = vec![1; content];
        inner.push(DATA);
        inner.resize(content + 1 + padding, 0);
        inner
    };
    for (content, padding) in [(16_385, 0), (16_384, 1), (0, 16_385), (100, 16_500)] {
        let mut raw = RawClient::connected(TLS13);
        let record = raw.record_13(&inner(content, padding));
        raw.expect_alert(&record, RecordOverflow);
    }
    let mut raw = RawClient::connected(TLS12);
    let record = raw.record_12(DATA, &[1; 16_385]);
    raw.expect_alert(&record, RecordOverflow);
}

#[test]
fn padding_without_a_type_is_refused() {
    for bytes in [0, 1, 100, 16_385] {
        let mut raw = RawClient::connected(TLS13);
        let record = raw.record_13(&vec![0; bytes]);
        raw.expect_alert(&record, UnexpectedMessage);
    }
}

#[test]
fn unexpected_types_are_refused() {
    for kind in [1, 20, 24, 255] {
        let mut raw = RawClient::connected(TLS13);
        let record = raw.record_13(&[1, kind]);
        raw.expect_alert(&record, UnexpectedMessage);
    }
    let mut raw = RawClient::connected(TLS12);
    let record = raw.record_12(20, &[1]);
    raw.expect_alert(&record, UnexpectedMessage);
}

#[test]
fn malformed_messages_are_refused() {
    let cases: &[(_, u8, &[u8], AlertDescription)] = &[
        // Empty alerts and handshake records.
        (TLS13, ALERT, &[], UnexpectedMessage),
        (TLS13, HANDSHAKE, &[], UnexpectedMessage),
        (TLS12, ALERT, &[], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[], UnexpectedMessage),
        // Alerts with a wrong length or level.
        (TLS13, ALERT, &[1], DecodeError),
        (TLS13, ALERT, &[1, 0, 1, 0], DecodeError),
        (TLS12, ALERT, &[1], DecodeError),
        (TLS12, ALERT, &[1, 0, 1, 0], DecodeError),
        (TLS12, ALERT, &[3, 0], IllegalParameter),
        (TLS12, ALERT, &[0, 112], IllegalParameter),
        // Key updates: an unknown request, wrong lengths, and bytes behind it.
        (TLS13, HANDSHAKE, &[24, 0, 0, 1, 2], IllegalParameter),
        (TLS13, HANDSHAKE, &[24, 0, 0, 1, 255], IllegalParameter),
        (TLS13, HANDSHAKE, &[24, 0, 0, 0], DecodeError),
        (TLS13, HANDSHAKE, &[24, 0, 0, 2, 0, 0], DecodeError),
        (TLS13, HANDSHAKE, &[24, 1, 0, 1], DecodeError),
        (TLS13, HANDSHAKE, &[24, 0, 0, 1, 0, 24], UnexpectedMessage),
        (
            TLS13,
            HANDSHAKE,
            &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0],
            UnexpectedMessage,
        ),
        (TLS12, HANDSHAKE, &[24, 0, 0, 1, 0], UnexpectedMessage),
        // HelloRequest, ClientHello, NewSessionTicket, Certificate and Finished.
        (TLS13, HANDSHAKE, &[0, 0, 0, 0], UnexpectedMessage),
        (TLS13, HANDSHAKE, &[1, 0, 0, 0], UnexpectedMessage),
        (TLS13, HANDSHAKE, &[4], UnexpectedMessage),
        (TLS13, HANDSHAKE, &[11, 0, 0, 4], UnexpectedMessage),
        (TLS13, HANDSHAKE, &[20, 0, 0, 32], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[0, 0, 0, 0], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[4, 0, 0, 0], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[11], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[20, 0, 0, 12], UnexpectedMessage),
        (TLS12, HANDSHAKE, &[1, 1, 0, 0], DecodeError),
    ];
    for &(versions, kind, content, alert) in cases {
        let mut raw = RawClient::connected(versions);
        let record = raw.record(kind, content);
        raw.expect_alert(&record, alert);
    }
}

/// RFC 8446 §5.1: no other record is between the records of a message.
#[test]
fn interrupted_messages_are_refused() {
    for (versions, part) in [(TLS13, [24, 0]), (TLS12, [1, 0])] {
        for (kind, content) in [(DATA, &b"x"[..]), (DATA, b""), (ALERT, &[1, 0])] {
            let mut raw = RawClient::connected(versions);
            let part = raw.record(HANDSHAKE, &part);
            assert_eq!(raw.server.deliver(&part).error, None);
            let record = raw.record(kind, content);
            raw.expect_alert(&record, UnexpectedMessage);
        }
    }
}

/// An alert of the client ends the connection, without an alert in return.
#[test]
fn received_alerts_are_not_answered() {
    let cases = [
        (TLS12, [2, 20]),
        (TLS12, [2, 90]),
        (TLS13, [2, 20]),
        (TLS13, [1, 20]),
        (TLS13, [7, 20]),
        (TLS13, [1, 112]),
        (TLS13, [2, 199]),
    ];
    for (versions, alert) in cases {
        let mut raw = RawClient::connected(versions);
        let record = raw.record(ALERT, &alert);
        let error = raw.server.deliver(&record).error;
        let description = AlertDescription::from(alert[1]);
        assert_eq!(error, Some(SessionError::AlertReceived(description)));
        raw.expect_silence();
    }
}

#[test]
fn close_notify_of_any_level_closes() {
    for (versions, level) in [(TLS12, 1), (TLS12, 2), (TLS13, 1), (TLS13, 2), (TLS13, 9)] {
        let mut raw = RawClient::connected(versions);
        let record = raw.record(ALERT, &[level, 0]);
        let delivered = raw.server.deliver(&record);
        assert!(delivered.is_closed && delivered.error.is_none());
        assert!(raw.server.out.is_empty());
    }
}

/// After `close_notify`, a broken rule ends the connection without an alert.
#[test]
fn nothing_follows_close_notify() {
    for versions in [TLS12, TLS13] {
        let mut raw = RawClient::connected(versions);
        raw.server.session.close_notify(&mut raw.server.out);
        assert_eq!(raw.next_sent(), Some((ALERT, vec![1, 0])));
        let error = raw.server.deliver(&plain(DATA, [3, 3], &[1; 64])).error;
        assert!(matches!(
            error,
            Some(SessionError::Protocol {
                alert: BadRecordMac,
                ..
            })
        ));
        raw.expect_silence();
    }
}
