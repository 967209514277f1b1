//! Handshakes in memory, and the certificates and keys of this folder (`make.sh` makes them).

use onrush::TlsConfig;
use onrush::tls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use onrush::tls::rustls::time_provider::TimeProvider;
use onrush::tls::rustls::version::{TLS12, TLS13};
use onrush::tls::rustls::{
    ClientConfig, ClientConnection, Error, HandshakeKind, RootCertStore, ServerConnection,
    SupportedProtocolVersion,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
        let params = authority_params(name);
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
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
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

    /// A handshake with the server for the site `name`.
    pub fn connect(&self, server: &TlsConfig, name: &str) -> Result<Handshake, Error> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.config), name)?;
        if let Some(mut early) = client.early_data() {
            // A client without early data for this site has no writer.
            std::io::Write::write_all(&mut early, b"early").unwrap();
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
