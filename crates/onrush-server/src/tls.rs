//! Certificates of the server while it runs: they are loaded at start, and again on SIGHUP and when
//! a file has changed. Established connections are not affected.
//!
//! A thread of its own does this, because the thread of signals must not wait for a disk, and must
//! not be waited for either: a second SIGTERM ends the process at once. Without TLS the thread does
//! not exist.

use crate::config::{CertificateFiles, CertificateSource, TlsSettings};
use crate::failure::Failure;
use crate::reload::Reload;
use crate::{acme, self_signed};
use onrush::tls::{CertificateFacts, TlsConfig, TlsConfigBuilder, TlsError};
use onrush_proto::date;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How often warnings about certificates are repeated.
const WARNING_INTERVAL: Duration = Duration::from_secs(86_400);
/// A certificate that expires within this time causes a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// The certificates of the server, and the files that they are from.
#[derive(Debug)]
pub(crate) struct Certificates {
    files: Files,
    /// The state of the files before they were last read.
    states: Vec<FileState>,
    config: TlsConfig,
    fingerprint: Option<String>,
    last_warning: Instant,
}

#[derive(Clone, Debug)]
struct Files {
    pairs: Vec<CertificateFiles>,
    client_ca: Vec<PathBuf>,
    is_client_optional: bool,
}

/// What changes when a file is replaced, written to, or gets other permissions (`stat(2)`): device,
/// inode, size, and the times of modification and status change. `None`: the file cannot be found.
type FileState = Option<(u64, u64, u64, [i64; 4])>;

impl Files {
    fn load(&self) -> Result<TlsConfig, TlsError> {
        let mut builder = TlsConfig::builder();
        for pair in &self.pairs {
            builder = builder.certificate_files(&pair.certificate, &pair.key);
            if let Some(ocsp) = &pair.ocsp {
                builder = builder.ocsp_response_file(ocsp);
            }
        }
        self.add_clients(builder)
    }

    /// As [`Files::load`], but OCSP responses that cannot be used are omitted: one that belongs to
    /// the certificate before must not prevent a renewal. Also returns why.
    fn load_without_bad_staples(&self) -> Result<(TlsConfig, Vec<TlsError>), TlsError> {
        let first = match self.load() {
            Ok(config) => return Ok((config, Vec::new())),
            Err(error) => error,
        };
        let mut problems = Vec::new();
        let mut files = self.clone();
        for pair in &mut files.pairs {
            let Some(ocsp) = &pair.ocsp else { continue };
            let alone = TlsConfig::builder().certificate_files(&pair.certificate, &pair.key);
            if let Err(error) = alone.ocsp_response_file(ocsp).build() {
                problems.push(error);
                pair.ocsp = None;
            }
        }
        match problems.is_empty() {
            true => Err(first),
            false => files.load().map(|config| (config, problems)),
        }
    }

    /// Builds the configuration with the authorities of clients.
    fn add_clients(&self, mut builder: TlsConfigBuilder) -> Result<TlsConfig, TlsError> {
        for path in &self.client_ca {
            builder = builder.client_ca_file(path);
        }
        if self.is_client_optional {
            builder = builder.client_certificates_optional();
        }
        builder.build()
    }

    fn states(&self) -> Vec<FileState> {
        let pairs = self.pairs.iter().flat_map(|pair| {
            let both = [&pair.certificate, &pair.key];
            both.into_iter().chain(&pair.ocsp)
        });
        pairs
            .chain(&self.client_ca)
            .map(|path| state(path))
            .collect()
    }
}

/// Links are followed, because certbot and Kubernetes replace links.
fn state(path: &Path) -> FileState {
    let found = std::fs::metadata(path).ok()?;
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    Some((found.dev(), found.ino(), found.size(), times))
}

impl Certificates {
    /// Loads the certificates, logs them, and makes a self-signed one if `settings` require it.
    /// `dir` is the served folder, which exists. A broken file is [`Failure::Usage`].
    pub(crate) fn open(settings: &TlsSettings, dir: &Path) -> Result<Certificates, Failure> {
        let mut temporary = None;
        let (pairs, fingerprint) = match &settings.source {
            CertificateSource::Files(pairs) => (pairs.clone(), None),
            CertificateSource::SelfSigned(names) => {
                let made = self_signed::open(dir, names)?;
                (vec![made.files], Some(made.fingerprint))
            }
            CertificateSource::Acme(acme) => {
                let path = acme::certificate_path(dir);
                temporary = Some(self_signed::temporary(&acme.names)?);
                let pair = CertificateFiles {
                    certificate: path.clone(),
                    key: path,
                    ocsp: None,
                };
                (vec![pair], None)
            }
        };
        let files = Files {
            pairs,
            client_ca: settings.client_ca.clone(),
            is_client_optional: settings.is_client_optional,
        };
        let states = files.states();
        let loaded = match (files.load(), temporary) {
            (Err(error), Some(pem)) => {
                let reason = match files.pairs.iter().all(|pair| pair.certificate.exists()) {
                    true => format!("the certificate cannot be used: {error}"),
                    false => "there is no certificate yet".to_owned(),
                };
                tracing::warn!(
                    "{reason}; clients get a temporary one until another is ordered, which they \
                     do not trust"
                );
                files.add_clients(TlsConfig::builder().certificate(&pem, &pem))
            }
            (loaded, _) => loaded,
        };
        let config = loaded.map_err(|error| Failure::usage(format!("TLS: {error}")))?;
        let certificates = Certificates {
            files,
            states,
            config,
            fingerprint,
            last_warning: Instant::now(),
        };
        certificates.log("certificates loaded");
        Ok(certificates)
    }

    pub(crate) fn config(&self) -> TlsConfig {
        self.config.clone()
    }

    /// The SHA-256 of a self-signed certificate.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.fingerprint.clone()
    }

    /// Starts the thread that loads the certificates again.
    pub(crate) fn watch(mut self) -> Result<Reload, Failure> {
        Reload::start("certificates", "onrush-tls", move |requests| {
            self.run(requests);
        })
    }

    fn run(&mut self, requests: &Receiver<()>) {
        loop {
            match requests.recv_timeout(CHECK_INTERVAL) {
                Ok(()) => self.reload(),
                Err(RecvTimeoutError::Timeout) => self.check(Instant::now()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Loads the certificates if a file has changed. Repeats warnings once a day.
    fn check(&mut self, now: Instant) {
        if self.files.states() != self.states {
            self.reload();
        } else if now.saturating_duration_since(self.last_warning) >= WARNING_INTERVAL {
            self.warn(SystemTime::now());
            self.last_warning = now;
        }
    }

    /// Loads the certificates. If that fails, those in use remain, and the next attempt follows a
    /// request or a further change.
    fn reload(&mut self) {
        // Before the files are read, so that a later change is not missed.
        self.states = self.files.states();
        match self.files.load_without_bad_staples() {
            Ok((config, problems)) => {
                for problem in problems {
                    tracing::warn!("TLS: {problem}; its certificate is served without it");
                }
                self.config.replace(config);
                self.log("certificates loaded again");
                self.last_warning = Instant::now();
            }
            Err(error) => {
                tracing::error!("TLS: {error}; the certificates in use remain");
            }
        }
    }

    fn log(&self, message: &str) {
        let certificates = self.config.certificates();
        let shown: Vec<String> = certificates.iter().map(shown).collect();
        tracing::info!(certificates = shown.join(", "), "{message}");
        self.warn(SystemTime::now());
    }

    fn warn(&self, now: SystemTime) {
        for facts in self.config.certificates() {
            if let Some(warning) = facts.warning(now).or_else(|| expiry_warning(&facts, now)) {
                tracing::warn!("{warning}");
            }
        }
    }
}

/// The names of a certificate and the end of its validity.
fn shown(facts: &CertificateFacts) -> String {
    let names = match facts.dns_names() {
        [] => facts.subject().to_owned(),
        names => names.join(" "),
    };
    format!("{names} (expires {})", utc(facts.not_after()))
}

/// A line for the log if the certificate expires soon.
fn expiry_warning(facts: &CertificateFacts, now: SystemTime) -> Option<String> {
    if facts.not_after() > now + EXPIRES_SOON {
        return None;
    }
    let name = facts.dns_names().first().map(String::as_str);
    let file = facts.path().map(|path| format!(" in {}", path.display()));
    Some(format!(
        "the certificate of {}{} expires at {}",
        name.unwrap_or(facts.subject()),
        file.unwrap_or_default(),
        utc(facts.not_after())
    ))
}

/// The time as `2026-01-31 23:59:59 UTC`.
pub(crate) fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Sun, 06 Nov 1994 08:49:37 GMT
    let text = date::format(since.as_secs());
    let part = |range| {
        let bytes = text.get::<std::ops::Range<usize>>(range);
        std::str::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
    };
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(part(8..11)).map_or(1, |at| at / 3 + 1);
    let (day, year, time) = (part(5..7), part(12..16), part(17..25));
    format!("{year}-{month:02}-{day} {time} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `act` logs.
    fn logged(act: impl FnOnce()) -> String {
        let memory = Memory::default();
        let writer = memory.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, act);
        let bytes = memory.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// A folder of one test. Dropping it removes it.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Folder {
            let name = format!("onrush-tls-{}", std::process::id());
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

    /// A certificate that expires on the first day of `year`, and its key.
    fn pem(name: &str, year: i32) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn changed_files_are_loaded_without_a_signal() {
        let folder = Folder::new();
        let (certificate, key) = (folder.0.join("a.pem"), folder.0.join("a.key"));
        let write = |path: &Path, text: &str| {
            let new = folder.0.join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, path).unwrap();
        };
        let (first, first_key) = pem("a.example", 2100);
        write(&certificate, &first);
        write(&key, &first_key);
        let settings = TlsSettings {
            source: CertificateSource::Files(vec![CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                ocsp: None,
            }]),
            client_ca: Vec::new(),
            is_client_optional: false,
            plain: Vec::new(),
            redirect: Vec::new(),
            https_port: None,
            hsts_s: None,
        };
        let mut certificates = Certificates::open(&settings, &folder.0).unwrap();
        let in_use = certificates.config();
        let name = || in_use.certificates()[0].dns_names()[0].clone();
        let start = Instant::now();
        let mut check = |now| logged(|| certificates.check(now));
        assert_eq!(check(start), "", "nothing has changed");

        // The certificate has been replaced, the key not yet.
        let (second, second_key) = pem("b.example", 2101);
        write(&certificate, &second);
        let log = check(start);
        assert_eq!(log.matches("ERROR").count(), 1, "{log}");
        assert!(log.contains(&key.display().to_string()), "{log}");
        assert_eq!(name(), "a.example");
        assert_eq!(check(start), "", "it is logged once for each change");
        write(&key, &second_key);
        let log = check(start);
        assert!(log.contains("INFO"), "{log}");
        let expected = "certificates=\"b.example (expires 2101-01-01 00:00:00 UTC)\"";
        assert!(log.contains(expected), "{log}");
        assert_eq!(name(), "b.example");

        // A file that is missing is a change, and so is its return.
        fs::remove_file(&key).unwrap();
        assert!(check(start).contains("does not exist; the certificates in use remain"));
        assert_eq!((check(start).as_str(), name().as_str()), ("", "b.example"));
        let (third, third_key) = pem("c.example", 2000);
        write(&certificate, &third);
        write(&key, &third_key);
        let warning = "the certificate of c.example in";
        let log = check(start);
        assert_eq!(log.matches(warning).count(), 1, "{log}");

        // The warning is repeated once a day.
        let loaded = Instant::now();
        assert_eq!(check(loaded + WARNING_INTERVAL / 2), "");
        for day in 1..3 {
            let log = check(loaded + WARNING_INTERVAL * day);
            assert_eq!(log.matches(warning).count(), 1, "{log}");
            assert_eq!(log.lines().count(), 1, "{log}");
        }
    }

    #[test]
    fn a_certificate_that_expires_within_14_days_causes_a_warning() {
        let (certificate, key) = pem("a.example", 2100);
        let config = TlsConfig::from_pem(certificate, key).unwrap();
        let facts = &config.certificates()[0];
        let before = |days: u64| facts.not_after() - Duration::from_secs(days * 86_400);
        assert_eq!(expiry_warning(facts, before(15)), None);
        assert_eq!(
            expiry_warning(facts, before(13)).unwrap(),
            "the certificate of a.example expires at 2100-01-01 00:00:00 UTC"
        );
    }
}
