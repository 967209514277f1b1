//! The sum of the test runner's summaries, and what failed.

use crate::shell::{Outcome, run_watched, shown};
use std::{fmt, process::Command, time::Duration};

/// A command that prints nothing for this long hangs: the largest ones work for minutes before they
/// print a line.
const QUIET_MAX: Duration = Duration::from_secs(45 * 60);

/// The number of lines of a failed test binary that are repeated at the end of the output. A reader
/// of a long log, or of its end only, needs the names of the tests and their messages.
const REPORT_LINES_MAX: usize = 80;

/// The sum of all `test result:` lines, and what failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// The number of summaries.
    pub(crate) summaries: u64,
    /// A line says why something was skipped.
    pub(crate) is_skipped: bool,
    /// For each test binary with failures: the end of what it printed about them.
    reports: Vec<String>,
    /// The lines since `failures:`.
    failures: Option<Vec<String>>,
}

impl Tally {
    /// The sum of a whole output.
    pub(crate) fn of(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add(line));
        tally
    }

    /// Reads the next line of the output. The counts are in lines such as
    /// `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; …`.
    pub(crate) fn add(&mut self, line: &str) {
        self.is_skipped |= line.starts_with("skipped: ");
        let Some(counts) = line.strip_prefix("test result: ") else {
            match &mut self.failures {
                Some(lines) => lines.push(line.to_owned()),
                None if line == "failures:" => self.failures = Some(Vec::new()),
                None => {}
            }
            return;
        };
        self.summaries += 1;
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

    /// Counts a failure that no test reports, such as a binary that was killed.
    pub(crate) fn fail(&mut self, report: String) {
        self.failed += 1;
        self.reports.push(report);
    }

    /// Adds the sum of another output.
    pub(crate) fn absorb(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.summaries += other.summaries;
        self.is_skipped |= other.is_skipped;
        self.reports.extend(other.reports);
    }

    /// Fails if `command` has run no test: a filter that matches no name proves nothing.
    pub(crate) fn check_some_ran(&self, command: &Command) -> Outcome {
        match self.passed {
            0 => Err(format!("`{}` ran no test", shown(command))),
            _ => Ok(()),
        }
    }

    /// What failed, with messages.
    pub(crate) fn reports(&self) -> &[String] {
        &self.reports
    }
}

/// Runs `command`, which runs tests, and prints its output. Fails if one of them fails, or if none
/// has run.
pub(crate) fn run_tests(command: &mut Command) -> Outcome {
    match run_and_count(command)? {
        tally if tally.failed > 0 => Err(format!("`{}`: {tally}", shown(command))),
        tally => tally.check_some_ran(command),
    }
}

/// Runs `command` and prints its output. Returns the counts of the tests in it, if it runs any.
/// Fails if `command` fails without a failed test.
pub(crate) fn run_and_count(command: &mut Command) -> Outcome<Tally> {
    let mut tally = Tally::default();
    let status = run_watched(command, QUIET_MAX, |line| {
        println!("{line}");
        tally.add(line);
    })?;
    match status.success() || tally.failed > 0 {
        true => Ok(tally),
        false => Err(format!("`{}` failed: {status}", shown(command))),
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
        let mut tally = Tally::of(
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out\n\
             test a::test_result ... ok",
        );
        assert_eq!(tally.to_string(), "5 passed, 0 failed");
        tally.absorb(Tally::of(
            "test result: FAILED. 2 passed; 3 failed; 1 ignored; 0 measured; 0 filtered",
        ));
        assert_eq!((tally.passed, tally.failed, tally.skipped), (7, 3, 1));
        assert_eq!(tally.summaries, 2);
        assert_eq!(tally.to_string(), "7 passed, 3 failed, 1 skipped");
        tally.fail("killed".to_owned());
        assert_eq!(tally.to_string(), "7 passed, 4 failed, 1 skipped");
        assert_eq!(tally.reports(), ["killed"]);
    }

    #[test]
    fn a_command_that_runs_no_test_has_failed() {
        let of = |line: &str| run_tests(Command::new("sh").args(["-c", line]));
        let line = "test result: ok. 2 passed; 0 failed; 0 ignored";
        assert_eq!(of(&format!("echo '{line}'")), Ok(()));
        let none = of("echo 'test result: ok. 0 passed; 0 failed; 9 filtered out'");
        assert!(none.is_err_and(|reason| reason.ends_with("ran no test")));
        assert!(of(&format!("echo '{line}'; exit 101")).is_err());
        assert!(of("echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101").is_err());
    }

    #[test]
    fn the_failures_of_a_binary_are_repeated() {
        let mut tally = Tally::of(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             test one ... FAILED\n\
             failures:\n\
             ---- one stdout ----\n\
             assertion failed\n\
             failures:\n    one\n\
             test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered",
        );
        let report = "failed tests:\n---- one stdout ----\nassertion failed\nfailures:\n    one";
        assert_eq!(tally.reports(), [report]);
        let long: Vec<String> = (0..200).map(|line| line.to_string()).collect();
        tally.add("failures:");
        long.iter().for_each(|line| tally.add(line));
        tally.add("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered");
        assert_eq!(tally.reports()[1].lines().count(), 1 + REPORT_LINES_MAX);
        assert!(tally.reports()[1].ends_with("199"));
    }
}
