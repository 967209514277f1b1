//! The TLS settings of these servers: rustls with aws-lc-rs and its defaults, and stateless session
//! tickets, which is what most deployments use.

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The settings with a certificate chain and its key, two PEM files, for HTTP/2 or HTTP/1.1. Fails
/// if one cannot be read, or if the key does not belong to the certificate.
pub fn config(chain: &Path, key: &Path, http2: bool) -> io::Result<ServerConfig> {
    let mut config = configured(chain, key).map_err(io::Error::other)?;
    let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

fn configured(chain: &Path, key: &Path) -> Result<ServerConfig, Box<dyn Error + Send + Sync>> {
    let certificates = CertificateDer::pem_file_iter(chain)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    Ok(config)
}
