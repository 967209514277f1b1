//! Lines for the log about certificates that clients refuse, now or soon.

use super::facts::CertificateFacts;
use onrush_proto::date::utc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);

/// A time span in which something is valid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Period {
    /// What is valid, as the subject of a sentence.
    title: String,
    begin: SystemTime,
    /// `None`: it does not end.
    pub(super) end: Option<SystemTime>,
    /// How long before the end a warning begins.
    notice: Duration,
    /// What follows from a present time outside the span, for the end of a sentence.
    consequence: &'static str,
}

impl Period {
    /// The validity of a certificate. Its warning begins 14 days before the end.
    pub(super) fn new(title: String, begin: SystemTime, end: Option<SystemTime>) -> Period {
        Period {
            title,
            begin,
            end,
            notice: 14 * DAY,
            consequence: "",
        }
    }

    /// The validity of an OCSP response. It is short, so the warning begins after nine tenths of
    /// it, and at most a day before the end.
    pub(super) fn of_ocsp(begin: SystemTime, end: Option<SystemTime>) -> Period {
        let length = end.and_then(|end| end.duration_since(begin).ok());
        Period {
            notice: (length.unwrap_or_default() / 10).min(DAY),
            consequence: "; clients do not receive it",
            ..Period::new(String::new(), begin, end)
        }
    }

    pub(super) fn titled(self, title: String) -> Period {
        Period { title, ..self }
    }

    pub(super) fn with_consequence(self, consequence: &'static str) -> Period {
        Period {
            consequence,
            ..self
        }
    }

    /// A line if the span has ended, has not begun, or ends soon.
    pub(super) fn warning(&self, now: SystemTime) -> Option<String> {
        let (title, consequence) = (&self.title, self.consequence);
        let line = match self.end {
            Some(end) if now > end => Some(format!("{title} expired at {}{consequence}", utc(end))),
            _ if now < self.begin => Some(format!(
                "{title} is not valid before {}{consequence}",
                utc(self.begin)
            )),
            Some(end) if now + self.notice >= end => {
                Some(format!("{title} expires at {}", utc(end)))
            }
            _ => None,
        };
        line.map(|line| line.replace(char::is_control, " "))
    }
}

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
    use std::time::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn every_warning_names_the_certificate() {
        let period = |title: &str, begin, end| Period {
            notice: Duration::from_secs(10),
            ..Period::new(title.to_owned(), at(begin), Some(at(end)))
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

    #[test]
    fn the_notice_of_an_ocsp_response_is_a_tenth_and_at_most_a_day() {
        let first = |seconds| {
            let period = Period::of_ocsp(at(0), Some(at(seconds))).titled("it".to_owned());
            let ends = |from: u64| period.warning(at(from)).is_some();
            (
                !ends(seconds - seconds / 10 - 1),
                ends(seconds - seconds / 10),
            )
        };
        assert_eq!(first(1000), (true, true));
        assert_eq!(first(864_000), (true, true));
        let long = Period::of_ocsp(at(0), Some(at(8_640_000)));
        assert_eq!(long.warning(at(8_640_000 - 86_401)), None);
        assert!(long.warning(at(8_640_000 - 86_400)).is_some());
        assert_eq!(Period::of_ocsp(at(0), None).warning(at(8_640_000)), None);
    }
}
