//! Connections that turn out unlike each other: of 512 on one worker, 26 make nine tenths of all
//! requests. Whether the others come to help, how soon, and what that is worth. Must not know how
//! a load is made.

use super::load::{Connections, Load, Seen, watched};
use crate::{
    chart::{Panel, Series, lines},
    quota::Quota,
    run::{Run, Target},
    table::{Table, spread},
    workers::{Wanted, Who, Workers, cpu_ns},
};
use runner::stats::median;
use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const CONNECTIONS: usize = 512;
/// Five of a hundred.
const HOT: usize = 26;
/// Nine of ten requests are theirs.
const HOT_BY_COLD: u64 = 9;

/// How often workers are looked at, and how long it takes to say how busy one is: with quotas, some
/// periods.
const SAMPLE: Duration = Duration::from_millis(50);
const WINDOW_S: f64 = 0.5;

/// What was promised: so near to each other, so soon, and so near to the ideal in all.
const APART_MAX: f64 = 0.15;
const SOON_S: f64 = 2.0;
const WHOLE_MAX: f64 = 1.1;

pub(super) const SOON: &str = "8 workers: within 15 % of each other in 2 s";
pub(super) const WHOLE: &str = "8 workers: the whole within 1.1 of the ideal";

/// The workers, and what each has.
#[derive(Debug)]
pub(super) struct Setting {
    name: &'static str,
    workers: usize,
    cores: &'static str,
    /// Of each worker, by quota; without one it has a core.
    share: Option<f64>,
    work_us: u32,
    targets: [&'static str; 2],
}

pub(super) const EIGHT: Setting = Setting {
    name: "8 workers",
    workers: super::WORKERS,
    cores: runner::server::SERVER_CORE,
    share: Some(super::SHARE),
    work_us: 60,
    targets: [SOON, WHOLE],
};

/// Their client has to have some of one core, so that it must cost little: requests are longer.
pub(super) const TWO: Setting = Setting {
    name: "2 workers",
    workers: 2,
    cores: "0-1",
    share: None,
    work_us: 200,
    targets: [
        "2 workers: within 15 % of each other in 2 s",
        "2 workers: the whole within 1.1 of the ideal",
    ],
};

/// One run.
struct Trial {
    finish_s: f64,
    ideal_s: f64,
    handed_over: u64,
    /// When, and CPU of each worker until then, in seconds.
    samples: Vec<(f64, Vec<f64>)>,
}

pub(super) fn measure(run: &Run, setting: &Setting) -> Outcome<Vec<Target>> {
    let total = total(run, setting);
    let times = run.effort.of(1, 3, 5);
    let mut table = Table::new(
        &format!(
            "balance · {CONNECTIONS} connections, {HOT} of which make 9 of 10 requests, all on \
             one of {}, {total} requests",
            setting.name
        ),
        &[
            "rebalance",
            "runs",
            "handed over",
            "within 15 % after s",
            "apart from 2 s on",
            "finish s",
            "ideal s",
            "finish / ideal",
        ],
    );
    let mut panels = Vec::new();
    let mut targets = Vec::new();
    for (rebalance, times) in [(false, 1), (true, times)] {
        let word = if rebalance { "on" } else { "off" };
        // Of one worker alone an eighth is enough to see.
        let total = if rebalance { total } else { total / 4 };
        let mut trials = Vec::new();
        for number in 1..=times {
            let name = setting.name;
            runner::progress(&format!(
                "balance · {name}, rebalance {word}, run {number}/{times}"
            ));
            trials.push(trial(run, setting, rebalance, total)?);
        }
        let of = |figure: fn(&Trial) -> f64| -> Vec<f64> { trials.iter().map(figure).collect() };
        let settled = of(Trial::settled_s);
        let ratios = of(|trial| trial.finish_s / trial.ideal_s);
        let shown = |values: &[f64]| match values.iter().all(|value| value.is_finite()) {
            true => spread(values, 2),
            false => "never".to_owned(),
        };
        table.row([
            word.to_owned(),
            trials.len().to_string(),
            spread(&of(|trial| trial.handed_over as f64), 0),
            shown(&settled),
            format!("{} %", spread(&of(|trial| 100.0 * trial.apart_later()), 0)),
            format!("{:.1}", median(of(|trial| trial.finish_s))),
            format!("{:.1}", median(of(|trial| trial.ideal_s))),
            spread(&ratios, 2),
        ]);
        if let Some(first) = trials.first() {
            panels.push(Panel {
                title: format!("rebalance {word}: CPU of each worker"),
                series: first.busy(setting.share.unwrap_or(1.0)),
            });
        }
        if rebalance {
            targets.push(Target {
                what: setting.targets[0].to_owned(),
                found: format!("after {} s", shown(&settled)),
                holds: Some(median(settled) <= SOON_S),
            });
            targets.push(Target {
                what: setting.targets[1].to_owned(),
                found: spread(&ratios, 2),
                holds: Some(median(ratios) <= WHOLE_MAX),
            });
        }
    }
    let name = format!("balance-skew-{}", setting.workers);
    run.show(&name, &table)?;
    let title = format!(
        "balance: {CONNECTIONS} connections on one of {}, {HOT} of them busy",
        setting.name
    );
    let note = "share of what a worker may use, a line a worker, over half a second each";
    run.write(&format!("{name}.svg"), &lines(&title, note, "s", &panels))?;
    Ok(targets)
}

/// Requests that take all workers together about ten seconds.
fn total(run: &Run, setting: &Setting) -> u64 {
    let seconds = run.effort.of(4.0, 10.0, 30.0);
    // With what the server adds to the work asked of it.
    let each_us = f64::from(setting.work_us) + 20.0;
    let capacity = setting.share.unwrap_or(0.9) * setting.workers as f64;
    (seconds * capacity * 1e6 / each_us) as u64
}

fn trial(run: &Run, setting: &Setting, rebalance: bool, total: u64) -> Outcome<Trial> {
    run.go_on()?;
    let wanted = Wanted {
        who: Who::Onrush("single", rebalance),
        workers: setting.workers,
        work_us: setting.work_us,
        cores: setting.cores,
        quota: setting.share.map(Quota::of_share),
    };
    let workers = Workers::start(run, &wanted)?;
    let load = Load {
        address: workers.server.address,
        connections: CONNECTIONS,
        hot: HOT,
        hot_by_cold: HOT_BY_COLD,
        total,
    };
    let connections = Connections::open(run, load)?;
    let before = workers.figure("onrush_connections_handed_over_total")?;
    // What opening them has left over is used up, and quotas are whole again.
    run.sleep(Duration::from_millis(1500))?;
    let begun = Instant::now();
    let start = workers.cpu_ns();
    let mut samples = vec![(0.0, vec![0.0; setting.workers])];
    let mut client_ns = 0;
    let used = |now: Vec<u64>| -> Vec<f64> {
        let since = now.iter().zip(&start);
        since
            .map(|(now, start)| (now - start) as f64 / 1e9)
            .collect()
    };
    let finish_s = watched(run, connections, SAMPLE, |seen: &Seen| {
        samples.push((begun.elapsed().as_secs_f64(), used(workers.cpu_ns())));
        client_ns = cpu_ns(seen.thread.load(Ordering::Relaxed)).max(client_ns);
    })?;
    let cpu_s: f64 = used(workers.cpu_ns()).iter().sum();
    // Without quotas the client takes a part of the same cores.
    let ideal_s = match setting.share {
        Some(share) => cpu_s / (share * setting.workers as f64),
        None => (cpu_s + client_ns as f64 / 1e9) / setting.workers as f64,
    };
    let handed_over = workers.figure("onrush_connections_handed_over_total")? - before;
    Ok(Trial {
        finish_s,
        ideal_s,
        handed_over,
        samples,
    })
}

impl Trial {
    /// CPU of each worker in the time between two samples.
    fn between(&self, from: usize, to: usize) -> Vec<f64> {
        let (from, to) = (&self.samples[from], &self.samples[to]);
        let pairs = from.1.iter().zip(&to.1);
        pairs.map(|(from, to)| to - from).collect()
    }

    /// The first sample at least `seconds` after that one.
    fn after(&self, from: usize, seconds: f64) -> Option<usize> {
        let end = self.samples[from].0 + seconds;
        (from..self.samples.len()).find(|&at| self.samples[at].0 >= end)
    }

    /// When the first second began in which no two workers were further apart than promised.
    fn settled_s(&self) -> f64 {
        let settled = (0..self.samples.len()).find(|&from| {
            let to = self.after(from, 1.0);
            to.is_some_and(|to| apart(&self.between(from, to)) <= APART_MAX)
        });
        settled.map_or(f64::INFINITY, |from| self.samples[from].0)
    }

    /// How far workers were apart in all the time after two seconds, but for the very end.
    fn apart_later(&self) -> f64 {
        let from = self.after(0, SOON_S).unwrap_or(0);
        let end = self.finish_s - SAMPLE.as_secs_f64();
        let to = self.samples.iter().rposition(|sample| sample.0 <= end);
        apart(&self.between(from, to.unwrap_or(from).max(from)))
    }

    /// The share of what it may use that each worker used, over time.
    fn busy(&self, share: f64) -> Vec<Series> {
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

/// By how much of the greatest the least is less; 1 when one did nothing.
fn apart(values: &[f64]) -> f64 {
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
            handed_over: 13,
            samples: (0..=40).map(sample).collect(),
        }
    }

    #[test]
    fn workers_are_near_each_other_from_a_time_on() {
        let trial = trial();
        let settled = trial.settled_s();
        // A second of which the last 0.85 are even is near enough.
        assert!((0.8..=1.0).contains(&settled), "{settled}");
        assert!(trial.apart_later() < 1e-6);
        let busy = trial.busy(0.5);
        assert_eq!(busy.len(), 2);
        assert!((busy[0].points[0].1 - 1.0).abs() < 1e-6);
        assert!(busy[1].points[0].1.abs() < 1e-6);
    }

    #[test]
    fn a_worker_that_never_helps_never_settles() {
        let mut trial = trial();
        for sample in &mut trial.samples {
            sample.1[1] = 0.0;
        }
        assert_eq!(trial.settled_s(), f64::INFINITY);
        assert_eq!(trial.apart_later(), 1.0);
        assert_eq!(apart(&[]), 1.0);
        assert!((apart(&[1.0, 0.9]) - 0.1).abs() < 1e-9);
    }
}
