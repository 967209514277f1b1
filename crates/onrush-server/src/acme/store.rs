//! The files of automatic certificates, in `.onrush/acme/` of the served folder: the account, the
//! certificate with its key, the order in progress, and the orders that have failed. Only their
//! owner can read them, and clients of the store cannot.

use super::schedule::{Attempts, seconds};
use crate::config::AcmeSettings;
use crate::process::key_files::{create_folder, protect, remove_leftovers, replace};
use instant_acme::AccountCredentials;
use onrush::tls::TlsConfig;
use onrush::tls::rustls::pki_types::pem::{PemObject, SectionKind};
use onrush_proto::date::utc;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The place of the files in the served folder.
const FOLDER: &str = ".onrush/acme";
/// The files in it. `LOCK` is empty.
const CERTIFICATE: &str = "certificate.pem";
const ACCOUNT: &str = "account.json";
const ORDER: &str = "order.json";
const ATTEMPTS: &str = "attempts.json";
const LOCK: &str = "lock";
/// The first line of the certificate file begins with this; the subject follows. Programs that read
/// PEM skip such a line (RFC 7468 §2).
const SUBJECT: &str = "Ordered by onrush: ";
/// After this time another certificate is ordered. Let's Encrypt permits five certificates for the
/// same names, and one more each 34 hours.
const CONTINUED: Duration = Duration::from_secs(36 * 3600);
/// The longest chain that is accepted: authorities send two to four certificates, with a few
/// kilobytes. Clients refuse long ones.
const CHAIN_CERTIFICATES_MAX: usize = 16;
const CHAIN_BYTES_MAX: usize = 64 * 1024;
/// A certificate that begins to be valid within this time is accepted, because clocks differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);

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

/// An order whose certificate is requested. It is saved before the request, so that no failure
/// after it, and no restart, needs another certificate.
#[derive(Deserialize, Serialize)]
pub(super) struct SavedOrder {
    /// Names and authority.
    pub(super) subject: String,
    pub(super) url: String,
    /// The private key of the certificate, in PEM.
    pub(super) key: String,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// Why a certificate cannot be used. The text is for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    Never(String),
    /// The certificate is valid at another time, so this clock may be wrong.
    Now(String),
}

/// The file with the certificate and its key.
pub(crate) fn certificate_path(dir: &Path) -> PathBuf {
    dir.join(FOLDER).join(CERTIFICATE)
}

/// The content of the certificate file for a new certificate, in PEM.
///
/// # Errors
/// If the server could not use the file, or no client would trust it: the chain is too long or has
/// other sections than certificates, the key belongs to another certificate, a name of `names` is
/// missing, or the certificate is not valid now.
pub(super) fn certificate_file(
    subject: &str,
    names: &[String],
    key: &str,
    chain: &str,
    now: SystemTime,
) -> Result<String, Unusable> {
    check_chain(chain).map_err(Unusable::Never)?;
    let text = format!("{SUBJECT}{subject}\n{key}{chain}");
    let config = TlsConfig::from_pem(&text, &text);
    let config = config.map_err(|error| Unusable::Never(error.to_string()))?;
    let facts = config.certificates().into_iter().next();
    let facts = facts.ok_or_else(|| Unusable::Never("there is no certificate".to_owned()))?;
    let has = |name: &&String| (facts.dns_names().iter()).any(|own| own.eq_ignore_ascii_case(name));
    if let Some(missing) = names.iter().find(|name| !has(name)) {
        return Err(Unusable::Never(format!("it is not for {missing}")));
    }
    let (from, to) = (facts.not_before(), facts.not_after());
    let problem = match () {
        () if to <= now => format!("it has expired at {}", utc(to)),
        () if from > now + CLOCK_DIFFERENCE => format!("it is not valid before {}", utc(from)),
        () => return Ok(text),
    };
    let clock = utc(now);
    Err(Unusable::Now(format!(
        "{problem}; the clock of this machine may be wrong: {clock}"
    )))
}

/// Checks the length of a chain, and that it consists of certificates.
fn check_chain(chain: &str) -> Result<(), String> {
    let bytes = chain.len();
    if bytes > CHAIN_BYTES_MAX {
        return Err(format!(
            "the chain has {bytes} bytes, more than {CHAIN_BYTES_MAX}"
        ));
    }
    let mut count = 0;
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(chain.as_bytes()) {
        match section {
            Ok((SectionKind::Certificate, _)) => count += 1,
            Ok((kind, _)) => return Err(format!("the chain has a section {kind:?}")),
            Err(error) => return Err(error.to_string()),
        }
    }
    match count > CHAIN_CERTIFICATES_MAX {
        true => Err(format!(
            "the chain has {count} certificates, more than {CHAIN_CERTIFICATES_MAX}"
        )),
        false => Ok(()),
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
                remove_leftovers(&self.0, &[CERTIFICATE, ACCOUNT, ORDER, ATTEMPTS]);
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

    /// Reads a file with a private key.
    fn read_key(&self, name: &str) -> Option<String> {
        let path = self.0.join(name);
        let text = fs::read_to_string(&path).ok()?;
        if let Err(error) = protect(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot protect the private key");
        }
        Some(text)
    }

    /// The account at this authority, if there is one.
    pub(super) fn account(&self, directory: &str) -> Option<SavedAccount> {
        let saved: SavedAccount = serde_json::from_str(&self.read_key(ACCOUNT)?).ok()?;
        (saved.directory == directory).then_some(saved)
    }

    pub(super) fn save_account(&self, account: &SavedAccount) -> io::Result<()> {
        let text = serde_json::to_string(account).map_err(io::Error::other)?;
        replace(&self.0.join(ACCOUNT), &text, 0o600)
    }

    pub(super) fn forget_account(&self) {
        let _ = fs::remove_file(self.0.join(ACCOUNT));
    }

    /// The order to continue, if there is one for `subject`.
    pub(super) fn order(&self, subject: &str, now: SystemTime) -> Option<SavedOrder> {
        let saved: SavedOrder = serde_json::from_str(&self.read_key(ORDER)?).ok()?;
        let age = seconds(now).saturating_sub(saved.created);
        (saved.subject == subject && age < CONTINUED.as_secs()).then_some(saved)
    }

    pub(super) fn save_order(&self, order: &SavedOrder) -> io::Result<()> {
        let text = serde_json::to_string(order).map_err(io::Error::other)?;
        replace(&self.0.join(ORDER), &text, 0o600)
    }

    pub(super) fn forget_order(&self) {
        let _ = fs::remove_file(self.0.join(ORDER));
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
    fn made(year: i32, change: impl FnOnce(&mut String, &mut String)) -> Result<String, Unusable> {
        made_from(1975, year, change)
    }

    fn made_from(
        first_year: i32,
        year: i32,
        change: impl FnOnce(&mut String, &mut String),
    ) -> Result<String, Unusable> {
        let pair = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(first_year, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let mut chain = params.self_signed(&pair).unwrap().pem();
        let mut key = pair.serialize_pem();
        change(&mut key, &mut chain);
        // One hour before 2024.
        let now = UNIX_EPOCH + Duration::from_secs(1_704_067_200 - 3600);
        certificate_file("subject", &["A.example".to_owned()], &key, &chain, now)
    }

    #[test]
    fn an_unusable_certificate_makes_no_file() {
        let text = made(2100, |_, _| {}).unwrap();
        assert!(text.starts_with("Ordered by onrush: subject\n"), "{text}");
        let other = || KeyPair::generate().unwrap().serialize_pem();
        let second_key = made(2100, |_, chain| chain.push_str(&other()));
        let never = |reason: &str| Unusable::Never(reason.to_owned());
        let reason = never("the chain has a section PrivateKey");
        assert_eq!(second_key.unwrap_err(), reason);
        assert!(made(2100, |_, chain| chain.clear()).is_err());
        assert!(made(2100, |_, chain| chain.truncate(200)).is_err());
        assert!(made(2100, |key, _| *key = other()).is_err());
        let repeated = |count| made(2100, |_, chain| *chain = chain.repeat(count));
        assert!(repeated(16).is_ok());
        let reason = never("the chain has 17 certificates, more than 16");
        assert_eq!(repeated(17).unwrap_err(), reason);
        let long = made(2100, |_, chain| chain.push_str(&"\n".repeat(1 << 16)));
        let reason = format!("{:?}", long.unwrap_err());
        assert!(reason.contains("bytes, more than 65536"), "{reason}");
        let at = |problem: &str| {
            let clock = "the clock of this machine may be wrong: 2023-12-31 23:00:00 UTC";
            Unusable::Now(format!("{problem} 00:00:00 UTC; {clock}"))
        };
        let expired = made(2020, |_, _| {}).unwrap_err();
        assert_eq!(expired, at("it has expired at 2020-01-01"));
        assert!(made_from(2024, 2100, |_, _| {}).is_ok(), "within an hour");
        let future = made_from(2025, 2100, |_, _| {}).unwrap_err();
        assert_eq!(future, at("it is not valid before 2025-01-01"));
        let mut foreign = CertificateParams::new(["b.example".to_owned()]).unwrap();
        foreign.not_after = date_time_ymd(2100, 1, 1);
        let not_ours = made(2100, |key, chain| {
            let pair = KeyPair::from_pem(key).unwrap();
            *chain = foreign.self_signed(&pair).unwrap().pem();
        });
        assert_eq!(not_ours.unwrap_err(), never("it is not for A.example"));
    }

    #[test]
    fn an_order_is_continued_for_some_time() {
        let name = format!("onrush-acme-order-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let store = Store::open(&dir).unwrap();
        let at = |hours: u64| UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600);
        let url = |subject, hours| store.order(subject, at(hours)).map(|order| order.url);
        assert_eq!(url("subject", 0), None);
        let order = SavedOrder {
            subject: "subject".to_owned(),
            url: "url".to_owned(),
            key: "key".to_owned(),
            created: 1_700_000_000,
        };
        store.save_order(&order).unwrap();
        assert_eq!(url("subject", 35).as_deref(), Some("url"));
        assert_eq!((url("other", 0), url("subject", 36)), (None, None));
        store.forget_order();
        assert_eq!(url("subject", 0), None);
        fs::remove_dir_all(dir).unwrap();
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
