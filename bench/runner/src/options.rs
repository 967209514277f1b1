//! The command line.

use crate::{
    bench::Effort,
    peers::{Driver, Kind, Peer, Setup},
    plan::Field,
    profiles::{PROFILES, Profile},
};
use clap::{Parser, ValueEnum};
use std::{fmt::Write, path::PathBuf};
use xtask::shell::Outcome;

/// The peers of a quick run: quick to install, and of different kinds.
const QUICK_PEERS: [&str; 8] = [
    "hyper",
    "nginx",
    "h2o",
    "h2o-canned",
    "nginx-proxy",
    "rclone",
    "axum-serve",
    "onrush-axum",
];

/// Default number of rounds of a quick run.
const QUICK_ROUNDS: u32 = 5;

/// Compares Onrush with other servers and with lower bounds: CPU per request of two servers that
/// are loaded at the same time on the same core, as a ratio.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", disable_version_flag = true)]
pub(crate) struct Options {
    /// The profiles to measure [default: all but scale, which starts a Ceph cluster]; see --list
    #[arg(value_name = "PROFILE")]
    profiles: Vec<String>,
    /// The peers to compare with: names, `all`, or `none` for the limits only [default: all; with
    /// --quick hyper, nginx and h2o; with --short none]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    peers: Vec<String>,
    /// The drivers of Onrush to measure
    #[arg(long, default_value = "both")]
    driver: Drivers,
    /// The drivers of Onrush to compare peers with [default: io_uring, if it is measured]
    #[arg(long, value_name = "DRIVER")]
    peers_on: Option<Drivers>,
    /// Measure a part of each profile, within ten minutes; writes to target/bench/quick
    #[arg(long)]
    quick: bool,
    /// Measure one round of one row of each profile, as a test of this program. Installs nothing;
    /// fails if a row cannot be measured; writes to target/bench/short
    #[arg(long, conflicts_with_all = ["quick", "rounds", "install_only", "perf"])]
    pub(crate) short: bool,
    /// Rounds per row [default: 15; with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Minimum length of a round in seconds; rounded up to whole seconds
    #[arg(long, value_name = "S", default_value = "1.0", value_parser = seconds)]
    seconds: u64,
    /// The folder for the results [default: bench/results]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The target folder of another checkout, built there with `cargo xtask bench --install-only`:
    /// `mixed` then also compares the throughput of the two builds of Onrush
    #[arg(long, value_name = "DIR")]
    pub(crate) before: Option<PathBuf>,
    /// Fail if a target is missed or could not be measured
    #[arg(long)]
    pub(crate) check: bool,
    /// List the profiles, and the servers with their configuration and the work that they omit
    #[arg(long)]
    pub(crate) list: bool,
    /// Build and install the servers, and measure nothing
    #[arg(long, conflicts_with = "no_install")]
    pub(crate) install_only: bool,
    /// Build and install nothing
    #[arg(long)]
    pub(crate) no_install: bool,
    /// Profile the servers with perf instead: CPU time by function, for each pair whose title
    /// contains TEXT (such as "512 connections: hyper"); writes to target/bench/perf
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["quick", "rounds", "check"])]
    pub(crate) perf: Option<String>,
    /// Draw the charts in DIR again from its CSV files, and measure nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["quick", "short", "perf", "gate"])]
    pub(crate) redraw: Option<PathBuf>,
    /// Count instructions on the simulator instead, and compare them with the committed results;
    /// takes all following arguments
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
        false => Err("not above 0 and at most 3600".to_owned()),
    }
}

impl Options {
    /// The chosen profiles, in the order in which they are measured.
    pub(crate) fn profiles(&self) -> Outcome<Vec<&'static Profile>> {
        let known = |name: &&String| PROFILES.iter().any(|profile| profile.name == name.as_str());
        if let Some(name) = self.profiles.iter().find(|name| !known(name)) {
            let all: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
            let all = all.join(", ");
            return Err(format!("unknown profile '{name}'; the profiles are {all}"));
        }
        let named = |profile: &&Profile| {
            let is_named = self.profiles.iter().any(|name| name == profile.name);
            is_named || (self.profiles.is_empty() && !profile.is_remote)
        };
        Ok(PROFILES.iter().filter(named).collect())
    }

    /// The servers of `all` that are measured.
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
                    let all = all.join(", ");
                    return Err(format!("unknown peer '{name}'; the peers are {all}"));
                }
                let is_named = |peer: &&&Peer| names.contains(&peer.name);
                peers().filter(is_named).map(|peer| peer.name).collect()
            }
        };
        let drivers = self.driver.each();
        let bases = match (self.peers_on, self.driver) {
            (Some(on), driver) if driver == Drivers::Both || driver == on => on.each(),
            (Some(_), _) => return Err("--peers-on needs a driver that is measured".to_owned()),
            (None, Drivers::Epoll) => vec![Driver::Epoll],
            (None, _) => vec![Driver::Uring],
        };
        Ok(Field {
            all,
            drivers,
            bases,
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
        }
    }

    /// The server that charts are relative to.
    pub(crate) fn base(&self) -> &'static str {
        match self.peers_on.unwrap_or(self.driver) {
            Drivers::Epoll => "onrush-epoll",
            Drivers::Uring | Drivers::Both => "onrush-io_uring",
        }
    }

    /// The folder for the results. Only complete runs write to the committed results.
    pub(crate) fn out(&self, setup: &Setup) -> PathBuf {
        match &self.out {
            Some(out) => out.clone(),
            None if self.perf.is_some() => setup.target.join("bench/perf"),
            None if self.short => setup.target.join("bench/short"),
            None if self.quick => setup.target.join("bench/quick"),
            None => setup.root.join("bench/results"),
        }
    }
}

/// The command line without its paths, for the description of the results.
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

/// The name of the file with the profile of one pair.
pub(crate) fn file_name(profile: &str, title: &str) -> String {
    let words = title.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let words: Vec<&str> = std::iter::once(profile)
        .chain(words.filter(|word| !word.is_empty()))
        .collect();
    words.join("-") + ".txt"
}

/// All profiles and servers, as text.
pub(crate) fn listing(all: &[&Peer]) -> String {
    let mut text = "profiles\n".to_owned();
    for profile in PROFILES {
        let _ = writeln!(text, "  {:10} {}", profile.name, profile.what);
    }
    let kinds = [
        (Kind::Limit, "limits"),
        (Kind::Onrush, "Onrush"),
        (Kind::Peer, "peers"),
    ];
    for (kind, title) in kinds {
        let _ = writeln!(text, "\n{title}");
        for peer in all.iter().filter(|peer| peer.kind == kind) {
            let _ = writeln!(text, "  {:20} {:?}", peer.name, peer.roles);
            let _ = writeln!(text, "  {:20} configuration: {}", "", peer.configuration);
            if !peer.omits.is_empty() {
                let _ = writeln!(text, "  {:20} omits: {}", "", peer.omits.join("; "));
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
    fn all_profiles_with_15_rounds_are_the_default() {
        let options = options("");
        let all = options.profiles().unwrap().len();
        assert_eq!(all, PROFILES.len() - 1, "all but scale");
        let effort = options.effort();
        assert_eq!((effort.rounds, effort.seconds), (15, 1));
        let field = options.field(peers::all()).unwrap();
        assert_eq!(field.drivers.len(), 2);
        assert_eq!(field.bases, [Driver::Uring]);
        assert_eq!(options.base(), "onrush-io_uring");
    }

    #[test]
    fn valid_choices_are_applied_and_invalid_ones_rejected() {
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
            "--quick --short",
        ] {
            assert!(refused(line), "{line}");
        }
    }

    #[test]
    fn only_complete_runs_write_to_the_committed_results() {
        let setup = Setup {
            root: "root".into(),
            target: "target".into(),
            profile: "dist",
            service: None,
        };
        assert_eq!(options("").out(&setup), PathBuf::from("root/bench/results"));
        assert_eq!(
            options("--quick").out(&setup),
            PathBuf::from("target/bench/quick")
        );
        assert_eq!(options("--quick --out x").out(&setup), PathBuf::from("x"));
        let perf = options("json --perf hyper").out(&setup);
        assert_eq!(perf, PathBuf::from("target/bench/perf"));
        assert_eq!(options("--quick --rounds 2").effort().rounds, 2);
        let short = options("--short");
        assert_eq!(short.out(&setup), PathBuf::from("target/bench/short"));
        assert_eq!((short.effort().rounds, short.effort().quick), (1, true));
        assert!(short.field(peers::all()).unwrap().chosen.is_empty());
    }

    #[test]
    fn a_service_of_objects_is_started_only_for_a_profile_that_is_named() {
        let remote = |line: &str| {
            let profiles = options(line).profiles().unwrap();
            profiles.iter().filter(|profile| profile.is_remote).count()
        };
        assert_eq!(["", "--short", "--quick", "get"].map(remote), [0; 4]);
        assert_eq!((remote("scale"), remote("scale --short")), (1, 1));
    }

    #[test]
    fn the_description_of_a_run_has_no_path() {
        let described = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            without_out(&words).join(" ")
        };
        assert_eq!(described("get --out /home/me --quick"), "get --quick");
        assert_eq!(described("--out=/home/me put"), "put");
        assert_eq!(
            described("mixed --before /home/me --rounds 3"),
            "mixed --rounds 3"
        );
    }

    #[test]
    fn each_cpu_profile_has_its_own_file() {
        assert!(options("--install-only --peers none").install_only);
        let one = options("json --perf hyper");
        assert_eq!(one.perf.as_deref(), Some("hyper"));
        assert!(refused("json --perf hyper --quick"));
        assert!(refused("json --perf"));
        let name = file_name("get", "40 MB, hot: nginx and onrush-io_uring");
        assert_eq!(name, "get-40-MB-hot-nginx-and-onrush-io_uring.txt");
    }

    #[test]
    fn charts_can_be_drawn_again() {
        let redraw = options("plaintext --redraw bench/results").redraw;
        assert_eq!(redraw, Some(PathBuf::from("bench/results")));
        assert!(refused("--redraw bench/results --quick"));
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
