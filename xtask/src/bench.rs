//! The bench is a program of its own, with dependencies that no other chore needs: this builds it
//! and hands the command line on. Must not know what it measures.

use crate::{
    Failure, Options,
    shell::{cannot_run, cargo, flush, run, target},
};
use std::process::Command;

pub(crate) fn main(options: Options) -> Result<(), Failure> {
    let mut build = cargo("build --release --quiet --manifest-path bench/Cargo.toml -p runner");
    run(&mut build)?;
    let mut bench = Command::new(target().join("release/bench"));
    bench.args(options.arguments);
    flush();
    let status = bench.status().map_err(|error| cannot_run(&bench, &error))?;
    match status.success() {
        true => Ok(()),
        // It has said why.
        false => Err(Failure::Reported),
    }
}
