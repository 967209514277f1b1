//! An established connection: its records, alerts and key updates.
//!
//! Rules come from RFC 8446 for TLS 1.3 and from RFC 5246 for TLS 1.2; each rule names its section.
//! Where the RFCs only permit an end of the connection (empty records, warnings, key updates
//! without end), the limits are those of rustls and BoringSSL.

use super::message::Message;
use super::next_keys::NextKeys;
use super::outgoing::Outgoing;
use super::received::{Received, SessionError};
use super::record::{
    HEADER_BYTES, Header, OpenError, Opener, PLAINTEXT_MAX, RECORD_VERSION, Sealer,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ContentType, ExtractedSecrets, HandshakeType, SupportedCipherSuite,
};
use std::fmt;
use std::io;

/// The most bytes behind the header of a record: RFC 8446 §5.2, RFC 5246 §6.2.3.
const LENGTH_MAX_13: usize = PLAINTEXT_MAX + 256;
const LENGTH_MAX_12: usize = PLAINTEXT_MAX + 2048;
/// Records without content that may follow one another.
const EMPTY_RECORDS_MAX: u8 = 32;
/// Warnings that are ignored on one connection.
const WARNINGS_MAX: u8 = 4;
/// Key updates of the peer without application data between them.
const KEY_UPDATES_MAX: u8 = 32;
/// Attempts of the client to renegotiate that only cause a warning.
const RENEGOTIATIONS_MAX: u8 = 1;

/// The established connection.
pub(super) struct Traffic {
    outgoing: Outgoing,
    rx: Opener,
    next_keys: NextKeys,
    message: Message,
    empty_records: u8,
    warnings: u8,
    key_updates: u8,
    renegotiations: u8,
    has_received_close: bool,
}

impl Traffic {
    /// Takes the secrets of a complete handshake. `record_max` is the most content of a record.
    ///
    /// # Errors
    /// For a version or a cipher suite that [`super::record`] does not support.
    pub(super) fn new(
        secrets: &ExtractedSecrets,
        connection: KernelConnection<ServerConnectionData>,
        record_max: usize,
    ) -> Result<Traffic, rustls::Error> {
        let version = connection.protocol_version();
        let (tx, rx) = (&secrets.tx, &secrets.rx);
        let keys = Sealer::new(version, tx.0, &tx.1).zip(Opener::new(version, rx.0, &rx.1));
        let (tx, rx) = keys.ok_or_else(|| unsupported("this cipher suite is not supported"))?;
        let key_limit = match connection.negotiated_cipher_suite() {
            SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit,
            SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit,
        };
        Ok(Traffic {
            outgoing: Outgoing::new(tx, key_limit, record_max),
            rx,
            next_keys: NextKeys::new(connection),
            message: Message::default(),
            empty_records: 0,
            warnings: 0,
            key_updates: 0,
            renegotiations: 0,
            has_received_close: false,
        })
    }

    /// See [`Session::is_worn`](super::session::Session::is_worn).
    #[inline]
    pub(super) fn is_worn(&self) -> bool {
        self.outgoing.is_worn(&self.next_keys)
    }

    fn is_tls13(&self) -> bool {
        self.next_keys.is_tls13()
    }

    /// Processes at most one record at the front of `input`. See
    /// [`Session::receive`](super::session::Session::receive).
    ///
    /// # Errors
    /// The connection must end. The alert is in `out`.
    #[inline]
    pub(super) fn receive(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Received, SessionError> {
        if self.has_received_close {
            // "Any data received after a closure alert has been received MUST be ignored."
            // (RFC 8446 §6.1)
            return Ok(Received::Closed);
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
        let (content, plaintext) = match self.rx.open(record) {
            Ok(opened) => opened,
            Err(error) => return Err(self.refuse(error, out)),
        };
        if content == ContentType::ApplicationData && !self.message.is_partial() {
            if !plaintext.is_empty() {
                self.empty_records = 0;
                self.key_updates = 0;
                return Ok(Received::Data {
                    consumed,
                    plaintext,
                });
            }
            self.note_empty_record(out)?;
            return Ok(Received::Handled { consumed });
        }
        if self.receive_control(content, &record[plaintext], out)? {
            return Ok(Received::Closed);
        }
        Ok(Received::Handled { consumed })
    }

    /// Checks a header before the rest of its record has arrived.
    #[inline]
    fn check_header(&mut self, header: &Header, out: &mut Vec<u8>) -> Result<(), SessionError> {
        // RFC 8446 §5.2: after the handshake each record has the type application_data, and §5: a
        // change_cipher_spec is refused. RFC 5246 §7.1: it belongs to a handshake.
        let (is_expected, length_max) = match self.is_tls13() {
            true => (
                header.content == ContentType::ApplicationData,
                LENGTH_MAX_13,
            ),
            false => (
                matches!(
                    header.content,
                    ContentType::ApplicationData | ContentType::Handshake | ContentType::Alert
                ),
                LENGTH_MAX_12,
            ),
        };
        if !is_expected {
            let reason = "a record has an unexpected type";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        if header.version != RECORD_VERSION {
            let reason = "a record has another version";
            return Err(self.fail(AlertDescription::ProtocolVersion, reason, out));
        }
        if header.length > length_max {
            let reason = "a record is too long";
            return Err(self.fail(AlertDescription::RecordOverflow, reason, out));
        }
        Ok(())
    }

    #[cold]
    fn refuse(&mut self, error: OpenError, out: &mut Vec<u8>) -> SessionError {
        let (alert, reason) = match error {
            OpenError::BadRecordMac => (
                AlertDescription::BadRecordMac,
                "a record could not be decrypted",
            ),
            OpenError::Overflow => (
                AlertDescription::RecordOverflow,
                "the content of a record is too long",
            ),
            // RFC 8446 §5.4
            OpenError::NoContentType => (
                AlertDescription::UnexpectedMessage,
                "a record has no content type",
            ),
            OpenError::Exhausted => (
                AlertDescription::InternalError,
                "the sequence numbers are used up",
            ),
        };
        self.fail(alert, reason, out)
    }

    /// Only application data may be empty, and not without end.
    fn note_empty_record(&mut self, out: &mut Vec<u8>) -> Result<(), SessionError> {
        if self.empty_records == EMPTY_RECORDS_MAX {
            let reason = "too many empty records";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        self.empty_records += 1;
        Ok(())
    }

    /// Processes a record other than application data. Returns whether it is `close_notify`.
    #[cold]
    fn receive_control(
        &mut self,
        content: ContentType,
        plaintext: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, SessionError> {
        if self.message.is_partial() && content != ContentType::Handshake {
            // RFC 8446 §5.1
            let reason = "a record interrupts a handshake message";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        match content {
            // RFC 8446 §5.4, RFC 5246 §6.2.1
            ContentType::Handshake | ContentType::Alert if plaintext.is_empty() => {
                let reason = "an alert or a handshake record is empty";
                Err(self.fail(AlertDescription::UnexpectedMessage, reason, out))
            }
            ContentType::Handshake => self.receive_handshake(plaintext, out).map(|()| false),
            ContentType::Alert => self.receive_alert(plaintext, out),
            _ => {
                let reason = "a record has an unexpected inner type";
                Err(self.fail(AlertDescription::UnexpectedMessage, reason, out))
            }
        }
    }

    /// Returns whether it is `close_notify`.
    fn receive_alert(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<bool, SessionError> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        // RFC 8446 §5.1: an alert is not fragmented, and a record has one.
        let &[level, description] = plaintext else {
            let reason = "an alert has not two bytes";
            return Err(self.fail(AlertDescription::DecodeError, reason, out));
        };
        let description = AlertDescription::from(description);
        if !self.is_tls13() && !matches!(level, WARNING | FATAL) {
            let reason = "an alert has an unknown level";
            return Err(self.fail(AlertDescription::IllegalParameter, reason, out));
        }
        if description == AlertDescription::CloseNotify {
            self.has_received_close = true;
            return Ok(true);
        }
        // RFC 8446 §6: TLS 1.3 ignores the level, and all but two alerts are errors.
        let is_warning = match self.is_tls13() {
            true => description == AlertDescription::UserCanceled,
            false => level == WARNING,
        };
        if !is_warning {
            self.outgoing.end(); // An alert is the last record.
            return Err(SessionError::AlertReceived(description));
        }
        if self.warnings == WARNINGS_MAX {
            let reason = "too many warnings";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        self.warnings += 1;
        Ok(false)
    }

    /// Takes the content of a handshake record, which may have parts of messages.
    fn receive_handshake(
        &mut self,
        mut fragment: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        while !fragment.is_empty() {
            self.message.take(&mut fragment);
            let expected = match self.is_tls13() {
                true => HandshakeType::KeyUpdate,
                false => HandshakeType::ClientHello,
            };
            if self.message.kind() != expected {
                // RFC 8446 §4.6: without the post_handshake_auth extension there is no other
                // message. RFC 5246 §7.4.1: only a client hello begins a handshake.
                let reason = "a handshake message is not expected";
                return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
            }
            if self.message.received < Message::HEADER_BYTES {
                continue;
            }
            let length = self.message.body_bytes();
            let is_valid = match self.is_tls13() {
                true => length == 1,
                // As long as rustls accepts it in a handshake.
                false => length <= 0xffff,
            };
            if !is_valid {
                let reason = "a handshake message has a wrong length";
                return Err(self.fail(AlertDescription::DecodeError, reason, out));
            }
            if self.message.received < Message::HEADER_BYTES + length {
                continue;
            }
            let body = self.message.bytes[Message::HEADER_BYTES];
            self.message = Message::default();
            match self.is_tls13() {
                true => self.receive_key_update(body, fragment.is_empty(), out)?,
                false => self.refuse_renegotiation(out)?,
            }
        }
        Ok(())
    }

    /// RFC 8446 §4.6.3.
    fn receive_key_update(
        &mut self,
        request: u8,
        is_last_of_record: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        if !is_last_of_record {
            // RFC 8446 §5.1: messages do not span a change of keys.
            let reason = "bytes of the old key follow a key update";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        if request > 1 {
            let reason = "a key update has an unknown request";
            return Err(self.fail(AlertDescription::IllegalParameter, reason, out));
        }
        if self.key_updates == KEY_UPDATES_MAX {
            let reason = "too many key updates";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        self.key_updates += 1;
        let Some(key) = self.next_keys.opener() else {
            let reason = "the next key could not be derived";
            return Err(self.fail(AlertDescription::InternalError, reason, out));
        };
        self.rx = key;
        if request == 1 && !self.outgoing.has_ended() {
            let updated = self.outgoing.update_key(&mut self.next_keys, false, out);
            updated.map_err(|_| SessionError::Internal("our next key could not be derived"))?;
        }
        Ok(())
    }

    /// RFC 5246 §7.2.2: a server may refuse a client hello by a warning. RFC 5746 §4.3 and §4.4 do
    /// not require renegotiation.
    fn refuse_renegotiation(&mut self, out: &mut Vec<u8>) -> Result<(), SessionError> {
        if self.renegotiations == RENEGOTIATIONS_MAX {
            let reason = "the client renegotiates again";
            return Err(self.fail(AlertDescription::UnexpectedMessage, reason, out));
        }
        self.renegotiations += 1;
        self.outgoing.warn(AlertDescription::NoRenegotiation, out);
        Ok(())
    }

    /// Sends a fatal alert, unless the end was sent before.
    #[cold]
    fn fail(
        &mut self,
        alert: AlertDescription,
        reason: &'static str,
        out: &mut Vec<u8>,
    ) -> SessionError {
        self.outgoing.end_with([2, alert.into()], out);
        SessionError::Protocol { alert, reason }
    }

    /// See [`Session::close_notify`](super::session::Session::close_notify).
    pub(super) fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.outgoing
            .end_with([1, AlertDescription::CloseNotify.into()], out);
    }

    /// See [`Session::send_both`](super::session::Session::send_both).
    #[inline]
    pub(super) fn send_both(
        &mut self,
        first: &[u8],
        second: &[u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        (self.outgoing).send_both(&mut self.next_keys, first, second, now_ms, out)
    }

    /// See [`Session::send_with`](super::session::Session::send_with).
    #[inline]
    pub(super) fn send_with(
        &mut self,
        max: usize,
        now_ms: u64,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        (self.outgoing).send_with(&mut self.next_keys, max, now_ms, out, fill)
    }

    /// Sets the number of records that one key may protect.
    #[cfg(test)]
    pub(super) fn set_key_limit(&mut self, records: u64) {
        self.outgoing.set_key_limit(records);
    }
}

/// Without the keys.
impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic")
            .field("outgoing", &self.outgoing)
            .field("rx", &self.rx)
            .field("has_received_close", &self.has_received_close)
            .finish_non_exhaustive()
    }
}

fn unsupported(reason: &str) -> rustls::Error {
    rustls::Error::General(reason.to_owned())
}
