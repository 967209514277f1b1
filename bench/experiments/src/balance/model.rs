//! How long uploads take by the way their connections are placed, in a model of a few lines: no
//! sockets, no kernel, only workers that each divide their time equally among what they have. Must
//! not know the real thing, whose policies it repeats in one line each.

use crate::{run::Run, table::Table};
use fastrand::Rng;
use runner::stats::{percentile, sorted};
use xtask::shell::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Single,
    /// The kernel's hash of addresses: as good as drawing lots.
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

/// What is asked of the workers.
#[derive(Clone, Copy, Debug)]
struct Asked {
    name: &'static str,
    workers: usize,
    clients: usize,
    /// Of each client, one after the other.
    requests: u32,
    /// Clients keep their connection; otherwise each request has a new one, placed anew.
    keep: bool,
    /// All requests are equally long; otherwise lengths are exponential.
    equal: bool,
}

const ASKED: [Asked; 4] = [
    Asked {
        name: "32 connections, 8 workers",
        workers: 8,
        clients: 32,
        requests: 312,
        keep: true,
        equal: true,
    },
    Asked {
        name: "32 connections, 32 workers, as originally",
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
        name: "32 clients, 8 workers, a connection a request, lengths vary",
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
    let title = format!("balance · in a model, {seeds} seeds");
    let mut table = Table::new(&title, &head);
    for asked in &ASKED {
        for (policy, name) in POLICIES {
            run.go_on()?;
            let all = sorted((0..seeds).map(|seed| makespan(asked, policy, seed)));
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let at = |share| format!("{:.2}", percentile(&all, share));
            table.row([
                asked.name.to_owned(),
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

/// One client's request under way.
#[derive(Clone, Copy, Debug)]
struct Job {
    worker: usize,
    left: f64,
    /// Requests of its client that are still to come.
    more: u32,
}

/// When the last request has ended, by when it could have if the work had been divided evenly.
fn makespan(asked: &Asked, policy: Policy, seed: u64) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let length = |rng: &mut Rng| match asked.equal {
        true => 1.0,
        // Never quite 0: its logarithm is wanted.
        false => -(1.0 - rng.f64()).ln(),
    };
    let mut counts = vec![0_usize; asked.workers];
    let mut turn = 0;
    let mut place = |counts: &mut [usize], rng: &mut Rng| {
        let worker = match policy {
            Policy::Single => 0,
            Policy::ReusePort => rng.usize(..asked.workers),
            Policy::RoundRobin => {
                turn += 1;
                (turn - 1) % asked.workers
            }
            Policy::LeastLoaded => {
                let least = (0..asked.workers).min_by_key(|&worker| counts[worker]);
                least.unwrap_or(0)
            }
        };
        counts[worker] += 1;
        worker
    };
    let (mut now, mut work) = (0.0, 0.0);
    let mut jobs: Vec<Job> = Vec::with_capacity(asked.clients);
    for _ in 0..asked.clients {
        let left = length(&mut rng);
        work += left;
        let worker = place(&mut counts, &mut rng);
        let more = asked.requests - 1;
        jobs.push(Job { worker, left, more });
    }
    if asked.keep && asked.equal {
        // Nothing is ever placed anew: the worker with the most has the last to end.
        let most = counts.iter().max().copied().unwrap_or(0) as f64;
        return most * asked.workers as f64 / asked.clients as f64;
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
        if is_last || !asked.keep {
            counts[ended.worker] -= 1;
        }
        if is_last {
            jobs.swap_remove(at);
            continue;
        }
        let left = length(&mut rng);
        work += left;
        let worker = match asked.keep {
            true => ended.worker,
            false => place(&mut counts, &mut rng),
        };
        let more = ended.more - 1;
        jobs[at] = Job { worker, left, more };
    }
    now * asked.workers as f64 / work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_placements_are_ideal_and_a_single_worker_is_all_the_way_off() {
        for asked in &ASKED[..3] {
            let of = |policy| makespan(asked, policy, 7);
            assert_eq!(of(Policy::Single), asked.workers as f64);
            assert_eq!(of(Policy::RoundRobin), 1.0);
            assert_eq!(of(Policy::LeastLoaded), 1.0);
            assert!(of(Policy::ReusePort) > 1.0);
        }
    }

    #[test]
    fn drawing_lots_is_worse_than_looking() {
        let asked = Asked {
            requests: 3,
            equal: false,
            ..ASKED[0]
        };
        let mean = |policy| {
            let all = (0..50).map(|seed| makespan(&asked, policy, seed));
            all.sum::<f64>() / 50.0
        };
        assert!(mean(Policy::ReusePort) > mean(Policy::LeastLoaded));
        // Whatever the lengths, one worker is never idle before the end.
        assert!((mean(Policy::Single) - 8.0).abs() < 1e-6);
    }

    #[test]
    fn the_same_seed_gives_the_same_figure() {
        let of = |seed| makespan(&ASKED[3], Policy::ReusePort, seed);
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
    }
}
