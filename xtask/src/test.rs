//! `cargo xtask test`: every check and the tests that prove each property once, in at most 25
//! minutes from an empty target folder on two cores. `nightly` proves the rest.
//!
//! Most tests wait, so what compiles and computes runs beside them with a lower priority: lints,
//! documentation, the loom tests, and the optimised build that the gate measures. The gate counts
//! instructions, which do not depend on the load.

use crate::{
    Arguments, Failure,
    binaries::{self, Scope},
    commands, setup,
    shell::{BUILD_GATE, Outcome, cargo, run, target},
    steps::{Quiet, Steps},
    tidy, verify,
};
use std::{
    process::Command,
    thread::{self, JoinHandle},
};

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Some(wanted) = arguments.wanted(&names())? else {
        return Ok(());
    };
    let with_tests = wanted.has(TESTS);
    if with_tests {
        setup::check_rights(&setup::PROGRAMS)?;
    }
    let mut steps = Steps::new();
    let set_up = with_tests.then(|| thread::spawn(|| Quiet::run("set-up", vec![setup::command()])));
    for (name, check) in FIRST {
        if wanted.has(name) {
            steps.run(name, check);
        }
    }
    let mut tests = None;
    if with_tests {
        steps.run("build", || {
            tests = Some(binaries::build()?);
            Ok(())
        });
    }
    let is_set_up = match set_up.map(JoinHandle::join) {
        None => false,
        Some(Ok(step)) => steps.report(step),
        Some(Err(_)) => steps.run("set-up", || Err("the step panicked".to_owned())),
    };
    let checks: Vec<_> = checks()
        .into_iter()
        .filter(|(name, _)| wanted.has(name))
        .collect();
    let beside = thread::spawn(|| {
        let run = |(name, commands)| Quiet::run(name, commands);
        checks.into_iter().map(run).collect::<Vec<_>>()
    });
    if let Some(tests) = tests.filter(|_| is_set_up) {
        steps.test(TESTS, || tests.run(Scope::Short));
    }
    match beside.join() {
        Ok(checks) => checks.into_iter().for_each(|step| {
            steps.report(step);
        }),
        Err(_) => drop(steps.run("checks", || Err("the steps panicked".to_owned()))),
    }
    steps.close()
}

/// The step that runs the tests, after what it needs was built and installed.
const TESTS: &str = "test";

/// A check that takes a moment: its name, and how it is performed.
type Check = (&'static str, fn() -> Outcome);

const FIRST: [Check; 3] = [
    ("fmt", format),
    ("tidy", tidy::check),
    ("commands", commands::check),
];

/// The names of the steps that can be named.
fn names() -> Vec<&'static str> {
    let first = FIRST.iter().map(|(name, _)| *name);
    let beside = checks().map(|(name, _)| name);
    first.chain([TESTS]).chain(beside).collect()
}

/// What runs beside the tests, in this order.
fn checks() -> [(&'static str, Vec<Command>); 5] {
    [
        ("clippy", vec![clippy(), clippy_of_tower()]),
        ("doc", vec![doc()]),
        ("doc-tests", vec![cargo("test --quiet --workspace --doc")]),
        ("loom", verify::interleavings()),
        ("gate", gate()),
    ]
}

/// The formats of all workspaces, and whether their lock files have what their crates depend on.
/// The peers of the benchmarks, for example, are built only from theirs.
pub(crate) fn format() -> Outcome {
    let others = ["fuzz/targets/Cargo.toml", "bench/peers/rust/Cargo.toml"];
    for manifest in others.iter().chain(&["Cargo.toml"]) {
        run(cargo("fmt --all --check --manifest-path").arg(manifest))?;
        run(cargo("update --quiet --workspace --locked --manifest-path").arg(manifest))?;
    }
    Ok(())
}

/// Lints of everything in the workspace, with the examples. What libFuzzer and the peers of the
/// benchmarks need takes minutes to compile, so they are not among it.
fn clippy() -> Command {
    let mut command = cargo("clippy --quiet --workspace --all-targets");
    command.args(["--", "-D", "warnings"]);
    command
}

/// Lints of what `onrush-tower` is without axum, which nothing else in the workspace compiles.
fn clippy_of_tower() -> Command {
    let mut command = cargo("clippy --quiet -p onrush-tower --no-default-features");
    command.args(["--", "-D", "warnings"]);
    command
}

fn doc() -> Command {
    let mut command = cargo("doc --quiet --workspace --no-deps");
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Compares the instructions per request on the simulator with the committed results.
fn gate() -> Vec<Command> {
    vec![
        cargo(BUILD_GATE),
        Command::new(target().join("release/gate")),
    ]
}
