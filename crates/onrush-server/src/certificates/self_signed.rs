//! A certificate that the server makes itself and keeps in `.onrush/tls/` of its folder. Clients of
//! the store cannot read `.onrush`.
//!
//! `self-signed.pem` has the key and the certificate, so that one rename replaces both.
//! `certificate.pem` is a copy of the certificate, for clients that should trust it.

use crate::config::CertificateFiles;
use crate::options::values::HostName;
use crate::process::failure::{self, Failure};
use crate::process::key_files::{create_folder, protect, remove_leftovers, replace};
use onrush::tls::TlsConfig;
use onrush::tls::rustls::pki_types::CertificateDer;
use onrush::tls::rustls::pki_types::pem::PemObject;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustix::system::uname;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The place of the files in the served folder.
const FOLDER: &str = ".onrush/tls";
/// The files in it: the certificate with its key, and a copy without.
const FILE: &str = "self-signed.pem";
const COPY: &str = "certificate.pem";
/// The first line of `self-signed.pem` begins with this; the names follow. Programs that read PEM
/// skip such a line (RFC 7468 §2).
const NAMES: &str = "Self-signed by onrush for: ";
/// The validity. Clients of Apple refuse certificates of more than 825 days.
const VALID: Duration = Duration::from_secs(825 * 86_400);
/// The validity of [`temporary`] certificates.
const TEMPORARY: Duration = Duration::from_secs(86_400);
/// A certificate that is valid for less than this at start is replaced.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// The certificate is valid from this long ago, because clocks differ.
const BACKDATED: Duration = Duration::from_secs(3600);

/// The files of a self-signed certificate.
#[derive(Debug)]
pub(crate) struct SelfSigned {
    pub(crate) files: CertificateFiles,
    /// The SHA-256 of the certificate in the form of `openssl x509 -fingerprint -sha256`.
    pub(crate) fingerprint: String,
}

/// Reads the certificate of the folder `dir`, or makes it: if there is none, if it lacks one of
/// `names`, or if it expires soon. `names` are host names and IP addresses besides the usual ones.
pub(crate) fn open(dir: &Path, names: &[String]) -> Result<SelfSigned, Failure> {
    let folder = dir.join(FOLDER);
    let path = folder.join(FILE);
    let fail = |verb: &str, path: &Path, error: &io::Error| {
        let reason = failure::error_text(error);
        Failure::run(format!(
            "tls-self-signed: cannot {verb} {}: {reason}",
            path.display()
        ))
    };
    create_folder(&folder).map_err(|error| fail("create", &folder, &error))?;
    let lock = lock(&folder);
    if lock.is_some() {
        remove_leftovers(&folder, &[FILE, COPY]);
    }
    let names = all_names(names, &uname().nodename().to_string_lossy());
    let kept = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(fail("read", &path, &error)),
    };
    let lacks = match &kept {
        None => Some("it does not exist".to_owned()),
        Some(text) => {
            let own = names_of(text)
                .ok_or_else(|| Failure::run(broken(&path, &"the file is not from onrush")))?;
            let missing = names.difference(&own).next();
            match missing {
                Some(name) => Some(format!("it lacks the name {name}")),
                None if is_valid_for_long(&path)? => None,
                None => Some("it expires soon".to_owned()),
            }
        }
    };
    if let Some(reason) = lacks.as_ref().filter(|_| kept.is_some()) {
        tracing::warn!(
            "the self-signed certificate is replaced: {reason}; its fingerprint changes"
        );
    }
    let text = match kept.filter(|_| lacks.is_none()) {
        Some(text) => {
            protect(&path).map_err(|error| fail("protect", &path, &error))?;
            text
        }
        None => {
            let text = make(&names, SystemTime::now())
                .map_err(|error| Failure::run(format!("tls-self-signed: {error}")))?;
            replace(&path, &text, 0o600).map_err(|error| fail("write", &path, &error))?;
            text
        }
    };
    let certificate = CertificateDer::from_pem_slice(text.as_bytes())
        .map_err(|_| Failure::run(broken(&path, &"it has no certificate")))?;
    let copy = folder.join(COPY);
    let public = text.find("-----BEGIN CERTIFICATE").map(|at| &text[at..]);
    let public = public.unwrap_or_default();
    if !fs::read(&copy).is_ok_and(|copied| copied == public.as_bytes()) {
        replace(&copy, public, 0o644).map_err(|error| fail("write", &copy, &error))?;
    }
    drop(lock);
    Ok(SelfSigned {
        fingerprint: fingerprint(&certificate),
        files: CertificateFiles {
            certificate: path.clone(),
            key: path,
            ocsp: None,
        },
    })
}

/// Waits until no other process makes a certificate for this folder, and excludes others until the
/// result is dropped. `None` if the file system has no locks (`flock(2)`).
fn lock(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// A certificate and its key in one PEM text, for the time until there is a better one. It is in no
/// file. It is valid for a day, so an alert for certificates that expire soon reports that there is
/// no better one.
pub(crate) fn temporary(names: &[String]) -> Result<String, Failure> {
    let names = names.iter().cloned().collect();
    make(&names, SystemTime::now() - (VALID - TEMPORARY))
        .map_err(|error| Failure::run(format!("a temporary certificate: {error}")))
}

/// `names` with those that every self-signed certificate has.
fn all_names(names: &[String], nodename: &str) -> BTreeSet<String> {
    let usual = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let nodename = nodename.parse::<HostName>().ok().map(|name| name.0);
    let given = names
        .iter()
        .map(|name| name.trim_end_matches('.').to_ascii_lowercase());
    given.chain(usual).chain(nodename).collect()
}

/// The names in the first line of `self-signed.pem`. `None` if it has none: the file is from
/// another program, or was changed by one.
fn names_of(text: &str) -> Option<BTreeSet<String>> {
    let names = text.lines().next()?.strip_prefix(NAMES)?.split(' ');
    Some(names.map(str::to_owned).collect())
}

/// Whether the certificate need not be replaced yet.
fn is_valid_for_long(path: &Path) -> Result<bool, Failure> {
    let config =
        TlsConfig::from_files(path, path).map_err(|error| Failure::run(broken(path, &error)))?;
    let until = SystemTime::now() + RENEWED_BEFORE;
    let certificates = config.certificates();
    Ok(certificates.iter().all(|facts| facts.not_after() > until))
}

/// A file that other programs have changed is not replaced: it may be what clients trust.
fn broken(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!(
        "tls-self-signed: {error}; to get a new certificate, remove {}",
        path.display()
    )
}

/// The content of `self-signed.pem`, with a new key (ECDSA, P-256).
fn make(names: &BTreeSet<String>, now: SystemTime) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let list: Vec<String> = names.iter().cloned().collect();
    let first_line = format!("{NAMES}{}\n", list.join(" "));
    let mut params = CertificateParams::new(list)?;
    params
        .distinguished_name
        .push(DnType::CommonName, "onrush self-signed");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let begin = now.saturating_sub(BACKDATED);
    params.not_before = epoch + begin;
    params.not_after = epoch + begin + VALID;
    let certificate = params.self_signed(&key)?;
    Ok(first_line + &key.serialize_pem() + &certificate.pem())
}

fn fingerprint(certificate: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(certificate) {
        let colon = if text.is_empty() { "" } else { ":" };
        let _ = write!(text, "{colon}{byte:02X}"); // Writing to a String does not fail.
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// A folder of one test. Dropping it removes it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("onrush-self-signed-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).expect("a new folder");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_certificate_is_made_once_and_again_for_another_name() {
        let folder = Folder::new("once");
        let first = open(&folder.0, &names(&["A.example"])).unwrap();
        assert_eq!(first.fingerprint.len(), 32 * 3 - 1);
        let key = first.files.key.clone();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&key), mode(key.parent().unwrap())), (0o600, 0o700));
        assert_eq!(mode(&folder.0.join(".onrush")), 0o700);
        let config = TlsConfig::from_files(&key, &key).unwrap();
        let facts = &config.certificates()[0];
        assert!(facts.dns_names().contains(&"a.example".to_owned()));
        assert!(facts.warnings(SystemTime::now()).is_empty());

        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        let second = open(&folder.0, &names(&["a.example"])).unwrap();
        assert_eq!(second.fingerprint, first.fingerprint);
        assert_eq!(mode(&key), 0o600, "it is protected again");
        assert_eq!(open(&folder.0, &[]).unwrap().fingerprint, first.fingerprint);
        let third = open(&folder.0, &names(&["192.0.2.1"])).unwrap();
        assert_ne!(third.fingerprint, first.fingerprint);
        let copy = fs::read_to_string(key.with_file_name("certificate.pem")).unwrap();
        assert!(!copy.contains("PRIVATE"), "{copy}");
        let copied = CertificateDer::from_pem_slice(copy.as_bytes()).unwrap();
        assert_eq!(fingerprint(&copied), third.fingerprint);
        let files = fs::read_dir(key.parent().unwrap()).unwrap().count();
        assert_eq!(files, 2, "no temporary file is left");
    }

    /// A process was killed while it replaced the files.
    #[test]
    fn leftovers_are_removed() {
        let folder = Folder::new("leftovers");
        let path = open(&folder.0, &[]).unwrap().files.key;
        let place = path.parent().unwrap();
        for name in ["self-signed.pem.123", "certificate.pem.7", "own.pem.1"] {
            fs::write(place.join(name), "text").unwrap();
        }
        open(&folder.0, &[]).unwrap();
        let left: BTreeSet<_> = (fs::read_dir(place).unwrap())
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let expected = ["certificate.pem", "own.pem.1", "self-signed.pem"];
        assert_eq!(left.iter().collect::<Vec<_>>(), expected.each_ref());
    }

    #[test]
    fn servers_that_start_together_use_one_certificate() {
        let folder = Folder::new("together");
        let fingerprints: Vec<String> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| open(&folder.0, &[]).unwrap().fingerprint);
            let all: Vec<_> = (0..8).map(|_| start()).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let first = &fingerprints[0];
        assert!(fingerprints.iter().all(|fingerprint| fingerprint == first));
    }

    #[test]
    fn a_certificate_that_expires_soon_is_replaced() {
        let folder = Folder::new("soon");
        let first = open(&folder.0, &[]).unwrap();
        let made = SystemTime::now() - (VALID - RENEWED_BEFORE / 2);
        let names = all_names(&[], &uname().nodename().to_string_lossy());
        fs::write(&first.files.key, make(&names, made).unwrap()).unwrap();
        let (path, now) = (&first.files.key, SystemTime::now());
        let facts = TlsConfig::from_files(path, path).unwrap().certificates();
        assert!(facts[0].not_after() > now, "it has not expired yet");
        open(&folder.0, &[]).unwrap();
        let facts = TlsConfig::from_files(path, path).unwrap().certificates();
        assert!(facts[0].not_after() > now + VALID - 2 * BACKDATED);
    }

    #[test]
    fn a_broken_file_is_not_replaced() {
        let folder = Folder::new("broken");
        let path = open(&folder.0, &[]).unwrap().files.key;
        let text = fs::read_to_string(&path).unwrap();
        let cut = &text[..text.len() / 2];
        fs::write(&path, cut).unwrap();
        let Err(Failure::Run(message)) = open(&folder.0, &[]) else {
            panic!("it is broken");
        };
        let path_text = path.display().to_string();
        assert!(message.starts_with("tls-self-signed: "), "{message}");
        assert!(
            message.ends_with(&format!("certificate, remove {path_text}")),
            "{message}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), cut);
        // The key and the certificate of an operator.
        let (_, own) = text.split_once('\n').unwrap();
        fs::write(&path, own).unwrap();
        let Err(Failure::Run(message)) = open(&folder.0, &[]) else {
            panic!("it is not from onrush");
        };
        assert!(message.contains("the file is not from onrush"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), own);
        fs::remove_file(&path).unwrap();
        open(&folder.0, &[]).unwrap();
    }

    #[test]
    fn names_are_in_lower_case_and_without_a_dot() {
        let all = all_names(&names(&["B.Example.", "::2"]), "not a name");
        let expected = ["127.0.0.1", "::1", "::2", "b.example", "localhost"];
        assert_eq!(all.iter().collect::<Vec<_>>(), expected.each_ref());
        let text = make(&all, SystemTime::now()).unwrap();
        assert_eq!(names_of(&text), Some(all));
    }
}
