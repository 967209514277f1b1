//! The certificate of all servers with TLS: P-256, self-signed, for the loopback address.

use super::Setup;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};
use xtask::shell::Outcome;

const CHAIN: &str = "certificate.pem";
const KEY: &str = "key.pem";

/// The names that the certificate is valid for.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The files of a certificate and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// The certificate of all servers, in the target folder. Creates it if it does not exist.
    pub(crate) fn of(setup: &Setup) -> Outcome<Certificate> {
        Certificate::in_folder(&setup.target.join("bench/tls"))
    }

    fn in_folder(folder: &Path) -> Outcome<Certificate> {
        let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
        if !folder.is_dir() {
            create(&folder).map_err(|reason| format!("cannot create a certificate: {reason}"))?;
        }
        Ok(Certificate {
            chain: folder.join(CHAIN),
            key: folder.join(KEY),
        })
    }
}

/// Creates both files in a new folder, and then gives it the name `folder`. So they belong together
/// even if two processes or threads do this at the same time.
fn create(folder: &Path) -> Outcome {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| error.to_string())?;
    let params = CertificateParams::new(NAMES.map(str::to_owned));
    let signed = params.and_then(|params| params.self_signed(&key));
    let chain = signed.map_err(|error| error.to_string())?.pem();
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let new = folder.with_extension(format!("{}-{number}", std::process::id()));
    let written = fs::create_dir_all(&new)
        .and_then(|()| fs::write(new.join(KEY), key.serialize_pem()))
        .and_then(|()| fs::write(new.join(CHAIN), chain))
        .and_then(|()| fs::rename(&new, folder));
    match written {
        Ok(()) => Ok(()),
        Err(error) => {
            let _ = fs::remove_dir_all(&new);
            // Another process or thread was faster.
            match folder.is_dir() {
                true => Ok(()),
                false => Err(format!("{}: {error}", folder.display())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_created_once() {
        let folder = std::env::temp_dir().join(format!("certificate-{}", std::process::id()));
        let first = Certificate::in_folder(&folder).expect("created");
        create(&folder).expect("kept");
        let read = |file: &Path| fs::read_to_string(file).expect("text");
        let (chain, key) = (read(&first.chain), read(&first.key));
        assert!(chain.starts_with("-----BEGIN CERTIFICATE-----"), "{chain}");
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
        let again = Certificate::in_folder(&folder).expect("there");
        assert_eq!((&again, read(&again.chain)), (&first, chain));
        fs::remove_dir_all(folder).expect("removed");
    }
}
