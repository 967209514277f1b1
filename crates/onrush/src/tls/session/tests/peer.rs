//! A client of rustls, certificates, and a session that is connected to the client.

use crate::tls::session::{Received, Session, SessionError, TlsParts};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConfig,
    SupportedCipherSuite, SupportedProtocolVersion, version,
};
use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

pub(super) type Versions = &'static [&'static SupportedProtocolVersion];
pub(super) const TLS13: Versions = &[&version::TLS13];
pub(super) const TLS12: Versions = &[&version::TLS12];

/// An authority and certificates that it has signed.
pub(super) struct Certificates {
    authority: CertificateDer<'static>,
    ecdsa: (CertificateDer<'static>, Vec<u8>),
    rsa: (CertificateDer<'static>, Vec<u8>),
    pub(super) client: (CertificateDer<'static>, Vec<u8>),
}

pub(super) static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(|| {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let signed = |key: KeyPair| {
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        (certificate.der().clone(), key.serialize_der())
    };
    Certificates {
        ecdsa: signed(KeyPair::generate().unwrap()),
        rsa: signed(KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap()),
        client: signed(KeyPair::generate().unwrap()),
        authority: authority.der().clone(),
    }
});

fn key(der: &[u8]) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(der.to_vec()).unwrap()
}

pub(super) fn roots() -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(CERTIFICATES.authority.clone()).unwrap();
    Arc::new(roots)
}

pub(super) fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// A server's configuration that requires client certificates if `is_mutual`.
pub(super) fn server_with(provider: CryptoProvider, rsa: bool, is_mutual: bool) -> ServerConfig {
    let provider = Arc::new(provider);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match is_mutual {
        true => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(), provider)
                .build()
                .unwrap(),
        ),
        false => builder.with_no_client_auth(),
    };
    let (certificate, der) = match rsa {
        true => &CERTIFICATES.rsa,
        false => &CERTIFICATES.ecdsa,
    };
    let mut config = builder
        .with_single_cert(vec![certificate.clone()], key(der))
        .unwrap();
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

pub(super) fn server() -> ServerConfig {
    server_with(provider(), false, false)
}

pub(super) fn client_with(
    provider: CryptoProvider,
    versions: Versions,
    has_certificate: bool,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots());
    let mut config = match has_certificate {
        true => {
            let (certificate, der) = &CERTIFICATES.client;
            builder
                .with_client_auth_cert(vec![certificate.clone()], key(der))
                .unwrap()
        }
        false => builder.with_no_client_auth(),
    };
    config.enable_secret_extraction = true;
    config
}

pub(super) fn client(versions: Versions) -> ClientConfig {
    client_with(provider(), versions, false)
}

/// A provider with one cipher suite.
pub(super) fn provider_of(suite: SupportedCipherSuite) -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![suite],
        ..provider()
    }
}

/// What a session did with received bytes.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    pub(super) data: Vec<u8>,
    pub(super) records_with_data: usize,
    pub(super) early_data: Vec<u8>,
    pub(super) is_handshaken: bool,
    pub(super) is_closed: bool,
    pub(super) error: Option<SessionError>,
}

/// A session, and bytes received that it has not consumed.
pub(super) struct Server {
    pub(super) session: Session,
    pub(super) input: Vec<u8>,
    /// What it sends.
    pub(super) out: Vec<u8>,
}

impl Server {
    pub(super) fn new(config: ServerConfig) -> Server {
        Server {
            session: Session::new(Arc::new(config)).unwrap(),
            input: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Delivers bytes, and checks what `receive` promises.
    pub(super) fn deliver(&mut self, bytes: &[u8]) -> Delivered {
        self.input.extend_from_slice(bytes);
        let mut delivered = Delivered::default();
        while !self.input.is_empty() && !delivered.is_closed {
            let before = self.input.clone();
            let was_handshaking = self.session.is_handshaking();
            let consumed = match self.session.receive(&mut self.input, &mut self.out) {
                Received::NeedMore { record_bytes } => {
                    assert!(
                        record_bytes > self.input.len(),
                        "it has as much as it needs"
                    );
                    assert_eq!(self.input, before, "an incomplete record was changed");
                    break;
                }
                Received::Handled { consumed } => consumed,
                Received::Handshaken { consumed } => {
                    assert!(was_handshaking && !self.session.is_handshaking());
                    delivered.is_handshaken = true;
                    consumed
                }
                Received::Data {
                    consumed,
                    plaintext,
                } => {
                    assert!(plaintext.start < plaintext.end && plaintext.end <= consumed);
                    delivered.data.extend_from_slice(&self.input[plaintext]);
                    delivered.records_with_data += 1;
                    consumed
                }
                Received::EarlyData {
                    consumed,
                    plaintext,
                } => {
                    delivered.early_data.extend(plaintext);
                    consumed
                }
                Received::Closed => {
                    delivered.is_closed = true;
                    self.input.len()
                }
                Received::Failed(error) => {
                    delivered.error = Some(error);
                    self.input.len()
                }
                Received::PlainHttp => panic!("plain HTTP"),
            };
            assert!(consumed > 0 && consumed <= self.input.len());
            self.input.drain(..consumed);
        }
        delivered
    }

    pub(super) fn send(&mut self, data: &[u8]) {
        self.session.send(data, 0, &mut self.out).unwrap();
    }
}

/// A client and a session.
pub(super) struct Pair {
    pub(super) client: ClientConnection,
    pub(super) server: Server,
    pub(super) parts: Option<TlsParts>,
}

impl Pair {
    pub(super) fn new(client: &Arc<ClientConfig>, server: ServerConfig) -> Pair {
        let name = ServerName::try_from("localhost").unwrap();
        Pair {
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
            server: Server::new(server),
            parts: None,
        }
    }

    /// Connected by this version.
    pub(super) fn connected(versions: Versions) -> Pair {
        let mut pair = Pair::new(&Arc::new(client(versions)), server());
        pair.handshake();
        pair
    }

    /// What the client wants to send.
    pub(super) fn take_sent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Delivers what the session has sent; returns the data.
    pub(super) fn deliver_to_client(&mut self) -> Result<Vec<u8>, rustls::Error> {
        let out = std::mem::take(&mut self.server.out);
        let (mut rest, mut data) = (&out[..], Vec::new());
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            self.client.process_new_packets()?;
            self.read_client(&mut data);
        }
        Ok(data)
    }

    fn read_client(&mut self, data: &mut Vec<u8>) {
        let mut buffer = [0; 4096];
        while let Ok(bytes @ 1..) = self.client.reader().read(&mut buffer) {
            data.extend_from_slice(&buffer[..bytes]);
        }
    }

    /// Exchanges records until both sides are quiet.
    pub(super) fn exchange(&mut self) -> Delivered {
        let mut all = Delivered::default();
        loop {
            let bytes = self.take_sent();
            if bytes.is_empty() && self.server.out.is_empty() {
                return all;
            }
            let delivered = self.server.deliver(&bytes);
            all.data.extend(delivered.data);
            all.early_data.extend(delivered.early_data);
            all.is_handshaken |= delivered.is_handshaken;
            all.is_closed |= delivered.is_closed;
            assert_eq!(delivered.error, None);
            self.deliver_to_client().unwrap();
        }
    }

    pub(super) fn handshake(&mut self) -> Delivered {
        let delivered = self.exchange();
        assert!(delivered.is_handshaken && !self.client.is_handshaking());
        assert!(self.server.input.is_empty());
        self.parts = self.server.session.take_parts();
        delivered
    }

    pub(super) fn client_sends(&mut self, data: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(data).unwrap();
        self.take_sent()
    }

    /// One request and its response.
    pub(super) fn round(&mut self, request: &[u8], response: &[u8]) {
        let bytes = self.client_sends(request);
        assert_eq!(self.server.deliver(&bytes).data, request);
        self.server.send(response);
        assert_eq!(self.deliver_to_client().unwrap(), response);
    }

    pub(super) fn parts(&self) -> &TlsParts {
        self.parts.as_ref().unwrap()
    }
}

pub(super) fn version_of(versions: Versions) -> ProtocolVersion {
    versions[0].version
}
