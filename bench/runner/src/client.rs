//! Connections of a client, plain or with TLS.
//!
//! All clients of the bench offer the same: TLS 1.3, AES-256-GCM with SHA-384, and X25519. So all
//! servers do the same cryptography, whatever they prefer. They accept any certificate, because
//! they only ever connect to the loopback address, and because verifying one would take the time
//! of the core that loads the servers.

use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme,
    StreamOwned,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};
use xtask::shell::Outcome;

/// The settings of OpenSSL with which wrk offers the same as the clients here. A program reads them
/// if `OPENSSL_CONF` names their file (config(5ssl)).
pub(crate) const OPENSSL_CONF: &str = "\
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = clients
[clients]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_256_GCM_SHA384
Groups = X25519
";

/// Whether requests are sent over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Https,
}

impl Protocol {
    /// The scheme of a URL.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Https => "https",
        }
    }
}

/// Opens connections, and keeps the sessions that they can resume.
#[derive(Clone, Debug)]
pub(crate) struct Client(Option<Arc<ClientConfig>>);

impl Client {
    /// A client whose handshakes are all full.
    pub(crate) fn new(protocol: Protocol) -> Outcome<Client> {
        Client::with(protocol, Resumption::disabled())
    }

    /// A client over TLS that resumes its sessions. It uses each ticket once.
    pub(crate) fn that_resumes() -> Outcome<Client> {
        Client::with(Protocol::Https, Resumption::in_memory_sessions(1))
    }

    fn with(protocol: Protocol, resumption: Resumption) -> Outcome<Client> {
        if protocol == Protocol::Http {
            return Ok(Client(None));
        }
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384],
            kx_groups: vec![aws_lc_rs::kx_group::X25519],
            ..aws_lc_rs::default_provider()
        });
        let verifier = Arc::new(AnyCertificate(provider.clone()));
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.resumption = resumption;
        Ok(Client(Some(Arc::new(config))))
    }

    /// Connects. A handshake takes place with the first read or write.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(match &self.0 {
            None => Stream::Plain(socket),
            Some(config) => {
                let name = ServerName::IpAddress(address.ip().into());
                let tls = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
                Stream::Tls(Box::new(StreamOwned::new(tls, socket)))
            }
        })
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }

    /// The open socket without the client's state of TLS.
    pub(crate) fn into_socket(self) -> TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.sock,
        }
    }

    /// Whether the handshake resumed a session.
    pub(crate) fn is_resumed(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }

    /// Sends `bytes` as soon as possible: over TLS in one segment with the last message of the
    /// handshake.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tls(stream) if stream.conn.is_handshaking() => {
                stream.conn.writer().write_all(bytes)?;
                stream.flush()
            }
            _ => self.write_all(bytes),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Accepts every certificate and verifies no signature.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
