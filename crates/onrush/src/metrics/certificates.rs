//! The expiry of certificates and of their OCSP responses. They are read from the TLS
//! configuration when metrics are rendered, so a replaced certificate is included.

use super::text::{MetricType, TextWriter};
use crate::tls::{CertificateFacts, TlsConfig};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The certificates of all servers that share metrics.
#[derive(Debug, Default)]
pub(crate) struct Certificates(Mutex<Vec<TlsConfig>>);

impl Certificates {
    /// Adds the certificates of a server.
    pub(crate) fn add(&self, config: &TlsConfig) {
        self.configs().push(config.clone());
    }

    fn configs(&self) -> MutexGuard<'_, Vec<TlsConfig>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes when each certificate expires, and its OCSP response. Without them it writes nothing.
    pub(super) fn render(&self, text: &mut TextWriter) {
        let all = self.configs();
        let all: Vec<CertificateFacts> = all.iter().flat_map(TlsConfig::certificates).collect();
        let chains = all.iter().map(|facts| (facts, facts.chain_not_after()));
        write(
            text,
            "onrush_tls_certificate_expiry_timestamp_seconds",
            "Time after which the certificate chain is not valid, in seconds since 1970.",
            chains,
        );
        let responses = all
            .iter()
            .filter_map(|facts| Some((facts, facts.ocsp_expires()?)));
        write(
            text,
            "onrush_tls_ocsp_expiry_timestamp_seconds",
            "Time after which the OCSP response is not valid, in seconds since 1970.",
            responses,
        );
    }
}

/// Writes a time by the first name of each certificate. Of several certificates with one name, such
/// as an ECDSA and an RSA certificate, it writes the earliest time.
fn write<'c>(
    text: &mut TextWriter,
    family: &'static str,
    help: &'static str,
    times: impl Iterator<Item = (&'c CertificateFacts, SystemTime)>,
) {
    let mut earliest: BTreeMap<&str, u64> = BTreeMap::new();
    for (facts, time) in times {
        let name = match facts.dns_names().first() {
            Some(name) => name.as_str(),
            None => facts.subject(),
        };
        let time = time.duration_since(UNIX_EPOCH);
        let time_s = time.map_or(0, |since| since.as_secs());
        let earliest_s = earliest.entry(name).or_insert(time_s);
        *earliest_s = time_s.min(*earliest_s);
    }
    if earliest.is_empty() {
        return;
    }
    text.family(family, MetricType::Gauge, help);
    for (name, time_s) in earliest {
        text.sample(&[("name", name)], time_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Format, Metrics};

    fn pem(name: &str, year: i32) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn config(certificates: &[(&str, i32)]) -> TlsConfig {
        let mut builder = TlsConfig::builder();
        for (name, year) in certificates {
            let (certificate, key) = pem(name, *year);
            builder = builder.certificate(certificate, key);
        }
        builder.build().unwrap()
    }

    #[test]
    fn expiry_is_that_of_the_certificates_in_use() {
        let metrics = Metrics::new();
        let samples = || {
            let text = metrics.render(Format::OpenMetrics);
            let is_sample = |line: &&str| line.starts_with("onrush_tls_certificate_expiry");
            let samples: Vec<String> = text.lines().filter(is_sample).map(str::to_owned).collect();
            let name = "_timestamp_seconds{name=";
            samples
                .join(" ")
                .replace("onrush_tls_certificate_expiry", "")
                .replace(name, "")
        };
        assert_eq!(samples(), "");
        assert!(
            !metrics
                .render(Format::Prometheus)
                .contains("tls_certificate")
        );
        let in_use = config(&[
            ("b.example", 2040),
            ("a.example", 2050),
            ("b.example", 2030),
        ]);
        metrics.certificates().add(&in_use);
        let (a, b) = (2_524_608_000_u64, 1_893_456_000_u64); // 2050 and 2030
        assert_eq!(
            samples(),
            format!("\"a.example\"}} {a} \"b.example\"}} {b}")
        );
        in_use.replace(config(&[("c.example", 2030)]));
        assert_eq!(samples(), format!("\"c.example\"}} {b}"));
    }
}
