//! When the next order is due: a machine without clock, disk and network.

use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The pauses after a server that cannot be reached, the first and the longest.
const UNREACHABLE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(3600));
/// The pauses after an order that failed. With the factor [`REFUSED_FACTOR`], there are four orders
/// in the first hour: Let's Encrypt permits five failures per hour and name.
const REFUSED: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(6 * 3600));
const REFUSED_FACTOR: u32 = 3;
/// The pause after a rate limit without `Retry-After`.
const RATE_LIMITED: Duration = Duration::from_secs(3600);
/// A longer `Retry-After` is not believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Why there is no certificate yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No usable response: the server, or the path to it, does not work. The next attempt
    /// continues the order, if its certificate has been requested.
    Unreachable,
    /// The server has refused the order, or the validation has failed. The order is over.
    Refused,
    /// The server limits the rate of requests.
    RateLimited,
}

/// The orders since the last certificate. It is kept in a file, so that a restart does not order
/// again at once.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Attempts {
    /// Names and authority that the orders were for.
    pub(crate) subject: String,
    /// The orders that have failed.
    pub(crate) failures: u32,
    /// The next order is not before this time, in seconds since 1970. SIGHUP ends this pause.
    pub(crate) not_before: u64,
    /// The server has asked for no request before this time, in seconds since 1970.
    #[serde(default)]
    pub(crate) limited_until: u64,
}

impl Attempts {
    /// No orders for this subject.
    pub(crate) fn new(subject: &str) -> Attempts {
        Attempts {
            subject: subject.to_owned(),
            ..Attempts::default()
        }
    }

    /// The state while an order is in progress: as if it had failed. If the process ends now, the
    /// next one waits.
    pub(crate) fn begun(&self, now: SystemTime) -> Attempts {
        self.failed(Cause::Refused, None, now, 0.0)
    }

    /// The state after a failed order. `retry_after`: the pause that the server asks for.
    /// `jitter`: from 0 to 1, so that many servers do not return at the same moment.
    pub(crate) fn failed(
        &self,
        cause: Cause,
        retry_after: Option<Duration>,
        now: SystemTime,
        jitter: f64,
    ) -> Attempts {
        let pause = with_jitter(refused_pause(self.failures), jitter);
        let limit = (cause == Cause::RateLimited).then_some(RATE_LIMITED);
        Attempts {
            failures: self.failures.saturating_add(1),
            not_before: seconds(now + pause),
            ..self.limited(retry_after.or(limit), now, jitter)
        }
    }

    /// The state after the server has asked for a pause, or for none.
    pub(crate) fn limited(
        &self,
        retry_after: Option<Duration>,
        now: SystemTime,
        jitter: f64,
    ) -> Attempts {
        let until = |pause| seconds(now + with_jitter(pause, jitter).min(RETRY_AFTER_MAX));
        Attempts {
            limited_until: retry_after.map_or(0, until),
            ..self.clone()
        }
    }

    /// The state after a certificate was obtained that is renewed at `renewal`. `self` is the state
    /// while it was ordered. `None`: the next order only waits for the renewal. If that is due
    /// already, because the certificate or the clock is wrong, it waits as after a failure.
    pub(crate) fn obtained(self, renewal: SystemTime, now: SystemTime) -> Option<Attempts> {
        (renewal <= now).then_some(self)
    }

    /// How long the next order has to wait.
    pub(crate) fn wait(&self, now: SystemTime) -> Duration {
        until(self.not_before, now).max(self.limit(now))
    }

    /// The part of the pause that the server has asked for.
    pub(crate) fn limit(&self, now: SystemTime) -> Duration {
        until(self.limited_until, now)
    }
}

fn until(time: u64, now: SystemTime) -> Duration {
    // A clock that was wrong must not stop renewals for good.
    Duration::from_secs(time.saturating_sub(seconds(now))).min(RETRY_AFTER_MAX)
}

/// The pause after `failures` earlier failures.
fn refused_pause(failures: u32) -> Duration {
    let factor = REFUSED_FACTOR.saturating_pow(failures);
    REFUSED.0.saturating_mul(factor).min(REFUSED.1)
}

/// The pause after the server was unreachable `times` times before. `jitter` is as in
/// [`Attempts::failed`].
pub(crate) fn unreachable_pause(times: u32, jitter: f64) -> Duration {
    let factor = 2u32.saturating_pow(times);
    let pause = UNREACHABLE.0.saturating_mul(factor).min(UNREACHABLE.1);
    with_jitter(pause, jitter)
}

/// Up to a quarter longer.
fn with_jitter(pause: Duration, jitter: f64) -> Duration {
    pause.saturating_add(pause.mul_f64(jitter.clamp(0.0, 1.0) / 4.0))
}

/// When a certificate is renewed: after two thirds of its validity.
pub(crate) fn renewal(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    let validity = not_after.duration_since(not_before).unwrap_or_default();
    not_before + validity / 3 * 2
}

/// The time in seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn failed_orders_wait_longer_and_longer() {
        let (mut attempts, mut now, mut waits) = (Attempts::new("a"), at(1_000_000), Vec::new());
        assert_eq!(attempts.wait(now), Duration::ZERO);
        for _ in 0..8 {
            attempts = attempts.failed(Cause::Refused, None, now, 0.0);
            let wait = attempts.wait(now);
            waits.push(wait.as_secs());
            assert_eq!(attempts.wait(now + wait), Duration::ZERO);
            assert!(attempts.wait(now + wait - Duration::from_secs(1)) > Duration::ZERO);
            now += wait;
        }
        assert_eq!(waits, [120, 360, 1080, 3240, 9720, 21600, 21600, 21600]);
        assert_eq!((attempts.failures, attempts.subject.as_str()), (8, "a"));
        let many = Attempts {
            failures: u32::MAX,
            ..attempts
        };
        let after = many.failed(Cause::Refused, None, now, 1.0);
        assert_eq!(after.wait(now).as_secs(), 27_000);
        assert_eq!(after.failures, u32::MAX);
    }

    #[test]
    fn an_order_in_progress_counts_as_failed() {
        let now = at(1_000_000);
        let attempts = Attempts::new("a");
        let begun = attempts.begun(now);
        assert_eq!(begun, attempts.failed(Cause::Refused, None, now, 0.0));
        assert_eq!(begun.wait(now).as_secs(), 120);
    }

    #[test]
    fn the_pause_of_the_server_is_respected() {
        let now = at(1_000_000);
        let wait = |cause, retry_after: Option<u64>, jitter| {
            let retry_after = retry_after.map(Duration::from_secs);
            let attempts = Attempts::new("a").failed(cause, retry_after, now, jitter);
            attempts.wait(now).as_secs()
        };
        assert_eq!(wait(Cause::RateLimited, None, 0.0), 3600);
        assert_eq!(wait(Cause::RateLimited, Some(7200), 0.0), 7200);
        assert_eq!(wait(Cause::RateLimited, Some(5), 0.0), 120, "never sooner");
        assert_eq!(wait(Cause::Refused, Some(500), 0.0), 500);
        let jittered = wait(Cause::RateLimited, Some(7200), 1.0);
        assert_eq!(jittered, 9000, "jitter only lengthens");
        assert_eq!(wait(Cause::RateLimited, Some(u64::MAX), 1.0), 7 * 86_400);
    }

    #[test]
    fn an_unreachable_server_is_tried_soon_and_then_rarely() {
        let pauses = [0, 1, 2, 5, 11, u32::MAX];
        let pauses = pauses.map(|times| unreachable_pause(times, 0.0).as_secs());
        assert_eq!(pauses, [2, 4, 8, 64, 3600, 3600]);
        assert_eq!(unreachable_pause(2, 1.0).as_secs(), 10);
    }

    #[test]
    fn only_the_pause_of_the_server_is_a_limit() {
        let now = at(1_000_000);
        let attempts = Attempts::new("a").failed(Cause::Refused, None, now, 0.0);
        assert_eq!(attempts.limit(now), Duration::ZERO);
        let limited = attempts.limited(Some(Duration::from_secs(500)), now, 0.0);
        assert_eq!((limited.failures, limited.not_before), (1, 1_000_120));
        let waits = (limited.limit(now).as_secs(), limited.wait(now).as_secs());
        assert_eq!(waits, (500, 500));
        let refused = Attempts::new("a").failed(Cause::RateLimited, None, now, 0.0);
        assert_eq!(refused.limit(now).as_secs(), 3600);
    }

    #[test]
    fn files_of_earlier_versions_are_read() {
        let text = r#"{"subject": "a", "failures": 2, "not_before": 5}"#;
        let read: Attempts = serde_json::from_str(text).unwrap();
        assert_eq!((read.failures, read.limited_until), (2, 0));
    }

    #[test]
    fn a_clock_in_the_past_does_not_stop_renewals() {
        let attempts = Attempts::new("a").failed(Cause::Refused, None, at(1 << 40), 0.0);
        assert_eq!(attempts.wait(at(0)), RETRY_AFTER_MAX);
    }

    #[test]
    fn a_certificate_that_is_due_for_renewal_is_not_renewed_at_once() {
        let now = at(1_000_000);
        let begun = || Attempts::new("a").begun(now);
        assert_eq!(begun().obtained(at(1_000_001), now), None);
        for renewal in [now, at(0)] {
            let after = begun().obtained(renewal, now).unwrap();
            assert_eq!(after.wait(now).as_secs(), 120);
        }
    }

    #[test]
    fn renewal_is_after_two_thirds_of_the_validity() {
        assert_eq!(renewal(at(1000), at(1090)), at(1060));
        assert_eq!(renewal(at(2000), at(1000)), at(2000));
    }
}
