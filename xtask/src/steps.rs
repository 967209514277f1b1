//! Runs the steps of a test run one after the other, some of them beside another. The end of the
//! output repeats what failed; its last line is the sum of the test runner's summaries.

use crate::{
    Failure,
    shell::{Outcome, elapsed, flush, run_watched, shown},
    tally::Tally,
};
use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// A command that runs beside others and prints nothing for this long hangs: optimised builds take
/// minutes, and longer beside others.
const QUIET_MAX: Duration = Duration::from_secs(20 * 60);

/// The steps that have run.
pub(crate) struct Steps {
    started: Instant,
    /// The names of the steps with their times, in the order in which they ended.
    ended: Vec<(&'static str, Duration)>,
    failed: Vec<&'static str>,
    skipped: Vec<&'static str>,
    tally: Tally,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        Steps {
            started: Instant::now(),
            ended: Vec::new(),
            failed: Vec::new(),
            skipped: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Runs a step that prints what it does. Returns whether it succeeded.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Outcome) -> bool {
        self.test(name, || step().map(|()| Tally::default()))
    }

    /// Runs a step that returns counts of tests. Returns whether it succeeded.
    pub(crate) fn test(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Outcome<Tally>,
    ) -> bool {
        println!("\n== {name}");
        flush();
        let started = Instant::now();
        let outcome = step();
        self.count(name, started.elapsed(), outcome)
    }

    /// Prints a step that ran beside another. Returns whether it succeeded.
    pub(crate) fn report(&mut self, step: Quiet) -> bool {
        println!("\n== {}\n{}", step.name, step.output.trim_end());
        let tally = Tally::of(&step.output);
        match step.outcome {
            Ok(()) => self.count(step.name, step.time, Ok(tally)),
            Err(reason) if tally.failed == 0 => self.count(step.name, step.time, Err(reason)),
            Err(_) => self.count(step.name, step.time, Ok(tally)),
        }
    }

    /// Ends a step. One that failed without a test counts as a failed test, so the last line of the
    /// output alone shows every failure.
    fn count(&mut self, name: &'static str, time: Duration, outcome: Outcome<Tally>) -> bool {
        let outcome = outcome.map_err(|reason| (reason, 1)).and_then(|tally| {
            let failed = tally.failed;
            let is_skipped = tally.is_skipped && tally.summaries == 0;
            self.tally.absorb(tally);
            match failed {
                0 => Ok(is_skipped),
                failed => Err((format!("{failed} tests failed"), 0)),
            }
        });
        let shown = elapsed(time);
        match &outcome {
            Ok(false) => println!("== {name}: ok, {shown}"),
            Ok(true) => {
                println!("== {name}: skipped, {shown}");
                self.skipped.push(name);
            }
            Err((reason, uncounted)) => {
                println!("{reason}\n== {name}: FAILED, {shown}");
                self.failed.push(name);
                self.tally.failed += uncounted;
            }
        }
        flush();
        self.ended.push((name, time));
        outcome.is_ok()
    }

    /// One line that says which steps did not do what they should, and how long all took.
    fn summary(&self) -> String {
        let all = self.ended.len();
        let ok = all - self.failed.len() - self.skipped.len();
        let time = elapsed(self.started.elapsed());
        let mut line = format!("{ok} of {all} steps ok, {time}");
        for (what, names) in [("failed", &self.failed), ("skipped", &self.skipped)] {
            if !names.is_empty() {
                line.push_str(&format!("; {what}: {}", names.join(", ")));
            }
        }
        line
    }

    /// Prints the results.
    pub(crate) fn close(self) -> Result<(), Failure> {
        println!();
        for (name, time) in &self.ended {
            println!("{name:18} {}", elapsed(*time));
        }
        for report in self.tally.reports() {
            println!("\n{report}");
        }
        println!("\n{}\n{}", self.summary(), self.tally);
        flush();
        match self.failed.is_empty() {
            true => Ok(()),
            false => Err(Failure::Reported),
        }
    }
}

/// A step that ran beside another: its output is printed when it has ended.
pub(crate) struct Quiet {
    name: &'static str,
    output: String,
    outcome: Outcome,
    time: Duration,
}

impl Quiet {
    /// Runs commands one after the other with a lower priority, up to the first that fails.
    pub(crate) fn run(name: &'static str, commands: Vec<Command>) -> Quiet {
        let started = Instant::now();
        let mut output = String::new();
        let mut outcome = Ok(());
        for command in commands {
            let before = output.len();
            let status = run_watched(&mut niced(&command), QUIET_MAX, |line| {
                output.push_str(line);
                output.push('\n');
            });
            let runs_tests = command.get_args().next().is_some_and(|word| word == "test");
            outcome = match status {
                Ok(status) if !status.success() => Err(format!("`{}` failed", shown(&command))),
                Ok(_) if runs_tests => Tally::of(&output[before..]).check_some_ran(&command),
                Ok(_) => Ok(()),
                Err(reason) => Err(reason),
            };
            if outcome.is_err() {
                break;
            }
        }
        Quiet {
            name,
            output,
            outcome,
            time: started.elapsed(),
        }
    }
}

/// The priority of what runs beside the tests, by nice(1). They come first, but on a machine that
/// other programs keep busy, the lowest priority would stop it.
const NICE: &str = "5";

/// `command` with a lower priority, and with one stream for its output and errors.
fn niced(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", NICE, "sh", "-c", "exec \"$0\" \"$@\" 2>&1"]);
    nice.arg(command.get_program()).args(command.get_args());
    nice.stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_never_a_success() {
        assert!(Steps::new().close().is_ok());
        let mut steps = Steps::new();
        assert!(!steps.run("tidy", || Err("a reason".to_owned())));
        assert!(steps.run("fmt", || Ok(())));
        assert!(steps.test("miri", || Ok(Tally::of("skipped: a reason"))));
        assert_eq!(steps.tally.to_string(), "0 passed, 1 failed");
        let line = "1 of 3 steps ok, 0.0 s; failed: tidy; skipped: miri";
        assert_eq!(steps.summary(), line);
        assert!(steps.close().is_err());
    }

    #[test]
    fn failed_tests_are_counted_once() {
        let text = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered";
        let mut steps = Steps::new();
        steps.test("test", || Ok(Tally::of(text)));
        assert_eq!(steps.tally.to_string(), "3 passed, 2 failed");
        assert!(steps.close().is_err());
    }

    #[test]
    fn a_quiet_step_fails_with_its_first_command() {
        let command = |program| Command::new(program);
        let step = Quiet::run(
            "x",
            vec![command("true"), command("false"), command("true")],
        );
        assert_eq!(step.outcome, Err("`false` failed".to_owned()));
        let mut steps = Steps::new();
        steps.report(step);
        assert_eq!(steps.tally.to_string(), "0 passed, 1 failed");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo test result: ok. $COUNT passed; 0 failed; nice"]);
        shell.env("COUNT", "4");
        steps.report(Quiet::run("y", vec![shell]));
        assert_eq!(steps.tally.to_string(), "4 passed, 1 failed");
        let mut nothing = command("echo");
        nothing.arg("test");
        let step = Quiet::run("z", vec![nothing]);
        assert_eq!(step.outcome, Err("`echo test` ran no test".to_owned()));
    }
}
