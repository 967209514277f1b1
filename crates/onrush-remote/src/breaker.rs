//! A circuit breaker. While it is closed, requests are sent. While it is open, the service cannot
//! be reached: requests fail at once instead of after their time limits. Then only a probe is sent,
//! one at a time; its response closes the breaker.
//!
//! A request fails for this purpose if there is no response, or one of a proxy that has none (502,
//! 504). Other errors are responses of the service. The breaker opens when no request has succeeded
//! for [`Options::outage_after`](crate::Options::outage_after) and several have failed. A short
//! interruption, such as the restart of a gateway, is left to the repetition of requests.
//!
//! A service that refuses several requests in a row may refuse everything, such as after the key
//! was revoked, or only what one client asks for. The probe tells which: every store can make it.

use crate::error::{Failure, causes};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The number of failed requests, one after the other, that is no coincidence.
const FAILURES_MIN: u32 = 4;

/// The state of the service as the requests to it have found it.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// The name of the store, for the log.
    store: String,
    outage_after: Duration,
    /// Copy of the state, so that each request reads one byte.
    is_open: AtomicBool,
    is_refused: AtomicBool,
    failing: Mutex<Failing>,
    /// Notified when a probe is wanted.
    wanted: Notify,
}

/// The failures since the last success.
#[derive(Debug, Default)]
struct Failing {
    since: Option<Instant>,
    requests: u32,
    /// The number of the last responses that were refusals.
    refusals: u32,
}

impl Breaker {
    /// `outage_after`: how long requests must have failed before it opens.
    pub(crate) fn new(store: String, outage_after: Duration) -> Breaker {
        Breaker {
            store,
            outage_after,
            is_open: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            failing: Mutex::default(),
            wanted: Notify::new(),
        }
    }

    /// Whether requests fail at once.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Whether the service refuses everything.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Relaxed)
    }

    /// Whether a probe has to find out how the service responds.
    pub(crate) fn wants_probe(&self) -> bool {
        self.is_open() || self.is_refused() || self.failing().refusals >= FAILURES_MIN
    }

    fn failing(&self) -> MutexGuard<'_, Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request that ended at `now`, and how it failed. `error`: why it has no response.
    pub(crate) fn record(
        &self,
        failure: Option<Failure>,
        error: Option<&(dyn Error + 'static)>,
        now: Instant,
    ) {
        let mut failing = self.failing();
        match failure.filter(|failure| is_unreachable(*failure)) {
            Some(failure) => self.record_outage(&mut failing, failure, error, now),
            None => self.record_response(&mut failing, failure, now),
        }
    }

    fn record_outage(
        &self,
        failing: &mut Failing,
        failure: Failure,
        error: Option<&(dyn Error + 'static)>,
        now: Instant,
    ) {
        failing.requests = failing.requests.saturating_add(1);
        let since = *failing.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since);
        let is_outage = failing.requests >= FAILURES_MIN && lasts >= self.outage_after;
        if is_outage && !self.is_open.swap(true, Relaxed) {
            self.wanted.notify_one();
            let error = error.map_or_else(|| failure.to_string(), causes);
            tracing::error!(
                store = self.store,
                error,
                failing_for = ?lasts,
                "the store cannot be reached; requests get 503 until it responds"
            );
        }
    }

    fn record_response(&self, failing: &mut Failing, failure: Option<Failure>, now: Instant) {
        let refusals = match failure {
            Some(failure) if failure.is_refusal() => failing.refusals.saturating_add(1),
            _ => 0,
        };
        let before = failing.since;
        *failing = Failing {
            refusals,
            ..Failing::default()
        };
        if refusals == FAILURES_MIN {
            self.wanted.notify_one();
        }
        if self.is_open.swap(false, Relaxed) {
            let lasted = before.map(|since| now.saturating_duration_since(since));
            tracing::info!(
                store = self.store,
                ?lasted,
                "the store can be reached again"
            );
        }
        let is_accepted = refusals == 0 && failure.is_none_or(|one| !one.may_be_repeated());
        if is_accepted && self.is_refused.swap(false, Relaxed) {
            tracing::info!(store = self.store, "the store accepts requests again");
        }
    }

    /// Records how the request failed that each store can make.
    pub(crate) fn probed(&self, failure: Option<Failure>) {
        let refusal = failure.filter(|failure| failure.is_refusal());
        if let Some(failure) = refusal
            && !self.is_refused.swap(true, Relaxed)
        {
            tracing::error!(
                store = self.store,
                error = %failure,
                "the store refuses all requests; check the key"
            );
        }
    }

    /// Waits until [`Breaker::wants_probe`].
    pub(crate) async fn probe_wanted(&self) {
        while !self.wants_probe() {
            self.wanted.notified().await;
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
        let (breaker, start) = (Breaker::new(String::new(), OUTAGE), Instant::now());
        for &seconds in failures {
            assert!(!breaker.is_open());
            breaker.record(
                Some(Failure::Timeout),
                None,
                start + Duration::from_secs(seconds),
            );
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
            breaker.record(response, None, start + OUTAGE * 2);
            assert!(!breaker.is_open());
            // The time counts anew.
            for _ in 0..10 {
                breaker.record(Some(status(502)), None, start + OUTAGE * 2);
                assert!(!breaker.is_open());
            }
            breaker.record(Some(Failure::Connection), None, start + OUTAGE * 3);
            assert!(breaker.is_open());
        }
    }

    #[test]
    fn a_probe_distinguishes_a_revoked_key_from_a_wrong_request() {
        let (breaker, now) = after(&[]);
        let refuse = |times: u32| {
            for _ in 0..times {
                breaker.record(Some(status(403)), None, now);
            }
        };
        refuse(3);
        breaker.record(None, None, now);
        refuse(3);
        assert!(!breaker.wants_probe());
        refuse(1);
        assert!(breaker.wants_probe() && !breaker.is_refused());
        // The probe succeeds.
        breaker.record(None, None, now);
        breaker.probed(None);
        assert!(!breaker.wants_probe() && !breaker.is_refused());
        refuse(5);
        breaker.probed(Some(status(403)));
        assert!(breaker.is_refused() && !breaker.is_open());
        // A failure says nothing about the key.
        breaker.record(Some(status(503)), None, now);
        assert!(breaker.wants_probe() && breaker.is_refused());
        breaker.record(None, None, now);
        assert!(!breaker.wants_probe() && !breaker.is_refused());
    }
}
