//! Checks of `unsafe` code and of what threads share: Miri and loom. Must not know what they check
//! beyond the names of the tests.

use crate::{
    Failure, Options,
    shell::{Outcome, capture, cargo, run, target},
};
use std::process::Command;

/// The unit tests that make no system call, or only such as Miri knows.
const MIRI_UNITS: [&str; 4] = ["buf::", "job::", "timer::", "wakers::"];
/// Crates with tests under `cfg(loom)`, and what those are called.
const LOOM: [(&str, &str); 2] = [
    ("onrush-rt", "parker::"),
    ("onrush", "worker_set::loom_tests::"),
];

pub(crate) fn miri(options: Options) -> Result<(), Failure> {
    options.end()?;
    let has_miri = capture(&mut nightly("miri --version")).is_ok_and(|(success, _)| success);
    if !has_miri {
        let how = "rustup toolchain install nightly --component miri,rust-src";
        println!("skipped: there is no nightly toolchain with Miri; install it by `{how}`");
        return Ok(());
    }
    run(nightly("miri test -p onrush-rt --lib --").args(MIRI_UNITS))?;
    run(&mut nightly("miri test -p onrush-rt --test standby"))?;
    Ok(())
}

pub(crate) fn loom(options: Options) -> Result<(), Failure> {
    options.end()?;
    Ok(check_interleavings()?)
}

/// Runs the tests that go through every order in which threads may take their steps, up to a bound
/// on preemptions.
pub(crate) fn check_interleavings() -> Outcome {
    for (package, tests) in LOOM {
        let mut command = cargo("test --quiet --lib -p");
        command.args([package, tests]);
        command.env("RUSTFLAGS", "--cfg loom");
        // Other flags mean other builds of everything: beside the usual ones, not instead.
        run(command.env("CARGO_TARGET_DIR", target().join("loom")))?;
    }
    Ok(())
}

/// Cargo of the nightly toolchain, as far as there is one. The present cargo is the stable one's,
/// and takes no toolchain's name.
fn nightly(arguments: &str) -> Command {
    let stable = cargo(arguments);
    let mut command = Command::new("cargo");
    command.arg("+nightly").args(stable.get_args());
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
        command.env_remove(variable);
    }
    command.current_dir(crate::shell::root());
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation"); // For the clock.
    command
}
