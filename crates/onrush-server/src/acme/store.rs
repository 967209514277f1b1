//! The files of automatic certificates, in `.onrush/acme/` of the served folder: the account, the
//! certificate with its key, and the orders that have failed. Only their owner can read them, and
//! clients of the store cannot.

use super::schedule::Attempts;
use crate::config::AcmeSettings;
use crate::key_files::{create_folder, protect, replace};
use instant_acme::AccountCredentials;
use onrush::tls::TlsConfig;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The place of the files in the served folder.
const FOLDER: &str = ".onrush/acme";
/// The first line of the certificate file begins with this; the subject follows. Programs that read
/// PEM skip such a line (RFC 7468 §2).
const SUBJECT: &str = "Ordered by onrush: ";

/// The files of one folder.
#[derive(Debug)]
pub(super) struct Store(PathBuf);

/// The certificate of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// Names and authority.
    pub(super) subject: String,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
}

/// The account at an authority.
#[derive(Deserialize, Serialize)]
pub(super) struct SavedAccount {
    pub(super) directory: String,
    pub(super) email: Option<String>,
    pub(super) credentials: AccountCredentials,
}

/// The file with the certificate and its key.
pub(crate) fn certificate_path(dir: &Path) -> PathBuf {
    dir.join(FOLDER).join("certificate.pem")
}

/// What an order is for.
pub(super) fn subject(settings: &AcmeSettings) -> String {
    format!("{} from {}", settings.names.join(" "), settings.directory)
}

impl Store {
    /// Creates the folder and checks that it can be written to.
    pub(super) fn open(dir: &Path) -> io::Result<Store> {
        let folder = dir.join(FOLDER);
        create_folder(&folder)?;
        let store = Store(folder);
        store.lock_file()?;
        Ok(store)
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn lock_file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.0.join("lock"))
    }

    /// Excludes other processes from ordering for this folder until the file is dropped. `None` if
    /// one is ordering.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let file = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The certificate. `None` if there is none, or none that can be used.
    pub(super) fn certificate(&self) -> Option<Stored> {
        let path = self.0.join("certificate.pem");
        let text = fs::read_to_string(&path).ok()?;
        let subject = text.lines().next()?.strip_prefix(SUBJECT)?.to_owned();
        let config = TlsConfig::from_pem(&text, &text).ok()?;
        let facts = config.certificates().into_iter().next()?;
        Some(Stored {
            subject,
            not_before: facts.not_before(),
            not_after: facts.not_after(),
        })
    }

    /// Replaces the certificate and its key by one rename.
    pub(super) fn save_certificate(&self, subject: &str, key: &str, chain: &str) -> io::Result<()> {
        let text = format!("{SUBJECT}{subject}\n{key}{chain}");
        replace(&self.0.join("certificate.pem"), &text, 0o600)
    }

    /// The account at this authority, if there is one.
    pub(super) fn account(&self, directory: &str) -> Option<SavedAccount> {
        let path = self.0.join("account.json");
        let text = fs::read_to_string(&path).ok()?;
        if let Err(error) = protect(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot protect the account key");
        }
        let saved: SavedAccount = serde_json::from_str(&text).ok()?;
        (saved.directory == directory).then_some(saved)
    }

    pub(super) fn save_account(&self, account: &SavedAccount) -> io::Result<()> {
        let text = serde_json::to_string(account).map_err(io::Error::other)?;
        replace(&self.0.join("account.json"), &text, 0o600)
    }

    pub(super) fn forget_account(&self) {
        let _ = fs::remove_file(self.0.join("account.json"));
    }

    /// The orders for `subject` that have failed.
    pub(super) fn attempts(&self, subject: &str) -> Attempts {
        let text = fs::read_to_string(self.0.join("attempts.json")).ok();
        let saved: Option<Attempts> = text.and_then(|text| serde_json::from_str(&text).ok());
        saved
            .filter(|saved| saved.subject == subject)
            .unwrap_or_else(|| Attempts::new(subject))
    }

    pub(super) fn save_attempts(&self, attempts: &Attempts) -> io::Result<()> {
        let text = serde_json::to_string(attempts).map_err(io::Error::other)?;
        replace(&self.0.join("attempts.json"), &text, 0o600)
    }

    pub(super) fn clear_attempts(&self) {
        let _ = fs::remove_file(self.0.join("attempts.json"));
    }
}
