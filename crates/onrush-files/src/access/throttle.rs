//! Delays logins of addresses from which others have failed.
//!
//! The first [`FREE`] failures cost no delay; each further one doubles it, up to [`DELAY_MAX_MS`].
//! A login that would have to wait for longer than [`WAIT_MAX_MS`] is refused.
//!
//! Logins in parallel must not win time. As long as an address has no delay, only as many of its
//! logins are verified at once as could fail before it gets one; the others wait for their outcome.
//! So any number of valid logins passes. Once it has a delay, a login takes its place as if it
//! fails, and gives it back if it succeeds. A client that disconnects has failed.
//!
//! The table forgets the address that was used the longest time ago, and none that is in use.
//!
//! An IPv6 network of 64 bits counts as one address, because each of its hosts can use all of it.

use lru::LruCache;
use onrush_rt::net::client_network;
use std::hash::RandomState;
use std::net::IpAddr;
use std::task::Waker;

/// The failures without a delay: a person mistypes.
const FREE: u32 = 3;
/// The first delay.
const DELAY_MS: u64 = 250;
/// The longest delay between two logins.
const DELAY_MAX_MS: u64 = 8_000;
/// The longest time that a login waits for its turn.
const WAIT_MAX_MS: u64 = 10_000;
/// The maximum number of logins of an address that wait, without a delay and with one. One address
/// must not use up what all may wait for together.
const WAITING_MAX: u32 = 512;
const WAITING_DELAYED_MAX: u32 = 32;
/// Failures are forgotten after this time without another login.
const FORGET_MS: u64 = 15 * 60 * 1000;
/// The maximum number of addresses without logins in progress. The logins that wait are limited.
const ADDRESSES_MAX: usize = 8192;

/// The addresses from which logins have failed, are verified or wait.
#[derive(Debug)]
pub(crate) struct Throttle {
    addresses: LruCache<Source, Logins, RandomState>,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            addresses: LruCache::unbounded_with_hasher(RandomState::new()),
        }
    }
}

/// Where logins come from; `None`: a Unix socket.
type Source = Option<IpAddr>;

/// The logins of an address.
#[derive(Debug, Default)]
struct Logins {
    failures: u32,
    /// The time of the next login.
    next_ms: u64,
    /// Logins that are verified without a delay.
    unfinished: u32,
    /// Logins that wait, for whatever reason.
    waiting: u32,
    /// Those of them that wait for the outcome of others.
    wakers: Vec<Waker>,
}

/// When a login may be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// After this time. [`Throttle::finish`] takes the place back.
    After { wait_ms: u64, place: Taken },
    /// Not now; a retry may succeed after this time.
    Refused { retry_after_s: u64 },
}

/// What an admitted login has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Free,
    /// It has delayed the next login by this time.
    Delaying {
        delay_ms: u64,
    },
}

impl Logins {
    /// Delays the next login, as after a failure at this time. Returns the delay.
    fn fail(&mut self, begin_ms: u64) -> u64 {
        let doublings = self.failures.saturating_sub(FREE);
        let delay_ms = match self.failures < FREE {
            true => 0,
            false => (DELAY_MS << doublings.min(16)).min(DELAY_MAX_MS),
        };
        self.failures = self.failures.saturating_add(1);
        self.next_ms = begin_ms + delay_ms;
        delay_ms
    }

    fn is_in_use(&self) -> bool {
        self.unfinished > 0 || self.waiting > 0 || !self.wakers.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.failures == 0 && !self.is_in_use()
    }
}

impl Throttle {
    fn logins(&mut self, address: Option<IpAddr>, now_ms: u64) -> &mut Logins {
        let source = address.map(client_network);
        if !self.addresses.contains(&source) && self.addresses.len() >= ADDRESSES_MAX {
            self.remove_old();
        }
        let logins = (self.addresses).get_or_insert_mut(source, || Logins {
            next_ms: now_ms,
            ..Logins::default()
        });
        if logins.next_ms + FORGET_MS < now_ms {
            logins.failures = 0;
        }
        logins
    }

    /// Takes the place of a login. `None`: `waker` is woken when others have finished; then try
    /// again.
    pub(crate) fn admit(
        &mut self,
        address: Option<IpAddr>,
        now_ms: u64,
        waker: &Waker,
    ) -> Option<Admission> {
        let logins = self.logins(address, now_ms);
        if logins.failures < FREE {
            if logins.failures + logins.unfinished > FREE {
                if !logins.wakers.iter().any(|known| known.will_wake(waker)) {
                    logins.wakers.push(waker.clone());
                }
                return None;
            }
            logins.unfinished += 1;
            let (wait_ms, place) = (0, Taken::Free);
            return Some(Admission::After { wait_ms, place });
        }
        let begin_ms = logins.next_ms.max(now_ms);
        let wait_ms = begin_ms - now_ms;
        if wait_ms > WAIT_MAX_MS {
            let retry_after_s = wait_ms.div_ceil(1000);
            return Some(Admission::Refused { retry_after_s });
        }
        let delay_ms = logins.fail(begin_ms);
        let place = Taken::Delaying { delay_ms };
        Some(Admission::After { wait_ms, place })
    }

    /// Ends a login. One that has not failed gives back what it has taken; earlier failures still
    /// count, so that a user of this server cannot guess the passwords of others faster. Wake the
    /// result when the throttle is unlocked.
    pub(crate) fn finish(
        &mut self,
        address: Option<IpAddr>,
        place: Taken,
        has_failed: bool,
        now_ms: u64,
    ) -> Vec<Waker> {
        let logins = self.logins(address, now_ms);
        match place {
            Taken::Free => {
                logins.unfinished = logins.unfinished.saturating_sub(1);
                if has_failed {
                    logins.fail(logins.next_ms.max(now_ms));
                }
            }
            Taken::Delaying { delay_ms } if !has_failed => {
                logins.failures = logins.failures.saturating_sub(1);
                logins.next_ms = logins.next_ms.saturating_sub(delay_ms).max(now_ms);
            }
            Taken::Delaying { .. } => {}
        }
        let wakers = std::mem::take(&mut logins.wakers);
        self.remove_idle(address);
        wakers
    }

    /// Counts a login that waits. False if too many wait.
    #[must_use]
    pub(crate) fn begin_wait(&mut self, address: Option<IpAddr>, now_ms: u64) -> bool {
        let logins = self.logins(address, now_ms);
        let max = match logins.failures < FREE {
            true => WAITING_MAX,
            false => WAITING_DELAYED_MAX,
        };
        let may_wait = logins.waiting < max;
        logins.waiting += u32::from(may_wait);
        may_wait
    }

    /// Ends what [`begin_wait`](Self::begin_wait) has begun.
    pub(crate) fn end_wait(&mut self, address: Option<IpAddr>) {
        if let Some(logins) = self.addresses.get_mut(&address.map(client_network)) {
            logins.waiting = logins.waiting.saturating_sub(1);
            self.remove_idle(address);
        }
    }

    fn remove_idle(&mut self, address: Option<IpAddr>) {
        let source = address.map(client_network);
        if self.addresses.peek(&source).is_some_and(Logins::is_idle) {
            self.addresses.pop(&source);
        }
    }

    /// Removes the address that was used the longest time ago. One that is in use counts as used
    /// now.
    fn remove_old(&mut self) {
        for _ in 0..self.addresses.len() {
            match self.addresses.peek_lru() {
                Some((source, logins)) if logins.is_in_use() => {
                    let source = *source;
                    self.addresses.promote(&source);
                }
                _ => {
                    self.addresses.pop_lru();
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn admit(throttle: &mut Throttle, from: Option<IpAddr>, now_ms: u64) -> Option<Admission> {
        throttle.admit(from, now_ms, Waker::noop())
    }

    /// Admits a login that fails at once. Returns its wait; `Err`: the time of a retry.
    fn fail(throttle: &mut Throttle, from: Option<IpAddr>, now_ms: u64) -> Result<u64, u64> {
        match admit(throttle, from, now_ms).expect("no other one is verified") {
            Admission::After { wait_ms, place } => {
                throttle.finish(from, place, true, now_ms);
                Ok(wait_ms)
            }
            Admission::Refused { retry_after_s } => Err(retry_after_s),
        }
    }

    #[test]
    fn delays_double_and_then_logins_are_refused() {
        let mut throttle = Throttle::default();
        let from = address("192.0.2.1");
        for expected in [0, 0, 0, 0, 250, 750, 1750, 3750, 7750] {
            assert_eq!(fail(&mut throttle, from, 0), Ok(expected));
        }
        assert_eq!(fail(&mut throttle, from, 0), Err(16));
        assert_eq!(fail(&mut throttle, from, 0), Err(16), "it takes no place");
        assert_eq!(fail(&mut throttle, address("192.0.2.2"), 0), Ok(0));
        assert_eq!(fail(&mut throttle, from, 15_750), Ok(0));
        let longest = fail(&mut throttle, from, 15_750);
        assert_eq!(longest, Ok(8000), "the delay has a maximum");
        let later_ms = 15_750 + 16_000 + FORGET_MS + 1;
        for _ in 0..2 {
            let forgotten = fail(&mut throttle, from, later_ms);
            assert_eq!(forgotten, Ok(0), "failures are forgotten");
        }
    }

    #[test]
    fn a_success_does_not_count() {
        let mut throttle = Throttle::default();
        let from = address("192.0.2.1");
        let succeed = |throttle: &mut Throttle, now_ms| {
            let admission = admit(throttle, from, now_ms);
            let Some(Admission::After { wait_ms, place }) = admission else {
                panic!("{admission:?}");
            };
            throttle.finish(from, place, false, now_ms);
            wait_ms
        };
        for _ in 0..100 {
            assert_eq!(succeed(&mut throttle, 0), 0);
        }
        assert!(throttle.addresses.is_empty());
        for _ in 0..5 {
            let _ = fail(&mut throttle, from, 0);
        }
        for _ in 0..100 {
            assert_eq!(succeed(&mut throttle, 0), 750, "others have failed");
        }
        assert_eq!(
            throttle.addresses.peek(&from).map(|from| from.failures),
            Some(5)
        );
    }

    #[test]
    fn logins_in_parallel_win_nothing_and_lose_nothing() {
        for has_failed in [false, true] {
            let mut throttle = Throttle::default();
            let from = address("192.0.2.1");
            let mut places = Vec::new();
            while let Some(Admission::After { wait_ms, place }) = admit(&mut throttle, from, 0) {
                assert_eq!(wait_ms, 0);
                places.push(place);
            }
            assert_eq!(places.len() as u32, FREE + 1);
            for (number, place) in places.into_iter().enumerate() {
                let woken = throttle.finish(from, place, has_failed, 0);
                assert_eq!(woken.len(), usize::from(number == 0));
            }
            let next = fail(&mut throttle, from, 0);
            assert_eq!(next, Ok(if has_failed { 250 } else { 0 }));
        }
    }

    #[test]
    fn the_logins_of_an_address_that_wait_are_bounded() {
        let mut throttle = Throttle::default();
        let from = address("192.0.2.1");
        let mut waiting = |failures: usize| {
            for _ in 0..failures {
                let _ = fail(&mut throttle, from, 0);
            }
            let count = (0..1000).filter(|_| throttle.begin_wait(from, 0)).count();
            assert!(throttle.begin_wait(address("192.0.2.2"), 0));
            (0..count).for_each(|_| throttle.end_wait(from));
            count as u32
        };
        assert_eq!(waiting(0), WAITING_MAX);
        assert_eq!(waiting(FREE as usize), WAITING_DELAYED_MAX);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let mut throttle = Throttle::default();
        for _ in 0..4 {
            assert_eq!(fail(&mut throttle, address("2001:db8::1"), 0), Ok(0));
        }
        assert_eq!(fail(&mut throttle, address("2001:db8::ffff"), 0), Ok(250));
        assert_eq!(fail(&mut throttle, address("2001:db8:0:1::1"), 0), Ok(0));
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut throttle = Throttle::default();
        for number in 0..2 * ADDRESSES_MAX as u32 {
            let from = Some(IpAddr::V4(number.into()));
            let _ = fail(&mut throttle, from, u64::from(number));
            assert!(throttle.addresses.len() <= ADDRESSES_MAX);
        }
    }

    #[test]
    fn an_address_in_use_or_used_lately_is_not_forgotten() {
        let mut throttle = Throttle::default();
        let from = |number: u32| Some(IpAddr::V4(number.into()));
        let places: Vec<_> = (0..64)
            .map(|number| admit(&mut throttle, from(number), 0))
            .collect();
        let guesser = address("2001:db8::1");
        for number in 64..3 * ADDRESSES_MAX as u32 {
            let _ = fail(&mut throttle, from(number), 1_000);
            if number % 1024 == 0 {
                let _ = fail(&mut throttle, guesser, 1_000);
            }
        }
        assert!(throttle.addresses.len() <= ADDRESSES_MAX);
        assert!(
            fail(&mut throttle, guesser, 1_000).is_err(),
            "its failures count"
        );
        for (number, admission) in places.into_iter().enumerate() {
            let Some(Admission::After { place, .. }) = admission else {
                panic!("{admission:?}");
            };
            let used = throttle.addresses.peek(&from(number as u32));
            assert_eq!(used.map(|used| used.unfinished), Some(1), "{number}");
            let _ = throttle.finish(from(number as u32), place, false, 1_000);
        }
    }
}
