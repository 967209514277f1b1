//! Builds all test binaries and runs them, a few at a time.

use crate::{
    shell::{self, Outcome, cannot_run, cargo, elapsed, flush, run_watched},
    tally::Tally,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Test binaries that run at the same time, and tests that each runs at the same time. Most tests
/// wait: for sockets, for clients, for time limits.
const BINARIES_AT_ONCE: usize = 3;
const TESTS_AT_ONCE: usize = 4;

/// A test binary that prints nothing for this long hangs.
const QUIET_MAX: Duration = Duration::from_secs(300);

/// The binaries that take the longest, which start first, so that none of them is left at the end.
const LONGEST: [&str; 7] = [
    "clients",
    "cli",
    "through_tls",
    "engine",
    "files_over_http2",
    "files",
    "remote",
];

/// What the tests of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Each property once.
    Short,
    /// Every driver and seed, and the tests that are ignored otherwise.
    Everything,
}

/// A test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binary {
    /// The name of its target: of the library for unit tests.
    name: String,
    program: PathBuf,
    /// The folder of its package.
    package: PathBuf,
}

/// Builds all test binaries of the workspace, without the examples, which clippy checks.
pub(crate) fn build() -> Outcome<Binaries> {
    let mut command = cargo("test --workspace --lib --bins --tests --no-run --quiet");
    command.arg("--message-format=json-render-diagnostics");
    flush();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_run(&command, &error))?;
    if !output.status.success() {
        return Err(format!("`{}` failed", shell::shown(&command)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut all: Vec<Binary> = text.lines().filter_map(binary).collect();
    let has = |name: &str| all.iter().any(|binary| binary.name == name);
    if let Some(missing) = LONGEST.iter().find(|name| !has(name)) {
        return Err(format!("no test binary is named '{missing}' any more"));
    }
    let rank = |name: &str| LONGEST.iter().position(|&long| long == name);
    all.sort_by_key(|binary| rank(&binary.name).unwrap_or(LONGEST.len()));
    println!("{} test binaries", all.len());
    Ok(Binaries(all))
}

/// The test binary of a message of cargo, if it is about one.
fn binary(message: &str) -> Option<Binary> {
    let (_, profile) = message.split_once(r#""profile":{"#)?;
    let is_test = message.starts_with(r#"{"reason":"compiler-artifact""#)
        && profile.split('}').next()?.contains(r#""test":true"#);
    let program = is_test.then(|| text(message, "executable")).flatten()?;
    let manifest = PathBuf::from(text(message, "manifest_path")?);
    let (_, target) = message.split_once(r#""target":{"#)?;
    Some(Binary {
        name: text(target, "name")?,
        program: program.into(),
        package: manifest.parent().map(Path::to_owned)?,
    })
}

/// The value of a field that is a text without escapes, as paths are here.
fn text(message: &str, field: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!(r#""{field}":""#))?;
    let (value, _) = rest.split_once('"')?;
    Some(value.to_owned())
}

/// All test binaries, in the order in which they start.
pub(crate) struct Binaries(Vec<Binary>);

impl Binaries {
    /// Runs all of them, prints the output of each when it has ended, and returns the sum.
    pub(crate) fn run(&self, scope: Scope) -> Outcome<Tally> {
        self.run_with(scope, |_| true, |_| {})
    }

    /// Runs those for whose name `is_wanted` is true. `configure` may add variables.
    pub(crate) fn run_with(
        &self,
        scope: Scope,
        is_wanted: impl Fn(&str) -> bool,
        configure: impl Fn(&mut Command) + Sync,
    ) -> Outcome<Tally> {
        let wanted = self.0.iter().filter(|binary| is_wanted(&binary.name));
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            return Err("no test binary has that name".to_owned());
        }
        let waiting = Mutex::new(wanted.into_iter());
        let sum = Mutex::new(Tally::default());
        let next = || waiting.lock().ok()?.next();
        let worker = || {
            while let Some(binary) = next() {
                let started = Instant::now();
                let mut command = command(binary, scope);
                configure(&mut command);
                let (output, tally) = run_one(binary, &mut command);
                if let Ok(mut sum) = sum.lock() {
                    let time = elapsed(started.elapsed());
                    println!("-- {}: {tally}, {time}\n{output}", binary.name);
                    flush();
                    sum.absorb(tally);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..BINARIES_AT_ONCE {
                scope.spawn(worker);
            }
        });
        sum.into_inner().map_err(|error| error.to_string())
    }
}

/// Starts a test binary as cargo does: in the folder of its package.
fn command(binary: &Binary, scope: Scope) -> Command {
    // The usual limit of 1,024 descriptors is too low for the clients and servers of several tests.
    let script = "ulimit -Sn 16384 2>/dev/null || ulimit -Sn \"$(ulimit -Hn)\"; exec \"$@\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(&binary.program)
        .current_dir(&binary.package)
        .arg(format!("--test-threads={TESTS_AT_ONCE}"))
        .stdin(Stdio::null())
        .env("CARGO_MANIFEST_DIR", &binary.package)
        .env("CARGO_TARGET_DIR", shell::target())
        // Every program that a test needs is installed. With `CI`, a test whose program is missing
        // fails instead of being skipped.
        .env("CI", "1");
    if scope == Scope::Everything {
        command.arg("--include-ignored").env(FULL_MATRIX, "1");
    }
    command
}

/// With this variable, each test uses all drivers and seeds: see crates/testing.
const FULL_MATRIX: &str = "TEST_MATRIX_FULL";

/// Runs one binary. Returns its output and its counts. It counts as a failed test if it ended
/// without a summary.
fn run_one(binary: &Binary, command: &mut Command) -> (String, Tally) {
    let mut output = String::new();
    let status = run_watched(command, QUIET_MAX, |line| {
        output.push_str(line);
        output.push('\n');
    });
    let mut tally = Tally::of(&output);
    let is_explained = tally.summaries > 0 && tally.failed > 0;
    match status {
        Ok(status) if status.success() && tally.summaries > 0 => {}
        Ok(_) if is_explained => {}
        Ok(status) => tally.fail(format!(
            "{} did not finish: {status}; {}",
            binary.name,
            unfinished(&output)
        )),
        Err(reason) => tally.fail(reason),
    }
    (output, tally)
}

/// The tests that were slow and have no result. The test runner names each that has been running
/// for a minute.
fn unfinished(output: &str) -> String {
    let has_result = |name: &str| {
        let line = format!("test {name} ... ");
        output.lines().any(|printed| printed.starts_with(&line))
    };
    let slow = output.lines().filter_map(|line| {
        let (name, _) = line
            .strip_prefix("test ")?
            .split_once(" has been running")?;
        (!has_result(name)).then_some(name)
    });
    let slow: Vec<&str> = slow.collect();
    match slow.is_empty() {
        true => "no test was running for a minute".to_owned(),
        false => format!("without a result: {}", slow.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///r/a#0.1.0","manifest_path":"/r/a/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"engine","src_path":"/r/a/tests/main.rs","test":true},"profile":{"opt_level":"0","test":true},"features":[],"executable":"/r/target/debug/deps/engine-1","fresh":true}"#;

    #[test]
    fn binaries_are_found_in_the_messages_of_cargo() {
        let found = binary(MESSAGE).expect("a test binary");
        assert_eq!(found.name, "engine");
        assert_eq!(found.program, Path::new("/r/target/debug/deps/engine-1"));
        assert_eq!(found.package, Path::new("/r/a"));
        let library = MESSAGE.replace(r#""opt_level":"0","test":true"#, r#""test":false"#);
        assert_eq!(binary(&library), None);
        let message = MESSAGE.replace("compiler-artifact", "build-finished");
        assert_eq!(binary(&message), None);
        let none = MESSAGE.replace(r#""/r/target/debug/deps/engine-1""#, "null");
        assert_eq!(binary(&none), None);
    }

    fn of(program: &str, arguments: &[&str]) -> (String, Tally) {
        let binary = Binary {
            name: "x".to_owned(),
            program: program.into(),
            package: "/".into(),
        };
        let mut command = Command::new(program);
        run_one(&binary, command.args(arguments))
    }

    #[test]
    fn a_binary_without_a_summary_has_failed() {
        assert_eq!(of("true", &[]).1.failed, 1);
        assert_eq!(of("/nowhere/x", &[]).1.failed, 1);
        let line = "test result: ok. 2 passed; 0 failed; 0 ignored";
        assert_eq!(of("echo", &[line]).1.to_string(), "2 passed, 0 failed");
        let script = format!("echo '{line}'; exit 3");
        assert_eq!(of("sh", &["-c", &script]).1.failed, 1);
        let script = "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101";
        assert_eq!(of("sh", &["-c", script]).1.failed, 1);
    }

    #[test]
    fn tests_that_hang_are_named() {
        let script = "echo 'test a has been running for over 60 seconds'; \
             echo 'test b has been running for over 60 seconds'; echo 'test a ... ok'; \
             echo 'test c ... FAILED'; kill -KILL $$";
        let (_, tally) = of("sh", &["-c", script]);
        assert_eq!(tally.failed, 1);
        let report = &tally.reports()[0];
        assert!(report.ends_with("; without a result: b"), "{report}");
    }

    #[test]
    fn everything_means_ignored_tests_and_the_full_matrix() {
        let binary = binary(MESSAGE).expect("a test binary");
        let words = |scope| format!("{:?}", command(&binary, scope));
        assert!(words(Scope::Everything).contains("--include-ignored"));
        assert!(words(Scope::Everything).contains(FULL_MATRIX));
        assert!(!words(Scope::Short).contains("--include-ignored"));
    }
}
