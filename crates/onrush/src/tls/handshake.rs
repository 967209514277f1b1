//! A handshake, by rustls.
//!
//! rustls receives one record at a time, so it never decrypts application data that follows the
//! client's Finished: those records stay for the keys of [`Traffic`]. rustls processes a record in
//! the receive buffer. Only if a handshake message spans records, rustls needs them side by side,
//! and they are kept here until the message is complete.

use super::challenges::Challenges;
use super::client_hello::{HelloReader, prefers_chacha20, validated_name};
use super::client_verifier;
use super::config::ForHandshake;
use super::facts::Certificate;
use super::info::TlsParts;
use super::received::{Received, SessionError};
use super::record::{HEADER_BYTES, Header, PLAINTEXT_MAX};
use super::traffic::Traffic;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError};
use rustls::{AlertDescription, CertificateError, ContentType, Error, HandshakeKind};
use rustls::{InvalidMessage, ProtocolVersion, ServerConfig};
use std::fmt;
use std::mem;
use std::sync::Arc;

/// The most bytes of records with an incomplete message. rustls accepts messages of 64 KiB.
const HELD_BYTES_MAX: usize = 96 * 1024;
/// The most characters of an HTTP method that plain HTTP is recognised by.
const METHOD_BYTES_MAX: usize = 16;

/// A handshake in progress.
pub(super) struct Handshake {
    config: Arc<ServerConfig>,
    connection: UnbufferedServerConnection,
    hello: HelloReader,
    /// For a client that prefers ChaCha20.
    client_order: Option<Arc<ServerConfig>>,
    /// Pending validations of an ACME server.
    challenges: Option<Arc<Challenges>>,
    /// Records that rustls has read but not released.
    held: Vec<u8>,
    /// The most content of a record that is sent.
    record_max: usize,
    /// No record was given to rustls.
    is_new: bool,
    /// Our records are encrypted, so only rustls can send alerts.
    is_encrypting: bool,
}

impl Handshake {
    /// See `Session::new`.
    pub(super) fn new(config: ForHandshake) -> Result<Handshake, Error> {
        let ForHandshake {
            server: config,
            client_order,
            challenges,
        } = config;
        if !config.enable_secret_extraction {
            let reason = "ServerConfig::enable_secret_extraction must be true";
            return Err(Error::General(reason.to_owned()));
        }
        // rustls counts the header of the record.
        let record_max = (config.max_fragment_size)
            .map_or(PLAINTEXT_MAX, |bytes| bytes.saturating_sub(HEADER_BYTES));
        Ok(Handshake {
            connection: UnbufferedServerConnection::new(Arc::clone(&config))?,
            config,
            hello: HelloReader::default(),
            client_order,
            challenges,
            held: Vec::new(),
            record_max,
            is_new: true,
            is_encrypting: false,
        })
    }

    /// Processes at most one record at the front of `input`. [`Received::Handshaken`] means that
    /// [`into_traffic`](Handshake::into_traffic) is next.
    pub(super) fn receive(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Received, SessionError> {
        if self.is_new {
            match is_plain_http(input) {
                Some(false) => {}
                Some(true) => return Ok(Received::PlainHttp),
                None => {
                    let record_bytes = input.len() + 1;
                    return Ok(Received::NeedMore { record_bytes });
                }
            }
        }
        let Some(header) = Header::parse(input) else {
            return Ok(Received::NeedMore {
                record_bytes: HEADER_BYTES,
            });
        };
        self.check_header(&header, out)?;
        let consumed = header.record_bytes();
        let Some(record) = input.get_mut(..consumed) else {
            return Ok(Received::NeedMore {
                record_bytes: consumed,
            });
        };
        if mem::take(&mut self.is_new)
            && let Some(config) = self.config_for(record)
        {
            let connection = UnbufferedServerConnection::new(config);
            self.connection = connection.map_err(SessionError::Handshake)?;
        }
        self.hello.read(record);
        if self.hello.is_outdated() {
            // rustls first misses extensions that these versions do not have.
            let alert = AlertDescription::ProtocolVersion;
            self.alert(alert, out);
            let reason = "the client supports only versions before TLS 1.2";
            return Err(SessionError::Protocol { alert, reason });
        }
        let before = out.len();
        let processed = self.process(record, out).and_then(|early_data| {
            // What rustls responds is sent only if the client may resume.
            let checked = self.check_resumed_client();
            checked.inspect_err(|_| out.truncate(before))?;
            Ok(early_data)
        });
        match processed {
            Ok(early_data) => {
                let version = self.connection.protocol_version();
                self.is_encrypting |= begins_encryption(&out[before..], version);
                match (early_data, self.connection.is_handshaking()) {
                    (Some(plaintext), true) => Ok(Received::EarlyData {
                        consumed,
                        plaintext,
                    }),
                    (None, true) => Ok(Received::Handled { consumed }),
                    (None, false) => Ok(Received::Handshaken { consumed }),
                    // Early data and the Finished have different keys, so different records.
                    (Some(_), false) => Err(SessionError::Internal("early data with a Finished")),
                }
            }
            Err(error) => {
                let has_alert = out.len() > before;
                if let (false, Some(alert)) = (has_alert, missing_alert(&error)) {
                    self.alert(alert, out);
                }
                Err(match client_verifier::take_refused() {
                    Some(certificate) => SessionError::ClientCertificate { error, certificate },
                    None => SessionError::Handshake(error),
                })
            }
        }
    }

    /// The configuration for the client with this first record, if it is another one.
    fn config_for(&mut self, record: &[u8]) -> Option<Arc<ServerConfig>> {
        let (challenges, client_order) = (self.challenges.take(), self.client_order.take());
        if let Some(challenges) = challenges
            && let Some(config) = validated_name(record).and_then(|name| challenges.get(&name))
        {
            return Some(Arc::clone(config));
        }
        client_order.filter(|_| prefers_chacha20(record))
    }

    /// Finds the alert of the RFC where rustls would send `decode_error`, as long as alerts are not
    /// encrypted.
    fn check_header(&mut self, header: &Header, out: &mut Vec<u8>) -> Result<(), SessionError> {
        if self.is_encrypting {
            return Ok(());
        }
        let (alert, reason) = match header {
            // RFC 8446 §5: records of other types.
            Header {
                content: ContentType::Unknown(_) | ContentType::Heartbeat,
                ..
            } => (
                AlertDescription::UnexpectedMessage,
                "this is not a TLS record",
            ),
            Header { version, .. } if version[0] != 3 => (
                AlertDescription::ProtocolVersion,
                "a record has an unknown version",
            ),
            // RFC 8446 §5.1
            Header { length, .. } if *length > PLAINTEXT_MAX => {
                (AlertDescription::RecordOverflow, "a record is too long")
            }
            Header { length: 0, .. } => (AlertDescription::UnexpectedMessage, "a record is empty"),
            _ => return Ok(()),
        };
        self.alert(alert, out);
        Err(SessionError::Protocol { alert, reason })
    }

    /// Sends a fatal alert of our own, if it need not be encrypted.
    fn alert(&mut self, alert: AlertDescription, out: &mut Vec<u8>) {
        if !self.is_encrypting {
            out.extend_from_slice(&[ContentType::Alert.into(), 3, 3, 0, 2, 2, alert.into()]);
        }
    }

    /// Refuses to resume the session of a client whose certificate has expired since. rustls
    /// verifies certificates only in full handshakes, and each resumed session yields a new ticket,
    /// so a session could be resumed without end.
    ///
    /// This is checked before anything is sent. So the client receives no ticket, and drops the
    /// session that it has.
    fn check_resumed_client(&self) -> Result<(), Error> {
        let is_resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let certificates = self.connection.peer_certificates().unwrap_or_default();
        let Some(leaf) = certificates
            .first()
            .filter(|_| is_resumed && !self.is_encrypting)
        else {
            return Ok(());
        };
        let time = self.config.time_provider.current_time();
        let time = time.ok_or(Error::FailedToGetCurrentTime)?;
        let leaf = Certificate::parse(leaf).ok_or(CertificateError::BadEncoding)?;
        match leaf.expires() {
            not_after if time > not_after => {
                client_verifier::refuse(&leaf);
                Err(CertificateError::ExpiredContext { time, not_after }.into())
            }
            _ => Ok(()),
        }
    }

    /// Gives a record to rustls. Returns its early data.
    fn process(&mut self, record: &mut [u8], out: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Error> {
        if self.held.is_empty() {
            let (released, result) = step(&mut self.connection, record, out);
            if result.is_ok() {
                self.held.extend_from_slice(&record[released..]);
            }
            return result;
        }
        if self.held.len() + record.len() > HELD_BYTES_MAX {
            return Err(InvalidMessage::HandshakePayloadTooLarge.into());
        }
        let mut held = mem::take(&mut self.held);
        held.extend_from_slice(record);
        let (released, result) = step(&mut self.connection, &mut held, out);
        if result.is_ok() && released < held.len() {
            held.drain(..released);
            self.held = held;
        }
        result
    }

    /// The memory of an incomplete message, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held.capacity() + self.hello.held_bytes()
    }

    /// The established connection, after [`Received::Handshaken`].
    pub(super) fn into_traffic(self) -> Result<(Traffic, TlsParts), Error> {
        let connection = self.connection;
        if !self.held.is_empty() {
            // A change of keys is at the end of a record, so rustls has refused this.
            return Err(Error::General("rustls holds a record back".to_owned()));
        }
        let version = connection.protocol_version();
        let suite = connection.negotiated_cipher_suite();
        let (version, suite) = version.zip(suite).ok_or(Error::HandshakeNotComplete)?;
        let parts = TlsParts {
            version,
            cipher_suite: suite.suite(),
            server_name: self.hello.into_server_name(),
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
            peer_certificates: connection.peer_certificates().unwrap_or_default().to_vec(),
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        };
        let (secrets, kernel) = connection.dangerous_into_kernel_connection()?;
        Ok((Traffic::new(&secrets, kernel, self.record_max)?, parts))
    }
}

/// Whether what we send is encrypted after these records. In TLS 1.2 a ChangeCipherSpec begins
/// that. In TLS 1.3 it has no meaning, and also follows a HelloRetryRequest (RFC 8446 §D.4), but
/// encrypted records have a type of their own.
fn begins_encryption(mut records: &[u8], version: Option<ProtocolVersion>) -> bool {
    let first = match version {
        Some(ProtocolVersion::TLSv1_2) => ContentType::ChangeCipherSpec,
        _ => ContentType::ApplicationData,
    };
    while let Some(header) = Header::parse(records) {
        if header.content == first {
            return true;
        }
        records = records.get(header.record_bytes()..).unwrap_or_default();
    }
    false
}

/// Lets rustls process `records`, until it needs more. Returns the bytes at the front that it does
/// not need any more, and early data.
fn step(
    connection: &mut UnbufferedServerConnection,
    records: &mut [u8],
    out: &mut Vec<u8>,
) -> (usize, Result<Option<Vec<u8>>, Error>) {
    let mut early_data: Option<Vec<u8>> = None;
    let mut released = 0;
    loop {
        let status = connection.process_tls_records(&mut records[released..]);
        let discard = status.discard;
        let is_done = status.state.and_then(|state| match state {
            ConnectionState::EncodeTlsData(mut data) => {
                encode(out, |room| data.encode(room)).map(|()| false)
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(false)
            }
            ConnectionState::ReadEarlyData(mut data) => {
                while let Some(record) = data.next_record() {
                    let all = early_data.get_or_insert_default();
                    all.extend_from_slice(record?.payload);
                }
                Ok(false)
            }
            ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(true),
            // Application data, and the end of the connection, follow the handshake, so rustls has
            // not received them.
            _ => {
                let reason = "rustls processed a record after the handshake";
                Err(Error::General(reason.to_owned()))
            }
        });
        match is_done {
            Ok(false) => released += discard,
            Ok(true) => return (released + discard, Ok(early_data)),
            Err(error) => {
                drain_alerts(connection, &mut records[released..], out);
                return (released, Err(error));
            }
        }
    }
}

/// Appends a record that `encode` writes.
fn encode(
    out: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), Error> {
    let start = out.len();
    let bytes = match encode(&mut []) {
        Ok(bytes) => bytes,
        Err(EncodeError::InsufficientSize(size)) => {
            out.resize(start + size.required_size, 0);
            encode(&mut out[start..]).map_err(|error| Error::General(error.to_string()))?
        }
        Err(error) => return Err(Error::General(error.to_string())),
    };
    out.truncate(start + bytes);
    Ok(())
}

/// Appends the alert that rustls has for an error.
fn drain_alerts(
    connection: &mut UnbufferedServerConnection,
    records: &mut [u8],
    out: &mut Vec<u8>,
) {
    // While there is something to send, rustls does not look at `records`.
    while connection.wants_write() {
        match connection.process_tls_records(records).state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                if encode(out, |room| data.encode(room)).is_err() {
                    return;
                }
            }
            Ok(ConnectionState::ReadEarlyData(mut data)) => while data.next_record().is_some() {},
            _ => return,
        }
    }
}

/// The alert for errors for which rustls has none. A received alert causes none.
fn missing_alert(error: &Error) -> Option<AlertDescription> {
    match error {
        Error::AlertReceived(_) => None,
        Error::InvalidMessage(_) => Some(AlertDescription::DecodeError),
        Error::PeerMisbehaved(_) => Some(AlertDescription::UnexpectedMessage),
        Error::PeerIncompatible(_) => Some(AlertDescription::HandshakeFailure),
        Error::InvalidCertificate(error) => Some(error.clone().into()),
        _ => Some(AlertDescription::InternalError),
    }
}

/// Whether the first bytes of a connection are an HTTP request. `None` if they are too few. A TLS
/// record does not begin with a letter.
fn is_plain_http(input: &[u8]) -> Option<bool> {
    let head = &input[..input.len().min(METHOD_BYTES_MAX + 1)];
    match head.iter().position(|byte| !byte.is_ascii_uppercase()) {
        Some(end) => Some(end >= 3 && head[end] == b' '),
        None if head.len() > METHOD_BYTES_MAX => Some(false),
        None => None,
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("hello", &self.hello)
            .field("held_bytes", &self.held.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_recognised_by_its_method() {
        for input in [
            "GET / HTTP/1.1",
            "POST ",
            "OPTIONS *",
            "PRI * HTTP/2.0",
            "VERSION-CONTROL",
        ] {
            let expected = input != "VERSION-CONTROL";
            assert_eq!(is_plain_http(input.as_bytes()), Some(expected), "{input}");
        }
        for undecided in ["", "G", "GET", "DELETE", "ABCDEFGHIJKLMNOP"] {
            assert_eq!(is_plain_http(undecided.as_bytes()), None, "{undecided}");
        }
        for other in [
            "\x16\x03\x01",
            "get /",
            "A ",
            "SSH-2.0",
            "ABCDEFGHIJKLMNOPQ",
            "GET\r\n",
        ] {
            assert_eq!(is_plain_http(other.as_bytes()), Some(false), "{other:?}");
        }
    }
}
