//! What a certificate says (RFC 5280): its names, its validity, and who signed it.

use super::der::{self, tag};
use onrush_proto::date::utc;
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

/// A certificate of the server, for metrics and warnings.
///
/// # Examples
/// ```
/// use onrush::TlsConfig;
/// use std::time::SystemTime;
///
/// let made = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
/// let config = TlsConfig::from_pem(made.cert.pem(), made.signing_key.serialize_pem())?;
/// let facts = &config.certificates()[0];
/// assert_eq!(facts.dns_names(), ["example.org"]);
/// assert!(facts.not_before() < facts.not_after());
/// assert_eq!(facts.warning(SystemTime::now()), None);
/// assert_eq!(
///     facts.warning(SystemTime::UNIX_EPOCH).unwrap(),
///     "the certificate of example.org is not valid before 1975-01-01 00:00:00 UTC"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificateFacts {
    pub(super) subject: String,
    pub(super) dns_names: Vec<String>,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
    pub(super) path: Option<PathBuf>,
    pub(super) ocsp_expires: Option<SystemTime>,
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

    /// The time after which the stapled OCSP response is no longer valid (`nextUpdate`, RFC 6960).
    /// `None` if there is no response, or if it has no such time.
    pub fn ocsp_expires(&self) -> Option<SystemTime> {
        self.ocsp_expires
    }

    /// A line for the log if, at the time `now`, the certificate is expired or not yet valid, or
    /// the OCSP response is expired. Clients then refuse the connection, but the server works.
    pub fn warning(&self, now: SystemTime) -> Option<String> {
        let file = match &self.path {
            Some(path) => format!(" in {}", path.display()),
            None => String::new(),
        };
        let name = match (self.dns_names.first(), self.subject.as_str()) {
            (Some(name), _) => name,
            (None, "") => "an empty subject",
            (None, subject) => subject,
        };
        let text = if now > self.not_after {
            let time = utc(self.not_after);
            format!("the certificate of {name}{file} expired at {time}")
        } else if now < self.not_before {
            let time = utc(self.not_before);
            format!("the certificate of {name}{file} is not valid before {time}")
        } else if let Some(expires) = self.ocsp_expires.filter(|expires| now > *expires) {
            let time = utc(expires);
            format!("the OCSP response for the certificate of {name}{file} expired at {time}")
        } else {
            return None;
        };
        Some(text.replace(char::is_control, " "))
    }
}

/// A parsed certificate.
pub(super) struct Certificate<'a> {
    der: &'a [u8],
    parsed: X509Certificate<'a>,
}

impl<'a> Certificate<'a> {
    /// `None` if `der` is not exactly one certificate.
    pub(super) fn parse(der: &'a [u8]) -> Option<Certificate<'a>> {
        match X509Certificate::from_der(der) {
            Ok(([], parsed)) => Some(Certificate { der, parsed }),
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
            not_before: time_of(validity.not_before),
            not_after: time_of(validity.not_after),
            path: path.map(Path::to_owned),
            ocsp_expires: None,
        }
    }

    /// The end of the validity, in the form that rustls uses.
    pub(super) fn expires(&self) -> UnixTime {
        let seconds = self.parsed.validity().not_after.timestamp();
        UnixTime::since_unix_epoch(Duration::from_secs(seconds.try_into().unwrap_or(0)))
    }

    /// Whether other certificates can be verified with this one: it is an authority (RFC 5280
    /// §4.2.1.9), too old to say so, or signed by itself, so that it verifies itself.
    pub(super) fn verifies_others(&self, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        self.parsed.is_ca()
            || self.parsed.version() != X509Version::V3
            || self.is_signed_by(self, algorithms)
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

    fn signed(&self) -> Option<Signed<'a>> {
        let mut certificate = der::sequence(self.der)?;
        Some(Signed {
            message: certificate.any()?.whole,
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
    fn every_warning_names_the_certificate() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let facts = CertificateFacts {
            subject: "CN=a".to_owned(),
            dns_names: Vec::new(),
            not_before: at(100),
            not_after: at(200),
            path: Some(PathBuf::from("a.pem")),
            ocsp_expires: Some(at(150)),
        };
        let warning = |seconds| facts.warning(at(seconds)).unwrap_or_default();
        assert_eq!(
            warning(99),
            "the certificate of CN=a in a.pem is not valid before 1970-01-01 00:01:40 UTC"
        );
        assert_eq!(warning(100), "");
        assert_eq!(warning(150), "");
        assert_eq!(
            warning(151),
            "the OCSP response for the certificate of CN=a in a.pem expired at \
             1970-01-01 00:02:30 UTC"
        );
        assert_eq!(
            warning(201),
            "the certificate of CN=a in a.pem expired at 1970-01-01 00:03:20 UTC"
        );
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
