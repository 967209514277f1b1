//! A client whose records the test makes itself, independent of the record layer under test.

use super::peer::{Pair, Server, Versions};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{AlertDescription, ConnectionTrafficSecrets, ProtocolVersion};

struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Key {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Key {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            _ => panic!("the tests negotiate AES-GCM"),
        };
        Key {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap()),
            iv: iv.as_ref().try_into().unwrap(),
            sequence,
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }
}

/// The additional data of TLS 1.2.
fn data_12(sequence: u64, kind: u8, length: usize) -> Vec<u8> {
    let mut data = sequence.to_be_bytes().to_vec();
    data.extend([kind, 3, 3]);
    data.extend((length as u16).to_be_bytes());
    data
}

/// An established connection.
pub(super) struct RawClient {
    version: ProtocolVersion,
    tx: Key,
    rx: Key,
    pub(super) server: Server,
}

impl RawClient {
    pub(super) fn connected(versions: Versions) -> RawClient {
        let pair = Pair::connected(versions);
        let version = pair.client.protocol_version().unwrap();
        let secrets = pair.client.dangerous_extract_secrets().unwrap();
        RawClient {
            version,
            tx: Key::new(secrets.tx),
            rx: Key::new(secrets.rx),
            server: pair.server,
        }
    }

    /// A record of TLS 1.3: `inner` has the content type and the padding.
    pub(super) fn record_13(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut record = vec![23, 3, 3];
        record.extend((inner.len() as u16 + 16).to_be_bytes());
        let header = record.clone();
        let mut nonce = self.tx.iv;
        let sequence = self.tx.next_sequence().to_be_bytes();
        (nonce[4..].iter_mut().zip(sequence)).for_each(|(byte, n)| *byte ^= n);
        let mut body = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.tx
            .key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut body)
            .unwrap();
        record.extend(body);
        record
    }

    /// A record of TLS 1.2. The explicit nonce is the sequence number, unlike that of rustls.
    pub(super) fn record_12(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let sequence = self.tx.next_sequence();
        let mut nonce = self.tx.iv;
        nonce[4..].copy_from_slice(&sequence.to_be_bytes());
        let mut body = content.to_vec();
        let data = data_12(sequence, kind, content.len());
        let explicit = nonce[4..].to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.tx
            .key
            .seal_in_place_append_tag(nonce, Aad::from(data), &mut body)
            .unwrap();
        let mut record = vec![kind, 3, 3];
        record.extend((body.len() as u16 + 8).to_be_bytes());
        record.extend(explicit);
        record.extend(body);
        record
    }

    /// A record of the version that was negotiated.
    pub(super) fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        match self.version {
            ProtocolVersion::TLSv1_3 => self.record_13(&[content, &[kind]].concat()),
            _ => self.record_12(kind, content),
        }
    }

    /// Removes a record from what the server has sent; returns its type and content.
    pub(super) fn next_sent(&mut self) -> Option<(u8, Vec<u8>)> {
        if self.server.out.is_empty() {
            return None;
        }
        let length = u16::from_be_bytes([self.server.out[3], self.server.out[4]]);
        let record: Vec<u8> = self.server.out.drain(..5 + usize::from(length)).collect();
        let (header, body) = record.split_at(5);
        assert_eq!(header[1..3], [3, 3]);
        let sequence = self.rx.next_sequence();
        if self.version == ProtocolVersion::TLSv1_3 {
            assert_eq!(header[0], 23);
            let mut nonce = self.rx.iv;
            (nonce[4..].iter_mut().zip(sequence.to_be_bytes())).for_each(|(byte, n)| *byte ^= n);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let mut body = body.to_vec();
            let inner = self
                .rx
                .key
                .open_in_place(nonce, Aad::from(header), &mut body)
                .unwrap();
            let (kind, content) = inner.split_last().unwrap();
            return Some((*kind, content.to_vec()));
        }
        let (explicit, body) = body.split_at(8);
        let nonce: [u8; 12] = [&self.rx.iv[..4], explicit].concat().try_into().unwrap();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let data = data_12(sequence, header[0], body.len() - 16);
        let mut body = body.to_vec();
        let content = self
            .rx
            .key
            .open_in_place(nonce, Aad::from(data), &mut body)
            .unwrap();
        Some((header[0], content.to_vec()))
    }

    /// Delivers `records`, which end the connection by this alert, and checks that it is the last
    /// thing the session sends.
    #[track_caller]
    pub(super) fn expect_alert(&mut self, records: &[u8], alert: AlertDescription) {
        let delivered = self.server.deliver(records);
        let error = delivered.error.expect("the connection fails");
        assert!(error.to_string().contains(&format!("{alert:?}")), "{error}");
        assert_eq!(self.next_sent(), Some((21, vec![2, alert.into()])));
        self.expect_silence();
        let again = self.server.deliver(b"GET / HTTP/1.1").error;
        assert_eq!(again, Some(error));
        self.expect_silence();
    }

    /// The session has sent nothing, and cannot send.
    #[track_caller]
    pub(super) fn expect_silence(&mut self) {
        let Server { session, out, .. } = &mut self.server;
        assert_eq!(
            session.send(b"x", 0, out).unwrap_err().kind(),
            std::io::ErrorKind::BrokenPipe
        );
        session.close_notify(out);
        assert!(out[..].is_empty());
    }
}
