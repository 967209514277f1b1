//! Counts the requests to the service.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The methods that are counted; others count as the last one.
const METHODS: [&str; 5] = ["GET", "HEAD", "PUT", "DELETE", "POST"];
/// What became of a request: the class of its status, no response, or no one who waited for it.
const OUTCOMES: [&str; 6] = ["2xx", "3xx", "4xx", "5xx", "failed", "cancelled"];
/// The upper bounds of the durations, in seconds, without the last one, which is unlimited.
pub const DURATION_BOUNDS: [f64; 10] =
    [0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];
const BUCKETS: usize = DURATION_BOUNDS.len() + 1;

/// The requests of a store since its start.
#[derive(Debug, Default)]
pub struct RemoteMetrics {
    requests: [[Series; OUTCOMES.len()]; METHODS.len()],
    retries: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    open_uploads: AtomicU64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A response with this status.
    Status(u16),
    /// No response.
    Failed,
    /// The caller did not want the response any more.
    Cancelled,
}

#[derive(Debug, Default)]
struct Series {
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

/// The requests with one method and one outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestCounts {
    /// `GET`, `HEAD`, `PUT`, `DELETE` or `POST`.
    pub method: &'static str,
    /// `2xx`, `3xx`, `4xx`, `5xx`, `failed` without a response, or `cancelled`: the client has
    /// disconnected before the response.
    pub outcome: &'static str,
    /// The number of requests whose response began within each of [`DURATION_BOUNDS`] and not
    /// within the one before, and at last those that took longer.
    pub buckets: Vec<u64>,
    /// The sum of the durations in seconds.
    pub seconds: f64,
}

impl RemoteMetrics {
    /// Records a request.
    pub(crate) fn record(&self, method: &str, outcome: Outcome, duration: Duration) {
        let last = METHODS.len() - 1;
        let method = METHODS.iter().position(|known| *known == method);
        let outcome = match outcome {
            Outcome::Status(status @ 200..=599) => usize::from(status / 100 - 2),
            Outcome::Status(_) | Outcome::Failed => OUTCOMES.len() - 2,
            Outcome::Cancelled => OUTCOMES.len() - 1,
        };
        let series = &self.requests[method.unwrap_or(last)][outcome];
        let seconds = duration.as_secs_f64();
        let bucket = DURATION_BOUNDS.iter().position(|bound| seconds <= *bound);
        series.buckets[bucket.unwrap_or(BUCKETS - 1)].fetch_add(1, Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        series.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    pub(crate) fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn upload_begins(&self) {
        self.open_uploads.fetch_add(1, Relaxed);
    }

    pub(crate) fn upload_ends(&self) {
        self.open_uploads.fetch_sub(1, Relaxed);
    }

    /// The methods and outcomes that have occurred.
    pub fn requests(&self) -> Vec<RequestCounts> {
        let mut all = Vec::new();
        for (method, outcomes) in METHODS.iter().zip(&self.requests) {
            for (outcome, series) in OUTCOMES.iter().zip(outcomes) {
                let buckets: Vec<u64> = series.buckets.iter().map(|n| n.load(Relaxed)).collect();
                if buckets.iter().any(|&count| count > 0) {
                    all.push(RequestCounts {
                        method,
                        outcome,
                        buckets,
                        seconds: series.nanoseconds.load(Relaxed) as f64 * 1e-9,
                    });
                }
            }
        }
        all
    }

    /// Requests that repeat one that has failed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Bytes of the bodies of requests: of one that is sent as its bytes arrive, those that were
    /// passed on; of another one, all when there is a response.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Relaxed)
    }

    /// Bytes of the bodies of responses that have arrived.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }

    /// Multipart uploads in progress.
    pub fn open_uploads(&self) -> u64 {
        self.open_uploads.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_method_outcome_and_duration() {
        let metrics = RemoteMetrics::default();
        assert_eq!(metrics.requests(), []);
        metrics.record("GET", Outcome::Status(206), Duration::from_millis(1));
        metrics.record("GET", Outcome::Status(200), Duration::from_secs(60));
        metrics.record("OPTIONS", Outcome::Failed, Duration::ZERO);
        metrics.record("OPTIONS", Outcome::Cancelled, Duration::ZERO);
        let [get, other, left] = &metrics.requests()[..] else {
            panic!("three series");
        };
        assert_eq!((get.method, get.outcome), ("GET", "2xx"));
        assert!((get.seconds - 60.001).abs() < 1e-9);
        assert_eq!((get.buckets[0], get.buckets[BUCKETS - 1]), (1, 1));
        assert_eq!((other.method, other.outcome), ("POST", "failed"));
        assert_eq!((left.method, left.outcome), ("POST", "cancelled"));
    }
}
