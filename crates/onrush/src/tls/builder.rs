//! The builder of a TLS configuration.

use super::chain;
use super::client_verifier::Clients;
use super::config::{Loaded, Sessions, TlsConfig};
use super::error::{TlsError, TlsErrorKind};
use super::facts::{Certificate, CertificateFacts};
use super::ocsp;
use super::pem::{Role, Source};
use super::resolver::{Resolver, Served};
use super::suites;
use super::tickets::{Resumption, TICKETS};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

const UNSTAPLED: &str = "requires an OCSP response (must-staple, RFC 7633) and has none";

/// Builds a [`TlsConfig`]. Files are read by [`build`](TlsConfigBuilder::build).
///
/// # Examples
/// Two sites, and clients that may present a certificate of an authority:
/// ```
/// use onrush::TlsConfig;
/// use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
///
/// let make = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]);
/// let (org, com) = (make("example.org")?, make("*.example.com")?);
/// let mut ca = CertificateParams::default();
/// ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
/// let ca = ca.self_signed(&KeyPair::generate()?)?;
/// let config = TlsConfig::builder()
///     .certificate(org.cert.pem(), org.signing_key.serialize_pem())
///     .certificate(com.cert.pem(), com.signing_key.serialize_pem())
///     .client_ca(ca.pem())
///     .client_certificates_optional()
///     .build()?;
/// assert_eq!(config.certificates().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TlsConfigBuilder {
    certificates: Vec<Pair>,
    client_authorities: Vec<Source>,
    is_client_required: bool,
    alpn: Vec<Vec<u8>>,
    tickets: usize,
    early_data_bytes: u32,
    is_tls12_accepted: bool,
    /// The first call that does not fit.
    misuse: Option<&'static str>,
}

/// A certificate with what belongs to it.
struct Pair {
    certificate: Source,
    key: Source,
    ocsp: Option<Source>,
}

impl TlsConfig {
    /// A configuration with one certificate.
    ///
    /// `certificate` is PEM: the certificate of the server, then the certificates of the
    /// authorities up to, and without, the root. `key` is PEM as well, in PKCS#8, PKCS#1 or SEC1.
    /// Both may be the same text.
    ///
    /// # Errors
    /// [`TlsError`] tells what is wrong with the certificate or the key. An expired certificate is
    /// no error; see [`TlsConfig::warnings`].
    pub fn from_pem(
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<TlsConfig, TlsError> {
        TlsConfig::builder().certificate(certificate, key).build()
    }

    /// A configuration with one certificate, from PEM files.
    ///
    /// # Errors
    /// As for [`from_pem`](TlsConfig::from_pem), or if a file cannot be read.
    ///
    /// # Examples
    /// ```no_run
    /// use onrush::TlsConfig;
    ///
    /// let config = TlsConfig::from_files("/etc/ssl/site.pem", "/etc/ssl/private/site.key")?;
    /// # Ok::<(), onrush::TlsError>(())
    /// ```
    pub fn from_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<TlsConfig, TlsError> {
        TlsConfig::builder()
            .certificate_files(certificate, key)
            .build()
    }

    /// A builder for a configuration with several certificates, client certificates, and more.
    pub fn builder() -> TlsConfigBuilder {
        TlsConfigBuilder::new()
    }
}

impl TlsConfigBuilder {
    pub(super) fn new() -> TlsConfigBuilder {
        TlsConfigBuilder {
            certificates: Vec::new(),
            client_authorities: Vec::new(),
            is_client_required: true,
            alpn: [&b"h2"[..], b"http/1.1", b"http/1.0"]
                .map(<[u8]>::to_vec)
                .into(),
            tickets: TICKETS,
            early_data_bytes: 0,
            is_tls12_accepted: true,
            misuse: None,
        }
    }

    /// Adds a certificate and its key as PEM, as for [`TlsConfig::from_pem`].
    ///
    /// Clients receive the certificate that has the DNS name they ask for, exactly or by a
    /// wildcard for one label. Of several, they receive the first whose key they support, so a
    /// name may have an ECDSA and an RSA certificate. Clients that ask for no name, or for an
    /// unknown one, receive the certificate that was added first.
    #[must_use]
    pub fn certificate(
        mut self,
        certificate: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> TlsConfigBuilder {
        self.certificates.push(Pair {
            certificate: Source::Memory(certificate.as_ref().to_vec()),
            key: Source::Memory(key.as_ref().to_vec()),
            ocsp: None,
        });
        self
    }

    /// Adds a certificate and its key from PEM files. See
    /// [`certificate`](TlsConfigBuilder::certificate).
    #[must_use]
    pub fn certificate_files(
        mut self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> TlsConfigBuilder {
        self.certificates.push(Pair {
            certificate: Source::File(certificate.as_ref().to_owned()),
            key: Source::File(key.as_ref().to_owned()),
            ocsp: None,
        });
        self
    }

    /// Staples an OCSP response, in DER, to the certificate that was added last. Clients do not
    /// receive it any more when it has expired.
    ///
    /// A response that says that the certificate is revoked is an error of
    /// [`build`](TlsConfigBuilder::build).
    #[must_use]
    pub fn ocsp_response(self, der: impl AsRef<[u8]>) -> TlsConfigBuilder {
        self.ocsp(Source::Memory(der.as_ref().to_vec()))
    }

    /// Staples the OCSP response of a file, in DER, to the certificate that was added last. The
    /// file is read once; to renew the response, [replace](TlsConfig::replace) the configuration.
    #[must_use]
    pub fn ocsp_response_file(self, path: impl AsRef<Path>) -> TlsConfigBuilder {
        self.ocsp(Source::File(path.as_ref().to_owned()))
    }

    fn ocsp(mut self, source: Source) -> TlsConfigBuilder {
        match self.certificates.last_mut() {
            Some(pair) => pair.ocsp = Some(source),
            None => self.misused("an OCSP response must follow its certificate"),
        }
        self
    }

    /// Requires a certificate of each client, signed by one of the authorities in `pem`. Further
    /// calls add authorities.
    ///
    /// Each must be the certificate of an authority (basicConstraints CA:TRUE): who has the key of
    /// a certificate here can make clients of any name. It may have expired, because only its key
    /// matters; [`warnings`](TlsConfig::warnings) reports that.
    ///
    /// A client whose certificate has expired is refused, also if it resumes a session. Otherwise a
    /// resumed session is not verified again.
    #[must_use]
    pub fn client_ca(mut self, pem: impl AsRef<[u8]>) -> TlsConfigBuilder {
        let source = Source::Memory(pem.as_ref().to_vec());
        self.client_authorities.push(source);
        self
    }

    /// Requires a certificate of each client, signed by one of the authorities in a PEM file. See
    /// [`client_ca`](TlsConfigBuilder::client_ca).
    #[must_use]
    pub fn client_ca_file(mut self, path: impl AsRef<Path>) -> TlsConfigBuilder {
        let source = Source::File(path.as_ref().to_owned());
        self.client_authorities.push(source);
        self
    }

    /// Accepts clients without a certificate, too. A certificate of another authority is still
    /// refused.
    #[must_use]
    pub fn client_certificates_optional(mut self) -> TlsConfigBuilder {
        self.is_client_required = false;
        self
    }

    /// The protocols that ALPN (RFC 7301) offers, in order of preference. The default is `h2`
    /// (HTTP/2), then `http/1.1`, then `http/1.0`. A client that supports ALPN, but none of them,
    /// is refused with an alert. Without any protocol, ALPN is not used.
    #[must_use]
    pub fn alpn<P: Into<Vec<u8>>>(
        mut self,
        protocols: impl IntoIterator<Item = P>,
    ) -> TlsConfigBuilder {
        self.alpn = protocols.into_iter().map(Into::into).collect();
        if !self.alpn.iter().all(|name| (1..=255).contains(&name.len())) {
            self.misused("an ALPN protocol has 1 to 255 bytes");
        }
        self
    }

    /// How many TLS 1.3 tickets a connection receives, to resume its session later. The default is
    /// 1: each connection yields one, also a resumed connection. Zero turns resumption off, for
    /// TLS 1.2 as well.
    ///
    /// Keys of tickets are made in memory and change every 6 hours. A ticket is valid for 6 to 12
    /// hours, and until the process ends.
    #[must_use]
    pub fn session_tickets(mut self, tickets: usize) -> TlsConfigBuilder {
        self.tickets = tickets;
        self
    }

    /// Accepts up to `bytes` of early data (0-RTT, RFC 8446, section 2.3) from clients that resume
    /// a TLS 1.3 session. The default is 0: none.
    ///
    /// The engine processes early data when the handshake is complete. By then the client has
    /// proven that it does not repeat an earlier connection (RFC 8470, section 3), so any method is
    /// safe, and the response takes as long as without early data. This server accepts the early
    /// data of a session only once: it stores the last 4,096 sessions instead of using tickets that
    /// clients keep.
    #[must_use]
    pub fn early_data(mut self, bytes: u32) -> TlsConfigBuilder {
        self.early_data_bytes = bytes;
        self
    }

    /// Refuses TLS 1.2.
    #[must_use]
    pub fn tls13_only(mut self) -> TlsConfigBuilder {
        self.is_tls12_accepted = false;
        self
    }

    fn misused(&mut self, text: &'static str) {
        self.misuse.get_or_insert(text);
    }

    /// Reads all files and makes the configuration.
    ///
    /// # Errors
    /// [`TlsError`] tells the first thing that is wrong.
    pub fn build(mut self) -> Result<TlsConfig, TlsError> {
        if self.certificates.is_empty() {
            self.misused("TLS needs a certificate");
        }
        if !self.is_client_required && self.client_authorities.is_empty() {
            self.misused("optional client certificates need a client CA");
        }
        if let Some(text) = self.misuse {
            return Err(TlsError::new(TlsErrorKind::Settings, None, text));
        }
        let provider = Arc::new(suites::provider());
        let mut pairs = Vec::new();
        for pair in self.certificates {
            pairs.push(pair.load(&provider)?);
        }
        let resolver = Resolver::new(
            pairs
                .iter()
                .map(|(served, facts)| (Arc::clone(served), facts.dns_names())),
        );
        let mut verifier = WebPkiClientVerifier::no_client_auth();
        let mut client_auth = None;
        let mut client_authorities = Vec::new();
        if !self.client_authorities.is_empty() {
            let clients =
                Clients::load(self.client_authorities, self.is_client_required, &provider)?;
            verifier = clients.verifier;
            client_auth = Some(clients.auth);
            client_authorities = clients.periods;
        }
        let versions = match self.is_tls12_accepted {
            true => &[&TLS13, &TLS12][..],
            false => &[&TLS13],
        };
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| TlsError::crypto(&error))?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(Arc::new(resolver));
        // The engine encrypts and decrypts records itself.
        server.enable_secret_extraction = true;
        server.ignore_client_order = true; // See `suites`.
        server.alpn_protocols = self.alpn;
        server.max_early_data_size = self.early_data_bytes;
        let has_client_auth = client_auth.is_some();
        let resumption = Resumption::new(self.tickets, self.early_data_bytes, has_client_auth)?;
        resumption.apply(&mut server, self.tickets);
        Ok(TlsConfig::new(Loaded {
            client_order: Some(Arc::new(suites::in_client_order(&server))),
            server: Arc::new(server),
            certificates: pairs.into_iter().map(|(_, facts)| facts).collect(),
            client_authorities,
            challenges: None,
            sessions: Some(Sessions {
                client_auth,
                verifier,
                resumption,
                tickets: self.tickets,
            }),
        }))
    }
}

impl Pair {
    fn load(self, provider: &CryptoProvider) -> Result<(Arc<Served>, CertificateFacts), TlsError> {
        let certificate = self.certificate.read(Role::Certificate)?;
        let key = self.key.read(Role::Key)?;
        let (mut certified, mut facts) = chain::load(&certificate, &key, provider)?;
        // `chain::load` has parsed it.
        let leaf = certified.cert.first().map(|der| der.to_vec());
        let leaf = leaf.as_deref().and_then(Certificate::parse);
        match self.ocsp {
            Some(ocsp) => {
                let response = ocsp.read(Role::Ocsp)?;
                let serial = leaf.map_or(&[][..], |leaf| leaf.serial());
                let period = ocsp::check(&response, serial)?;
                let title = format!("the OCSP response for {}", facts.title());
                facts.ocsp = Some(period.titled(title));
                certified.ocsp = Some(response.bytes().to_vec());
            }
            None if leaf.is_some_and(|leaf| leaf.must_staple()) => facts.flaws.push(UNSTAPLED),
            None => {}
        }
        let served = Served::new(certified, facts.ocsp_expires());
        Ok((Arc::new(served), facts))
    }
}

/// Without keys.
impl fmt::Debug for TlsConfigBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfigBuilder")
            .field("certificates", &self.certificates.len())
            .field("client_authorities", &self.client_authorities.len())
            .field("alpn", &self.alpn)
            .finish_non_exhaustive()
    }
}
