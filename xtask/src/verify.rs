//! Runs Miri on `unsafe` code, and loom on state that threads share.

use crate::{
    Arguments, Failure,
    shell::{Outcome, capture, cargo, run, target},
};
use std::process::Command;

/// The unit tests that make no system call, or only calls that Miri supports.
const MIRI_UNITS: [&str; 4] = ["buf::", "job::", "timer::", "wakers::"];
/// Crates with tests under `cfg(loom)`, and the names of those tests.
const LOOM: [(&str, &str); 2] = [
    ("onrush-rt", "parker::"),
    ("onrush", "worker_set::loom_tests::"),
];

pub(crate) fn miri(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    let has_miri = capture(&mut nightly("miri --version")).is_ok_and(|(success, _)| success);
    if !has_miri {
        let how = "rustup toolchain install nightly --component miri,rust-src";
        println!("skipped: no nightly toolchain with Miri is installed. Install it with `{how}`");
        return Ok(());
    }
    run(nightly("miri test -p onrush-rt --lib --").args(MIRI_UNITS))?;
    run(&mut nightly("miri test -p onrush-rt --test task_slot"))?;
    Ok(())
}

pub(crate) fn loom(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    Ok(check_interleavings()?)
}

/// Runs the loom tests. They explore every thread interleaving up to a limit on preemptions.
pub(crate) fn check_interleavings() -> Outcome {
    for (package, tests) in LOOM {
        let mut command = cargo("test --quiet --lib -p");
        command.args([package, tests]);
        command.env("RUSTFLAGS", "--cfg loom");
        // A separate folder, because other flags would replace the usual builds.
        run(command.env("CARGO_TARGET_DIR", target().join("loom")))?;
    }
    Ok(())
}

/// Cargo of the nightly toolchain, if one is installed. It is started through rustup: the cargo
/// that runs this program belongs to the stable toolchain and does not accept `+nightly`.
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
