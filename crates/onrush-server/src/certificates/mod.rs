//! Certificates of the server while it runs: they are loaded at start, and again on SIGHUP and when
//! a file has changed. Established connections are not affected.
//!
//! A thread of its own does this, because the thread of signals must not wait for a disk, and must
//! not be waited for either: a second SIGTERM ends the process at once. Without TLS the thread does
//! not exist.

mod self_signed;

use crate::acme;
use crate::config::trusted_files::TrustedFiles;
use crate::config::{CertificateFiles, CertificateSource, TlsSettings};
use crate::process::failure::Failure;
use crate::process::reload::{Reload, Requests, Wake};
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush::tls::{CertificateFacts, TlsConfig, TlsConfigBuilder, TlsError, TlsErrorKind};
use onrush_proto::date::utc;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How often the files are checked for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// How often warnings about certificates are repeated.
const WARNING_INTERVAL: Duration = Duration::from_secs(86_400);
/// How often the reason is repeated why the certificates could not be loaded again.
const FAILURE_INTERVAL: Duration = Duration::from_secs(3600);
/// How many certificates, and how many names of each, a line of the log has.
const SHOWN_MAX: usize = 10;

/// The protocols of ALPN without HTTP/2.
const WITHOUT_HTTP2: [&str; 2] = ["http/1.1", "http/1.0"];

/// The options that name the files.
const OPTIONS: &[&str] = &["tls_cert", "tls_key", "tls_ocsp", "tls_client_ca"];

/// The certificates of the server, and the files that they are from.
#[derive(Debug)]
pub(crate) struct Certificates {
    files: Files,
    trusted_files: TrustedFiles,
    /// The state of the files before they were last read.
    states: Vec<FileState>,
    config: TlsConfig,
    /// The certificate in use is a temporary one, until the first is ordered.
    is_temporary: bool,
    fingerprint: Option<String>,
    /// The present warnings, and when each was last logged.
    warned: BTreeMap<String, Instant>,
    /// Why the files could not be loaded the last time, and when that was last logged.
    failure: Option<(String, Instant)>,
    has_failed: Arc<HasFailed>,
}

/// Whether the certificates could not be loaded again the last time, for the metrics.
#[derive(Debug, Default)]
struct HasFailed(AtomicBool);

impl Collector for HasFailed {
    fn collect(&self, text: &mut TextWriter) {
        let name = "onrush_tls_reload_failed";
        let help = "1 if the certificates could not be loaded again the last time.";
        text.family(name, MetricType::Gauge, help);
        text.sample(&[], u64::from(self.0.load(Ordering::Relaxed)));
    }
}

#[derive(Clone, Debug)]
struct Files {
    pairs: Vec<CertificateFiles>,
    client_ca: Vec<PathBuf>,
    is_client_optional: bool,
    http2: bool,
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
        self.complete(builder)
    }

    /// As [`Files::load`], but OCSP responses that cannot be used are omitted: one that belongs to
    /// the certificate before must not prevent a renewal. Also returns why. A revoked certificate
    /// remains an error, because it is no better without the response.
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
                if error.kind() == TlsErrorKind::Revoked {
                    return Err(error);
                }
                problems.push(error);
                pair.ocsp = None;
            }
        }
        match problems.is_empty() {
            true => Err(first),
            false => files.load().map(|config| (config, problems)),
        }
    }

    /// Builds the configuration with the authorities of clients and the protocols.
    fn complete(&self, mut builder: TlsConfigBuilder) -> Result<TlsConfig, TlsError> {
        for path in &self.client_ca {
            builder = builder.client_ca_file(path);
        }
        if self.is_client_optional {
            builder = builder.client_certificates_optional();
        }
        if !self.http2 {
            builder = builder.alpn(WITHOUT_HTTP2);
        }
        builder.build()
    }

    fn are_certificates_there(&self) -> bool {
        self.pairs.iter().all(|pair| pair.certificate.exists())
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
    pub(crate) fn open(
        settings: &TlsSettings,
        dir: &Path,
        trusted_files: &TrustedFiles,
    ) -> Result<Certificates, Failure> {
        let mut certificates = Certificates::load(settings, dir, trusted_files)?;
        certificates.log("certificates loaded", Instant::now());
        Ok(certificates)
    }

    /// Uses the certificates of other settings from now on. After an error, those in use remain.
    /// Blocks.
    fn change(
        &mut self,
        settings: &TlsSettings,
        dir: &Path,
        trusted_files: &TrustedFiles,
    ) -> Result<(), Failure> {
        let other = Certificates::load(settings, dir, trusted_files)?;
        self.config.replace(other.config);
        self.trusted_files = other.trusted_files;
        (self.files, self.states) = (other.files, other.states);
        self.is_temporary = other.is_temporary;
        self.failure = None;
        self.has_failed.0.store(false, Ordering::Relaxed);
        if other.fingerprint != self.fingerprint
            && let Some(fingerprint) = &other.fingerprint
        {
            tracing::info!(fingerprint, "the self-signed certificate");
        }
        self.fingerprint = other.fingerprint;
        self.log("certificates loaded", Instant::now());
        Ok(())
    }

    fn load(
        settings: &TlsSettings,
        dir: &Path,
        trusted_files: &TrustedFiles,
    ) -> Result<Certificates, Failure> {
        (trusted_files.check_of(OPTIONS)).map_err(Failure::usage)?;
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
            http2: settings.http2,
        };
        let states = files.states();
        let mut is_temporary = false;
        let loaded = match (files.load(), temporary) {
            (Err(error), Some(pem)) => {
                is_temporary = true;
                let reason = match files.are_certificates_there() {
                    true => format!("the certificate cannot be used: {error}"),
                    false => "there is no certificate yet".to_owned(),
                };
                tracing::warn!(
                    "{reason}; clients get a temporary one until another is ordered, which they \
                     do not trust"
                );
                files.complete(TlsConfig::builder().certificate(&pem, &pem))
            }
            (loaded, _) => loaded,
        };
        let config = loaded.map_err(|error| Failure::usage(format!("TLS: {error}")))?;
        Ok(Certificates {
            files,
            trusted_files: trusted_files.clone(),
            states,
            config,
            is_temporary,
            fingerprint,
            warned: BTreeMap::new(),
            failure: None,
            has_failed: Arc::default(),
        })
    }

    pub(crate) fn config(&self) -> TlsConfig {
        self.config.clone()
    }

    /// The SHA-256 of a self-signed certificate.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        self.fingerprint.clone()
    }

    /// Whether the certificates could not be loaded again the last time.
    pub(crate) fn collector(&self) -> Arc<dyn Collector> {
        self.has_failed.clone()
    }

    /// Starts the thread that loads the certificates again.
    pub(crate) fn watch(self) -> Result<(Reload, SharedCertificates), Failure> {
        let shared = SharedCertificates(Arc::new(Mutex::new(self)));
        let watched = shared.clone();
        let reload = Reload::start("certificates", "onrush-tls", move |requests| {
            watched.run(requests);
        })?;
        Ok((reload, shared))
    }

    /// Loads the certificates if a file has changed. Logs new warnings, repeats the others once a
    /// day, and a failure once an hour.
    fn check(&mut self, now: Instant) {
        if self.files.states() != self.states {
            self.reload(now);
            return;
        }
        self.warn(now);
        if let Some((line, last)) = &mut self.failure
            && now.saturating_duration_since(*last) >= FAILURE_INTERVAL
        {
            tracing::error!("{line}");
            *last = now;
        }
    }

    /// Loads the certificates. If that fails, those in use remain, and the next attempt follows a
    /// request or a further change.
    fn reload(&mut self, now: Instant) {
        // Before the files are read, so that a later change is not missed.
        self.states = self.files.states();
        let loaded = match self.trusted_files.check_of(OPTIONS) {
            Ok(()) => (self.files.load_without_bad_staples()).map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        match loaded {
            Ok((config, problems)) => {
                for problem in problems {
                    tracing::warn!("TLS: {problem}; its certificate is served without it");
                }
                self.config.replace(config);
                self.is_temporary = false;
                self.failure = None;
                self.log("certificates loaded again", now);
            }
            Err(_) if self.is_temporary && !self.files.are_certificates_there() => {
                tracing::info!("there is no certificate yet; the temporary one remains");
            }
            Err(error) => {
                let line = format!("TLS: {error}; the certificates in use remain");
                tracing::error!("{line}");
                self.failure = Some((line, now));
            }
        }
        (self.has_failed.0).store(self.failure.is_some(), Ordering::Relaxed);
    }

    fn log(&mut self, message: &str, now: Instant) {
        let certificates = self.config.certificates();
        let shown = list(certificates.iter().map(shown), ", ");
        tracing::info!(certificates = shown, "{message}");
        self.warned.clear();
        self.warn(now);
    }

    fn warn(&mut self, now: Instant) {
        let before = std::mem::take(&mut self.warned);
        let system_now = SystemTime::now();
        let mut lines = self.config.warnings(system_now);
        if self.is_temporary {
            // Its expiry is no further problem.
            let own = self.config.certificates();
            let own: Vec<String> =
                (own.iter().flat_map(|facts| facts.warnings(system_now))).collect();
            lines.retain(|line| !own.contains(line));
        }
        for line in lines {
            let last = before.get(&line).copied();
            let recent =
                last.filter(|last| now.saturating_duration_since(*last) < WARNING_INTERVAL);
            if recent.is_none() {
                tracing::warn!("{line}");
            }
            self.warned.insert(line, recent.unwrap_or(now));
        }
    }
}

/// The certificates of the running server. The thread that loads them again has the lock while it
/// does, and so has a change of the settings.
#[derive(Clone, Debug)]
pub(crate) struct SharedCertificates(Arc<Mutex<Certificates>>);

impl SharedCertificates {
    /// See [`Certificates::change`].
    pub(crate) fn change(
        &self,
        settings: &TlsSettings,
        dir: &Path,
        trusted_files: &TrustedFiles,
    ) -> Result<(), Failure> {
        self.lock().change(settings, dir, trusted_files)
    }

    fn run(&self, requests: &Requests) {
        let load = |shared: &mut &Self, wake| match wake {
            Wake::Requested => shared.lock().reload(Instant::now()),
            Wake::TimedOut => shared.lock().check(Instant::now()),
        };
        requests.serve(self, |_| CHECK_INTERVAL, load);
    }

    fn lock(&self) -> MutexGuard<'_, Certificates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first items, and the number of the others.
fn list(mut items: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let first: Vec<String> = items.by_ref().take(SHOWN_MAX).collect();
    let first = first.join(separator);
    match items.len() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// The names of a certificate and the end of its validity.
fn shown(facts: &CertificateFacts) -> String {
    let addresses = facts.ip_addresses().iter().map(ToString::to_string);
    let names: Vec<String> = facts.dns_names().iter().cloned().chain(addresses).collect();
    let names = match names.is_empty() {
        true => facts.subject().to_owned(),
        false => list(names.into_iter(), " "),
    };
    format!("{names} (expires {})", utc(facts.not_after()))
}

#[cfg(test)]
mod tests;
