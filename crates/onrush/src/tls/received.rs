//! What a session does with received bytes, and why it ends.

use onrush_proto::date::utc;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

/// What [`Session::receive`](super::session::Session::receive) has done. `consumed` is the number
/// of bytes at the front of the input that it does not need any more.
#[derive(Debug)]
pub(crate) enum Received {
    /// The record at the front is incomplete; nothing was consumed or changed. Call again when
    /// `record_bytes` bytes, counted from the front, have arrived. While the header is incomplete,
    /// that is the header.
    NeedMore { record_bytes: usize },
    /// A record without data was processed. Call again with the rest.
    Handled { consumed: usize },
    /// The handshake is complete. The rest of the input may have data already.
    Handshaken { consumed: usize },
    /// Decrypted data, at least one byte: `input[plaintext]`, within the bytes consumed.
    Data {
        consumed: usize,
        plaintext: Range<usize>,
    },
    /// Data that the client has sent before the handshake is complete (RFC 8446 §2.3). An attacker
    /// may have sent it before (§8). The engine processes it after the handshake, which proves that
    /// it is no repetition. It appears only if `ServerConfig::max_early_data_size` is set.
    EarlyData { consumed: usize, plaintext: Vec<u8> },
    /// The client has sent `close_notify`. It will send no data; what it sends is ignored. Sending
    /// is still possible.
    Closed,
    /// The first bytes are a plain HTTP request. The session is not usable.
    PlainHttp,
    /// The connection must end, after what is in `out` has been sent.
    Failed(SessionError),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SessionError {
    /// rustls ended the handshake.
    Handshake(rustls::Error),
    /// The certificate of the client was refused.
    ClientCertificate {
        error: rustls::Error,
        /// Its subject and its issuer.
        certificate: String,
    },
    /// The client broke a rule. This alert was sent, unless the end was sent before.
    Protocol {
        alert: AlertDescription,
        reason: &'static str,
    },
    /// The client sent this fatal alert after the handshake. No alert is sent in return.
    AlertReceived(AlertDescription),
    /// Cryptography failed, which is not the client's fault.
    Internal(&'static str),
}

impl SessionError {
    /// Whether the handshake failed because the client has no certificate, or not a valid one.
    pub(crate) fn is_about_client_certificate(&self) -> bool {
        use rustls::Error::{
            InvalidCertRevocationList, InvalidCertificate, NoCertificatesPresented,
        };
        matches!(
            self,
            SessionError::ClientCertificate { .. }
                | SessionError::Handshake(
                    InvalidCertificate(_) | InvalidCertRevocationList(_) | NoCertificatesPresented
                )
        )
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use rustls::Error::{InvalidCertificate, NoCertificatesPresented};
        match self {
            SessionError::Handshake(NoCertificatesPresented) => {
                f.write_str("the client has sent no certificate")
            }
            SessionError::Handshake(InvalidCertificate(error)) => {
                write!(f, "the certificate of the client {}", refusal(error))
            }
            SessionError::Handshake(error) => write!(f, "TLS handshake failed: {error}"),
            SessionError::ClientCertificate { error, certificate } => match error {
                InvalidCertificate(error) => write!(f, "{certificate} {}", refusal(error)),
                error => write!(f, "{certificate}: {error}"),
            },
            SessionError::Protocol { alert, reason } => write!(f, "{reason} (alert {alert:?})"),
            SessionError::AlertReceived(alert) => write!(f, "the client sent alert {alert:?}"),
            SessionError::Internal(reason) => f.write_str(reason),
        }
    }
}

/// Why the certificate of a client was refused, as a predicate.
fn refusal(error: &CertificateError) -> Cow<'static, str> {
    let text = |time: &UnixTime| utc(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    Cow::Borrowed(match error {
        CertificateError::UnknownIssuer => {
            "has an issuer that is no client CA of this server, or the client has not sent the \
             certificates between them"
        }
        CertificateError::Expired => "has expired, or one between it and the client CA",
        CertificateError::ExpiredContext { not_after, .. } => {
            let time = text(not_after);
            let line = format!("expired at {time}, or one between it and the client CA");
            return line.into();
        }
        CertificateError::NotValidYet => "is not yet valid, or one between it and the client CA",
        CertificateError::NotValidYetContext { not_before, .. } => {
            let time = text(not_before);
            let line = format!("is not valid before {time}, or one between it and the client CA");
            return line.into();
        }
        CertificateError::BadEncoding => "is malformed",
        CertificateError::BadSignature => "has a wrong signature, or the client has not its key",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "has an extendedKeyUsage without clientAuth"
        }
        // Errors of rustls-webpki, whose text is their name.
        CertificateError::Other(error) => match error.to_string().as_str() {
            "UnsupportedCertVersion" => "is X.509 version 1; sign it with extensions",
            "CaUsedAsEndEntity" => {
                "is the one of an authority (CA:TRUE), which cannot be a client; sign another \
                 with it"
            }
            "EndEntityUsedAsCa" => "has an issuer that is not an authority (CA:TRUE)",
            name => return format!("cannot be used: {name}").into(),
        },
        error => return format!("cannot be used: {error}").into(),
    })
}

impl std::error::Error for SessionError {}
