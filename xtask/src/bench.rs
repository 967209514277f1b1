//! Builds and runs the benchmark and the experiments, and passes the command line to them. They are
//! separate programs, because their dependencies are not needed by other tasks.

use crate::{
    Arguments, Failure,
    shell::{built, cannot_run, cargo, flush, run},
};
use std::process::Command;

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    run_built("-p runner", "bench", arguments)
}

/// Runs the experiments.
pub(crate) fn experiment(arguments: Arguments) -> Result<(), Failure> {
    run_built("-p experiments", "experiment", arguments)
}

/// Builds `packages` of the benchmarks and runs their program `program`.
fn run_built(packages: &str, program: &str, arguments: Arguments) -> Result<(), Failure> {
    let words = arguments.rest()?;
    let build = format!("build --profile=dist --quiet {packages}");
    run(&mut cargo(&build))?;
    let mut measuring = Command::new(built().join(program));
    measuring.args(words);
    flush();
    let status = measuring
        .status()
        .map_err(|error| cannot_run(&measuring, &error))?;
    match status.success() {
        true => Ok(()),
        // The program has printed the reason.
        false => Err(Failure::Reported),
    }
}
