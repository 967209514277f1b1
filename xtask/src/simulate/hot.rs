//! Hot keys: revalidation of what caches hold, and conditional writes to one key.

use super::{
    FRONT_ENDS, Load,
    events::Events,
    random::{Random, Zipf},
};

/// Requests to the service for one key while it is fresh for `fresh` seconds after each
/// validation, per second. `per_s` is the rate of requests for the key at one front end. Without
/// coalescing, each request that arrives during a validation makes one of its own.
pub(super) fn revalidations(
    load: &Load,
    per_s: f64,
    fresh: f64,
    coalesces: bool,
    seed: u64,
) -> f64 {
    const SECONDS: f64 = 300.0;
    const SAMPLE: u32 = 100;
    let mut random = Random::new(seed);
    let mut count = 0u64;
    for _ in 0..SAMPLE {
        // The caches were filled at different times.
        let mut now = random.share() * fresh;
        loop {
            now += random.pause(1.0 / per_s);
            if now >= SECONDS {
                break;
            }
            count += 1;
            let done = now + load.latency;
            if !coalesces {
                let mut other = now + random.pause(1.0 / per_s);
                while other < done {
                    count += 1;
                    other += random.pause(1.0 / per_s);
                }
            }
            now = done + fresh;
        }
    }
    count as f64 / SECONDS * FRONT_ENDS / f64::from(SAMPLE)
}

/// The share of all requests that need the service, if caches hold every object and each is fresh
/// for `fresh` seconds. `spread` front ends share the requests for a key.
pub(super) fn stale_share(load: &Load, fresh: f64, spread: f64, seed: u64) -> f64 {
    const SAMPLES: u32 = 50_000;
    let mut random = Random::new(seed);
    let zipf = Zipf::new(load.objects, load.skew);
    let sum: f64 = (0..SAMPLES)
        .map(|_| {
            let rank = zipf.rank(&mut random);
            let per_s = zipf.probability(rank) * load.all_per_s() / spread;
            // One request after each period of freshness needs the service.
            1.0 / (1.0 + per_s * fresh)
        })
        .sum();
    sum / f64::from(SAMPLES)
}

/// Many writers that each read a key and replace it if it has not changed, repeatedly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writers {
    pub(super) count: usize,
    /// The pause after the first failure is random up to this, and its limit doubles. 0: none.
    pub(super) pause: f64,
    pub(super) seconds: f64,
}

/// What the writers achieved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Written {
    pub(super) per_s: f64,
    /// Conditional writes for each one that succeeded.
    pub(super) attempts: f64,
    /// The longest time of one of 100 changes, in seconds.
    pub(super) p99: f64,
    pub(super) started: u64,
    pub(super) ended: u64,
}

/// The longest pause.
const PAUSE_MAX: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
enum Step {
    Read,
    Write { seen: u64 },
}

/// The operations of one key are processed one after the other.
pub(super) fn conditional_writes(load: &Load, writers: Writers, seed: u64) -> Written {
    let mut random = Random::new(seed);
    let mut events = Events::default();
    let mut begun = vec![0.0; writers.count];
    let mut failures = vec![0u32; writers.count];
    for (writer, begun) in begun.iter_mut().enumerate() {
        let at = random.share() * load.latency;
        *begun = at;
        events.add(at, (writer, Step::Read));
    }
    let (mut version, mut free_at) = (0u64, 0.0f64);
    let (mut started, mut times) = (0u64, Vec::new());
    while let Some((now, (writer, step))) = events.next() {
        if now >= writers.seconds {
            break;
        }
        let at = free_at.max(now);
        match step {
            Step::Read => {
                free_at = at + load.key_operation;
                events.add(
                    free_at + load.latency,
                    (writer, Step::Write { seen: version }),
                );
            }
            Step::Write { seen } if seen == version => {
                started += 1;
                version += 1;
                free_at = at + load.key_write;
                times.push(free_at - begun[writer]);
                (begun[writer], failures[writer]) = (free_at, 0);
                events.add(free_at + load.latency, (writer, Step::Read));
            }
            Step::Write { .. } => {
                started += 1;
                free_at = at + load.key_operation;
                let limit = writers.pause * f64::from(1 << failures[writer].min(10));
                failures[writer] += 1;
                let pause = random.share() * limit.min(PAUSE_MAX);
                events.add(free_at + load.latency + pause, (writer, Step::Read));
            }
        }
    }
    let ended = times.len() as u64;
    times.sort_by(f64::total_cmp);
    Written {
        per_s: ended as f64 / writers.seconds,
        attempts: started as f64 / ended.max(1) as f64,
        p99: times
            .get(times.len() * 99 / 100)
            .copied()
            .unwrap_or(f64::NAN),
        started,
        ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalesced_validations_are_front_ends_by_time() {
        // So many requests arrive that a key is validated as soon as it is not fresh.
        let often = revalidations(&Load::PLAN, 1e6, 10.0, true, 1);
        assert!((often / (FRONT_ENDS / 10.0) - 1.0).abs() < 0.05, "{often}");
        // One request after each period of freshness.
        let rarely = revalidations(&Load::PLAN, 0.05, 10.0, true, 1);
        let expected = FRONT_ENDS / (10.0 + 1.0 / 0.05);
        assert!((rarely / expected - 1.0).abs() < 0.1, "{rarely}");
    }

    #[test]
    fn without_coalescing_each_request_meanwhile_is_one_more() {
        let load = Load::PLAN;
        let per_s = 10.0 / load.latency;
        let once = revalidations(&load, per_s, 10.0, true, 1);
        let each = revalidations(&load, per_s, 10.0, false, 1);
        assert!((each / once - 11.0).abs() < 0.5, "{each} {once}");
    }

    #[test]
    fn longer_freshness_and_fewer_copies_need_the_service_less() {
        let share = |fresh, spread| stale_share(&Load::PLAN, fresh, spread, 1);
        assert!(share(60.0, FRONT_ENDS) < share(10.0, FRONT_ENDS));
        assert!(share(10.0, 1.0) < share(10.0, FRONT_ENDS));
        assert!(share(0.0, 1.0) == 1.0);
    }

    fn writers(count: usize, pause: f64) -> Writers {
        Writers {
            count,
            pause,
            seconds: 8.0,
        }
    }

    #[test]
    fn one_writer_never_fails() {
        let load = Load::PLAN;
        let written = conditional_writes(&load, writers(1, 0.0), 1);
        assert_eq!(written.started, written.ended);
        let each = load.key_operation + load.key_write + 2.0 * load.latency;
        assert!((written.per_s * each - 1.0).abs() < 0.01, "{written:?}");
    }

    #[test]
    fn no_more_changes_than_the_key_allows_and_pauses_save_requests() {
        let load = Load::PLAN;
        let eager = conditional_writes(&load, writers(200, 0.0), 1);
        let patient = conditional_writes(&load, writers(200, 0.01), 1);
        for written in [eager, patient] {
            assert!(written.per_s <= 1.0 / load.key_write, "{written:?}");
            assert!(written.ended <= written.started);
        }
        assert!(patient.attempts < eager.attempts, "{patient:?} {eager:?}");
        assert_eq!(eager, conditional_writes(&load, writers(200, 0.0), 1));
    }
}
