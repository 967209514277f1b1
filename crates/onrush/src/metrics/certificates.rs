//! The expiry of certificates. They are read from the TLS configuration when metrics are rendered,
//! so a replaced certificate is included.

use super::text::{MetricType, TextWriter};
use crate::tls::TlsConfig;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

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

    /// Writes the expiry of each certificate by its first name. Of several certificates with one
    /// name, such as an ECDSA and an RSA certificate, it writes the one that expires first. Without
    /// certificates it writes nothing.
    pub(super) fn render(&self, text: &mut TextWriter) {
        let mut expiries: BTreeMap<String, u64> = BTreeMap::new();
        for facts in self.configs().iter().flat_map(TlsConfig::certificates) {
            let name = match facts.dns_names().first() {
                Some(name) => name.as_str(),
                None => facts.subject(),
            };
            let expiry = facts.not_after().duration_since(UNIX_EPOCH);
            let expiry_s = expiry.map_or(0, |since| since.as_secs());
            let earliest_s = expiries.entry(name.to_owned()).or_insert(expiry_s);
            *earliest_s = expiry_s.min(*earliest_s);
        }
        if expiries.is_empty() {
            return;
        }
        let help = "Time after which the certificate is not valid, in seconds since 1970.";
        let name = "onrush_tls_certificate_expiry_timestamp_seconds";
        text.family(name, MetricType::Gauge, help);
        for (name, expiry_s) in expiries {
            text.sample(&[("name", &name)], expiry_s);
        }
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
