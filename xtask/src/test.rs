//! `cargo xtask test`: every check and the tests that prove each property once, in at most 25
//! minutes from an empty target folder on two cores. `nightly` proves the rest.
//!
//! Most tests wait, so what compiles and computes runs beside them with the lowest priority: lints,
//! documentation, the loom tests, and the optimised build that the gate measures. The gate counts
//! instructions, which do not depend on the load.

use crate::{
    Arguments, Failure,
    binaries::{self, Scope},
    commands, setup,
    shell::{Outcome, cargo, run},
    steps::{Quiet, Steps},
    tidy, verify,
};
use std::{process::Command, thread};

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    setup::check_rights()?;
    let mut steps = Steps::new();
    let set_up = thread::spawn(|| Quiet::run("set up", vec![setup::command()]));
    steps.run("fmt", format);
    steps.run("tidy", tidy::check);
    steps.run("commands", commands::check);
    let mut tests = None;
    steps.run("build", || {
        tests = Some(binaries::build()?);
        Ok(())
    });
    let is_set_up = match set_up.join() {
        Ok(step) => steps.report(step),
        Err(_) => steps.run("set up", || Err("the step panicked".to_owned())),
    };
    let beside = thread::spawn(|| checks().map(|(name, commands)| Quiet::run(name, commands)));
    if let Some(tests) = tests.filter(|_| is_set_up) {
        steps.test("test", || tests.run(Scope::Short));
    }
    match beside.join() {
        Ok(checks) => checks.into_iter().for_each(|step| {
            steps.report(step);
        }),
        Err(_) => drop(steps.run("checks", || Err("the steps panicked".to_owned()))),
    }
    steps.close()
}

/// What runs beside the tests, in this order.
fn checks() -> [(&'static str, Vec<Command>); 5] {
    [
        ("clippy", vec![clippy()]),
        ("doc", vec![doc()]),
        ("doc tests", vec![cargo("test --quiet --workspace --doc")]),
        ("loom", verify::interleavings()),
        ("gate", gate()),
    ]
}

/// The formats of all workspaces.
pub(crate) fn format() -> Outcome {
    let others = ["fuzz/targets/Cargo.toml", "bench/peers/rust/Cargo.toml"];
    for manifest in others.iter().chain(&["Cargo.toml"]) {
        run(cargo("fmt --all --check --manifest-path").arg(manifest))?;
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

fn doc() -> Command {
    let mut command = cargo("doc --quiet --workspace --no-deps");
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Compares the instructions per request on the simulator with the committed results. The program
/// is built with it, because both need the same.
fn gate() -> Vec<Command> {
    vec![
        cargo("build --release --quiet -p gate -p onrush-server --bins"),
        cargo("run --release --quiet -p gate"),
    ]
}
