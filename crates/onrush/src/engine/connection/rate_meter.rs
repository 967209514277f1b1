//! Measures the average rate of one direction of a transfer, over the time in which the engine
//! waits for the peer. Time in which the engine has nothing to send, or does not want to receive,
//! does not count.

use onrush_proto::limits::Limits;

/// Bytes moved and time spent waiting in the present window.
#[derive(Debug, Default)]
pub(in crate::engine) struct RateMeter {
    /// When the present wait began, in ms; `None` while there is none.
    waiting_since_ms: Option<u64>,
    /// The duration of finished waits in this window, in ms.
    waited_ms: u64,
    bytes: u64,
    /// The request that the window belongs to, by the connection's number of responses.
    response_count: u32,
}

impl RateMeter {
    /// Starts a wait, unless one is in progress. `false` when the peer was too slow: the waits so
    /// far fill a window, and fewer bytes than `limits` demand were moved in them. So the first
    /// window of each request is a grace period.
    pub(in crate::engine) fn start_wait(
        &mut self,
        response_count: u32,
        now_ms: u64,
        limits: &Limits,
    ) -> bool {
        if self.response_count != response_count {
            *self = RateMeter {
                response_count,
                ..RateMeter::default()
            };
        }
        if self.waited_ms >= u64::from(limits.rate_window_ms.max(1)) {
            let due = u64::from(limits.rate_bytes_per_s_min).saturating_mul(self.waited_ms) / 1000;
            if self.bytes < due {
                return false;
            }
            (self.waited_ms, self.bytes) = (0, 0);
        }
        self.waiting_since_ms.get_or_insert(now_ms);
        true
    }

    /// Continues the present window for the request that `response_count` names: all responses of a
    /// pipeline are one transfer.
    pub(in crate::engine) fn continue_window(&mut self, response_count: u32) {
        self.response_count = response_count;
    }

    /// The duration of the present wait, in ms; 0 without one.
    pub(in crate::engine) fn present_wait_ms(&self, now_ms: u64) -> u64 {
        (self.waiting_since_ms).map_or(0, |since_ms| now_ms.saturating_sub(since_ms))
    }

    /// Ends the present wait, if there is one.
    pub(in crate::engine) fn end_wait(&mut self, now_ms: u64) {
        if let Some(since_ms) = self.waiting_since_ms.take() {
            self.waited_ms += now_ms.saturating_sub(since_ms);
        }
    }

    /// Counts bytes that the peer sent or accepted.
    pub(in crate::engine) fn record_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            rate_bytes_per_s_min: 100,
            rate_window_ms: 10_000,
            ..Limits::default()
        }
    }

    /// Moves `bytes` after a wait of `ms`; returns whether the next wait may start.
    fn step(rate_meter: &mut RateMeter, now_ms: &mut u64, ms: u64, bytes: usize) -> bool {
        *now_ms += ms;
        rate_meter.end_wait(*now_ms);
        rate_meter.record_bytes(bytes);
        rate_meter.start_wait(1, *now_ms, &limits())
    }

    #[test]
    fn the_rate_is_checked_after_a_whole_window_of_waiting() {
        let (mut rate_meter, mut now) = (RateMeter::default(), 0);
        assert!(rate_meter.start_wait(1, now, &limits()));
        for _ in 0..9 {
            assert!(step(&mut rate_meter, &mut now, 1_000, 1));
        }
        assert!(!step(&mut rate_meter, &mut now, 1_000, 1));
    }

    #[test]
    fn each_window_is_checked_separately() {
        let (mut rate_meter, mut now) = (RateMeter::default(), 0);
        assert!(rate_meter.start_wait(1, now, &limits()));
        assert!(step(&mut rate_meter, &mut now, 10_000, 1_000_000));
        assert!(
            step(&mut rate_meter, &mut now, 10_000, 1_000),
            "just enough"
        );
        assert!(!step(&mut rate_meter, &mut now, 10_000, 999));
    }

    #[test]
    fn time_between_waits_does_not_count() {
        let (mut rate_meter, mut now) = (RateMeter::default(), 0);
        for _ in 0..100 {
            assert!(rate_meter.start_wait(1, now, &limits()));
            assert!(rate_meter.start_wait(1, now, &limits()), "the same wait");
            assert_eq!(rate_meter.present_wait_ms(now + 90), 90);
            rate_meter.end_wait(now + 90);
            assert_eq!(rate_meter.present_wait_ms(now + 100), 0);
            rate_meter.end_wait(now + 1_000);
            now += 1_000;
        }
        assert_eq!(rate_meter.waited_ms, 9_000);
    }

    #[test]
    fn each_request_starts_a_new_window() {
        let mut rate_meter = RateMeter::default();
        for request in 0..100 {
            let now = u64::from(request) * 9_000;
            assert!(rate_meter.start_wait(request, now, &limits()));
            rate_meter.end_wait(now + 9_000);
        }
    }

    #[test]
    fn a_minimum_rate_of_zero_accepts_any_peer() {
        let none = Limits {
            rate_bytes_per_s_min: 0,
            ..limits()
        };
        let mut rate_meter = RateMeter::default();
        for now in [0, 100_000, 200_000] {
            rate_meter.end_wait(now);
            assert!(rate_meter.start_wait(1, now, &none));
        }
    }
}
