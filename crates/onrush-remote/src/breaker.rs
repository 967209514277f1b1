//! A circuit breaker. While it is closed, requests are sent. While it is open, the service cannot
//! be reached: requests fail at once instead of after their time limits. Then only a probe is sent,
//! one at a time; its response closes the breaker.
//!
//! A request fails for this purpose if there is no response, or one of a proxy that has none (502,
//! 504). Other errors are responses of the service. The breaker opens when no request has succeeded
//! for [`Options::outage_after`](crate::Options::outage_after) and several have failed. A short
//! interruption, such as the restart of a gateway, is left to the repetition of requests.
//!
//! A service that hangs lets no request fail before its time limit. So requests in progress count
//! as well: the service is silent while one of them waits and none gets a response. A request may
//! take long for its own reasons, such as a copy of a large object. Therefore a probe is sent after
//! some silence, and the breaker opens if that has no response either.
//!
//! A service that refuses several requests in a row may refuse everything, such as after the key
//! was revoked, or only what one client asks for. The probe tells which: every store can make it.

use crate::error::{Failure, causes};
use std::error::Error;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// The number of failed requests, one after the other, that is no coincidence.
const FAILURES_MIN: u32 = 4;
/// The shortest silence after which the service cannot be reached.
const SILENCE_MIN: Duration = Duration::from_secs(2);
/// The least time for a probe that ends a silence.
const PROBE_MIN: Duration = Duration::from_millis(500);

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
    /// Notified when a probe is wanted, or may be after a while.
    wanted: Notify,
    /// Notified when it opens.
    opened: Notify,
}

/// The failures since the last success.
#[derive(Debug, Default)]
struct Failing {
    since: Option<Instant>,
    requests: u32,
    /// The number of the last responses that were refusals.
    refusals: u32,
    /// The requests in progress.
    waiting: u32,
    /// Since when requests wait, or clients have given up, and there was no response.
    silent_since: Option<Instant>,
    /// Whether the prober waits for [`Breaker::wanted`] without a limit.
    is_idle: bool,
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
            opened: Notify::new(),
        }
    }

    /// The silence after which the service cannot be reached.
    fn silence_max(&self) -> Duration {
        (self.outage_after / 5 * 4).max(SILENCE_MIN)
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
    pub(crate) fn wants_probe(&self, now: Instant) -> bool {
        self.probe_in(&self.failing(), now) == Some(Duration::ZERO)
    }

    /// When the next probe is wanted, if nothing happens meanwhile.
    fn probe_in(&self, failing: &Failing, now: Instant) -> Option<Duration> {
        if self.is_open() || self.is_refused() || failing.refusals >= FAILURES_MIN {
            return Some(Duration::ZERO);
        }
        let silence = now.saturating_duration_since(failing.silent_since?);
        Some((self.silence_max() / 4).saturating_sub(silence))
    }

    /// The time that a probe has which is sent at `now`: that of any request, `limit`, unless it is
    /// to end a silence.
    pub(crate) fn probe_limit(&self, limit: Duration, now: Instant) -> Duration {
        match self.failing().silent_since {
            Some(since) if !self.is_open() => {
                let left =
                    (self.silence_max()).saturating_sub(now.saturating_duration_since(since));
                left.max(PROBE_MIN).min(limit)
            }
            _ => limit,
        }
    }

    /// Records a request that is sent at `now`. Its end is reported by [`Breaker::record`] or
    /// [`Breaker::give_up`].
    pub(crate) fn begin(&self, now: Instant) {
        let mut failing = self.failing();
        failing.waiting += 1;
        failing.silent_since.get_or_insert(now);
        if std::mem::take(&mut failing.is_idle) {
            self.wanted.notify_one();
        }
    }

    /// Records that a request has ended because its caller does not want it any more.
    pub(crate) fn give_up(&self) {
        self.failing().waiting -= 1;
    }

    /// Waits until it is open.
    pub(crate) async fn opens(&self) {
        let mut opened = pin!(self.opened.notified());
        opened.as_mut().enable();
        if !self.is_open() {
            opened.await;
        }
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
        failing.waiting -= 1;
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
        if failing.waiting == 0 && failure != Failure::Timeout {
            failing.silent_since = None; // It is not silent.
        }
        let since = *failing.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since);
        let is_outage = failing.requests >= FAILURES_MIN && lasts >= self.outage_after;
        if is_outage {
            self.open(error.map_or_else(|| failure.to_string(), causes), lasts);
        }
    }

    fn open(&self, error: String, lasts: Duration) {
        if !self.is_open.swap(true, Relaxed) {
            self.wanted.notify_one();
            self.opened.notify_waiters();
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
            waiting: failing.waiting,
            silent_since: (failing.waiting > 0).then_some(now),
            is_idle: failing.is_idle,
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

    /// Records how the request failed that each store can make, which ended at `now`, after
    /// [`Breaker::record`].
    pub(crate) fn probed(&self, failure: Option<Failure>, now: Instant) {
        if let Some(failure) = failure.filter(|failure| is_unreachable(*failure)) {
            let silent_since = self.failing().silent_since;
            let silence = silent_since.map(|since| now.saturating_duration_since(since));
            if let Some(silence) = silence.filter(|silence| *silence >= self.silence_max()) {
                self.open(failure.to_string(), silence);
            }
        }
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
        loop {
            let pause = {
                let mut failing = self.failing();
                let pause = self.probe_in(&failing, Instant::now());
                failing.is_idle = pause.is_none();
                pause
            };
            match pause {
                Some(Duration::ZERO) => return,
                Some(pause) => drop(timeout(pause, self.wanted.notified()).await),
                None => self.wanted.notified().await,
            }
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

    /// A request that begins and ends at `now`.
    fn record(breaker: &Breaker, failure: Option<Failure>, now: Instant) {
        breaker.begin(now);
        breaker.record(failure, None, now);
    }

    /// A breaker after failures at these seconds.
    fn after(failures: &[u64]) -> (Breaker, Instant) {
        let (breaker, start) = (Breaker::new(String::new(), OUTAGE), Instant::now());
        for &seconds in failures {
            assert!(!breaker.is_open());
            let now = start + Duration::from_secs(seconds);
            record(&breaker, Some(Failure::Timeout), now);
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
            record(&breaker, response, start + OUTAGE * 2);
            assert!(!breaker.is_open());
            // The time counts anew.
            for _ in 0..10 {
                record(&breaker, Some(status(502)), start + OUTAGE * 2);
                assert!(!breaker.is_open());
            }
            record(&breaker, Some(Failure::Connection), start + OUTAGE * 3);
            assert!(breaker.is_open());
        }
    }

    #[test]
    fn a_probe_distinguishes_a_revoked_key_from_a_wrong_request() {
        let (breaker, now) = after(&[]);
        let refuse = |times: u32| {
            for _ in 0..times {
                record(&breaker, Some(status(403)), now);
            }
        };
        refuse(3);
        record(&breaker, None, now);
        refuse(3);
        assert!(!breaker.wants_probe(now));
        refuse(1);
        assert!(breaker.wants_probe(now) && !breaker.is_refused());
        // The probe succeeds.
        record(&breaker, None, now);
        breaker.probed(None, now);
        assert!(!breaker.wants_probe(now) && !breaker.is_refused());
        refuse(5);
        breaker.probed(Some(status(403)), now);
        assert!(breaker.is_refused() && !breaker.is_open());
        // A failure says nothing about the key.
        record(&breaker, Some(status(503)), now);
        assert!(breaker.wants_probe(now) && breaker.is_refused());
        record(&breaker, None, now);
        assert!(!breaker.wants_probe(now) && !breaker.is_refused());
    }

    /// A request that waits is late after a second. The probe has until the fourth one.
    #[test]
    fn a_service_that_hangs_is_asked_and_then_unreachable() {
        let (breaker, start) = after(&[]);
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        breaker.begin(start);
        assert!(!breaker.wants_probe(at(999)));
        assert!(breaker.wants_probe(at(1000)));
        let limit = Duration::from_secs(30);
        let left = breaker.probe_limit(limit, at(1500));
        assert_eq!(left, Duration::from_millis(2500));
        breaker.begin(at(1500));
        // A caller that gives up changes nothing.
        breaker.give_up();
        breaker.record(Some(Failure::Timeout), None, at(4000));
        assert!(!breaker.is_open());
        breaker.probed(Some(Failure::Timeout), at(4000));
        assert!(breaker.is_open() && breaker.wants_probe(at(4000)));
        assert_eq!(breaker.probe_limit(limit, at(4000)), limit);
        record(&breaker, None, at(9000));
        breaker.probed(None, at(9000));
        assert!(!breaker.is_open() && !breaker.wants_probe(at(60_000)));
    }

    /// A copy of a large object takes minutes.
    #[test]
    fn a_request_that_takes_long_is_no_outage_while_others_get_responses() {
        let (breaker, start) = after(&[]);
        let at = |seconds| start + Duration::from_secs(seconds);
        breaker.begin(start);
        for seconds in 1..100 {
            assert!(breaker.wants_probe(at(seconds)));
            record(&breaker, None, at(seconds));
            breaker.probed(None, at(seconds));
            assert!(!breaker.is_open() && !breaker.wants_probe(at(seconds)));
        }
        // A probe that fails says nothing before the silence is long enough.
        breaker.begin(at(100));
        breaker.record(Some(Failure::Connection), None, at(101));
        breaker.probed(Some(Failure::Connection), at(101));
        assert!(!breaker.is_open());
        breaker.record(None, None, at(101));
        assert!(!breaker.wants_probe(at(200)));
    }
}
