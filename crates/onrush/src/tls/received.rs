//! What a session does with received bytes, and why it ends.

use rustls::AlertDescription;
use std::fmt;
use std::ops::Range;

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
            SessionError::Handshake(
                InvalidCertificate(_) | InvalidCertRevocationList(_) | NoCertificatesPresented
            )
        )
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::Handshake(error) => write!(f, "TLS handshake failed: {error}"),
            SessionError::Protocol { alert, reason } => write!(f, "{reason} (alert {alert:?})"),
            SessionError::AlertReceived(alert) => write!(f, "the client sent alert {alert:?}"),
            SessionError::Internal(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for SessionError {}
