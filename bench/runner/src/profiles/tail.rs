//! Latency of many connections at a fixed rate, without coordinated omission: requests are sent
//! when they are due, and latency counts from the due time. `bench/load` generates the load.

use super::{Step, title};
use crate::{
    bench::{Bench, NO_TIME},
    peers::{Launch, Role},
    plan::{Pairing, Subject, Targets},
    row::{About, Metrics, Round, Row, Target},
    server::{CLIENT_CORE, Server, free_port, pinned},
    work::Place,
};
use serde_json::Value;
use std::{collections::BTreeSet, net::SocketAddr, process::Command, time::Duration};
use xtask::shell::{Outcome, capture, cargo, run};

const CONNECTIONS: u32 = 512;

/// The loads, as shares of the capacity of the slower server.
const LOADS: [(&str, f64); 2] = [("half", 0.5), ("nine tenths", 0.9)];

/// Durations of the closed loop that measures the capacity, and of a window of the open loop, in
/// seconds.
const CAPACITY_S: u64 = 3;
const WINDOW_S: u64 = 2;

/// Maximum share of errors in the closed loop.
const ERRORS_MAX: f64 = 0.001;

/// The columns of the rows of a load.
const UNITS: [&str; 2] = ["p99 µs", "p99.9 µs"];

pub(super) struct Task {
    profile: &'static str,
    role: Role,
    pair: Pairing,
    load: (&'static str, f64),
    /// Those of the rows of p99 and p99.9.
    targets: [Option<Target>; 2],
}

pub(super) fn tail(bench: &Bench) -> Vec<Step> {
    let pairs = bench.field.pairings(Role::Hello, &Targets::default());
    let mut steps = Vec::new();
    for load in LOADS.into_iter().skip(usize::from(bench.effort.quick)) {
        for pair in &pairs {
            let target = (pair.about == About::Peer).then_some(Target::AtLeast(1.0));
            steps.push(step("tail", Role::Hello, pair, load, [target; 2]));
        }
    }
    steps
}

/// A pair at nine tenths of its capacity, in another profile and role. The target is that of the
/// row of p99.9.
pub(super) fn nine_tenths(profile: &'static str, role: Role, pair: &Pairing) -> Step {
    step(profile, role, pair, LOADS[1], [None, pair.target])
}

fn step(
    profile: &'static str,
    role: Role,
    pair: &Pairing,
    load: (&'static str, f64),
    targets: [Option<Target>; 2],
) -> Step {
    Step {
        profile,
        title: title(load.0, pair),
        weight: 2,
        task: super::Task::Tail(Task {
            profile,
            role,
            pair: pair.clone(),
            load,
            targets,
        }),
    }
}

/// Builds the load generator.
fn build() -> Outcome {
    run(&mut cargo("build --profile=dist --quiet -p load"))
}

impl Task {
    /// Measures a row of p99 and one of p99.9.
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let rows = UNITS.iter().zip(self.targets);
        let row = |(unit, target): (&&'static str, _)| self.empty_row(bench, unit, target);
        let mut rows: Vec<Row> = rows.map(row).collect();
        match self.windows(bench, &mut rows) {
            Ok(windows) => {
                let times: [fn(&Metrics) -> f64; 2] = [|f| f.p99_us, |f| f.p999_us];
                for (row, time) in rows.iter_mut().zip(times) {
                    row.rounds = windows.iter().map(|round| valued(round, time)).collect();
                }
            }
            Err(reason) => rows
                .iter_mut()
                .for_each(|row| row.voids.push(reason.clone())),
        }
        rows
    }

    fn empty_row(&self, bench: &Bench, unit: &'static str, target: Option<Target>) -> Row {
        let (what, _) = unit.split_once(' ').unwrap_or((unit, ""));
        Row {
            profile: self.profile,
            scenario: format!("{what} at {} of capacity", self.load.0),
            about: self.pair.about,
            unit,
            server: bench.side(&self.pair.server, self.role),
            reference: bench.side(&self.pair.reference, self.role),
            access_log: "off",
            target,
            ..Row::default()
        }
    }

    /// Measures all rounds. Adds the rate and the peak memory to the rows.
    fn windows(&self, bench: &mut Bench, rows: &mut [Row]) -> Outcome<Vec<Round>> {
        for subject in [&self.pair.server, &self.pair.reference] {
            if let Some(reason) = bench.missing.get(subject.peer.name) {
                return Err(reason.clone());
            }
        }
        let rounds = u64::from(bench.effort.rounds);
        let wanted = CAPACITY_S + WINDOW_S * rounds + 2;
        let left = bench.clock.row_left().map_or(wanted, |left| left.as_secs());
        let fixed = CAPACITY_S + 2;
        let windows = (left.min(wanted).saturating_sub(fixed) / WINDOW_S).min(rounds);
        if windows == 0 || bench.clock.is_over(Duration::from_secs(fixed)) {
            return Err(NO_TIME.to_owned());
        }
        build()?;
        let server = start(bench, self.role, &self.pair.server)?;
        let reference = start(bench, self.role, &self.pair.reference)?;
        let both = (server.address, reference.address);
        let rate = (capacity(bench, both)? * self.load.1).floor().max(1.0);
        let mut windows = open_loop(bench, both, rate, windows)?;
        // Windows in which the generator was late are repeated once. The servers do not cause that.
        let missing = rounds.saturating_sub(windows.rounds.len() as u64);
        let fits = (bench.clock.row_left()).map_or(missing, |left| left.as_secs() / WINDOW_S);
        if missing.min(fits) > 0 {
            let more = open_loop(bench, both, rate, missing.min(fits))?;
            windows.rounds.extend(more.rounds);
            windows.voids.extend(more.voids);
            windows.marks.extend(more.marks);
        }
        let mut note = format!("{rate} requests per second to each");
        for whose in [SERVER, REFERENCE] {
            note.push_str(&marks_of(whose, &windows.marks));
        }
        for row in rows.iter_mut() {
            row.note.clone_from(&note);
            row.voids.clone_from(&windows.voids);
            row.server.peak_bytes = server.peak_bytes().ok();
            row.reference.peak_bytes = reference.peak_bytes().ok();
        }
        Ok(windows.rounds)
    }
}

/// A text such as `; server, 3 times: rate not achieved, errors`, or an empty one.
fn marks_of(whose: &str, marks: &[Mark]) -> String {
    let all = marks.iter().filter(|mark| mark.whose == whose);
    let what: BTreeSet<&str> = all.clone().map(|mark| &*mark.what).collect();
    match all.count() {
        0 => String::new(),
        times => {
            let what: Vec<&str> = what.into_iter().collect();
            format!("; {whose}, {times} times: {}", what.join(", "))
        }
    }
}

fn valued(round: &Round, time: fn(&Metrics) -> f64) -> Round {
    let with = |metrics: Metrics| Metrics {
        value: time(&metrics),
        ..metrics
    };
    Round {
        server: with(round.server),
        reference: with(round.reference),
    }
}

fn start(bench: &mut Bench, role: Role, subject: &Subject) -> Outcome<Server> {
    let launch = Launch {
        role,
        port: free_port()?,
        folder: bench.work.empty(Place::Disk)?,
        scratch: bench.work.empty(Place::Disk)?,
        connections: CONNECTIONS,
    };
    let named = |reason: String| format!("{}: {reason}", subject.label);
    let mut command = (subject.peer.launch)(&bench.setup, &launch).map_err(named)?;
    command.envs(subject.environment.iter().copied());
    Server::start(&command, launch.port).map_err(named)
}

/// Runs the load generator on its core and returns its report.
fn load(
    bench: &Bench,
    both: (SocketAddr, SocketAddr),
    seconds: u64,
    windows: u64,
    more: &[String],
) -> Outcome<Value> {
    let mut command = Command::new(bench.setup.built("open-loop"));
    command.args([both.0.to_string(), both.1.to_string()]);
    command.args(["--connections", &CONNECTIONS.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    command.args(["--windows", &windows.to_string()]).args(more);
    let (ok, text) = capture(&mut pinned(&command, CLIENT_CORE))?;
    match serde_json::from_str(&text) {
        Ok(result) if ok => Ok(result),
        _ => Err(format!("the load failed: {}", text.trim())),
    }
}

/// Requests per second of the slower server while all connections to both servers are busy.
fn capacity(bench: &Bench, both: (SocketAddr, SocketAddr)) -> Outcome<f64> {
    let result = load(bench, both, CAPACITY_S, 1, &["--capacity".to_owned()])?;
    let of = |which: &str| {
        let window = &result[which]["windows"][0];
        let errors = window["errors"].as_f64().unwrap_or(f64::NAN);
        let rate = window["requests_per_second"].as_f64();
        rate.filter(|&rate| rate > 0.0 && errors <= rate * ERRORS_MAX)
            .ok_or_else(|| format!("the capacity was not measured: {window}"))
    };
    Ok(of("a")?.min(of("b")?))
}

/// The windows of an open loop.
#[derive(Debug, Default)]
struct Windows {
    rounds: Vec<Round>,
    /// The reasons of void windows.
    voids: Vec<String>,
    /// The problems in valid windows.
    marks: Vec<Mark>,
}

/// A problem in a window.
#[derive(Debug)]
struct Mark {
    /// [`SERVER`] or [`REFERENCE`].
    whose: &'static str,
    what: String,
}

const SERVER: &str = "server";
const REFERENCE: &str = "reference";

/// The mark of a window that does not describe the server.
const LATE: &str = "generator late";

/// Runs the open loop at `rate` requests per second to each server.
fn open_loop(
    bench: &Bench,
    both: (SocketAddr, SocketAddr),
    rate: f64,
    windows: u64,
) -> Outcome<Windows> {
    let rate = ["--rate".to_owned(), rate.to_string()];
    rounds(&load(bench, both, WINDOW_S, windows, &rate)?)
}

/// The windows in the report of an open loop. Windows in which the generator was late are void. All
/// others are valid, with their marks: a server that stalls must not lose its worst windows.
fn rounds(result: &Value) -> Outcome<Windows> {
    let windows = |which: &str| {
        let windows = result[which]["windows"].as_array();
        windows.ok_or_else(|| format!("the report has no windows: {result}"))
    };
    let mut all = Windows::default();
    for (a, b) in windows("a")?.iter().zip(windows("b")?) {
        let marks = [(SERVER, a), (REFERENCE, b)]
            .into_iter()
            .flat_map(|(whose, window)| {
                let marks = window["marks"].as_array().into_iter().flatten();
                let marks = marks.filter_map(Value::as_str);
                marks.map(move |mark| Mark {
                    whose,
                    what: mark.to_owned(),
                })
            });
        let (late, other): (Vec<Mark>, Vec<Mark>) = marks.partition(|mark| mark.what == LATE);
        if late.is_empty() {
            all.marks.extend(other);
            all.rounds.push(Round {
                server: metrics(a)?,
                reference: metrics(b)?,
            });
        } else {
            let late = late
                .iter()
                .map(|Mark { whose, what }| format!("{whose}: {what}"));
            all.voids.push(late.collect::<Vec<_>>().join(", "));
        }
    }
    Ok(all)
}

fn metrics(window: &Value) -> Outcome<Metrics> {
    let field = |name: &str| {
        let number = window[name].as_f64();
        number.ok_or_else(|| format!("a window has no {name}: {window}"))
    };
    Ok(Metrics {
        value: f64::NAN,
        requests_per_s: field("achieved_rate")?,
        p50_us: field("p50_us")?,
        p99_us: field("p99_us")?,
        p999_us: field("p999_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn window(p99_us: f64, marks: &[&str]) -> Value {
        json!({
            "achieved_rate": 1000.0, "p50_us": 1.0, "p99_us": p99_us, "p999_us": 3.0,
            "marks": marks,
        })
    }

    #[test]
    fn windows_are_void_if_the_generator_was_late() {
        let result = json!({
            "a": { "windows": [
                window(4.0, &[]),
                window(5.0, &["generator late", "errors"]),
                window(90.0, &["rate not achieved"]),
            ] },
            "b": { "windows": [window(2.0, &[]), window(2.0, &[]), window(2.0, &[])] },
        });
        let windows = rounds(&result).expect("whole");
        assert_eq!(windows.voids, ["server: generator late"]);
        assert_eq!(windows.rounds.len(), 2, "a stall counts");
        let marks = marks_of("server", &windows.marks);
        assert_eq!(marks, "; server, 1 times: rate not achieved");
        assert_eq!(marks_of("reference", &windows.marks), "");
        let round = valued(&windows.rounds[0], |metrics| metrics.p99_us);
        assert_eq!((round.server.value, round.reference.value), (4.0, 2.0));
    }

    #[test]
    fn missing_fields_are_errors() {
        assert!(rounds(&json!({ "a": {} })).is_err());
        assert!(metrics(&json!({ "p50_us": 1.0 })).is_err());
    }
}
