//! Lines for the log about certificates that clients refuse, now or soon.

use super::facts::CertificateFacts;
use super::period::Period;
use std::time::SystemTime;

impl CertificateFacts {
    /// Lines for the log if clients refuse the certificate at the time `now`, or will soon. They
    /// name:
    ///
    /// - a certificate of the chain that has expired, is not yet valid, or expires within 14 days;
    /// - an OCSP response that has expired, or expires within a day or a tenth of its validity;
    /// - a certificate that requires an OCSP response (RFC 7633) and has none;
    /// - a certificate without a host name in its subjectAltName extension, or whose
    ///   extendedKeyUsage excludes servers.
    ///
    /// The server works nevertheless.
    pub fn warnings(&self, now: SystemTime) -> Vec<String> {
        let own = Period::new(self.title(), self.not_before, Some(self.not_after));
        let flaws = self.flaws.iter();
        let flaws = flaws.map(|flaw| {
            format!("{} {flaw}; clients refuse it", self.title()).replace(char::is_control, " ")
        });
        let periods = [&own].into_iter().chain(&self.issuers).chain(&self.ocsp);
        periods
            .filter_map(|period| period.warning(now))
            .chain(flaws)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::Duration;
    use std::time::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn every_warning_names_the_certificate() {
        let period = |title: &str, begin, end| {
            let period = Period::new(title.to_owned(), at(begin), Some(at(end)));
            period.with_notice(Duration::from_secs(10))
        };
        let facts = CertificateFacts {
            subject: "CN=a".to_owned(),
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            not_before: at(100),
            not_after: at(14 * 86_400 + 300),
            path: Some(PathBuf::from("a.pem")),
            issuers: vec![period("the issuer", 0, 200)],
            ocsp: Some(period("the response", 0, 150).with_consequence("; so it is")),
            flaws: vec!["has a flaw"],
        };
        assert_eq!(facts.chain_not_after(), at(200));
        let flaw = "the certificate of CN=a in a.pem has a flaw; clients refuse it";
        for (now, expected) in [
            (
                99,
                "the certificate of CN=a in a.pem is not valid before 1970-01-01 00:01:40 UTC",
            ),
            (100, ""),
            (139, ""),
            (140, "the response expires at 1970-01-01 00:02:30 UTC"),
            (150, "the response expires at 1970-01-01 00:02:30 UTC"),
            (
                151,
                "the response expired at 1970-01-01 00:02:30 UTC; so it is",
            ),
            (190, "the issuer expires at 1970-01-01 00:03:20 UTC"),
            (201, "the issuer expired at 1970-01-01 00:03:20 UTC"),
            (
                300,
                "the certificate of CN=a in a.pem expires at 1970-01-15 00:05:00 UTC",
            ),
            (
                14 * 86_400 + 301,
                "the certificate of CN=a in a.pem expired at 1970-01-15 00:05:00 UTC",
            ),
        ] {
            let warnings = facts.warnings(at(now));
            assert_eq!(warnings.last().unwrap(), flaw);
            let has = warnings.iter().any(|line| line == expected);
            assert!(
                has || expected.is_empty() && warnings.len() == 1,
                "{now}: {warnings:?}"
            );
        }
    }
}
