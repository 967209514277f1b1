//! CPU-bound work on the worker that accepts connections, and on the thread pool. Measures accepted
//! connections, completed work and the times of pings, from half of the capacity to ten times as
//! much.
//!
//! The server is `examples/offload` on one core. So the comparison shows who does the work, and not
//! how many cores do it.

mod open;

use crate::{
    chart::{Panel, Series, lines},
    run::{Run, Target},
    table::Table,
};
use open::{LoadResults, PATIENCE, Plan, load};
use runner::{
    server::{Server, free_port},
    stats::{median, percentile, sorted},
};
use std::{process::Command, time::Duration};
use xtask::shell::{Outcome, cargo};

/// CPU of one `/data`, as in the example.
const WORK_MS: f64 = 4.0;

/// Loads, as multiples of the core's capacity.
const LOADS: [f64; 6] = [0.0, 0.5, 0.9, 1.5, 3.0, 10.0];

/// Pings on new connections, and as many on established ones.
const PINGS_PER_S: f64 = 50.0;

/// The targets: the p99 of pings as a multiple of that without load, and the goodput as a share of
/// the best.
const PING_MAX: f64 = 3.0;
const GOODPUT_MIN: f64 = 0.9;

/// The thread that does the work, and the arguments of the example.
const MODES: [(&str, &[&str]); 2] = [("worker", &["--inline"]), ("offload", &["--threads", "1"])];

/// All runs of one load.
#[derive(Clone, Debug, Default)]
struct Step {
    runs: Vec<LoadResults>,
}

impl Step {
    /// The median of a percentile over the runs.
    fn at(&self, share: f64, times: fn(&LoadResults) -> &Vec<f64>) -> f64 {
        median(self.runs.iter().map(|results| {
            let all = sorted(times(results).iter().copied());
            percentile(&all, share)
        }))
    }

    fn per_s(&self, time: Duration, count: fn(&LoadResults) -> f64) -> f64 {
        median(self.runs.iter().map(count)) / time.as_secs_f64()
    }
}

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("offload · building the example");
    let example = "build --profile=dist --quiet -p onrush --example offload";
    xtask::shell::run(&mut cargo(example))?;
    let time = Duration::from_secs(run.effort.of(2, 6, 20));
    let times = run.effort.of(1, 3, 3);
    let mut steps = vec![vec![Step::default(); LOADS.len()]; MODES.len()];
    for number in 0..times {
        for (at, share) in LOADS.iter().enumerate() {
            // The modes alternate, so that disturbances of the machine affect both.
            for (mode, (name, arguments)) in MODES.iter().enumerate() {
                let done = format!("run {}/{times}", number + 1);
                runner::progress(&format!("offload · {name}, load {share}, {done}"));
                let plan = Plan {
                    data_per_s: share * 1000.0 / WORK_MS,
                    pings_per_s: PINGS_PER_S,
                    time,
                    seed: number,
                };
                steps[mode][at].runs.push(one(run, arguments, &plan)?);
            }
        }
    }
    show(run, &steps, time)?;
    draw(run, &steps)?;
    Ok(targets(&steps[1], time))
}

fn one(run: &Run, arguments: &[&str], plan: &Plan) -> Outcome<LoadResults> {
    let port = free_port()?;
    let program = xtask::shell::built().join("examples/offload");
    let mut command = Command::new(program);
    command.arg(port.to_string()).args(arguments);
    command.env("ONRUSH_WORKERS", "1");
    let server = Server::start(&command, port)?;
    // The example first measures how much work takes 4 ms.
    run.sleep(Duration::from_millis(300))?;
    load(run, server.address, plan)
}

fn show(run: &Run, steps: &[Vec<Step>], time: Duration) -> Outcome {
    let limit = PATIENCE.as_secs();
    let title = format!(
        "offload · 4 ms of CPU for each /data, on one core; goodput: status 200 within {limit} s"
    );
    let mut table = Table::new(
        &title,
        &[
            "work done by",
            "load",
            "/data per s",
            "goodput per s",
            "503 per s",
            "lost per s",
            "/data p50 ms",
            "p99 ms",
            "new ping p50 ms",
            "p99 ms",
            "established p50 ms",
            "p99 ms",
            "pings lost",
        ],
    );
    for ((name, _), steps) in MODES.iter().zip(steps) {
        for (share, step) in LOADS.iter().zip(steps) {
            let ms = |share, times| {
                let us = step.at(share, times);
                match us.is_finite() {
                    true => format!("{:.2}", us / 1e3),
                    false => String::new(),
                }
            };
            let per_s = |count| format!("{:.0}", step.per_s(time, count));
            let pings_lost: u64 = step.runs.iter().map(|results| results.pings_lost).sum();
            table.row([
                (*name).to_owned(),
                format!("{share}"),
                format!("{:.0}", share * 1000.0 / WORK_MS),
                per_s(|results| results.data_us.len() as f64),
                per_s(|results| results.rejected_us.len() as f64),
                per_s(|results| results.lost as f64),
                ms(0.5, |results| &results.data_us),
                ms(0.99, |results| &results.data_us),
                ms(0.5, |results| &results.new_us),
                ms(0.99, |results| &results.new_us),
                ms(0.5, |results| &results.established_us),
                ms(0.99, |results| &results.established_us),
                pings_lost.to_string(),
            ]);
        }
    }
    run.show("offload", &table)
}

/// Draws connections over time at 1.5 times the capacity, as the original experiment did.
fn draw(run: &Run, steps: &[Vec<Step>]) -> Outcome {
    const SHOWN: usize = 3;
    let panel = |((name, _), steps): (&(&str, &[&str]), &Vec<Step>)| {
        let samples = steps[SHOWN]
            .runs
            .first()
            .map(|results| &results.samples[..]);
        let samples = samples.unwrap_or_default();
        let series = |name: &str, of: fn(&(f64, u64, u64, u64)) -> u64| Series {
            name: name.to_owned(),
            points: samples.iter().map(|at| (at.0, of(at) as f64)).collect(),
        };
        Panel {
            title: format!("work done by: {name}"),
            series: vec![
                series("opened", |at| at.1),
                series("accepted", |at| at.2),
                series("done", |at| at.3),
            ],
        }
    };
    let panels: Vec<Panel> = MODES.iter().zip(steps).map(panel).collect();
    let title = "offload: 1.5 times the capacity of the core";
    let note = "connections since the beginning, one for each request";
    run.write("offload.svg", &lines(title, note, "seconds", &panels))
}

fn targets(steps: &[Step], time: Duration) -> Vec<Target> {
    let mut all = Vec::new();
    type Times = fn(&LoadResults) -> &Vec<f64>;
    let pings: [(&str, Times); 2] = [
        ("a ping on a new connection", |results| &results.new_us),
        ("a ping on an established one", |results| {
            &results.established_us
        }),
    ];
    for (what, times) in pings {
        let unloaded = steps[0].at(0.99, times);
        let worst = steps[1..].iter().map(|step| step.at(0.99, times));
        let worst = worst.fold(0.0, |worst: f64, one| match one.is_nan() {
            true => f64::INFINITY,
            false => worst.max(one),
        });
        all.push(Target {
            what: format!("offload: p99 of {what} ≤ {PING_MAX} × that without load, at any load"),
            found: format!("{unloaded:.0} µs without load, {worst:.0} µs at most"),
            holds: Some(worst <= PING_MAX * unloaded),
        });
    }
    let goodput = |step: &Step| step.per_s(time, |results| results.data_us.len() as f64);
    let peak = steps.iter().map(goodput).fold(0.0, f64::max);
    let overloaded = steps.last().map_or(0.0, goodput);
    all.push(Target {
        what: "offload: goodput at 10 times the capacity ≥ 0.9 of the best".to_owned(),
        found: format!("{overloaded:.0} of {peak:.0} per s"),
        holds: Some(overloaded >= GOODPUT_MIN * peak),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ping_us: f64, good: usize) -> Step {
        let results = LoadResults {
            data_us: vec![1.0; good],
            new_us: vec![ping_us; 10],
            established_us: vec![ping_us; 10],
            ..LoadResults::default()
        };
        Step {
            runs: vec![results],
        }
    }

    #[test]
    fn the_worst_load_decides() {
        let time = Duration::from_secs(1);
        let held = |steps: &[Step]| -> Vec<Option<bool>> {
            targets(steps, time)
                .iter()
                .map(|target| target.holds)
                .collect()
        };
        let good = [step(100.0, 0), step(290.0, 100), step(120.0, 95)];
        assert_eq!(held(&good), [Some(true); 3]);
        let slow = [step(100.0, 0), step(310.0, 100), step(120.0, 80)];
        assert_eq!(held(&slow), [Some(false); 3]);
        let mut silent = step(100.0, 100);
        silent.runs[0].new_us.clear();
        assert_eq!(held(&[step(100.0, 0), silent])[0], Some(false));
    }
}
