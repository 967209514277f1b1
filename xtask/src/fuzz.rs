//! Fuzzing with libFuzzer on the stable toolchain. Flags enable the compiler's coverage pass for
//! the fuzzed code only.

use crate::{
    Arguments, Failure,
    shell::{Outcome, capture, cargo, root, run, shown, target},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::SystemTime,
};

/// The flags of `cargo fuzz` without those that only a nightly compiler accepts (the sanitizers).
const RUSTFLAGS: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 \
    -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// With an explicit target, cargo does not apply the flags to build scripts and macros.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

const AT_ONCE: usize = 2;

/// Limits on the time, memory and size of one input.
const INPUT_SECONDS_MAX: u32 = 10;
const MEMORY_MIB_MAX: u32 = 1024;
const INPUT_BYTES_MAX: u32 = 2048;

/// Lines that hold a panic's message and the top of its stack.
const COMPLAINT_LINES_MAX: usize = 24;

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let seconds = arguments.number("--seconds", 60)?;
    let input = arguments.text("--input")?;
    let names = arguments.names(&all()?)?;
    match (input, names.as_slice()) {
        (None, names) => Ok(run_targets(names, seconds)?),
        (Some(input), [name]) => {
            build(&names)?;
            Ok(run(Command::new(binary(name))
                .arg(input)
                .current_dir(root()))?)
        }
        (Some(_), _) => Err(Failure::Usage("--input needs one target".to_owned())),
    }
}

/// Builds and runs the targets `names` for `seconds` each, two at a time. An empty list means all
/// targets.
pub(crate) fn run_targets(names: &[String], seconds: u64) -> Outcome {
    let names = if names.is_empty() { &all()? } else { names };
    build(names)?;
    let waiting = Mutex::new(names.iter());
    let next = || waiting.lock().ok()?.next();
    let failed: Vec<&str> = thread::scope(|scope| {
        let worker = || {
            let mut failed = Vec::new();
            while let Some(name) = next() {
                if let Err(reason) = fuzz(name, seconds) {
                    println!("{reason}");
                    failed.push(name.as_str());
                }
            }
            failed
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or(vec!["?"]))
            .collect()
    });
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("fuzz targets that failed: {}", failed.join(", "))),
    }
}

/// The names of all targets. Each is a file in `fuzz/targets`, built as a program of the same name.
fn all() -> Outcome<Vec<String>> {
    let folder = root().join("fuzz/targets");
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = files.filter_map(|file| {
        let path = file.ok()?.path();
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        is_rust
            .then(|| path.file_stem()?.to_str().map(str::to_owned))
            .flatten()
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

fn binary(name: &str) -> PathBuf {
    target().join(TRIPLE).join("release").join(name)
}

fn build(names: &[String]) -> Outcome {
    let mut command =
        cargo("build --release --quiet --manifest-path fuzz/targets/Cargo.toml --target");
    command.arg(TRIPLE).env("RUSTFLAGS", RUSTFLAGS);
    for name in names {
        command.args(["--bin", name]);
    }
    run(&mut command)
}

/// Fuzzes one target and prints a one-line summary. Fails with the input that reproduces a crash.
fn fuzz(name: &str, seconds: u64) -> Outcome {
    let folder = |kind: &str| root().join("fuzz").join(kind).join(name);
    let (corpus, artifacts, seeds) = (folder("corpus"), folder("artifacts"), folder("seeds"));
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let before = SystemTime::now();
    let mut command = Command::new(binary(name));
    command
        .current_dir(root())
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        .args([&corpus, &seeds]);
    let (ok, log) = capture(&mut command)?;
    if ok {
        println!("{name}: {}", summary(&log));
        return Ok(());
    }
    let advice = match newest_since(&artifacts, before) {
        Some(input) => format!(
            "{name}: FAILED on {}\nto reproduce: cargo xtask fuzz {name} --input {}",
            input.display(),
            input.strip_prefix(root()).unwrap_or(&input).display(),
        ),
        None => format!("{name}: FAILED without an input: {}", shown(&command)),
    };
    Err(format!("{}\n{advice}", complaint(&log)))
}

/// Extracts the panic or libFuzzer's own error from its log. Without either, returns the end of the
/// log.
fn complaint(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let starts = |line: &&str| line.contains("panicked at") || line.contains("ERROR: libFuzzer");
    let start = lines.iter().position(starts);
    let start = start.unwrap_or(lines.len().saturating_sub(COMPLAINT_LINES_MAX));
    let end = lines.len().min(start + COMPLAINT_LINES_MAX);
    lines[start..end].join("\n")
}

/// Extracts the number of runs and the coverage from libFuzzer's log.
fn summary(log: &str) -> String {
    let stat = |name: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    let edges = log.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(" cov: ")?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    });
    let runs = stat("stat::number_of_executed_units:");
    let rate = stat("stat::average_exec_per_sec:");
    format!(
        "{runs} runs, {rate} per second, {} edges covered",
        edges.unwrap_or(0)
    )
}

fn newest_since(folder: &Path, moment: SystemTime) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok());
    let dated = files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)));
    // File systems round times down, so files up to one second older count, too.
    let recent = dated.filter(|(time, _)| *time + std::time::Duration::from_secs(1) >= moment);
    recent
        .max_by_key(|(time, _)| *time)
        .map(|(_, file)| file.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_runs_and_coverage() {
        let log = "#2\tINITED cov: 17 ft: 18 corp: 1/1b\n#900\tNEW    cov: 321 ft: 9 corp: 2/3b\n\
            Done 900 runs in 1 second(s)\nstat::number_of_executed_units: 900\n\
            stat::average_exec_per_sec:     450\n";
        assert_eq!(summary(log), "900 runs, 450 per second, 321 edges covered");
    }

    #[test]
    fn a_complaint_begins_with_the_panic() {
        let log = format!(
            "#1 INITED\nthread 'x' panicked at y:1\nwhy\n{}",
            "frame\n".repeat(50)
        );
        let complaint = complaint(&log);
        assert!(complaint.starts_with("thread 'x' panicked at y:1\nwhy\n"));
        assert_eq!(complaint.lines().count(), COMPLAINT_LINES_MAX);
        assert_eq!(super::complaint("a\nb"), "a\nb");
    }

    #[test]
    fn every_target_is_declared_and_has_seeds() {
        let names = all().unwrap();
        let manifest = fs::read_to_string(root().join("fuzz/targets/Cargo.toml")).unwrap();
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            assert!(
                manifest.contains(&format!("path = \"{name}.rs\"")),
                "{name}"
            );
            let seeds = fs::read_dir(root().join("fuzz/seeds").join(&name));
            assert!(
                seeds.is_ok_and(|mut seeds| seeds.next().is_some()),
                "{name} has no seeds"
            );
        }
    }
}
