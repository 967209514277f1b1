//! A seeded simulation of a thousand front ends and 10^11 objects: what a plan for many machines
//! needs and one machine cannot show. The same seed prints the same text.
//!
//! Modules, lowest first: `random` `events` · `fill` `hot` `replicas`.

mod events;
mod fill;
mod hot;
mod random;
mod replicas;

use crate::{Arguments, Failure};
use fill::{Fill, Filled, Routing};
use hot::Writers;
use replicas::{Repeats, Restart};
use std::ops::Range;

const FRONT_ENDS: f64 = 1000.0;

/// The parameters. "Measured" is on a machine with two cores that also ran the whole Ceph cluster
/// (`cargo xtask bench scale`); all others are assumptions.
#[derive(Clone, Copy, Debug)]
struct Load {
    objects: f64,
    /// The exponent of the popularity. Published traces of web caches have 0.6 to 1.1.
    skew: f64,
    /// Requests per second of a front end.
    per_front_end: f64,
    gateways: f64,
    /// GETs of 1 KiB per second of one gateway. Measured.
    per_gateway: f64,
    /// Seconds of a GET of 1 KiB at an idle gateway. Measured.
    latency: f64,
    /// Seconds of waiting at which the service refuses.
    wait_max: f64,
    /// Seconds for which one operation that changes nothing occupies a key: one by the rate of a
    /// gateway for one key. Measured.
    key_operation: f64,
    /// Seconds of a PUT of 4 KiB. Measured.
    key_write: f64,
    /// Seconds of a page of 1,000 keys of a bucket: the first part, and one for each shard of its
    /// index, because a page needs all of them. Measured with 11 and with 997 shards, of 5,000
    /// keys.
    page: f64,
    page_shard: f64,
    /// Keys of a shard, the default of Ceph.
    shard_keys: f64,
}

impl Load {
    const PLAN: Load = Load {
        objects: 1e11,
        skew: 1.0,
        per_front_end: 1000.0,
        gateways: 400.0,
        per_gateway: 2000.0,
        latency: 0.001,
        wait_max: 5.0,
        key_operation: 0.0005,
        key_write: 0.007,
        page: 0.011,
        page_shard: 0.0001,
        shard_keys: 1e5,
    };

    /// Shards of the index of a bucket. 11 is the default for a new one.
    fn shards(&self, keys: f64) -> f64 {
        (keys / self.shard_keys).max(11.0)
    }

    /// Seconds for a listing of all keys of a bucket, page by page.
    fn listing(&self, keys: f64) -> f64 {
        let page = self.page + self.shards(keys) * self.page_shard;
        (keys / 1000.0).ceil() * page
    }

    fn all_per_s(&self) -> f64 {
        FRONT_ENDS * self.per_front_end
    }

    fn capacity_per_s(&self) -> f64 {
        self.gateways * self.per_gateway
    }
}

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let seed = arguments.number("--seed", 1)?;
    arguments.end()?;
    print!("{}", report(&Load::PLAN, seed));
    Ok(())
}

fn report(load: &Load, seed: u64) -> String {
    let parts = [
        parameters(load, seed),
        cold_start(load, seed),
        skews(load, seed),
        freshness(load, seed),
        hot_keys(load, seed),
        writers(load, seed),
        restarts(seed),
        outages(load, seed),
        listings(load),
        connections(load, seed),
    ];
    parts.join("\n")
}

fn parameters(load: &Load, seed: u64) -> String {
    format!(
        "{FRONT_ENDS} front ends, {:.0e} objects, popularity r^-{}, {} requests/s each; {} \
         gateways of {}/s; seed {seed}\n",
        load.objects, load.skew, load.per_front_end, load.gateways, load.per_gateway
    )
}

/// Seconds in which the cold start is shown.
const SHOWN: [Range<usize>; 5] = [0..1, 1..3, 3..10, 20..30, 100..120];

fn cold_start(load: &Load, seed: u64) -> String {
    let mut text =
        "Cold start: requests to the service by all requests, in %, and the longest wait \
        in s\n"
            .to_owned();
    text += &line("seconds", SHOWN.map(|seconds| format!("{seconds:?}")));
    for (routing, coalesces, name) in [
        (Routing::Random, false, "random routing, no coalescing"),
        (Routing::Random, true, "random routing, coalescing"),
        (Routing::ByKey, false, "routing by key, no coalescing"),
        (Routing::ByKey, true, "routing by key, coalescing"),
    ] {
        let filled = filled(load, routing, coalesces, seed);
        let cell = |seconds: Range<usize>| {
            let wait = filled.wait[seconds.clone()]
                .iter()
                .copied()
                .fold(0.0, f64::max);
            format!("{:.0} ({wait:.2})", filled.share(seconds, load) * 100.0)
        };
        text += &line(name, SHOWN.map(cell));
    }
    let most = fill::imbalance(load, seed);
    text + &format!(
        "Routing of every key to one front end: the busiest has {most:.0} times the mean. The \
         lines above have the hottest 1,000 keys on all.\n"
    )
}

fn filled(load: &Load, routing: Routing, coalesces: bool, seed: u64) -> Filled {
    let how = Fill {
        routing,
        coalesces,
        seconds: 120,
        sample: 1,
    };
    fill::fill(load, how, seed)
}

fn skews(load: &Load, seed: u64) -> String {
    let mut text = "After two minutes: requests to the service by all requests, in %\n".to_owned();
    let all = [0.8, 1.0, 1.1];
    text += &line("popularity r^-", all.map(|skew| skew.to_string()));
    for (routing, name) in [
        (Routing::Random, "random routing"),
        (Routing::ByKey, "routing by key"),
    ] {
        let cell = |skew| {
            // The service is large enough for all.
            let load = Load {
                skew,
                gateways: 1e4,
                ..*load
            };
            let share = filled(&load, routing, true, seed).share(100..120, &load);
            format!("{:.0}", share * 100.0)
        };
        text += &line(name, all.map(cell));
    }
    text
}

const FRESH: [f64; 4] = [1.0, 10.0, 60.0, 600.0];

fn freshness(load: &Load, seed: u64) -> String {
    let mut text =
        "Full caches: requests that revalidate an object, by all requests, in %\n".to_owned();
    text += &line("fresh for, s", FRESH.map(|fresh| fresh.to_string()));
    for (spread, name) in [(FRONT_ENDS, "random routing"), (1.0, "routing by key")] {
        let cell = |fresh| {
            let share = hot::stale_share(load, fresh, spread, seed);
            format!("{:.0}", share * 100.0)
        };
        text += &line(name, FRESH.map(cell));
    }
    text
}

fn hot_keys(load: &Load, seed: u64) -> String {
    let zipf = random::Zipf::new(load.objects, load.skew);
    let ranks = [1.0, 100.0, 1e4, 1e6];
    let per_s = |rank| zipf.probability(rank) * load.all_per_s();
    let fresh = 10.0;
    let row = |coalesces: bool, latency: f64| {
        let load = Load { latency, ..*load };
        ranks.map(|rank| {
            let each = per_s(rank) / FRONT_ENDS;
            let count = hot::revalidations(&load, each, fresh, coalesces, seed);
            format!("{count:.1}")
        })
    };
    let mut text = format!("Hot keys, fresh for {fresh} s: requests per second for one key\n");
    text += &line("rank of the key", ranks.map(|rank| format!("{rank:.0}")));
    text += &line(
        "at all front ends",
        ranks.map(|rank| format!("{:.1}", per_s(rank))),
    );
    text += &line("at the service, coalesced", row(true, load.latency));
    text += &line("at the service, not coalesced", row(false, load.latency));
    text += &line("the same, responses take 10 s", row(false, 10.0));
    text
}

fn writers(load: &Load, seed: u64) -> String {
    let mut text =
        "Writers of one key with If-Match: changes/s, attempts per change, p99 in s\n".to_owned();
    let counts = [1, 10, 100, 1000];
    text += &line("writers", counts.map(|count| count.to_string()));
    for (pause, name) in [
        (0.0, "at once again"),
        (0.01, "after random, doubling pauses"),
    ] {
        let cell = |count| {
            let how = Writers {
                count,
                pause,
                seconds: 60.0,
            };
            let written = hot::conditional_writes(load, how, seed);
            format!(
                "{:.0}, {:.0}, {:.2}",
                written.per_s, written.attempts, written.p99
            )
        };
        text += &line(name, counts.map(cell));
    }
    text
}

fn restarts(seed: u64) -> String {
    const ABSENT: f64 = 3.0;
    let mut text = format!(
        "Restart of front ends, absent for {ABSENT} s: requests in % of those that arrive in the \
        {} s around it\n",
        replicas::simulated(ABSENT)
    );
    let counts = [1, 10, 100, 500];
    text += &line("at the same time", counts.map(|count| count.to_string()));
    for (drains, name) in [(true, "SIGTERM: retried, failed, cut"), (false, "kill -9")] {
        let cell = |count| {
            let how = Restart {
                count,
                drains,
                absent: ABSENT,
                per_s: 20_000.0,
                processing: 0.01,
            };
            let seen = replicas::restart(how, seed);
            let share = |count: u64| count as f64 / seen.requests as f64 * 100.0;
            format!(
                "{:.2}, {:.2}, {:.3}",
                share(seen.retried),
                share(seen.failed),
                share(seen.cut)
            )
        };
        text += &line(name, counts.map(cell));
    }
    text
}

fn outages(load: &Load, seed: u64) -> String {
    let mut text =
        "Outage of the service for 30 s: its requests per second, by the normal rate\n".to_owned();
    text += &line("", ["during", "after"]);
    for (repeats, name) in [
        (Repeats::Steadily, "constant pauses"),
        (Repeats::Randomly, "random, growing pauses"),
        (Repeats::WithBreaker, "and a circuit breaker"),
    ] {
        let herd = replicas::outage(load, 30.0, repeats, seed);
        text += &line(
            name,
            [herd.outage, herd.after].map(|rate| format!("{rate:.2}")),
        );
    }
    text
}

fn listings(load: &Load) -> String {
    let mut text = "Listing of all keys of one bucket, pages of 1,000\n".to_owned();
    let keys = [1e6, 1e8, 1e9, 1e11];
    text += &line("keys", keys.map(|keys: f64| format!("{keys:.0e}")));
    text += &line(
        "shards of the index",
        keys.map(|keys| format!("{:.0}", load.shards(keys))),
    );
    text += &line(
        "hours",
        keys.map(|keys| format!("{:.3}", load.listing(keys) / 3600.0)),
    );
    text
}

/// Connections that requests in progress need, by Little's law.
fn connections(load: &Load, seed: u64) -> String {
    let mut text = "Connections of requests in progress\n".to_owned();
    text += &line("", ["by front end", "by gateway", "all"]);
    let cold = filled(load, Routing::Random, true, seed);
    let worst = |filled: &Filled, second: usize| {
        let rate = filled.per_s[second].min(load.capacity_per_s());
        rate * (filled.wait[second] + load.latency)
    };
    let slow = load.all_per_s() * 0.5;
    for (all, name) in [
        (worst(&cold, 119), "after two minutes"),
        (
            (0..120)
                .map(|second| worst(&cold, second))
                .fold(0.0, f64::max),
            "the worst second of a cold start",
        ),
        (slow, "1 s per response, half of the requests"),
        (FRONT_ENDS * load.gateways, "one from each to each"),
    ] {
        let each = [all / FRONT_ENDS, all / load.gateways, all];
        text += &line(name, each.map(|count| format!("{count:.1}")));
    }
    text
}

/// A line of a table.
fn line<const N: usize>(name: impl AsRef<str>, cells: [impl AsRef<str>; N]) -> String {
    let mut text = format!("  {:40}", name.as_ref());
    for cell in cells {
        text += &format!("{:>19}", cell.as_ref());
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_prints_the_same_text() {
        let of = |seed| hot_keys(&Load::PLAN, seed) + &freshness(&Load::PLAN, seed);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn a_page_of_a_large_bucket_takes_longer() {
        let load = Load::PLAN;
        let each = |keys: f64| load.listing(keys) / keys;
        assert_eq!(load.listing(1.0), load.listing(1000.0));
        assert!(each(1e9) > 50.0 * each(1e6));
    }

    #[test]
    fn connections_follow_from_rate_and_time() {
        let text = connections(&Load::PLAN, 1);
        assert!(
            text.contains("400000.0"),
            "1,000 front ends, 400 gateways: {text}"
        );
        assert!(text.contains("500.0"), "{text}");
    }
}
