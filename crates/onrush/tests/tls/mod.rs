//! Handshakes in memory, and the certificates and keys of this folder (`make.sh` makes them).
#![allow(unreachable_pub)]

pub mod ocsp;

use onrush::TlsConfig;
use onrush::tls::TlsConfigBuilder;
use onrush::tls::rustls::client::WebPkiServerVerifier;
use onrush::tls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use onrush::tls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use onrush::tls::rustls::time_provider::TimeProvider;
use onrush::tls::rustls::version::{TLS12, TLS13};
use onrush::tls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, RootCertStore,
    ServerConnection, SignatureScheme, SupportedProtocolVersion,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const VERSIONS: [&[&SupportedProtocolVersion]; 2] = [&[&TLS13], &[&TLS12]];

/// The path of a file of this folder.
pub fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    folder.join(name)
}

/// The content of a file of this folder.
pub fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixture(name)).unwrap()
}

/// The first certificate of a file of this folder.
pub fn der(name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(&read(name)).unwrap()
}

pub fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// A certificate with its key.
pub struct Made {
    pub certificate: String,
    pub key: String,
    pub der: CertificateDer<'static>,
}

/// An authority that signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let params = authority_params(name);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        Authority { issuer }
    }

    /// An authority that this one has certified.
    pub fn intermediate(&self, name: &str) -> Authority {
        self.intermediate_with(name, |_| {})
    }

    /// As [`Authority::intermediate`], with other parameters.
    pub fn intermediate_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Authority {
        let mut params = authority_params(name);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let issuer = CertifiedIssuer::signed_by(params, key, &self.issuer).unwrap();
        Authority { issuer }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// A certificate for all `names`, with the first as its subject.
    pub fn sign(&self, names: &[&str]) -> Made {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).unwrap();
        let subject = &mut params.distinguished_name;
        *subject = rcgen::DistinguishedName::new();
        subject.push(DnType::CommonName, names[0].as_str());
        self.sign_params(params)
    }

    /// A certificate with these parameters.
    pub fn sign_params(&self, params: CertificateParams) -> Made {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Made {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
        }
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// A client that trusts `root`. It remembers its sessions.
pub struct Client {
    config: Arc<ClientConfig>,
}

impl Client {
    pub fn new(root: CertificateDer<'static>) -> Client {
        Client::with(root, &[&TLS13, &TLS12], None, provider())
    }

    pub fn with(
        root: CertificateDer<'static>,
        versions: &[&'static SupportedProtocolVersion],
        certificate: Option<&Made>,
        provider: CryptoProvider,
    ) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(root).unwrap();
        let clock = Arc::new(In2050);
        let builder = ClientConfig::builder_with_details(Arc::new(provider), clock)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certificate {
            Some(made) => {
                let key = KeyPair::from_pem(&made.key).unwrap();
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
                let chain = vec![made.der.clone()];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.enable_early_data = true;
        Client {
            config: Arc::new(config),
        }
    }

    /// Changes the configuration of the client.
    pub fn change(mut self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        let mut config = ClientConfig::clone(&self.config);
        change(&mut config);
        self.config = Arc::new(config);
        self
    }

    /// The first flight of a resumed connection, with early data.
    pub fn first_flight(&self, name: &str) -> Vec<u8> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        let mut early = client.early_data().expect("a session with early data");
        early.write_all(b"early").unwrap();
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        flight
    }

    /// A handshake with the server for the site `name`.
    pub fn connect(&self, server: &TlsConfig, name: &str) -> Result<Handshake, Error> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.config), name)?;
        if let Some(mut early) = client.early_data() {
            // A client without early data for this site has no writer.
            early.write_all(b"early").unwrap();
        }
        let mut server = ServerConnection::new(server.current())?;
        // TLS 1.3 tickets follow the handshake; the client processes them in its last round.
        while client.wants_write() || server.wants_write() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            feed(&bytes, |input| {
                server.read_tls(input)?;
                Ok(server.process_new_packets().map(drop))
            })?;
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            feed(&bytes, |input| {
                client.read_tls(input)?;
                Ok(client.process_new_packets().map(drop))
            })?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ok(Handshake { client, server })
    }
}

fn feed(
    mut bytes: &[u8],
    mut step: impl FnMut(&mut &[u8]) -> std::io::Result<Result<(), Error>>,
) -> Result<(), Error> {
    while !bytes.is_empty() {
        step(&mut bytes).unwrap()?;
    }
    Ok(())
}

/// A builder with one certificate.
pub fn with(made: &Made) -> TlsConfigBuilder {
    TlsConfig::builder().certificate(&made.certificate, &made.key)
}

/// A client for each version.
pub fn clients(root: &Authority, certificate: Option<&Made>) -> [Client; 2] {
    VERSIONS.map(|versions| Client::with(root.der(), versions, certificate, provider()))
}

/// Both ends of a connection after their handshake.
pub struct Handshake {
    pub client: ClientConnection,
    pub server: ServerConnection,
}

impl Handshake {
    /// The certificate that the client received.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.client.peer_certificates().unwrap()[0]
    }

    pub fn is_resumed(&self) -> bool {
        self.server.handshake_kind() == Some(HandshakeKind::Resumed)
    }
}

impl Handshake {
    /// The early data that the server received.
    pub fn early_data(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(mut early) = self.server.early_data() {
            early.read_to_end(&mut bytes).unwrap();
        }
        bytes
    }

    /// Sends a byte from the client to the server.
    pub fn is_alive(&mut self) -> bool {
        self.client.writer().write_all(b"x").unwrap();
        let mut bytes = Vec::new();
        self.client.write_tls(&mut bytes).unwrap();
        self.server.read_tls(&mut bytes.as_slice()).unwrap();
        let state = self.server.process_new_packets().unwrap();
        state.plaintext_bytes_to_read() == 1
    }
}

/// The early data that a server accepts from a client's first flight. `None` if it accepts none.
pub fn early_data_in(server: &TlsConfig, flight: &[u8]) -> Option<Vec<u8>> {
    let mut server = ServerConnection::new(server.current()).unwrap();
    feed(flight, |input| {
        server.read_tls(input)?;
        Ok(server.process_new_packets().map(drop))
    })
    .unwrap();
    let mut bytes = Vec::new();
    server.early_data()?.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

/// A verifier that ignores names, or remembers the OCSP response.
#[derive(Debug)]
struct Verifier {
    /// Verifies signatures.
    inner: Arc<WebPkiServerVerifier>,
    schemes: Vec<SignatureScheme>,
    ignores_names: bool,
    ocsp: Mutex<Vec<u8>>,
}

impl Verifier {
    fn new(root: CertificateDer<'static>) -> Verifier {
        let mut roots = RootCertStore::empty();
        roots.add(root).unwrap();
        let roots = Arc::new(roots);
        let inner = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(provider()));
        let inner = inner.build().unwrap();
        Verifier {
            schemes: inner.supported_verify_schemes(),
            inner,
            ignores_names: false,
            ocsp: Mutex::default(),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.ocsp.lock().unwrap() = ocsp.to_vec();
        match self.ignores_names {
            true => Ok(ServerCertVerified::assertion()),
            false => (self.inner).verify_server_cert(certificate, intermediates, name, ocsp, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.inner).verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.inner).verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// Accepts certificates of other names than the client asks for. Signatures are still verified.
pub fn accept_any_name(client: &mut ClientConfig) {
    let mut verifier = Verifier::new(der("ca.pem"));
    verifier.ignores_names = true;
    client
        .dangerous()
        .set_certificate_verifier(Arc::new(verifier));
}

/// Supports only RSA signatures, and trusts the RSA certificate of this folder.
pub fn only_rsa(client: &mut ClientConfig) {
    let mut verifier = Verifier::new(der("rsa.pem"));
    verifier
        .schemes
        .retain(|scheme| scheme.as_str().is_some_and(|name| name.starts_with("RSA")));
    assert!(!verifier.schemes.is_empty());
    client
        .dangerous()
        .set_certificate_verifier(Arc::new(verifier));
}

/// The OCSP response that a client receives with the certificate of `name`.
pub fn ocsp_received(
    server: &TlsConfig,
    name: &str,
    root: CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> Vec<u8> {
    let verifier = Arc::new(Verifier::new(root.clone()));
    let own = Arc::clone(&verifier);
    let client = Client::with(root, versions, None, provider())
        .change(|client| client.dangerous().set_certificate_verifier(own));
    client.connect(server, name).unwrap();
    let ocsp = verifier.ocsp.lock().unwrap();
    ocsp.clone()
}

/// A certificate of example.org that was valid from 1980 to 1989.
pub fn made_for_the_eighties() -> Made {
    let mut params = CertificateParams::new(["example.org".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(1980, 1, 1);
    params.not_after = rcgen::date_time_ymd(1989, 12, 31);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
        der: certificate.der().clone(),
    }
}

/// All certificates here are valid then, whatever the clock of the machine shows.
#[derive(Debug)]
struct In2050;

impl TimeProvider for In2050 {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            2_524_608_000,
        )))
    }
}
