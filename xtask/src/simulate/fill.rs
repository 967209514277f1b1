//! Caches that are empty at the start: how much of the traffic reaches the service.
//!
//! Front ends with random routing are alike and independent, so a few of them are simulated, with
//! their share of the service. Routing by key gives each front end one of a thousand keys and a
//! thousand times their rate; the hottest keys stay on all front ends, because one could not serve
//! them alone.

use super::{
    FRONT_ENDS, Load,
    random::{Random, Zipf},
};
use std::{collections::HashMap, ops::Range};

/// How the load balancer chooses a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Routing {
    Random,
    ByKey,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) routing: Routing,
    /// Whether requests for an object that is being fetched wait for it.
    pub(super) coalesces: bool,
    pub(super) seconds: usize,
    /// Front ends that are simulated.
    pub(super) sample: usize,
}

/// What happened, as numbers of all front ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filled {
    pub(super) requests: u64,
    pub(super) hits: u64,
    /// Requests that waited for a fetch of another one.
    pub(super) coalesced: u64,
    pub(super) fetched: u64,
    /// The service refused, because its queue was longer than [`Load::wait_max`].
    pub(super) refused: u64,
    /// Requests to the service in each second.
    pub(super) per_s: Vec<f64>,
    /// Longest wait for the service in each second.
    pub(super) wait: Vec<f64>,
}

impl Filled {
    /// Requests to the service in these seconds, by all requests.
    pub(super) fn share(&self, seconds: Range<usize>, load: &Load) -> f64 {
        let count = seconds.len() as f64;
        self.per_s[seconds].iter().sum::<f64>() / count / load.all_per_s()
    }
}

/// Keys up to this rank are on all front ends if the routing is by key.
const HOTTEST: f64 = 1000.0;

pub(super) fn fill(load: &Load, how: Fill, seed: u64) -> Filled {
    let mut random = Random::new(seed);
    let zipf = Zipf::new(load.objects, load.skew);
    let scale = FRONT_ENDS / how.sample as f64;
    // The service is one queue, with the share of its capacity that the sample has.
    let service_time = scale / load.capacity_per_s();
    let mut free_at = 0.0f64;
    let mut ready_at: Vec<HashMap<u64, f64>> = vec![HashMap::new(); how.sample];
    let mut filled = Filled {
        requests: 0,
        hits: 0,
        coalesced: 0,
        fetched: 0,
        refused: 0,
        per_s: vec![0.0; how.seconds],
        wait: vec![0.0; how.seconds],
    };
    let mean_pause = 1.0 / (load.per_front_end * how.sample as f64);
    let mut now = random.pause(mean_pause);
    while now < how.seconds as f64 {
        let rank = zipf.rank(&mut random);
        let key = match how.routing {
            Routing::ByKey if rank > HOTTEST => HOTTEST + (rank / FRONT_ENDS).floor(),
            _ => rank,
        };
        let cache = &mut ready_at[random.below(how.sample)];
        let ready = cache.get(&(key as u64)).copied();
        filled.requests += 1;
        match ready {
            Some(at) if at <= now => filled.hits += 1,
            Some(_) if how.coalesces => filled.coalesced += 1,
            _ => {
                let second = now as usize;
                filled.per_s[second] += scale;
                let wait = (free_at - now).max(0.0);
                if wait > load.wait_max {
                    filled.refused += 1;
                } else {
                    filled.fetched += 1;
                    filled.wait[second] = filled.wait[second].max(wait);
                    free_at = now + wait + service_time;
                    let done = free_at + load.latency;
                    // The earliest of several fetches fills the cache.
                    cache.insert(key as u64, ready.map_or(done, |at| at.min(done)));
                }
            }
        }
        now += random.pause(mean_pause);
    }
    filled
}

/// The largest load of a front end by the mean, if every key is on the one front end that its hash
/// selects.
pub(super) fn imbalance(load: &Load, seed: u64) -> f64 {
    let zipf = Zipf::new(load.objects, load.skew);
    let mut random = Random::new(seed);
    let mut loads = vec![0.0; FRONT_ENDS as usize];
    // The other keys are so many that all front ends have the same share of them.
    let mut rest = 1.0;
    for rank in 1..=10_000 {
        let probability = zipf.probability(f64::from(rank));
        loads[random.below(FRONT_ENDS as usize)] += probability;
        rest -= probability;
    }
    let most = loads.into_iter().fold(0.0, f64::max);
    most * FRONT_ENDS + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(routing: Routing, coalesces: bool) -> Fill {
        Fill {
            routing,
            coalesces,
            seconds: 6,
            sample: 2,
        }
    }

    #[test]
    fn every_request_has_one_result_and_the_seed_determines_it() {
        for routing in [Routing::Random, Routing::ByKey] {
            for coalesces in [false, true] {
                let run = |seed| fill(&Load::PLAN, small(routing, coalesces), seed);
                let one = run(1);
                let results = one.hits + one.coalesced + one.fetched + one.refused;
                assert_eq!(results, one.requests);
                let to_service: f64 = one.per_s.iter().sum();
                let expected = (one.fetched + one.refused) as f64 * FRONT_ENDS / 2.0;
                assert!((to_service - expected).abs() < 1.0);
                assert_eq!(one.coalesced > 0, coalesces);
                assert_eq!(one, run(1));
                assert_ne!(one, run(2));
            }
        }
    }

    #[test]
    fn routing_by_key_and_coalescing_reduce_the_requests_to_the_service() {
        let run = |routing, coalesces| {
            let filled = fill(&Load::PLAN, small(routing, coalesces), 1);
            filled.per_s.iter().sum::<f64>()
        };
        let worst = run(Routing::Random, false);
        assert!(run(Routing::Random, true) < worst);
        assert!(run(Routing::ByKey, false) < run(Routing::Random, true));
    }

    #[test]
    fn few_objects_are_fetched_once_by_each_front_end() {
        let load = Load {
            objects: 100.0,
            skew: 0.0,
            ..Load::PLAN
        };
        let filled = fill(&load, small(Routing::Random, true), 1);
        assert_eq!((filled.fetched, filled.refused), (2 * 100, 0));
    }

    #[test]
    fn the_owner_of_the_hottest_key_has_at_least_its_load() {
        let hottest = Zipf::new(Load::PLAN.objects, Load::PLAN.skew).probability(1.0);
        assert!(imbalance(&Load::PLAN, 1) > hottest * FRONT_ENDS);
    }
}
