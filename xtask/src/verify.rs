//! Runs Miri on `unsafe` code, loom on state that threads share, and kills of processes that store.

use crate::{
    Arguments, Failure,
    shell::{Outcome, capture, cargo, target},
    tally::run_tests,
};
use std::process::Command;

/// The tests that make no system call, or only calls that Miri supports.
const MIRI: [(&str, Leaks); 3] = [
    ("--lib -- buf:: timer::", Leaks::AreErrors),
    ("--lib -- job:: wakers::", Leaks::AreIntended),
    ("--test runtime -- task_slot::", Leaks::AreIntended),
];

/// Tests use the clock.
const MIRI_FLAGS: &str = "-Zmiri-disable-isolation";

/// What Miri makes of memory that is never freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaks {
    AreErrors,
    /// A panic's payload is leaked, because its destructor may panic, too.
    AreIntended,
}

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
    for (tests, leaks) in MIRI {
        let mut command = nightly(&format!("miri test -p onrush-rt {tests}"));
        if leaks == Leaks::AreIntended {
            command.env("MIRIFLAGS", format!("{MIRI_FLAGS} -Zmiri-ignore-leaks"));
        }
        run_tests(&mut command)?;
    }
    Ok(())
}

pub(crate) fn loom(arguments: Arguments) -> Result<(), Failure> {
    arguments.end()?;
    Ok(check_interleavings()?)
}

/// Kills processes at random moments of puts, more often than the tests do.
pub(crate) fn kill(mut arguments: Arguments) -> Result<(), Failure> {
    let kills = arguments.number("--kills", 10_000)?;
    arguments.end()?;
    let mut command = cargo("test -p onrush-store --test store -- kill:: --nocapture");
    Ok(run_tests(command.env("TEST_KILLS", kills.to_string()))?)
}

/// Runs the loom tests. They explore every thread interleaving up to a limit on preemptions.
pub(crate) fn check_interleavings() -> Outcome {
    interleavings().iter_mut().try_for_each(run_tests)
}

/// The commands that run the loom tests.
pub(crate) fn interleavings() -> Vec<Command> {
    let command = |(package, tests): (&str, &str)| {
        let mut command = cargo("test --quiet --lib -p");
        command.args([package, tests]);
        command.env("RUSTFLAGS", "--cfg loom");
        // A separate folder, because other flags would replace the usual builds.
        command.env("CARGO_TARGET_DIR", target().join("loom"));
        command
    };
    LOOM.into_iter().map(command).collect()
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
    command.env("MIRIFLAGS", MIRI_FLAGS);
    command
}
