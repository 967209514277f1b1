//! `cargo xtask experiment`: repeats experiments that others began and could not finish, one on
//! denial of service, and one on durable PUTs. This file reads the command line and runs the
//! selected experiments.
//!
//! Modules, lowest first: `client` `scrape` `table` · `run` `chart` · `quota` · `workers` ·
//! `balance` `offload` `metrics` `coroutine` `attack`.

#![forbid(unsafe_code)]

mod attack;
mod balance;
mod chart;
mod client;
mod coroutine;
mod metrics;
mod offload;
mod quota;
mod run;
mod scrape;
mod table;
mod workers;

use clap::Parser;
use run::{Effort, Run, Target};
use std::{path::PathBuf, process::ExitCode};
use xtask::shell::Outcome;

/// Runs the experiments of docs/experiments.md and the attacks of BENCHMARKING.md
#[derive(Debug, Parser)]
#[command(name = "cargo xtask experiment", disable_version_flag = true)]
struct Options {
    /// Experiments to run [default: all]. See --list
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run a little of everything to check that it works. Results go to
    /// target/bench/quick/experiments
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Send as many requests as the original experiments did: 10,000 uploads of 40 MB
    #[arg(long)]
    full: bool,
    /// Run only the cases of `attack` whose "NAME, DRIVER" contains TEXT. If repeated, all texts
    /// must match. Results go to target/bench/part/experiments
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Write the results to DIR [default: bench/results/experiments]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Exit with an error if a target is missed or could not be measured
    #[arg(long)]
    check: bool,
    /// List the experiments
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
        what: "placement of connections on workers, and migration of unequal ones",
        run: balance::experiment,
    },
    Experiment {
        name: "offload",
        what: "CPU-bound work on the worker that accepts, and on a thread pool",
        run: offload::experiment,
    },
    Experiment {
        name: "metrics",
        what: "cost of metrics: by mutex, by atomics, by cells of each worker",
        run: metrics::experiment,
    },
    Experiment {
        name: "coroutine",
        what: "cost of handlers that read and write as if they blocked",
        run: coroutine::experiment,
    },
    Experiment {
        name: "attack",
        what: "response times while thousands of clients exhaust resources",
        run: attack::experiment,
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        // This program is also the load generator for uploads.
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
        return Err("two cores are required: one for servers, one for clients".to_owned());
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
    let precedence = quota::Precedence::new();
    if precedence.is_none() {
        eprintln!("no control groups: other programs have the same priority as the experiments");
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

/// The named experiments, or all, in the order of [`EXPERIMENTS`].
fn chosen(names: &[String]) -> Outcome<Vec<&'static Experiment>> {
    let known = |name: &&String| EXPERIMENTS.iter().any(|known| known.name == name.as_str());
    if let Some(name) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = EXPERIMENTS.iter().map(|known| known.name).collect();
        return Err(format!(
            "no experiment has the name '{name}'; there are {}",
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
    fn all_experiments_run_unless_some_are_named() {
        let names = |all: Vec<&Experiment>| all.iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(chosen(&[]).map(|all| all.len()), Ok(EXPERIMENTS.len()));
        let named = chosen(&["metrics".to_owned()]);
        assert_eq!(named.map(names), Ok(vec!["metrics"]));
        let wrong = chosen(&["x".to_owned()]).map(names);
        assert!(wrong.is_err_and(|error| {
            error.contains("balance, offload, metrics, coroutine, attack")
        }));
    }

    #[test]
    fn options_can_be_combined_and_repeated() {
        let parsed = Options::try_parse_from(["x", "balance", "--quick"]).expect("right");
        assert!(parsed.quick && parsed.names == ["balance"]);
        let parsed =
            Options::try_parse_from(["x", "attack", "--only", "unread", "--only", "epoll"]);
        assert_eq!(parsed.expect("right").only, ["unread", "epoll"]);
        assert!(Options::try_parse_from(["x", "--quick", "--full"]).is_err());
    }
}
