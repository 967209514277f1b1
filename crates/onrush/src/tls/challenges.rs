//! Certificates that prove to an ACME server who serves a name (TLS-ALPN-01, RFC 8737).
//!
//! A validation has a configuration of its own, so it shares nothing with other connections: it
//! asks for no client certificate, it issues no ticket that could resume as a verified session, and
//! no other protocol can be negotiated with its certificate.

use super::error::TlsError;
use super::pem::{Role, Source};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The protocol of a validation in ALPN (RFC 8737, section 6.2).
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";

/// The configurations for pending validations, by name in lower case.
pub(super) type Challenges = BTreeMap<String, Arc<ServerConfig>>;

/// The configuration for the validation of one name. `certificate` and `key` are PEM.
pub(super) fn config(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    // `chain` would refuse the certificate, because its extension is critical and unknown.
    let certificate = Source::Memory(certificate.to_vec()).read(Role::Certificate)?;
    let key = Source::Memory(key.to_vec())
        .read(Role::Key)?
        .private_key()?;
    let key =
        (provider.key_provider.load_private_key(key)).map_err(|error| TlsError::crypto(&error))?;
    let certified = CertifiedKey::new(certificate.certificates()?, key);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::crypto(&error))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Single(Arc::new(certified))));
    // The record layer takes over the keys.
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// The certificate of a validation.
#[derive(Debug)]
struct Single(Arc<CertifiedKey>);

impl ResolvesServerCert for Single {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}
