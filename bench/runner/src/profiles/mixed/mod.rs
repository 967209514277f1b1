//! Latency of small GETs on one worker that is also busy with endless transfers.

mod sample;

use super::{Step, latency::Window, others};
use crate::{
    bench::{Bench, NO_TIME},
    peers::{Driver, Kind, Role},
    plan::Subject,
    row::{About, Metrics, Round, Row, Side, Target},
    stats::median,
};
use sample::{Mix, Sample, Trial};
use std::time::Duration;
use xtask::shell::{Outcome, cargo, run};

/// The background loads by name. The last one is all of them together.
const MIXES: [(&str, Mix); 5] = [
    (
        "four uploads",
        Mix {
            uploads: 4,
            ..Mix::NONE
        },
    ),
    (
        "four streams",
        Mix {
            streams: 4,
            ..Mix::NONE
        },
    ),
    (
        "four downloads",
        Mix {
            downloads: 4,
            ..Mix::NONE
        },
    ),
    (
        "a pipeline",
        Mix {
            pipelines: 1,
            ..Mix::NONE
        },
    ),
    (
        "all of them",
        Mix {
            uploads: 4,
            streams: 4,
            downloads: 4,
            pipelines: 1,
        },
    ),
];

/// Rounds of a row at most. Each round is one or two [`Trial`]s of several seconds.
const ROUNDS_MAX: u32 = 5;

/// Number of rounds that are repeated at most because the generator was late.
const REPEATS_MAX: u32 = 3;

/// Targets: the 99th percentile with the background divided by that without it, and absolute
/// values.
const FACTOR_MAX: f64 = 3.0;
const P99_MS_MAX: f64 = 5.0;
const MAX_MS_MAX: f64 = 50.0;
/// Target for the throughput of the background relative to the other build.
const THROUGHPUT_MIN: f64 = 0.97;

pub(super) struct Task {
    name: &'static str,
    mix: Mix,
    subject: Subject,
}

pub(super) fn mixed(bench: &Bench) -> Vec<Step> {
    let drivers: &[Driver] = &bench.field.drivers;
    let mut subjects: Vec<Subject> = drivers
        .iter()
        .filter_map(|&driver| bench.field.ours(driver))
        .collect();
    subjects.extend(others(bench, Role::Mixed));
    // A quick run measures only the last mix.
    let first = if bench.effort.quick {
        MIXES.len() - 1
    } else {
        0
    };
    let mut steps = Vec::new();
    for (name, mix) in &MIXES[first..] {
        for subject in &subjects {
            steps.push(Step {
                profile: "mixed",
                title: format!("{name}: {}", subject.label),
                weight: 2,
                task: super::Task::Mixed(Task {
                    name,
                    mix: *mix,
                    subject: subject.clone(),
                }),
            });
        }
    }
    steps
}

/// All rounds of one server and one mix.
#[derive(Default)]
struct Rounds {
    now: Vec<Sample>,
    /// The other build at about the same time: the same number of samples, or none.
    before: Vec<Sample>,
    voids: Vec<String>,
}

impl Task {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let rounds = self.rounds(bench).unwrap_or_else(|reason| Rounds {
            voids: vec![reason],
            ..Rounds::default()
        });
        let is_ours = self.subject.peer.kind == Kind::Onrush;
        let at_most = |most: f64| is_ours.then_some(Target::AtMost(most));
        let factor = |sample: &Sample| Round {
            server: sample.loaded.metrics(sample.loaded.p99_us),
            reference: sample.alone.metrics(sample.alone.p99_us),
        };
        let bound = |ms: fn(&Window) -> f64, most: f64| {
            let round = move |sample: &Sample| Round {
                server: sample.loaded.metrics(ms(&sample.loaded)),
                reference: Metrics::only(most),
            };
            rounds.now.iter().map(round).collect()
        };
        let name = self.name;
        let mut rows = vec![
            Row {
                target: at_most(FACTOR_MAX),
                rounds: rounds.now.iter().map(factor).collect(),
                note: note(&rounds.now),
                ..self.row(bench, &format!("p99 during {name}"), "µs", "without it")
            },
            Row {
                about: About::Bound,
                target: at_most(1.0),
                rounds: bound(|window| window.p99_us / 1e3, P99_MS_MAX),
                ..self.row(
                    bench,
                    &format!("p99 during {name}, absolute"),
                    "ms",
                    "target",
                )
            },
            Row {
                about: About::Bound,
                target: at_most(1.0),
                rounds: bound(|window| window.max_us / 1e3, MAX_MS_MAX),
                ..self.row(bench, &format!("maximum during {name}"), "ms", "target")
            },
        ];
        if !rounds.before.is_empty() {
            let is_whole = self.mix == MIXES[MIXES.len() - 1].1;
            let reference = format!("{} before", self.subject.label);
            let throughput = |(now, before): (&Sample, &Sample)| Round {
                server: now.loaded.metrics(now.moved.mb_per_s()),
                reference: before.loaded.metrics(before.moved.mb_per_s()),
            };
            let both = rounds.now.iter().zip(&rounds.before);
            rows.push(Row {
                // Fairness moves throughput between the parts of the complete mix.
                target: (!is_whole).then_some(Target::AtLeast(THROUGHPUT_MIN)),
                rounds: both.map(throughput).collect(),
                note: format!("before: {}", note(&rounds.before)),
                ..self.row(bench, &format!("throughput of {name}"), "MB/s", &reference)
            });
        }
        rows[0].voids = rounds.voids;
        rows
    }

    /// A row without rounds.
    fn row(&self, bench: &Bench, scenario: &str, unit: &'static str, reference: &str) -> Row {
        Row {
            profile: "mixed",
            scenario: scenario.to_owned(),
            about: About::Feature,
            unit,
            server: bench.side(&self.subject, Role::Mixed),
            reference: Side::named(reference),
            durability: "none",
            access_log: "off",
            target: None,
            ..Row::default()
        }
    }

    fn rounds(&self, bench: &mut Bench) -> Outcome<Rounds> {
        if let Some(reason) = bench.missing.get(self.subject.peer.name) {
            return Err(reason.clone());
        }
        run(&mut cargo("build --profile=dist --quiet -p load"))?;
        let trial = Trial::new(self.mix, bench.effort);
        let before = match self.subject.peer.kind {
            Kind::Onrush => bench.before.clone(),
            _ => None,
        };
        let builds = 1 + u32::from(before.is_some());
        let wanted = if bench.effort.quick { 1 } else { ROUNDS_MAX };
        let wanted = wanted.min(bench.effort.rounds);
        let mut rounds = Rounds::default();
        for _ in 0..wanted + REPEATS_MAX {
            if rounds.now.len() as u32 == wanted {
                break;
            }
            if bench.clock.row_is_over(trial.time() * builds) {
                rounds.voids.push(NO_TIME.to_owned());
                break;
            }
            let now = trial.sample(bench, &self.subject, None)?;
            let before = (before.as_deref())
                .map(|target| trial.sample(bench, &self.subject, Some(target)))
                .transpose()?;
            if now.is_late() || before.as_ref().is_some_and(Sample::is_late) {
                let late = now
                    .late_us()
                    .max(before.map_or(0.0, |before| before.late_us()));
                rounds
                    .voids
                    .push(format!("generator late by {late:.0} µs (p99)"));
                continue;
            }
            rounds.now.push(now);
            rounds.before.extend(before);
        }
        Ok(rounds)
    }
}

/// The note of a row: throughput and CPU, as medians.
fn note(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return String::new();
    }
    let of = |metric: fn(&Sample) -> f64| median(samples.iter().map(metric));
    let parts = [
        (
            "uploads",
            of(|s| s.moved.uploaded_bytes_per_s / 1e6),
            "MB/s",
        ),
        (
            "streams",
            of(|s| s.moved.streamed_bytes_per_s / 1e6),
            "MB/s",
        ),
        (
            "downloads",
            of(|s| s.moved.downloaded_bytes_per_s / 1e6),
            "MB/s",
        ),
        ("pipeline", of(|s| s.moved.pipelined_per_s), "requests/s"),
    ];
    let mut texts: Vec<String> = parts
        .iter()
        .filter(|(_, value, _)| *value > 0.0)
        .map(|(name, value, unit)| format!("{name} {value:.0} {unit}"))
        .collect();
    texts.push(format!(
        "CPU {:.0} % of a core, {:.0} % without it",
        of(|s| s.cpu_loaded * 100.0),
        of(|s| s.cpu_alone * 100.0)
    ));
    let late = of(Sample::late_us);
    texts.push(format!("generator late by {late:.0} µs (p99)"));
    let failures: f64 = samples.iter().map(|s| s.moved.failures).sum();
    let stuck: f64 = samples
        .iter()
        .map(|s| s.moved.clients_without_progress)
        .sum();
    if failures > 0.0 {
        let reasons = samples.iter().map(|s| s.moved.failure.as_str());
        let reason = reasons.rev().find(|reason| !reason.is_empty());
        let reason = reason.unwrap_or_default();
        texts.push(format!("{failures} transfers failed ({reason})"));
    }
    if stuck > 0.0 {
        texts.push(format!("{stuck} transfers without any progress"));
    }
    let without = samples.iter().find_map(|s| s.without.as_deref());
    texts.extend(without.map(str::to_owned));
    texts.join("; ")
}

impl Trial {
    fn new(mix: Mix, effort: crate::bench::Effort) -> Trial {
        let seconds = |seconds| Duration::from_secs(seconds);
        match effort.quick {
            true => Trial {
                mix,
                alone: seconds(1),
                loaded: seconds(2),
                large_bytes: 1 << 28,
            },
            false => Trial {
                mix,
                alone: seconds(3),
                loaded: seconds(5),
                large_bytes: 1 << 30,
            },
        }
    }
}
