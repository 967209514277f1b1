//! The command line. Must not know what is done with it.

use crate::{
    bench::Effort,
    peers::{Driver, Kind, Peer, Setup},
    plan::Field,
    profiles::{PROFILES, Profile},
};
use clap::{Parser, ValueEnum};
use std::{fmt::Write, path::PathBuf};
use xtask::shell::Outcome;

/// Those of a quick run: quickly had, and of every kind.
const QUICK_PEERS: [&str; 3] = ["hyper", "nginx", "h2o"];

/// Of a quick run, unless told otherwise.
const QUICK_ROUNDS: u32 = 5;

/// Measures Onrush beside its peers and beside the least it could cost: CPU per request, of two
/// servers loaded at the same moment on the same core, as a ratio.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", disable_version_flag = true)]
pub(crate) struct Options {
    /// What is measured; all, if none is named. See --list
    #[arg(value_name = "PROFILE")]
    profiles: Vec<String>,
    /// Whom Onrush is compared with: names, all, or none but the limits [default: all; with --quick
    /// only some]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<String>,
    /// The drivers of ours that are measured
    #[arg(long, default_value = "both")]
    driver: Drivers,
    /// The drivers of ours that peers are compared with [default: io_uring, if it is measured]
    #[arg(long, value_name = "DRIVER")]
    peers_on: Option<Drivers>,
    /// Some of everything, within ten minutes; goes to target/bench/quick
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// One round of one row of each profile, to see that it works: what the tests run. Nothing is
    /// installed; it fails when a row cannot be measured; goes to target/bench/short
    #[arg(long, conflicts_with_all = ["quick", "full", "rounds", "install_only", "perf"])]
    pub(crate) short: bool,
    /// What takes long as well: 10,000 uploads of 40 MB
    #[arg(long)]
    full: bool,
    /// Rounds of a row [default: 15; with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Length of a round at least; loads take whole seconds, parts of one are rounded up
    #[arg(long, value_name = "S", default_value = "1.0", value_parser = seconds)]
    seconds: u64,
    /// Where results go [default: bench/results]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The target folder of another checkout, built by its `cargo xtask bench --install-only`; for
    /// `mixed`, which then also compares the throughput of both builds of ours
    #[arg(long, value_name = "DIR")]
    pub(crate) before: Option<PathBuf>,
    /// Fail when something that is promised is missed, or could not be measured
    #[arg(long)]
    pub(crate) check: bool,
    /// Say which profiles and servers there are, and what each is told to do and leaves out
    #[arg(long)]
    pub(crate) list: bool,
    /// Build and install what takes part, and measure nothing
    #[arg(long, conflicts_with = "no_install")]
    pub(crate) install_only: bool,
    /// Take what is there
    #[arg(long)]
    pub(crate) no_install: bool,
    /// Say where the CPU goes instead, by perf, of each pair whose title holds this (such as "512
    /// connections: mio"); goes to bench/results/perf
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["quick", "full", "rounds", "check"])]
    pub(crate) perf: Option<String>,
    /// Count instructions on the simulator instead, and compare them with what was committed; takes
    /// all arguments after it
    #[arg(long, num_args = 0.., allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub(crate) gate: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Drivers {
    Epoll,
    #[value(name = "io_uring")]
    Uring,
    Both,
}

impl Drivers {
    fn each(self) -> Vec<Driver> {
        match self {
            Drivers::Epoll => vec![Driver::Epoll],
            Drivers::Uring => vec![Driver::Uring],
            Drivers::Both => vec![Driver::Epoll, Driver::Uring],
        }
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match seconds > 0.0 && seconds <= 3600.0 {
        true => Ok(seconds.ceil() as u64),
        false => Err("more than 0 and up to 3600".to_owned()),
    }
}

impl Options {
    /// Those named, in the order they are measured.
    pub(crate) fn profiles(&self) -> Outcome<Vec<&'static Profile>> {
        let known = |name: &&String| PROFILES.iter().any(|profile| profile.name == name.as_str());
        if let Some(name) = self.profiles.iter().find(|name| !known(name)) {
            let all: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
            return Err(format!(
                "no profile is named '{name}', but {}",
                all.join(", ")
            ));
        }
        let named = |profile: &&Profile| {
            self.profiles.is_empty() || self.profiles.iter().any(|name| name == profile.name)
        };
        Ok(PROFILES.iter().filter(named).collect())
    }

    /// Who of `all` takes part.
    pub(crate) fn field(&self, all: Vec<&'static Peer>) -> Outcome<Field> {
        let peers = || all.iter().filter(|peer| peer.kind == Kind::Peer);
        let named: Vec<&str> = self.peers.iter().map(String::as_str).collect();
        let chosen: Vec<&'static str> = match named.as_slice() {
            [] if self.short => Vec::new(),
            [] if self.quick => {
                let is_quick = |peer: &&&Peer| QUICK_PEERS.contains(&peer.name);
                peers().filter(is_quick).map(|peer| peer.name).collect()
            }
            [] | ["all"] => peers().map(|peer| peer.name).collect(),
            ["none"] => Vec::new(),
            names => {
                let unknown = |name: &&&str| !peers().any(|peer| peer.name == **name);
                if let Some(name) = names.iter().find(unknown) {
                    let all: Vec<&str> = peers().map(|peer| peer.name).collect();
                    return Err(format!("no peer is named '{name}', but {}", all.join(", ")));
                }
                let is_named = |peer: &&&Peer| names.contains(&peer.name);
                peers().filter(is_named).map(|peer| peer.name).collect()
            }
        };
        let drivers = self.driver.each();
        let beside = match (self.peers_on, self.driver) {
            (Some(on), driver) if driver == Drivers::Both || driver == on => on.each(),
            (Some(_), _) => return Err("--peers-on wants a driver that is measured".to_owned()),
            (None, Drivers::Epoll) => vec![Driver::Epoll],
            (None, _) => vec![Driver::Uring],
        };
        Ok(Field {
            all,
            drivers,
            beside,
            chosen,
        })
    }

    pub(crate) fn effort(&self) -> Effort {
        let rounds = match (self.short, self.quick) {
            (true, _) => 1,
            (_, true) => QUICK_ROUNDS,
            _ => 15,
        };
        Effort {
            rounds: self.rounds.unwrap_or(rounds),
            seconds: self.seconds,
            quick: self.quick || self.short,
            full: self.full,
        }
    }

    /// The one of ours that charts are relative to.
    pub(crate) fn base(&self) -> &'static str {
        match self.peers_on.unwrap_or(self.driver) {
            Drivers::Epoll => "onrush-epoll",
            Drivers::Uring | Drivers::Both => "onrush-io_uring",
        }
    }

    /// Where results go. Quick ones do not replace those that are committed.
    pub(crate) fn out(&self, setup: &Setup) -> PathBuf {
        match &self.out {
            Some(out) => out.clone(),
            None if self.short => setup.target.join("bench/short"),
            None if self.quick => setup.target.join("bench/quick"),
            None => setup.root.join("bench/results"),
        }
    }
}

/// The command line less its paths: results say how they were made, and not on which machine.
pub(crate) fn without_out(arguments: &[String]) -> Vec<&str> {
    let mut rest = arguments.iter();
    let mut kept = Vec::new();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--out" | "--before" => drop(rest.next()),
            path if path.starts_with("--out=") || path.starts_with("--before=") => {}
            other => kept.push(other),
        }
    }
    kept
}

/// The name of the file about one pair.
pub(crate) fn file_name(profile: &str, title: &str) -> String {
    let words = title.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words: Vec<&str> = std::iter::once(profile)
        .chain(words.filter(|word| !word.is_empty()))
        .collect();
    words.join("-") + ".txt"
}

/// What there is to choose from.
pub(crate) fn listing(all: &[&Peer]) -> String {
    let mut text = "profiles\n".to_owned();
    for profile in PROFILES {
        let _ = writeln!(text, "  {:10} {}", profile.name, profile.what);
    }
    let kinds = [
        (Kind::Limit, "limits"),
        (Kind::Onrush, "ours"),
        (Kind::Peer, "peers"),
    ];
    for (kind, title) in kinds {
        let _ = writeln!(text, "\n{title}");
        for peer in all.iter().filter(|peer| peer.kind == kind) {
            let _ = writeln!(text, "  {:20} {:?}", peer.name, peer.roles);
            let _ = writeln!(text, "  {:20} told: {}", "", peer.told);
            if !peer.skips.is_empty() {
                let _ = writeln!(text, "  {:20} leaves out: {}", "", peer.skips.join("; "));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    fn options(line: &str) -> Options {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Options::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn refused(line: &str) -> bool {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Options::try_parse_from(words).is_err()
    }

    #[test]
    fn without_arguments_everything_is_measured_15_times() {
        let options = options("");
        assert_eq!(options.profiles().unwrap().len(), PROFILES.len());
        let effort = options.effort();
        assert_eq!((effort.rounds, effort.seconds), (15, 1));
        let field = options.field(peers::all()).unwrap();
        assert_eq!(field.drivers.len(), 2);
        assert_eq!(field.beside, [Driver::Uring]);
        assert_eq!(options.base(), "onrush-io_uring");
    }

    #[test]
    fn choices_are_taken_and_nonsense_refused() {
        let chosen = options("get plaintext --peers none --driver epoll --rounds 3 --seconds 0.5");
        let names: Vec<&str> = chosen.profiles().unwrap().iter().map(|p| p.name).collect();
        assert_eq!(names, ["plaintext", "get"]);
        let field = chosen.field(peers::all()).unwrap();
        assert_eq!(
            (field.chosen.len(), field.drivers),
            (0, vec![Driver::Epoll])
        );
        assert_eq!((chosen.effort().rounds, chosen.effort().seconds), (3, 1));
        assert_eq!(chosen.base(), "onrush-epoll");

        assert!(options("no-such-profile").profiles().is_err());
        assert!(options("--peers no-such-peer").field(peers::all()).is_err());
        let wrong = "--driver epoll --peers-on io_uring";
        assert!(options(wrong).field(peers::all()).is_err());
        for line in [
            "--rounds 0",
            "--seconds 0",
            "--driver kqueue",
            "--quick --full",
        ] {
            assert!(refused(line), "{line}");
        }
    }

    #[test]
    fn quick_results_go_elsewhere() {
        let setup = Setup {
            root: "root".into(),
            target: "target".into(),
            profile: "release",
        };
        assert_eq!(options("").out(&setup), PathBuf::from("root/bench/results"));
        assert_eq!(
            options("--quick").out(&setup),
            PathBuf::from("target/bench/quick")
        );
        assert_eq!(options("--quick --out x").out(&setup), PathBuf::from("x"));
        assert_eq!(options("--quick --rounds 2").effort().rounds, 2);
        let short = options("--short");
        assert_eq!(short.out(&setup), PathBuf::from("target/bench/short"));
        assert_eq!((short.effort().rounds, short.effort().quick), (1, true));
        assert!(short.field(peers::all()).unwrap().chosen.is_empty());
    }

    #[test]
    fn no_path_is_told_to_others() {
        let told = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            without_out(&words).join(" ")
        };
        assert_eq!(told("get --out /home/me --quick"), "get --quick");
        assert_eq!(told("--out=/home/me put"), "put");
        assert_eq!(
            told("mixed --before /home/me --rounds 3"),
            "mixed --rounds 3"
        );
    }

    #[test]
    fn where_the_cpu_goes_is_told_in_a_file_of_its_own() {
        assert!(options("--install-only --peers none").install_only);
        let one = options("json --perf mio");
        assert_eq!(one.perf.as_deref(), Some("mio"));
        assert!(refused("json --perf mio --quick"));
        assert!(refused("json --perf"));
        let name = file_name("get", "40 MB, hot: nginx beside onrush-io_uring");
        assert_eq!(name, "get-40-MB-hot-nginx-beside-onrush-io_uring.txt");
    }

    #[test]
    fn the_gate_takes_all_that_follows() {
        let gate = options("--gate --update hello").gate;
        assert_eq!(gate.unwrap(), ["--update", "hello"]);
        assert_eq!(options("--gate").gate.unwrap(), [""; 0]);
        assert!(options("").gate.is_none());
    }

    #[test]
    fn the_listing_names_everything() {
        let text = listing(&peers::all());
        for name in ["plaintext", "limit-epoll", "onrush-io_uring"] {
            assert!(text.contains(name), "{text}");
        }
    }
}
