//! A circuit breaker: while the service cannot be reached, requests fail at once instead of after
//! their time limits, and one probe at a time finds out when it responds again.
//!
//! A request fails for this purpose if there is no response, or one of a proxy that has none (502,
//! 504). Other errors are responses of the service. The breaker opens when no request has succeeded
//! for [`Options::outage_after`](crate::Options::outage_after) and several have failed. A short
//! interruption, such as the restart of a gateway, is left to the repetition of requests.

use crate::error::Failure;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The number of failed requests, one after the other, that is no coincidence.
const FAILURES_MIN: u32 = 4;

/// The state of the service as the requests to it have found it.
#[derive(Debug)]
pub(crate) struct Breaker {
    outage_after: Duration,
    /// Copy of the state, so that each request reads one byte.
    is_open: AtomicBool,
    failing: Mutex<Failing>,
    opened: Notify,
}

/// The failures since the last success.
#[derive(Debug, Default)]
struct Failing {
    since: Option<Instant>,
    requests: u32,
}

impl Breaker {
    /// `outage_after`: how long requests must have failed before it opens.
    pub(crate) fn new(outage_after: Duration) -> Breaker {
        Breaker {
            outage_after,
            is_open: AtomicBool::new(false),
            failing: Mutex::default(),
            opened: Notify::new(),
        }
    }

    /// Whether requests fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Records a request that ended at `now`, and how it failed.
    pub(crate) fn record(&self, failure: Option<Failure>, now: Instant) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if !failure.is_some_and(is_unreachable) {
            *failing = Failing::default();
            if self.is_open.swap(false, Relaxed) {
                tracing::info!("the store can be reached again");
            }
            return;
        }
        failing.requests = failing.requests.saturating_add(1);
        let since = *failing.since.get_or_insert(now);
        let is_outage = now.saturating_duration_since(since) >= self.outage_after;
        if failing.requests >= FAILURES_MIN && is_outage && !self.is_open.swap(true, Relaxed) {
            self.opened.notify_one();
            tracing::error!("the store cannot be reached; requests get 503 until it responds");
        }
    }

    /// Waits until the breaker is open.
    pub(crate) async fn opened(&self) {
        while !self.is_open() {
            self.opened.notified().await;
        }
    }
}

fn is_unreachable(failure: Failure) -> bool {
    match failure {
        Failure::Connection | Failure::Timeout => true,
        Failure::Status { status, .. } => matches!(status, 502 | 504),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTAGE: Duration = Duration::from_secs(5);

    fn status(status: u16) -> Failure {
        Failure::Status {
            status,
            retry_after: None,
        }
    }

    /// A breaker after failures at these seconds.
    fn after(failures: &[u64]) -> (Breaker, Instant) {
        let (breaker, start) = (Breaker::new(OUTAGE), Instant::now());
        for &seconds in failures {
            assert!(!breaker.is_open());
            breaker.record(Some(Failure::Timeout), start + Duration::from_secs(seconds));
        }
        (breaker, start)
    }

    #[test]
    fn it_opens_after_some_time_and_some_failures() {
        assert!(!after(&[0, 1, 2, 3, 4]).0.is_open());
        assert!(!after(&[0, 1, 9]).0.is_open());
        assert!(after(&[0, 1, 2, 5]).0.is_open());
        assert!(!after(&[0; 100]).0.is_open());
    }

    #[test]
    fn a_response_closes_it() {
        for response in [
            None,
            Some(status(404)),
            Some(status(503)),
            Some(status(500)),
        ] {
            let (breaker, start) = after(&[0, 1, 2, 6]);
            assert!(breaker.is_open());
            breaker.record(response, start + OUTAGE * 2);
            assert!(!breaker.is_open());
            // The time counts anew.
            for _ in 0..10 {
                breaker.record(Some(status(502)), start + OUTAGE * 2);
                assert!(!breaker.is_open());
            }
            breaker.record(Some(Failure::Connection), start + OUTAGE * 3);
            assert!(breaker.is_open());
        }
    }
}
