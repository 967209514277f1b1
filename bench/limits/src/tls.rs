//! The TLS of the bare loops: settings of rustls, and a socket that rustls reads and writes.

use crate::net::{self, Received};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{
    error::Error,
    io::{self, ErrorKind, IoSlice, Read, Write},
    path::Path,
    sync::Arc,
};

/// The settings with a certificate chain and its key, two PEM files: aws-lc-rs, TLS 1.3 only,
/// stateless session tickets, otherwise the defaults of rustls.
///
/// # Errors
/// A file cannot be read, or the key does not belong to the certificate.
pub fn config(chain: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    configured(chain, key)
        .map(Arc::new)
        .map_err(io::Error::other)
}

fn configured(chain: &Path, key: &Path) -> Result<ServerConfig, Box<dyn Error + Send + Sync>> {
    let certificates = CertificateDer::pem_file_iter(chain)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(config)
}

/// A non-blocking socket for rustls.
pub struct Socket {
    descriptor: i32,
    /// Whether the last read left room in its buffer, so that no more data has arrived.
    pub is_drained: bool,
}

impl Socket {
    /// The socket with this descriptor, which stays open.
    #[inline]
    #[must_use]
    pub fn new(descriptor: i32) -> Socket {
        Socket {
            descriptor,
            is_drained: false,
        }
    }

    /// Its number.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }
}

impl Read for Socket {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match net::receive(self.descriptor, buffer) {
            Received::Bytes(len) => {
                self.is_drained = len < buffer.len();
                Ok(len)
            }
            Received::Nothing => Err(ErrorKind::WouldBlock.into()),
            Received::End => Ok(0),
        }
    }
}

impl Write for Socket {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    #[inline]
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        net::send_parts(self.descriptor, parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
