//! The files of automatic certificates, in `.onrush/acme/` of the served folder: the account, the
//! certificate with its key, and the orders that have failed. Only their owner can read them, and
//! clients of the store cannot.

use super::schedule::Attempts;
use crate::config::AcmeSettings;
use crate::key_files::{create_folder, protect, remove_leftovers, replace};
use instant_acme::AccountCredentials;
use onrush::tls::TlsConfig;
use onrush::tls::rustls::pki_types::pem::{PemObject, SectionKind};
use onrush_proto::date::utc;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The place of the files in the served folder.
const FOLDER: &str = ".onrush/acme";
/// The files in it. `LOCK` is empty.
const CERTIFICATE: &str = "certificate.pem";
const ACCOUNT: &str = "account.json";
const ATTEMPTS: &str = "attempts.json";
const LOCK: &str = "lock";
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
    dir.join(FOLDER).join(CERTIFICATE)
}

/// The content of the certificate file for a new certificate, in PEM.
///
/// # Errors
/// If the server could not use the file, or no client would trust it: the chain has other sections
/// than certificates, the key belongs to another certificate, a name of `names` is missing, or the
/// certificate has expired. The text is for the log.
pub(super) fn certificate_file(
    subject: &str,
    names: &[String],
    key: &str,
    chain: &str,
    now: SystemTime,
) -> Result<String, String> {
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(chain.as_bytes()) {
        match section {
            Ok((SectionKind::Certificate, _)) => {}
            Ok((kind, _)) => return Err(format!("the chain has a section {kind:?}")),
            Err(error) => return Err(error.to_string()),
        }
    }
    let text = format!("{SUBJECT}{subject}\n{key}{chain}");
    let config = TlsConfig::from_pem(&text, &text).map_err(|error| error.to_string())?;
    let facts = config.certificates().into_iter().next();
    let facts = facts.ok_or("there is no certificate")?;
    let has = |name: &&String| (facts.dns_names().iter()).any(|own| own.eq_ignore_ascii_case(name));
    if let Some(missing) = names.iter().find(|name| !has(name)) {
        return Err(format!("it is not for {missing}"));
    }
    match facts.not_after() > now {
        true => Ok(text),
        false => Err(format!("it has expired at {}", utc(facts.not_after()))),
    }
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
        let certificate = store.0.join(CERTIFICATE);
        if certificate.exists() {
            protect(&certificate)?;
        }
        Ok(store)
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn lock_file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        options.open(self.0.join(LOCK))
    }

    /// Excludes other processes from ordering for this folder until the file is dropped. `None` if
    /// one is ordering.
    pub(super) fn lock(&self) -> io::Result<Option<File>> {
        let file = self.lock_file()?;
        match file.try_lock() {
            Ok(()) => {
                remove_leftovers(&self.0, &[CERTIFICATE, ACCOUNT, ATTEMPTS]);
                Ok(Some(file))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The certificate. `None` if there is none, or none that can be used.
    pub(super) fn certificate(&self) -> Option<Stored> {
        let text = fs::read_to_string(self.0.join(CERTIFICATE)).ok()?;
        let subject = text.lines().next()?.strip_prefix(SUBJECT)?.to_owned();
        let config = TlsConfig::from_pem(&text, &text).ok()?;
        let facts = config.certificates().into_iter().next()?;
        Some(Stored {
            subject,
            not_before: facts.not_before(),
            not_after: facts.not_after(),
        })
    }

    /// Replaces the certificate and its key by one rename. `text` is from [`certificate_file`].
    pub(super) fn save_certificate(&self, text: &str) -> io::Result<()> {
        replace(&self.0.join(CERTIFICATE), text, 0o600)
    }

    /// The account at this authority, if there is one.
    pub(super) fn account(&self, directory: &str) -> Option<SavedAccount> {
        let path = self.0.join(ACCOUNT);
        let text = fs::read_to_string(&path).ok()?;
        if let Err(error) = protect(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot protect the account key");
        }
        let saved: SavedAccount = serde_json::from_str(&text).ok()?;
        (saved.directory == directory).then_some(saved)
    }

    pub(super) fn save_account(&self, account: &SavedAccount) -> io::Result<()> {
        let text = serde_json::to_string(account).map_err(io::Error::other)?;
        replace(&self.0.join(ACCOUNT), &text, 0o600)
    }

    pub(super) fn forget_account(&self) {
        let _ = fs::remove_file(self.0.join(ACCOUNT));
    }

    /// The orders for `subject` that have failed.
    pub(super) fn attempts(&self, subject: &str) -> Attempts {
        let text = fs::read_to_string(self.0.join(ATTEMPTS)).ok();
        let saved: Option<Attempts> = text.and_then(|text| serde_json::from_str(&text).ok());
        saved
            .filter(|saved| saved.subject == subject)
            .unwrap_or_else(|| Attempts::new(subject))
    }

    pub(super) fn save_attempts(&self, attempts: &Attempts) -> io::Result<()> {
        let text = serde_json::to_string(attempts).map_err(io::Error::other)?;
        replace(&self.0.join(ATTEMPTS), &text, 0o600)
    }

    pub(super) fn clear_attempts(&self) {
        let _ = fs::remove_file(self.0.join(ATTEMPTS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use std::time::{Duration, UNIX_EPOCH};

    /// The file for a certificate of `a.example` that expires on the first day of `year`. `change`
    /// changes its key and its chain.
    fn made(year: i32, change: impl FnOnce(&mut String, &mut String)) -> Result<String, String> {
        let pair = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let mut chain = params.self_signed(&pair).unwrap().pem();
        let mut key = pair.serialize_pem();
        change(&mut key, &mut chain);
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        certificate_file("subject", &["A.example".to_owned()], &key, &chain, now)
    }

    #[test]
    fn an_unusable_certificate_makes_no_file() {
        let text = made(2100, |_, _| {}).unwrap();
        assert!(text.starts_with("Ordered by onrush: subject\n"), "{text}");
        let other = || KeyPair::generate().unwrap().serialize_pem();
        let second_key = made(2100, |_, chain| chain.push_str(&other()));
        assert_eq!(
            second_key.unwrap_err(),
            "the chain has a section PrivateKey"
        );
        assert!(made(2100, |_, chain| chain.clear()).is_err());
        assert!(made(2100, |_, chain| chain.truncate(200)).is_err());
        assert!(made(2100, |key, _| *key = other()).is_err());
        let expired = made(2020, |_, _| {}).unwrap_err();
        assert_eq!(expired, "it has expired at 2020-01-01 00:00:00 UTC");
        let mut foreign = CertificateParams::new(["b.example".to_owned()]).unwrap();
        foreign.not_after = date_time_ymd(2100, 1, 1);
        let not_ours = made(2100, |key, chain| {
            let pair = KeyPair::from_pem(key).unwrap();
            *chain = foreign.self_signed(&pair).unwrap().pem();
        });
        assert_eq!(not_ours.unwrap_err(), "it is not for A.example");
    }

    #[test]
    fn leftovers_are_removed_when_an_order_begins() {
        let name = format!("onrush-acme-store-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let store = Store::open(&dir).unwrap();
        let path = |name: &str| store.path().join(name);
        let kept = ["certificate.pem", "account.json", "certificate.pem.bak"];
        for name in kept
            .into_iter()
            .chain(["certificate.pem.123", "account.json.7"])
        {
            fs::write(path(name), "text").unwrap();
        }
        drop(store.lock().unwrap().unwrap());
        let left: std::collections::BTreeSet<_> = (fs::read_dir(store.path()).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let expected = kept.into_iter().chain([LOCK]).map(str::to_owned);
        assert_eq!(left, expected.collect());
        fs::remove_dir_all(dir).unwrap();
    }
}
