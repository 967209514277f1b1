//! Runs all checks and tests step by step. The end of the output repeats what failed; the last line
//! is the sum of the test runner's summaries.

use crate::{
    Arguments, Failure, commands, fuzz, setup,
    shell::{Outcome, cargo, elapsed, flush, run, run_watched},
    tidy, verify,
};
use std::{
    fmt,
    time::{Duration, Instant},
};

const FUZZ_SECONDS: u64 = 60;
const FUZZ_SECONDS_QUICK: u64 = 5;

/// A test binary that prints nothing for this long hangs. The slowest test takes a fifth of it.
const QUIET_MAX: Duration = Duration::from_secs(300);

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let quick = arguments.flag("--quick");
    arguments.end()?;
    let mut steps = Steps {
        started: Instant::now(),
        failed: Vec::new(),
    };
    let fuzz_seconds = if quick {
        FUZZ_SECONDS_QUICK
    } else {
        FUZZ_SECONDS
    };

    steps.run("set up", setup::programs);
    if !steps.failed.is_empty() {
        return Err(Failure::Reported);
    }
    steps.run("fmt", format);
    steps.run("clippy", clippy);
    steps.run("doc", doc);
    steps.run("tidy", tidy::check);
    steps.run("deny", setup::check_dependencies);
    steps.run("fuzz", || fuzz::run_targets(&[], fuzz_seconds));
    steps.run("release build", || {
        run(&mut cargo("build --release -p onrush-server --bins"))
    });
    let mut tally = Tally::default();
    steps.run("test", || {
        WORKSPACES
            .iter()
            .try_for_each(|manifest| test(manifest, &mut tally))
    });
    steps.run("loom", verify::check_interleavings);
    steps.run("gate", gate);
    steps.run("commands", commands::run_all);
    steps.close(tally)
}

/// The workspaces that the steps lint and test. The fuzz targets and the benchmark peers are not
/// among them, because their dependencies take minutes to compile.
const WORKSPACES: [&str; 1] = ["Cargo.toml"];

fn format() -> Outcome {
    let others = ["fuzz/Cargo.toml", "bench/peers/rust/Cargo.toml"];
    for manifest in WORKSPACES.iter().chain(&others) {
        run(cargo("fmt --all --check --manifest-path").arg(manifest))?;
    }
    Ok(())
}

fn clippy() -> Outcome {
    run(cargo("clippy --quiet --workspace --all-targets").args(["--", "-D", "warnings"]))
}

fn doc() -> Outcome {
    run(cargo("doc --quiet --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"))
}

/// Compares the instructions per request on the simulator with the committed results.
fn gate() -> Outcome {
    run(&mut cargo("run --release --quiet -p gate"))
}

/// Runs every test of a workspace, prints the output and adds the summaries of all test binaries to
/// `tally`. The build runs first and has no time limit.
fn test(manifest: &str, tally: &mut Tally) -> Outcome {
    let cargo_test = || {
        let mut command = cargo("test --workspace --no-fail-fast --manifest-path");
        command.arg(manifest);
        // The first step has installed every program that a test needs. With `CI`, a test whose
        // program is missing fails instead of being skipped.
        command.env("CI", "1");
        command
    };
    run(cargo_test().arg("--no-run"))?;
    let failed_before = tally.failed;
    let status = run_watched(&mut cargo_test(), QUIET_MAX, |line| {
        println!("{line}");
        tally.add(line);
    })?;
    match (status.success(), tally.failed - failed_before) {
        (true, _) => Ok(()),
        (false, 0) => Err(format!("cargo test did not finish: {status}")),
        (false, failed) => Err(format!("{failed} tests failed")),
    }
}

/// Runs steps, measures the time of each, and records which failed.
struct Steps {
    started: Instant,
    failed: Vec<&'static str>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Outcome) {
        println!("\n== {name}");
        flush();
        let started = Instant::now();
        let outcome = step();
        let time = elapsed(started.elapsed());
        match outcome {
            Ok(()) => println!("== {name}: ok, {time}"),
            Err(reason) => {
                println!("{reason}\n== {name}: FAILED, {time}");
                self.failed.push(name);
            }
        }
        flush();
    }

    /// Prints the results. A failed step other than `test` counts as a failed test, so the last
    /// line alone shows every failure.
    fn close(self, mut tally: Tally) -> Result<(), Failure> {
        let steps_failed = self.failed.iter().filter(|&&name| name != "test").count();
        let unexplained = self.failed.contains(&"test") && tally.failed == 0;
        tally.failed += steps_failed as u64 + u64::from(unexplained);
        println!("\nall steps: {}", elapsed(self.started.elapsed()));
        for report in &tally.reports {
            println!("\n{report}");
        }
        if !self.failed.is_empty() {
            println!("steps that failed: {}", self.failed.join(", "));
        }
        println!("\n{tally}");
        if tally.failed == 0 {
            Ok(())
        } else {
            Err(Failure::Reported)
        }
    }
}

/// The number of lines of a failed test binary that are repeated at the end of the output. A reader
/// of a long log, or of its end only, needs the names of the tests and their messages.
const REPORT_LINES_MAX: usize = 80;

/// The sum of all `test result:` lines, and what failed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// For each test binary with failures: the end of what it printed about them.
    reports: Vec<String>,
    /// The lines since `failures:`.
    failures: Option<Vec<String>>,
}

impl Tally {
    /// Reads the next line of the output. The counts are in lines such as
    /// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn add(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else {
            match &mut self.failures {
                Some(lines) => lines.push(line.to_owned()),
                None if line == "failures:" => self.failures = Some(Vec::new()),
                None => {}
            }
            return;
        };
        if let Some(lines) = self.failures.take() {
            let cut = lines.len().saturating_sub(REPORT_LINES_MAX);
            self.reports
                .push(format!("failed tests:\n{}", lines[cut..].join("\n")));
        }
        let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else {
                continue;
            };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_all_binaries_are_added_up() {
        let mut tally = Tally::default();
        tally.add("test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out");
        tally.add("test a::test_result ... ok");
        assert_eq!(tally.to_string(), "5 passed, 0 failed");
        tally.add("test result: FAILED. 2 passed; 3 failed; 1 ignored; 0 measured; 0 filtered");
        assert_eq!((tally.passed, tally.failed, tally.skipped), (7, 3, 1));
        assert_eq!(tally.to_string(), "7 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn the_failures_of_a_binary_are_repeated() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
            "test one ... FAILED",
            "failures:",
            "---- one stdout ----",
            "assertion failed",
            "failures:",
            "    one",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered",
        ] {
            tally.add(line);
        }
        let report = "failed tests:\n---- one stdout ----\nassertion failed\nfailures:\n    one";
        assert_eq!(tally.reports, [report]);
        let long: Vec<String> = (0..200).map(|line| line.to_string()).collect();
        tally.add("failures:");
        long.iter().for_each(|line| tally.add(line));
        tally.add("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered");
        assert_eq!(tally.reports[1].lines().count(), 1 + REPORT_LINES_MAX);
        assert!(tally.reports[1].ends_with("199"));
    }

    #[test]
    fn a_failed_step_is_never_a_success() {
        let steps = |failed| Steps {
            started: Instant::now(),
            failed,
        };
        assert!(steps(vec![]).close(Tally::default()).is_ok());
        assert!(steps(vec!["tidy"]).close(Tally::default()).is_err());
        assert!(steps(vec!["test"]).close(Tally::default()).is_err());
        let one = Tally {
            passed: 3,
            failed: 1,
            ..Tally::default()
        };
        assert!(steps(vec!["test"]).close(one).is_err());
    }
}
