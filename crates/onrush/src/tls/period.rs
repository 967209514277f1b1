//! Spans of time in which certificates and OCSP responses are valid.

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

    #[cfg(test)]
    pub(super) fn with_notice(self, notice: Duration) -> Period {
        Period { notice, ..self }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
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
