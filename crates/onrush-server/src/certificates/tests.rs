//! Tests of loading certificates again.

#[path = "../../../onrush/tests/tls/ocsp.rs"]
mod ocsp;

use super::*;
use crate::config::AcmeSettings;
use ocsp::{Status, response};
use onrush::Metrics;
use onrush::metrics::Format;
use std::fs;
use testing::log::Log;

/// What `act` logs.
fn logged(act: impl FnOnce()) -> String {
    let subscriber = |log: Log| {
        let builder = tracing_subscriber::fmt().with_ansi(false);
        builder.with_writer(move || log.clone()).finish()
    };
    testing::log::logged(subscriber, act)
}

/// A folder of one test. Dropping it removes it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("onrush-tls-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a new folder");
        Folder(path)
    }

    /// Replaces a file as tools for certificates do.
    fn replace(&self, path: &Path, content: &[u8]) {
        let new = self.0.join("new");
        fs::write(&new, content).unwrap();
        fs::rename(&new, path).unwrap();
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

fn settings(certificate: &Path, key: &Path, ocsp: Option<&Path>) -> TlsSettings {
    TlsSettings {
        source: CertificateSource::Files(vec![CertificateFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            ocsp: ocsp.map(Path::to_owned),
        }]),
        client_ca: Vec::new(),
        is_client_optional: false,
        http2: true,
        plain: Vec::new(),
        redirect: Vec::new(),
        https_port: None,
        hsts_s: None,
    }
}

#[test]
fn changed_files_are_loaded_without_a_signal() {
    let folder = Folder::new("changed");
    let (certificate, key) = (folder.0.join("a.pem"), folder.0.join("a.key"));
    let write = |path: &Path, text: &str| folder.replace(path, text.as_bytes());
    let (first, first_key) = pem("a.example", 2100);
    write(&certificate, &first);
    write(&key, &first_key);
    let settings = settings(&certificate, &key, None);
    let mut certificates =
        Certificates::open(&settings, &folder.0, &TrustedFiles::default()).unwrap();
    let in_use = certificates.config();
    let name = || in_use.certificates()[0].dns_names()[0].clone();
    let start = Instant::now();
    let metrics = Metrics::new();
    metrics.add_collector(certificates.collector());
    let has_failed = || {
        let text = metrics.render(Format::Prometheus);
        text.contains("onrush_tls_reload_failed 1\n")
    };
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
    assert!(has_failed());
    for hour in 1..3 {
        let log = check(start + FAILURE_INTERVAL * hour);
        assert_eq!(
            log.matches("the certificates in use remain").count(),
            1,
            "{log}"
        );
        assert_eq!(check(start + FAILURE_INTERVAL * hour), "");
    }
    write(&key, &second_key);
    let log = check(start);
    assert!(log.contains("INFO") && !has_failed(), "{log}");
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

/// A response about another certificate is omitted, but not the news of a revocation.
#[test]
fn a_revoked_certificate_does_not_replace_one_in_use() {
    let folder = Folder::new("revoked");
    let at = |name: &str| folder.0.join(name);
    let (certificate, key, ocsp) = (at("a.pem"), at("a.key"), at("a.ocsp"));
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    folder.replace(&certificate, made.cert.pem().as_bytes());
    folder.replace(&key, made.signing_key.serialize_pem().as_bytes());
    let now = SystemTime::now();
    let about = |status, length| response(made.cert.der(), status, now, now + length);
    let day = Duration::from_secs(86_400);
    folder.replace(&ocsp, &about(Status::Good, 10 * day));
    let settings = settings(&certificate, &key, Some(&ocsp));
    let mut certificates =
        Certificates::open(&settings, &folder.0, &TrustedFiles::default()).unwrap();
    let in_use = certificates.config();
    let expires = || in_use.certificates()[0].ocsp_expires();
    let first = expires();
    assert!(first.is_some());
    let start = Instant::now();
    let mut check = || logged(|| certificates.check(start));
    folder.replace(&ocsp, &about(Status::Revoked, 20 * day));
    let log = check();
    let line = "says that the certificate is revoked";
    assert!(log.contains("ERROR") && log.contains(line), "{log}");
    assert_eq!(expires(), first);
    folder.replace(&ocsp, &about(Status::Unknown, 20 * day));
    let log = check();
    assert!(
        log.contains("its certificate is served without it"),
        "{log}"
    );
    assert_eq!(expires(), None);
}

#[test]
fn long_lists_are_cut() {
    let items = |count: u32| list((0..count).map(|item| item.to_string()), " ");
    assert_eq!(items(2), "0 1");
    assert_eq!(items(10), "0 1 2 3 4 5 6 7 8 9");
    assert_eq!(items(1200), "0 1 2 3 4 5 6 7 8 9 and 1190 more");
}

#[test]
fn a_temporary_certificate_is_one_warning() {
    let folder = Folder::new("temporary");
    let unused = Path::new("unused");
    let settings = TlsSettings {
        source: CertificateSource::Acme(AcmeSettings {
            names: vec!["a.example".to_owned()],
            email: None,
            directory: "https://127.0.0.1:1/dir".to_owned(),
            ca: None,
        }),
        ..settings(unused, unused, None)
    };
    let log = logged(|| {
        let mut certificates =
            Certificates::open(&settings, &folder.0, &TrustedFiles::default()).unwrap();
        certificates.check(Instant::now() + 2 * WARNING_INTERVAL);
    });
    assert!(log.contains("clients get a temporary one"), "{log}");
    assert!(log.contains("a.example (expires "), "{log}");
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
}
