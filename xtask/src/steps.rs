//! Runs the steps of a test run one after the other, some of them beside another. The end of the
//! output repeats what failed; its last line is the sum of the test runner's summaries.

use crate::{
    Failure,
    shell::{Outcome, capture, elapsed, flush},
    tally::Tally,
};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// The steps that have run.
pub(crate) struct Steps {
    started: Instant,
    /// The names of the steps with their times, in the order in which they ended.
    ended: Vec<(&'static str, Duration)>,
    failed: Vec<&'static str>,
    tally: Tally,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        Steps {
            started: Instant::now(),
            ended: Vec::new(),
            failed: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Runs a step that prints what it does. Returns whether it succeeded.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Outcome) -> bool {
        self.test(name, || step().map(|()| Tally::default()));
        self.failed.last() != Some(&name)
    }

    /// Runs a step that returns counts of tests.
    pub(crate) fn test(&mut self, name: &'static str, step: impl FnOnce() -> Outcome<Tally>) {
        println!("\n== {name}");
        flush();
        let started = Instant::now();
        let outcome = step();
        self.count(name, started.elapsed(), outcome);
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
        self.failed.last() != Some(&step.name)
    }

    fn count(&mut self, name: &'static str, time: Duration, outcome: Outcome<Tally>) {
        match outcome {
            Ok(tally) => {
                let outcome = match tally.failed {
                    0 => Ok(()),
                    failed => Err(format!("{failed} tests failed")),
                };
                self.tally.absorb(tally);
                self.end(name, time, outcome);
            }
            Err(reason) => self.fail(name, time, reason),
        }
    }

    /// Ends a step that failed without a test. It counts as a failed test, so the last line of the
    /// output alone shows every failure.
    fn fail(&mut self, name: &'static str, time: Duration, reason: String) {
        self.tally.failed += 1;
        self.end(name, time, Err(reason));
    }

    fn end(&mut self, name: &'static str, time: Duration, outcome: Outcome) {
        let shown = elapsed(time);
        match outcome {
            Ok(()) => println!("== {name}: ok, {shown}"),
            Err(reason) => {
                println!("{reason}\n== {name}: FAILED, {shown}");
                self.failed.push(name);
            }
        }
        flush();
        self.ended.push((name, time));
    }

    /// Prints the results.
    pub(crate) fn close(self) -> Result<(), Failure> {
        println!();
        for (name, time) in &self.ended {
            println!("{name:18} {}", elapsed(*time));
        }
        println!("{:18} {}", "all steps", elapsed(self.started.elapsed()));
        for report in self.tally.reports() {
            println!("\n{report}");
        }
        if !self.failed.is_empty() {
            println!("steps that failed: {}", self.failed.join(", "));
        }
        println!("\n{}", self.tally);
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
    /// Runs commands one after the other with the lowest priority, up to the first that fails.
    pub(crate) fn run(name: &'static str, commands: Vec<Command>) -> Quiet {
        let started = Instant::now();
        let mut output = String::new();
        let mut outcome = Ok(());
        for command in commands {
            let done = capture(&mut niced(&command));
            outcome = match done {
                Ok((is_ok, text)) => {
                    output.push_str(&text);
                    let failed = || format!("`{}` failed", crate::shell::shown(&command));
                    is_ok.then_some(()).ok_or_else(failed)
                }
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

/// `command` with the lowest priority, by nice(1).
fn niced(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program());
    nice.args(command.get_args());
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
        steps.run("tidy", || Err("a reason".to_owned()));
        assert_eq!(steps.tally.to_string(), "0 passed, 1 failed");
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
    }
}
