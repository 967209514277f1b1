//! What a handler learns about the TLS connection of a request.

use super::facts::{Certificate, SubjectName};
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, ProtocolVersion};
use std::fmt;

/// The TLS connection of a request.
///
/// # Examples
/// ```
/// use onrush::{Response, TlsInfo};
///
/// fn describe(tls: &TlsInfo) -> Response {
///     let name = tls.server_name().unwrap_or("no name");
///     let (version, suite) = (tls.version(), tls.cipher_suite());
///     Response::text(format!("{name} by {version} with {suite}\n"))
/// }
/// ```
pub struct TlsInfo {
    parts: TlsParts,
    client: Option<ClientIdentity>,
}

/// What a handshake negotiated.
#[derive(Debug)]
pub(crate) struct TlsParts {
    pub(crate) version: ProtocolVersion,
    pub(crate) cipher_suite: CipherSuite,
    pub(crate) server_name: Option<String>,
    pub(crate) alpn: Option<Vec<u8>>,
    /// The certificates of the client, its own first, which is verified.
    pub(crate) peer_certificates: Vec<CertificateDer<'static>>,
    pub(crate) is_resumed: bool,
}

impl TlsInfo {
    /// Parses the client's certificate here, once per connection, so that each request can read the
    /// names.
    pub(crate) fn new(parts: TlsParts) -> TlsInfo {
        let leaf = parts.peer_certificates.first();
        let client = leaf.and_then(|der| ClientIdentity::of(der));
        TlsInfo { parts, client }
    }

    /// The version: `TLSv1.3` or `TLSv1.2`.
    pub fn version(&self) -> &'static str {
        match self.parts.version {
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            // rustls supports no other.
            _ => "unknown",
        }
    }

    /// The cipher suite by its IANA name, such as `TLS_AES_256_GCM_SHA384` or
    /// `TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256`.
    pub fn cipher_suite(&self) -> &'static str {
        match self.parts.cipher_suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
            CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
            suite => suite.as_str().unwrap_or("unknown"),
        }
    }

    /// The name that the client asked for (SNI), in lower case. A client that connects to an IP
    /// address sends none.
    ///
    /// The name may differ from the `Host` of a request, because a client may use one connection
    /// for several names of a certificate.
    pub fn server_name(&self) -> Option<&str> {
        self.parts.server_name.as_deref()
    }

    /// The negotiated protocol, such as `http/1.1`, if the client supports ALPN (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        self.parts.alpn.as_deref()
    }

    /// The certificates of the client in DER, its own first, which is verified. The others are what
    /// the client has sent to help with that; they may include certificates that were not needed.
    /// Empty if the client has presented none. In a resumed session, they are those of the first
    /// connection.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        &self.parts.peer_certificates
    }

    /// The verified identity of the client. `None` if it has presented no certificate, or one whose
    /// names cannot be read.
    ///
    /// # Examples
    /// ```
    /// use onrush::TlsInfo;
    ///
    /// fn is_admin(tls: &TlsInfo) -> bool {
    ///     tls.client().is_some_and(|client| client.common_name() == Some("admin"))
    /// }
    /// ```
    /// The identity is borrowed, so keep the value of [`Request::tls`](crate::Request::tls):
    /// ```
    /// use onrush::{Request, Response, TlsInfo};
    ///
    /// async fn greet(request: Request) -> Response {
    ///     let tls = request.tls();
    ///     let client = tls.as_deref().and_then(TlsInfo::client);
    ///     let name = client.and_then(|client| client.common_name());
    ///     Response::text(format!("hello {}\n", name.unwrap_or("stranger")))
    /// }
    /// ```
    pub fn client(&self) -> Option<&ClientIdentity> {
        self.client.as_ref()
    }

    /// Whether the handshake resumed an earlier session.
    pub fn is_resumed(&self) -> bool {
        self.parts.is_resumed
    }
}

/// Without the certificates, which are long.
impl fmt::Debug for TlsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsInfo")
            .field("version", &self.version())
            .field("cipher_suite", &self.cipher_suite())
            .field("server_name", &self.server_name())
            .field("alpn", &self.alpn().map(String::from_utf8_lossy))
            .field("client", &self.client)
            .field("is_resumed", &self.is_resumed())
            .finish_non_exhaustive()
    }
}

/// The names of a client's verified certificate.
///
/// The authority vouches for the names; whether they grant access is the handler's decision.
///
/// # Examples
/// ```
/// use onrush::tls::{ClientIdentity, SubjectName};
///
/// fn has_email(client: &ClientIdentity, address: &str) -> bool {
///     let email = SubjectName::Email(address.to_owned());
///     client.alternative_names().contains(&email)
/// }
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ClientIdentity {
    subject: String,
    common_name: Option<String>,
    alternative_names: Vec<SubjectName>,
}

impl ClientIdentity {
    fn of(der: &[u8]) -> Option<ClientIdentity> {
        let certificate = Certificate::parse(der)?;
        Some(ClientIdentity {
            subject: certificate.subject(),
            common_name: certificate.common_name(),
            alternative_names: certificate.alternative_names(),
        })
    }

    /// The subject, such as `CN=alice, O=Example`, for logs. It may be empty. Compare
    /// [`common_name`](ClientIdentity::common_name) or
    /// [`alternative_names`](ClientIdentity::alternative_names) to decide on access, because
    /// different subjects can have the same text.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// The common name of the subject. `None` if the subject has none, or several.
    pub fn common_name(&self) -> Option<&str> {
        self.common_name.as_deref()
    }

    /// The names of the subject alternative name extension, without those of other types.
    pub fn alternative_names(&self) -> &[SubjectName] {
        &self.alternative_names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn parts(peer_certificates: Vec<CertificateDer<'static>>) -> TlsParts {
        TlsParts {
            version: ProtocolVersion::TLSv1_3,
            cipher_suite: CipherSuite::TLS13_AES_128_GCM_SHA256,
            server_name: Some("example.org".to_owned()),
            alpn: Some(b"http/1.1".to_vec()),
            peer_certificates,
            is_resumed: true,
        }
    }

    fn certificate(params: &CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn without_a_client_certificate_there_is_no_identity() {
        let info = TlsInfo::new(parts(Vec::new()));
        assert_eq!(info.version(), "TLSv1.3");
        assert_eq!(info.cipher_suite(), "TLS_AES_128_GCM_SHA256");
        assert_eq!(info.server_name(), Some("example.org"));
        assert_eq!(info.alpn(), Some(&b"http/1.1"[..]));
        assert!(info.is_resumed());
        assert!(info.peer_certificates().is_empty());
        assert_eq!(info.client(), None);
        let info = TlsInfo::new(TlsParts {
            version: ProtocolVersion::TLSv1_2,
            cipher_suite: CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            ..parts(Vec::new())
        });
        assert_eq!(info.version(), "TLSv1.2");
        assert_eq!(
            info.cipher_suite(),
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
        );
    }

    #[test]
    fn the_identity_is_that_of_the_first_certificate() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
        params.subject_alt_names = vec![
            SanType::DnsName("Alice.example.org".try_into().unwrap()),
            SanType::Rfc822Name("alice@example.org".try_into().unwrap()),
            SanType::URI("spiffe://example.org/alice".try_into().unwrap()),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
            SanType::IpAddress(Ipv6Addr::LOCALHOST.into()),
        ];
        let chain = vec![
            certificate(&params),
            certificate(&CertificateParams::default()),
        ];
        let info = TlsInfo::new(parts(chain.clone()));
        assert_eq!(info.peer_certificates(), chain);
        let client = info.client().unwrap();
        assert_eq!(client.common_name(), Some("alice"));
        assert_eq!(client.subject(), "CN=alice, O=Example");
        assert_eq!(
            client.alternative_names(),
            [
                SubjectName::Dns("Alice.example.org".to_owned()),
                SubjectName::Email("alice@example.org".to_owned()),
                SubjectName::Uri("spiffe://example.org/alice".to_owned()),
                SubjectName::Ip(Ipv4Addr::LOCALHOST.into()),
                SubjectName::Ip(Ipv6Addr::LOCALHOST.into()),
            ]
        );
    }

    /// One program would compare the first, another the last.
    #[test]
    fn several_common_names_are_none() {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // CN under its object identifier is a second attribute for rcgen.
        params.distinguished_name.push(DnType::CommonName, "alice");
        let custom = DnType::CustomDnType(vec![2, 5, 4, 3]);
        params.distinguished_name.push(custom, "admin");
        let info = TlsInfo::new(parts(vec![certificate(&params)]));
        let client = info.client().unwrap();
        assert_eq!(client.subject(), "CN=alice, CN=admin");
        assert_eq!(client.common_name(), None);
    }
}
