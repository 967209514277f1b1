//! Authorities from PEM files: those that verify the clients of a server, or other servers.

use super::chain;
use super::error::{TlsError, TlsErrorKind};
use super::facts::Certificate;
use super::pem::{Role, Source};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::path::Path;

/// Reads the authorities of a PEM file, for a client of rustls that trusts only them.
///
/// # Errors
/// [`TlsError`] if the file cannot be read or has no certificate, or if one of its certificates is
/// malformed or not the one of an authority.
///
/// # Examples
/// ```
/// use onrush::tls::{TlsErrorKind, read_authorities};
///
/// let error = read_authorities("absent.pem").unwrap_err();
/// assert_eq!(error.to_string(), "absent.pem does not exist");
/// assert_eq!(error.kind(), TlsErrorKind::NotFound);
/// ```
pub fn read_authorities(path: impl AsRef<Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let source = Source::File(path.as_ref().to_owned());
    add(source, &mut roots, &aws_lc_rs::default_provider())?;
    Ok(roots)
}

/// Adds the authorities of `source` to `roots`. Returns them in DER.
pub(super) fn add(
    source: Source,
    roots: &mut RootCertStore,
    provider: &CryptoProvider,
) -> Result<Vec<Vec<u8>>, TlsError> {
    // Only the clients' authorities are in memory, so the name of the role fits.
    let input = source.read(Role::ClientCa)?;
    let certificates = input.certificates()?;
    let parsed = chain::parse(&input, &certificates)?;
    let algorithms = &provider.signature_verification_algorithms;
    let other = |certificate: &&Certificate<'_>| !certificate.verifies_others(algorithms);
    if let Some(other) = parsed.iter().find(other) {
        let predicate = format!(
            "holds the certificate {}, which is not an authority, so it cannot verify others",
            other.title()
        );
        return Err(input.error(TlsErrorKind::NotAuthority, predicate));
    }
    let mut all = Vec::new();
    for certificate in certificates {
        all.push(certificate.to_vec());
        roots.add(certificate).map_err(|error| {
            let predicate = format!("holds a certificate that TLS cannot use: {error}");
            input.error(TlsErrorKind::MalformedCertificate, predicate)
        })?;
    }
    Ok(all)
}
