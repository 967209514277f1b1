//! Unequal connections: of 512 on one worker, 26 make nine tenths of all requests. Measures whether
//! and how soon connections migrate to the other workers, and the effect on the finish time.

use super::{
    load::{Connections, Load, run_sampled},
    placement::{SHARE, WORKERS},
};
use crate::{
    chart::{Panel, Series, lines},
    quota::Quota,
    run::{Run, Target},
    table::{Table, median_and_range},
    workers::{ServerKind, Settings, Workers, cpu_ns},
};
use runner::stats::median;
use std::time::{Duration, Instant};
use xtask::shell::Outcome;

const CONNECTIONS: usize = 512;
/// Connections that send without a pause: 5 %.
const HOT: usize = 26;
/// The hot connections make nine of ten requests.
const HOT_BY_COLD: u64 = 9;

/// Interval between two samples of the workers' CPU.
const SAMPLE: Duration = Duration::from_millis(50);
/// Time over which the chart averages. It contains several periods of the quotas.
const WINDOW_S: f64 = 0.5;

/// The targets: the largest difference in CPU, the time until then, and the finish time divided by
/// the ideal.
const DIFFERENCE_MAX: f64 = 0.15;
const BALANCED_S: f64 = 2.0;
const FINISH_MAX: f64 = 1.1;

pub(super) const BALANCED: &str = "8 workers: within 15 % of each other in 2 s";
pub(super) const FINISH: &str = "8 workers: finish within 1.1 of the ideal";

/// The workers and their CPU.
#[derive(Debug)]
pub(super) struct Case {
    name: &'static str,
    workers: usize,
    cores: &'static str,
    /// The share of a core of each worker, by quota. Without it each worker has a core.
    share: Option<f64>,
    work_us: u32,
    targets: [&'static str; 2],
}

pub(super) const EIGHT: Case = Case {
    name: "8 workers",
    workers: WORKERS,
    cores: runner::server::SERVER_CORE,
    share: Some(SHARE),
    work_us: 60,
    targets: [BALANCED, FINISH],
};

/// The client shares a core with a worker. Longer requests keep its part of the CPU small.
pub(super) const TWO: Case = Case {
    name: "2 workers",
    workers: 2,
    cores: "0-1",
    share: None,
    work_us: 200,
    targets: [
        "2 workers: within 15 % of each other in 2 s",
        "2 workers: finish within 1.1 of the ideal",
    ],
};

/// One run.
struct Trial {
    finish_s: f64,
    ideal_s: f64,
    /// Connections that were migrated.
    migrated: u64,
    /// The time, and the CPU of each worker until then, in seconds.
    samples: Vec<(f64, Vec<f64>)>,
}

pub(super) fn measure(run: &Run, case: &Case) -> Outcome<Vec<Target>> {
    let total = total(run, case);
    let times = run.effort.of(1, 3, 5);
    let mut table = Table::new(
        &format!(
            "balance · {CONNECTIONS} connections, {HOT} of which make 9 of 10 requests, all on \
             one of {}, {total} requests",
            case.name
        ),
        &[
            "rebalance",
            "runs",
            "migrated",
            "within 15 % after s",
            "difference after 2 s",
            "finish s",
            "ideal s",
            "finish / ideal",
        ],
    );
    let mut panels = Vec::new();
    let mut targets = Vec::new();
    for (rebalance, times) in [(false, 1), (true, times)] {
        let word = if rebalance { "on" } else { "off" };
        // A quarter of the requests is enough for one busy worker.
        let total = if rebalance { total } else { total / 4 };
        let mut trials = Vec::new();
        for number in 1..=times {
            let name = case.name;
            runner::progress(&format!(
                "balance · {name}, rebalance {word}, run {number}/{times}"
            ));
            trials.push(trial(run, case, rebalance, total)?);
        }
        let of = |value: fn(&Trial) -> f64| -> Vec<f64> { trials.iter().map(value).collect() };
        let balanced = of(Trial::balanced_s);
        let ratios = of(|trial| trial.finish_s / trial.ideal_s);
        let shown = |values: &[f64]| match values.iter().all(|value| value.is_finite()) {
            true => median_and_range(values, 2),
            false => "never".to_owned(),
        };
        let later = of(|trial| 100.0 * trial.difference_later());
        table.row([
            word.to_owned(),
            trials.len().to_string(),
            median_and_range(&of(|trial| trial.migrated as f64), 0),
            shown(&balanced),
            format!("{} %", median_and_range(&later, 0)),
            format!("{:.1}", median(of(|trial| trial.finish_s))),
            format!("{:.1}", median(of(|trial| trial.ideal_s))),
            median_and_range(&ratios, 2),
        ]);
        if let Some(first) = trials.first() {
            panels.push(Panel {
                title: format!("rebalance {word}: CPU of each worker"),
                series: first.usage(case.share.unwrap_or(1.0)),
            });
        }
        if rebalance {
            targets.push(Target {
                what: case.targets[0].to_owned(),
                found: format!("after {} s", shown(&balanced)),
                holds: Some(median(balanced) <= BALANCED_S),
            });
            targets.push(Target {
                what: case.targets[1].to_owned(),
                found: median_and_range(&ratios, 2),
                holds: Some(median(ratios) <= FINISH_MAX),
            });
        }
    }
    let name = format!("balance-skew-{}", case.workers);
    run.show(&name, &table)?;
    let title = format!(
        "balance: {CONNECTIONS} connections on one of {}, {HOT} of them busy",
        case.name
    );
    let note = "part of its CPU share that each worker used, averaged over half a second";
    run.write(
        &format!("{name}.svg"),
        &lines(&title, note, "seconds", &panels),
    )?;
    Ok(targets)
}

/// Requests for which all workers together need about eight seconds.
fn total(run: &Run, case: &Case) -> u64 {
    let seconds = run.effort.of(4.0, 8.0, 30.0);
    // The work, and what the server needs for a request.
    let each_us = f64::from(case.work_us) + 20.0;
    let capacity = case.share.unwrap_or(0.9) * case.workers as f64;
    (seconds * capacity * 1e6 / each_us) as u64
}

fn trial(run: &Run, case: &Case, rebalance: bool, total: u64) -> Outcome<Trial> {
    run.check_interrupt()?;
    let settings = Settings {
        kind: ServerKind::Onrush("single", rebalance),
        workers: case.workers,
        work_us: case.work_us,
        cores: case.cores,
        quota: case.share.map(Quota::of_share),
    };
    let workers = Workers::start(run, &settings)?;
    let load = Load {
        address: workers.server.address,
        connections: CONNECTIONS,
        hot: HOT,
        hot_by_cold: HOT_BY_COLD,
        total,
    };
    let connections = Connections::open(run, load)?;
    let before = workers.metric("onrush_connections_handed_over_total")?;
    // Until the work of opening them is done and the quotas are complete again.
    run.sleep(Duration::from_millis(1500))?;
    let begun = Instant::now();
    let start = workers.cpu_ns();
    let mut samples = vec![(0.0, vec![0.0; case.workers])];
    let mut client_ns = 0;
    let used = |now: Vec<u64>| -> Vec<f64> {
        let since = now.iter().zip(&start);
        since
            .map(|(now, start)| (now - start) as f64 / 1e9)
            .collect()
    };
    let finish_s = run_sampled(run, connections, SAMPLE, |client| {
        samples.push((begun.elapsed().as_secs_f64(), used(workers.cpu_ns())));
        client_ns = cpu_ns(client).max(client_ns);
    })?;
    let cpu_s: f64 = used(workers.cpu_ns()).iter().sum();
    // Without quotas the client uses a part of the same cores.
    let ideal_s = match case.share {
        Some(share) => cpu_s / (share * case.workers as f64),
        None => (cpu_s + client_ns as f64 / 1e9) / case.workers as f64,
    };
    let migrated = workers.metric("onrush_connections_handed_over_total")? - before;
    Ok(Trial {
        finish_s,
        ideal_s,
        migrated,
        samples,
    })
}

impl Trial {
    /// CPU of each worker between two samples.
    fn between(&self, from: usize, to: usize) -> Vec<f64> {
        let (from, to) = (&self.samples[from], &self.samples[to]);
        let pairs = from.1.iter().zip(&to.1);
        pairs.map(|(from, to)| to - from).collect()
    }

    /// The first sample at least `seconds` after the sample `from`.
    fn after(&self, from: usize, seconds: f64) -> Option<usize> {
        let end = self.samples[from].0 + seconds;
        (from..self.samples.len()).find(|&at| self.samples[at].0 >= end)
    }

    /// The beginning of the first second in which no two workers differ by more than
    /// [`DIFFERENCE_MAX`].
    fn balanced_s(&self) -> f64 {
        let balanced = (0..self.samples.len()).find(|&from| {
            let to = self.after(from, 1.0);
            to.is_some_and(|to| difference(&self.between(from, to)) <= DIFFERENCE_MAX)
        });
        balanced.map_or(f64::INFINITY, |from| self.samples[from].0)
    }

    /// The difference of the workers after [`BALANCED_S`], without the last sample interval.
    fn difference_later(&self) -> f64 {
        let from = self.after(0, BALANCED_S).unwrap_or(0);
        let end = self.finish_s - SAMPLE.as_secs_f64();
        let to = self.samples.iter().rposition(|sample| sample.0 <= end);
        difference(&self.between(from, to.unwrap_or(from).max(from)))
    }

    /// The part of its share that each worker used, over time.
    fn usage(&self, share: f64) -> Vec<Series> {
        let windows = (0..self.samples.len()).filter_map(|from| {
            let to = self.after(from, WINDOW_S)?;
            let time = self.samples[to].0 - self.samples[from].0;
            let middle = (self.samples[to].0 + self.samples[from].0) / 2.0;
            Some((middle, time, self.between(from, to)))
        });
        let windows: Vec<_> = windows.collect();
        let workers = self.samples.first().map_or(0, |sample| sample.1.len());
        let series = |worker: usize| Series {
            name: format!("worker {worker}"),
            points: windows
                .iter()
                .map(|(middle, time, used)| (*middle, used[worker] / time / share))
                .collect(),
        };
        (0..workers).map(series).collect()
    }
}

/// The difference of the largest and the smallest value, divided by the largest. 1 if all are 0.
fn difference(values: &[f64]) -> f64 {
    let most = values.iter().copied().fold(0.0, f64::max);
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    match most > 0.0 {
        true => (most - least) / most,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers; the second does nothing for a second, and then as much as the first.
    fn trial() -> Trial {
        let sample = |at: u32| {
            let time = f64::from(at) * 0.1;
            (time, vec![time * 0.5, (time - 1.0).max(0.0) * 0.5])
        };
        Trial {
            finish_s: 4.0,
            ideal_s: 3.5,
            migrated: 13,
            samples: (0..=40).map(sample).collect(),
        }
    }

    #[test]
    fn the_time_until_workers_are_balanced_is_found() {
        let trial = trial();
        let balanced = trial.balanced_s();
        // A second of which 0.85 are even differs by less than the limit.
        assert!((0.8..=1.0).contains(&balanced), "{balanced}");
        assert!(trial.difference_later() < 1e-6);
        let usage = trial.usage(0.5);
        assert_eq!(usage.len(), 2);
        assert!((usage[0].points[0].1 - 1.0).abs() < 1e-6);
        assert!(usage[1].points[0].1.abs() < 1e-6);
    }

    #[test]
    fn with_an_idle_worker_the_load_is_never_balanced() {
        let mut trial = trial();
        for sample in &mut trial.samples {
            sample.1[1] = 0.0;
        }
        assert_eq!(trial.balanced_s(), f64::INFINITY);
        assert_eq!(trial.difference_later(), 1.0);
        assert_eq!(difference(&[]), 1.0);
        assert!((difference(&[1.0, 0.9]) - 0.1).abs() < 1e-9);
    }
}
