//! `gate`: compares the user-space instructions and the system calls per request of scripted traces
//! on the simulator with committed results. Growth of more than 3 % fails.
//!
//! ```text
//! gate              compare with bench/gate/results.toml
//! gate --record     write that file
//! gate --top N      also show the N functions with the most instructions of each trace
//! ```
//!
//! This program replays each trace under callgrind, which counts between the beginning and the end
//! of `trace::serve`. `owner` subtracts the instructions of the simulator. The results do not
//! depend on time, on the machine's load or on its disks. They do depend on the processor, because
//! the C library and the parser use its extensions: the committed results are for AVX2.
//!
//! Modules: `trace` (the scripts) · `callgrind` (parser of the counts) · `owner` (attribution to
//! server or simulator) · `measure` (execution) · `results` (the committed results).

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

/// Number of functions shown for a trace that fails.
const TOP: usize = 10;

/// The task given on the command line.
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
                    top = number.ok_or("--top needs a number")?;
                }
                // This program runs itself under callgrind with this option.
                measure::REPLAY => {
                    let trace = words.next().and_then(|name| Trace::from_name(&name));
                    return trace.map(Task::Replay).ok_or("no such trace".to_owned());
                }
                "-h" | "--help" => return Ok(Task::Help),
                _ => return Err(format!("unknown argument '{word}'; {USAGE}")),
            }
        }
        Ok(Task::Compare { record, top })
    }
}

fn main() -> ExitCode {
    let done = match Task::parse(env::args().skip(1)) {
        Ok(Task::Compare { record, top }) => gate(record, top),
        Ok(Task::Replay(trace)) => trace.replay().map(|calls| println!("{calls}")),
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
        return Err("this is a debug build; the results are for release builds".to_owned());
    }
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("results.toml");
    let said = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
    let made_with = made_with();
    // Read before measuring: if the file is invalid, no measurement is needed.
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
        println!("not compared: the results are for {arch}, this is {here}");
        return Ok(());
    }
    let measured = measure::all()?;
    let instructions = measured
        .iter()
        .map(|one| (one.trace.name().to_owned(), one.server));
    let calls = measured
        .iter()
        .map(|one| (one.trace.name().to_owned(), one.calls));
    let now = Results {
        made_with,
        instructions: instructions.collect(),
        calls: calls.collect(),
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
        "the results differ from the committed ones. If the change is justified, record it with \
         `cargo xtask bench --gate --record` and explain why"
            .to_owned(),
    )
}

/// Prints the functions with the most instructions per request.
fn show_top(measured: &Measured, top: usize) {
    if top == 0 {
        return;
    }
    let (name, server) = (measured.trace.name(), measured.server);
    let simulator = measured.simulator;
    println!(
        "\n{name}: {server:.1} per request, plus {simulator:.1} in the simulator. Of the first:"
    );
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
    fn the_committed_results_are_valid_and_of_these_traces() {
        let results = Results::parse(include_str!("../results.toml")).unwrap();
        let mut names = Trace::ALL.map(Trace::name);
        names.sort();
        assert_eq!(results.instructions.keys().collect::<Vec<_>>(), names);
        assert_eq!(results.calls.keys().collect::<Vec<_>>(), names);
    }
}
