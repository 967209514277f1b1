//! Checks the commands that the documents show. The table here lists how the tests cover each
//! command, so a broken command is noticed. The short test run compares the table with the
//! documents and parses the commands of `cargo xtask`; the nightly run also runs a short form of
//! them.
//!
//! A command is a line of a fenced block without a language, or inline code, that begins with one
//! of [`PROGRAMS`].

use crate::Failure;
use crate::shell::{self, Outcome, cannot_run, cargo, elapsed, flush, root};
use std::{collections::BTreeSet, env, fs, path::Path, process::Command, time::Instant};

/// The beginnings of a command.
const PROGRAMS: [&str; 3] = ["cargo ", "curl ", "onrush "];

/// How the test run covers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cover {
    /// [`run_all`] runs these commands of [`SHORT`] instead.
    Runs(&'static [&'static str]),
    /// This step of the short run or of the nightly run executes it.
    Step(&'static str),
    /// This file contains this text, which belongs to a test of the command.
    Tested(&'static str, &'static str),
    /// It runs this check, or does so with other arguments.
    ItRuns,
}

use Cover::{ItRuns, Runs, Step, Tested};

const BENCH_PAIR: &str = "xtask bench --short close --peers h2o";
const BENCH_LIST: &str = "xtask bench --list";
const EXPERIMENT_LIST: &str = "xtask experiment --list";
const VERSION: &str = "cargo run --release --quiet -- --version";
const EXAMPLES: &str = "cargo build --quiet -p onrush --features coroutine --example echo_stream \
    --example coroutine";

/// The commands that [`run_all`] runs. Measured programs are built without optimisation.
const SHORT: [&str; 5] = [VERSION, EXAMPLES, BENCH_LIST, BENCH_PAIR, EXPERIMENT_LIST];

const TEST: &str = "xtask/src/test.rs";
const NIGHTLY: &str = "xtask/src/nightly.rs";
const LARGE_FOLDER: &str = "crates/onrush-server/tests/clients/large_folder.rs";
const CURL: Cover = Tested(
    "crates/onrush-server/tests/clients/http.rs",
    "fn curl_puts_gets_and_deletes",
);
const LISTING: Cover = Tested(
    "crates/onrush-files/tests/files/list.rs",
    "application/json",
);
const REMOTE: &str = "crates/onrush-server/tests/cli/remote.rs";
const LOGINS: &str = "crates/onrush-server/tests/cli/logins.rs";
const USERS: &str = "crates/onrush-server/tests/cli/users.rs";
const EDGE: &str = "crates/onrush-server/tests/cli/edge.rs";
const CACHE: &str = "crates/onrush-server/tests/cli/cache.rs";
const SITE: &str = "crates/onrush-server/tests/cli/site.rs";
const STORED: &str = "crates/onrush-server/tests/cli/stored.rs";
const PAGE: &str = "crates/onrush-server/tests/clients/page.rs";
const WATCH: &str = "crates/onrush-server/tests/cli/watch.rs";
const ARCHIVE: &str = "crates/onrush-server/tests/clients/archive.rs";
const HEALTH: &str = "crates/onrush-server/tests/cli/health.rs";
const SCRUB: &str = "crates/onrush-server/tests/cli/scrub.rs";
const DRAIN: &str = "crates/onrush/tests/drain.rs";
const OPTIONS: &str = "bench/runner/src/options.rs";

/// Every command of the documents, without its comment.
const COMMANDS: &[(&str, Cover)] = &[
    (
        "cargo run --release -- ./data --allow put,delete",
        Runs(&[VERSION]),
    ),
    (
        "cargo install --locked --profile dist --path crates/onrush-server",
        Runs(&[VERSION]),
    ),
    (
        "curl -i -T README.md http://127.0.0.1:8080/docs/readme.md",
        CURL,
    ),
    ("curl http://127.0.0.1:8080/docs/readme.md", CURL),
    ("curl --http2-prior-knowledge", CURL),
    (
        "curl -H 'Accept: application/json' http://127.0.0.1:8080/docs/",
        LISTING,
    ),
    (
        "curl -i -X DELETE http://127.0.0.1:8080/docs/readme.md",
        CURL,
    ),
    (
        "onrush ./data --allow put,delete",
        Tested(PAGE, "fn chromium_uses_every_feature_of_the_page"),
    ),
    (
        "curl -N 'http://127.0.0.1:8080/photos/?watch'",
        Tested(WATCH, "fn curl_shows_changes"),
    ),
    (
        "curl 'http://127.0.0.1:8080/photos/?archive=tar' | tar -x",
        Tested(ARCHIVE, "fn tar_unpacks_a_folder_that_is_still_being_sent"),
    ),
    (
        "onrush user add ann --auth-file users.toml",
        Tested(
            LOGINS,
            "fn a_folder_with_a_password_over_tls_takes_two_commands",
        ),
    ),
    (
        "onrush ./data --auth-file users.toml --bind 0.0.0.0 --tls-self-signed",
        Tested(
            LOGINS,
            "fn a_folder_with_a_password_over_tls_takes_two_commands",
        ),
    ),
    (
        "onrush check",
        Tested(USERS, "fn check_prints_who_may_do_what_and_starts_nothing"),
    ),
    (
        "onrush user",
        Tested(USERS, "fn the_file_is_edited_and_stays_readable"),
    ),
    (
        "onrush sign",
        Tested(LOGINS, "fn a_signed_url_gives_one_right_until_it_expires"),
    ),
    (
        "onrush scrub",
        Tested(
            SCRUB,
            "fn scrub_names_what_is_damaged_changed_and_without_a_checksum",
        ),
    ),
    (
        "onrush sweep",
        Tested(REMOTE, "fn sweep_lists_and_removes_unfinished_uploads"),
    ),
    (
        "curl --oauth2-bearer TOKEN …",
        Tested(LOGINS, "fn curl_logs_in"),
    ),
    (
        "onrush ./site --site --precompressed --compress",
        Tested(SITE, "fn curl_and_wget_decode_what_they_get"),
    ),
    (
        "onrush ./data --allow put --max-object-size 2GiB --min-free 10GiB",
        Tested(STORED, "fn objects_and_free_space_have_limits"),
    ),
    (
        "onrush ./data --allow put,delete --quota /=500GiB,/ann=50GiB,/tmp=5GiB",
        Tested(STORED, "fn quotas_hold_after_a_restart"),
    ),
    (
        "onrush ./data --tls-self-signed",
        Tested(
            "crates/onrush-server/tests/cli/tls.rs",
            "fn a_self_signed_certificate_remains_the_same",
        ),
    ),
    (
        "onrush s3://bucket/prefix",
        Tested(REMOTE, "fn a_bucket_is_served"),
    ),
    (
        "onrush s3://bucket/prefix --allow put,delete",
        Tested(REMOTE, "fn a_bucket_is_served"),
    ),
    (
        "onrush s3://bucket/prefix --edge /var/cache/onrush --edge-size 100GiB",
        Tested(EDGE, "fn objects_of_a_bucket_are_fetched_once"),
    ),
    (
        "onrush /var/cache/builds --cache 100G",
        Tested(CACHE, "fn bazel_and_gradle_store_and_find_results"),
    ),
    (
        "onrush DIR --cache 100G",
        Tested(CACHE, "fn bazel_and_gradle_store_and_find_results"),
    ),
    ("cargo xtask cache", Step("cache")),
    (
        "onrush sweep s3://bucket/prefix",
        Tested(REMOTE, "fn sweep_lists_and_removes_unfinished_uploads"),
    ),
    ("cargo xtask package", Step("package")),
    (
        "onrush health",
        Tested(HEALTH, "fn health_reports_whether_a_server_is_ready"),
    ),
    (
        "onrush --man",
        Tested("crates/onrush-server/tests/cli/pages.rs", "--man="),
    ),
    (
        "onrush --help",
        Tested("crates/onrush-server/tests/cli/command_line.rs", "--help"),
    ),
    ("cargo run --release", Runs(&[VERSION])),
    ("onrush --version", Runs(&[VERSION])),
    (
        "onrush --sink",
        Tested("crates/onrush-server/tests/clients/http.rs", "\"--sink\""),
    ),
    (
        "cargo run --release -p onrush --example echo_stream",
        Runs(&[EXAMPLES]),
    ),
    (
        "cargo run -p onrush --features coroutine --example coroutine",
        Runs(&[EXAMPLES]),
    ),
    ("cargo xtask test", ItRuns),
    ("cargo xtask test [STEP…]", ItRuns),
    ("cargo xtask test clippy", Step("clippy")),
    ("cargo xtask nightly", ItRuns),
    ("cargo xtask nightly [STEP…]", ItRuns),
    ("cargo xtask nightly --list", ItRuns),
    ("cargo xtask nightly file-systems", ItRuns),
    ("cargo xtask setup", Step("set-up")),
    (
        "cargo test -p onrush --test engine drain::",
        Tested(DRAIN, "#[test]"),
    ),
    (
        "cargo test -p onrush --test engine drain::drain_loses_no_request",
        Tested(DRAIN, "fn drain_loses_no_request"),
    ),
    (
        "cargo test -p onrush-rt --lib timer::",
        Tested("crates/onrush-rt/src/timer.rs", "#[test]"),
    ),
    ("cargo xtask fuzz head --seconds 5", Step("fuzz")),
    ("cargo fmt", Step("fmt")),
    ("cargo xtask tidy", Step("tidy")),
    ("cargo xtask loom", Step("loom")),
    ("cargo xtask crates", Step("crates")),
    ("cargo xtask miri", Step("miri")),
    ("cargo xtask kill", Step("kill")),
    ("cargo xtask ceph up", Step("ceph")),
    ("cargo xtask ceph down", Step("ceph")),
    ("cargo xtask scale", Step("ceph")),
    ("cargo xtask scale [FAULT…]", Step("ceph")),
    (
        "cargo test -p onrush-remote histories",
        Tested(
            "crates/onrush-remote/tests/histories.rs",
            "fn changes_through_several_servers",
        ),
    ),
    ("cargo xtask power-cuts", Step("power-cuts")),
    ("cargo xtask power-cuts [FILE-SYSTEM…]", Step("power-cuts")),
    (
        "cargo xtask bench scale",
        Tested(
            OPTIONS,
            "fn a_service_of_objects_is_started_only_for_a_profile_that_is_named",
        ),
    ),
    ("cargo xtask chaos", Step("chaos")),
    ("cargo xtask page", Step("page")),
    ("cargo xtask tls", Step("tls")),
    ("cargo xtask http2", Step("http2")),
    ("cargo xtask fuzz [TARGET…]", Step("fuzz")),
    ("cargo xtask fuzz hpack http2", Step("fuzz")),
    ("cargo xtask bench", Step("bench")),
    ("cargo xtask bench [PROFILE…]", Runs(&[BENCH_PAIR])),
    ("cargo xtask bench --quick", Step("bench")),
    ("cargo xtask bench close --peers h2o", Runs(&[BENCH_PAIR])),
    (
        "onrush --webdav",
        Tested(
            LARGE_FOLDER,
            "fn a_million_files_are_listed_whole_in_little_memory",
        ),
    ),
    (
        "curl -o /dev/null -w '%{time_total}\\n' URL",
        Tested(
            LARGE_FOLDER,
            "fn a_million_files_are_listed_whole_in_little_memory",
        ),
    ),
    ("cargo xtask bench get --peers nginx", Runs(&[BENCH_PAIR])),
    ("cargo xtask bench put --peers nginx", Runs(&[BENCH_PAIR])),
    (
        "cargo xtask bench put --peers nginx --driver io_uring --rounds 5",
        Runs(&[BENCH_PAIR]),
    ),
    ("cargo xtask bench --list", Runs(&[BENCH_LIST])),
    ("cargo xtask bench --gate", Step("gate")),
    (
        "cargo test -p onrush-httparena",
        Tested("bench/httparena/tests/rules.rs", "#[test]"),
    ),
    (
        "cargo xtask bench json --perf hyper",
        Tested(OPTIONS, "json --perf hyper"),
    ),
    (
        "cargo xtask bench PROFILE --perf TEXT",
        Tested(OPTIONS, "json --perf hyper"),
    ),
    ("cargo xtask bench tls", Step("bench")),
    ("cargo xtask bench h2 --quick", Step("bench")),
    (
        "cargo xtask bench h2 --quick --rounds 3 --peers hyper,h2o-canned,nginx,h2o,go,caddy",
        Step("bench"),
    ),
    (
        "cargo xtask bench h2 --quick --rounds 3 --peers h2o-canned,nginx,h2o,hyper",
        Step("bench"),
    ),
    ("cargo xtask bench axum", Step("bench")),
    ("cargo xtask bench mixed", Step("bench")),
    (
        "cargo xtask bench mixed --before DIR",
        Tested(OPTIONS, "mixed --before"),
    ),
    (
        "cargo xtask bench --install-only --peers none",
        Tested(OPTIONS, "--install-only --peers none"),
    ),
    ("cargo xtask experiment", Step("experiments")),
    ("cargo xtask experiment [NAME…]", Runs(&[EXPERIMENT_LIST])),
    ("cargo xtask experiment balance", Step("experiments")),
    ("cargo xtask experiment --quick", Step("experiments")),
    ("cargo xtask experiment attack", Step("experiments")),
];

/// Compares the documents with [`COMMANDS`]. Reports commands that are not listed, commands that no
/// document contains, and commands whose cover no longer exists.
pub(crate) fn check() -> Outcome {
    let root = root();
    let mut found = BTreeSet::new();
    let mut complaints = Vec::new();
    for name in documents(&root)? {
        let text = read(&root, &name)?;
        for command in commands(&text) {
            if let Err(reason) = parsed(&command) {
                complaints.push(format!("{name}: `{command}`: {reason}"));
            }
            if !COMMANDS.iter().any(|(known, _)| *known == command) {
                complaints.push(format!(
                    "{name}: `{command}` is not covered: list it in xtask/src/commands.rs"
                ));
            }
            found.insert(command);
        }
    }
    for (command, cover) in COMMANDS {
        if !found.contains(*command) {
            complaints.push(format!(
                "xtask/src/commands.rs: no document contains `{command}`"
            ));
        }
        if let Some(reason) = gap(&root, *cover) {
            complaints.push(format!("`{command}`: {reason}"));
        }
    }
    match complaints.is_empty() {
        true => Ok(()),
        false => Err(complaints.join("\n")),
    }
}

/// Parses a command of this program, as it is or without what a reader fills in.
fn parsed(command: &str) -> Outcome {
    let Some(line) = command.strip_prefix("cargo xtask") else {
        return Ok(());
    };
    let is_given = |word: &&str| !word.starts_with('[') && !word.ends_with(']');
    let words: Vec<&str> = line.split_whitespace().filter(is_given).collect();
    match crate::parse(&words) {
        Err(Failure::Usage(reason)) => Err(reason),
        _ => Ok(()),
    }
}

/// Returns why `cover` covers nothing, if so.
fn gap(root: &Path, cover: Cover) -> Option<String> {
    let lacks = |file: &str, text: &str| match read(root, file) {
        Ok(content) if content.contains(text) => None,
        Ok(_) => Some(format!("{file} has no '{text}'")),
        Err(reason) => Some(reason),
    };
    match cover {
        Runs(short) => {
            let missing = short.iter().find(|command| !SHORT.contains(command))?;
            Some(format!("`{missing}` is not run"))
        }
        Step(name) => {
            let step = format!("(\"{name}\"");
            lacks(TEST, &step).and(lacks(NIGHTLY, &step))
        }
        Tested(file, text) => lacks(file, text),
        ItRuns => None,
    }
}

/// Runs every command of [`SHORT`].
pub(crate) fn run_all() -> Outcome {
    let mut failed = Vec::new();
    for line in SHORT {
        if !run_once(line)? {
            failed.push(line);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("commands that failed: {}", failed.join(", "))),
    }
}

/// Runs a command of [`SHORT`]. Returns whether it succeeded.
fn run_once(line: &str) -> Outcome<bool> {
    let started = Instant::now();
    println!("-- {line}");
    flush();
    let mut command = command(line)?;
    let status = command
        .status()
        .map_err(|error| cannot_run(&command, &error))?;
    println!("-- {line}: {status}, {}", elapsed(started.elapsed()));
    Ok(status.success())
}

/// Creates a command of [`SHORT`]; `xtask` is this program itself.
fn command(line: &str) -> Outcome<Command> {
    if let Some(arguments) = line.strip_prefix("cargo ") {
        return Ok(cargo(arguments));
    }
    let own = env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(own);
    command
        .args(line.split_whitespace().skip(1))
        .current_dir(root())
        .env(shell::UNOPTIMISED, "1");
    Ok(command)
}

fn documents(root: &Path) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for folder in ["", "docs/", "docs/recipes/"] {
        let path = root.join(folder);
        let entries =
            fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                names.push(format!("{folder}{name}"));
            }
        }
    }
    names.sort();
    Ok(names)
}

fn read(root: &Path, name: &str) -> Outcome<String> {
    fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
}

/// Returns all commands of a Markdown document, without their comments.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut prose = String::new();
    let mut block: Option<&str> = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language.trim()),
            (Some(_), Some(_)) => block = None,
            (None, Some("")) => {
                let command = line.split(" #").next().unwrap_or_default();
                found.push(words(command));
            }
            (None, Some(_)) => {}
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    // Inline code may continue on the next line.
    let pieces = prose
        .split("\n\n")
        .flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    found.extend(pieces.map(words));
    found.retain(|command| PROGRAMS.iter().any(|program| command.starts_with(program)));
    found
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_blocks_and_in_prose() {
        let text = "# T\n`cargo xtask\ntidy` and `onrush` and `curlew`.\n\n\
            ```\ncargo xtask test   # all\nother\n```\n\
            ```rust\ncargo no\n```\n| `onrush --help` | x |\n";
        assert_eq!(
            commands(text),
            ["cargo xtask test", "cargo xtask tidy", "onrush --help"]
        );
    }

    #[test]
    fn every_documented_command_is_covered() {
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn a_missing_cover_is_a_gap() {
        let root = root();
        assert_eq!(gap(&root, Step("bench")), None);
        assert!(gap(&root, Runs(&["xtask nothing"])).is_some());
        assert!(gap(&root, Step("no such step")).is_some());
        assert!(gap(&root, Tested("xtask/src/nowhere.rs", "")).is_some());
        assert!(gap(&root, Tested("README.md", "no such text at all")).is_some());
    }

    #[test]
    fn only_commands_of_xtask_are_measured() {
        for line in SHORT {
            let command = command(line).expect("a command");
            let is_measured = command
                .get_envs()
                .any(|(name, _)| name == shell::UNOPTIMISED);
            assert_eq!(is_measured, line.starts_with("xtask "), "{line}");
        }
    }
}
