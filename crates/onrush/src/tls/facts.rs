//! What a certificate says (RFC 5280): its names, its validity, and who signed it.

use super::der::{self, tag};
use super::period::Period;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::UnixTime;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Version;

/// `id-pe-tlsfeature` (RFC 7633).
const TLS_FEATURE: &[u8] = b"\x2b\x06\x01\x05\x05\x07\x01\x18";
/// The content of the INTEGER of the TLS extension `status_request`.
const STATUS_REQUEST: &[u8] = &[5];

/// A certificate of the server, for metrics and warnings.
///
/// # Examples
/// ```
/// use onrush::TlsConfig;
/// use std::time::SystemTime;
///
/// let names = ["example.org", "192.0.2.1"].map(str::to_owned);
/// let made = rcgen::generate_simple_self_signed(names)?;
/// let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
/// let facts = &config.certificates()[0];
/// assert_eq!(facts.dns_names(), ["example.org"]);
/// assert_eq!(facts.ip_addresses()[0].to_string(), "192.0.2.1");
/// assert!(facts.not_before() < facts.not_after());
/// assert!(facts.warnings(SystemTime::now()).is_empty());
/// assert_eq!(
///     facts.warnings(SystemTime::UNIX_EPOCH),
///     ["the certificate of example.org is not valid before 1975-01-01 00:00:00 UTC"]
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFacts {
    pub(super) subject: String,
    pub(super) dns_names: Vec<String>,
    pub(super) ip_addresses: Vec<IpAddr>,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
    pub(super) path: Option<PathBuf>,
    /// The validity of the further certificates of the chain.
    pub(super) issuers: Vec<Period>,
    pub(super) ocsp: Option<Period>,
    /// Why clients refuse the certificate at any time, as predicates.
    pub(super) flaws: Vec<&'static str>,
}

impl CertificateFacts {
    /// The subject, such as `CN=example.org`. It may be empty.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The DNS names of the subject alternative name extension, such as `*.example.org`, in lower
    /// case.
    pub fn dns_names(&self) -> &[String] {
        &self.dns_names
    }

    /// The IP addresses of the subject alternative name extension.
    pub fn ip_addresses(&self) -> &[IpAddr] {
        &self.ip_addresses
    }

    /// The start of the validity.
    pub fn not_before(&self) -> SystemTime {
        self.not_before
    }

    /// The end of the validity.
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// The file that the certificate was read from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The time after which the whole chain is no longer valid: the earliest end of the validity of
    /// this certificate and of the further ones of its file.
    pub fn chain_not_after(&self) -> SystemTime {
        let issuers = self.issuers.iter().filter_map(|issuer| issuer.end);
        issuers.fold(self.not_after, SystemTime::min)
    }

    /// The time after which the stapled OCSP response is no longer valid (`nextUpdate`, RFC 6960).
    /// Clients do not receive it any more then. `None` if there is no response, or if it has no
    /// such time.
    pub fn ocsp_expires(&self) -> Option<SystemTime> {
        self.ocsp.as_ref()?.end
    }

    /// The certificate for the log.
    pub(super) fn title(&self) -> String {
        let name = match (self.dns_names.first(), self.subject.as_str()) {
            (Some(name), _) => name,
            (None, "") => "an empty subject",
            (None, subject) => subject,
        };
        match &self.path {
            Some(path) => format!("the certificate of {name} in {}", path.display()),
            None => format!("the certificate of {name}"),
        }
    }
}

/// A parsed certificate.
pub(super) struct Certificate<'a> {
    parsed: X509Certificate<'a>,
}

impl<'a> Certificate<'a> {
    /// `None` if `der` is not exactly one certificate.
    pub(super) fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => Some(Certificate { parsed }),
            _ => None,
        }
    }

    pub(super) fn subject(&self) -> String {
        self.parsed.subject().to_string()
    }

    /// The common name of the subject, if it has exactly one. Of several, programs would choose
    /// different ones.
    pub(super) fn common_name(&self) -> Option<String> {
        let mut names = self.parsed.subject().iter_common_name();
        match (names.next(), names.next()) {
            (Some(name), None) => name.as_str().ok().map(str::to_owned),
            _ => None,
        }
    }

    /// The subject for errors. Certificates of public authorities may have names only in the
    /// extension.
    pub(super) fn title(&self) -> String {
        match (self.subject(), self.dns_names().into_iter().next()) {
            (subject, _) if !subject.is_empty() => subject,
            (_, Some(name)) => name,
            (_, None) => "an empty subject".to_owned(),
        }
    }

    pub(super) fn serial(&self) -> &'a [u8] {
        self.parsed.raw_serial()
    }

    /// The DNS names of the subject alternative name extension, in lower case.
    pub(super) fn dns_names(&self) -> Vec<String> {
        let names = self.alternative_names();
        names
            .into_iter()
            .filter_map(|name| match name {
                SubjectName::Dns(name) => Some(name.to_ascii_lowercase()),
                _ => None,
            })
            .collect()
    }

    fn ip_addresses(&self) -> Vec<IpAddr> {
        let names = self.alternative_names().into_iter();
        let addresses = names.filter_map(|name| match name {
            SubjectName::Ip(address) => Some(address),
            _ => None,
        });
        addresses.collect()
    }

    /// The names of the subject alternative name extension, without those of other types.
    pub(super) fn alternative_names(&self) -> Vec<SubjectName> {
        let extension = self.parsed.subject_alternative_name();
        let Ok(Some(extension)) = extension else {
            return Vec::new();
        };
        let names = &extension.value.general_names;
        names.iter().filter_map(SubjectName::of).collect()
    }

    pub(super) fn facts(&self, path: Option<&Path>) -> CertificateFacts {
        let validity = self.parsed.validity();
        CertificateFacts {
            subject: self.subject(),
            dns_names: self.dns_names(),
            ip_addresses: self.ip_addresses(),
            not_before: time_of(validity.not_before),
            not_after: time_of(validity.not_after),
            path: path.map(Path::to_owned),
            issuers: Vec::new(),
            ocsp: None,
            flaws: self.flaws(),
        }
    }

    /// Why clients refuse the certificate as the one of a server, at any time.
    fn flaws(&self) -> Vec<&'static str> {
        let is_host = |name| matches!(name, SubjectName::Dns(_) | SubjectName::Ip(_));
        let has_name = self.alternative_names().into_iter().any(is_host);
        let usage = self.parsed.extended_key_usage().ok().flatten();
        let is_for_servers = usage.is_none_or(|usage| usage.value.server_auth || usage.value.any);
        [
            (has_name, "has no host name or IP address in subjectAltName"),
            (is_for_servers, "has an extendedKeyUsage without serverAuth"),
        ]
        .into_iter()
        .filter_map(|(is_right, flaw)| (!is_right).then_some(flaw))
        .collect()
    }

    /// Whether clients may insist on a stapled OCSP response: the certificate has the TLS feature
    /// `status_request` (RFC 7633).
    pub(super) fn must_staple(&self) -> bool {
        let extensions = self.parsed.extensions().iter();
        let mut features = extensions
            .filter(|extension| extension.oid.as_bytes() == TLS_FEATURE)
            .filter_map(|extension| der::sequence(extension.value));
        features.any(|mut all| {
            std::iter::from_fn(|| all.content(tag::INTEGER))
                .any(|feature| feature == STATUS_REQUEST)
        })
    }

    /// The validity of this certificate, which the log calls `title`.
    pub(super) fn period(&self, title: String) -> Period {
        let validity = self.parsed.validity();
        Period::new(
            title,
            time_of(validity.not_before),
            Some(time_of(validity.not_after)),
        )
    }

    /// The end of the validity, in the form that rustls uses.
    pub(super) fn expires(&self) -> UnixTime {
        let seconds = self.parsed.validity().not_after.timestamp();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap_or(0)))
    }

    /// Whether it is the certificate of an authority (RFC 5280, section 4.2.1.9).
    pub(super) fn is_authority(&self) -> bool {
        self.parsed.is_ca()
    }

    /// Whether other certificates can be verified with this one: it is an authority, too old to say
    /// so, or signed by itself, so that it verifies itself.
    pub(super) fn verifies_others(&self, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        self.is_authority() || !self.is_version_3() || self.is_signed_by(self, algorithms)
    }

    /// Whether the certificate can have extensions, such as names of hosts.
    pub(super) fn is_version_3(&self) -> bool {
        self.parsed.version() == X509Version::V3
    }

    /// The name of the issuer. `None` if it is the subject.
    pub(super) fn issuer(&self) -> Option<String> {
        let issuer = self.parsed.issuer();
        let is_other = issuer.as_raw() != self.parsed.subject().as_raw();
        is_other.then(|| issuer.to_string())
    }

    /// Whether `issuer` signed this certificate. If no algorithm of `algorithms` is the one of the
    /// signature, the names decide.
    pub(super) fn is_signed_by(
        &self,
        issuer: &Certificate<'_>,
        algorithms: &WebPkiSupportedAlgorithms,
    ) -> bool {
        if self.parsed.issuer().as_raw() != issuer.parsed.subject().as_raw() {
            return false;
        }
        let (Some(signed), Some(key)) = (self.signed(), issuer.public_key()) else {
            return false;
        };
        let mut suitable = algorithms
            .all
            .iter()
            .filter(|algorithm| {
                algorithm.signature_alg_id().as_ref() == signed.algorithm
                    && algorithm.public_key_alg_id().as_ref() == key.algorithm
            })
            .peekable();
        let is_unknown = suitable.peek().is_none();
        let verified = suitable.any(|algorithm| {
            algorithm
                .verify_signature(key.key, signed.message, signed.signature)
                .is_ok()
        });
        is_unknown || verified
    }

    fn signed(&self) -> Option<Signed<'_>> {
        let mut certificate = der::sequence(self.parsed.as_raw())?;
        certificate.any()?; // The message.
        Some(Signed {
            message: self.parsed.tbs_certificate.as_ref(),
            algorithm: certificate.content(tag::SEQUENCE)?,
            signature: der::whole_bytes(certificate.content(tag::BIT_STRING)?)?,
        })
    }

    fn public_key(&self) -> Option<PublicKey<'_>> {
        let mut key = der::sequence(self.parsed.public_key().raw)?;
        Some(PublicKey {
            algorithm: key.content(tag::SEQUENCE)?,
            key: der::whole_bytes(key.content(tag::BIT_STRING)?)?,
        })
    }
}

/// The signature of a certificate, and what it signs.
struct Signed<'a> {
    message: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

/// The public key of a certificate.
struct PublicKey<'a> {
    algorithm: &'a [u8],
    key: &'a [u8],
}

/// A name of a certificate's subject, from its subject alternative name extension (RFC 5280,
/// section 4.2.1.6).
///
/// # Examples
/// ```
/// use onrush::tls::SubjectName;
///
/// /// The SPIFFE identity of a workload.
/// fn workload(names: &[SubjectName]) -> Option<&str> {
///     names.iter().find_map(|name| match name {
///         SubjectName::Uri(uri) => uri.strip_prefix("spiffe://example.org/"),
///         _ => None,
///     })
/// }
///
/// let names = [SubjectName::Uri("spiffe://example.org/billing".to_owned())];
/// assert_eq!(workload(&names), Some("billing"));
/// ```
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum SubjectName {
    /// A DNS name.
    Dns(String),
    /// An email address.
    Email(String),
    /// A URI.
    Uri(String),
    /// An IP address.
    Ip(IpAddr),
}

impl SubjectName {
    fn of(name: &GeneralName<'_>) -> Option<SubjectName> {
        match name {
            GeneralName::DNSName(name) => Some(SubjectName::Dns((*name).to_owned())),
            GeneralName::RFC822Name(address) => Some(SubjectName::Email((*address).to_owned())),
            GeneralName::URI(uri) => Some(SubjectName::Uri((*uri).to_owned())),
            GeneralName::IPAddress(octets) => {
                let v4 = <[u8; 4]>::try_from(*octets).map(|octets| Ipv4Addr::from(octets).into());
                let v6 = <[u8; 16]>::try_from(*octets).map(|octets| Ipv6Addr::from(octets).into());
                v4.or(v6).ok().map(SubjectName::Ip)
            }
            _ => None,
        }
    }
}

/// The time `from` as a `SystemTime`.
pub(super) fn time_of(from: ASN1Time) -> SystemTime {
    let seconds = from.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(distance),
        false => UNIX_EPOCH.checked_add(distance),
    };
    time.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted() {
        let after = Duration::from_secs(4_102_444_799);
        for (seconds, expected) in [
            (0, UNIX_EPOCH),
            (-1, UNIX_EPOCH - Duration::from_secs(1)),
            (4_102_444_799, UNIX_EPOCH + after),
        ] {
            let time = ASN1Time::from_timestamp(seconds).unwrap();
            assert_eq!(time_of(time), expected);
        }
    }

    #[test]
    fn only_the_key_that_signed_is_the_issuer() {
        let authority = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, name);
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap())
                .unwrap()
        };
        let (own, namesake, other) = (authority("a"), authority("a"), authority("b"));
        let leaf = rcgen::CertificateParams::new(["example.org".to_owned()])
            .unwrap()
            .signed_by(&rcgen::KeyPair::generate().unwrap(), &own)
            .unwrap();
        let leaf = Certificate::parse(leaf.der()).unwrap();
        let algorithms = rustls::crypto::aws_lc_rs::default_provider();
        let algorithms = &algorithms.signature_verification_algorithms;
        let is_issuer = |issuer: &rcgen::CertifiedIssuer<'_, rcgen::KeyPair>| {
            leaf.is_signed_by(&Certificate::parse(issuer.der()).unwrap(), algorithms)
        };
        assert!(is_issuer(&own));
        assert!(!is_issuer(&namesake), "the same name, another key");
        assert!(!is_issuer(&other));
    }
}
