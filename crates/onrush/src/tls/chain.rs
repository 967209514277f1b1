//! A certificate chain with its private key: checks that they fit together, so that a mistake is an
//! error at the start and not a failed handshake.

use super::der::{self, tag};
use super::error::{TlsError, TlsErrorKind};
use super::facts::{Certificate, CertificateFacts};
use super::pem::Input;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{Error, InconsistentKeys};
use std::sync::Arc;

const SUPPORTED: &str =
    "supported are RSA with 2048 to 8192 bits, ECDSA on P-256, P-384 and P-521, and Ed25519";

/// Reads the chain and its key, and checks them.
///
/// The first certificate must be the server's, and each further one must have signed the one before
/// it. RFC 8446, section 4.4.2, allows other orders, but a chain in another order is nearly always
/// a mistake, and many clients do not search for the issuer.
pub(super) fn load(
    certificates: &Input,
    key: &Input,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, CertificateFacts), TlsError> {
    let chain = certificates.certificates()?;
    let key_der = key.private_key()?;
    let parsed = parse(certificates, &chain)?;
    // `certificates()` is never empty.
    let (leaf, issuers) = parsed
        .split_first()
        .ok_or_else(|| certificates.error(TlsErrorKind::NoCertificate, "holds no certificate"))?;
    let signing_key = signing_key(key, key_der, provider)?;
    if !leaf.is_version_3() {
        let predicate = format!(
            "holds the certificate {}, which is X.509 version 1; sign it with extensions, among \
             them subjectAltName, which makes it version 3",
            leaf.title()
        );
        return Err(certificates.error(TlsErrorKind::MalformedCertificate, predicate));
    }

    match belongs(&signing_key, &chain[0]) {
        Ok(true) => {}
        Ok(false) => {
            let owner = (1..chain.len())
                .find(|&at| belongs(&signing_key, &chain[at]).is_ok_and(|belongs| belongs));
            return Err(match owner {
                Some(at) => {
                    let predicate = format!(
                        "is in the wrong order: certificate 1 ({}) is not the one of the private \
                         key, but certificate {} ({}) is; it must be the first",
                        leaf.title(),
                        at + 1,
                        parsed[at].title()
                    );
                    certificates.error(TlsErrorKind::ChainOrder, predicate)
                }
                None => {
                    let holder = match certificates.path() {
                        Some(path) => format!(" in {}", path.display()),
                        None => String::new(),
                    };
                    let predicate = format!(
                        "does not belong to the certificate {}{holder}",
                        leaf.title()
                    );
                    key.error(TlsErrorKind::KeyMismatch, predicate)
                }
            });
        }
        Err(error) => {
            let predicate = format!("holds a certificate that TLS cannot use: {error}");
            return Err(certificates.error(TlsErrorKind::MalformedCertificate, predicate));
        }
    }

    let algorithms = &provider.signature_verification_algorithms;
    let mut signed = leaf;
    for (before, issuer) in issuers.iter().enumerate() {
        if !signed.is_signed_by(issuer, algorithms) {
            let predicate = format!(
                "is in the wrong order: certificate {} ({}) did not sign certificate {} ({})",
                before + 2,
                issuer.title(),
                before + 1,
                signed.title()
            );
            return Err(certificates.error(TlsErrorKind::ChainOrder, predicate));
        }
        signed = issuer;
    }
    let mut facts = leaf.facts(certificates.path());
    let holder = match certificates.path() {
        Some(path) => format!(" in {}", path.display()),
        None => String::new(),
    };
    let period = |issuer: &Certificate<'_>| {
        let title = format!(
            "the certificate of the authority {}{holder}",
            issuer.title()
        );
        issuer.period(title)
    };
    facts.issuers = issuers.iter().map(period).collect();
    Ok((CertifiedKey::new(chain, signing_key), facts))
}

/// Parses all certificates of `input`.
pub(super) fn parse<'a>(
    input: &Input,
    certificates: &'a [CertificateDer<'_>],
) -> Result<Vec<Certificate<'a>>, TlsError> {
    let parsed = certificates.iter().enumerate().map(|(at, der)| {
        Certificate::parse(der).ok_or_else(|| {
            let predicate = format!("is malformed: certificate {} is not valid DER", at + 1);
            input.error(TlsErrorKind::MalformedCertificate, predicate)
        })
    });
    parsed.collect()
}

/// Whether `key` is the private key of `certificate`.
fn belongs(
    key: &Arc<dyn SigningKey>,
    certificate: &CertificateDer<'static>,
) -> Result<bool, Error> {
    let pair = CertifiedKey::new(vec![certificate.clone()], Arc::clone(key));
    match pair.keys_match() {
        // The kind of key does not tell its public key.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(true),
        Err(Error::InconsistentKeys(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn signing_key(
    input: &Input,
    der: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Arc<dyn SigningKey>, TlsError> {
    // The description is needed only if the key is refused, but loading consumes the key.
    let kind = KeyType::of(&der);
    provider.key_provider.load_private_key(der).map_err(|_| {
        match kind.and_then(KeyType::unsupported) {
            Some(name) => {
                let predicate = format!("holds an unsupported key ({name}); {SUPPORTED}");
                input.error(TlsErrorKind::UnsupportedKey, predicate)
            }
            None => input.error(TlsErrorKind::MalformedKey, "holds a malformed private key"),
        }
    })
}

/// The type of a private key, as far as errors need it.
#[derive(Debug, Eq, PartialEq)]
enum KeyType {
    Rsa { bits: usize },
    Ec(Curve),
    Ed25519,
    Other(&'static str),
}

/// The curve of an elliptic curve key.
#[derive(Debug, Eq, PartialEq)]
enum Curve {
    /// P-256, P-384 or P-521.
    Nist,
    Other(&'static str),
}

impl KeyType {
    /// `None` if the key is malformed.
    fn of(der: &PrivateKeyDer<'_>) -> Option<KeyType> {
        match der {
            PrivateKeyDer::Pkcs1(der) => KeyType::of_pkcs1(der.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(der) => KeyType::of_sec1(der.secret_sec1_der()),
            PrivateKeyDer::Pkcs8(der) => KeyType::of_pkcs8(der.secret_pkcs8_der()),
            _ => None,
        }
    }

    /// RFC 8017, appendix A.1.2: the version, then the modulus.
    fn of_pkcs1(der: &[u8]) -> Option<KeyType> {
        let mut key = der::sequence(der)?;
        key.content(tag::INTEGER)?;
        let bits = der::bits(key.content(tag::INTEGER)?);
        Some(KeyType::Rsa { bits })
    }

    /// RFC 5915: the version, the private key, then `[0]` with the curve.
    fn of_sec1(der: &[u8]) -> Option<KeyType> {
        let mut key = der::sequence(der)?;
        key.content(tag::INTEGER)?;
        key.content(tag::OCTET_STRING)?;
        let curve = key
            .inside(tag::EXPLICIT_0)?
            .content(tag::OBJECT_IDENTIFIER)?;
        Some(KeyType::Ec(Curve::of(curve)))
    }

    /// RFC 5958: the version, the algorithm, then the key in a format of the algorithm.
    fn of_pkcs8(der: &[u8]) -> Option<KeyType> {
        let mut key = der::sequence(der)?;
        key.content(tag::INTEGER)?;
        let mut algorithm = key.inside(tag::SEQUENCE)?;
        let name = algorithm.content(tag::OBJECT_IDENTIFIER)?;
        let inner = key.content(tag::OCTET_STRING)?;
        match name {
            // 1.2.840.113549.1.1.1
            b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01" => KeyType::of_pkcs1(inner),
            // 1.2.840.10045.2.1
            b"\x2a\x86\x48\xce\x3d\x02\x01" => {
                let curve = algorithm.content(tag::OBJECT_IDENTIFIER)?;
                Some(KeyType::Ec(Curve::of(curve)))
            }
            b"\x2b\x65\x70" => Some(KeyType::Ed25519),
            b"\x2b\x65\x71" => Some(KeyType::Other("Ed448")),
            b"\x2b\x65\x6e" => Some(KeyType::Other("X25519")),
            b"\x2a\x86\x48\xce\x38\x04\x01" => Some(KeyType::Other("DSA")),
            b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a" => Some(KeyType::Other("RSASSA-PSS")),
            _ => Some(KeyType::Other("an unknown type")),
        }
    }

    /// The name of the type for an error, or `None` if it is supported.
    fn unsupported(self) -> Option<String> {
        match self {
            KeyType::Rsa {
                bits: 2048..=8192, ..
            } => None,
            KeyType::Rsa { bits } => Some(format!("RSA with {bits} bits")),
            KeyType::Ec(Curve::Nist) | KeyType::Ed25519 => None,
            KeyType::Ec(Curve::Other(name)) => Some(format!("ECDSA on {name}")),
            KeyType::Other(name) => Some(name.to_owned()),
        }
    }
}

impl Curve {
    fn of(object_identifier: &[u8]) -> Curve {
        match object_identifier {
            b"\x2a\x86\x48\xce\x3d\x03\x01\x07"
            | b"\x2b\x81\x04\x00\x22"
            | b"\x2b\x81\x04\x00\x23" => Curve::Nist,
            b"\x2b\x81\x04\x00\x0a" => Curve::Other("secp256k1"),
            b"\x2b\x81\x04\x00\x21" => Curve::Other("P-224"),
            _ => Curve::Other("an unknown curve"),
        }
    }
}
