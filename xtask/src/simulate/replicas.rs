//! Front ends that restart behind a load balancer, and a service that returns after an outage.

use super::{FRONT_ENDS, Load, events::Events, random::Random};

/// The load balancer, with the settings of the guide in docs/scale.md.
const CHECK_INTERVAL: f64 = 1.0;
/// Failed checks until a front end gets no requests, and passed ones until it gets them again.
const FALL: u32 = 2;
const RISE: u32 = 2;
/// Further attempts of a request that no front end has begun to process.
const RETRIES: u32 = 3;

/// Front ends that end at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restart {
    pub(super) count: usize,
    /// Whether they complete their requests first (SIGTERM), or not (`kill -9`).
    pub(super) drains: bool,
    /// Seconds until they accept connections again.
    pub(super) absent: f64,
    /// Requests per second that are simulated, of all front ends.
    pub(super) per_s: f64,
    /// Seconds of processing of a request.
    pub(super) processing: f64,
}

/// What became of the requests during a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Restarted {
    pub(super) requests: u64,
    /// Succeeded at the first attempt.
    pub(super) at_once: u64,
    /// Succeeded at a later one.
    pub(super) retried: u64,
    /// No attempt found a front end that accepted the connection.
    pub(super) failed: u64,
    /// In progress at a front end that ended.
    pub(super) cut: u64,
}

/// When front ends end, in seconds.
const BEGIN: f64 = 5.0;

/// The seconds that are simulated, for an absence of so many.
pub(super) fn simulated(absent: f64) -> f64 {
    BEGIN + absent + f64::from(FALL + RISE) * CHECK_INTERVAL
}

pub(super) fn restart(how: Restart, seed: u64) -> Restarted {
    let mut random = Random::new(seed);
    let back = BEGIN + how.absent;
    let end = simulated(how.absent);
    // When the load balancer stops and begins to use each of them.
    let unused: Vec<(f64, f64)> = (0..how.count)
        .map(|_| {
            let first_check = BEGIN + random.share() * CHECK_INTERVAL;
            let noticed = first_check + f64::from(FALL - 1) * CHECK_INTERVAL;
            // One that returns before it is noticed was used all the time.
            match noticed < back {
                true => (
                    noticed,
                    back + (random.share() + f64::from(RISE - 1)) * CHECK_INTERVAL,
                ),
                false => (f64::INFINITY, f64::INFINITY),
            }
        })
        .collect();
    let is_used = |front_end: usize, now: f64| {
        let unused = unused.get(front_end);
        unused.is_none_or(|&(from, to)| now < from || now >= to)
    };
    let is_absent =
        |front_end: usize, now: f64| front_end < how.count && now >= BEGIN && now < back;
    let mut result = Restarted::default();
    let mut now = random.pause(1.0 / how.per_s);
    while now < end {
        result.requests += 1;
        let mut attempt = 0;
        let has_any = how.count < FRONT_ENDS as usize || (0..how.count).any(|n| is_used(n, now));
        let accepted = loop {
            if !has_any {
                break None;
            }
            let front_end = random.below(FRONT_ENDS as usize);
            if !is_used(front_end, now) {
                continue; // The load balancer chooses among those that it uses.
            }
            if !is_absent(front_end, now) {
                break Some(front_end);
            }
            if attempt == RETRIES {
                break None;
            }
            attempt += 1;
        };
        match accepted {
            None => result.failed += 1,
            Some(front_end) => {
                let done = now + random.pause(how.processing);
                let ends = front_end < how.count && now < BEGIN && done > BEGIN;
                match (ends && !how.drains, attempt) {
                    (true, _) => result.cut += 1,
                    (false, 0) => result.at_once += 1,
                    (false, _) => result.retried += 1,
                }
            }
        }
        now += random.pause(1.0 / how.per_s);
    }
    result
}

/// How requests are repeated while the service is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// Attempts with constant pauses.
    Steadily,
    /// Attempts with random, growing pauses.
    Randomly,
    /// As above, and the front end stops them during an outage: a probe finds its end.
    WithBreaker,
}

/// Requests per second to the service, by its normal rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Herd {
    /// The highest rate during the outage.
    pub(super) outage: f64,
    /// The highest rate in a tenth of a second after it.
    pub(super) after: f64,
    pub(super) begun: u64,
    pub(super) ended: u64,
}

/// The constants of `onrush-remote` (service.rs): attempts after the first, pauses in seconds.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: f64 = 0.05;
const LONGEST_PAUSE: f64 = 2.0;
/// Time until a front end that gets no response assumes an outage.
const OUTAGE_AFTER: f64 = 5.0;
/// Interval of its probes.
const PROBE_INTERVAL: f64 = 1.0;

/// The herd after an outage of `seconds`. A client repeats a failed request after the second that
/// `Retry-After` names; it gives up after the third. The rate is scaled down.
pub(super) fn outage(load: &Load, seconds: f64, repeats: Repeats, seed: u64) -> Herd {
    const PER_S: f64 = 2_000.0;
    const CLIENT_ATTEMPTS: u32 = 3;
    let (from, to) = (10.0, 10.0 + seconds);
    let end = to + 20.0;
    let mut random = Random::new(seed);
    // A front end of the sample, with its share of the probes.
    let probes = FRONT_ENDS / load.all_per_s() * PER_S / PROBE_INTERVAL;
    let mut events = Events::default();
    let mut tenths = vec![0u32; (end * 10.0) as usize + 1];
    let (mut begun, mut ended) = (0u64, 0u64);
    // A request of a client, its number, and the number of attempts of the front end.
    events.add(random.pause(1.0 / PER_S), (true, 0u32, 0u32, FIRST_PAUSE));
    while let Some((now, (is_new, asked, attempt, pause))) = events.next() {
        if is_new {
            if now < end {
                events.add(now + random.pause(1.0 / PER_S), (true, 0, 0, FIRST_PAUSE));
                begun += 1;
            } else {
                continue;
            }
        }
        let is_absent = now >= from && now < to;
        let has_opened = repeats == Repeats::WithBreaker
            && now >= from + OUTAGE_AFTER
            && now < to + PROBE_INTERVAL * random.share();
        if !has_opened && let Some(tenth) = tenths.get_mut((now * 10.0) as usize) {
            *tenth += 1;
        }
        if !is_absent && !has_opened {
            ended += 1;
            continue;
        }
        if attempt < ATTEMPTS && !has_opened {
            let next = match repeats {
                Repeats::Steadily => FIRST_PAUSE,
                _ => {
                    (FIRST_PAUSE + random.share() * (2.0 * pause - FIRST_PAUSE)).min(LONGEST_PAUSE)
                }
            };
            events.add(now + next, (false, asked, attempt + 1, next));
        } else if asked + 1 < CLIENT_ATTEMPTS {
            let wait = match repeats {
                Repeats::Steadily => 1.0,
                _ => 1.0 + random.share(),
            };
            events.add(now + wait, (false, asked + 1, 0, FIRST_PAUSE));
        } else {
            ended += 1; // The client gives up.
        }
    }
    let highest = |from: f64, to: f64| {
        let tenths = &tenths[(from * 10.0) as usize..(to * 10.0) as usize];
        f64::from(tenths.iter().copied().max().unwrap_or(0)) * 10.0
    };
    let is_probed = repeats == Repeats::WithBreaker;
    // Once all front ends have noticed the outage, only probes remain.
    let (noticed, added) = match is_probed {
        true => (from + OUTAGE_AFTER, probes),
        false => (from, 0.0),
    };
    Herd {
        outage: (highest(noticed, to) + added) / PER_S,
        after: highest(to, end) / PER_S,
        begun,
        ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(count: usize, drains: bool) -> Restarted {
        let how = Restart {
            count,
            drains,
            absent: 3.0,
            per_s: 5_000.0,
            processing: 0.02,
        };
        let one = restart(how, 1);
        assert_eq!(one, restart(how, 1));
        one
    }

    #[test]
    fn every_request_has_one_result() {
        for count in [0, 10, 500, 1000] {
            for drains in [false, true] {
                let seen = killed(count, drains);
                let results = seen.at_once + seen.retried + seen.failed + seen.cut;
                assert_eq!(results, seen.requests, "{seen:?}");
            }
        }
    }

    #[test]
    fn a_drain_cuts_nothing_and_no_restart_fails_nothing() {
        assert_eq!(killed(300, true).cut, 0);
        assert!(killed(300, false).cut > 0);
        let none = killed(0, false);
        assert_eq!(none.at_once, none.requests);
        assert!(killed(1000, true).failed > 0, "none is there");
    }

    #[test]
    fn failures_are_rare_because_all_attempts_must_meet_absent_ones() {
        let half = killed(500, true);
        // In the first second all are used, and one request of 16 meets four absent ones. In the
        // second one their share of those in use goes down from 1/2 to 0, evenly in time.
        let second = half.requests as f64 / simulated(3.0);
        let shares = (0..1000).map(|step| 1.0 - f64::from(step) / 1000.0);
        let later = shares
            .map(|left| (left / (1.0 + left)).powi(4))
            .sum::<f64>()
            / 1000.0;
        let expected = second * (1.0 / 16.0 + later);
        assert!(
            (half.failed as f64 / expected - 1.0).abs() < 0.15,
            "{half:?}"
        );
    }

    #[test]
    fn random_pauses_and_the_breaker_reduce_the_herd() {
        let of = |repeats| outage(&Load::PLAN, 8.0, repeats, 1);
        let (steady, random) = (of(Repeats::Steadily), of(Repeats::Randomly));
        let breaker = of(Repeats::WithBreaker);
        for herd in [steady, random, breaker] {
            assert_eq!(herd.begun, herd.ended, "each request ends once");
        }
        assert_eq!(breaker, of(Repeats::WithBreaker));
        let text = format!("{steady:?} {random:?} {breaker:?}");
        assert!(steady.outage > 4.0 && breaker.outage < 0.2, "{text}");
        assert!(breaker.after < random.after, "{text}");
    }
}
