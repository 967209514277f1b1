//! The development tasks of the project, run as `cargo xtask NAME`. This file selects a task; each
//! task has its own module. This crate is not part of the product and depends only on std.

mod bench;
mod binaries;
mod build_cache;
mod ceph;
mod chaos;
mod commands;
mod crates;
mod file_systems;
mod fuzz;
mod http2;
mod nightly;
mod npm;
mod object_server;
mod package;
mod page;
mod power_cuts;
mod python;
mod scale;
mod setup;
mod steps;
mod tally;
mod test;
mod tidy;
mod tls;
mod verify;

use std::process::ExitCode;
use xtask::{go, load, packages, shell};

const HELP: &str = "\
The development tasks of Onrush.

usage: cargo xtask TASK [OPTIONS]

  test [STEP…]        set up the programs that the tests need, then check every property once:
                      format, tidy, documented commands, tests, lints, docs, loom, instructions
                      per request (bench --gate); at most 25 minutes from nothing on two cores;
                      all steps, or the named ones
        --list            print the names of the steps
  nightly [STEP…]     what takes too long for every change: all tests on each driver with each seed,
                      large clients, fuzzing, file systems, power cuts, Ceph, benchmarks; all steps,
                      or the named ones
        --list            print the names of the steps
  setup [--nightly]   install the programs that the tests need (part of test and nightly)
  tidy                check import direction, line length, SAFETY reasons, files that
                      no module names, and other rules that compilers do not check
  fuzz [TARGET…]      fuzz the named targets, or all of them
        --seconds N       time for each target (default: 60)
        --input FILE      run one input only, to reproduce a crash
  bench [PROFILE…]    compare Onrush with other servers and with the minimum cost; see
                      `cargo xtask bench --help`
  experiment [NAME…]  repeat experiments that other projects could not finish; see
                      `cargo xtask experiment --help`
  loom                test shared state under all thread interleavings (part of test)
  ceph up|down|status|kill-osd N|start-osd N|kill-gateway|start-gateway
                      a Ceph cluster on loopback, from Debian's packages (90, 72 MB)
        --dir DIR         its files (default: target/ceph)
        --port N          the port of the gateway of a new cluster (default: 28900); the next 40
                          are used as well
  chaos               read 64 objects a million times while they are replaced and removed
        --reads N         reads per driver (default: 1000000)
  power-cuts [FILE-SYSTEM…]
                      cut the power of a disk under a real file system while clients change objects
                      (as root); see `cargo xtask power-cuts --help`
  scale [FAULT…]      run the tests of remote stores on that cluster, and three servers behind
                      HAProxy while parts of the system fail; all faults, or the named ones
        --list            print the names of the faults
        --seed N          of the random numbers (default: 1)
  tls                 scan HTTPS with testssl.sh and sslyze, and reload certificates under load
        --reloads N       reloads per driver (default: 1000)
  http2               run h2spec and httpwg, two suites for HTTP/2, on both drivers
  cache               fill a build cache of 1 GiB with five times as much, and restart one with a
                      million objects
        --bytes N         the size of the first (default: 1073741824)
        --objects N       of the second (default: 1000000)
  package [deb|tarball]
                      build a Debian package and a static tarball into target/package, install each
                      in a folder, and run what was installed
  page                interrupt uploads of 1 GiB with the page in Chromium
        --mib N           the size of the largest (default: 1024)
  kill                kill processes at random moments of PUTs, and check what they have stored
        --kills N         the number of kills (default: 10000)
  crates              pack each crate and build it from its package, and check all of them with the
                      oldest Rust that they name
  miri                run unsafe code without system calls under Miri; needs a nightly toolchain
";

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let is_help_flag = |a: &String| a == "-h" || a == "--help";
    // Some tasks have their own help.
    let has_own_help =
        |task: &String| ["bench", "experiment", "power-cuts"].contains(&task.as_str());
    let has_own_help = words.first().is_some_and(has_own_help);
    if words.is_empty() || (!has_own_help && words.iter().any(is_help_flag)) {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let task = words.remove(0);
    let done = perform(&task, Arguments::new(words));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(reason)) => {
            eprintln!("xtask: {reason}; see `cargo xtask --help`");
            ExitCode::from(2)
        }
        Err(Failure::Reported) => ExitCode::FAILURE,
        Err(Failure::NotPerformed) => ExitCode::SUCCESS,
        Err(Failure::Because(reason)) => {
            eprintln!("xtask {task}: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Performs a task, or only parses its command line.
fn perform(task: &str, arguments: Arguments) -> Result<(), Failure> {
    match task {
        "test" => test::main(arguments),
        "nightly" => nightly::main(arguments),
        "setup" => setup::main(arguments),
        "tidy" => tidy::main(arguments),
        "fuzz" => fuzz::main(arguments),
        "bench" => bench::main(arguments),
        "experiment" => bench::experiment(arguments),
        "loom" => verify::loom(arguments),
        "kill" => verify::kill(arguments),
        "miri" => verify::miri(arguments),
        "crates" => crates::main(arguments),
        "tls" => tls::main(arguments),
        "http2" => http2::main(arguments),
        "cache" => build_cache::main(arguments),
        "ceph" => ceph::main(arguments),
        "chaos" => chaos::main(arguments),
        "package" => package::main(arguments),
        "page" => page::main(arguments),
        "power-cuts" => power_cuts::main(arguments),
        "scale" => scale::main(arguments),
        other => Err(Failure::Usage(format!("unknown task '{other}'"))),
    }
}

/// Parses a command line without performing it. The options of a program that a task starts are
/// its own.
fn parse(words: &[&str]) -> Result<(), Failure> {
    let Some((task, words)) = words.split_first() else {
        return Ok(());
    };
    let mut arguments = Arguments::new(words);
    arguments.are_only_parsed = true;
    match perform(task, arguments) {
        Err(Failure::NotPerformed) => Ok(()),
        other => other,
    }
}

/// Why a task failed.
#[derive(Debug)]
enum Failure {
    /// The command line is invalid.
    Usage(String),
    /// The reason has been printed.
    Reported,
    /// The command line is valid, and was only parsed.
    NotPerformed,
    /// The task failed for this reason.
    Because(String),
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure::Because(reason)
    }
}

/// The command line after the task's name. Each method removes the arguments that it consumes.
struct Arguments {
    words: Vec<String>,
    /// Whether the task ends when its command line is parsed: with [`Arguments::names`],
    /// [`Arguments::end`] or [`Arguments::rest`], which each task calls last.
    are_only_parsed: bool,
}

impl Arguments {
    fn new(words: impl IntoIterator<Item = impl ToString>) -> Arguments {
        Arguments {
            words: words.into_iter().map(|word| word.to_string()).collect(),
            are_only_parsed: false,
        }
    }

    /// Whether the flag `name` is given.
    fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|a| a != name);
        self.words.len() < before
    }

    /// The value of the option `name`, as `--name VALUE` or `--name=VALUE`.
    fn text(&mut self, name: &str) -> Result<Option<String>, Failure> {
        let assigned = format!("{name}=");
        let Some(at) = self
            .words
            .iter()
            .position(|a| a == name || a.starts_with(&assigned))
        else {
            return Ok(None);
        };
        let word = self.words.remove(at);
        if let Some(value) = word.strip_prefix(&assigned) {
            return Ok(Some(value.to_owned()));
        }
        if at == self.words.len() {
            return Err(Failure::Usage(format!("{name} needs a value")));
        }
        Ok(Some(self.words.remove(at)))
    }

    /// The value of the option `name` as a number of at least 1.
    fn number(&mut self, name: &str, default: u64) -> Result<u64, Failure> {
        let Some(text) = self.text(name)? else {
            return Ok(default);
        };
        let number = text.parse().ok().filter(|&number| number > 0);
        number.ok_or_else(|| Failure::Usage(format!("{name} needs a number, not '{text}'")))
    }

    /// The remaining arguments, each of which must be one of `known`.
    fn names(self, known: &[impl AsRef<str>]) -> Result<Vec<String>, Failure> {
        let is_known = |word: &String| known.iter().any(|name| name.as_ref() == word);
        match self.words.iter().find(|word| !is_known(word)) {
            Some(option) if option.starts_with('-') => {
                Err(Failure::Usage(format!("unknown option '{option}'")))
            }
            Some(word) => {
                let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
                let known = known.join("', '");
                Err(Failure::Usage(format!("'{word}' is not one of '{known}'")))
            }
            None => self.rest(),
        }
    }

    /// The names among the remaining arguments, each of which must be one of `known`. `None`:
    /// `--list` is given, and these were printed.
    fn wanted(mut self, known: &[&str]) -> Result<Option<Wanted>, Failure> {
        if self.flag("--list") {
            self.end()?;
            shell::list(known);
            return Ok(None);
        }
        Ok(Some(Wanted(self.names(known)?)))
    }

    /// Fails if any argument remains.
    fn end(self) -> Result<(), Failure> {
        match self.words.first() {
            Some(word) if word.starts_with('-') => {
                Err(Failure::Usage(format!("unknown option '{word}'")))
            }
            Some(word) => Err(Failure::Usage(format!("unexpected argument '{word}'"))),
            None => self.rest().map(drop),
        }
    }

    /// The remaining arguments as they are, for another program.
    fn rest(self) -> Result<Vec<String>, Failure> {
        match self.are_only_parsed {
            true => Err(Failure::NotPerformed),
            false => Ok(self.words),
        }
    }
}

/// The parts of a task that a command line names. All, if it names none.
struct Wanted(Vec<String>);

impl Wanted {
    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|wanted| wanted == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments::new(line.split_whitespace())
    }

    #[test]
    fn a_command_line_is_parsed_without_being_performed() {
        assert!(parse(&["test"]).is_ok());
        assert!(parse(&["fuzz", "head", "--seconds", "5"]).is_ok());
        assert!(parse(&["bench", "put", "--peers", "nginx"]).is_ok());
        for wrong in [
            &["nothing"][..],
            &["test", "--fast"],
            &["fuzz", "--seconds", "0"],
            &["fuzz", "nothing"],
            &["test", "nothing"],
            &["nightly", "nothing"],
            &["package", "nothing"],
            &["scale", "nothing"],
            &["ceph", "nothing"],
        ] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn options_may_be_in_any_position() {
        let mut given = arguments("head --seconds 5 chunked --report-only --driver=epoll");
        assert_eq!(given.number("--seconds", 60).unwrap(), 5);
        assert_eq!(given.text("--driver").unwrap().as_deref(), Some("epoll"));
        assert!(given.flag("--report-only"));
        assert!(!given.flag("--report-only"));
        assert_eq!(given.number("--rounds", 7).unwrap(), 7);
        assert_eq!(
            given.names(&["head", "chunked"]).unwrap(),
            ["head", "chunked"]
        );
    }

    #[test]
    fn all_parts_are_wanted_if_none_is_named() {
        let wanted = |line| arguments(line).wanted(&["deb", "tarball"]);
        let all = wanted("").unwrap().unwrap();
        assert!(all.has("deb") && all.has("tarball"));
        let one = wanted("tarball").unwrap().unwrap();
        assert!(!one.has("deb") && one.has("tarball"));
        assert!(wanted("--list").unwrap().is_none());
        assert!(wanted("rpm").is_err() && wanted("--list deb").is_err());
    }

    #[test]
    fn invalid_options_are_rejected() {
        assert!(arguments("--seconds").number("--seconds", 60).is_err());
        assert!(arguments("--seconds x").number("--seconds", 60).is_err());
        assert!(arguments("--seconds 0").number("--seconds", 60).is_err());
        assert!(arguments("--fast").names(&["fast"]).is_err());
        assert!(arguments("extra").names(&["other"]).is_err());
        assert!(arguments("extra").end().is_err());
        assert!(arguments("").end().is_ok());
    }
}
