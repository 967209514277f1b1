//! Certificates that clients refuse, now or soon, are warnings and metrics.

use crate::tls::{self, Authority, VERSIONS, with};
use onrush::metrics::Format;
use onrush::tls::TlsErrorKind;
use onrush::{Metrics, Router, Server, TlsConfig};
use rcgen::{CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose};
use std::fs;
use std::time::{Duration, SystemTime};
use testing::TempDir;

const DAY: Duration = Duration::from_secs(86_400);

/// Clients such as GnuTLS refuse an expired response, and accept a certificate without one.
#[test]
fn an_expired_ocsp_response_is_not_stapled() {
    let root = Authority::new("Root");
    let site = root.sign(&["example.org"]);
    let now = SystemTime::now();
    for (end, is_stapled) in [(now - 2 * DAY, false), (now + 2 * DAY, true)] {
        let response = crate::tls::ocsp::response(
            &site.der,
            crate::tls::ocsp::Status::Good,
            end - 10 * DAY,
            end,
        );
        let server = with(&site).ocsp_response(&response).build().unwrap();
        for versions in VERSIONS {
            let seen = tls::ocsp_received(&server, "example.org", root.der(), versions);
            assert_eq!(seen, if is_stapled { &response[..] } else { b"" });
        }
        let warnings = server.warnings(now);
        assert_eq!(warnings.is_empty(), is_stapled, "{warnings:?}");
        let ended = |line: &String| line.ends_with("; clients do not receive it");
        assert!(warnings.iter().all(ended), "{warnings:?}");
        let end_s = end
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let name = "onrush_tls_ocsp_expiry_timestamp_seconds{name=\"example.org\"}";
        let text = metrics_text(&server);
        assert!(text.contains(&format!("{name} {end_s}\n")), "{text}");
    }
}

#[test]
fn a_revoked_certificate_is_refused() {
    let site = Authority::new("Root").sign(&["example.org"]);
    let now = SystemTime::now();
    let with_status = |status| {
        let response = crate::tls::ocsp::response(&site.der, status, now, now + 10 * DAY);
        with(&site).ocsp_response(response).build().unwrap_err()
    };
    let error = with_status(crate::tls::ocsp::Status::Revoked);
    assert_eq!(error.kind(), TlsErrorKind::Revoked);
    assert_eq!(
        error.to_string(),
        "the OCSP response says that the certificate is revoked; clients refuse it: use a new \
         certificate"
    );
    let error = with_status(crate::tls::ocsp::Status::Unknown);
    assert_eq!(error.kind(), TlsErrorKind::MalformedOcsp);
    assert_eq!(
        error.to_string(),
        "the OCSP response says that the authority does not know the certificate"
    );
}

#[test]
fn certificates_that_clients_refuse_are_warnings() {
    let root = Authority::new("Root");
    let mut params = CertificateParams::new(["example.org".to_owned()]).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let feature = vec![0x30, 3, 2, 1, 5];
    let oid = [1, 3, 6, 1, 5, 5, 7, 1, 24];
    params.custom_extensions = vec![CustomExtension::from_oid_content(&oid, feature)];
    let unfit = root.sign_params(params);
    let mut nameless = CertificateParams::default();
    nameless
        .distinguished_name
        .push(DnType::CommonName, "nameless");
    let nameless = root.sign_params(nameless);
    let server = with(&unfit)
        .certificate(&nameless.certificate, &nameless.key)
        .build()
        .unwrap();
    let now = SystemTime::now();
    let usage = "has an extendedKeyUsage without serverAuth";
    let staple = "requires an OCSP response (must-staple, RFC 7633) and has none";
    let name = "has no host name or IP address in subjectAltName";
    let expected = [
        ("example.org", usage),
        ("example.org", staple),
        ("CN=nameless", name),
    ];
    let line = |(name, flaw)| format!("the certificate of {name} {flaw}; clients refuse it");
    assert_eq!(server.warnings(now), expected.map(line));
    let response = crate::tls::ocsp::response(
        &unfit.der,
        crate::tls::ocsp::Status::Good,
        now,
        now + 10 * DAY,
    );
    let stapled = with(&unfit).ocsp_response(response).build().unwrap();
    assert_eq!(stapled.warnings(now), [line(expected[0])]);
}

#[test]
fn every_certificate_of_the_chain_can_expire() {
    let root = Authority::new("Root");
    let intermediate = root.intermediate_with("Old", |params| {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let site = intermediate.sign(&["example.org"]);
    let chain = [site.certificate, intermediate.pem()].concat();
    let server = TlsConfig::from_pem(chain, &site.key).unwrap();
    let warnings = server.warnings(SystemTime::now());
    let expected = "the certificate of the authority CN=Old expired at 2001-01-01 00:00:00 UTC";
    assert_eq!(warnings, [expected]);
    let facts = &server.certificates()[0];
    let in_2001 = SystemTime::UNIX_EPOCH + Duration::from_secs(978_307_200);
    assert_eq!(facts.chain_not_after(), in_2001);
    assert!(facts.not_after() > in_2001);
    let text = metrics_text(&server);
    let sample = "certificate_expiry_timestamp_seconds{name=\"example.org\"} 978307200\n";
    assert!(text.contains(sample), "{text}");
}

/// Only the key of an authority matters to clients.
#[test]
fn an_expired_client_authority_is_a_warning() {
    let root = Authority::new("Root");
    let (site, client) = (root.sign(&["example.org"]), "alice");
    let clients = root.intermediate_with("Clients", |params| {
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let server = with(&site).client_ca(clients.pem()).build().unwrap();
    let expected = "the client CA CN=Clients expired at 2001-01-01 00:00:00 UTC; its clients are \
                    accepted nevertheless";
    assert_eq!(server.warnings(SystemTime::now()), [expected]);
    let client = clients.sign(&[client]);
    for client in tls::clients(&root, Some(&client)) {
        assert!(client.connect(&server, "example.org").is_ok());
    }
}

/// The metrics of a server with this configuration.
fn metrics_text(config: &TlsConfig) -> String {
    let metrics = Metrics::new();
    let server = Server::bind("127.0.0.1:0").workers(1).tls(config.clone());
    let server = server.metrics(&metrics);
    let running = server.start(Router::new()).unwrap();
    let text = metrics.render(Format::Prometheus);
    running.handle().shutdown_now();
    running.wait().unwrap();
    text
}

#[test]
fn an_expired_certificate_is_a_warning() {
    let made = tls::made_for_the_eighties();
    let dir = TempDir::new();
    let path = dir.path().join("old.pem");
    fs::write(&path, [made.certificate, made.key].concat()).unwrap();
    let config = TlsConfig::from_files(&path, &path).unwrap();
    let facts = &config.certificates()[0];
    let name = path.display();
    assert_eq!(
        facts.warnings(SystemTime::now()),
        [format!(
            "the certificate of example.org in {name} expired at 1989-12-31 00:00:00 UTC"
        )]
    );
    assert_eq!(
        facts.warnings(SystemTime::UNIX_EPOCH),
        [format!(
            "the certificate of example.org in {name} is not valid before 1980-01-01 00:00:00 UTC"
        )]
    );
    let in_1985 = SystemTime::UNIX_EPOCH + Duration::from_secs(15 * 365 * 86_400);
    assert!(facts.warnings(in_1985).is_empty());
}
