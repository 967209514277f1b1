//! `cargo xtask bench`: compares Onrush with other servers and with bare loops. This file runs the
//! profiles; other modules measure. The public items are for the experiments, which start, load and
//! observe servers in the same way.
//!
//! Modules, lowest first: `stats` `client` `http2` · `probe` `server` · `wrk` `row` · `uploads`
//! `handshakes` `h2load` `trailers` `flood` `delay` `events` · `work` `calls` `backend` `peers` ·
//! `plan` · `bench` · `pair` · `perf` · `profiles` `report` · `beside` `options`.

#![forbid(unsafe_code)]

mod backend;
mod bench;
pub mod beside;
mod calls;
mod client;
mod clients;
mod delay;
mod events;
mod flood;
mod h2load;
mod handshakes;
mod http2;
mod options;
mod pair;
mod peers;
mod perf;
mod plan;
pub mod probe;
mod profiles;
pub mod report;
pub mod row;
pub mod server;
pub mod stats;
mod trailers;
pub mod uploads;
mod work;
pub mod wrk;

pub use peers::nginx;

use crate::{
    bench::{Bench, Clock},
    calls::Counter,
    options::Options,
    peers::{Kind, Peer, Role, Setup},
    profiles::{Profile, Step},
    report::machine::Machine,
    row::Row,
    work::Work,
};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::HashMap,
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use xtask::{
    packages,
    shell::{Outcome, cannot_run, cargo, flush, run, which},
};

/// Time after which a quick run begins no row. The last row and the reports still end within ten
/// minutes.
const QUICK: Duration = Duration::from_secs(9 * 60 + 30);

/// Runs what the command line of this process asks for.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some(handshakes::SUBCOMMAND) => {
            handshakes::main(&arguments[1..]).map(|()| ExitCode::SUCCESS)
        }
        Some(events::SUBCOMMAND) => events::main(&arguments[1..]).map(|()| ExitCode::SUCCESS),
        Some(flood::SUBCOMMAND) => flood::main(&arguments[1..]).map(|()| ExitCode::SUCCESS),
        Some(trailers::SUBCOMMAND) => trailers::main(&arguments[1..]).map(|()| ExitCode::SUCCESS),
        Some(uploads::SUBCOMMAND) => uploads::main(&arguments[1..]).map(|()| ExitCode::SUCCESS),
        _ => {
            let options = Options::parse();
            match &options.gate {
                Some(arguments) => gate(arguments),
                None => main_with(&options, &options::without_out(&arguments).join(" ")),
            }
        }
    };
    match done {
        Ok(code) => code,
        Err(reason) => {
            eprintln!("bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn main_with(options: &Options, line: &str) -> Outcome<ExitCode> {
    let setup = Setup::of_repository();
    let profiles = options.profiles()?;
    let field = options.field(peers::all())?;
    if options.list {
        print!("{}", options::listing(&field.all));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &options.redraw {
        return redraw(folder, &profiles, options.base());
    }
    if std::thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        return Err("two cores are needed: one for servers, one for their clients".to_owned());
    }
    let interrupted = interrupts()?;
    raise_descriptors()?;
    let is_h2 = |profile: &&Profile| profile.name == "h2";
    let has_h2 = profiles.iter().any(is_h2);
    let tools = [("wrk", true), ("h2load", has_h2), ("curl", has_h2)];
    let lacks = |(name, is_needed): &&(&str, bool)| *is_needed && which(name).is_none();
    if let (true, Some((name, _))) = (options.short, tools.iter().find(lacks)) {
        return Err(format!("{name} is needed; `cargo xtask setup` installs it"));
    }
    let effort = options.effort();
    let machine = Machine::now();
    let mut bench = Bench {
        work: Work::new(&setup.target)?,
        backend: None,
        setup,
        before: options.before.clone(),
        field,
        effort,
        clock: Clock::new(interrupted, effort.quick.then_some(QUICK)),
        counter: None,
        calls: HashMap::new(),
        missing: HashMap::new(),
        versions: HashMap::new(),
    };
    let installs = !options.no_install && !options.short;
    let profiles = skip_remote(profiles, installs);
    install(&mut bench, options, &profiles)?;
    if options.install_only {
        for (name, reason) in &bench.missing {
            println!("{name}: {reason}");
        }
        return Ok(ExitCode::from(u8::from(!bench.missing.is_empty())));
    }
    if let Some(text) = &options.perf {
        return perf(&mut bench, options, &profiles, text);
    }
    if !effort.quick {
        bench.counter = Counter::find();
    }
    let rows = measure(&mut bench, options, &profiles, &machine, line)?;
    print!("\n{}", report::table::verdict(&rows));
    let unmeasured = rows.iter().filter(|row| row.rounds.is_empty()).count();
    if unmeasured > 0 {
        println!("{unmeasured} rows were not measured; the reasons are shown above");
    }
    let missed = rows.iter().any(|row| row.holds() == Some(false));
    let unknown = rows
        .iter()
        .any(|row| row.target.is_some() && row.holds().is_none());
    let broken = options.short && rows.iter().any(is_broken);
    let failed = bench.clock.interrupted() || broken || (options.check && (missed || unknown));
    Ok(ExitCode::from(u8::from(failed)))
}

/// Skips profiles that need a service of objects, if it is not installed and may not be.
fn skip_remote(profiles: Vec<&'static Profile>, installs: bool) -> Vec<&'static Profile> {
    let can_run = |profile: &&Profile| {
        let can = !profile.is_remote || installs || backend::is_installed();
        if !can {
            println!("{} is skipped: Ceph is not installed", profile.name);
        }
        can
    };
    profiles.into_iter().filter(can_run).collect()
}

/// Builds or installs the servers that `profiles` measure. Fails if Onrush is missing, but not if a
/// peer is.
fn install(bench: &mut Bench, options: &Options, profiles: &[&Profile]) -> Outcome {
    if !options.no_install && !options.short {
        packages::need(&[
            ("wrk", "wrk"),
            ("setpriv", "util-linux"),
            ("taskset", "util-linux"),
            ("chrt", "util-linux"),
        ])?;
        if profiles.iter().any(|profile| profile.name == "h2") {
            packages::need(&[("h2load", "nghttp2-client"), ("curl", "curl")])?;
            if let Err(reason) = packages::need(&[("chromium", "chromium")]) {
                eprintln!("no browser loads a page: {reason}");
            }
        }
        // Without perf, strace counts system calls. Without both, the column is empty.
        if let Err(reason) = packages::need(&[("perf", "linux-perf")]) {
            eprintln!("perf cannot count system calls: {reason}");
        }
    }
    let is_measured = |role: &Role| (profiles.iter()).any(|p| p.is_remote == role.is_remote());
    let chosen = |peer: &&Peer| {
        let is_chosen = peer.kind != Kind::Peer || bench.field.chosen.contains(&peer.name);
        is_chosen && peer.roles.iter().any(is_measured)
    };
    let wanted: Vec<&'static Peer> = bench.field.all.iter().copied().filter(chosen).collect();
    for peer in wanted {
        if bench.clock.interrupted() {
            return Err("interrupted".to_owned());
        }
        progress(&format!("preparing {}", peer.name));
        // The limits and Onrush need only cargo and a C compiler, which are installed.
        let is_built = peer.kind != Kind::Peer;
        let install = !options.no_install && (is_built || !options.short);
        match bench.have(peer, install) {
            Err(reason) if peer.kind == Kind::Onrush => return Err(reason),
            Err(reason) => eprintln!("{reason}"),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Profiles each pair whose title contains `text`. Prints the tables and writes them to
/// `target/bench/perf`.
fn perf(
    bench: &mut Bench,
    options: &Options,
    profiles: &[&'static Profile],
    text: &str,
) -> Outcome<ExitCode> {
    let out = options.out(&bench.setup);
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let steps = profiles.iter().flat_map(|profile| profile.steps(bench));
    let steps: Vec<Step> = steps.filter(|step| step.title.contains(text)).collect();
    let mut done = 0;
    for step in &steps {
        progress(&format!("{} · {}", step.profile, step.title));
        let Some(sampled) = step.perf(bench) else {
            continue; // It is not a pair under continuous load.
        };
        if bench.clock.interrupted() {
            return Err("interrupted".to_owned());
        }
        let sampled = sampled?;
        clear();
        println!("{sampled}");
        let file = out.join(options::file_name(step.profile, &step.title));
        fs::write(&file, sampled).map_err(|error| format!("{}: {error}", file.display()))?;
        done += 1;
    }
    match done {
        0 => Err(format!(
            "no pair of these profiles has '{text}' in its title"
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn measure(
    bench: &mut Bench,
    options: &Options,
    profiles: &[&'static Profile],
    machine: &Machine,
    line: &str,
) -> Outcome<Vec<Row>> {
    let out = options.out(&bench.setup);
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let planned: Vec<(&Profile, Vec<Step>)> = profiles
        .iter()
        .map(|profile| {
            let steps = profile.steps(bench);
            let steps = if options.short {
                shortest(steps)
            } else {
                steps
            };
            (*profile, steps)
        })
        .collect();
    let weights = planned.iter().flat_map(|(_, steps)| steps);
    let mut left: u32 = weights.map(|step| step.weight).sum();
    let base = options.base();
    let mut all = Vec::new();
    for (profile, steps) in &planned {
        let mut rows = Vec::new();
        for step in steps {
            bench.clock.begin(step.weight, left);
            left -= step.weight.min(left);
            if bench.clock.interrupted() {
                break;
            }
            progress(&format!("{} · {}", step.profile, step.title));
            rows.extend(step.run(bench));
        }
        clear();
        print!("{}", report::table::table(&rows));
        flush();
        // The results of an interrupted run are shown, but replace no file.
        if bench.clock.interrupted() {
            all.extend(rows);
            break;
        }
        report::csv::write(&csv(&out, profile), &machine.date, &rows)?;
        draw(&out, profile, base)?;
        let mut versions: Vec<(String, String)> = bench
            .versions
            .iter()
            .map(|(name, version)| ((*name).to_owned(), version.clone()))
            .collect();
        versions.sort();
        machine.write(&out.join("machine.md"), profile.name, line, &versions)?;
        all.extend(rows);
    }
    Ok(all)
}

/// The CSV file of a profile in the folder of the results.
fn csv(out: &Path, profile: &Profile) -> PathBuf {
    out.join(format!("{}.csv", profile.name))
}

/// Draws the chart of a profile from its CSV file. Returns whether there is anything to draw.
fn draw(out: &Path, profile: &Profile, base: &str) -> Outcome<bool> {
    let lines = report::csv::read(&csv(out, profile))?;
    let Some(svg) = report::svg::chart(profile.name, profile.what, base, &lines) else {
        return Ok(false);
    };
    let file = out.join(format!("{}.svg", profile.name));
    fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(true)
}

/// Draws the charts of all `profiles` that have a CSV file in `folder`.
fn redraw(folder: &Path, profiles: &[&Profile], base: &str) -> Outcome<ExitCode> {
    let mut drawn = 0;
    for profile in profiles {
        if csv(folder, profile).is_file() && draw(folder, profile, base)? {
            drawn += 1;
        }
    }
    match drawn {
        0 => Err(format!(
            "no CSV file of these profiles in {}",
            folder.display()
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// One step of a profile: the comparison of both drivers of Onrush, if there is one, or the first.
fn shortest(mut steps: Vec<Step>) -> Vec<Step> {
    let found = steps.iter().position(Step::is_of_both_drivers);
    steps.drain(..found.unwrap_or(0));
    steps.truncate(1);
    steps
}

/// Whether a row could not be measured, for another reason than a busy core of the load generator.
fn is_broken(row: &Row) -> bool {
    row.rounds.is_empty()
        && row
            .voids
            .iter()
            .any(|reason| !reason.contains("generator late"))
}

/// A flag that SIGINT and SIGTERM set.
pub fn interrupts() -> Outcome<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let registered = signal_hook::flag::register(signal, interrupted.clone());
        registered.map_err(|error| error.to_string())?;
    }
    Ok(interrupted)
}

/// Raises the soft limit on descriptors to the hard limit, for this process and its children.
pub fn raise_descriptors() -> Outcome {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, all).map_err(|error| format!("cannot raise descriptors: {error}"))
}

/// Builds the gate and runs it.
fn gate(arguments: &[String]) -> Outcome<ExitCode> {
    run(&mut cargo(xtask::shell::BUILD_GATE))?;
    let mut gate = Command::new(xtask::shell::target().join("release/gate"));
    gate.args(arguments).current_dir(xtask::shell::root());
    let status = gate.status().map_err(|error| cannot_run(&gate, &error))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Shows the current activity on standard error. On a terminal it replaces the previous one.
pub fn progress(what: &str) {
    let mut stderr = io::stderr();
    let _ = match stderr.is_terminal() {
        true => write!(
            stderr,
            "\r\x1b[K{}",
            what.chars().take(99).collect::<String>()
        ),
        false => writeln!(stderr, "{what}"),
    };
    let _ = stderr.flush();
}

/// Removes the line of [`progress`] from a terminal.
pub fn clear() {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}
