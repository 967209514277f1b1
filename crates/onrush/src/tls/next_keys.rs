//! The next keys of an established connection.

use super::record::{Opener, Sealer};
use rustls::ProtocolVersion;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

/// Derives the keys that follow a key update (RFC 8446 §7.2). The traffic secrets stay with rustls.
///
/// TLS 1.2 has no key updates, so nothing is kept.
pub(super) struct NextKeys(Option<Box<KernelConnection<ServerConnectionData>>>);

impl NextKeys {
    pub(super) fn new(connection: KernelConnection<ServerConnectionData>) -> NextKeys {
        let is_tls13 = connection.protocol_version() == ProtocolVersion::TLSv1_3;
        NextKeys(is_tls13.then(|| Box::new(connection)))
    }

    /// Whether the connection has TLS 1.3, and so key updates.
    #[inline]
    pub(super) fn is_tls13(&self) -> bool {
        self.0.is_some()
    }

    /// Our next key. `None` if it cannot be derived.
    pub(super) fn sealer(&mut self) -> Option<Sealer> {
        let (sequence, secrets) = self.0.as_mut()?.update_tx_secret().ok()?;
        Sealer::new(ProtocolVersion::TLSv1_3, sequence, &secrets)
    }

    /// The peer's next key. `None` if it cannot be derived.
    pub(super) fn opener(&mut self) -> Option<Opener> {
        let (sequence, secrets) = self.0.as_mut()?.update_rx_secret().ok()?;
        Opener::new(ProtocolVersion::TLSv1_3, sequence, &secrets)
    }
}
