//! CPU-bound work off the path of requests: what becomes of connections, of the work and of a ping
//! beside it, from half of the load that can be carried to ten times as much; the work done by the
//! worker that accepts, and by the pool. Must not know how the pool does it.
//!
//! The server is `examples/offload`, all of it on one core: what is compared is who does the work,
//! and not how many cores do it.

mod open;

use crate::{
    chart::{Panel, Series, lines},
    run::{Run, Target},
    table::Table,
};
use open::{PATIENCE, Plan, Seen, load};
use runner::{
    server::{Server, free_port},
    stats::{median, percentile, sorted},
};
use std::{process::Command, time::Duration};
use xtask::shell::{Outcome, cargo};

/// CPU of one `/data`, as the example says.
const WORK_MS: f64 = 4.0;

/// Of what the core can carry.
const LOADS: [f64; 6] = [0.0, 0.5, 0.9, 1.5, 3.0, 10.0];

/// Of each kind.
const PINGS_PER_S: f64 = 50.0;

/// What was promised.
const PING_MAX: f64 = 3.0;
const GOODPUT_MIN: f64 = 0.9;

/// Who does the work, and what the example is told.
const WAYS: [(&str, &[&str]); 2] = [("inline", &["--inline"]), ("offload", &["--threads", "1"])];

/// One load, all its runs.
#[derive(Clone, Debug, Default)]
struct Step {
    runs: Vec<Seen>,
}

impl Step {
    /// The median over the runs of a percentile.
    fn at(&self, share: f64, times: fn(&Seen) -> &Vec<f64>) -> f64 {
        median(self.runs.iter().map(|seen| {
            let all = sorted(times(seen).iter().copied());
            percentile(&all, share)
        }))
    }

    fn per_s(&self, time: Duration, count: fn(&Seen) -> f64) -> f64 {
        median(self.runs.iter().map(count)) / time.as_secs_f64()
    }
}

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("offload · building the example");
    let example = "build --release --quiet -p onrush --example offload";
    xtask::shell::run(&mut cargo(example))?;
    let time = Duration::from_secs(run.effort.of(2, 6, 20));
    let times = run.effort.of(1, 3, 3);
    let mut steps = vec![vec![Step::default(); LOADS.len()]; WAYS.len()];
    for number in 0..times {
        for (at, share) in LOADS.iter().enumerate() {
            // One after the other, so that what the machine does meanwhile befalls both.
            for (way, (name, arguments)) in WAYS.iter().enumerate() {
                let done = format!("run {}/{times}", number + 1);
                runner::progress(&format!("offload · {name}, {share} of the load, {done}"));
                let plan = Plan {
                    data_per_s: share * 1000.0 / WORK_MS,
                    pings_per_s: PINGS_PER_S,
                    time,
                    seed: number,
                };
                steps[way][at].runs.push(one(run, arguments, &plan)?);
            }
        }
    }
    show(run, &steps, time)?;
    draw(run, &steps)?;
    Ok(targets(&steps[1], time))
}

fn one(run: &Run, arguments: &[&str], plan: &Plan) -> Outcome<Seen> {
    let port = free_port()?;
    let program = xtask::shell::built().join("examples/offload");
    let mut command = Command::new(program);
    command.arg(port.to_string()).args(arguments);
    command.env("ONRUSH_WORKERS", "1");
    let server = Server::start(&command, port)?;
    // It finds out first how much work 4 ms are.
    run.sleep(Duration::from_millis(300))?;
    load(run, server.address, plan)
}

fn show(run: &Run, steps: &[Vec<Step>], time: Duration) -> Outcome {
    let waited = PATIENCE.as_secs();
    let title = format!(
        "offload · 4 ms of CPU for each /data, on one core; goodput: answered 200 within {waited} s"
    );
    let mut table = Table::new(
        &title,
        &[
            "who works",
            "load",
            "/data per s",
            "goodput per s",
            "503 per s",
            "lost per s",
            "/data p50 ms",
            "p99 ms",
            "new ping p50 ms",
            "p99 ms",
            "kept ping p50 ms",
            "p99 ms",
            "pings lost",
        ],
    );
    for ((name, _), steps) in WAYS.iter().zip(steps) {
        for (share, step) in LOADS.iter().zip(steps) {
            let ms = |share, times| {
                let us = step.at(share, times);
                match us.is_finite() {
                    true => format!("{:.2}", us / 1e3),
                    false => String::new(),
                }
            };
            let per_s = |count| format!("{:.0}", step.per_s(time, count));
            table.row([
                (*name).to_owned(),
                format!("{share}"),
                format!("{:.0}", share * 1000.0 / WORK_MS),
                per_s(|seen| seen.data_us.len() as f64),
                per_s(|seen| seen.shed_us.len() as f64),
                per_s(|seen| seen.lost as f64),
                ms(0.5, |seen| &seen.data_us),
                ms(0.99, |seen| &seen.data_us),
                ms(0.5, |seen| &seen.fresh_us),
                ms(0.99, |seen| &seen.fresh_us),
                ms(0.5, |seen| &seen.kept_us),
                ms(0.99, |seen| &seen.kept_us),
                step.runs
                    .iter()
                    .map(|seen| seen.pings_lost)
                    .sum::<u64>()
                    .to_string(),
            ]);
        }
    }
    run.show("offload", &table)
}

/// Connections over time at one and a half of the load, as the original looked at.
fn draw(run: &Run, steps: &[Vec<Step>]) -> Outcome {
    const SHOWN: usize = 3;
    let panel = |((name, _), steps): (&(&str, &[&str]), &Vec<Step>)| {
        let course = steps[SHOWN].runs.first().map(|seen| &seen.course[..]);
        let course = course.unwrap_or_default();
        let series = |name: &str, of: fn(&(f64, u64, u64, u64)) -> u64| Series {
            name: name.to_owned(),
            points: course.iter().map(|at| (at.0, of(at) as f64)).collect(),
        };
        Panel {
            title: format!("{name}: connections made (orange), accepted (blue), done (green)"),
            series: vec![
                series("made", |at| at.1),
                series("accepted", |at| at.2),
                series("done", |at| at.3),
            ],
        }
    };
    let panels: Vec<Panel> = WAYS.iter().zip(steps).map(panel).collect();
    let title = "offload: 1.5 times the load that the core can carry";
    let note =
        "connections since the beginning, one for each request; where lines meet, nobody waits";
    run.write("offload.svg", &lines(title, note, "s", &panels))
}

fn targets(steps: &[Step], time: Duration) -> Vec<Target> {
    let mut all = Vec::new();
    type Times = fn(&Seen) -> &Vec<f64>;
    let pings: [(&str, Times); 2] = [
        ("accepting and answering a new connection", |seen| {
            &seen.fresh_us
        }),
        ("/ping", |seen| &seen.kept_us),
    ];
    for (what, times) in pings {
        let unloaded = steps[0].at(0.99, times);
        let worst = steps[1..].iter().map(|step| step.at(0.99, times));
        let worst = worst.fold(0.0, |worst: f64, one| match one.is_nan() {
            true => f64::INFINITY,
            false => worst.max(one),
        });
        all.push(Target {
            what: format!("offload: p99 of {what} within {PING_MAX} of the unloaded at any load"),
            found: format!("{unloaded:.0} µs unloaded, {worst:.0} µs at most"),
            holds: Some(worst <= PING_MAX * unloaded),
        });
    }
    let goodput = |step: &Step| step.per_s(time, |seen| seen.data_us.len() as f64);
    let peak = steps.iter().map(goodput).fold(0.0, f64::max);
    let overloaded = steps.last().map_or(0.0, goodput);
    all.push(Target {
        what: "offload: goodput at 10 times the load at least 0.9 of the peak".to_owned(),
        found: format!("{overloaded:.0} of {peak:.0} per s"),
        holds: Some(overloaded >= GOODPUT_MIN * peak),
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ping_us: f64, good: usize) -> Step {
        let seen = Seen {
            data_us: vec![1.0; good],
            fresh_us: vec![ping_us; 10],
            kept_us: vec![ping_us; 10],
            ..Seen::default()
        };
        Step { runs: vec![seen] }
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
        silent.runs[0].fresh_us.clear();
        assert_eq!(held(&[step(100.0, 0), silent])[0], Some(false));
    }
}
