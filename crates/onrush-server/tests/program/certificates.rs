//! Certificates for tests of the program, and a client that speaks TLS.

use super::{Folder, Server, TIMEOUT};
use onrush::tls::rustls::crypto::aws_lc_rs;
use onrush::tls::rustls::pki_types::pem::PemObject;
use onrush::tls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use onrush::tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PublicKeyData,
    date_time_ymd,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

/// An authority that signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("randomness");
        Authority(CertifiedIssuer::self_signed(params, key).expect("signed"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Writes the certificate of the authority.
    pub fn file(&self, folder: &Folder, name: &str) -> String {
        text(folder.file(name, self.pem()))
    }

    /// A certificate for these host names and addresses. Its common name is the first.
    pub fn issue(&self, names: &[&str]) -> Pair {
        self.issue_with(names, |_| {})
    }

    /// As [`Authority::issue`], with other parameters.
    pub fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let all: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(all).expect("names");
        params.distinguished_name.push(DnType::CommonName, names[0]);
        change(&mut params);
        let key = KeyPair::generate().expect("randomness");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A certificate of the key of someone else, in PEM, that is valid from this year to 2100.
    pub fn certify(&self, name: &str, from: i32, key: &impl PublicKeyData) -> String {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        params.signed_by(key, &self.0).expect("signed").pem()
    }

    /// Writes a certificate for `localhost` and 127.0.0.1. Returns the paths of its files.
    pub fn local(&self, folder: &Folder) -> (String, String) {
        self.issue(&["localhost", "127.0.0.1"])
            .write(folder, "local")
    }

    /// A configuration of clients that trust this authority.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.client_config_with(None)
    }

    /// As [`Authority::client_config`], of a client with a certificate.
    pub fn client_config_with(&self, own: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match own {
            None => config.with_no_client_auth(),
            Some(pair) => {
                let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
                let (certificate, key) = (certificate.expect("PEM"), key.expect("PEM"));
                let config = config.with_client_auth_cert(vec![certificate], key);
                config.expect("a certificate with its key")
            }
        })
    }
}

impl Pair {
    /// Writes `NAME.pem` and `NAME.key`, and returns their paths.
    pub fn write(&self, folder: &Folder, name: &str) -> (String, String) {
        let certificate = folder.file(&format!("{name}.pem"), &self.certificate);
        let key = folder.file(&format!("{name}.key"), &self.key);
        (text(certificate), text(key))
    }
}

pub fn text(path: PathBuf) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// A connection of a client that speaks TLS.
pub struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    /// Connects and completes the handshake, for the host `localhost`.
    pub fn connect(server: &Server, config: &Arc<ClientConfig>) -> io::Result<Client> {
        Client::connect_to(server.address(), config)
    }

    /// As [`Client::connect`], to an address.
    pub fn connect_to(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<Client> {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(config.clone(), name).expect("a configuration");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Client(StreamOwned::new(tls, stream)))
    }

    /// The certificate of the server, in DER.
    pub fn certificate(&self) -> Vec<u8> {
        let certificates = self.0.conn.peer_certificates();
        certificates.expect("after the handshake")[0].to_vec()
    }

    /// Sends a GET and returns the response. The connection stays open.
    pub fn get(&mut self, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.write_all(request.as_bytes())?;
        let mut response = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&response);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_ascii_lowercase();
                let length = head.split("content-length: ").nth(1);
                let length = length.and_then(|rest| rest.lines().next());
                let length: usize = length.expect("a length").parse().expect("a number");
                if body.len() >= length {
                    return Ok(text.into_owned());
                }
            }
            let mut buffer = [0; 4096];
            match testing::read_some(&mut self.0, &mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => response.extend_from_slice(&buffer[..read]),
            }
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
