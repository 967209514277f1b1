//! `cargo xtask experiment`: experiments that others ran and could not finish, repeated. This file
//! goes through them; it must not know what any of them does.
//!
//! Modules, lowest first: `table` · `run` `chart` · `quota` · `workers` · `balance` `offload`
//! `metrics` `coroutine` `attack`.

#![forbid(unsafe_code)]

mod attack;
mod balance;
mod chart;
mod coroutine;
mod metrics;
mod offload;
mod quota;
mod run;
mod table;
mod workers;

use clap::Parser;
use run::{Effort, Run, Target};
use std::{path::PathBuf, process::ExitCode};
use xtask::shell::Outcome;

/// Repeats experiments that others ran and could not finish; docs/experiments.md tells of them.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask experiment", disable_version_flag = true)]
struct Options {
    /// Which; all, if none is named. See --list
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Little of everything, to see that it works; goes to target/bench/quick/experiments
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// As many requests as there were originally: 10,000 uploads of 40 MB
    #[arg(long)]
    full: bool,
    /// Of `attack`, run only the cases whose "NAME, DRIVER" contains TEXT; of several, all of them.
    /// Results go to target/bench/part/experiments
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Where results go [default: bench/results/experiments]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Fail when something that was to be reached is missed, or could not be measured
    #[arg(long)]
    check: bool,
    /// Say which experiments there are
    #[arg(long)]
    list: bool,
}

struct Experiment {
    name: &'static str,
    what: &'static str,
    run: fn(&Run) -> Outcome<Vec<Target>>,
}

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "balance",
        what: "connections placed evenly, and handed over when they turn out uneven",
        run: balance::experiment,
    },
    Experiment {
        name: "offload",
        what: "CPU-bound work by the worker that accepts, and off the path of requests",
        run: offload::experiment,
    },
    Experiment {
        name: "metrics",
        what: "what it costs to count: by mutex, by atomics, by cells of each worker",
        run: metrics::experiment,
    },
    Experiment {
        name: "coroutine",
        what: "handlers that read and write as if they blocked",
        run: coroutine::experiment,
    },
    Experiment {
        name: "attack",
        what: "how long others wait while thousands of clients take what they can",
        run: attack::experiment,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        // The load by uploads is this program as well.
        Some(runner::uploads::SUBCOMMAND) => {
            runner::uploads::main(&arguments[1..]).map(|()| ExitCode::SUCCESS)
        }
        _ => main_with(&Options::parse()),
    };
    done.unwrap_or_else(|reason| {
        runner::clear();
        eprintln!("experiment: {reason}");
        ExitCode::FAILURE
    })
}

fn main_with(options: &Options) -> Outcome<ExitCode> {
    if options.list {
        for experiment in EXPERIMENTS {
            println!("{:10} {}", experiment.name, experiment.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(&options.names)?;
    if std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        return Err("two cores are needed: one for servers, one for their clients".to_owned());
    }
    let effort = match (options.quick, options.full) {
        (true, _) => Effort::Quick,
        (_, true) => Effort::Full,
        _ => Effort::Usual,
    };
    let out = match (&options.out, effort) {
        (Some(out), _) => out.clone(),
        (None, _) if !options.only.is_empty() => {
            xtask::shell::target().join("bench/part/experiments")
        }
        (None, Effort::Quick) => xtask::shell::target().join("bench/quick/experiments"),
        (None, _) => xtask::shell::root().join("bench/results/experiments"),
    };
    runner::raise_descriptors()?;
    let line = if options.full { "--full" } else { "" };
    let mut run = Run::new(effort, out, line.to_owned(), runner::interrupts()?)?;
    run.only.clone_from(&options.only);
    let first = quota::First::new();
    if first.is_none() {
        eprintln!("other programs get as much of the cores as these: no control groups here");
    }
    let mut targets = Vec::new();
    for experiment in chosen {
        let found = (experiment.run)(&run)?;
        run.note(experiment.name)?;
        runner::clear();
        for target in &found {
            println!("{}: {}", experiment.name, target.shown());
        }
        targets.extend(found);
    }
    let failed = options.check && targets.iter().any(|target| target.holds != Some(true));
    Ok(ExitCode::from(u8::from(failed)))
}

/// Those named, in their own order.
fn chosen(names: &[String]) -> Outcome<Vec<&'static Experiment>> {
    let known = |name: &&String| EXPERIMENTS.iter().any(|known| known.name == name.as_str());
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = EXPERIMENTS.iter().map(|known| known.name).collect();
        return Err(format!(
            "no experiment is named '{name}', but {}",
            all.join(", ")
        ));
    }
    let named = |experiment: &&Experiment| {
        names.is_empty() || names.iter().any(|name| name == experiment.name)
    };
    Ok(EXPERIMENTS.iter().filter(named).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_run_unless_some_are_named() {
        let names = |all: Vec<&Experiment>| all.iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(chosen(&[]).map(|all| all.len()), Ok(EXPERIMENTS.len()));
        let named = chosen(&["metrics".to_owned()]);
        assert_eq!(named.map(names), Ok(vec!["metrics"]));
        let wrong = chosen(&["x".to_owned()]).map(names);
        assert!(
            wrong
                .is_err_and(|error| error.contains("balance, offload, metrics, coroutine, attack"))
        );
    }

    #[test]
    fn the_command_line_is_understood() {
        let parsed = Options::try_parse_from(["x", "balance", "--quick"]).expect("right");
        assert!(parsed.quick && parsed.names == ["balance"]);
        let parsed =
            Options::try_parse_from(["x", "attack", "--only", "unread", "--only", "epoll"]);
        assert_eq!(parsed.expect("right").only, ["unread", "epoll"]);
        assert!(Options::try_parse_from(["x", "--quick", "--full"]).is_err());
    }
}
