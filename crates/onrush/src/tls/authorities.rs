//! Authorities from PEM files: those that verify the clients of a server, or other servers.

use super::chain;
use super::error::{TlsError, TlsErrorKind};
use super::facts::Certificate;
use super::pem::{Role, Source};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
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
    let provider = aws_lc_rs::default_provider();
    let algorithms = &provider.signature_verification_algorithms;
    add(source, &mut roots, |certificate, _| {
        match certificate.verifies_others(algorithms) {
            true => Ok(()),
            false => Err(format!(
                "holds the certificate {}, which is not an authority, so it cannot verify others",
                certificate.title()
            )),
        }
    })?;
    Ok(roots)
}

/// Adds the authorities of `source` to `roots`. Returns them in DER. `check` says what is wrong
/// with a certificate, given the file.
pub(super) fn add(
    source: Source,
    roots: &mut RootCertStore,
    mut check: impl FnMut(&Certificate<'_>, Option<&Path>) -> Result<(), String>,
) -> Result<Vec<Vec<u8>>, TlsError> {
    // Only the clients' authorities are in memory, so the name of the role fits.
    let input = source.read(Role::ClientCa)?;
    let certificates = input.certificates()?;
    for certificate in chain::parse(&input, &certificates)? {
        check(&certificate, input.path())
            .map_err(|predicate| input.error(TlsErrorKind::NotAuthority, predicate))?;
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
