//! A model without sockets and kernel: how long uploads take with each placement of their
//! connections, if every worker divides its time equally among its connections. It has its own
//! short form of each placement.

use crate::{run::Run, table::Table};
use fastrand::Rng;
use runner::stats::{percentile, sorted};
use xtask::shell::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Single,
    /// The kernel's hash of addresses, which is a random choice.
    ReusePort,
    RoundRobin,
    LeastLoaded,
}

const POLICIES: [(Policy, &str); 4] = [
    (Policy::Single, "single"),
    (Policy::ReusePort, "reuseport"),
    (Policy::RoundRobin, "round-robin"),
    (Policy::LeastLoaded, "least-loaded"),
];

/// One load on the workers.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    workers: usize,
    clients: usize,
    /// Consecutive requests of each client.
    requests: u32,
    /// Clients keep their connection. Otherwise each request has a new one, which is placed again.
    keep: bool,
    /// All requests have the same length. Otherwise the lengths are exponentially distributed.
    equal: bool,
}

const CASES: [Case; 4] = [
    Asked {
        name: "32 connections, 8 workers",
        workers: 8,
        clients: 32,
        requests: 312,
        keep: true,
        equal: true,
    },
    Asked {
        name: "32 connections, 32 workers, as in the original",
        workers: 32,
        clients: 32,
        requests: 312,
        keep: true,
        equal: true,
    },
    Asked {
        name: "512 connections, 8 workers",
        workers: 8,
        clients: 512,
        requests: 20,
        keep: true,
        equal: true,
    },
    Asked {
        name: "32 clients, 8 workers, one connection per request, lengths vary",
        workers: 8,
        clients: 32,
        requests: 50,
        keep: false,
        equal: false,
    },
];

pub(super) fn show(run: &Run) -> Outcome {
    let seeds = run.effort.of(200, 2_000, 2_000);
    let head = [
        "finish / ideal",
        "placement",
        "mean",
        "p5",
        "p50",
        "p95",
        "max",
    ];
    let title = format!("balance · model, {seeds} seeds");
    let mut table = Table::new(&title, &head);
    for case in &CASES {
        for (policy, name) in POLICIES {
            run.check_interrupt()?;
            let all = sorted((0..seeds).map(|seed| makespan(case, policy, seed)));
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let at = |share| format!("{:.2}", percentile(&all, share));
            table.row([
                case.name.to_owned(),
                name.to_owned(),
                format!("{mean:.2}"),
                at(0.05),
                at(0.5),
                at(0.95),
                at(1.0),
            ]);
        }
    }
    run.show("balance-model", &table)
}

/// The current request of one client.
#[derive(Clone, Copy, Debug)]
struct Job {
    worker: usize,
    left: f64,
    /// Requests of its client after this one.
    more: u32,
}

/// The time until the end of the last request, divided by that of an even split of the work.
fn makespan(case: &Case, policy: Policy, seed: u64) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let length = |rng: &mut Rng| match case.equal {
        true => 1.0,
        // `1 - f64()` is never 0, which has no logarithm.
        false => -(1.0 - rng.f64()).ln(),
    };
    let mut counts = vec![0_usize; case.workers];
    let mut next = 0;
    let mut place = |counts: &mut [usize], rng: &mut Rng| {
        let worker = match policy {
            Policy::Single => 0,
            Policy::ReusePort => rng.usize(..case.workers),
            Policy::RoundRobin => {
                next += 1;
                (next - 1) % case.workers
            }
            Policy::LeastLoaded => {
                let least = (0..case.workers).min_by_key(|&worker| counts[worker]);
                least.unwrap_or(0)
            }
        };
        counts[worker] += 1;
        worker
    };
    let (mut now, mut work) = (0.0, 0.0);
    let mut jobs: Vec<Job> = Vec::with_capacity(case.clients);
    for _ in 0..case.clients {
        let left = length(&mut rng);
        work += left;
        let worker = place(&mut counts, &mut rng);
        let more = case.requests - 1;
        jobs.push(Job { worker, left, more });
    }
    if case.keep && case.equal {
        // Nothing is placed again: the worker with the most connections ends last.
        let most = counts.iter().max().copied().unwrap_or(0) as f64;
        return most * case.workers as f64 / case.clients as f64;
    }
    while !jobs.is_empty() {
        let ends = |job: &Job| job.left * counts[job.worker] as f64;
        let Some((at, step)) = (0..jobs.len())
            .map(|at| (at, ends(&jobs[at])))
            .min_by(|a, b| a.1.total_cmp(&b.1))
        else {
            break;
        };
        now += step;
        for job in &mut jobs {
            job.left -= step / counts[job.worker] as f64;
        }
        let ended = jobs[at];
        let is_last = ended.more == 0;
        if is_last || !case.keep {
            counts[ended.worker] -= 1;
        }
        if is_last {
            jobs.swap_remove(at);
            continue;
        }
        let left = length(&mut rng);
        work += left;
        let worker = match case.keep {
            true => ended.worker,
            false => place(&mut counts, &mut rng),
        };
        let more = ended.more - 1;
        jobs[at] = Job { worker, left, more };
    }
    now * case.workers as f64 / work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_placements_are_ideal_and_a_single_worker_is_the_worst() {
        for case in &CASES[..3] {
            let of = |policy| makespan(case, policy, 7);
            assert_eq!(of(Policy::Single), case.workers as f64);
            assert_eq!(of(Policy::RoundRobin), 1.0);
            assert_eq!(of(Policy::LeastLoaded), 1.0);
            assert!(of(Policy::ReusePort) > 1.0);
        }
    }

    #[test]
    fn a_random_placement_is_worse_than_least_loaded() {
        let case = Case {
            requests: 3,
            equal: false,
            ..CASES[0]
        };
        let mean = |policy| {
            let all = (0..50).map(|seed| makespan(&case, policy, seed));
            all.sum::<f64>() / 50.0
        };
        assert!(mean(Policy::ReusePort) > mean(Policy::LeastLoaded));
        // A single worker is never idle before the end, with any lengths.
        assert!((mean(Policy::Single) - 8.0).abs() < 1e-6);
    }

    #[test]
    fn the_same_seed_gives_the_same_result() {
        let of = |seed| makespan(&CASES[3], Policy::ReusePort, seed);
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
    }
}
