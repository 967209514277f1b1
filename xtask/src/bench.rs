//! The bench and the experiments are programs of their own, with dependencies that no other chore
//! needs: this builds them and hands the command line on. Must not know what they measure.

use crate::{
    Failure, Options,
    shell::{built, cannot_run, cargo, flush, run},
};
use std::process::Command;

pub(crate) fn main(options: Options) -> Result<(), Failure> {
    run_built("-p runner", "bench", options)
}

/// Repeats experiments.
pub(crate) fn experiment(options: Options) -> Result<(), Failure> {
    run_built("-p experiments", "experiment", options)
}

/// Builds packages of the bench's workspace, and runs `program` of them.
fn run_built(packages: &str, program: &str, options: Options) -> Result<(), Failure> {
    let build = format!("build --release --quiet --manifest-path bench/Cargo.toml {packages}");
    run(&mut cargo(&build))?;
    let mut measuring = Command::new(built().join(program));
    measuring.args(options.arguments);
    flush();
    let status = measuring
        .status()
        .map_err(|error| cannot_run(&measuring, &error))?;
    match status.success() {
        true => Ok(()),
        // It has said why.
        false => Err(Failure::Reported),
    }
}
