//! Delays logins of addresses from which others have failed.
//!
//! A login takes its place before it is verified, as if it fails, and gives it back if it succeeds.
//! So logins in parallel wait as long as logins one after the other, and a client that disconnects
//! wins nothing. The first [`FREE`] failures cost no delay; each further one doubles it, up to
//! [`DELAY_MAX_MS`]. A login that would have to wait for longer than [`WAIT_MAX_MS`] is refused.
//!
//! An IPv6 network of 64 bits counts as one address, because each of its hosts can use all of it.

use std::collections::HashMap;
use std::net::IpAddr;

/// The failures without a delay: a person mistypes.
const FREE: u32 = 3;
/// The first delay.
const DELAY_MS: u64 = 250;
/// The longest delay between two logins.
const DELAY_MAX_MS: u64 = 8_000;
/// The longest time that a login waits for its turn.
const WAIT_MAX_MS: u64 = 10_000;
/// Failures are forgotten after this time without another login.
const FORGET_MS: u64 = 15 * 60 * 1000;
/// The maximum number of addresses.
const ADDRESSES_MAX: usize = 8192;
/// How many addresses are compared to find an old one.
const SAMPLE: usize = 16;

/// The addresses from which logins have failed.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    addresses: HashMap<Source, Failures>,
}

/// Where logins come from; `None`: a Unix socket.
type Source = Option<IpAddr>;

#[derive(Debug)]
struct Failures {
    count: u32,
    /// The time of the next login.
    next_ms: u64,
}

/// When a login may be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// After this time.
    After { wait_ms: u64 },
    /// Not now; a retry may succeed after this time.
    Refused { retry_after_s: u64 },
}

fn source(address: Option<IpAddr>) -> Source {
    address.map(|address| match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(network.into())
        }
    })
}

impl Throttle {
    /// Takes the place of a login.
    pub(crate) fn admit(&mut self, address: Option<IpAddr>, now_ms: u64) -> Admission {
        let source = source(address);
        if !self.addresses.contains_key(&source) && self.addresses.len() >= ADDRESSES_MAX {
            self.remove_old();
        }
        let failures = self.addresses.entry(source).or_insert(Failures {
            count: 0,
            next_ms: now_ms,
        });
        if failures.next_ms + FORGET_MS < now_ms {
            failures.count = 0;
        }
        let begin_ms = failures.next_ms.max(now_ms);
        let wait_ms = begin_ms - now_ms;
        if wait_ms > WAIT_MAX_MS {
            return Admission::Refused {
                retry_after_s: wait_ms.div_ceil(1000),
            };
        }
        let doublings = failures.count.saturating_sub(FREE);
        let delay_ms = match failures.count < FREE {
            true => 0,
            false => (DELAY_MS << doublings.min(16)).min(DELAY_MAX_MS),
        };
        failures.count = failures.count.saturating_add(1);
        failures.next_ms = begin_ms + delay_ms;
        Admission::After { wait_ms }
    }

    /// Gives back the place of a login that has succeeded. Earlier failures still count, so that a
    /// user of this server cannot guess the passwords of others faster.
    pub(crate) fn succeeded(&mut self, address: Option<IpAddr>) {
        if let Some(failures) = self.addresses.get_mut(&source(address)) {
            failures.count = failures.count.saturating_sub(1);
            if failures.count == 0 {
                self.addresses.remove(&source(address));
            }
        }
    }

    /// Removes one of the addresses: the one of a sample whose last login is the oldest.
    fn remove_old(&mut self) {
        let sample = self.addresses.iter().take(SAMPLE);
        let oldest = sample.min_by_key(|(_, failures)| failures.next_ms);
        if let Some(oldest) = oldest.map(|(source, _)| *source) {
            self.addresses.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    /// The waits of logins that fail, all at the same time.
    fn waits(throttle: &mut Throttle, from: Option<IpAddr>, count: usize) -> Vec<Admission> {
        (0..count).map(|_| throttle.admit(from, 0)).collect()
    }

    #[test]
    fn delays_double_and_then_logins_are_refused() {
        let mut throttle = Throttle::default();
        let after = |wait_ms| Admission::After { wait_ms };
        let from = address("192.0.2.1");
        let expected = [0, 0, 0, 0, 250, 750, 1750, 3750, 7750].map(after);
        assert_eq!(waits(&mut throttle, from, 9), expected);
        let refused = Admission::Refused { retry_after_s: 16 };
        assert_eq!(throttle.admit(from, 0), refused);
        assert_eq!(throttle.admit(from, 0), refused, "a refusal takes no place");
        assert_eq!(throttle.admit(address("192.0.2.2"), 0), after(0));
        assert_eq!(throttle.admit(from, 15_750), after(0));
        assert_eq!(
            throttle.admit(from, 15_750),
            after(8000),
            "the delay has a maximum"
        );
        let later_ms = 15_750 + 16_000 + FORGET_MS + 1;
        assert_eq!(throttle.admit(from, later_ms), after(0));
        assert_eq!(
            throttle.admit(from, later_ms),
            after(0),
            "failures are forgotten"
        );
    }

    #[test]
    fn a_success_does_not_count() {
        let mut throttle = Throttle::default();
        let from = address("192.0.2.1");
        for _ in 0..100 {
            assert_eq!(throttle.admit(from, 0), Admission::After { wait_ms: 0 });
            throttle.succeeded(from);
        }
        assert!(throttle.addresses.is_empty());
        waits(&mut throttle, from, 6);
        throttle.succeeded(from);
        assert_eq!(throttle.addresses[&from].count, 5, "others have failed");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let mut throttle = Throttle::default();
        waits(&mut throttle, address("2001:db8::1"), 4);
        let same = throttle.admit(address("2001:db8::ffff"), 0);
        assert_eq!(same, Admission::After { wait_ms: 250 });
        let other = throttle.admit(address("2001:db8:0:1::1"), 0);
        assert_eq!(other, Admission::After { wait_ms: 0 });
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut throttle = Throttle::default();
        for number in 0..2 * ADDRESSES_MAX as u32 {
            throttle.admit(Some(IpAddr::V4(number.into())), u64::from(number));
            assert!(throttle.addresses.len() <= ADDRESSES_MAX);
        }
    }
}
