//! `cargo xtask power-cuts`: clients change objects of the real server on a real file system, whose
//! disk logs each write and each flush. For random points of the log, the disk becomes what a power
//! cut leaves at that point. The file system recovers, the server starts, and every object must be
//! as its last acknowledged change has made it.
//!
//! Controls do the same without some of the syncs. They must lose objects; otherwise this would
//! not notice a missing sync.
//!
//! Modules, lowest first: `random` · `disk` · `fuse` `load` · `machine` `server` `check`.

#![forbid(unsafe_code)]

mod check;
mod disk;
mod fuse;
mod load;
mod machine;
mod random;
mod server;

use clap::Parser;
use disk::{Disk, Image, Log};
use load::Histories;
use machine::{DISK_BYTES, KINDS, Kind, Machine};
use random::Random;
use server::{Server, Syncs};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use xtask::shell::{Outcome, elapsed, flush, target};

/// Cuts the power of a disk under a real file system while clients change objects
#[derive(Debug, Parser)]
#[command(name = "cargo xtask power-cuts", disable_version_flag = true)]
struct Options {
    /// File systems: ext4, xfs, btrfs
    #[arg(value_name = "FILE-SYSTEM", default_values = ["ext4", "xfs"])]
    kinds: Vec<String>,
    /// Power cuts on each file system
    #[arg(long, value_name = "N", default_value_t = 300)]
    cuts: usize,
    /// Power cuts of each control
    #[arg(long, value_name = "N", default_value_t = 30)]
    control_cuts: usize,
    /// Of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// A run: its name, which syncs the server makes, and whether it is to lose objects.
const TRIALS: [(&str, Syncs, bool); 4] = [
    ("--durability full", Syncs::All, false),
    ("control, --durability none", Syncs::None, true),
    ("control, files are not synced", Syncs::NotOfFiles, true),
    ("control, folders are not synced", Syncs::NotOfFolders, true),
];

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("power-cuts: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Outcome {
    let folder = target().join("power-cuts");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut failed = Vec::new();
    for name in &options.kinds {
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let kind = kind.ok_or_else(|| format!("unknown file system '{name}'"))?;
        for (trial, syncs, must_lose) in TRIALS {
            let cuts = match must_lose {
                true => options.control_cuts,
                false => options.cuts,
            };
            if cuts == 0 {
                continue;
            }
            let recorded = Trial::record(kind, syncs, &folder, options.seed)?;
            let losses = recorded.cut(cuts, trial, !must_lose)?;
            if (losses > 0) != must_lose {
                failed.push(format!("{name}, {trial}: {losses} of {cuts} cuts"));
            }
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("wrong numbers of losses: {}", failed.join("; "))),
    }
}

/// What the clients of a server and its disk have done.
struct Trial<'t> {
    kind: &'static Kind,
    folder: &'t Path,
    histories: Histories,
    log: Log,
    /// The position of the log before the first change and after the last one.
    range: (usize, usize),
    random: Random,
}

impl<'t> Trial<'t> {
    fn record(
        kind: &'static Kind,
        syncs: Syncs,
        folder: &'t Path,
        seed: u64,
    ) -> Outcome<Trial<'t>> {
        let disk = Disk::default();
        let machine = Machine::create(kind, &disk, folder)?;
        let data = machine.root.join("data");
        let made = fs::create_dir(&data);
        made.map_err(|error| format!("{}: {error}", data.display()))?;
        let server = Server::start(&data, syncs, &load::folders())?;
        machine.sync()?;
        let begin = disk.position();
        let histories = load::run(server.address, &disk, seed)?;
        let end = disk.position();
        drop(server);
        drop(machine);
        Ok(Trial {
            kind,
            folder,
            histories,
            log: disk.take_log(),
            range: (begin, end),
            random: Random::new(seed),
        })
    }

    /// Cuts the power at random points. Returns the number of cuts that have lost something. With
    /// `is_saved`, the first of them is kept for a closer look.
    fn cut(mut self, cuts: usize, name: &str, is_saved: bool) -> Outcome<usize> {
        let begun = Instant::now();
        let (begin, end) = self.range;
        let span = (end - begin) as u64 + 1;
        let points = (0..cuts).map(|_| begin + self.random.below(span) as usize);
        let mut points: Vec<usize> = points.collect();
        points.sort_unstable();
        let (mut losses, mut swept, mut first) = (0, 0, None);
        for at in points {
            let image = self.log.cut(at, &mut self.random);
            let (wrong, staged) = self.recover(&image, at)?;
            swept += staged;
            if !wrong.is_empty() {
                losses += 1;
                first.get_or_insert((at, image, wrong));
            }
        }
        let kind = self.kind.name;
        let changes: usize = self.histories.values().map(Vec::len).sum();
        let (writes, flushes) = self.log.counts();
        println!(
            "{kind}, {name}: {changes} changes, {writes} writes and {flushes} flushes of the \
             disk; {cuts} power cuts: {losses} lost something, {swept} staged files removed, {}",
            elapsed(begun.elapsed())
        );
        if let Some((at, image, wrong)) = first {
            println!("  the first, at entry {at} of the log:");
            if is_saved {
                println!("    the disk: {}", self.save(&image)?.display());
            }
            wrong.iter().take(5).for_each(|line| println!("    {line}"));
        }
        flush();
        Ok(losses)
    }

    /// Starts a server on what a power cut has left. Returns what is wrong, and the number of
    /// staged files that the start has removed.
    fn recover(&self, image: &Image, at: usize) -> Outcome<(Vec<String>, usize)> {
        let disk = Disk::with(image.clone());
        let machine = match Machine::start(self.kind, &disk, self.folder) {
            Ok(machine) => machine,
            Err(problem) => return Ok((vec![problem], 0)),
        };
        let data = machine.root.join("data");
        let staged = check::staged(&data)?;
        let server = Server::start(&data, Syncs::All, &[])?;
        let wrong = check::check(server.address, &data, &self.histories, at)?;
        drop(server);
        Ok((wrong, staged))
    }

    fn save(&self, image: &Image) -> Outcome<PathBuf> {
        let path = self.folder.join(format!("{}.img", self.kind.name));
        let saved = image.save(&path, DISK_BYTES);
        saved.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}
