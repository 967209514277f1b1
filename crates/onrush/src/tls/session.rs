//! The server's side of one TLS connection, as a machine without sockets.
//!
//! The caller gives received bytes to [`Session::receive`], and sends what the calls append to
//! their `out`, in the order of the calls.
//!
//! # States
//! ```text
//! Handshake ──Handshaken──► Traffic ──close_notify──► Traffic, which ignores what it receives
//!     └──────────Failed────────┴──────────► Failed
//! ```
//! - **Handshake** (`handshake`): rustls runs the handshake, in a box that is freed at its end. It
//!   holds the handshake's keys. Application data cannot be sent.
//! - **Traffic** (`traffic`): this crate protects the records. Each direction has a key of aws-lc
//!   and a sequence number, in [`super::record`]. The traffic secrets of TLS 1.3 stay with rustls,
//!   in a `KernelConnection`, which derives the next key for a key update. TLS 1.2 keeps no
//!   secrets other than the two keys.
//! - **Failed**: the keys are dropped. The alert, if one was due, is in `out`.
//!
//! # Why the record layer is our own
//! The connections of rustls 0.23 allocate memory and copy the bytes once per record, in both
//! directions. Here, received records are decrypted in the receive buffer, so the parser reads the
//! plaintext there. Responses are encrypted in the send buffer. No record allocates once the send
//! buffer is large enough. rustls offers the secrets for this purpose (`rustls::kernel`), which is
//! also the interface that kernel TLS would need. The keys, the handshake, and everything about
//! certificates stay with rustls and aws-lc.

use super::config::{ForHandshake, TlsConfig};
use super::handshake::Handshake;
use super::info::TlsParts;
pub(crate) use super::received::{Received, SessionError};
use super::record::is_supported;
use super::traffic::Traffic;
use std::io;
use std::mem;

#[cfg(test)]
mod tests;

/// One TLS connection. It can move to another thread.
#[derive(Debug)]
pub(crate) struct Session {
    state: SessionState,
    /// What was negotiated, until the caller takes it.
    parts: Option<Box<TlsParts>>,
}

#[derive(Debug)]
enum SessionState {
    Handshake(Box<Handshake>),
    // In place, because each request needs it.
    Traffic(Traffic),
    Failed(Box<SessionError>),
}

impl Session {
    /// A session that begins with its handshake.
    ///
    /// `config` must have `enable_secret_extraction`, because the record layer takes over the keys.
    ///
    /// # Errors
    /// If it does not, or if its `max_fragment_size` is out of range.
    #[cfg(test)]
    pub(crate) fn new(
        config: std::sync::Arc<rustls::ServerConfig>,
    ) -> Result<Session, rustls::Error> {
        Session::with(ForHandshake {
            server: config,
            client_order: None,
            challenges: None,
        })
    }

    /// A session with the current version of `config`, which may have ACME challenges.
    ///
    /// # Errors
    /// As `new`.
    pub(crate) fn accept(config: &TlsConfig) -> Result<Session, rustls::Error> {
        Session::with(config.for_handshake())
    }

    fn with(config: ForHandshake) -> Result<Session, rustls::Error> {
        Ok(Session {
            state: SessionState::Handshake(Box::new(Handshake::new(config)?)),
            parts: None,
        })
    }

    /// Checks what `config` says about all sessions, before there is one.
    ///
    /// # Errors
    /// As `new`, and if the crypto provider offers a cipher suite that the record
    /// layer does not have.
    pub(crate) fn check(config: &TlsConfig) -> Result<(), rustls::Error> {
        let server = config.current();
        let suites = &server.crypto_provider().cipher_suites;
        let unknown = suites.iter().find(|suite| !is_supported(suite.suite()));
        if let Some(unknown) = unknown {
            let reason = format!("the cipher suite {:?} is not supported", unknown.suite());
            return Err(rustls::Error::General(reason));
        }
        Session::accept(config).map(drop)
    }

    /// Whether the handshake is in progress.
    #[cfg(test)]
    pub(crate) fn is_handshaking(&self) -> bool {
        matches!(self.state, SessionState::Handshake(_))
    }

    /// What the handshake has negotiated. Returned once, after [`Received::Handshaken`].
    pub(crate) fn take_parts(&mut self) -> Option<TlsParts> {
        self.parts.take().map(|parts| *parts)
    }

    /// Processes at most one record at the front of `input`, which it decrypts in place. Appends
    /// what has to be sent to `out`.
    ///
    /// The caller calls it again with the rest of the input. The caller must not change bytes that
    /// were not consumed.
    #[inline]
    pub(crate) fn receive(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Received {
        let received = match &mut self.state {
            SessionState::Traffic(traffic) => traffic.receive(input, out),
            SessionState::Handshake(_) => self.receive_handshake(input, out),
            SessionState::Failed(error) => Err(SessionError::clone(error)),
        };
        received.unwrap_or_else(|error| self.fail(error))
    }

    #[cold]
    fn fail(&mut self, error: SessionError) -> Received {
        self.state = SessionState::Failed(Box::new(error.clone()));
        Received::Failed(error)
    }

    fn receive_handshake(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Received, SessionError> {
        let SessionState::Handshake(handshake) = &mut self.state else {
            return Err(SessionError::Internal("there is no handshake"));
        };
        let received = handshake.receive(input, out)?;
        if matches!(received, Received::Handshaken { .. }) {
            let ended = SessionError::Internal("the handshake has ended");
            let state = mem::replace(&mut self.state, SessionState::Failed(Box::new(ended)));
            if let SessionState::Handshake(handshake) = state {
                let (traffic, parts) = handshake.into_traffic().map_err(SessionError::Handshake)?;
                self.state = SessionState::Traffic(traffic);
                self.parts = Some(Box::new(parts));
            }
        }
        Ok(received)
    }

    /// The memory of an incomplete message of the handshake, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.state {
            SessionState::Handshake(handshake) => handshake.held_bytes(),
            SessionState::Traffic(_) | SessionState::Failed(_) => 0,
        }
    }

    /// Whether the key for sending is almost used up and cannot be replaced, which only TLS 1.2
    /// cannot. The connection should close after its next response.
    #[inline]
    pub(crate) fn is_worn(&self) -> bool {
        match &self.state {
            SessionState::Traffic(traffic) => traffic.is_worn(),
            SessionState::Handshake(_) | SessionState::Failed(_) => false,
        }
    }

    /// Encrypts `plaintext` and appends the records to `out`.
    ///
    /// The records are small at the beginning and after a pause, so that the client can decrypt
    /// what arrives first, and large afterwards. `now_ms` is a monotonic time in milliseconds.
    ///
    /// # Errors
    /// `BrokenPipe` before the end of the handshake, after
    /// [`close_notify`](Session::close_notify), and after a fatal alert. `Other` if the key must
    /// not protect more records. Then the records in `out` are valid, and the caller may send them.
    #[inline]
    pub(crate) fn send(
        &mut self,
        plaintext: &[u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.send_both(plaintext, &[], now_ms, out)
    }

    /// As [`send`](Session::send), for `first` followed by `second`: a head and its content, in the
    /// same records.
    ///
    /// # Errors
    /// As [`send`](Session::send).
    #[inline]
    pub(crate) fn send_both(
        &mut self,
        first: &[u8],
        second: &[u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        match &mut self.state {
            SessionState::Traffic(traffic) => traffic.send_both(first, second, now_ms, out),
            SessionState::Handshake(_) | SessionState::Failed(_) => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// Appends one record, whose content `fill` appends to `out`: at most as many bytes as its
    /// second argument, which is at most `max` and within the spare capacity. `fill` leaves the
    /// earlier bytes of `out` unchanged, and returns the number of new ones; this function returns
    /// the same number. If it is 0, there is no record. If `fill` panics, `out` must not be sent,
    /// because its end is not encrypted.
    ///
    /// # Errors
    /// As [`send`](Session::send), the error of `fill`, and `Other` if `fill` does not keep the
    /// rules. Then there is no record.
    #[inline]
    pub(crate) fn send_with(
        &mut self,
        max: usize,
        now_ms: u64,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match &mut self.state {
            SessionState::Traffic(traffic) => traffic.send_with(max, now_ms, out, fill),
            SessionState::Handshake(_) | SessionState::Failed(_) => {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
    }

    /// Tells the client that no more data follows (RFC 8446 §6.1). Only the first call has an
    /// effect, and none during the handshake or after a fatal alert. Receiving is still possible.
    pub(crate) fn close_notify(&mut self, out: &mut Vec<u8>) {
        if let SessionState::Traffic(traffic) = &mut self.state {
            traffic.close_notify(out);
        }
    }

    /// Sets the number of records that one key may protect.
    #[cfg(test)]
    fn set_key_limit(&mut self, records: u64) {
        if let SessionState::Traffic(traffic) = &mut self.state {
            traffic.set_key_limit(records);
        }
    }
}
