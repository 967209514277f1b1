//! `gate`: instructions in user space per request of scripted traces on the simulator, compared
//! with figures that are committed. More than 3 % of growth fails.
//!
//! ```text
//! gate              compare with bench/gate/results.toml
//! gate --record     write that file anew
//! gate --top N      show the N functions with the most instructions of each trace, too
//! ```
//!
//! Each trace is replayed by this program under callgrind, which counts between the beginning and
//! the end of `trace::serve`; what the simulator did for it is taken out (`owner`). Nothing here
//! depends on time, on the machine's load or on its disks; but the C library and the parser use
//! what the processor has, so that the figures are those of one with AVX2.
//!
//! Modules: `trace` (what is replayed) · `callgrind` (what was counted) · `owner` (whose it is) ·
//! `measure` (running it) · `results` (what is committed). This file must not know how any of them
//! does its work.

mod callgrind;
mod measure;
mod owner;
mod results;
mod trace;

use measure::Measured;
use results::{MadeWith, Results};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs};
use trace::Trace;

const USAGE: &str = "usage: gate [--record] [--top N]";

/// Functions shown of a trace that fails.
const TOP: usize = 10;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Compare { record: bool, top: usize },
    Replay(Trace),
    Help,
}

impl Task {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Task, String> {
        let (mut record, mut top) = (false, 0);
        while let Some(word) = words.next() {
            match &word[..] {
                "--record" => record = true,
                "--top" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    top = number.ok_or("--top wants a number")?;
                }
                // How this program runs itself under callgrind.
                measure::REPLAY => {
                    let trace = words.next().and_then(|name| Trace::from_name(&name));
                    return trace.map(Task::Replay).ok_or("no such trace".to_owned());
                }
                "-h" | "--help" => return Ok(Task::Help),
                _ => return Err(format!("'{word}' is not understood; {USAGE}")),
            }
        }
        Ok(Task::Compare { record, top })
    }
}

fn main() -> ExitCode {
    let done = match Task::parse(env::args().skip(1)) {
        Ok(Task::Compare { record, top }) => gate(record, top),
        Ok(Task::Replay(trace)) => trace.replay(),
        Ok(Task::Help) => {
            println!("{USAGE}");
            Ok(())
        }
        Err(reason) => {
            eprintln!("gate: {reason}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("gate: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn gate(record: bool, top: usize) -> Result<(), String> {
    if cfg!(debug_assertions) {
        return Err("the figures are of release builds; this is none".to_owned());
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("figures.toml");
    let said = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
    let made_with = made_with();
    // Read first: what cannot be compared need not be measured.
    let recorded = match record {
        true => None,
        false => {
            let text = fs::read_to_string(&file).map_err(|error| said(&error))?;
            Some(Results::parse(&text).map_err(|error| said(&error))?)
        }
    };
    if let Some(recorded) = &recorded
        && recorded.made_with.arch != made_with.arch
    {
        let (arch, here) = (&recorded.made_with.arch, &made_with.arch);
        println!("not compared: the figures are of {arch}, this is {here}");
        return Ok(());
    }
    let measured = measure::all()?;
    let instructions = measured
        .iter()
        .map(|one| (one.trace.name().to_owned(), one.server));
    let now = Results {
        made_with,
        instructions: instructions.collect(),
    };
    measured.iter().for_each(|one| show_top(one, top));
    let Some(recorded) = recorded else {
        fs::write(&file, now.text()).map_err(|error| said(&error))?;
        print!("{}", now.text());
        return Ok(());
    };
    let comparison = recorded.compare(&now);
    print!("{comparison}");
    if !comparison.fails() {
        return Ok(());
    }
    for row in comparison.rows.iter().filter(|row| row.fails()) {
        let one = measured.iter().find(|one| one.trace.name() == row.name);
        one.into_iter().for_each(|one| show_top(one, TOP));
    }
    Err(
        "these are not the figures that are committed. If the change is worth it, record it with \
         `cargo xtask bench --gate --record` and say why"
            .to_owned(),
    )
}

/// Prints the functions that a request spends most in.
fn show_top(measured: &Measured, top: usize) {
    if top == 0 {
        return;
    }
    let (name, server) = (measured.trace.name(), measured.server);
    let simulator = measured.simulator;
    println!("\n{name}: {server:.1} a request, beside {simulator:.1} of the simulator's; of these");
    for (function, cost) in measured.functions.iter().take(top) {
        println!("{cost:10.1} {:5.1} %  {function}", cost / server * 100.0);
    }
    println!();
}

fn made_with() -> MadeWith {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let libc = output.ok().filter(|output| output.status.success());
    let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    MadeWith {
        rustc: env!("GATE_RUSTC").to_owned(),
        libc: libc.unwrap_or_else(|| "unknown".to_owned()),
        arch: env::consts::ARCH.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        Task::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_command_line_is_understood() {
        let compare = |record, top| Ok(Task::Compare { record, top });
        assert_eq!(parse(""), compare(false, 0));
        assert_eq!(parse("--record --top 25"), compare(true, 25));
        assert_eq!(parse("--replay get"), Ok(Task::Replay(Trace::Get)));
        assert_eq!(parse("--help"), Ok(Task::Help));
        for wrong in [
            "hello",
            "--top",
            "--top x",
            "--replay",
            "--replay x",
            "--recor",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_committed_figures_can_be_read_and_are_of_these_traces() {
        let results = Results::parse(include_str!("../figures.toml")).unwrap();
        let mut names = Trace::ALL.map(Trace::name);
        names.sort();
        assert_eq!(results.instructions.keys().collect::<Vec<_>>(), names);
    }
}
