//! What is counted and logged about logins. Requests with remembered credentials are not counted,
//! because workers would share the counter.

use onrush::metrics::{Collector, MetricType, TextWriter};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The maximum number of lines about failed logins in [`WINDOW_MS`].
const LINES_MAX: u32 = 10;
const WINDOW_MS: u64 = 10_000;

/// The longest part of a name that is logged, in characters.
const NAME_CHARS_MAX: usize = 64;

/// The ways to prove an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Password,
    Token,
    SignedUrl,
}

impl Method {
    const ALL: [Method; 3] = [Method::Password, Method::Token, Method::SignedUrl];

    fn name(self) -> &'static str {
        match self {
            Method::Password => "password",
            Method::Token => "token",
            Method::SignedUrl => "signed_url",
        }
    }
}

/// The counters and the limit of log lines.
#[derive(Debug, Default)]
pub(crate) struct Report {
    verified: [[AtomicU64; 2]; 3],
    /// By status: 400, 401, 403, 429, 503.
    refused: [AtomicU64; 5],
    pub(crate) waiting: AtomicU64,
    pub(crate) reloads: [AtomicU64; 2],
    lines: Mutex<Lines>,
}

const REFUSALS: [u16; 5] = [400, 401, 403, 429, 503];

#[derive(Debug, Default)]
struct Lines {
    since_ms: u64,
    count: u32,
    suppressed: u64,
}

impl Lines {
    /// Whether a line is written; if so, how many before it were not.
    fn admit(&mut self, now_ms: u64) -> Option<u64> {
        if now_ms.saturating_sub(self.since_ms) >= WINDOW_MS {
            (self.since_ms, self.count) = (now_ms, 0);
        }
        if self.count == LINES_MAX {
            self.suppressed += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Report {
    /// Counts credentials that were verified and not remembered.
    pub(crate) fn verified(&self, method: Method, succeeded: bool) {
        self.verified[method as usize][usize::from(succeeded)].fetch_add(1, Relaxed);
    }

    /// Counts a request that gets an error response.
    pub(crate) fn refused(&self, status: u16) {
        if let Some(index) = REFUSALS.iter().position(|known| *known == status) {
            self.refused[index].fetch_add(1, Relaxed);
        }
    }

    /// Logs a failed login. `user`: as sent.
    pub(crate) fn log_failure(
        &self,
        method: Method,
        user: Option<&str>,
        address: Option<IpAddr>,
        now_ms: u64,
    ) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = lines.admit(now_ms) else {
            return;
        };
        drop(lines);
        let user: Option<String> = user.map(|user| user.chars().take(NAME_CHARS_MAX).collect());
        tracing::warn!(
            user,
            address = address.map(tracing::field::display),
            method = method.name(),
            suppressed = (suppressed > 0).then_some(suppressed),
            "login failed"
        );
    }
}

impl Collector for Report {
    fn collect(&self, text: &mut TextWriter) {
        let help = "Credentials that were verified, without those that were remembered.";
        text.family("onrush_auth_verifications", MetricType::Counter, help);
        for method in Method::ALL {
            for (outcome, count) in ["failed", "succeeded"]
                .iter()
                .zip(&self.verified[method as usize])
            {
                let labels = [("method", method.name()), ("outcome", outcome)];
                text.sample(&labels, count.load(Relaxed));
            }
        }
        let help = "Requests that access control has refused.";
        text.family("onrush_auth_refusals", MetricType::Counter, help);
        for (status, count) in REFUSALS.iter().zip(&self.refused) {
            text.sample(&[("status", &status.to_string())], count.load(Relaxed));
        }
        let help = "Logins that wait because others of their address have failed.";
        text.family("onrush_auth_waiting", MetricType::Gauge, help);
        text.sample(&[], self.waiting.load(Relaxed));
        let help = "Times that the users file was loaded again.";
        text.family("onrush_auth_reloads", MetricType::Counter, help);
        for (outcome, count) in ["failed", "succeeded"].iter().zip(&self.reloads) {
            text.sample(&[("outcome", outcome)], count.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_and_the_others_counted() {
        let mut lines = Lines::default();
        for _ in 0..LINES_MAX {
            assert_eq!(lines.admit(5), Some(0));
        }
        assert_eq!(lines.admit(5), None);
        assert_eq!(lines.admit(9_999), None);
        assert_eq!(lines.admit(10_000), Some(2));
        assert_eq!(lines.admit(10_000), Some(0));
    }
}
